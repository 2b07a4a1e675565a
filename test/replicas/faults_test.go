package replicas

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// TestFaultyLedger sends each of many phrases to three replicas at once, while what they say
// to the ledger, and what it answers, is lost again and again: each plan has at most one
// write, its result is the truth, and all replicas give the same one.
func TestFaultyLedger(t *testing.T) {
	t.Parallel()
	const plans = 9
	l := newLedger(t)
	servers := []*harness.Server{l.start(), l.start(), l.start()}
	ns := cp.Namespace(t)
	calls := make([]harness.Args, plans)
	for i := range calls {
		name := fmt.Sprintf("web-%d", i)
		harness.Create(t, cp, ns, harness.Deployment(name).Replicas(2).Ready(2))
		calls[i] = servers[i%3].Plan("scale", harness.Of(ns, "deployment", name).With("replicas", 3))
	}
	var n, lost atomic.Int64
	faulty := func(r *harness.Request, every int64) bool {
		if !strings.Contains(r.Path, "/kubewrite.dev/") || n.Add(1)%every != 0 {
			return false
		}
		lost.Add(1)
		return true
	}
	for _, s := range servers {
		s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
			switch {
			case faulty(r, 7):
				cut()
			case faulty(r, 11):
				w.WriteHeader(http.StatusInternalServerError)
				return false
			}
			return true
		})
		s.Proxy.After(func(r *harness.Request, _ *http.Response) {
			if faulty(r, 5) {
				cut()
			}
		})
	}
	results := make([][]string, plans)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, args := range calls {
		for _, s := range servers {
			wg.Go(func() {
				lab.Eventually(t, "a result", func() (bool, error) { // it may be refused while the ledger does not answer
					got, err := s.Call("scale", args)
					if err != nil {
						return false, err
					}
					x := harness.Into[harness.Execution](t, got)
					if x.Result == nil {
						return false, fmt.Errorf("%s", got.Text)
					}
					mu.Lock()
					defer mu.Unlock()
					results[i] = append(results[i], string(x.Result))
					return true, nil
				})
			})
		}
	}
	wg.Wait()
	if lost.Load() < 50 {
		t.Errorf("only %d requests and answers were lost", lost.Load())
	}
	executed := 0
	for i, all := range results {
		name := fmt.Sprintf("web-%d", i)
		for _, r := range all {
			if r != all[0] {
				t.Errorf("%s: results\n%s\n%s", name, all[0], r)
			}
		}
		sent := 0
		for _, s := range servers {
			sent += len(s.Proxy.Requests(func(r harness.Request) bool { return isScale(r) && strings.HasSuffix(r.Path, "/"+name+"/scale") }))
		}
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		scaled := *d.Spec.Replicas == 3
		if sent > 1 || scaled != (sent == 1) || scaled != strings.Contains(all[0], string(plan.Executed)) {
			t.Errorf("%s: sent %d, scaled %t: %s", name, sent, scaled, all[0])
		}
		if scaled {
			executed++
		}
	}
	t.Logf("%d requests and answers lost, %d of %d plans executed", lost.Load(), executed, plans)
}
