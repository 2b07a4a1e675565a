// Package memory decides when the process collects, and when it gives memory back.
package memory

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// usual is how far a heap grows beyond what lives of it before it is collected, in per cent.
// A start, whose heap is new and small, is spared its collections. It is a variable of a
// package without dependencies, so that it is set before others initialise, who allocate
// half of what a start does.
var usual = debug.SetGCPercent(400)

// Started says that the start is over, and the heap collected as usual.
var Started = sync.OnceFunc(func() { debug.SetGCPercent(usual) })

// A process is idle that allocates less than idleBelow in idleLook. What is less than
// idleWorth since the last time is not worth a collection.
const (
	idleLook  = time.Second
	idleBelow = 256 << 10
	idleWorth = 2 << 20
)

// Return gives memory back to the operating system whenever the process becomes idle, until
// ctx ends. A start is over at its first look.
func Return(ctx context.Context) {
	allocated, returned := allocations(), uint64(0)
	for {
		select {
		case <-time.After(idleLook):
		case <-ctx.Done():
			return
		}
		Started()
		before := allocated
		allocated = allocations()
		if allocated-before < idleBelow && allocated-returned > idleWorth {
			debug.FreeOSMemory()
			allocated = allocations()
			returned = allocated
		}
	}
}

// allocations are the bytes that were ever allocated.
func allocations() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
