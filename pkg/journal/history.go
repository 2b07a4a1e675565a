package journal

import (
	"errors"
	"io/fs"
	"slices"
	"time"
)

// Query says which lines Newest gives.
type Query struct {
	Events []string         // of these events
	Since  time.Time        // written then or later; the zero time is the beginning
	Before int64            // with a smaller sequence number; 0 is no bound
	Want   func(*Line) bool // and this holds; nil is all
	Limit  int              // the most lines
}

// Newest gives the newest lines of a query, newest first, and whether there are older ones.
// It reads the file in use and then closed ones, the youngest first, as far as it needs to,
// and verifies what it reads of them. The error is a *BadLine where a line cannot be
// trusted.
func (j *Journal) Newest(q Query) (lines []*Line, more bool, err error) {
	c := newChain(j.path, j.keys)
	began := time.Time{} // when the first line of the last file that was read was written
	read := func(do func(see func([]byte, *entry, span) error) error) error {
		began = time.Time{}
		var found []*Line // of this file, oldest first
		err := do(func(b []byte, e *entry, _ span) error {
			if began.IsZero() {
				began = e.Time
			}
			if e.Time.Before(q.Since) || q.Before > 0 && e.Seq >= q.Before || !slices.Contains(q.Events, e.Event) {
				return nil
			}
			l, err := c.decode(b)
			if err != nil {
				return err
			}
			if q.Want == nil || q.Want(l) {
				found = append(found, l)
			}
			if over := len(found) + len(lines) - q.Limit; over > 0 {
				found, more = found[over:], true
			}
			return nil
		})
		slices.Reverse(found)
		lines = append(lines, found...)
		return err
	}
	f, size, err := settled(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	newest := 0 // the number of the file in use, where there is one
	if err == nil {
		defer f.Close()
		err := read(func(see func([]byte, *entry, span) error) error {
			_, err := c.read(f, size, see) // a torn line is being written, or will be moved aside
			return err
		})
		if err != nil {
			return nil, false, err
		}
		newest = c.segment
	}
	numbers, err := segments(j.path)
	if err != nil {
		return nil, false, err
	}
	for _, n := range slices.Backward(numbers) {
		if newest > 0 && n >= newest {
			continue // it was closed since
		}
		if more || began.Before(q.Since) && !began.IsZero() {
			break
		}
		c = newChain(j.path, j.keys)
		if err := read(func(see func([]byte, *entry, span) error) error { return c.readClosed(n, see) }); err != nil {
			return nil, false, err
		}
	}
	return lines, more, nil
}
