package torture

import (
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestOverridden lets another writer undo a write at once, before its answer is lost. What
// became of it can then be told or not; that it was not applied is wrong.
func TestOverridden(t *testing.T) {
	t.Parallel()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	truth := newWatcher(t)
	for action, undo := range map[string]string{
		"scale":           `{"spec":{"replicas":2}}`,
		"rollout_restart": `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":null}}}}}`,
		"cordon":          `{"spec":{"unschedulable":null}}`,
		"uncordon":        `{"spec":{"unschedulable":true}}`,
	} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, truth, cp.Namespace(t), "one", action)
			s := harness.Spawn(t, cp, bin, harness.Options{Args: wide})
			args := s.Plan(action, b.args)
			s.Proxy.After(func(r *harness.Request, _ *http.Response) {
				if !r.Mutates() {
					return
				}
				if err := patchAs("someone-else", b.ns, b.parts[0].kind, b.parts[0].name, undo); err != nil {
					t.Error(err)
				}
				panic(http.ErrAbortHandler)
			})
			a := settled(t, s, action, args)
			if n := b.effects(t)[0]; n != 1 {
				t.Fatalf("the watch saw %d effects, want 1", n)
			}
			if a.Outcome != plan.Executed && a.Outcome != plan.Indeterminate {
				t.Errorf("outcome %s of a write that was applied and undone: %s", a.Outcome, a.Result)
			}
		})
	}
}

// patchAs writes to a Deployment or a Node as another writer does.
func patchAs(manager, ns, kind, name, merge string) error {
	var err error
	opts := metav1.PatchOptions{FieldManager: manager}
	if kind == "node" {
		_, err = cp.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(merge), opts)
	} else {
		_, err = cp.Client.AppsV1().Deployments(ns).Patch(ctx, name, types.MergePatchType, []byte(merge), opts)
	}
	return err
}
