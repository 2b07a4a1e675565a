package app

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// lossy is a writer that never waits for who reads it: a client that does not read the
// server's stderr must not stop the server. What finds no room is counted and left out.
type lossy struct {
	lines chan []byte
	done  chan struct{}

	mu      sync.Mutex
	dropped int
	closed  bool
}

// lossyLines is how many lines wait for a reader.
const lossyLines = 1024

func newLossy(w io.Writer) *lossy {
	l := &lossy{lines: make(chan []byte, lossyLines), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for line := range l.lines {
			_, _ = w.Write(line)
		}
	}()
	return l
}

// Write takes a line, or leaves it out.
func (l *lossy) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return len(b), nil
	}
	line := append([]byte(nil), b...)
	if l.dropped > 0 {
		line = append(fmt.Appendf(nil, "%d lines are left out: nobody read them\n", l.dropped), line...)
	}
	select {
	case l.lines <- line:
		l.dropped = 0
	default:
		l.dropped++
	}
	return len(b), nil
}

// Close waits until what was written is read, at most for the time given.
func (l *lossy) Close(wait time.Duration) {
	l.mu.Lock()
	l.closed = true
	close(l.lines)
	l.mu.Unlock()
	select {
	case <-l.done:
	case <-time.After(wait):
	}
}
