package engine

import (
	"sync"
	"time"
)

// clock is the wall clock, but it never goes back and it runs at least as fast as the
// monotonic clock: neither a clock that is set back nor a laptop that slept gives a plan
// more time than it was made for.
type clock struct {
	wall func() time.Time

	mu   sync.Mutex
	at   time.Time // the last time that was given
	read time.Time // when, on the monotonic clock
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	read := time.Now()
	if !c.read.IsZero() {
		c.at = c.at.Add(read.Sub(c.read))
	}
	c.read = read
	if wall := c.wall().Round(0); wall.After(c.at) { // Round takes the monotonic reading off
		c.at = wall
	}
	return c.at
}
