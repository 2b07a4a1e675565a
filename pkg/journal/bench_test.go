package journal

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func benchJournal(b *testing.B) (*Journal, *clock, Options) {
	b.Helper()
	dir := filepath.Join(b.TempDir(), "state")
	c := &clock{epoch}
	keys, err := LoadKeys(filepath.Join(dir, "keys.json"), c.now, rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	o := Options{Dir: dir, Keys: keys, Now: c.now, Inst: "test"}
	j, err := Open(o)
	if err != nil {
		b.Fatal(err)
	}
	return j, c, o
}

// BenchmarkAppend is a plan line with its record, on the disk.
func BenchmarkAppend(b *testing.B) {
	j, _, _ := benchJournal(b)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		if err := appendLines(j, planLine(planID(i), epoch.Add(time.Minute))); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkWriters is what an append costs when so many goroutines append at once.
func BenchmarkWriters(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(strconv.Itoa(writers), func(b *testing.B) {
			j, _, _ := benchJournal(b)
			var wg sync.WaitGroup
			var next atomic.Int64
			b.ResetTimer()
			for range writers {
				wg.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						if err := appendLines(j, &Line{Event: EventRefused, Cluster: "uid-1", Output: "refused: namespace kube-system is protected"}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkView is a look at the ledger when nothing was appended.
func BenchmarkView(b *testing.B) {
	j, _, _ := benchJournal(b)
	for b.Loop() {
		if err := j.View(func(*Ledger) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// prepared writes 100,000 lines: plans, claims, outcomes, results and refusals, a minute
// apart. It gives their size.
func prepared(b *testing.B) (Options, int64) {
	b.Helper()
	j, c, o := benchJournal(b)
	const lines = 100_000
	n := 0
	j.open = func(path string, create bool) (file, error) {
		f, err := openFile(path, create)
		return unsynced{f}, err
	}
	for i := 0; n < lines; i++ {
		c.at = c.at.Add(time.Minute)
		id := planID(i)
		batch := []*Line{planLine(id, c.at.Add(2*time.Minute))}
		batch[0].Ready = []Capacity{{UID: "u-1", Ready: 2}}
		if i%2 == 0 {
			batch = append(batch, intentLine(id, "c1"), &Line{Event: EventStep, Plan: id, Step: 1, Attempt: 1, Code: "applied", HTTP: 200}, executeLine(id),
				&Line{Event: EventRefused, Cluster: "uid-1", Output: "refused: namespace kube-system is protected"})
		}
		if err := appendLines(j, batch...); err != nil {
			b.Fatal(err)
		}
		n += len(batch)
	}
	info, err := os.Stat(filepath.Join(o.Dir, "audit.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	return o, info.Size()
}

// BenchmarkVerify verifies 100,000 lines.
func BenchmarkVerify(b *testing.B) {
	o, size := prepared(b)
	b.SetBytes(size)
	for b.Loop() {
		if r, err := Verify(filepath.Join(o.Dir, "audit.jsonl"), o.Keys, VerifyOptions{}); err != nil || r.Lines < 100_000 {
			b.Fatal(r, err)
		}
	}
}

// BenchmarkOpen folds 100,000 lines.
func BenchmarkOpen(b *testing.B) {
	o, size := prepared(b)
	var err error
	b.SetBytes(size)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var folded *Journal
	for b.Loop() {
		if folded, err = Open(o); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/(1<<20), "MiB-held")
	runtime.KeepAlive(folded)
}

// unsynced is a file that no benchmark waits for while it is prepared.
type unsynced struct{ file }

func (unsynced) Datasync() error { return nil }

// BenchmarkOpenSnapshot opens 100,000 lines that a process closed.
func BenchmarkOpenSnapshot(b *testing.B) {
	o, _ := prepared(b)
	j, err := Open(o)
	if err != nil {
		b.Fatal(err)
	}
	if err := j.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if j, err = Open(o); err != nil || j.saved != j.chain.offset {
			b.Fatal(err)
		}
	}
}

// BenchmarkFold verifies and folds 2,000 lines.
func BenchmarkFold(b *testing.B) {
	j, _, o := benchJournal(b)
	var plans []*Line
	for i := range 2_000 {
		plans = append(plans, planLine(planID(i), epoch.Add(time.Minute)))
	}
	if err := appendLines(j, plans...); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Open(o); err != nil {
			b.Fatal(err)
		}
	}
}
