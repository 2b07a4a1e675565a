package journal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What an operator does about each thing that seals a journal.
func TestRecover(t *testing.T) {
	const mark = "2026-11-30T11:00:00Z, process 7: the disk failed"
	replace := func(old, by string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.Replace(b, []byte(old), []byte(by), 1) }
	}
	for name, tc := range map[string]struct {
		change  func([]byte) []byte // of a file with a plan, a claim, an open plan and a refusal
		mark    string
		later   time.Duration // by how much the clock is set back
		newFile bool

		wantErr    string // then nothing is changed
		wantDid    string
		wantCode   string
		wantEvents []string // that count
		wantAside  bool
		wantClosed bool
	}{
		"the disk failed, every line is good": {
			mark: mark, wantDid: "all 4 lines of audit.jsonl were verified; it was sealed: " + mark, wantCode: "verified",
			wantEvents: []string{EventPlan, EventIntent, EventPlan, EventRefused, EventRecovered},
		},
		"an empty mark is one": {
			mark: " ", wantDid: "it was sealed: the disk failed a process", wantCode: "verified",
			wantEvents: []string{EventPlan, EventIntent, EventPlan, EventRefused, EventRecovered},
		},
		"nothing is wrong": {
			wantDid: "all 4 lines", wantCode: "verified",
			wantEvents: []string{EventPlan, EventIntent, EventPlan, EventRefused, EventRecovered},
		},
		"a torn last line": {
			mark: mark, change: func(b []byte) []byte { return b[:len(b)-9] },
			wantDid: "bytes behind line 3 were moved to audit.jsonl.broken-20261130T120000Z; it was sealed: " + mark, wantCode: "tail", wantAside: true,
			wantEvents: []string{EventPlan, EventIntent, EventPlan, EventRecovered},
		},
		"an edited last line": {
			change: replace("no way", "no May"), wantDid: "bytes behind line 3", wantCode: "tail", wantAside: true,
			wantEvents: []string{EventPlan, EventIntent, EventPlan, EventRecovered},
		},
		"an edited line in the middle": {change: replace(`"claim":"c1"`, `"claim":"c2"`), mark: mark, wantErr: "line 2 (at byte"},
		"an edited line in the middle, a new file": {
			change: replace(`"claim":"c1"`, `"claim":"c2"`), mark: mark, newFile: true,
			wantDid: "audit-000001.jsonl is kept, and counts up to its line 1: ", wantCode: "new_file", wantClosed: true,
			wantEvents: []string{EventPlan, EventRecovered},
		},
		"an edited first line, a new file": {
			change: replace(`"plan":"p1"`, `"plan":"p9"`), newFile: true, wantDid: "up to its line 0", wantCode: "new_file", wantClosed: true,
			wantEvents: []string{EventRecovered},
		},
		"an unknown key": {change: func(b []byte) []byte {
			return append(b, `{"v":1,"seq":5,"kid":"gone","mac":"`+strings.Repeat("0", 64)+"\"}\n"...)
		}, wantErr: `unknown key "gone"`},
		"the last line is in the future": {later: time.Hour, wantErr: "1h0m0s in the future"},
		"the last line is in the future, a new file": {
			later: time.Hour, newFile: true, wantDid: "up to its line 4", wantCode: "new_file", wantClosed: true,
			wantEvents: []string{EventPlan, EventIntent, EventPlan, EventRefused, EventRecovered},
		},
		"an edited last line, in the future": {change: replace("no way", "no May"), later: time.Hour, wantErr: "in the future"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.clock.at = epoch.Add(tc.later)
			j, err := f.try()
			if err != nil {
				t.Fatal(err)
			}
			expires := f.clock.at.Add(time.Hour)
			f.append(j, planLine("p1", expires), intentLine("p1", "c1"), planLine("p2", expires), &Line{Event: EventRefused, Output: "no way"})
			f.clock.at = epoch
			b := f.read()
			if tc.change != nil {
				b = tc.change(b)
				f.write(b)
			}
			if tc.mark != "" {
				if err := os.WriteFile(filepath.Join(f.dir, "SEALED"), []byte(tc.mark+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			sealed := f.trySealed()
			if !bytes.HasSuffix(b, []byte("}\n")) && tc.mark == "" || (sealed != nil) != (name != "nothing is wrong") {
				t.Fatalf("before, it is sealed by %v", sealed)
			}

			did, err := f.recover(tc.newFile)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) || !strings.Contains(err.Error(), "nothing was changed") {
					t.Errorf("got %q, %v, want %q", did, err, tc.wantErr)
				}
				if !bytes.Equal(b, f.read()) || f.trySealed() == nil {
					t.Error("something was changed")
				}
				return
			}
			if err != nil || !strings.Contains(did, tc.wantDid) {
				t.Fatalf("it did %q, %v, want %q", did, err, tc.wantDid)
			}
			lines := f.scan()
			last := lines[len(lines)-1]
			if last.Output != did || last.Code != tc.wantCode || last.Inst != "oper" {
				t.Errorf("on record is %s %q of %s, want %q", last.Code, last.Output, last.Inst, did)
			}
			if aside, _ := filepath.Glob(f.path + ".broken-*"); (len(aside) == 1) != tc.wantAside {
				t.Errorf("kept aside: %v, want %v", aside, tc.wantAside)
			}
			closed := filepath.Join(f.dir, "audit-000001.jsonl")
			if kept, err := os.ReadFile(closed); (err == nil) != tc.wantClosed || err == nil && !bytes.Equal(b, kept) {
				t.Errorf("the old file: %v, want it kept as it was: %v", err, tc.wantClosed)
			}
			if info, err := os.Stat(closed); err == nil && info.Mode().Perm() != 0o400 {
				t.Errorf("the old file has mode %v", info.Mode())
			}
			j = f.open()
			f.append(j, planLine("p3", epoch.Add(time.Hour)))
			var events []string
			for _, l := range f.scan() {
				events = append(events, l.Event)
			}
			if diff := cmp.Diff(append(tc.wantEvents, EventPlan), events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if s := stateOf(t, j, "p2"); s.Planned && s.Ended == "" {
				t.Errorf("an open plan may still be executed: %+v", s)
			}
			if s := stateOf(t, j, "p3"); !s.Planned || s.Ended != "" {
				t.Errorf("a new plan may not be executed: %+v", s)
			}
		})
	}
}

// A process whose disk failed seals the others, and those to come, until the operator
// has looked at it; what was recorded is shown.
func TestMark(t *testing.T) {
	f := newFixture(t)
	failing, err := f.try()
	if err != nil {
		t.Fatal(err)
	}
	f.append(failing, planLine("p1", epoch.Add(time.Hour)))
	other := f.open()
	var calls []string
	open := failing.open
	failing.open = func(path string, create bool) (file, error) {
		under, err := open(path, create)
		return &faults{file: under, write: -1, dataErr: errors.New("the disk is on fire"), calls: &calls}, err
	}
	if err := appendLines(failing, intentLine("p1", "c1")); !errors.Is(err, ErrSealed) {
		t.Fatal(err)
	}
	size := len(f.read())
	fresh, err := f.try()
	if err != nil {
		t.Fatal(err)
	}
	for name, j := range map[string]*Journal{"another": other, "a new one": fresh} {
		if err := appendLines(j, &Line{Event: EventRefused}); !errors.Is(err, ErrSealed) || !strings.Contains(err.Error(), "on fire") || !strings.Contains(err.Error(), "audit recover") {
			t.Errorf("%s got %v, want it sealed", name, err)
		}
		if s := stateOf(t, j, "p1"); !s.Planned || !errors.Is(j.Sealed(), ErrSealed) {
			t.Errorf("%s shows %+v, sealed %v", name, s, j.Sealed())
		}
		if p, err := j.Record("p1"); p == nil || err != nil {
			t.Errorf("%s has the record %v, %v", name, p, err)
		}
	}
	if got := len(f.read()); got != size {
		t.Errorf("%d bytes were written while it was sealed", got-size)
	}
	if _, err := f.recover(false); err != nil {
		t.Fatal(err)
	}
	if err := f.trySealed(); err != nil {
		t.Errorf("recovered, it is sealed by %v", err)
	}
	if s := f.state("p1"); !s.Claimed {
		t.Errorf("the claim that nobody knew of was recovered, and yet: %+v", s)
	}
	if err := appendLines(other, &Line{Event: EventRefused}); !errors.Is(err, ErrSealed) {
		t.Errorf("a process that was sealed goes on: %v", err)
	}
}

// A clock that was set back by an operator's recovery: what the windows hold counts from
// then on, not from a future that may never come.
func TestRecoveredClock(t *testing.T) {
	l := &Ledger{}
	for n := range 3 {
		l.add(&entry{Time: epoch.Add(time.Duration(n) * time.Hour), Event: EventPlan, Plan: planID(n), Cluster: "c",
			Record: &entryRecord{Expires: epoch.Add(9 * time.Hour), Steps: []entryStep{{}}}, Ready: []Capacity{{"u", 3}}}, span{})
	}
	l.add(&entry{Time: epoch.Add(2 * time.Hour), Event: EventIntent, Plan: planID(2), Cluster: "c"}, span{})
	l.add(&entry{Time: epoch, Event: EventRecovered, Code: recoveredNewFile}, span{})
	before := epoch.Add(-time.Second)
	if got := len(l.Plans("c", before)) + len(l.Writes("c", before)); got != 2 || len(l.Plans("c", epoch)) != 0 {
		t.Errorf("the windows hold %d from now on, %d in the future", got, len(l.Plans("c", epoch)))
	}
	if ready, at := l.Peak("u", before); ready != 3 || !at.Equal(epoch) {
		t.Errorf("the peak is %d at %v", ready, at)
	}
	if got := l.Open(epoch); got != nil {
		t.Errorf("%v may still be executed", got)
	}
	l.add(&entry{Time: epoch.Add(planMemory + time.Second), Event: EventRefused}, span{})
	if n := len(l.plans) + len(l.order) + len(l.writes) + len(l.peaks); n != 0 {
		t.Errorf("%d are remembered 25 h later", n)
	}
}

// A file is written over itself byte for byte, also one that is longer than the buffer.
func TestRewrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	want := bytes.Repeat([]byte("0123456789abcdef!"), 170_001)
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := rewrite(path, int64(len(want))-5); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(want, got) {
		t.Errorf("%d bytes, %v: they are not what they were", len(got), err)
	}
	if err := rewrite(path, int64(len(want))+1); err == nil {
		t.Error("a file that is too short was written to the disk without a word")
	}
}
