package journal

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// What another program needs to verify a file, done here without this package's own
// verifier.
func TestFormat(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	f.append(j, planLine("p1", epoch.Add(time.Minute)))
	f.clock.at = f.clock.at.Add(1234567 * time.Microsecond)
	f.append(j, intentLine("p1", "c1"), &Line{Event: EventRefused, Output: "<a> & b"})

	lines := bytes.SplitAfter(f.read(), []byte("\n"))
	if len(lines) != 4 || len(lines[3]) != 0 {
		t.Fatalf("%d lines, want 3 with a newline after each", len(lines)-1)
	}
	key, err := f.keys.Derive(f.keys.Current(), "audit")
	if err != nil {
		t.Fatal(err)
	}
	prev := ""
	for i, b := range lines[:3] {
		b = bytes.TrimSuffix(b, []byte("\n"))
		var l Line
		if err := json.Unmarshal(b, &l); err != nil {
			t.Fatal(err)
		}
		open, tail, ok := bytes.Cut(b, []byte(`,"mac":"`))
		h := hmac.New(sha256.New, key)
		h.Write(open)
		if want := hex.EncodeToString(h.Sum(nil)) + `"}`; !ok || string(tail) != want {
			t.Errorf("line %d ends with %s, want %s", i+1, tail, want)
		}
		if l.Prev != prev || l.Seq != int64(i+1) || l.V != 1 || l.Inst != "test" || l.PID != os.Getpid() || l.KID != f.keys.Current() {
			t.Errorf("line %d is filled in as %+v, want prev %q", i+1, l, prev)
		}
		sum := sha256.Sum256(b)
		prev = hex.EncodeToString(sum[:])
	}
	if want := `{"v":1,"seq":3,"ts":"2026-11-30T12:00:01.234Z","inst":"test","pid":`; !bytes.HasPrefix(lines[2], []byte(want)) {
		t.Errorf("line 3 begins with %.80s, want %s", lines[2], want)
	}
	if !bytes.Contains(lines[2], []byte(`"output":"<a> & b"`)) {
		t.Errorf("line 3 is escaped for HTML: %s", lines[2])
	}
	if info, err := os.Stat(f.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
	if info, err := os.Stat(f.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode of the folder %v, %v, want 0700", info.Mode(), err)
	}
}

func TestAppendDecides(t *testing.T) {
	errNo := errors.New("no")
	for name, tc := range map[string]struct {
		lines   []*Line
		err     error
		wantErr string // a part of it
		wantIs  error
	}{
		"an error of decide is returned unchanged": {lines: []*Line{{Event: EventPlan}}, err: errNo, wantErr: "no", wantIs: errNo},
		"no lines":                     {},
		"too long, behind a good one":  {lines: []*Line{{Event: EventRefused}, {Event: EventRefused, Output: strings.Repeat("x", MaxLine)}}, wantErr: "the most is 262144"},
		"arguments that are no JSON":   {lines: []*Line{{Event: EventRefused, Args: json.RawMessage("{")}}, wantErr: "line of event refused"},
		"arguments that are not UTF-8": {lines: []*Line{{Event: EventRefused, Args: json.RawMessage("\"\xff\"")}}, wantErr: "not UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			j := f.open()
			f.append(j, planLine("p1", epoch))
			before := f.read()
			err := j.Append(func(*Ledger) ([]*Line, error) { return tc.lines, tc.err })
			if got := fmt.Sprint(err); (err != nil) != (tc.wantErr != "") || !strings.Contains(got, tc.wantErr) {
				t.Errorf("got %v, want %q", err, tc.wantErr)
			}
			if tc.wantIs != nil && err != tc.wantIs {
				t.Errorf("got %v, want exactly %v", err, tc.wantIs)
			}
			if diff := cmp.Diff(before, f.read()); diff != "" {
				t.Errorf("something was written:\n%s", diff)
			}
			f.append(j, &Line{Event: EventRefused}) // it goes on
		})
	}
}

func TestLongestLine(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	f.append(j, &Line{Event: EventRefused})
	n := MaxLine - (len(f.read()) - 1) - len(`,"output":""`) - 64 // line 2 has a prev
	f.append(j, &Line{Event: EventRefused, Output: strings.Repeat("x", n)})
	if got := bytes.Split(f.read(), []byte("\n")); len(got[1]) != MaxLine {
		t.Fatalf("line 2 has %d bytes, want %d", len(got[1]), MaxLine)
	}
	if err := appendLines(j, &Line{Event: EventRefused, Output: strings.Repeat("x", n+1)}); err == nil {
		t.Error("a line of one byte more was written")
	}
	f.append(f.open(), &Line{Event: EventReplayed})
	if lines := f.scan(); len(lines) != 3 || len(lines[1].Output) != n {
		t.Errorf("the longest line is not read back: %d lines, the second of event %s", len(lines), lines[1].Event)
	}
}

// A line that a newer program signed is not taken for one of ours.
func TestNewerFormat(t *testing.T) {
	f := newFixture(t)
	c := newChain(f.path, f.keys)
	b, err := c.sign(&Line{V: 2, Seq: 1, Time: epoch, Event: EventRefused, KID: f.keys.Current()})
	if err != nil {
		t.Fatal(err)
	}
	f.write(append(b, '\n'))
	if err := f.trySealed(); err == nil || !strings.Contains(err.Error(), "it is of format 2, this program knows 1") {
		t.Errorf("got %v, want the format refused", err)
	}
}

// A process is killed after any number of bytes of two lines are written. What was
// answered is there; a line that is not whole is moved aside, and this is on record; the
// first line is there when it is whole, though nobody was told. A process that lives on
// finds it, as does a new one.
func TestTornTail(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	f.append(j, planLine("p1", epoch.Add(time.Minute)))
	good := f.read()
	f.append(j, intentLine("p1", "c1"), &Line{Event: EventReplayed})
	batch := f.read()[len(good):]
	first := bytes.IndexByte(batch, '\n') + 1

	for n := 1; n < len(batch); n++ {
		for _, live := range []bool{false, true} {
			dir := filepath.Join(t.TempDir(), "state")
			f := &fixture{t, dir, filepath.Join(dir, "audit.jsonl"), f.clock, f.keys}
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			f.write(good)
			other, err := f.try() // was there before the killed one wrote
			if err != nil {
				t.Fatal(err)
			}
			f.write(append(bytes.Clone(good), batch[:n]...))
			torn, want := batch[:n], []string{EventPlan, EventRecovered, EventRefused}
			switch {
			case n == first:
				torn, want = nil, []string{EventPlan, EventIntent, EventRefused}
			case n > first:
				torn, want = batch[first:n], []string{EventPlan, EventIntent, EventRecovered, EventRefused}
			}
			if live {
				if st := stateOf(t, other, "p1"); st.Claimed != (n >= first) || !st.Planned {
					t.Fatalf("%d bytes: a view shows %+v", n, st)
				}
				if got := f.read(); len(got) != len(good)+n {
					t.Fatalf("%d bytes: a view has written", n)
				}
			} else {
				if err := Scan(f.path, f.keys, func(*Line) error { return nil }); (err != nil) != (torn != nil) {
					t.Fatalf("%d bytes: Scan gave %v", n, err)
				}
				if other, err = f.try(); err != nil {
					t.Fatal(err)
				}
				f.scan() // it is mended before anything is appended
			}
			f.append(other, &Line{Event: EventRefused})
			var events []string
			for _, l := range f.scan() {
				events = append(events, l.Event)
			}
			if diff := cmp.Diff(want, events); diff != "" {
				t.Fatalf("%d bytes, live %v (-want +got):\n%s", n, live, diff)
			}
			aside, err := os.ReadFile(f.path + ".broken-20261130T120000Z")
			if !bytes.Equal(torn, aside) || (err != nil) != (torn == nil) {
				t.Fatalf("%d bytes: kept %q, %v, want %q", n, aside, err, torn)
			}
		}
	}
}

// What a power cut may leave at the end, and what it never does.
func TestTailKinds(t *testing.T) {
	for name, tc := range map[string]struct {
		tail        func(last []byte) string
		wantTorn    bool
		wantRefused string
	}{
		"zeros":                           {tail: func([]byte) string { return strings.Repeat("\x00", 5000) }, wantTorn: true},
		"zeros and a newline":             {tail: func([]byte) string { return strings.Repeat("\x00", 5000) + "\n" }, wantTorn: true},
		"more zeros than a line has":      {tail: func([]byte) string { return strings.Repeat("\x00", 3*MaxLine) }, wantTorn: true},
		"as many, and a newline":          {tail: func([]byte) string { return strings.Repeat("\x00", 3*MaxLine) + "\n" }, wantTorn: true},
		"half a line and a newline":       {tail: func(l []byte) string { return string(l[:len(l)/2]) + "\n" }, wantTorn: true},
		"an empty line":                   {tail: func([]byte) string { return "\n" }, wantTorn: true},
		"two empty lines":                 {tail: func([]byte) string { return "\n\n" }, wantRefused: "line 3 (at byte"},
		"zeros before a whole line":       {tail: func(l []byte) string { return strings.Repeat("\x00", 3*MaxLine) + "\n" + string(l) }, wantRefused: "longer than 262144 bytes"},
		"a whole line that was edited":    {tail: func(l []byte) string { return strings.Replace(string(l), `"seq":2`, `"seq":3`, 1) }, wantRefused: "its mac does not match"},
		"a whole line without its mac":    {tail: func([]byte) string { return "{}\n" }, wantRefused: "no mac"},
		"the last line again":             {tail: func(l []byte) string { return string(l) }, wantRefused: "written as line 2"},
		"the last line again, no newline": {tail: func(l []byte) string { return strings.TrimSpace(string(l)) }, wantTorn: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			j, err := f.try()
			if err != nil {
				t.Fatal(err)
			}
			f.append(j, &Line{Event: EventRefused})
			f.append(j, &Line{Event: EventRefused})
			good := f.read()
			tail := tc.tail(good[bytes.IndexByte(good, '\n')+1:])
			f.write(append(bytes.Clone(good), tail...))
			live := appendLines(j, &Line{Event: EventRefused})
			fresh := f.trySealed()
			if tc.wantTorn {
				if live != nil || fresh != nil {
					t.Fatal(live, fresh)
				}
				aside, err := filepath.Glob(f.path + ".broken-*")
				if err != nil || len(aside) != 1 {
					t.Fatal(aside, err)
				}
				if b, err := os.ReadFile(aside[0]); err != nil || string(b) != tail {
					t.Errorf("%d bytes were kept, %v, want %d", len(b), err, len(tail))
				}
				f.scan()
				return
			}
			bad, ok := errors.AsType[*BadLine](fresh)
			if !ok || bad.Line != 3 || bad.Offset != int64(len(good)) || !strings.Contains(bad.Error(), tc.wantRefused) {
				t.Errorf("got %v, want line 3 and %q", fresh, tc.wantRefused)
			}
			if !errors.Is(live, ErrSealed) || !strings.Contains(live.Error(), tc.wantRefused) {
				t.Errorf("a live process gave %v, want it sealed by %q", live, tc.wantRefused)
			}
			if diff := cmp.Diff(len(good)+len(tail), len(f.read())); diff != "" {
				t.Error("something was written to a file that cannot be trusted")
			}
		})
	}
}

// Whatever is done to one line of twenty is found, by Open as by Scan, and the line named
// is the right one. What is cut off at the end is found by the process that saw it.
func TestTampering(t *testing.T) {
	f := newFixture(t)
	j, err := f.try()
	if err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		f.clock.at = f.clock.at.Add(time.Second)
		f.append(j, &Line{Event: EventRefused, Output: fmt.Sprintf("line %d", n+1)})
	}
	all := f.read()
	lines := bytes.SplitAfter(all, []byte("\n"))[:20]
	type change struct {
		name  string
		lines [][]byte
		want  int64 // 0: only a process that saw the file before can tell
	}
	var changes []change
	clone := func() [][]byte { return append([][]byte(nil), lines...) }
	for i := range lines {
		n := int64(i + 1)
		for at := range lines[i][:len(lines[i])-1] {
			for _, bit := range []byte{1, 0x20} {
				edited := clone()
				edited[i] = bytes.Clone(lines[i])
				edited[i][at] ^= bit
				changes = append(changes, change{fmt.Sprintf("edit %d, byte %d", n, at), edited, n})
			}
		}
		deleted := append(clone()[:i:i], lines[i+1:]...)
		if i == 19 {
			changes = append(changes, change{"delete the last", deleted, 0})
		} else {
			changes = append(changes, change{fmt.Sprintf("delete %d", n), deleted, n})
		}
		twice := append(append(clone()[:i+1:i+1], lines[i]), lines[i+1:]...)
		changes = append(changes, change{fmt.Sprintf("duplicate %d", n), twice, n + 1})
		for k := i + 1; k < 20; k++ {
			swapped := clone()
			swapped[i], swapped[k] = swapped[k], swapped[i]
			changes = append(changes, change{fmt.Sprintf("swap %d and %d", n, k+1), swapped, n})
		}
	}
	for i, c := range changes {
		b := bytes.Join(c.lines, nil)
		err := scanBytes(f, b)
		bad, ok := errors.AsType[*BadLine](err)
		switch {
		case c.want == 0:
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		case !ok || bad.Line != c.want:
			t.Errorf("%s: got %v, want line %d", c.name, err, c.want)
		}
		if strings.HasPrefix(c.name, "edit") && i%97 != 0 {
			continue // through the file, some of them will do
		}
		f.write(b)
		err = f.trySealed()
		if bad, ok := errors.AsType[*BadLine](err); c.want != 0 && (!ok || bad.Line != c.want) && !tornEdit(c.want, b) {
			t.Errorf("%s: Open gave %v, want line %d", c.name, err, c.want)
		}
	}
	f.write(bytes.Join(lines[:19], nil))
	if err := appendLines(j, &Line{Event: EventRefused}); !errors.Is(err, ErrSealed) || !strings.Contains(err.Error(), "shrank") {
		t.Errorf("the last line was cut off, the live process gave %v", err)
	}
}

// tornEdit is an edit that made the last line no JSON: Open takes it for a torn one and
// moves it aside, on record.
func tornEdit(line int64, b []byte) bool {
	last := bytes.Split(b, []byte("\n"))[19]
	return line == 20 && !json.Valid(last)
}

// scanBytes verifies lines as Scan does, without a file.
func scanBytes(f *fixture, b []byte) error {
	c := newChain(f.path, f.keys)
	torn, err := c.read(bytes.NewReader(b), int64(len(b)), func([]byte, *entry, span) error { return nil })
	if torn {
		return c.bad(errTorn)
	}
	return err
}

// A line of another file with the same key does not fit in, although its mac is right.
func TestForeignLine(t *testing.T) {
	var files [2][]byte
	f := newFixture(t)
	for i := range files {
		if err := os.RemoveAll(f.path); err != nil {
			t.Fatal(err)
		}
		j, err := f.try()
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			f.append(j, &Line{Event: EventRefused, Output: fmt.Sprint(i)})
		}
		files[i] = f.read()
	}
	a, b := bytes.SplitAfter(files[0], []byte("\n")), bytes.SplitAfter(files[1], []byte("\n"))
	f.write(bytes.Join([][]byte{a[0], b[1], a[2]}, nil))
	err := f.trySealed()
	if bad, ok := errors.AsType[*BadLine](err); !ok || bad.Line != 2 || !strings.Contains(err.Error(), "does not follow") {
		t.Errorf("got %v, want line 2 not to follow", err)
	}
}

// Four processes append at once: no line is lost, none is torn, the chain is whole, also
// while the files are closed all the time.
func TestProcesses(t *testing.T) {
	for _, do := range []string{"append", "rotate"} {
		t.Run(do, func(t *testing.T) { testProcesses(t, do) })
	}
}

func testProcesses(t *testing.T, do string) {
	f := newFixture(t)
	var wait []func()
	for n := range appenders {
		cmd, out := child(t, do, f.dir, string(rune('b'+n)))
		wait = append(wait, func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	for _, w := range wait {
		w()
	}
	next, interleaved, last := map[string]int{}, 0, ""
	lines := slices.DeleteFunc(f.scan(), func(l *Line) bool { return l.Event == EventRotated })
	if numbers, err := segments(f.path); err != nil || (len(numbers) > 50) != (do == "rotate") {
		t.Errorf("%d files were closed, %v", len(numbers), err)
	}
	for _, l := range lines {
		if l.Event != EventRefused {
			continue
		}
		var name string
		var n int
		if _, err := fmt.Sscan(l.Output, &name, &n); err != nil || n != next[name] {
			t.Fatalf("line %d is %q (%v), want number %d of it", l.Seq, l.Output, err, next[name])
		}
		next[name]++
		if name != last {
			interleaved++
		}
		last = name
	}
	if want := appenders * childAppends * 12 / 10; len(lines) != want || len(next) != appenders {
		t.Errorf("%d lines of %d processes, want %d of %d", len(lines), len(next), want, appenders)
	}
	if interleaved < 2*appenders {
		t.Logf("the processes ran almost one after the other: %d changes", interleaved)
	}
}

// Two processes want the same plans: each plan is claimed exactly once, and the process
// that was told so is the one on record.
func TestOneClaim(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	f.clock.at = time.Now()
	for n := range claimRounds {
		f.append(j, planLine(planID(n), f.clock.at.Add(time.Hour)))
	}
	a, aOut := child(t, "claim", f.dir, "b")
	b, bOut := child(t, "claim", f.dir, "c")
	if err := errors.Join(a.Wait(), b.Wait()); err != nil {
		t.Fatalf("%v: %s%s", err, aOut, bOut)
	}
	if aOut.Len() == 0 || bOut.Len() == 0 {
		t.Log("one process got every plan: on this machine, at this moment, there was no race")
	}
	told := map[string]string{}
	for _, w := range strings.Split(strings.TrimSpace(aOut.String()+bOut.String()), "\n") {
		id, who, _ := strings.Cut(w, " ")
		if told[id] != "" {
			t.Errorf("plan %s was claimed by both", id)
		}
		told[id] = who
	}
	recorded := map[string]string{}
	for _, l := range f.scan() {
		if l.Event == EventIntent {
			if recorded[l.Plan] != "" {
				t.Errorf("plan %s has two claims on record", l.Plan)
			}
			recorded[l.Plan] = l.Claim
		}
	}
	if diff := cmp.Diff(recorded, told); diff != "" || len(told) != claimRounds {
		t.Errorf("%d claims, want %d (-on record +told):\n%s", len(told), claimRounds, diff)
	}
	if s := stateOf(t, j, planID(0)); s.Claim != told[planID(0)] || s.ClaimInst != "aaa"+s.Claim {
		t.Errorf("the state says %+v, want claim %s", s, told[planID(0)])
	}
}

func TestRecordAndResult(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	f.append(j, planLine("p1", epoch.Add(time.Minute)), planLine("p2", epoch.Add(time.Minute)))
	f.append(j, intentLine("p1", "c1"), executeLine("p1"))
	other := *executeLine("p1")
	other.Result = &plan.Result{Plan: "p1", Outcome: plan.Failed}
	f.append(j, &other) // never the first result

	// Byte for byte: cut from the file, without any decoder.
	m := regexp.MustCompile(`"result":(\{.*\}),"prev"`).FindAllSubmatch(f.read(), -1)
	for name, tc := range map[string]struct {
		id         string
		wantRecord *plan.Plan
		wantResult []byte
	}{
		"executed":       {"p1", planLine("p1", epoch.Add(time.Minute)).Record, m[0][1]},
		"only planned":   {"p2", planLine("p2", epoch.Add(time.Minute)).Record, nil},
		"no such plan":   {"p3", nil, nil},
		"no plan at all": {"", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, j := range []*Journal{j, f.open()} {
				record, err := j.Record(tc.id)
				if err != nil {
					t.Fatal(err)
				}
				want, got := tc.wantRecord, record
				if (want == nil) != (got == nil) || want != nil && (!bytes.Equal(plan.Digest(want.Steps), plan.Digest(got.Steps)) ||
					got.Sign([]byte("k")) != want.Sign([]byte("k"))) {
					t.Errorf("record:\n%s", cmp.Diff(want, got))
				}
				result, err := j.Result(tc.id)
				if err != nil || !bytes.Equal(tc.wantResult, result) {
					t.Errorf("result %s, %v, want %s", result, err, tc.wantResult)
				}
			}
		})
	}
}

// A record that is changed on the disk behind the back of a live process is not used.
func TestRecordIsVerifiedAgain(t *testing.T) {
	f := newFixture(t)
	j, err := f.try()
	if err != nil {
		t.Fatal(err)
	}
	f.append(j, &Line{Event: EventReplayed}, planLine("p1", epoch.Add(time.Minute)), planLine("p2", epoch.Add(time.Minute)))
	b := f.read()
	f.write(bytes.Replace(b, []byte(`"replicas":3`), []byte(`"replicas":9`), 1))
	if p, err := j.Record("p1"); err == nil || !strings.Contains(err.Error(), "its mac does not match") {
		t.Errorf("got %v, %v, want an error", p, err)
	}
	lines := bytes.SplitAfter(b, []byte("\n"))
	f.write(bytes.Join([][]byte{lines[0], lines[2], lines[1]}, nil))
	if p, err := j.Record("p1"); err == nil || !strings.Contains(err.Error(), "line 3 stands in the place of line 2") {
		t.Errorf("got %v, %v, want an error", p, err)
	}
}

// What happens to the file while a process lives: nothing more is written, what was read
// is still shown, and the reason is named.
func TestFileChangesUnderLiveProcess(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(f *fixture, b []byte) error
		want   string
	}{
		"shrank":  {func(f *fixture, b []byte) error { return os.Truncate(f.path, int64(len(b)-1)) }, "shrank from"},
		"emptied": {func(f *fixture, b []byte) error { return os.Truncate(f.path, 0) }, "shrank from"},
		"removed": {func(f *fixture, b []byte) error { return os.Remove(f.path) }, "is gone"},
		"replaced by a copy": {func(f *fixture, b []byte) error {
			return errors.Join(os.WriteFile(f.path+".x", b, 0o600), os.Rename(f.path+".x", f.path))
		}, "another file now"},
		"replaced by a link": {func(f *fixture, b []byte) error {
			return errors.Join(os.Rename(f.path, f.path+".x"), os.Symlink(f.path+".x", f.path))
		}, "a symbolic link"},
		"a foreign line": {func(f *fixture, b []byte) error {
			return os.WriteFile(f.path, append(bytes.Clone(b), "{\"v\":1}\n"...), 0o600)
		}, "no mac"},
		"an unknown key": {func(f *fixture, b []byte) error {
			return os.WriteFile(f.path, append(bytes.Clone(b), `{"v":1,"seq":2,"kid":"gone","mac":"`+strings.Repeat("0", 64)+"\"}\n"...), 0o600)
		}, `unknown key "gone"`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			j, err := f.try()
			if err != nil {
				t.Fatal(err)
			}
			f.append(j, planLine("p1", epoch.Add(time.Minute)))
			if err := tc.change(f, f.read()); err != nil {
				t.Fatal(err)
			}
			asked := false
			err = j.Append(func(*Ledger) ([]*Line, error) { asked = true; return []*Line{{Event: EventRefused}}, nil })
			if err == nil || asked || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, asked %v, want %q", err, asked, tc.want)
			}
			if !errors.Is(err, ErrSealed) || !errors.Is(j.Sealed(), ErrSealed) {
				t.Errorf("not sealed: %v, %v", err, j.Sealed())
			}
			if s := stateOf(t, j, "p1"); !s.Planned {
				t.Errorf("a view shows %+v, want what was read", s)
			}
			if p, err := j.Record("p1"); p == nil && err == nil {
				t.Error("a plan that is known has no record and no error")
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(f *fixture) error
		options func(o *Options)
		want    string
	}{
		"a link":                   {prepare: func(f *fixture) error { return os.Symlink("/dev/null", f.path) }, want: "a symbolic link, not a regular file"},
		"a link to nothing":        {prepare: func(f *fixture) error { return os.Symlink(f.path+".x", f.path) }, want: "a symbolic link"},
		"a folder":                 {prepare: func(f *fixture) error { return os.Mkdir(f.path, 0o700) }, want: "a folder"},
		"a device":                 {options: func(o *Options) { o.Path = os.DevNull }, want: "a device"},
		"a file open to others":    {prepare: func(f *fixture) error { return os.WriteFile(f.path, nil, 0o640) }, want: "(mode 0640): chmod 600"},
		"a folder open to others":  {prepare: func(f *fixture) error { return os.Chmod(f.dir, 0o750) }, want: "(mode 0750): chmod 700"},
		"the state folder a file":  {options: func(o *Options) { o.Dir = filepath.Join(o.Dir, "keys.json") }, want: "not a directory"},
		"no folder for the file":   {options: func(o *Options) { o.Path = filepath.Join(o.Dir, "none", "audit.jsonl") }, want: "no such file"},
		"no keys":                  {options: func(o *Options) { o.Keys = nil }, want: "no keys"},
		"an instance of 5":         {options: func(o *Options) { o.Inst = "abcde" }, want: "not 4 characters"},
		"an instance with a digit": {options: func(o *Options) { o.Inst = "abc1" }, want: "not 4 characters"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if tc.prepare != nil {
				if err := tc.prepare(f); err != nil {
					t.Fatal(err)
				}
			}
			o := Options{Dir: f.dir, Keys: f.keys, Now: f.clock.now, Inst: "test"}
			if tc.options != nil {
				tc.options(&o)
			}
			if _, err := Open(o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// A file elsewhere is used, and its lock stands beside it, so that processes with
// different state folders cannot write at once.
func TestPathElsewhere(t *testing.T) {
	f := newFixture(t)
	dir := t.TempDir()
	for _, state := range []string{f.dir, filepath.Join(f.dir, "other")} {
		j, err := Open(Options{Dir: state, Path: filepath.Join(dir, "log"), Keys: f.keys, Now: f.clock.now, Inst: "test"})
		if err != nil {
			t.Fatal(err)
		}
		f.append(j, &Line{Event: EventRefused})
	}
	if _, err := os.Stat(filepath.Join(dir, "LOCK")); err != nil {
		t.Error(err)
	}
	n := 0
	if err := Scan(filepath.Join(dir, "log"), f.keys, func(*Line) error { n++; return nil }); err != nil || n != 2 {
		t.Errorf("%d lines, %v, want 2", n, err)
	}
}

func TestTimeNeverGoesBack(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	for _, d := range []time.Duration{0, 10 * time.Second, -30 * time.Second, 20 * time.Second} {
		f.clock.at = f.clock.at.Add(d)
		f.append(j, &Line{Event: EventRefused})
	}
	var got []time.Duration
	for _, l := range f.scan() {
		got = append(got, l.Time.Sub(epoch))
	}
	if diff := cmp.Diff([]time.Duration{0, 10 * time.Second, 10 * time.Second, 10 * time.Second}, got); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
}

// A clock that is more than a minute behind the last line seals, until it has caught up.
func TestFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.clock.at = time.Now().Add(90 * time.Second)
		f.append(f.open(), planLine("p1", f.clock.at.Add(time.Hour)))
		torn := append(f.read(), "{"...)
		f.write(torn)

		j, err := Open(Options{Dir: f.dir, Keys: f.keys, Inst: "test"})
		if err != nil {
			t.Fatal(err)
		}
		if err := appendLines(j, &Line{Event: EventRefused}); !errors.Is(err, ErrSealed) || !strings.Contains(err.Error(), "1m30s in the future: set the clock right") {
			t.Errorf("got %v, want it sealed", err)
		}
		if s := stateOf(t, j, "p1"); !s.Planned || !errors.Is(j.Sealed(), ErrSealed) {
			t.Errorf("a view shows %+v, sealed %v", s, j.Sealed())
		}
		if !bytes.Equal(torn, f.read()) {
			t.Error("something was written")
		}
		time.Sleep(31 * time.Second)
		if err := appendLines(j, &Line{Event: EventRefused}); err != nil || j.Sealed() != nil {
			t.Errorf("the clock has caught up, and yet: %v, %v", err, j.Sealed())
		}
	})
}

// A process that was stopped while it held the lock: the others say so after a while,
// send nothing, and go on when it is gone.
func TestLockIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.open()
		l := flock.New(filepath.Join(f.dir, "LOCK"))
		if err := l.Lock(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := appendLines(j, &Line{Event: EventRefused})
		if err == nil || !strings.Contains(err.Error(), "held by another process") || errors.Is(err, ErrSealed) {
			t.Errorf("got %v, want the lock held", err)
		}
		if waited := time.Since(began); waited < lockWait || waited > lockWait+time.Second {
			t.Errorf("waited %s, want %s", waited, lockWait)
		}
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
		f.append(j, &Line{Event: EventRefused})
	})
}

func TestScanStops(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	for range 3 {
		f.append(j, &Line{Event: EventRefused})
	}
	errStop, n := errors.New("stop"), 0
	err := Scan(f.path, f.keys, func(l *Line) error {
		if n++; l.Seq == 2 {
			return errStop
		}
		return nil
	})
	if err != errStop || n != 2 {
		t.Errorf("%v after %d lines, want %v after 2", err, n, errStop)
	}
}

// Scan needs no lock and no right to write: a copy can be verified anywhere.
func TestScanCopy(t *testing.T) {
	f := newFixture(t)
	f.append(f.open(), &Line{Event: EventRefused})
	dir := t.TempDir()
	path := filepath.Join(dir, "copy")
	if err := os.WriteFile(path, f.read(), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := Scan(path, f.keys, func(*Line) error { return nil }); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadDir(dir); err != nil || len(got) != 1 {
		t.Errorf("%v, %v: something was made beside the copy", got, err)
	}
}
