package blast

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// RO-01, RO-02 and the contrast of RO-03: surge up, unavailable down, one is forced.
func TestDeploymentRoll(t *testing.T) {
	for _, tc := range []struct {
		n                             int32
		surge, unavailable            string
		wantSurge, wantMissing        int
		wantAvailable, wantTotal, pct int
	}{
		{1, "25%", "25%", 1, 0, 1, 2, 0},
		{2, "25%", "25%", 1, 0, 2, 3, 0},
		{3, "25%", "25%", 1, 0, 3, 4, 0},
		{4, "25%", "25%", 1, 1, 3, 5, 25},
		{5, "25%", "25%", 2, 1, 4, 7, 20},
		{7, "25%", "25%", 2, 1, 6, 9, 15},
		{10, "25%", "25%", 3, 2, 8, 13, 20},
		{1, "0", "25%", 0, 1, 0, 1, 100},
		{3, "0", "25%", 0, 1, 2, 3, 34},
		{4, "0", "25%", 0, 1, 3, 4, 25},
		{3, "0", "7", 0, 3, 0, 3, 100},
		{3, "1", "nonsense", 1, 3, 0, 4, 100},
	} {
		t.Run(fmt.Sprintf("%d of %s/%s", tc.n, tc.surge, tc.unavailable), func(t *testing.T) {
			n := int(tc.n)
			p, ok := deploymentPace(rollingUpdate(tc.surge, tc.unavailable), n)
			if want := (pace{want: n, surge: tc.wantSurge, unavailable: tc.wantMissing}); !ok || p != want {
				t.Errorf("pace %+v, want %+v", p, want)
			}
			if tc.surge == "25%" {
				if unset, _ := deploymentPace(appsv1.DeploymentStrategy{}, n); unset != p {
					t.Errorf("unset %+v, want the default of 25%%", unset)
				}
			}
			w := newWorld(t).pods(webSet, n, n)
			e := w.restart(w.live("deployments", deployment(tc.n, rollingUpdate(tc.surge, tc.unavailable)))).compute()
			want := numbers{plan.Replaces, n, n, n, tc.wantMissing, tc.pct, true}
			if diff := cmp.Diff(want, numbersOf(e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			wantLine(t, e, fmt.Sprintf("replaces %d of %s: at least %d of %d stay available, at most %d at once", n, count(n, "pod"), tc.wantAvailable, n, tc.wantTotal))
			if tc.n == 1 && tc.wantMissing == 1 {
				wantLine(t, e, theOnlyPod)
			}
		})
	}
}

func TestRolls(t *testing.T) {
	sts := func(n int32, most string, edit ...func(*appsv1.StatefulSet)) func(*world) plan.Target {
		return func(w *world) plan.Target {
			return w.pods(db, int(n), int(n)).live("statefulsets", statefulSet(n, func(s *appsv1.StatefulSet) {
				s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: "RollingUpdate", RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{}}
				if most != "" {
					s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.Parse(most))
				}
				for _, e := range edit {
					e(s)
				}
			}))
		}
	}
	from := func(partition int32) func(*appsv1.StatefulSet) {
		return func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = &partition }
	}
	ds := func(n int, strategy appsv1.DaemonSetUpdateStrategy) func(*world) plan.Target {
		return func(w *world) plan.Target {
			return w.pods(agent, n, n).live("daemonsets", &appsv1.DaemonSet{ObjectMeta: meta("agent"),
				Spec:   appsv1.DaemonSetSpec{UpdateStrategy: strategy},
				Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: int32(n), CurrentNumberScheduled: int32(n), NumberReady: int32(n)}})
		}
	}
	daemon := func(surge, unavailable string) appsv1.DaemonSetUpdateStrategy {
		return appsv1.DaemonSetUpdateStrategy{Type: "RollingUpdate", RollingUpdate: &appsv1.RollingUpdateDaemonSet{
			MaxSurge: ptr.To(intstr.Parse(surge)), MaxUnavailable: ptr.To(intstr.Parse(unavailable))}}
	}
	web := func(n, ready int, edit func(*appsv1.Deployment)) func(*world) plan.Target {
		return func(w *world) plan.Target {
			d := deployment(int32(n), appsv1.DeploymentStrategy{})
			edit(d)
			return w.pods(webSet, n, ready).live("deployments", d)
		}
	}
	recreate := func(d *appsv1.Deployment) { d.Spec.Strategy.Type = "Recreate" }
	for name, tc := range map[string]struct {
		target   func(*world) plan.Target
		want     numbers
		wantLine string
		wantThen string
	}{
		"RO-03 daemonset 25% of 5 rounds up": {ds(5, daemon("0", "25%")), numbers{plan.Replaces, 5, 5, 5, 2, 40, true},
			"replaces 5 of 5 pods: at least 3 of 5 stay available, at most 5 at once", "rolling, at most 2 at a time"},
		"RO-03 statefulset 25% of 5 rounds down": {sts(5, "25%"), numbers{plan.Replaces, 5, 5, 5, 1, 20, true},
			"replaces 5 of 5 pods: at least 4 of 5 stay available, at most 5 at once", "rolling, at most 1 at a time"},
		"RO-03 statefulset 10% of 5 is one":  {sts(5, "10%"), numbers{plan.Replaces, 5, 5, 5, 1, 20, true}, "", "rolling, at most 1 at a time"},
		"RO-03 statefulset unset is one":     {sts(5, ""), numbers{plan.Replaces, 5, 5, 5, 1, 20, true}, "", "rolling, at most 1 at a time"},
		"statefulset 60% of 5":               {sts(5, "60%"), numbers{plan.Replaces, 5, 5, 5, 3, 60, true}, "", "rolling, at most 3 at a time"},
		"daemonset, nothing set":             {ds(4, appsv1.DaemonSetUpdateStrategy{}), numbers{plan.Replaces, 4, 4, 4, 1, 25, true}, "", "rolling, at most 1 at a time"},
		"daemonset that surges":              {ds(5, daemon("1", "0")), numbers{plan.Replaces, 5, 5, 5, 0, 0, true}, "replaces 5 of 5 pods: at least 5 of 5 stay available, at most 6 at once", "rolling, each old pod stays until a new one is available"},
		"daemonset with neither":             {ds(5, daemon("0", "0")), numbers{plan.Replaces, 5, 5, 5, 1, 20, true}, "", "rolling, at most 1 at a time"},
		"daemonset, unavailable above count": {ds(2, daemon("0", "9")), numbers{plan.Replaces, 2, 2, 2, 2, 100, true}, "", "rolling, at most 2 at a time"},
		"RO-04 recreate": {web(4, 4, recreate), numbers{plan.Replaces, 4, 4, 4, 4, 100, true},
			"stops all 4 pods before a new one starts (Recreate): an outage until new ones are ready", "recreated, all at once"},
		"recreate of one":         {web(1, 1, recreate), numbers{plan.Replaces, 1, 1, 1, 1, 100, true}, theOnlyPod, "recreated, all at once"},
		"recreate of a dead one":  {web(1, 0, recreate), numbers{plan.Replaces, 1, 1, 0, 0, 0, true}, "", "recreated, all at once"},
		"statefulset by recreate": {sts(3, "", func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.Type = "Recreate" }), numbers{plan.Replaces, 3, 3, 3, 3, 100, true}, "", "recreated, all at once"},
		"RO-05 paused": {web(3, 3, func(d *appsv1.Deployment) { d.Spec.Paused, d.Status.Replicas, d.Status.ReadyReplicas = true, 3, 3 }), numbers{plan.None, 0, 3, 3, 0, 0, false},
			"0 of 3 pods change until the rollout is resumed", "no pod changes until the rollout is resumed"},
		"RO-06 statefulset OnDelete": {sts(3, "", func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.Type, s.Status.Replicas, s.Status.ReadyReplicas = "OnDelete", 3, 3
		}),
			numbers{plan.None, 0, 3, 3, 0, 0, false}, "0 of 3 pods change until they are deleted (OnDelete)", "no pod changes until they are deleted (OnDelete)"},
		"RO-06 daemonset OnDelete": {ds(3, appsv1.DaemonSetUpdateStrategy{Type: "OnDelete"}), numbers{plan.None, 0, 3, 3, 0, 0, false},
			"0 of 3 pods change until they are deleted (OnDelete)", "no pod changes until they are deleted (OnDelete)"},
		"RO-07 partition 2 of 3": {sts(3, "", from(2)), numbers{plan.Replaces, 1, 3, 3, 1, 34, true},
			"replaces 1 of 3 pods: at least 2 of 3 stay available, at most 3 at once", "rolling, at most 1 at a time"},
		"RO-07 partition 3 of 3":           {sts(3, "", from(3)), numbers{plan.Replaces, 0, 3, 3, 0, 0, true}, "replaces 0 of 3 pods", ""},
		"partition bounds what is missing": {sts(5, "80%", from(3)), numbers{plan.Replaces, 2, 5, 5, 2, 40, true}, "", "rolling, at most 4 at a time"},
		"ordinals that start at 5": {func(w *world) plan.Target {
			target := sts(3, "", from(1), func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5} })(w)
			for i := range w.in.Facts.Pods {
				w.in.Facts.Pods[i].Name = fmt.Sprintf("db-%d", 5+i)
			}
			return target
		}, numbers{plan.Replaces, 2, 3, 3, 1, 34, true}, "", "rolling, at most 1 at a time"},
		"healthy singleton":             {sts(1, ""), numbers{plan.Replaces, 1, 1, 1, 1, 100, true}, theOnlyPod, "rolling, at most 1 at a time"},
		"singleton that crash-loops":    {web(1, 0, func(d *appsv1.Deployment) { d.Spec.Strategy = rollingUpdate("0", "1") }), numbers{plan.Replaces, 1, 1, 0, 0, 0, true}, "", "rolling, at most 1 at a time"},
		"those not ready count as gone": {web(8, 6, func(*appsv1.Deployment) {}), numbers{plan.Replaces, 8, 8, 6, 0, 0, true}, "", "rolling, at most 2 at a time"},
		"ready, but not yet available":  {web(4, 4, func(d *appsv1.Deployment) { d.Spec.MinReadySeconds, d.Status.AvailableReplicas = 30, 1 }), numbers{plan.Replaces, 4, 4, 4, 3, 75, true}, "", "rolling, at most 1 at a time"},
		"parallel ends one in any case": {sts(3, "", func(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = "Parallel" }), numbers{plan.Replaces, 3, 3, 3, 1, 34, true}, "", "rolling, at most 1 at a time"},
		"a strategy of the future":      {web(3, 3, func(d *appsv1.Deployment) { d.Spec.Strategy.Type = "Canary" }), numbers{plan.Removes, 0, 0, 0, 0, 100, false}, "", ""},
		"a replicaset replaces no pod": {func(w *world) plan.Target {
			return w.live("replicasets", &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "rs", UID: "uid-1"}, Status: appsv1.ReplicaSetStatus{Replicas: 2, ReadyReplicas: 2}})
		}, numbers{plan.None, 0, 2, 2, 0, 0, false}, "", "no pod changes until they are deleted: a ReplicaSet replaces no running pod"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			e := w.restart(tc.target(w)).compute()
			if diff := cmp.Diff(tc.want, numbersOf(e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			wantLine(t, e, tc.wantLine)
			if diff := cmp.Diff(tc.wantThen, e.Blast.Then); diff != "" {
				t.Errorf("Then (-want +got):\n%s", diff)
			}
			if e.Class != plan.Reversible || e.NeedsPerson != nil {
				t.Errorf("class %s, person %q", e.Class, e.NeedsPerson)
			}
		})
	}
}

// A surge pod of an earlier rollout is ready capacity, too, and a roll may take it.
func TestRollInTheMiddleOfARollout(t *testing.T) {
	w := newWorld(t).pods(webSet, 4, 4).pods(newSet, 1, 1)
	e := w.restart(w.live("deployments", deployment(4, appsv1.DeploymentStrategy{}))).compute()
	want := numbers{plan.Replaces, 5, 5, 5, 2, 40, true}
	if diff := cmp.Diff(want, numbersOf(e)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
