package blast

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// Where even a live list and the status disagree about how many pods are ready, the
// larger share at risk is taken, and both numbers are named.
func TestStatusAgainstTheList(t *testing.T) {
	complete := []appsv1.DeploymentCondition{{Type: "Progressing", Reason: "NewReplicaSetAvailable"}}
	web := func(n, pods, status int32, edit ...func(*appsv1.Deployment)) func(*world) plan.Target {
		return func(w *world) plan.Target {
			d := deployment(n, rollingUpdate("25%", "25%"))
			d.Status = appsv1.DeploymentStatus{Replicas: n, UpdatedReplicas: n, ReadyReplicas: status, AvailableReplicas: status, Conditions: complete}
			for _, e := range edit {
				e(d)
			}
			return w.pods(webSet, int(pods), int(pods)).live("deployments", d)
		}
	}
	set := func(n, pods, ready, status int32, edit ...func(*appsv1.StatefulSet)) func(*world) plan.Target {
		return func(w *world) plan.Target {
			return w.pods(db, int(pods), int(ready)).live("statefulsets", statefulSet(n, func(s *appsv1.StatefulSet) {
				s.Status.ReadyReplicas = status
				for _, e := range edit {
					e(s)
				}
			}))
		}
	}
	agents := func(pods, status int32, most string) func(*world) plan.Target {
		return func(w *world) plan.Target {
			return w.pods(agent, int(pods), int(pods)).live("daemonsets", &appsv1.DaemonSet{ObjectMeta: meta("agent"),
				Spec: appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: "RollingUpdate",
					RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.Parse(most))}}},
				Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: status, NumberReady: status}})
		}
	}
	recreate := func(d *appsv1.Deployment) { d.Spec.Strategy = appsv1.DeploymentStrategy{Type: "Recreate"} }
	for name, tc := range map[string]struct {
		target      func(*world) plan.Target
		to          int32 // -1 restarts
		peak        int
		want        numbers
		wantLargest *int32
		wantLines   []string
	}{
		"no pod is listed": {web(6, 0, 6), 1, 0, numbers{plan.Removes, 5, 6, 6, 5, 84, false}, ptr.To[int32](3),
			[]string{"0 ready pods listed, the status of deployment default/web says 6: the larger share at risk is taken", "removes 5 of 6 pods"}},
		"fewer are listed": {web(6, 2, 6), 2, 0, numbers{plan.Removes, 4, 6, 6, 4, 67, false}, ptr.To[int32](3),
			[]string{"2 ready pods listed, the status of deployment default/web says 6: the larger share at risk is taken", "removes 4 of 6 pods"}},
		"none is listed, to zero": {web(2, 0, 2), 0, 0, numbers{plan.Removes, 2, 2, 2, 2, 100, false}, ptr.To[int32](1),
			[]string{"removes all 2 pods: nothing serves any more", "0 ready pods listed, the status of deployment default/web says 2: the larger share at risk is taken"}},
		"more are listed": {web(6, 6, 1), 1, 0, numbers{plan.Removes, 5, 6, 6, 5, 84, false}, ptr.To[int32](3),
			[]string{"6 ready pods listed, the status of deployment default/web says 1: the larger share at risk is taken", "removes 5 of 6 pods"}},
		"the memory beside them": {web(6, 0, 6), 3, 12, numbers{plan.Removes, 3, 6, 6, 3, 75, false}, nil,
			[]string{
				"0 ready pods listed, the status of deployment default/web says 6: the larger share at risk is taken", "removes 3 of 6 pods",
				"12 ready in the last 10 minutes, 6 now: the share is of the 12",
			}},
		"none is listed in the middle of a rollout": {
			web(6, 0, 6, func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 2 }), 5, 0, numbers{plan.Removes, 1, 6, 6, 2, 34, false}, nil,
			[]string{"0 ready pods listed, the status of deployment default/web says 6: the larger share at risk is taken", "removes 1 of 6 pods"}},
		"fewer are listed in the middle of a rollout: they are worse": {
			web(40, 30, 40, func(d *appsv1.Deployment) { d.Status.UpdatedReplicas, d.Spec.Paused = 9, true }), 30, 0, numbers{plan.Removes, 0, 30, 30, 12, 40, false}, nil,
			[]string{"30 ready pods listed, the status of deployment default/web says 40: the larger share at risk is taken", "removes 0 of 30 pods"}},
		"more than the strategy wants, and paused": {
			web(4, 0, 10, func(d *appsv1.Deployment) {
				d.Spec.Strategy, d.Spec.Paused, d.Status.UpdatedReplicas = rollingUpdate("0", "1"), true, 1
			}), 3, 0, numbers{plan.Removes, 1, 10, 10, 7, 70, false}, nil,
			[]string{"0 ready pods listed, the status of deployment default/web says 10: the larger share at risk is taken", "removes 1 of 10 pods"}},
		"restart, none is listed": {web(4, 0, 4), -1, 0, numbers{plan.Replaces, 4, 4, 4, 1, 25, true}, nil,
			[]string{"0 ready pods listed, the status of deployment default/web says 4: the larger share at risk is taken", "replaces 4 of 4 pods: at least 3 of 4 stay available, at most 5 at once"}},
		"recreate, none is listed": {web(4, 0, 4, recreate), -1, 0, numbers{plan.Replaces, 4, 4, 4, 4, 100, true}, nil,
			[]string{"stops all 4 pods before a new one starts (Recreate): an outage until new ones are ready", "0 ready pods listed, the status of deployment default/web says 4: the larger share at risk is taken"}},
		"statefulset, none is listed": {set(3, 0, 0, 3), 1, 0, numbers{plan.Removes, 2, 3, 3, 2, 67, false}, ptr.To[int32](2),
			[]string{"0 ready pods listed, the status of statefulset default/db says 3: the larger share at risk is taken", "removes 2 of 3 pods"}},
		"statefulset, none is listed, to zero": {set(3, 0, 0, 3), 0, 0, numbers{plan.Removes, 3, 3, 3, 3, 100, false}, ptr.To[int32](2),
			[]string{"removes all 3 pods: nothing serves any more", "0 ready pods listed, the status of statefulset default/db says 3: the larger share at risk is taken"}},
		"statefulset, those not listed may be the ones that go": {set(4, 2, 2, 4), 2, 0, numbers{plan.Removes, 2, 4, 4, 2, 50, false}, nil,
			[]string{"2 ready pods listed, the status of statefulset default/db says 4: the larger share at risk is taken", "removes 2 of 4 pods"}},
		"statefulset, fewer by its status": {set(4, 4, 4, 2), 2, 0, numbers{plan.Removes, 2, 4, 2, 2, 100, false}, ptr.To[int32](3),
			[]string{"4 ready pods listed, the status of statefulset default/db says 2: the larger share at risk is taken", "removes 2 of 4 pods: db-3 then db-2"}},
		"statefulset restart, none is listed": {set(3, 0, 0, 3), -1, 0, numbers{plan.Replaces, 3, 3, 3, 1, 34, true}, nil,
			[]string{"0 ready pods listed, the status of statefulset default/db says 3: the larger share at risk is taken", "replaces 3 of 3 pods: at least 2 of 3 stay available, at most 3 at once"}},
		"statefulset restart from a partition, none is listed": {
			set(5, 0, 0, 5, func(s *appsv1.StatefulSet) {
				s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](3), MaxUnavailable: ptr.To(intstr.FromInt32(4))}
			}), -1, 0, numbers{plan.Replaces, 2, 5, 5, 2, 40, true}, nil,
			[]string{"0 ready pods listed, the status of statefulset default/db says 5: the larger share at risk is taken", "replaces 2 of 5 pods: at least 1 of 5 stay available, at most 5 at once"}},
		"daemonset, none is listed": {agents(0, 5, "3"), -1, 0, numbers{plan.Replaces, 5, 5, 5, 3, 60, true}, nil,
			[]string{"0 ready pods listed, the status of daemonset default/agent says 5: the larger share at risk is taken", "replaces 5 of 5 pods: at least 2 of 5 stay available, at most 5 at once"}},
		"they agree": {web(6, 6, 6), 3, 0, numbers{plan.Removes, 3, 6, 6, 3, 50, false}, nil, []string{"removes 3 of 6 pods"}},
		"they agree but for a terminating one": {func(w *world) plan.Target {
			w.pods(webSet, 1, 0, func(_ int, p *plan.Pod) { p.Name, p.Terminating = "ending", true })
			return web(6, 5, 6)(w)
		}, 4, 0, numbers{plan.Removes, 1, 5, 5, 1, 20, false}, nil, []string{"removes 1 of 5 pods"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.in.Peak = func(uid string) int { return map[string]int{"uid-1": tc.peak}[uid] }
			target := tc.target(w)
			if tc.to < 0 {
				w.restart(target)
			} else {
				w.scale(target, tc.to)
			}
			e := w.compute()
			if diff := cmp.Diff(tc.want, numbersOf(e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLargest, e.Blast.Largest); diff != "" {
				t.Errorf("Largest (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLines, e.Blast.Lines); diff != "" {
				t.Errorf("Lines (-want +got):\n%s", diff)
			}
		})
	}
}

// Which Step is first makes no difference to what is ready.
func TestReadinessOfSeveralSteps(t *testing.T) {
	note := func(target plan.Target) plan.Step {
		return plan.Step{Verb: plan.Patch, Target: target, Optional: true, Patch: []plan.Op{{Op: "add", Path: "/metadata/annotations/a"}}}
	}
	for name, steps := range map[string]func(*world, plan.Target){
		"note first":   func(w *world, d plan.Target) { w.step(note(d)).scale(d, 2) },
		"note last":    func(w *world, d plan.Target) { w.scale(d, 2).step(note(d)) },
		"delete first": func(w *world, d plan.Target) { w.gone(plan.Delete, plan.Fail, "web-5f7-0").scale(d, 3) },
		"delete last":  func(w *world, d plan.Target) { w.scale(d, 3).gone(plan.Delete, plan.Fail, "web-5f7-0") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).pods(webSet, 4, 4)
			d := deployment(9, appsv1.DeploymentStrategy{})
			d.Status = appsv1.DeploymentStatus{Replicas: 9, UpdatedReplicas: 9, ReadyReplicas: 9,
				Conditions: []appsv1.DeploymentCondition{{Type: "Progressing", Reason: "NewReplicaSetAvailable"}}}
			target := w.live("deployments", d)
			steps(w, target)
			got := w.compute().Blast.AtRisk
			want := plan.Risk{Owner: "Deployment/default/web", UID: got.UID, Ready: 9, Peak: 9, Missing: 7, Percent: 78}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("AtRisk (-want +got):\n%s", diff)
			}
		})
	}
}

// A status that speaks of an older spec proves nothing that would make the share smaller.
func TestStatusBehindItsGeneration(t *testing.T) {
	complete := []appsv1.DeploymentCondition{{Type: "Progressing", Reason: "NewReplicaSetAvailable"}}
	web := func(w *world, minReady int32, observed int64) plan.Target {
		d := deployment(6, rollingUpdate("25%", "25%"))
		d.Generation, d.Spec.MinReadySeconds = 2, minReady
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: 6, UpdatedReplicas: 6, ReadyReplicas: 6, AvailableReplicas: 6, Conditions: complete}
		return w.pods(webSet, 6, 6).live("deployments", d)
	}
	agents := func(w *world, observed int64) plan.Target {
		return w.pods(agent, 5, 5).live("daemonsets", &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent", UID: "uid-1", Generation: 2},
			Spec: appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: "RollingUpdate",
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromString("50%"))}}},
			Status: appsv1.DaemonSetStatus{ObservedGeneration: observed, DesiredNumberScheduled: 10, NumberReady: 5}})
	}
	for name, tc := range map[string]struct {
		steps    func(*world)
		want     numbers
		wantLine string
	}{
		"scale, seen":                          {func(w *world) { w.scale(web(w, 0, 2), 3) }, numbers{plan.Removes, 3, 6, 6, 3, 50, false}, ""},
		"scale, behind":                        {func(w *world) { w.scale(web(w, 0, 1), 3) }, numbers{plan.Removes, 3, 6, 6, 4, 67, false}, "the status of deployment default/web is behind its spec: a rollout may be going on"},
		"restart with minReadySeconds, seen":   {func(w *world) { w.restart(web(w, 30, 2)) }, numbers{plan.Replaces, 6, 6, 6, 1, 17, true}, ""},
		"restart with minReadySeconds, behind": {func(w *world) { w.restart(web(w, 30, 1)) }, numbers{plan.Replaces, 6, 6, 6, 6, 100, true}, ""},
		"daemonset of 10, seen":                {func(w *world) { w.restart(agents(w, 2)) }, numbers{plan.Replaces, 5, 5, 5, 0, 0, true}, ""},
		"daemonset of 10 or 5, behind":         {func(w *world) { w.restart(agents(w, 1)) }, numbers{plan.Replaces, 5, 5, 5, 3, 60, true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.steps(w)
			e := w.compute()
			if diff := cmp.Diff(tc.want, numbersOf(e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			wantLine(t, e, tc.wantLine)
		})
	}
}

// spec.replicas costs nothing where the first pod never becomes ready.
func TestTwoBillionReplicas(t *testing.T) {
	const many = 2_000_000_000
	w := newWorld(t).pods(db, 4, 4)
	set := statefulSet(many, func(s *appsv1.StatefulSet) {
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenScaled: "Delete"}
		s.Status.ReadyReplicas = 4
	})
	e := w.scale(w.live("statefulsets", set), 0).compute()
	if diff := cmp.Diff(ptr.To[int32](2), e.Blast.Largest); diff != "" {
		t.Errorf("Largest (-want +got):\n%s", diff)
	}
	if n := len(e.Blast.Losses); n != maxClaims+1 || e.Blast.Losses[0] != "volume claim default/data-db-1999999999" || e.Blast.Losses[n-1] != "1999999900 volume claims more of statefulset default/db" {
		t.Errorf("%d losses, %q to %q", n, e.Blast.Losses[0], e.Blast.Losses[n-1])
	}
	wantLine(t, e, "deletes 2000000000 volume claims with the data: data-db-1999999999, data-db-1999999998, data-db-1999999997, data-db-1999999996 and 1999999996 more")
}

// The largest step is the largest: one pod fewer would not pass.
func TestLargestIsTheLargest(t *testing.T) {
	for from := int32(2); from < 40; from++ {
		for _, limit := range []int{1, 10, 33, 50, 99} {
			w := newWorld(t).pods(webSet, int(from), int(from))
			w.in.MaxPercent = limit
			d := deployment(from, appsv1.DeploymentStrategy{})
			d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.ReadyReplicas = from, from, from
			l := w.scale(w.live("deployments", d), 0).compute().Blast.Largest
			want := (int(from)*(100-limit) + 99) / 100 // stay at least
			got := int(from)                           // none passes
			if l != nil {
				got = int(*l)
			}
			if got != want {
				t.Errorf("%d at %d %%: replicas %d, want %d", from, limit, got, want)
			}
		}
	}
}

// What a plan does beside what is not known lends it no excuse.
func TestUnknownIsNotReplaced(t *testing.T) {
	w := newWorld(t).pods(webSet, 1, 1)
	d := deployment(1, rollingUpdate("0", "1"))
	d.Status.ReadyReplicas = 1
	target := w.live("deployments", d)
	w.restart(target).step(plan.Step{Verb: plan.Patch, Target: target, Patch: []plan.Op{{Op: "replace", Path: "/spec/selector"}}})
	want := plan.Risk{Owner: "Deployment/default/web", UID: "uid-1", Ready: 1, Peak: 1, Missing: 1, Percent: 100}
	if diff := cmp.Diff(want, w.compute().Blast.AtRisk); diff != "" {
		t.Errorf("AtRisk (-want +got):\n%s", diff)
	}
}

// The labels of a ReplicaSet decide which Deployment it belongs to.
func TestLabelsOfAReplicaSet(t *testing.T) {
	w := newWorld(t)
	target := w.live("replicasets", &appsv1.ReplicaSet{ObjectMeta: meta("web-5f7")})
	for path, want := range map[string]effect{"/metadata/labels/app": unknown, "/metadata/labels": unknown, "/metadata/annotations/a": nothing} {
		s := plan.Step{Verb: plan.Patch, Target: target, Patch: []plan.Op{{Op: "ensure", Path: path}}}
		if got := effectsOf([]plan.Step{s}, w.in.Targets); got[0] != want {
			t.Errorf("%s: effect %d, want %d", path, got[0], want)
		}
	}
}

// Only what serves now is capacity beside a pod that goes.
func TestSiblingsThatDoNotServe(t *testing.T) {
	stranger := plan.Owner{Kind: "StatefulSet", Name: "db", UID: "uid-of-another-group"}
	for name, tc := range map[string]struct {
		add  func(*world)
		want numbers
	}{
		"none": {func(*world) {}, numbers{plan.Evicts, 2, 3, 3, 2, 67, true}},
		"failed, and still says ready": {func(w *world) {
			w.pods(db, 3, 3, func(i int, p *plan.Pod) { p.Name, p.Phase = fmt.Sprintf("f-%d", i), "Failed" })
		}, numbers{plan.Evicts, 2, 3, 3, 2, 67, true}},
		"terminating": {func(w *world) {
			w.pods(db, 3, 0, func(i int, p *plan.Pod) { p.Name, p.Terminating = fmt.Sprintf("t-%d", i), true })
		}, numbers{plan.Evicts, 2, 3, 3, 2, 67, true}},
		"of a namesake": {func(w *world) { w.pods(stranger, 3, 3, func(i int, p *plan.Pod) { p.Name = fmt.Sprintf("s-%d", i) }) }, numbers{plan.Evicts, 2, 3, 3, 2, 67, true}},
		"of another namespace": {func(w *world) {
			w.pods(db, 3, 3, func(_ int, p *plan.Pod) { p.Namespace, p.Name = "other", "o-"+p.Name })
		}, numbers{plan.Evicts, 2, 3, 3, 2, 67, true}},
		"of the same labels": {func(w *world) {
			w.pods(plan.Owner{}, 3, 3, func(i int, p *plan.Pod) { p.Name = fmt.Sprintf("bare-%d", i) })
		}, numbers{plan.Evicts, 2, 3, 3, 2, 67, true}},
		"siblings": {func(w *world) { w.pods(db, 1, 1, func(_ int, p *plan.Pod) { p.Name = "db-3" }) }, numbers{plan.Evicts, 2, 4, 4, 2, 50, true}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).pods(db, 3, 3)
			tc.add(w)
			e := w.gone(plan.Delete, plan.Fail, "db-0", "db-1").compute()
			if diff := cmp.Diff(tc.want, numbersOf(e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A budget that covers several owners may let go of more of one when the pods of the
// others become healthy: that it allows none now bounds nothing then.
func TestOneBudgetOfSeveralOwners(t *testing.T) {
	for name, tc := range map[string]struct {
		web, webReady, db, dbReady int
		healthy, desired, allowed  int
		want                       int // of web's, at once
	}{
		"db recovers, and both of web go":       {2, 2, 2, 0, 2, 2, 0, 2},
		"one of web is needed then":             {2, 2, 2, 0, 2, 3, 0, 1},
		"all of web are needed then":            {3, 3, 2, 0, 3, 5, 0, 0},
		"what it allows now, at least":          {3, 3, 2, 2, 5, 3, 2, 2},
		"those of web that recover serve":       {4, 2, 1, 0, 2, 3, 0, 0},
		"one that is not ready uses nothing up": {2, 1, 0, 0, 1, 0, 1, 1},
		"it has not seen the third of web yet":  {3, 3, 0, 0, 2, 2, 0, 1},
		"it has seen one more than the list":    {3, 3, 0, 0, 4, 3, 1, 1},
		"web alone recovers: as many serve":     {3, 2, 0, 0, 2, 2, 0, 0},
		"no controller: it never counts them":   {2, 2, 2, 2, 4, 0, 0, 0},
		"those of web not ready are no lost":    {4, 1, 4, 0, 1, 1, 0, 1},
		"the need is above what there is of db": {4, 4, 1, 1, 5, 4, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).nodes("n1", "n2").pods(webSet, tc.web, tc.webReady).pods(db, tc.db, tc.dbReady)
			w.budget("all", func(b *plan.Budget) { b.Healthy, b.Desired, b.Allowed = tc.healthy, tc.desired, tc.allowed })
			var names []string
			for i := range tc.web {
				names = append([]string{fmt.Sprintf("web-5f7-%d", i)}, names...) // ready ones last
			}
			for _, r := range w.cordon("n1").gone(plan.Evict, plan.Wait, names...).compute().Risks {
				if strings.HasPrefix(r.Owner, "Deployment/") && r.Missing != tc.want {
					t.Errorf("%d of %d missing, want %d", r.Missing, r.Ready, tc.want)
				}
			}
		})
	}
}
