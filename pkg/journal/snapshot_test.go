package journal

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// busy makes a journal with something of everything that a ledger holds.
func busy(f *fixture) {
	f.Helper()
	j := f.rotating(1 << 20)
	at := func(minutes int, lines ...*Line) {
		f.clock.at = epoch.Add(time.Duration(minutes) * time.Minute)
		f.append(j, lines...)
	}
	with := func(id string, ready int) *Line {
		l := planLine(id, epoch.Add(time.Hour))
		l.Ready = []Capacity{{UID: "u-1", Ready: ready}}
		return l
	}
	at(0, with("done", 5), intentLine("done", "c1"), executeLine("done"),
		&Line{Event: EventVerify, Plan: "done", Verification: &plan.Verification{Verdict: plan.Verified, Reason: "3 of 3", Time: epoch}})
	at(7, with("half", 3), with("open", 2), with("stale", 1), &Line{Event: EventStale, Plan: "stale", Cluster: "uid-1"})
	several := with("several", 1)
	several.Record.Parts = []plan.Part{{Steps: 1}, {Steps: 1}}
	at(8, several, intentLine("half", "c2"), &Line{Event: EventStep, Plan: "half", Step: 1, Attempt: 1, Code: "applied", RV: "7"})
	if err := j.Close(); err != nil {
		f.Fatal(err)
	}
}

var wholeLedger = cmp.Options{cmp.AllowUnexported(Ledger{}, record{}, stamp{}, sample{}, span{}), cmpopts.EquateEmpty()}

// What a snapshot gives is what the lines give, and nothing before it is read; what was
// done to the lines before it is found in the background.
func TestSnapshot(t *testing.T) {
	f := newFixture(t)
	busy(f)
	quick := f.rotating(1 << 20)
	name := snapshotPath(f.path)
	if err := os.Rename(name, name+".x"); err != nil {
		t.Fatal(err)
	}
	whole := f.rotating(1 << 20)
	if diff := cmp.Diff(&whole.ledger, &quick.ledger, wholeLedger); diff != "" {
		t.Errorf("(-of the lines +of the snapshot):\n%s", diff)
	}
	if err := errors.Join(os.Rename(name+".x", name), quick.VerifyAll(t.Context())); err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := quick.VerifyAll(ended); !errors.Is(err, context.Canceled) || quick.Sealed() != nil {
		t.Errorf("ended early it gave %v, %v", err, quick.Sealed())
	}
	good := f.read()
	f.write(bytes.Replace(good, []byte("kind-lab"), []byte("kind-fab"), 1))
	quick = f.rotating(1 << 20)
	if err := quick.Sealed(); err != nil {
		t.Fatalf("the first line was read: %v", err)
	}
	f.append(quick, &Line{Event: EventReplayed})
	if err := quick.VerifyAll(t.Context()); !errors.Is(err, ErrSealed) || !strings.Contains(err.Error(), "line 1 (at byte 0)") || quick.Sealed() == nil {
		t.Errorf("it gave %v, and the journal is sealed by %v", err, quick.Sealed())
	}
}

// A snapshot that cannot be trusted is as good as none, never an error.
func TestSnapshotIsNotTrusted(t *testing.T) {
	for name, change := range map[string]func(f *fixture, b []byte) error{
		"none":        func(f *fixture, _ []byte) error { return os.Remove(snapshotPath(f.path)) },
		"empty":       func(f *fixture, _ []byte) error { return os.Truncate(snapshotPath(f.path), 0) },
		"cut":         func(f *fixture, b []byte) error { return os.Truncate(snapshotPath(f.path), int64(len(b)/2)) },
		"another mac": func(f *fixture, b []byte) error { b[12] ^= 1; return os.WriteFile(snapshotPath(f.path), b, 0o600) },
		"another key": func(f *fixture, b []byte) error { b[0] ^= 1; return os.WriteFile(snapshotPath(f.path), b, 0o600) },
		"an edit": func(f *fixture, b []byte) error {
			return os.WriteFile(snapshotPath(f.path), bytes.Replace(b, []byte(`"Claimed":true`), []byte(`"Claimed":false`), 1), 0o600)
		},
		"a folder": func(f *fixture, _ []byte) error {
			return errors.Join(os.Remove(snapshotPath(f.path)), os.Mkdir(snapshotPath(f.path), 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			busy(f)
			b, err := os.ReadFile(snapshotPath(f.path))
			if err != nil {
				t.Fatal(err)
			}
			if err := change(f, b); err != nil {
				t.Fatal(err)
			}
			f.write(bytes.Replace(f.read(), []byte("kind-lab"), []byte("kind-fab"), 1))
			if err := f.trySealed(); err == nil || !strings.Contains(err.Error(), "line 1 (at byte 0)") {
				t.Errorf("the first line was not read: %v", err)
			}
		})
	}
}

// A snapshot of another journal with the same key, whose last line ends at the same byte,
// is not taken for one of this.
func TestSnapshotOfAnother(t *testing.T) {
	f, other := newFixture(t), newFixture(t)
	other.keys = f.keys
	for f, id := range map[*fixture]string{f: "p1", other: "p2"} {
		j := f.rotating(1 << 20)
		f.append(j, planLine(id, epoch.Add(time.Hour)))
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(snapshotPath(other.path))
	if err := errors.Join(err, os.WriteFile(snapshotPath(f.path), b, 0o600), os.Remove(checkpointsPath(f.path))); err != nil {
		t.Fatal(err)
	}
	if !f.state("p1").Planned || f.state("p2").Planned {
		t.Error("the plan is the other journal's")
	}
}

// A snapshot is made again when much was written, and one of a file that was closed since
// is not used.
func TestSnapshotIsMade(t *testing.T) {
	f := newFixture(t)
	j := f.rotating(8 << 20)
	for n := 0; !exists(snapshotPath(f.path)); n++ {
		f.append(j, &Line{Event: EventRefused, Output: strings.Repeat("x", 100_000)})
		if n > 11 {
			t.Fatal("none was made")
		}
	}
	if j.chain.offset < snapshotEvery {
		t.Errorf("made at byte %d", j.chain.offset)
	}
	for at := j.saved; j.chain.offset < at+2*snapshotEvery; {
		f.append(j, &Line{Event: EventRefused, Output: strings.Repeat("x", 100_000)})
		if j.saved != at {
			t.Fatal("another one was made at once")
		}
	}
	f.clock.at = f.clock.at.Add(snapshotRest)
	if f.append(j, &Line{Event: EventRefused}); j.saved != j.chain.offset {
		t.Error("none was made a second later")
	}
	j.rotateAt = 1
	f.append(j, planLine("p1", epoch.Add(time.Hour)))
	j.rotateAt = 1 << 30
	f.append(j, intentLine("p1", "c1"))
	if s := f.state("p1"); !s.Claimed {
		t.Errorf("the plan is %+v", s)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	again := f.rotating(1 << 30)
	if again.saved != again.chain.offset || again.chain.segment != 2 {
		t.Errorf("the snapshot of the second file is not used: at %d of %d", again.saved, again.chain.offset)
	}
	if p, err := again.Record("p1"); p == nil || err != nil {
		t.Errorf("the record is %v, %v", p, err)
	}
	if _, err := f.verify(VerifyOptions{}); err != nil {
		t.Error(err)
	}
}
