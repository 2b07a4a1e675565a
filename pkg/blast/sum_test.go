package blast

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// TestBudgetOfSeveralCalls: the dry run of each eviction says yes, and the API would
// refuse the later ones.
func TestBudgetOfSeveralCalls(t *testing.T) {
	allows := func(n int) func(*plan.Budget) {
		return func(b *plan.Budget) { b.Healthy, b.Desired, b.Allowed = 4, 4-n, n }
	}
	for name, tc := range map[string]struct {
		allowed int
		steps   func(*world)
		want    []string
	}{
		"one":                 {1, func(w *world) { w.gone(plan.Evict, plan.Fail, "web-5f7-0") }, nil},
		"two of two":          {2, func(w *world) { w.gone(plan.Evict, plan.Fail, "web-5f7-0", "web-5f7-1") }, nil},
		"two of one":          {1, func(w *world) { w.gone(plan.Evict, plan.Fail, "web-5f7-0", "web-5f7-1") }, []string{"pdb/x allows 1 disruption now (4 healthy, 3 needed), and this plan needs 2 at once"}},
		"two that wait":       {1, func(w *world) { w.gone(plan.Evict, plan.Wait, "web-5f7-0", "web-5f7-1") }, nil},
		"one behind a drain":  {1, func(w *world) { w.gone(plan.Evict, plan.Wait, "web-5f7-0").gone(plan.Evict, plan.Fail, "web-5f7-1") }, []string{"pdb/x allows 1 disruption now (4 healthy, 3 needed), and this plan needs 2 at once"}},
		"one before a drain":  {1, func(w *world) { w.gone(plan.Evict, plan.Fail, "web-5f7-0").gone(plan.Evict, plan.Wait, "web-5f7-1") }, nil},
		"one behind a delete": {1, func(w *world) { w.gone(plan.Delete, plan.Fail, "web-5f7-0").gone(plan.Evict, plan.Fail, "web-5f7-1") }, []string{"pdb/x allows 1 disruption now (4 healthy, 3 needed), and this plan needs 2 at once"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).pods(webSet, 4, 4).budget("x", allows(tc.allowed)).nodes("n2")
			tc.steps(w)
			if d := cmp.Diff(tc.want, w.compute().OverBudget); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
	t.Run("a delete behind an eviction bypasses it", func(t *testing.T) {
		w := newWorld(t).pods(webSet, 4, 4).budget("x", allows(1)).gone(plan.Evict, plan.Fail, "web-5f7-0").gone(plan.Delete, plan.Fail, "web-5f7-1")
		if d := cmp.Diff([]string{"deleting default/web-5f7-1 bypasses pdb/x (4 healthy, 3 needed), which evict_pod honours"}, w.compute().NeedsPerson); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}

// TestQuotaOfSeveralCalls: there is room for each scale, and not for both.
func TestQuotaOfSeveralCalls(t *testing.T) {
	w := newWorld(t)
	w.in.Facts.Quotas = []plan.Quota{{Namespace: "default", Name: "team", Hard: map[string]int64{"pods": 10}, Used: map[string]int64{"pods": 6}}}
	for _, name := range []string{"a", "b"} {
		two := int32(2)
		d := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
			Spec:       appsv1.DeploymentSpec{Replicas: &two, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}},
		}
		d.Spec.Template.Spec.Containers = []corev1.Container{needs("main", "", "")}
		w.scale(w.live("deployments", d), 5)
	}
	e := w.compute()
	wantLine(t, e, "quota team: pods 9 of 10 used: 2 of 3 new pods cannot be created")
	if len(e.Blast.Lines) != 2 { // beside "adds 3 pods to 2", which both say
		t.Errorf("%q", e.Blast.Lines)
	}
}
