package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// aliveName is the file that a process holds locked for as long as it lives. Whether it
// lives is seen by the lock and never by a process id, which another one may have by then.
func aliveName(dir, inst string) string { return filepath.Join(dir, "inst-"+inst) }

// Live says to all processes on this journal that this one is alive, until release, or
// until it dies. It also takes away what dead ones left.
func (j *Journal) Live() (release func(), err error) {
	dir := filepath.Dir(j.path)
	unlock, err := lock(dir) // nobody looks while a file is there and not locked yet
	if err != nil {
		return nil, err
	}
	defer unlock()
	left, err := filepath.Glob(aliveName(dir, "*"))
	if err != nil {
		return nil, err
	}
	for _, path := range left {
		if dead, err := abandoned(path); err == nil && dead {
			_ = os.Remove(path)
		}
	}
	l := flock.New(aliveName(dir, j.inst))
	switch ok, err := l.TryLock(); {
	case err != nil:
		return nil, fmt.Errorf("locking: %w", err)
	case !ok:
		return nil, fmt.Errorf("another process is the instance %s", j.inst)
	}
	return func() {
		if unlock, err := lock(dir); err == nil {
			defer unlock()
		}
		_ = l.Unlock()
		_ = os.Remove(l.Path())
	}, nil
}

// Alive reports whether the process of an instance lives. Where that cannot be seen it
// counts as alive: nobody may settle what it is doing.
func (j *Journal) Alive(inst string) bool {
	dir := filepath.Dir(j.path)
	unlock, err := lock(dir)
	if err != nil {
		return true
	}
	defer unlock()
	dead, err := abandoned(aliveName(dir, inst))
	return err != nil || !dead
}

// abandoned is asked under the lock of the folder.
func abandoned(path string) (bool, error) {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	l := flock.New(path)
	ok, err := l.TryLock()
	if ok {
		err = l.Unlock()
	}
	return ok, err
}
