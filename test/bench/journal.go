package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/bench/report"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// newJournal opens a journal in an own folder, whose clock is now.
func (b *bench) newJournal(state string, now func() time.Time) (*journal.Journal, *journal.Keyring, error) {
	dir := filepath.Join(b.dir, state)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	keys, err := journal.LoadKeys(filepath.Join(dir, "keys.json"), now, rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	j, err := journal.Open(journal.Options{Dir: dir, Keys: keys, Now: now, Inst: "test"})
	return j, keys, err
}

func appendLines(j *journal.Journal, lines ...*journal.Line) error {
	return j.Append(func(*journal.Ledger) ([]*journal.Line, error) { return lines, nil })
}

func refused() *journal.Line {
	return &journal.Line{Event: journal.EventRefused, Cluster: "uid-1", Output: "refused: namespace kube-system is protected"}
}

// journal compares an append with a bare write and sync of as many bytes, and many writers
// with one.
func (b *bench) journal(ctx context.Context) error {
	j, _, err := b.newJournal("appends", time.Now)
	if err != nil {
		return err
	}
	one := func() error { return appendLines(j, refused()) }
	if err := one(); err != nil {
		return err
	}
	size, err := b.lineSize("appends", one)
	if err != nil {
		return err
	}
	d, err := b.disk("append.lines", size)
	if err != nil {
		return err
	}
	defer d.f.Close()
	ms, err := b.turns(ctx, side{run: one}, side{run: d.write})
	if err != nil {
		return err
	}
	row := compare("journal: one line, one writer", "bare write + fdatasync of as many bytes", ms[0], ms[1], 0.5, report.AtMost(100, "µs more"))
	row.Ours, row.Base, row.Unit = row.Ours*1000, row.Base*1000, "µs"
	row.Value = row.Ours - row.Base
	row.Note = fmt.Sprintf("lines of %d bytes; the 90th percentiles are %.0f and %.0f µs", size, 1000*report.Quantile(ms[0], 0.9), 1000*report.Quantile(ms[1], 0.9))
	b.add(row)

	const writers, rounds = 16, 5
	rate := func(writers int) (float64, error) {
		var done atomic.Int64
		began := time.Now()
		var all []func() error
		for range writers {
			all = append(all, func() error {
				for time.Since(began) < b.each/rounds/2 {
					if err := one(); err != nil {
						return err
					}
					done.Add(1)
				}
				return nil
			})
		}
		err := together(all...)
		return float64(done.Load()) / time.Since(began).Seconds(), err
	}
	var many, single []float64
	for range rounds {
		m, err := rate(writers)
		if err != nil {
			return err
		}
		s, err := rate(1)
		if err != nil {
			return err
		}
		many, single = append(many, m), append(single, s)
	}
	row = compare(fmt.Sprintf("journal: lines per second, %d writers", writers), "one writer", many, single, 0.5, report.AtLeast(4, "×"))
	row.Unit = "1/s"
	b.add(row)
	return j.Close()
}

// lines is how long the journal is with which the program starts.
const lines = 100_000

// fill writes a journal of many lines, plans, claims, outcomes, results and refusals, a
// minute apart, which ends now.
func (b *bench) fill(state string) error {
	began := time.Now()
	at := began.Add(-lines / 3 * time.Minute)
	clock := at
	j, _, err := b.newJournal(state, func() time.Time { return clock })
	if err != nil {
		return err
	}
	n := 0
	for i := 0; n < lines; {
		var batch []*journal.Line
		for ; len(batch) < 1000; i++ {
			id := plan.NewID([]byte(fmt.Sprintf("%07d", i)))
			batch = append(batch, &journal.Line{Event: journal.EventPlan, Plan: id, Cluster: "uid-1", Ready: []journal.Capacity{{UID: "u-1", Ready: 2}},
				Record: &plan.Plan{ID: id, Action: "scale", Args: []byte(`{"namespace":"bench","deployment":"web","replicas":3}`), Sentence: "scale deployment bench/web from 2 to 3 on kind-lab", Created: clock, Expires: clock.Add(2 * time.Minute)}})
			if i%2 == 0 {
				batch = append(batch,
					&journal.Line{Event: journal.EventIntent, Plan: id, Claim: "c1", Step: 1, Attempt: 1, SendNotAfter: clock.Add(5 * time.Second)},
					&journal.Line{Event: journal.EventStep, Plan: id, Step: 1, Attempt: 1, Code: "applied", HTTP: 200},
					&journal.Line{Event: journal.EventExecute, Plan: id, Code: "EXECUTED", Result: &plan.Result{Plan: id, Outcome: plan.Executed, Time: clock}},
					refused())
			}
		}
		clock = at.Add(time.Duration(i) * time.Minute)
		if clock.After(began) {
			clock = began
		}
		if err := appendLines(j, batch...); err != nil {
			return err
		}
		n += len(batch)
	}
	return j.Close()
}

// start measures a start with a long journal: without and with the snapshot of the last
// process, and when the tools are listed.
func (b *bench) start(ctx context.Context) error {
	const state = "long"
	r, err := b.cluster(ctx)
	if err != nil {
		return err
	}
	if err := b.fill(state); err != nil {
		return err
	}
	dir := filepath.Join(b.dir, state)
	// What a start finds beside the file: the snapshots are put away for a cold one.
	kept := filepath.Join(b.dir, "kept")
	if err := exec.Command("cp", "-a", dir, kept).Run(); err != nil {
		return err
	}
	again := func(cold bool) func() error {
		return func() error {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			if err := exec.Command("cp", "-a", kept, dir).Run(); err != nil {
				return err
			}
			if !cold {
				return nil
			}
			return os.Remove(filepath.Join(dir, "state.json")) // the snapshot
		}
	}
	var listed, known [2][]float64 // ms: cold, and with a snapshot
	var bare []float64
	for n := range 8 {
		_, k, err := b.startOnce(r, "short")
		if err != nil {
			return err
		}
		if n > 0 {
			bare = append(bare, k)
		}
		for i, cold := range []bool{true, false} {
			if err := again(cold)(); err != nil {
				return err
			}
			l, k, err := b.startOnce(r, state)
			if err != nil {
				return err
			}
			if n > 0 {
				listed[i], known[i] = append(listed[i], l), append(known[i], k)
			}
		}
	}
	p50 := func(s []float64) float64 { return report.Quantile(s, 0.5) }
	empty := p50(bare)
	for i, c := range []struct {
		what string
		most float64
	}{
		{"start with a journal of 100,000 lines, cold, to an answer from it", 2000},
		{"the same from the last checkpoint, more than with an empty one", 50},
	} {
		v := p50(known[i])
		row := report.Row{What: c.what, Baseline: "the same with an empty journal", Ours: v, Base: empty, Unit: "ms", Value: v, Bar: report.AtMost(c.most, "ms"), Runs: len(known[i])}
		if i == 1 {
			row.Value = v - empty
		}
		b.add(row)
	}
	worst := math.Max(p50(listed[0])/p50(known[0]), p50(listed[1])/p50(known[1]))
	b.add(report.Row{
		What: "tools/list with that journal, cold", Baseline: "the answer from the journal", Ours: p50(listed[0]), Base: p50(known[0]), Unit: "ms",
		Value: p50(listed[0]) / p50(known[0]), Bar: report.AtMost(0.5, "×"),
		Note: fmt.Sprintf("from the checkpoint %.0f and %.0f ms, at worst %.2f", p50(listed[1]), p50(known[1]), worst),
	})
	return nil
}

// startOnce starts the program and gives the milliseconds until the tools are listed, and
// until a call has an answer for which the journal was read.
func (b *bench) startOnce(r *rig, state string) (listed, known float64, err error) {
	since := func(t time.Time) float64 { return float64(time.Since(t).Nanoseconds()) / 1e6 }
	began := time.Now()
	s, err := stdio.Start(stdio.Modern, b.binary, nil, b.flags(r, state)...)
	if err != nil {
		return 0, 0, err
	}
	defer s.Kill()
	if _, err := s.Request("tools/list", nil); err != nil {
		return 0, 0, err
	}
	listed = since(began)
	got, err := s.Call("write_status", map[string]any{"plan": "aaaaaaaaaa"})
	if err == nil && got.Text == "" {
		err = fmt.Errorf("write_status: no answer")
	}
	return listed, since(began), err
}

// heap takes what the benchmark of the cache finds for 50,000 pods.
func (b *bench) heap(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkCachedPod$", "-benchtime", "1x", "./pkg/kube").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	ours, err := metric(string(out), "B/pod")
	if err != nil {
		return err
	}
	base, err := metric(string(out), "untrimmed-B/pod")
	if err != nil {
		return err
	}
	size, err := metric(string(out), "JSON-B/pod")
	if err != nil {
		return err
	}
	b.add(report.Row{
		What: "heap per cached pod of 50,000", Baseline: "an untrimmed informer of client-go", Ours: ours, Base: base, Unit: "B",
		Value: ours / base, Bar: report.AtMost(0.125, "×"), Note: fmt.Sprintf("pods of %.0f bytes of JSON", size),
	})
	return nil
}

// metric reads a value out of a line of go test -bench, by its unit.
func metric(out, unit string) (float64, error) {
	words := strings.Fields(out)
	for i, w := range words {
		if w == unit && i > 0 {
			return strconv.ParseFloat(words[i-1], 64)
		}
	}
	return 0, fmt.Errorf("the benchmark gave no %s:\n%s", unit, out)
}
