// Package memory decides when the process collects, and when it gives memory back.
package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// headroom is what is allocated beyond the live heap before it is collected. That heap is a
// few MiB, and at its double a start and every few plans would pay for a collection each. It
// is added to every heap once, where a percentage would multiply a large one.
const headroom = 16 << 20

// reserved counts as heap, and its pages are never touched, so that they are none. It is a
// variable of a package without dependencies, so that it is there before others initialise.
var reserved = make([]byte, headroom)

// A process is idle that allocates less than idleBelow in idleLook. What is less than
// idleWorth since the last time is not worth a collection.
const (
	idleLook  = time.Second
	idleBelow = 256 << 10
	idleWorth = 2 << 20
)

// Return gives memory back to the operating system whenever the process becomes idle, until
// ctx ends.
func Return(ctx context.Context) {
	defer runtime.KeepAlive(reserved)
	allocated, returned := allocations(), uint64(0)
	for {
		select {
		case <-time.After(idleLook):
		case <-ctx.Done():
			return
		}
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
