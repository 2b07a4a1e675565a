package engine

import (
	"sync"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// retryLate is how often the journal is asked again to take an outcome.
const retryLate = time.Second

// lates are the executions whose outcome the journal has not taken. Their lines are kept
// and written late; a process that ends with them leaves their plans to be settled.
type lates struct {
	mu sync.Mutex
	of map[string]bool // by plan
}

// keep holds the lines that end an execution until the journal takes them.
func (l *lates) keep(e *Engine, p *plan.Plan, lines []*journal.Line) {
	l.set(p.ID, true)
	for _, line := range lines {
		line.Late = true
	}
	go func() {
		for {
			select {
			case <-time.After(retryLate):
			case <-e.stop.Done():
				return
			}
			if err := e.end(p, lines); err == nil {
				l.set(p.ID, false)
				return
			}
		}
	}()
}

// has reports whether a plan's outcome is known here and not on record.
func (l *lates) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[id]
}

func (l *lates) set(id string, kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string]bool{}
	}
	if l.of[id] = kept; !kept {
		delete(l.of, id)
	}
}
