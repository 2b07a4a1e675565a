package journal

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"
)

// TestQuiet: a process takes up the wait of those before it, of the same attempt, by the
// same clock, and by a record that it can trust; else it begins anew.
func TestQuiet(t *testing.T) {
	const id, attempt, before = "mf3q7x2ad5", "kube-write-mcp-mf3q7x2ad5-s1-x1", 30 * time.Second
	clock, now := steady()
	if clock == "" {
		t.Fatal("there is no clock that processes share")
	}
	for name, tc := range map[string]struct {
		left  *quiet // by a process before
		spoil func(j *Journal, path string) error
		want  time.Duration // at least; 0 is none at all
	}{
		"the first that asks": {},
		"one asked before":    {left: &quiet{attempt, clock, now - before}, want: before},
		"of another attempt":  {left: &quiet{"kube-write-mcp-mf3q7x2ad5-s1-x2", clock, now - before}},
		"before a reboot":     {left: &quiet{attempt, "another boot", now - before}},
		"in the time to come": {left: &quiet{attempt, clock, now + time.Hour}},
		"with another mac":    {left: &quiet{attempt, clock, now - before}, spoil: func(_ *Journal, path string) error { return edit(path, 12) }},
		"with another value":  {left: &quiet{attempt, clock, now - before}, spoil: func(_ *Journal, path string) error { return edit(path, -4) }},
		"under the snapshot's": {left: &quiet{attempt, clock, now - before}, spoil: func(j *Journal, path string) error {
			body, _ := j.kept(path, "quiet")
			return j.keep(path, "snapshot", body)
		}},
		"whose outcome is on record": {left: &quiet{attempt, clock, now - before}, spoil: func(j *Journal, path string) error {
			err := j.Append(func(*Ledger) ([]*Line, error) { return []*Line{{Event: EventReconciled, Plan: id}}, nil })
			if _, missing := os.Stat(path); !errors.Is(missing, os.ErrNotExist) {
				t.Errorf("it is still there (%v)", missing)
			}
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			j, path := f.open(), quietPath(f.path, id)
			if tc.left != nil {
				body, err := json.Marshal(tc.left)
				if err := errors.Join(err, j.keep(path, "quiet", body)); err != nil {
					t.Fatal(err)
				}
			}
			if tc.spoil != nil {
				if err := tc.spoil(j, path); err != nil {
					t.Fatal(err)
				}
			}
			got := f.open().Quiet(id, attempt)
			if got < tc.want || tc.want == 0 && got != 0 {
				t.Errorf("quiet for %s, want %s", got, tc.want)
			}
			if again := f.open().Quiet(id, attempt); again < got || again > got+time.Minute {
				t.Errorf("it is %s for the next one, and was %s", again, got)
			}
		})
	}
}

// edit changes one byte, counted from the end where at is negative.
func edit(path string, at int) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b[(at+len(b))%len(b)] ^= 1
	return os.WriteFile(path, b, 0o600)
}
