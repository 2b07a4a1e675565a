package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// file is what the journal needs of an open audit file.
type file interface {
	io.ReaderAt
	io.Writer // at the end
	io.Closer
	Stat() (fs.FileInfo, error)
	Truncate(size int64) error
	Datasync() error // what was written is on the disk
	Sync() error     // and so is everything about the file

	// Reserve makes sure that size bytes from an offset at the end on will fit.
	Reserve(from, size int64) error
}

type osFile struct{ *os.File }

func (f osFile) Truncate(size int64) error { return truncate(f.File, size) }
func (f osFile) Datasync() error           { return datasync(f.File) }

func (f osFile) Reserve(from, size int64) error { return reserve(f.File, from, size) }

// openFile opens an audit file for appending. create makes it when it is missing, which
// is right only under the lock. What is no regular file is refused without being opened.
func openFile(path string, create bool) (file, error) {
	flags := os.O_RDWR | os.O_APPEND | openFlags
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && create:
		flags |= os.O_CREATE | os.O_EXCL
	case err != nil:
		return nil, err
	default:
		if err := regular(path, info); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular(path, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return osFile{f}, nil
}

// openExisting opens a regular file for reading; links are followed.
func openExisting(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(path, info); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	opened, err := f.Stat()
	if err == nil && !os.SameFile(info, opened) {
		err = fmt.Errorf("%s was replaced while it was opened", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// settled opens an audit file for reading and gives the size at which no append is under
// way. A file without a lock beside it is not in use.
func settled(path string) (*os.File, int64, error) {
	f, err := openExisting(path)
	if err != nil {
		return nil, 0, err
	}
	if _, err := os.Stat(lockName(filepath.Dir(path))); err == nil {
		unlock, err := lock(filepath.Dir(path))
		if err != nil {
			f.Close()
			return nil, 0, err
		}
		defer unlock()
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// writeNew writes a file that must not exist yet, to the disk.
func writeNew(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Sync(), f.Close())
}

// keep copies what must not be lost into a new file of that name, or of that name with a
// number, on the disk.
func keep(name string, f io.ReaderAt, from, to int64) (path string, err error) {
	for n := 1; ; n++ {
		if path = name; n > 1 {
			path = fmt.Sprintf("%s-%d", name, n)
		}
		err := writeNew(path, io.NewSectionReader(f, from, to-from))
		if err == nil {
			return path, syncDir(filepath.Dir(path))
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
}

// The lock is waited for, and looked at again, this long.
const (
	lockWait  = 10 * time.Second
	lockRetry = 500 * time.Microsecond
)

func lockName(dir string) string { return filepath.Join(dir, "LOCK") }

// lock takes the lock of a folder, which is held for one append. A process that dies
// loses it.
func lock(dir string) (unlock func(), err error) {
	l := flock.New(lockName(dir))
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	switch _, err := l.TryLockContext(ctx, lockRetry); {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%s is held by another process for more than %s: is one stopped?", l.Path(), lockWait)
	case err != nil:
		return nil, fmt.Errorf("locking: %w", err)
	}
	return func() { _ = l.Unlock() }, nil
}

// privateDir makes a folder that nobody else may enter, or makes sure that it is one.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	return private(dir, info)
}

var errNotRegular = errors.New("not a regular file")

// regular refuses everything that only looks like a file.
func regular(path string, info fs.FileInfo) error {
	if m := info.Mode(); !m.IsRegular() {
		return fmt.Errorf("%s is %s, %w", path, kindOf(m), errNotRegular)
	}
	return nil
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "something else"
}
