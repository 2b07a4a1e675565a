package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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

// beginFile closes the file in use and begins a new one with a line that carries it on.
// The new one gets its name when it is whole and on the disk.
func (j *Journal) beginFile(first *Line) error {
	old, part := segmentPath(j.path, j.chain.segment), j.path+".new"
	if _, err := os.Lstat(old); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is there already (%v): %s cannot be closed by that name", old, err, j.path)
	}
	first.Segment = &Segment{File: filepath.Base(old), Seq: j.chain.seq, Hash: j.chain.prev}
	b := j.begin()
	b.next.open(j.chain.segment + 1)
	if err := b.add([]*Line{first}); err != nil {
		return err
	}
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeNew(part, strings.NewReader(string(b.buf))); err != nil {
		return err
	}
	if err := os.Chmod(j.path, 0o400); err != nil {
		return err
	}
	if err := os.Rename(j.path, old); err != nil {
		return err
	}
	if err := os.Rename(part, j.path); err != nil {
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
	j.chain, j.known, j.reserved = b.next, info, 0
	return nil
}
