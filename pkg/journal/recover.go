package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// markName is the file beside the lock that tells every process, also those to come, that
// a process could not rely on the disk, or saw the file change under it. Its text says why.
const markName = "SEALED"

func (j *Journal) markPath() string { return filepath.Join(filepath.Dir(j.path), markName) }

// mark seals this process, and the others where the disk still takes a small file. It is
// called under the lock.
func (j *Journal) mark(err error) error {
	text := fmt.Sprintf("%s, process %d: %v\n", j.now().UTC().Format(time.RFC3339), os.Getpid(), err)
	_ = writeNew(j.markPath(), strings.NewReader(text)) // the first reason stays
	_ = j.checkpoint()                                  // of what was good
	return j.seal(err)
}

// marked seals this process where another one left the mark. It is called under the lock.
func (j *Journal) marked() error {
	why, err := j.readMark()
	if err != nil {
		return err
	}
	if why != "" {
		return j.seal(fmt.Errorf("%s says: %s; the operator ends it with kube-write-mcp audit recover", j.markPath(), why))
	}
	return nil
}

func (j *Journal) readMark() (string, error) {
	f, err := os.Open(j.markPath())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", err
	}
	if why := strings.TrimSpace(string(b)); why != "" {
		return why, nil
	}
	return "the disk failed a process", nil
}

// The codes of an operator's recovered lines.
const (
	recoveredVerified = "verified" // every line was good
	recoveredTail     = "tail"     // the last line was taken off
	recoveredNewFile  = "new_file" // the journal carries on in a new file
)

// Recover is what an operator does about a sealed journal; no process needs to be stopped
// for it, and those that were sealed stay so until they are started again. It verifies the
// file, writes it to the disk once more, since after a failed sync nobody knows what the
// disk has, keeps a last line that cannot be trusted aside in <file>.broken-<time>, puts a
// recovered line on record and removes the mark. Plans that were open can be executed no
// more, since their claims may be among what is missing. What it did is in did.
//
// A bad line that others follow, an unknown key, lines that are missing and a last line in
// the future are refused, unless newFile says to carry on in a new file. The old one is
// kept then, read-only, as it is, and the first line of the new one names it and the last
// line of it that counts.
func Recover(o Options, newFile bool) (did string, err error) {
	j, err := newJournal(o)
	if err != nil {
		return "", err
	}
	err = j.locked(func(f file, size int64) error {
		if err := private(j.path, j.known); err != nil {
			return err
		}
		numbers, err := segments(j.path)
		if err != nil {
			return err
		}
		if len(numbers) > 0 {
			last := numbers[len(numbers)-1]
			if err := j.chain.readClosed(last, ignore); err != nil {
				return fmt.Errorf("%w: nothing was changed", err)
			}
			j.chain.open(j.path, last+1)
		} else if size == 0 {
			return j.unmark()
		}
		did, err = j.recover(f, size, newFile)
		return err
	})
	return did, err
}

func (j *Journal) recover(f file, size int64, newFile bool) (did string, err error) {
	why, err := j.readMark()
	if err != nil {
		return "", err
	}
	if err := j.readHeads(); err != nil {
		return "", err
	}
	var missing error // by the last checkpoint; the lines that are there may be good all the same
	torn, bad := j.chain.read(f, size, func(_ []byte, e *entry, _ span) error {
		missing = cmp.Or(missing, j.heads.line(e, &j.chain))
		return nil
	})
	if _, ok := errors.AsType[*BadLine](bad); bad != nil && !ok {
		return "", bad
	}
	switch {
	case torn:
		bad = j.chain.bad(errTorn)
	case size == 0:
		bad = j.chain.bad(errors.New("it is missing, as all lines of the file are"))
	}
	last := torn || bad != nil && !errors.Is(bad, ErrUnknownKey) && size > 0 && j.isLast(f, size)
	if missing = cmp.Or(missing, j.heads.end(&j.chain)); missing != nil && (bad == nil || last) {
		bad, last = missing, false
	}
	if bad == nil || last {
		if ahead := j.unwritable(); ahead != nil {
			bad, last = ahead, false
		}
	}
	line := &Line{Event: EventRecovered}
	switch {
	case bad == nil:
		line.Code, did = recoveredVerified, fmt.Sprintf("all %d lines of %s were verified", j.chain.line, filepath.Base(j.path))
	case last:
		aside, err := keep(j.path+".broken-"+j.now().UTC().Format("20060102T150405Z"), f, j.chain.offset, size)
		if err != nil {
			return "", fmt.Errorf("the last line of %s could not be kept: %w", j.path, err)
		}
		if err := j.cut(f); err != nil {
			return "", err
		}
		line.Code, did = recoveredTail, fmt.Sprintf("%d bytes behind line %d were moved to %s", size-j.chain.offset, j.chain.line, filepath.Base(aside))
	case !newFile:
		return "", fmt.Errorf("%w: nothing was changed; restore what is wrong, or have the journal carry on in a new file: what stands behind line %d counts no more then", bad, j.chain.line)
	default:
		return j.carryOn(why, bad)
	}
	if why != "" {
		did += "; it was sealed: " + why
	}
	if err := rewrite(j.path, j.chain.offset); err != nil {
		return "", fmt.Errorf("%s could not be written to the disk once more: %w", j.path, err)
	}
	line.Output = did
	b := j.begin()
	if err := b.add([]*Line{line}); err != nil {
		return "", err
	}
	if err := j.write(f, b); err != nil {
		return "", err
	}
	return did, j.unmark()
}

// ignore is for who only verifies.
func ignore([]byte, *entry, span) error { return nil }

// isLast tells that nothing stands behind the line at which the chain stopped.
func (j *Journal) isLast(f file, size int64) bool {
	last, err := j.chain.unreadable(f, size, errTorn)
	return last && err == nil
}

// carryOn begins a new file behind the last good line.
func (j *Journal) carryOn(why string, bad error) (did string, err error) {
	old := segmentPath(j.path, j.chain.segment)
	reason := bad
	if line, ok := errors.AsType[*BadLine](bad); ok {
		reason = line.Why
	}
	did = fmt.Sprintf("%s is kept, and counts up to its line %d: %v", filepath.Base(old), j.chain.line, reason)
	if why != "" {
		did += "; it was sealed: " + why
	}
	// A clock that was wrong is left behind with the old file.
	j.chain.last = time.Time{}
	b, err := j.prepare(j.chain, &Line{Event: EventRecovered, Code: recoveredNewFile, Output: did})
	if err != nil {
		return "", err
	}
	if err := j.swap(b); err != nil {
		return "", err
	}
	return did, j.unmark()
}

// unmark ends what Recover does: the head as it is now is what the next Open is held to.
func (j *Journal) unmark() error {
	if err := j.checkpoint(); err != nil {
		return err
	}
	if err := os.Remove(j.markPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDir(filepath.Dir(j.path))
}

// rewrite writes the first bytes of a file over themselves and syncs: after a failed sync
// the system takes pages for written that the disk does not have.
func rewrite(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for at := int64(0); at < size && err == nil; {
		var n int
		if n, err = f.ReadAt(buf[:min(size-at, int64(len(buf)))], at); err == nil || n > 0 {
			_, err = f.WriteAt(buf[:n], at)
			at += int64(n)
		}
	}
	return errors.Join(err, f.Sync(), f.Close())
}
