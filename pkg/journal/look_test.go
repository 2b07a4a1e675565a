package journal

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestViewsShareALook: who waited while another one looked does not look again, unless that
// look may have begun before it came.
func TestViewsShareALook(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	opened := 0
	j.open = func(path string, create bool) (file, error) {
		opened++
		return openFile(path, create)
	}
	see := func(before int64) (looked bool) {
		t.Helper()
		was := opened
		if err := j.view(before, func(*Ledger) error { return nil }); err != nil {
			t.Fatal(err)
		}
		return opened > was
	}
	came := j.looks.Load()
	if !see(came) {
		t.Error("the first one does not look")
	}
	if see(came) {
		t.Error("one that came before that look looks again")
	}
	if !see(j.looks.Load()) {
		t.Error("one that came after it does not look")
	}
}

// TestViewShowsWhatWasWrittenBefore: many look at once, and each sees every line that
// another process had on the disk when it came.
func TestViewShowsWhatWasWrittenBefore(t *testing.T) {
	f := newFixture(t)
	j, other := f.open(), f.open()
	var written atomic.Int64
	var all sync.WaitGroup
	stop := make(chan struct{})
	defer all.Wait()
	defer close(stop)
	for range 8 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				n := int(written.Load())
				if n == 0 {
					continue
				}
				err := j.View(func(l *Ledger) error {
					if !l.Plan(planID(n)).Planned {
						t.Errorf("plan %d is not seen", n)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for n := 1; n <= 200; n++ {
		if err := appendLines(other, planLine(planID(n), epoch.Add(time.Minute))); err != nil {
			t.Fatal(err)
		}
		written.Store(int64(n))
	}
}
