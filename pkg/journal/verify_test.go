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

func (f *fixture) verify(o VerifyOptions) (*Report, error) {
	return Verify(f.path, f.keys, o)
}

// What may follow what in the lines of a plan.
func TestVerifyOrder(t *testing.T) {
	p1 := planLine("p1", epoch.Add(time.Hour))
	intent := func(step, attempt int, claim string) *Line {
		l := intentLine("p1", claim)
		l.Step, l.Attempt = step, attempt
		return l
	}
	step := func(n, attempt int) *Line { return &Line{Event: EventStep, Plan: "p1", Step: n, Attempt: attempt} }
	event := func(e string) *Line { return &Line{Event: e, Plan: "p1"} }
	reconciled := executeLine("p1")
	reconciled.Event = EventReconciled
	adopted := planLine("p1", epoch.Add(time.Hour))
	adopted.Event = EventAdopted
	tail := &Line{Event: EventRecovered, Code: recoveredTail, Output: "taken off"}
	for name, tc := range map[string]struct {
		lines         []*Line
		wantErr       string // of the last line
		wantUnsettled []string
	}{
		"an execution":                      {lines: []*Line{p1, intent(1, 1, "c"), step(1, 1), intent(2, 1, "c"), step(2, 1), executeLine("p1"), event(EventVerify), event(EventReplayed)}},
		"attempts":                          {lines: []*Line{p1, intent(1, 1, "c"), step(1, 1), intent(1, 2, "c"), step(1, 2), executeLine("p1")}},
		"unknown, and asked again":          {lines: []*Line{p1, intent(1, 1, "c"), step(1, 1), event(EventUnknown), event(EventUnknown), reconciled}},
		"a process died":                    {lines: []*Line{p1, intent(1, 1, "c"), reconciled}},
		"a late outcome":                    {lines: []*Line{p1, intent(1, 1, "c"), executeLine("p1"), step(1, 1)}},
		"nobody knows yet":                  {lines: []*Line{p1, intent(1, 1, "c"), event(EventUnknown)}, wantUnsettled: []string{"p1"}},
		"another replica's, executed":       {lines: []*Line{adopted, intent(1, 1, "c"), step(1, 1), executeLine("p1"), event(EventVerify)}},
		"another replica's, settled":        {lines: []*Line{adopted, reconciled, event(EventVerify)}},
		"planned here, claimed by another":  {lines: []*Line{p1, adopted, reconciled}},
		"adopted again":                     {lines: []*Line{p1, intent(1, 1, "c"), adopted, executeLine("p1")}},
		"another's result, no intent":       {lines: []*Line{adopted, executeLine("p1")}, wantErr: "an outcome and no intent"},
		"another's step, no intent":         {lines: []*Line{adopted, intent(1, 1, "c"), step(2, 1)}, wantErr: "and no intent for it"},
		"another's result twice":            {lines: []*Line{adopted, reconciled, reconciled}, wantErr: "has its result already"},
		"a plan line again":                 {lines: []*Line{p1, p1}, wantErr: "was on record before"},
		"no plan line":                      {lines: []*Line{intent(1, 1, "c")}, wantErr: "no plan line before it"},
		"a result without a plan line":      {lines: []*Line{executeLine("p1")}, wantErr: "no plan line before it"},
		"a result without an intent":        {lines: []*Line{p1, executeLine("p1")}, wantErr: "an outcome and no intent"},
		"unknown without an intent":         {lines: []*Line{p1, event(EventUnknown)}, wantErr: "an outcome and no intent"},
		"reconciled without an intent":      {lines: []*Line{p1, reconciled}, wantErr: "an outcome and no intent"},
		"a step without an intent":          {lines: []*Line{p1, step(1, 1)}, wantErr: "an outcome and no intent"},
		"another step":                      {lines: []*Line{p1, intent(1, 1, "c"), step(2, 1)}, wantErr: "step 2 of plan p1 has an outcome of attempt 1 and no intent"},
		"another attempt":                   {lines: []*Line{p1, intent(1, 1, "c"), step(1, 2)}, wantErr: "outcome of attempt 2 and no intent"},
		"two outcomes of an attempt":        {lines: []*Line{p1, intent(1, 1, "c"), step(1, 1), step(1, 1)}, wantErr: "outcome of attempt 1 already"},
		"two intents of an attempt":         {lines: []*Line{p1, intent(1, 1, "c"), intent(1, 1, "c")}, wantErr: "an intent for attempt 1 already"},
		"two claims":                        {lines: []*Line{p1, intent(1, 1, "c"), intent(2, 1, "d")}, wantErr: "was claimed by c already"},
		"two results":                       {lines: []*Line{p1, intent(1, 1, "c"), executeLine("p1"), executeLine("p1")}, wantErr: "its result already"},
		"a result and what was found out":   {lines: []*Line{p1, intent(1, 1, "c"), executeLine("p1"), reconciled}, wantErr: "its result already"},
		"an intent behind the result":       {lines: []*Line{p1, intent(1, 1, "c"), reconciled, intent(1, 2, "c")}, wantErr: "nothing may be sent"},
		"approved, then executed":           {lines: []*Line{p1, event(EventApproved), intent(1, 1, "c"), executeLine("p1")}},
		"approved without a plan line":      {lines: []*Line{event(EventApproved)}, wantErr: "no plan line before it"},
		"approved twice":                    {lines: []*Line{p1, event(EventApproved), event(EventApproved)}, wantErr: "was approved already"},
		"approved after its claim":          {lines: []*Line{p1, intent(1, 1, "c"), event(EventApproved)}, wantErr: "executed before it was approved"},
		"approved, its plan was taken off":  {lines: []*Line{tail, event(EventApproved)}},
		"lines were taken off":              {lines: []*Line{p1, tail, executeLine("p1"), step(7, 1), executeLine("p0")}},
		"and yet no two results":            {lines: []*Line{tail, executeLine("p1"), executeLine("p1")}, wantErr: "its result already"},
		"what was made since is held to it": {lines: []*Line{tail, p1, executeLine("p1")}, wantErr: "an outcome and no intent"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.append(f.open(), tc.lines...)
			r, err := f.verify(VerifyOptions{})
			if tc.wantErr == "" {
				if err != nil || r.Lines != int64(len(tc.lines)) {
					t.Errorf("%d lines, %v", r.Lines, err)
				}
				if diff := cmp.Diff(tc.wantUnsettled, r.Unsettled); diff != "" {
					t.Errorf("unsettled (-want +got):\n%s", diff)
				}
				return
			}
			bad, ok := errors.AsType[*BadLine](err)
			all := bytes.SplitAfter(f.read(), []byte("\n"))
			wantOffset := int64(len(bytes.Join(all[:len(tc.lines)-1], nil)))
			if !ok || bad.Line != int64(len(tc.lines)) || bad.Offset != wantOffset || bad.Path != f.path || !strings.Contains(bad.Error(), tc.wantErr) {
				t.Errorf("got %v, want line %d and %q", err, len(tc.lines), tc.wantErr)
			}
		})
	}
}

// A line signed with a key before it was made or after it was retired.
func TestVerifyKeyEpochs(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*key)
		wantErr string
	}{
		"in use":                        {func(k *key) { k.RetireAfter = epoch.Add(time.Hour) }, ""},
		"clocks differ, retired":        {func(k *key) { k.RetireAfter = epoch.Add(-50 * time.Second) }, ""},
		"clocks differ, made":           {func(k *key) { k.Created = epoch.Add(50 * time.Second) }, ""},
		"retired":                       {func(k *key) { k.RetireAfter = epoch.Add(-2 * time.Minute) }, "which was retired at"},
		"made after it signed, it says": {func(k *key) { k.Created = epoch.Add(2 * time.Minute) }, "which was made only at"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.append(f.open(), &Line{Event: EventRefused})
			k := f.keys.keys[f.keys.Current()]
			tc.change(&k)
			f.keys.keys[f.keys.Current()] = k
			_, err := f.verify(VerifyOptions{})
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("got %v, want %q", err, tc.wantErr)
			}
		})
	}
}

// manyFiles makes a journal of a few files with a checkpoint at its end.
func manyFiles(f *fixture) (paths []string) {
	f.Helper()
	j := f.rotating(13000)
	for n, more := 0, 3; more > 0; n++ {
		if exists(f.closed(2)) {
			more--
		}
		f.clock.at = f.clock.at.Add(time.Second)
		id := planID(n)
		f.append(j, planLine(id, f.clock.at.Add(time.Minute)), intentLine(id, "c"), executeLine(id), &Line{Event: EventRefused})
	}
	if err := j.Close(); err != nil {
		f.Fatal(err)
	}
	return []string{f.closed(1), f.closed(2), f.path}
}

// Whatever is done to a single line of any file is found, and the line named is the right
// one; what is cut off at the end is found by the checkpoint beside it, or by a copy of it
// kept elsewhere when that was taken away as well.
func TestVerifyTampering(t *testing.T) {
	f := newFixture(t)
	paths := manyFiles(f)
	report, err := f.verify(VerifyOptions{})
	if err != nil || report.Files != 3 || report.Checkpoints < 3 || report.FirstSeq != 1 || report.LastSeq != report.Lines {
		t.Fatalf("%+v, %v", report, err)
	}
	elsewhere := filepath.Join(t.TempDir(), "kept")
	notes, err := os.ReadFile(checkpointsPath(f.path))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(elsewhere, notes, 0o600); err != nil {
		t.Fatal(err)
	}
	done := map[string]int{}
	for n, path := range paths {
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		lines := bytes.SplitAfter(good, []byte("\n"))
		lines = lines[:len(lines)-1]
		try := func(what string, changed [][]byte, wantLine int) {
			t.Helper()
			done[what]++
			if err := os.WriteFile(path, bytes.Join(changed, nil), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := f.verify(VerifyOptions{})
			bad, ok := errors.AsType[*BadLine](err)
			if !ok || bad.Path != path || bad.Line != int64(wantLine) {
				t.Errorf("%s, file %d: got %v, want line %d of it", what, n+1, err, wantLine)
			}
		}
		clone := func() [][]byte { return append([][]byte(nil), lines...) }
		for i := range lines {
			for at := 0; at < len(lines[i]); at += 1 + i%7 + len(lines[i])/60 {
				c := clone()
				c[i] = bytes.Clone(lines[i])
				c[i][at] ^= 1
				try("edit", c, i+1)
			}
			try("delete", append(clone()[:i:i], lines[i+1:]...), i+1)
			try("duplicate", append(append(clone()[:i+1:i+1], lines[i]), lines[i+1:]...), i+2)
			for k := i + 1; k < len(lines); k++ {
				c := clone()
				c[i], c[k] = c[k], c[i]
				try("swap", c, i+1)
			}
			for _, keep := range []int{0, 1, len(lines[i]) / 2, len(lines[i]) - 1} {
				c := append(clone()[:i:i], lines[i][:keep])
				try("cut off", c, i+1)
			}
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%v, all found", done)

	// The checkpoints beside the journal go with its last line.
	if err := os.Remove(checkpointsPath(f.path)); err != nil {
		t.Fatal(err)
	}
	b := f.read()
	f.write(b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1])
	if _, err := f.verify(VerifyOptions{}); err != nil {
		t.Errorf("without any checkpoint: %v", err)
	}
	if _, err := f.verify(VerifyOptions{Checkpoints: []string{elsewhere}}); err == nil || !strings.Contains(err.Error(), "cut off at the end") {
		t.Errorf("with checkpoints kept elsewhere: %v", err)
	}
	f.append(f.open(), &Line{Event: EventReplayed}, &Line{Event: EventReplayed})
	if _, err := f.verify(VerifyOptions{Checkpoints: []string{elsewhere}}); err == nil || !strings.Contains(err.Error(), "another line than when a checkpoint was made") {
		t.Errorf("and written on: %v", err)
	}
	if _, err := f.verify(VerifyOptions{Checkpoints: []string{elsewhere + "x"}}); err == nil {
		t.Error("a file of checkpoints that is not there is not missed")
	}
}

// The oldest files may be taken away where this is said.
func TestVerifyPartial(t *testing.T) {
	f := newFixture(t)
	manyFiles(f)
	if err := os.Remove(f.closed(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.verify(VerifyOptions{}); err == nil || !strings.Contains(err.Error(), "audit-000002.jsonl, line 1") || !strings.Contains(err.Error(), "carries on audit-000001.jsonl, which is missing") {
		t.Errorf("got %v, want the file missed", err)
	}
	if r, err := f.verify(VerifyOptions{Partial: true}); err != nil || r.Files != 2 || r.FirstSeq < 5 {
		t.Errorf("%+v, %v", r, err)
	}
}

// What an operator's recovery took off is no alarm, also with a checkpoint of it.
func TestVerifyRecovered(t *testing.T) {
	for _, middle := range []bool{false, true} {
		f := newFixture(t)
		j := f.rotating(1 << 20)
		f.append(j, &Line{Event: EventRefused}, &Line{Event: EventRefused})
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		f.append(j, &Line{Event: EventRefused})
		f.clock.at = f.clock.at.Add(time.Second)
		b := f.read()
		last := bytes.LastIndexByte(b[:len(b)-1], '\n') + 1
		if middle {
			last = bytes.IndexByte(b, '\n') + 1
		}
		b[last+20] ^= 1
		f.write(b)
		if _, err := f.verify(VerifyOptions{}); err == nil {
			t.Fatal("it is not found")
		}
		if did, err := f.recover(middle); err != nil {
			t.Fatal(did, err)
		}
		f.append(f.open(), &Line{Event: EventReplayed})
		r, err := f.verify(VerifyOptions{})
		if wantVoid := map[bool]int{true: 1}[middle]; err != nil || r.Void != wantVoid || len(r.Recovered) != 1 {
			t.Errorf("middle %v: %+v, %v", middle, r, err)
		}
	}
}

// The columns of a report.
func TestVerifyReport(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	f.append(j, planLine("p1", epoch.Add(time.Hour)), intentLine("p1", "c"))
	f.clock.at = epoch.Add(time.Minute)
	f.append(j, &Line{Event: EventRefused}, &Line{Event: EventRefused})
	got, err := f.verify(VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := &Report{
		Files: 1, Lines: 4, FirstSeq: 1, LastSeq: 4, LastHash: j.chain.prev, From: epoch, To: epoch.Add(time.Minute),
		Events: map[string]int{EventPlan: 1, EventIntent: 1, EventRefused: 2}, Checkpoints: 1, Unsettled: []string{"p1"}, Keys: []string{f.keys.Current()},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
