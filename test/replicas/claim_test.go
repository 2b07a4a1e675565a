package replicas

import (
	"sync"
	"testing"

	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// TestHundredCalls spreads a hundred calls with one phrase over three processes: there is
// one write, and one result for all.
func TestHundredCalls(t *testing.T) {
	l := newLedger(t)
	ns, scale := harness.WebScale(t, cp)
	servers := []*harness.Server{l.spawn(), l.spawn(), l.spawn()}
	args := servers[0].Plan("scale", scale)
	answers := make([]stdio.Tool, 100)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i], _ = servers[i%3].Call("scale", args) })
	}
	wg.Wait()
	var first harness.Execution
	executed := 0
	for _, got := range answers {
		x := harness.Into[harness.Execution](t, got)
		if x.Outcome != plan.Executed {
			t.Errorf("outcome %q: %s", x.Outcome, got.Text)
		}
		if !x.Replayed {
			executed++
			first = x
		}
	}
	if executed != 1 {
		t.Errorf("%d calls executed, want 1", executed)
	}
	for _, s := range servers {
		wantSame(t, first, settled(t, s, "scale", args))
	}
	if n := scales(servers...); n != 1 {
		t.Errorf("%d scales were sent, want 1", n)
	}
	if n := harness.Replicas(t, cp, ns, "web"); n != 3 {
		t.Errorf("%d replicas, want 3", n)
	}
	w := l.one()
	if w.Status.State != cluster.Executed || w.Status.Result != string(first.Result) {
		t.Errorf("state %s with\n%s\nwant\n%s", w.Status.State, w.Status.Result, first.Result)
	}
}
