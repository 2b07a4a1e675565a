// Package journal is the append-only record of every call, and the ledger is a fold over
// it: one JSONL file, hash-chained, keyed, and on the disk before anybody is answered.
//
// Several processes may share the file. A lock is held for one append, never for the
// life of a process; under it the process first reads what the others wrote, so what a
// decision saw cannot have changed when its lines are written.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// ErrSealed is in every error of an Append that was refused because the journal cannot
// be trusted or written any more. Nothing was written, or nobody knows.
var ErrSealed = errors.New("the journal is sealed")

// maxAhead is how far the last line may lie in the future.
const maxAhead = time.Minute

var instRE = regexp.MustCompile(`^[a-z2-7]{4}$`)

// Options say where a journal is and who writes.
type Options struct {
	Dir  string           // the state folder, mode 0700; made when it is missing
	Path string           // the audit file, mode 0600; made when it is missing; "" is Dir/audit.jsonl
	Keys *Keyring         // what lines are signed with and verified by
	Now  func() time.Time // nil is time.Now
	Inst string           // 4 characters [a-z2-7], new for every process
}

// Journal is this process's handle on the file. It is safe for concurrent use. The file
// is open only during a call, so there is nothing to close.
type Journal struct {
	path, inst string
	keys       *Keyring
	now        func() time.Time
	open       func(path string, create bool) (file, error)

	mu     sync.Mutex
	known  fs.FileInfo // the file that was read so far; another one by that name is not ours
	chain  chain
	ledger Ledger
	sealed error
}

// Open reads the whole file and verifies every line of it. It refuses a path that is no
// regular file of our own with mode 0600, and a line that cannot be trusted (a *BadLine),
// and says what to do. A torn last line, as a killed process leaves it, is moved to
// <file>.broken-<time> and a recovered line says so.
func Open(o Options) (*Journal, error) {
	if o.Keys == nil {
		return nil, errors.New("journal: no keys")
	}
	if !instRE.MatchString(o.Inst) {
		return nil, fmt.Errorf("journal: instance %q is not 4 characters of a-z, 2-7", o.Inst)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Path == "" {
		o.Path = filepath.Join(o.Dir, "audit.jsonl")
	}
	if err := privateDir(o.Dir); err != nil {
		return nil, err
	}
	j := &Journal{path: o.Path, inst: o.Inst, keys: o.Keys, now: o.Now, open: openFile, chain: newChain(o.Path, o.Keys)}
	if err := j.start(); err != nil {
		return nil, err
	}
	return j, nil
}

// start reads the file. The bulk of it is read without the lock, so that other processes
// need not wait: whole lines below a size that was seen under the lock never change.
// What does not look right there is left to the second reading, which holds the lock.
func (j *Journal) start() error {
	var bulk int64
	err := j.locked(func(_ file, size int64) error {
		bulk = size
		return private(j.path, j.known)
	})
	if err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(j.path)); err != nil {
		return err
	}
	f, err := j.open(j.path, false)
	if err != nil {
		return err
	}
	defer f.Close()
	_, _ = j.chain.read(f, bulk, j.ledger.fold)
	return j.locked(func(f file, size int64) error {
		torn, err := j.fold(f, size)
		if err != nil || !torn || j.unwritable() != nil {
			return err
		}
		return j.repair(f, size)
	})
}

// Append writes lines and returns when they are on the disk. Under the lock of all
// processes it reads what the others wrote, asks decide, and writes all lines that decide
// gives in one write; what decide saw is then still so. An error of decide is returned
// unchanged, and with it, or with no lines, nothing is written.
//
// Sequence, time, process, chain, key and mac of the lines are filled in here. An error
// that is not ErrSealed means that nothing was recorded and that the same may pass later.
// decide must not call the Journal.
func (j *Journal) Append(decide func(*Ledger) ([]*Line, error)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.unwritable(); err != nil {
		return err
	}
	return j.locked(func(f file, size int64) error {
		torn, err := j.fold(f, size)
		if err != nil {
			return err
		}
		if err := j.unwritable(); err != nil {
			return err
		}
		if torn {
			if err := j.repair(f, size); err != nil {
				return err
			}
		}
		lines, err := decide(&j.ledger)
		if err != nil || len(lines) == 0 {
			return err
		}
		return j.write(f, lines)
	})
}

// View reads what other processes wrote and shows the ledger; it writes nothing. While
// the journal is sealed it shows what was read until then. The ledger is valid only
// during see, which must not call the Journal; its error is returned unchanged.
func (j *Journal) View(see func(*Ledger) error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.catchUp(); err != nil {
		return err
	}
	return see(&j.ledger)
}

// Record gives a plan as it was recorded, nil when there is none. It is read from the
// disk and its line is verified again.
func (j *Journal) Record(id string) (*plan.Plan, error) {
	var l struct {
		Record *plan.Plan `json:"record"`
	}
	err := j.reread(id, func(r *record) span { return r.plan }, &l)
	return l.Record, err
}

// Result gives a plan's first result, byte for byte as it stands in the execute line, or in
// the reconciled line where that came first, nil when there is none.
func (j *Journal) Result(id string) (json.RawMessage, error) {
	var l struct {
		Result json.RawMessage `json:"result"`
	}
	err := j.reread(id, func(r *record) span { return r.result }, &l)
	return l.Result, err
}

// Sealed says why Append is refused, nil when it is not. It looks at no file.
func (j *Journal) Sealed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.unwritable()
}

// unwritable is why nothing may be written now. A clock that was set back heals as time
// goes by; everything else needs a new process.
func (j *Journal) unwritable() error {
	if j.sealed != nil {
		return j.sealed
	}
	if ahead := j.chain.last.Sub(j.now()); ahead > maxAhead {
		return fmt.Errorf("%w: its last line is of %s, %s in the future: set the clock right",
			ErrSealed, j.chain.last.Format(time.RFC3339), ahead.Round(time.Second))
	}
	return nil
}

func (j *Journal) seal(err error) error {
	if j.sealed == nil {
		j.sealed = fmt.Errorf("%w: %w", ErrSealed, err)
	}
	return j.sealed
}

// catchUp folds in what other processes wrote. A sealed journal stays as it is.
func (j *Journal) catchUp() error {
	if j.sealed != nil {
		return nil
	}
	err := j.locked(func(f file, size int64) error {
		_, err := j.fold(f, size)
		return err
	})
	if j.sealed != nil {
		return nil
	}
	return err
}

// locked opens the file under the lock of all processes and makes sure that it is the one
// that was read so far, with nothing cut off.
func (j *Journal) locked(do func(f file, size int64) error) error {
	unlock, err := lock(filepath.Dir(j.path))
	if err != nil {
		return err
	}
	defer unlock()
	f, err := j.open(j.path, j.known == nil)
	switch inUse := j.known != nil; {
	case inUse && errors.Is(err, fs.ErrNotExist):
		return j.seal(fmt.Errorf("%s is gone: it was removed or renamed while it was in use", j.path))
	case inUse && errors.Is(err, errNotRegular):
		return j.seal(err)
	case err != nil:
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case j.known == nil:
		j.known = info
	case !os.SameFile(j.known, info):
		return j.seal(fmt.Errorf("%s is another file now: it was replaced while it was in use", j.path))
	case info.Size() < j.chain.offset:
		return j.seal(fmt.Errorf("%s shrank from %d to %d bytes: lines were cut off while it was in use", j.path, j.chain.offset, info.Size()))
	}
	return do(f, info.Size())
}

// fold verifies and folds the lines up to size; one that cannot be trusted seals. torn
// says that the last one is not whole.
func (j *Journal) fold(f file, size int64) (torn bool, err error) {
	torn, err = j.chain.read(f, size, j.ledger.fold)
	if _, ok := errors.AsType[*BadLine](err); ok {
		err = j.seal(err)
	}
	return torn, err
}

// reread decodes the line at which a plan has something, verified again; nothing where
// there is no such line.
func (j *Journal) reread(id string, where func(*record) span, into any) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.catchUp(); err != nil {
		return err
	}
	r := j.ledger.plans[id]
	if r == nil || where(r).seq == 0 {
		return nil
	}
	if err := j.decode(where(r), into); err != nil {
		return fmt.Errorf("the line of plan %s, at byte %d of %s: %w", id, where(r).offset, j.path, err)
	}
	return nil
}

func (j *Journal) decode(at span, into any) error {
	f, err := j.open(j.path, false)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, at.length)
	if _, err := f.ReadAt(b, at.offset); err != nil {
		return err
	}
	e, err := j.chain.verify(b)
	switch {
	case err != nil:
		return err
	case e.Seq != at.seq:
		return fmt.Errorf("line %d stands in the place of line %d", e.Seq, at.seq)
	}
	return json.Unmarshal(b, into)
}

// write makes lines durable and folds them. It is called under the lock, at the end of a
// file that was read to its end.
func (j *Journal) write(f file, lines []*Line) error {
	kid := j.keys.Current()
	next := j.chain
	var buf []byte
	folds := make([]func(), len(lines))
	for i, l := range lines {
		l.V, l.Seq, l.Prev, l.Inst, l.PID, l.KID = version, next.seq+1, next.prev, j.inst, os.Getpid(), kid
		if l.Time = j.now().UTC().Truncate(time.Millisecond); l.Time.Before(next.last) {
			l.Time = next.last
		}
		b, err := next.sign(l)
		if err != nil {
			return fmt.Errorf("a line of event %s: %w", l.Event, err)
		}
		e, at, err := next.next(b) // as every reader will
		if err != nil {
			return fmt.Errorf("a line of event %s: %w", l.Event, err)
		}
		folds[i] = func() { j.ledger.add(&e, at) }
		buf = append(append(buf, b...), '\n')
	}
	n, err := f.Write(buf)
	if err == nil && n < len(buf) {
		err = io.ErrShortWrite
	}
	if err != nil {
		if cut := j.cut(f); cut != nil {
			return cut
		}
		return fmt.Errorf("%s could not be written, nothing was recorded: %w", j.path, err)
	}
	if err := f.Datasync(); err != nil {
		return j.seal(fmt.Errorf("%s: the disk may not have what was written: %w", j.path, err))
	}
	for _, fold := range folds {
		fold()
	}
	j.chain = next
	return nil
}

// cut takes off what stands behind the last good line.
func (j *Journal) cut(f file) error {
	err := f.Truncate(j.chain.offset)
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return j.seal(fmt.Errorf("%s: a part of a line could not be taken off again: %w", j.path, err))
	}
	return nil
}

// repair moves a torn last line aside and says so in a line of its own.
func (j *Journal) repair(f file, size int64) error {
	from := j.chain.offset
	aside, err := keep(j.path+".broken-"+j.now().UTC().Format("20060102T150405Z"), f, from, size)
	if err != nil {
		return fmt.Errorf("the torn last line of %s could not be kept: %w", j.path, err)
	}
	if err := j.cut(f); err != nil {
		return err
	}
	return j.write(f, []*Line{{
		Event:  EventRecovered,
		Output: fmt.Sprintf("a torn line of %d bytes was moved to %s", size-from, filepath.Base(aside)),
	}})
}
