package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// segmentPath is the name that a file of the journal has when it is closed: audit.jsonl is
// audit-000001.jsonl then, and the one after it audit-000002.jsonl.
func segmentPath(path string, number int) string {
	ext := filepath.Ext(path)
	return fmt.Sprintf("%s-%06d%s", strings.TrimSuffix(path, ext), number, ext)
}

var segmentRE = regexp.MustCompile(`-([0-9]{6,9})(\.[^.]*)?$`)

// segmentNumber is the number in the name of a closed file, 0 where it has none.
func segmentNumber(name string) int {
	m := segmentRE.FindStringSubmatch(name)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// readClosed reads a closed file from its beginning. One that was damaged counts up to
// where the next one says.
func (c *chain) readClosed(number int, see func([]byte, *entry, span) error) error {
	f, err := openExisting(segmentPath(c.path, number))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	c.open(f.Name(), number)
	torn, err := c.read(f, info.Size(), see)
	switch _, bad := errors.AsType[*BadLine](err); {
	case torn:
		err = c.bad(errTorn)
	case err == nil && !c.closed:
		err = c.bad(errors.New("it is missing: the file ends without the line that closes it"))
	case err == nil || !bad:
		return err
	}
	next := peek(c.nameOf(number + 1))
	if next.Event == EventRecovered && next.Segment != nil && (next.Segment.Seq == c.seq || c.seq == 0) {
		return nil // the operator saw it, and the next file's first line is verified by who reads it
	}
	return err
}

// nameOf is where the file of that number is now.
func (c *chain) nameOf(number int) string {
	if closed := segmentPath(c.path, number); exists(closed) {
		return closed
	}
	return c.path
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// walk reads all files of a journal.
func (c *chain) walk(see func([]byte, *entry, span) error) error {
	numbers, err := segments(c.path)
	if err != nil {
		return err
	}
	n := 1
	if len(numbers) > 0 {
		n = numbers[0]
	}
	for {
		if exists(segmentPath(c.path, n)) {
			if err := c.readClosed(n, see); err != nil {
				return err
			}
			n++
			continue
		}
		f, size, err := settled(c.path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && c.closed:
			return nil // a process died between two names
		case err != nil:
			return err
		case exists(segmentPath(c.path, n)):
			f.Close() // it was closed in this moment
			continue
		}
		defer f.Close()
		c.open(c.path, n)
		torn, err := c.read(f, size, see)
		if torn {
			return c.bad(errTorn)
		}
		return err
	}
}

// segments are the numbers of the closed files, ascending.
func segments(path string) (numbers []int, err error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		if n := segmentNumber(e.Name()); n > 0 && e.Name() == filepath.Base(segmentPath(path, n)) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, err
}

// peek decodes the first line of a file without verifying it; what cannot be read is the
// zero entry.
func peek(path string) (e entry) {
	f, err := openExisting(path)
	if err != nil {
		return e
	}
	defer f.Close()
	return first(f)
}

func first(f io.ReaderAt) (e entry) {
	b, err := bufio.NewReaderSize(io.NewSectionReader(f, 0, MaxLine+1), MaxLine+1).ReadSlice('\n')
	if err == nil {
		_ = json.Unmarshal(b, &e)
	}
	return e
}

// newest is the last whole line of a file, not verified: it only says how far
// back to read.
func newest(f io.ReaderAt, size int64) (e entry) {
	b := make([]byte, min(size, 2*(MaxLine+1)))
	if _, err := f.ReadAt(b, size-int64(len(b))); err != nil {
		return e
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1]
	b = bytes.TrimSuffix(b, []byte("\n"))
	_ = json.Unmarshal(b[bytes.LastIndexByte(b, '\n')+1:], &e)
	return e
}

// prepare writes a new file, under a name of its own, whose first line carries on the
// chain as it stands after.
func (j *Journal) prepare(after chain, first *Line) (*batch, error) {
	old, part := segmentPath(j.path, after.segment), j.path+".new"
	first.Segment = &Segment{File: filepath.Base(old), Seq: after.seq, Hash: after.prev}
	b := &batch{j: j, next: after}
	b.next.open(j.path, after.segment+1)
	if err := b.add([]*Line{first}); err != nil {
		return nil, err
	}
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return b, writeNew(part, bytes.NewReader(b.buf))
}

// swap gives the file in use the name of a closed one, where it has it not yet, and its
// own to the one that was prepared.
func (j *Journal) swap(b *batch) error {
	old := segmentPath(j.path, b.next.segment-1)
	if exists(j.path) {
		if exists(old) {
			return fmt.Errorf("%s cannot be closed: there is a %s already", j.path, filepath.Base(old))
		}
		if err := os.Chmod(j.path, 0o400); err != nil {
			return err
		}
		if err := os.Rename(j.path, old); err != nil {
			return err
		}
	}
	if err := os.Rename(j.path+".new", j.path); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(j.path)); err != nil {
		return err
	}
	info, err := os.Lstat(j.path)
	if err != nil {
		return err
	}
	for _, l := range b.lines {
		j.ledger.add(&l.e, l.at)
	}
	j.chain, j.known, j.reserved, j.saved = b.next, info, 0, 0
	return nil
}

// rotate closes the file in use and begins the next one. The new one is on the disk before
// the old one is closed, so that a full disk stops neither; what is left undone, the next
// append does.
func (j *Journal) rotate(f file) error {
	closing := j.begin()
	if err := closing.add([]*Line{{Event: EventRotated, Segment: &Segment{File: filepath.Base(segmentPath(j.path, j.chain.segment))}}}); err != nil {
		return err
	}
	next, err := j.prepare(closing.next, &Line{Event: EventRotated})
	if err != nil {
		return err
	}
	if err := j.write(f, closing); err != nil {
		return err
	}
	_ = j.checkpoint()
	return j.swap(next)
}

// finish ends a rotation that a process began: its file is closed, and maybe renamed.
func (j *Journal) finish() error {
	next, err := j.prepare(j.chain, &Line{Event: EventRotated})
	if err != nil {
		return err
	}
	return j.swap(next)
}

// adopt ends, for a process that begins, a rotation that another one left between the two
// names: there are closed files, and none in use.
func (j *Journal) adopt() error {
	if exists(j.path) {
		return nil
	}
	numbers, err := segments(j.path)
	if err != nil || len(numbers) == 0 {
		return err
	}
	c := newChain(j.path, j.keys)
	if err := c.readClosed(numbers[len(numbers)-1], ignore); err != nil {
		return fmt.Errorf("%s is missing, and the one before it is not whole: %w", j.path, err)
	}
	if _, err := j.prepare(c, &Line{Event: EventRotated}); err != nil {
		return err
	}
	if err := os.Rename(j.path+".new", j.path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(j.path))
}

// follow reads on from a file that was closed and renamed while it was in use, up to the
// beginning of the file in use. Without a line that closed it, it was replaced.
func (j *Journal) follow() error {
	for {
		old := segmentPath(j.path, j.chain.segment)
		f, err := j.open(old, false)
		if err != nil {
			return j.mark(fmt.Errorf("%s is another file now: it was replaced while it was in use", j.path))
		}
		info, err := f.Stat()
		if err == nil && !os.SameFile(j.known, info) {
			err = j.mark(fmt.Errorf("%s is another file now: it was replaced while it was in use", j.path))
		}
		if err == nil {
			_, err = j.fold(f, info.Size())
		}
		if err == nil && !j.chain.closed && peek(j.path).Event == EventRecovered {
			err = j.seal(fmt.Errorf("%s: the operator had a new file begun: start this process again", j.path))
		}
		if err == nil && !j.chain.closed {
			err = j.mark(fmt.Errorf("%s is another file now, and %s has no line that closes it: it was replaced while it was in use", j.path, old))
		}
		f.Close()
		if err != nil {
			return err
		}
		if !exists(j.path) {
			if err := j.finish(); err != nil {
				return err
			}
		} else {
			j.chain.open(j.path, j.chain.segment+1)
		}
		next := j.chain.nameOf(j.chain.segment)
		if j.known, err = os.Lstat(next); err != nil {
			return err
		}
		j.reserved, j.saved = 0, 0
		if next == j.path {
			return nil
		}
	}
}
