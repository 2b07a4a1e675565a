package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// rotating opens a journal whose files are closed at a size.
func (f *fixture) rotating(size int64) *Journal {
	f.Helper()
	j, err := Open(Options{Dir: f.dir, Keys: f.keys, Now: f.clock.now, Inst: "test", RotateAt: size})
	if err != nil {
		f.Fatal(err)
	}
	return j
}

func (f *fixture) closed(number int) string { return segmentPath(f.path, number) }

// Two processes go through many files: what one closes, the other follows, and a third
// one that begins sees it all.
func TestRotation(t *testing.T) {
	f := newFixture(t)
	both := []*Journal{f.rotating(3000), f.rotating(3000)}
	const plans = 30
	results := map[string]string{}
	for n := range plans {
		id := planID(n)
		f.clock.at = f.clock.at.Add(time.Second)
		f.append(both[n%2], planLine(id, f.clock.at.Add(time.Hour)))
		f.append(both[(n+1)%2], intentLine(id, "c1"))
		f.append(both[n/2%2], executeLine(id))
		r, err := both[n%2].Result(id)
		if err != nil {
			t.Fatal(err)
		}
		results[id] = string(r)
	}
	numbers, err := segments(f.path)
	if err != nil || len(numbers) < 10 {
		t.Fatalf("%v, %v: want many files", numbers, err)
	}
	for i, n := range numbers {
		if info, err := os.Stat(f.closed(n)); n != i+1 || err != nil || info.Mode().Perm() != 0o400 || info.Size() < 3000 {
			t.Errorf("file %d is %v, %v", n, info, err)
		}
	}
	if info, err := os.Stat(f.path); err != nil || info.Mode().Perm() != 0o600 || info.Size() >= 3000 {
		t.Errorf("the file in use is %v, %v", info, err)
	}
	var events []string
	for _, l := range f.scan() {
		if l.Event != EventRotated {
			events = append(events, l.Event+" "+l.Plan)
		}
	}
	for n := range plans {
		for i, e := range []string{EventPlan, EventIntent, EventExecute} {
			if want := e + " " + planID(n); events[3*n+i] != want {
				t.Fatalf("line %d is %s, want %s", 3*n+i, events[3*n+i], want)
			}
		}
	}
	for name, j := range map[string]*Journal{"one": both[0], "the other": both[1], "a new one": f.rotating(3000)} {
		for n := range plans {
			id := planID(n)
			if s := stateOf(t, j, id); !s.Done || s.Claim != "c1" {
				t.Fatalf("%s: plan %s is %+v", name, id, s)
			}
			if p, err := j.Record(id); p == nil || p.ID != id || err != nil {
				t.Fatalf("%s: the record of %s is %v, %v", name, id, p, err)
			}
			if r, err := j.Result(id); string(r) != results[id] || err != nil || len(r) == 0 {
				t.Fatalf("%s: the result of %s is %s, %v", name, id, r, err)
			}
		}
		var writes int
		if err := j.View(func(l *Ledger) error { writes = len(l.Writes("uid-1", epoch)); return nil }); err != nil || writes != plans {
			t.Errorf("%s counts %d writes, %v, want %d", name, writes, err, plans)
		}
	}
	// The first lines say what they carry on.
	prev := peek(f.closed(2))
	if prev.Event != EventRotated || prev.Segment.File != "audit-000001.jsonl" || prev.Segment.Seq != prev.Seq-1 || prev.Segment.Hash != prev.Prev {
		t.Errorf("the second file begins with %+v", prev)
	}
}

// A process is killed between any two steps of a rotation. A new process and one that was
// there before go on, nothing is lost, and who only looks writes nothing.
func TestRotationIsCutOff(t *testing.T) {
	for name, upTo := range map[string]int{
		"the new file is prepared": 1, "the old one is closed": 2, "it is read-only": 3, "it is renamed": 4, "the new one is named": 5,
	} {
		for _, who := range []string{"a new process", "an old process", "an old process that did not see the last lines"} {
			t.Run(name+", "+who, func(t *testing.T) {
				f := newFixture(t)
				j := f.rotating(1 << 20)
				f.append(j, planLine("p1", epoch.Add(time.Hour)))
				other := f.rotating(1 << 20)
				f.append(j, intentLine("p1", "c1"))
				if who == "an old process" {
					stateOf(t, other, "p1")
				}

				// What rotate does, as far as it came.
				err := j.locked(func(file file, _ int64) error {
					closing := j.begin()
					if err := closing.add([]*Line{{Event: EventRotated, Segment: &Segment{File: filepath.Base(f.closed(1))}}}); err != nil {
						return err
					}
					if _, err := j.prepare(closing.next, &Line{Event: EventRotated}); err != nil || upTo == 1 {
						return err
					}
					if err := j.write(file, closing); err != nil || upTo == 2 {
						return err
					}
					if err := os.Chmod(f.path, 0o400); err != nil || upTo == 3 {
						return err
					}
					if err := os.Rename(f.path, f.closed(1)); err != nil || upTo == 4 {
						return err
					}
					return os.Rename(f.path+".new", f.path)
				})
				if err != nil {
					t.Fatal(err)
				}
				before, _ := filepath.Glob(filepath.Join(f.dir, "audit*"))
				if lines := f.scan(); lines[1].Event != EventIntent {
					t.Errorf("Scan gave %v", lines)
				}
				if who == "a new process" {
					other = f.rotating(1 << 20)
				}
				if s := stateOf(t, other, "p1"); !s.Claimed || other.Sealed() != nil {
					t.Errorf("the state is %+v, sealed by %v", s, other.Sealed())
				}
				if after, _ := filepath.Glob(filepath.Join(f.dir, "audit*")); upTo != 4 && !cmp.Equal(before, after) {
					t.Errorf("a view made %v of %v", after, before)
				}
				f.append(other, executeLine("p1"))
				f.append(f.rotating(1<<20), &Line{Event: EventReplayed})
				f.append(other, &Line{Event: EventReplayed})
				want := []string{EventPlan, EventIntent, EventRotated, EventRotated, EventExecute, EventReplayed, EventReplayed}
				if upTo == 1 {
					want = []string{EventPlan, EventIntent, EventExecute, EventReplayed, EventReplayed}
				}
				var events []string
				for _, l := range f.scan() {
					events = append(events, l.Event)
				}
				if diff := cmp.Diff(want, events); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if r, err := other.Result("p1"); r == nil || err != nil {
					t.Errorf("the result is %s, %v", r, err)
				}
				if info, err := os.Stat(f.closed(1)); (err == nil) != (upTo > 1) || err == nil && info.Mode().Perm() != 0o400 {
					t.Errorf("the closed file: %v, %v", info, err)
				}
			})
		}
	}
}

// A rotation that is not possible costs nobody his append.
func TestRotationFails(t *testing.T) {
	f := newFixture(t)
	j := f.rotating(1000)
	if err := os.MkdirAll(filepath.Join(f.path+".new", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		f.append(j, planLine("p1", epoch))
	}
	if lines := f.scan(); len(lines) != 5 || exists(f.closed(1)) {
		t.Errorf("%d lines, a closed file: %v", len(lines), exists(f.closed(1)))
	}
	if err := os.RemoveAll(f.path + ".new"); err != nil {
		t.Fatal(err)
	}
	f.append(j, planLine("p1", epoch))
	if lines := f.scan(); len(lines) != 8 || !exists(f.closed(1)) {
		t.Errorf("%d lines, a closed file: %v", len(lines), exists(f.closed(1)))
	}
}

// What is done to closed files and their names, and what Open, Scan and a live process
// make of it.
func TestSegmentsAreChanged(t *testing.T) {
	edit := func(path string) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, bytes.Replace(b, []byte("kind-lab"), []byte("kind-fab"), 1), 0o600))
	}
	cut := func(path string, lines int) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		all := bytes.SplitAfter(b, []byte("\n"))
		return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, bytes.Join(all[:len(all)-1-lines], nil), 0o600))
	}
	for name, tc := range map[string]struct {
		change               func(f *fixture) error
		wantOpen, wantScan   string
		wantLive             string
		wantRecover, newFile bool
	}{
		"nothing":                      {change: func(*fixture) error { return nil }},
		"a closed file is edited":      {change: func(f *fixture) error { return edit(f.closed(3)) }, wantOpen: "audit-000003.jsonl, line 2", wantScan: "audit-000003.jsonl, line 2"},
		"an old closed file is edited": {change: func(f *fixture) error { return edit(f.closed(1)) }, wantScan: "audit-000001.jsonl, line 1"},
		"a closed file loses its end":  {change: func(f *fixture) error { return cut(f.closed(3), 1) }, wantOpen: "without the line that closes it", wantScan: "without the line that closes it"},
		"and more of it":               {change: func(f *fixture) error { return cut(f.closed(3), 2) }, wantOpen: "without the line that closes it", wantScan: "without the line that closes it"},
		"a closed file is gone":        {change: func(f *fixture) error { return os.Remove(f.closed(3)) }, wantScan: "line 1 (at byte 0): it does not carry on audit-000003.jsonl where that ends"},
		"two change places": {
			change: func(f *fixture) error {
				return errors.Join(os.Rename(f.closed(3), f.closed(9)), os.Rename(f.closed(2), f.closed(3)), os.Rename(f.closed(9), f.closed(2)))
			},
			wantOpen: "does not carry on", wantScan: "does not carry on",
		},
		"the file in use is emptied": {
			change: func(f *fixture) error { return os.Truncate(f.path, 0) }, wantOpen: "its lines were cut off", wantLive: "shrank", wantRecover: true, newFile: true,
		},
		"the file in use is gone": {
			// What it held cannot be missed from the files alone.
			change: func(f *fixture) error { return os.Remove(f.path) },
		},
		"it is renamed, and not closed": {
			change: func(f *fixture) error {
				b, err := os.ReadFile(f.path)
				return errors.Join(err, os.Rename(f.path, f.closed(4)), os.WriteFile(f.path, b, 0o600))
			},
			wantOpen: "has no line that closes it", wantScan: "without the line that closes it", wantLive: "no line that closes it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			j := f.rotating(1500)
			for n := 0; !exists(f.closed(3)); n++ {
				f.clock.at = epoch.Add(time.Duration(n) * 10 * time.Hour)
				f.append(j, planLine(fmt.Sprint("p", n), f.clock.at))
			}
			f.append(j, planLine("last", f.clock.at))
			if err := tc.change(f); err != nil {
				t.Fatal(err)
			}
			is := func(err error, want string) bool {
				return (err == nil) == (want == "") && (err == nil || strings.Contains(err.Error(), want))
			}
			if tc.wantOpen != "" || name != "the file in use is gone" {
				if err := f.trySealed(); !is(err, tc.wantOpen) {
					t.Errorf("Open gave %v, want %q", err, tc.wantOpen)
				}
			}
			if err := Scan(f.path, f.keys, func(*Line) error { return nil }); !is(err, tc.wantScan) {
				t.Errorf("Scan gave %v, want %q", err, tc.wantScan)
			}
			if name == "the file in use is gone" {
				return
			}
			if err := appendLines(j, &Line{Event: EventRefused}); !is(err, tc.wantLive) || err != nil && !errors.Is(err, ErrSealed) {
				t.Errorf("a live process gave %v, want %q", err, tc.wantLive)
			}
			if tc.wantRecover {
				if did, err := f.recover(false); err == nil {
					t.Errorf("without being asked to, it did %q", did)
				}
				if did, err := f.recover(tc.newFile); err != nil || f.trySealed() != nil {
					t.Errorf("it did %q, %v, and is sealed by %v", did, err, f.trySealed())
				}
				f.scan()
			}
		})
	}
}

// A file that an operator's recovery closed is read back as far as it counts, and a process
// that did not notice goes on in neither.
func TestRecoveredSegment(t *testing.T) {
	f := newFixture(t)
	j := f.rotating(1 << 20)
	f.append(j, planLine("p1", epoch.Add(time.Hour)), intentLine("p1", "c1"), planLine("p2", epoch.Add(time.Hour)), intentLine("p2", "c2"))
	f.write(bytes.Replace(f.read(), []byte(`"claim":"c2"`), []byte(`"claim":"c3"`), 1))
	// Nothing stands behind it, so that it is made to.
	f.write(append(f.read(), "x\n"...))
	if did, err := f.recover(true); err != nil {
		t.Fatal(did, err)
	}
	for _, id := range []string{"p1", "p2"} {
		s := f.state(id)
		if !s.Planned || s.Claimed != (id == "p1") || !s.Claimed && s.Ended == "" {
			t.Errorf("plan %s is %+v", id, s)
		}
	}
	err := appendLines(j, &Line{Event: EventRefused})
	if !errors.Is(err, ErrSealed) || exists(filepath.Join(f.dir, markName)) {
		t.Errorf("a process of before gave %v, and left a mark: %v", err, exists(filepath.Join(f.dir, markName)))
	}
	f.append(f.open(), &Line{Event: EventReplayed})
	if lines := f.scan(); len(lines) != 5 {
		t.Errorf("%d lines, want 3 of the old file and 2 of the new one", len(lines))
	}
}
