package torture

import (
	"net/http"
	"testing"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestForeignAnswer lets something between the process and the API server answer every
// write with a page of its own, which means nothing: 200, and no effect.
func TestForeignAnswer(t *testing.T) {
	t.Parallel()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	truth := newWatcher(t)
	for _, action := range []string{"scale", "rollout_restart", "cordon", "uncordon", "delete_pod", "drain"} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, truth, cp.Namespace(t), "one", action)
			s := harness.Spawn(t, cp, bin, harness.Options{Args: wide})
			args := s.Plan(action, b.args)
			s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
				if !r.Mutates() || action == "drain" && r.Method == http.MethodPatch {
					return true
				}
				w.Header().Set("Content-Type", "text/html")
				_, _ = w.Write([]byte("<html>please sign in</html>"))
				return false
			})
			a := settled(t, s, action, args)
			if a.Outcome != plan.Failed {
				t.Errorf("outcome %s, effects %v: %s", a.Outcome, b.effects(t), a.Result)
			}
		})
	}
}
