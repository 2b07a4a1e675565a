package memory

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// sink keeps allocations from being none.
var sink []byte

// TestReturn: memory goes back once the process is idle, once for what was allocated, and
// never while it works.
func TestReturn(t *testing.T) {
	for name, tc := range map[string]struct {
		burst int // bytes allocated at once, after ten seconds
		busy  int // bytes allocated each half of a second
		want  uint32
	}{
		"what the start took, and no more": {0, 1 << 10, 1},
		"work, and idle again":             {8 << 20, 1 << 10, 2},
		"at work all along":                {0, 1 << 20, 0},
		"little by little":                 {0, 80 << 10, 3}, // 5 MiB by the end
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				sink = make([]byte, idleWorth) // a start
				before := forced()
				go Return(ctx)
				for i := range 62 {
					time.Sleep(idleLook / 2)
					sink = make([]byte, tc.busy)
					if i == 20 {
						sink = make([]byte, tc.burst)
					}
				}
				end()
				synctest.Wait()
				if got := forced() - before; got != tc.want {
					t.Errorf("%d times, want %d", got, tc.want)
				}
			})
		})
	}
}

// forced is how often the heap was collected because somebody said so.
func forced() uint32 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.NumForcedGC
}
