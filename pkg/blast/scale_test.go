package blast

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

func TestScaleDeployment(t *testing.T) {
	for name, tc := range map[string]struct {
		from, to    int32
		pods, ready int
		peak        int
		want        numbers
		wantLargest *int32
		wantLine    string
	}{
		"up":                          {from: 2, to: 3, pods: 2, ready: 2, want: numbers{plan.Adds, 1, 2, 2, 0, 0, false}, wantLine: "adds 1 pod to 2"},
		"from nothing":                {from: 0, to: 3, want: numbers{plan.Adds, 3, 0, 0, 0, 0, false}},
		"6 to 1 at 50 names 3":        {from: 6, to: 1, pods: 6, ready: 6, want: numbers{plan.Removes, 5, 6, 6, 5, 84, false}, wantLargest: ptr.To[int32](3), wantLine: "removes 5 of 6 pods"},
		"3 to 0 at 50 names 2":        {from: 3, to: 0, pods: 3, ready: 3, want: numbers{plan.Removes, 3, 3, 3, 3, 100, false}, wantLargest: ptr.To[int32](2), wantLine: "removes all 3 pods: nothing serves any more"},
		"within the limit":            {from: 6, to: 3, pods: 6, ready: 6, want: numbers{plan.Removes, 3, 6, 6, 3, 50, false}},
		"1 to 0 has no smaller step":  {from: 1, to: 0, pods: 1, ready: 1, want: numbers{plan.Removes, 1, 1, 1, 1, 100, false}, wantLine: "removes the only pod: nothing serves any more"},
		"not ready ones go first":     {from: 6, to: 3, pods: 6, ready: 3, want: numbers{plan.Removes, 3, 6, 3, 0, 0, false}, wantLine: "removes 3 of 6 pods, those that are not ready first (3 are ready)"},
		"more than those not ready":   {from: 6, to: 2, pods: 6, ready: 4, want: numbers{plan.Removes, 4, 6, 4, 2, 50, false}},
		"none is ready":               {from: 3, to: 0, pods: 3, want: numbers{plan.Removes, 3, 3, 0, 0, 0, false}},
		"pods that quota never made":  {from: 6, to: 4, pods: 3, ready: 3, want: numbers{plan.Removes, 0, 3, 3, 0, 0, false}},
		"a peak that hides in 6 of 3": {from: 3, to: 2, pods: 3, ready: 3, peak: 6, want: numbers{plan.Removes, 1, 3, 3, 1, 67, false}, wantLine: "6 ready in the last 10 minutes, 3 now: the share is of the 6"},
		"a peak, nothing missing":     {from: 3, to: 2, pods: 3, ready: 2, peak: 6, want: numbers{plan.Removes, 1, 3, 2, 0, 0, false}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).pods(webSet, tc.pods, tc.ready)
			w.in.Peak = func(uid string) int { return map[string]int{"uid-1": tc.peak}[uid] }
			d := deployment(tc.from, appsv1.DeploymentStrategy{})
			d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.ReadyReplicas = int32(tc.pods), int32(tc.pods), int32(tc.ready)
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: "Progressing", Reason: "NewReplicaSetAvailable"}}
			e := w.scale(w.live("deployments", d), tc.to).compute()
			if diff := cmp.Diff(tc.want, numbersOf(e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLargest, e.Blast.Largest); diff != "" {
				t.Errorf("Largest (-want +got):\n%s", diff)
			}
			if got := e.Blast.AtRisk; got.UID != "uid-1" || got.Owner != "Deployment/default/web" || got.Peak != max(tc.peak, tc.ready) {
				t.Errorf("AtRisk %+v", got)
			}
			wantLine(t, e, tc.wantLine)
		})
	}
}

// The Deployment above a deleted pod is known by its name only; the memory of either key
// counts for both.
func TestPeakByName(t *testing.T) {
	w := newWorld(t).pods(webSet, 3, 3)
	w.in.Peak = func(key string) int { return map[string]int{"Deployment/default/web": 6}[key] }
	e := w.scale(w.live("deployments", deployment(3, appsv1.DeploymentStrategy{})), 2).compute()
	want := plan.Risk{Owner: "Deployment/default/web", UID: "Deployment/default/web", Ready: 3, Peak: 6, Missing: 1, Percent: 67}
	if diff := cmp.Diff(want, e.Blast.AtRisk); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestScaleReplicaSet(t *testing.T) {
	rs := plan.Owner{Kind: "ReplicaSet", Name: "solo", UID: "uid-1"}
	w := newWorld(t).pods(rs, 4, 3).pods(webSet, 9, 9)
	target := w.live("replicasets", &appsv1.ReplicaSet{ObjectMeta: meta("solo"), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](4)}})
	if diff := cmp.Diff(numbers{plan.Removes, 2, 4, 3, 1, 34, false}, numbersOf(w.scale(target, 2).compute())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// SC-05 and what else a StatefulSet does: the highest ordinal goes first, ready or not.
func TestScaleStatefulSet(t *testing.T) {
	claims := func(names ...string) func(*appsv1.StatefulSet) {
		return func(s *appsv1.StatefulSet) {
			for _, n := range names {
				s.Spec.VolumeClaimTemplates = append(s.Spec.VolumeClaimTemplates, corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: n}})
			}
		}
	}
	whenScaled := func(p appsv1.PersistentVolumeClaimRetentionPolicyType) func(*appsv1.StatefulSet) {
		return func(s *appsv1.StatefulSet) {
			s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenScaled: p}
		}
	}
	parallel := func(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = "Parallel" }
	for name, tc := range map[string]struct {
		from, to    int32
		edits       []func(*appsv1.StatefulSet)
		notReady    int // ordinal
		start       int
		want        numbers
		wantLargest *int32
		wantLines   []string
		wantLosses  []string
		wantPerson  []string
		wantClass   plan.Class
	}{
		"SC-05 Delete": {
			from: 3, to: 1, notReady: -1, edits: []func(*appsv1.StatefulSet){claims("data"), whenScaled("Delete")},
			want: numbers{plan.Removes, 2, 3, 3, 2, 67, false}, wantLargest: ptr.To[int32](2), wantClass: plan.Irreversible,
			wantLines:  []string{"deletes 2 volume claims with the data: data-db-2, data-db-1", "removes 2 of 3 pods: db-2 then db-1"},
			wantLosses: []string{"volume claim default/data-db-2", "volume claim default/data-db-1"},
			wantPerson: []string{"statefulset default/db loses 2 volume claims with the data (whenScaled: Delete)"},
		},
		"SC-05 Retain": {
			from: 3, to: 1, notReady: -1, edits: []func(*appsv1.StatefulSet){claims("data"), whenScaled("Retain")},
			want: numbers{plan.Removes, 2, 3, 3, 2, 67, false}, wantLargest: ptr.To[int32](2), wantClass: plan.Reversible,
			wantLines: []string{"removes 2 of 3 pods: db-2 then db-1", "keeps 2 volume claims: data-db-2, data-db-1"},
		},
		"Delete without a claim template": {
			from: 3, to: 2, notReady: -1, edits: []func(*appsv1.StatefulSet){whenScaled("Delete")},
			want: numbers{plan.Removes, 1, 3, 3, 1, 34, false}, wantClass: plan.Reversible, wantLines: []string{"removes 1 of 3 pods: db-2"},
		},
		"ordinals that start at 5, two templates": {
			from: 2, to: 1, start: 5, notReady: -1, edits: []func(*appsv1.StatefulSet){claims("data", "log"), whenScaled("Delete")},
			want: numbers{plan.Removes, 1, 2, 2, 1, 50, false}, wantClass: plan.Irreversible,
			wantLines:  []string{"deletes 2 volume claims with the data: data-db-6, log-db-6", "removes 1 of 2 pods: db-6"},
			wantLosses: []string{"volume claim default/data-db-6", "volume claim default/log-db-6"},
			wantPerson: []string{"statefulset default/db loses 2 volume claims with the data (whenScaled: Delete)"},
		},
		"the one that is not ready goes": {
			from: 3, to: 2, notReady: 2, want: numbers{plan.Removes, 1, 3, 2, 0, 0, false}, wantClass: plan.Reversible, wantLines: []string{"removes 1 of 3 pods: db-2"},
		},
		"the one that is not ready stays": {
			from: 3, to: 1, notReady: 0, want: numbers{plan.Removes, 2, 3, 2, 2, 100, false}, wantLargest: ptr.To[int32](2), wantClass: plan.Reversible,
			wantLines: []string{"removes 2 of 3 pods: db-2 then db-1"},
		},
		"many at once": {
			from: 12, to: 2, notReady: -1, edits: []func(*appsv1.StatefulSet){parallel},
			want: numbers{plan.Removes, 10, 12, 12, 10, 84, false}, wantLargest: ptr.To[int32](6), wantClass: plan.Reversible,
			wantLines: []string{"removes 10 of 12 pods at once: db-11, db-10, db-9, db-8, db-7, db-6 and 4 more"},
		},
		"to zero": {
			from: 2, to: 0, notReady: -1, want: numbers{plan.Removes, 2, 2, 2, 2, 100, false}, wantLargest: ptr.To[int32](1), wantClass: plan.Reversible,
			wantLines: []string{"removes all 2 pods, db-1 then db-0: nothing serves any more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).pods(db, int(tc.from), int(tc.from), func(i int, p *plan.Pod) {
				p.Name, p.Ready = fmt.Sprintf("db-%d", tc.start+i), i != tc.notReady
			})
			set := statefulSet(tc.from, func(s *appsv1.StatefulSet) {
				s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: int32(tc.start)}
				s.Status.ReadyReplicas = int32(readyOf(w.in.Facts.Pods))
				for _, e := range tc.edits {
					e(s)
				}
			})
			e := w.scale(w.live("statefulsets", set), tc.to).compute()
			if diff := cmp.Diff(tc.want, numbersOf(e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLargest, e.Blast.Largest); diff != "" {
				t.Errorf("Largest (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLines, e.Blast.Lines); diff != "" {
				t.Errorf("Lines (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLosses, e.Blast.Losses); diff != "" {
				t.Errorf("Losses (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantPerson, e.NeedsPerson); diff != "" {
				t.Errorf("NeedsPerson (-want +got):\n%s", diff)
			}
			if e.Class != tc.wantClass || e.Blast.Then != "gone" {
				t.Errorf("class %s, then %q", e.Class, e.Blast.Then)
			}
		})
	}
}

func TestScaleLosesEmptyDirs(t *testing.T) {
	dirs := func(_ int, p *plan.Pod) { p.EmptyDirs = []string{"cache", "shm/Memory"} }
	w := newWorld(t).pods(db, 3, 3, dirs)
	e := w.scale(w.live("statefulsets", statefulSet(3, nil)), 2).compute()
	wantLine(t, e, "emptyDir data is lost: db-2 (cache, shm/Memory)")
	if diff := cmp.Diff([]string{"emptyDir data of pod default/db-2: cache, shm/Memory"}, e.Blast.Losses); diff != "" {
		t.Errorf("Losses (-want +got):\n%s", diff)
	}
	w = newWorld(t).pods(webSet, 3, 3, dirs)
	e = w.scale(w.live("deployments", deployment(3, appsv1.DeploymentStrategy{})), 2).compute()
	wantLine(t, e, "emptyDir data of every removed pod is lost: cache, shm/Memory")
	if diff := cmp.Diff([]string{"emptyDir data of the removed pods of deployment default/web: cache, shm/Memory"}, e.Blast.Losses); diff != "" {
		t.Errorf("Losses (-want +got):\n%s", diff)
	}
	if e.Class != plan.Reversible {
		t.Errorf("class %s", e.Class)
	}
}

// SC-07 and the worst case in the middle of a rollout.
func TestScaleMidRollout(t *testing.T) {
	for name, tc := range map[string]struct {
		from, to           int32
		surge, unavailable string
		old, fresh         int
		freshReady         int
		paused             bool
		want               numbers
		wantLine           string
	}{
		"SC-07 40 to 30, paused": {40, 30, "3", "2", 38, 5, 5, true, numbers{plan.Removes, 10, 43, 43, 10, 24, false},
			"mid-rollout: web-5f7 38 → 29, web-9c2 5 → 4, until the rollout is resumed"},
		"SC-07 resumed goes on to 28": {40, 30, "3", "2", 38, 5, 5, false, numbers{plan.Removes, 10, 43, 43, 15, 35, false},
			"mid-rollout: web-5f7 38 → 29, web-9c2 5 → 4, then the rollout goes on"},
		"the new ones are not ready": {40, 30, "3", "2", 38, 5, 0, true, numbers{plan.Removes, 10, 43, 38, 10, 27, false},
			"mid-rollout: web-5f7 38 → 29, web-9c2 5 → 4, until the rollout is resumed"},
		"the surge shrinks, too": {40, 20, "25%", "25%", 40, 10, 0, true, numbers{plan.Removes, 25, 50, 40, 25, 63, false},
			"mid-rollout: web-5f7 40 → 20, web-9c2 10 → 5, until the rollout is resumed"},
		"new ones that cannot be made": {40, 20, "25%", "25%", 40, 0, 0, true, numbers{plan.Removes, 20, 40, 40, 25, 63, false}, "removes 20 of 40 pods"},
		"more than the strategy wants": {40, 30, "0", "1", 40, 10, 10, true, numbers{plan.Removes, 20, 50, 50, 20, 40, false},
			"mid-rollout: web-5f7 40 → 24, web-9c2 10 → 6, until the rollout is resumed"},
		"to zero": {4, 0, "1", "1", 3, 2, 2, false, numbers{plan.Removes, 5, 5, 5, 5, 100, false},
			"mid-rollout: web-5f7 3 → 0, web-9c2 2 → 0, then the rollout goes on"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).pods(webSet, tc.old, tc.old).pods(newSet, tc.fresh, tc.freshReady)
			d := deployment(tc.from, rollingUpdate(tc.surge, tc.unavailable))
			d.Spec.Paused = tc.paused
			d.Status.Replicas, d.Status.UpdatedReplicas = int32(tc.old+tc.fresh), int32(tc.fresh)
			e := w.scale(w.live("deployments", d), tc.to).compute()
			if diff := cmp.Diff(tc.want, numbersOf(e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			wantLine(t, e, tc.wantLine)
		})
	}
	// A new ReplicaSet that cannot make its pods does not show in them, only in the status.
	w := newWorld(t).pods(webSet, 9, 9)
	d := deployment(10, rollingUpdate("3", "1"))
	d.Status.Replicas = 9
	e := w.scale(w.live("deployments", d), 8).compute()
	if diff := cmp.Diff(numbers{plan.Removes, 1, 9, 9, 2, 23, false}, numbersOf(e)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
