package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

type execution struct {
	Outcome  plan.Outcome       `json:"outcome"`
	Replayed bool               `json:"replayed"`
	Result   plan.Result        `json:"result"`
	Current  *plan.Verification `json:"current"`
}

type planned struct {
	Status   string     `json:"status"`
	Blast    plan.Blast `json:"blast"`
	Radius   []string   `json:"blast_radius"`
	Losses   []string   `json:"losses"`
	Stays    []string   `json:"stays"`
	Warnings []string   `json:"warnings"`
	Class    plan.Class `json:"class"`
	Confirm  string     `json:"confirm"`
}

func TestRestartRolls(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 3)
	statefulSet(t, ns, "db", 3)
	daemonSet(t, ns, "agent")
	for _, tc := range []struct{ kind, name string }{{"deployment", "web"}, {"statefulset", "db"}, {"daemonset", "agent"}} {
		t.Run(tc.kind, func(t *testing.T) {
			before := pods(t, ns, tc.name)
			args := s.Plan("rollout_restart", of(ns, tc.kind, tc.name))
			got := harness.Into[execution](t, s.Must("rollout_restart", args))
			if got.Outcome != plan.Executed || got.Current == nil || got.Current.Verdict != plan.Verified {
				t.Fatalf("outcome %s, verification %+v", got.Outcome, got.Current)
			}
			old := uids(before)
			for _, p := range pods(t, ns, tc.name) {
				if old[string(p.UID)] && p.DeletionTimestamp == nil {
					t.Errorf("pod %s was not replaced", p.Name)
				}
			}
			again := harness.Into[execution](t, s.Must("rollout_restart", args))
			if diff := cmp.Diff(got.Result, again.Result); diff != "" || !again.Replayed {
				t.Errorf("replayed %t, result (-first +replay):\n%s", again.Replayed, diff)
			}
		})
	}
	d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || d.Annotations["kubernetes.io/change-cause"] != "a test" {
		t.Errorf("change-cause is %q, want the reason (%v)", d.Annotations["kubernetes.io/change-cause"], err)
	}
}

func TestScaleConverges(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 2)
	statefulSet(t, ns, "db", 2)
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "bare"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(2)), Selector: selector("bare"), Template: template("bare")},
	}
	if _, err := cp.Client.AppsV1().ReplicaSets(ns).Create(t.Context(), rs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ kind, name string }{{"deployment", "web"}, {"statefulset", "db"}, {"replicaset", "bare"}} {
		for _, to := range []int{4, 1} {
			got := harness.Into[execution](t, s.Do("scale", of(ns, tc.kind, tc.name).With("replicas", to)))
			if got.Outcome != plan.Executed || got.Current == nil || got.Current.Verdict != plan.Verified {
				t.Fatalf("%s to %d: outcome %s, verification %+v", tc.kind, to, got.Outcome, got.Current)
			}
			if n := len(pods(t, ns, tc.name)); n != to {
				t.Errorf("%s to %d: %d pods", tc.kind, to, n)
			}
		}
	}
	same := s.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 1))
	if got := harness.Into[planned](t, same); got.Status != "no change" || got.Confirm != "" {
		t.Errorf("a scale to the same number: status %q, confirm %q", got.Status, got.Confirm)
	}
	owned, err := cp.Client.AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil || len(owned.Items) == 0 {
		t.Fatal(err)
	}
	refused := s.Must("plan_scale", of(ns, "replicaset", owned.Items[0].Name).With("replicas", 3))
	if harness.Code(refused) != "owned_by_controller" || !strings.Contains(refused.Text, "Deployment/web") {
		t.Errorf("scale of an owned ReplicaSet: %s", refused.Text)
	}
}

// TestBlastTable is the table of the issue, at the default limits.
func TestBlastTable(t *testing.T) {
	ns := cp.Namespace(t)
	recreate := func(d *appsv1.Deployment) {
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	}
	noSurge := func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	}
	deployment(t, ns, "six", 6)
	deployment(t, ns, "four", 4, recreate)
	deployment(t, ns, "crashing", 1, func(d *appsv1.Deployment) { neverReady(&d.Spec.Template); noSurge(d) })
	deployment(t, ns, "single", 1, noSurge)
	statefulSet(t, ns, "alone", 1)
	for _, tc := range []struct {
		name     string
		flags    []string
		action   string
		args     harness.Args
		wantCode string // "" is a plan that its phrase executes, waits one that waits for a person
		wantText string
	}{
		{"six to one", nil, "scale", of(ns, "deployment", "six").With("replicas", 1), "blast_limit", "replicas: 3"},
		{"six to zero at 50", nil, "scale", of(ns, "deployment", "six").With("replicas", 0), "blast_limit", "replicas: 3"},
		{"six to zero at 100", []string{"--max-blast-percent", "100"}, "scale", of(ns, "deployment", "six").With("replicas", 0), "", "100 %"},
		{"six to three", nil, "scale", of(ns, "deployment", "six").With("replicas", 3), "", "50 %"},
		{"one to zero", nil, "scale", of(ns, "deployment", "single").With("replicas", 0), "waits", "1 of 1 ready pod may"},
		{"recreate", nil, "rollout_restart", of(ns, "deployment", "four"), "waits", "4 of 4 ready pods"},
		{"crash-looping singleton", nil, "rollout_restart", of(ns, "deployment", "crashing"), "", "at risk: nothing"},
		{"healthy singleton", nil, "rollout_restart", of(ns, "deployment", "single"), "", "the only ready pod: an outage until its replacement is ready"},
		{"healthy singleton of a StatefulSet", nil, "rollout_restart", of(ns, "statefulset", "alone"), "", "the only ready pod: an outage until its replacement is ready"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := start(t, tc.flags...).Must("plan_"+tc.action, tc.args)
			if tc.wantCode == "waits" {
				harness.Waits(t, got, tc.wantText)
				return
			}
			if harness.Code(got) != tc.wantCode || !strings.Contains(got.Text, tc.wantText) {
				t.Errorf("code %q, want %q; want %q in:\n%s", harness.Code(got), tc.wantCode, tc.wantText, got.Text)
			}
			if (got.Field("confirm") != "") != (tc.wantCode == "") {
				t.Errorf("confirm is %q with code %q", got.Field("confirm"), tc.wantCode)
			}
		})
	}
}

func TestHalvingTwiceIsNoWayAround(t *testing.T) {
	ns := cp.Namespace(t)
	deployment(t, ns, "web", 6)
	s := start(t)
	got := harness.Into[execution](t, s.Do("scale", of(ns, "deployment", "web").With("replicas", 3)))
	if got.Outcome != plan.Executed {
		t.Fatalf("6 to 3: %+v", got)
	}
	second := s.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 2))
	if harness.Code(second) != "blast_limit" || !strings.Contains(second.Text, "it passes at 2") || !strings.Contains(second.Text, "last 10 minutes") {
		t.Errorf("3 to 2: %s", second.Text)
	}
	// Another process with the same journal remembers too.
	other := harness.Start(t, cp, harness.Options{State: s.State})
	if again := other.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 2)); harness.Code(again) != "blast_limit" {
		t.Errorf("from another process: %s", again.Text)
	}
}

// TestRadiusOfCacheEqualsLiveList plans the same from caches and from live lists.
func TestRadiusOfCacheEqualsLiveList(t *testing.T) {
	ns := cp.Namespace(t)
	deployment(t, ns, "web", 5)
	s := start(t, wide...)
	args := of(ns, "deployment", "web").With("replicas", 2)
	radius := func() plan.Blast {
		b := harness.Into[planned](t, s.Must("plan_scale", args)).Blast
		b.Source = ""
		return b
	}
	var cached plan.Blast
	lab.Eventually(t, "a radius from the cache", func() (bool, error) {
		cached = harness.Into[planned](t, s.Must("plan_scale", args)).Blast
		return strings.Contains(cached.Source, "cache"), errors.New(cached.Source)
	})
	cached.Source = ""
	// Without permission to watch there is nothing but a list, made for this plan.
	live := harness.Start(t, cp, harness.Options{Config: accountWithout(t, "pods", "watch"), Args: wide})
	listed := harness.Into[planned](t, live.Must("plan_scale", args)).Blast
	listed.Source = ""
	if diff := cmp.Diff(listed, cached); diff != "" {
		t.Errorf("radius (-live list +cache):\n%s", diff)
	}
	if all := len(pods(t, ns, "web")); cached.Of != all || cached.AtRisk.Ready != all || cached.Pods != all-2 {
		t.Errorf("radius %+v, want %d of %d pods, all ready", cached, all-2, all)
	}
	// Right after a change the cache must not be behind.
	for i := range 5 {
		victim := pods(t, ns, "web")[0].Name
		if err := cp.Client.CoreV1().Pods(ns).Delete(t.Context(), victim, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		// By the pods themselves: right after the delete the Deployment's status is still
		// that of before.
		lab.Eventually(t, "5 ready again", func() (bool, error) {
			ready := 0
			for _, p := range pods(t, ns, "web") {
				if p.Name != victim && kube.PodFacts(&p).Ready {
					ready++
				}
			}
			return ready == 5, nil
		})
		var after plan.Blast
		lab.Eventually(t, "the Deployment's status to say what its pods say", func() (bool, error) {
			after = radius()
			return !strings.Contains(strings.Join(after.Lines, " "), "the status of"), nil
		})
		if diff := cmp.Diff(cached, after); diff != "" {
			t.Fatalf("round %d (-before +after):\n%s", i, diff)
		}
	}
}

func TestCase_RO_Rounding(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, wide...)
	percent := func(surge, unavailable string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.Parse(surge)), MaxUnavailable: ptr.To(intstr.Parse(unavailable))}
		}
	}
	for _, tc := range []struct {
		name               string
		replicas           int32
		surge, unavailable string
		wantMissing        int
	}{
		{"ro-01-1", 1, "25%", "25%", 0}, {"ro-01-3", 3, "25%", "25%", 0}, {"ro-01-4", 4, "25%", "25%", 1}, {"ro-01-7", 7, "25%", "25%", 1}, {"ro-01-10", 10, "25%", "25%", 2},
		{"ro-02-1", 1, "0", "25%", 1}, {"ro-02-3", 3, "0", "25%", 1}, {"ro-02-4", 4, "0", "25%", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			deployment(t, ns, tc.name, tc.replicas, percent(tc.surge, tc.unavailable))
			got := harness.Into[planned](t, s.Must("plan_rollout_restart", of(ns, "deployment", tc.name)))
			if got.Blast.AtRisk.Missing != tc.wantMissing || got.Blast.Pods != int(tc.replicas) {
				t.Errorf("missing %d of %d touched, want %d of %d", got.Blast.AtRisk.Missing, got.Blast.Pods, tc.wantMissing, tc.replicas)
			}
		})
	}
}

func TestCase_RO_05_Paused(t *testing.T) {
	ns := cp.Namespace(t)
	deployment(t, ns, "web", 1)
	if _, err := cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"paused":true}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	got := start(t, wide...).Must("plan_rollout_restart", of(ns, "deployment", "web"))
	if harness.Code(got) != "paused" {
		t.Errorf("restart of a paused deployment: %s", got.Text)
	}
}

func TestCase_SC_05_ClaimsAreDeleted(t *testing.T) {
	ns := cp.Namespace(t)
	set := func(when appsv1.PersistentVolumeClaimRetentionPolicyType) func(*appsv1.StatefulSet) {
		return func(s *appsv1.StatefulSet) {
			s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenScaled: when, WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType}
			s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: storage}},
				},
			}}
		}
	}
	create := func(name string, when appsv1.PersistentVolumeClaimRetentionPolicyType) {
		s := &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       appsv1.StatefulSetSpec{Replicas: ptr.To(int32(3)), Selector: selector(name), Template: template(name), ServiceName: name, PodManagementPolicy: appsv1.ParallelPodManagement},
		}
		set(when)(s)
		if _, err := cp.Client.AppsV1().StatefulSets(ns).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("db", appsv1.DeletePersistentVolumeClaimRetentionPolicyType)
	create("kept", appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	s := start(t, wide...)
	got := harness.Into[planned](t, s.Must("plan_scale", of(ns, "statefulset", "db").With("replicas", 1)))
	if got.Class != plan.Irreversible || len(got.Losses) != 2 {
		t.Errorf("class %s, losses %v; want irreversible and two claims", got.Class, got.Losses)
	}
	strict := start(t, "--max-blast-percent", "100")
	harness.Waits(t, strict.Must("plan_scale", of(ns, "statefulset", "db").With("replicas", 1)), "loses 2 volume claims with the data")
	twin := harness.Into[planned](t, s.Must("plan_scale", of(ns, "statefulset", "kept").With("replicas", 1)))
	if twin.Class != plan.Reversible || len(twin.Losses) != 0 {
		t.Errorf("the twin that keeps its claims: class %s, losses %v", twin.Class, twin.Losses)
	}
}

// TestVerdicts shows each way in which a verification ends beside verified.
func TestVerdicts(t *testing.T) {
	ns := cp.Namespace(t)
	t.Run("RO-18 not observed", func(t *testing.T) {
		deployment(t, ns, "asleep", 2)
		s := start(t, append(wide, "--verify-timeout", "2s")...)
		if err := cp.PauseControllers(); err != nil {
			t.Fatal(err)
		}
		defer cp.ResumeControllers()
		got := harness.Into[execution](t, s.Do("rollout_restart", of(ns, "deployment", "asleep")))
		if got.Current.Verdict != plan.NotStarted {
			t.Errorf("verification %+v, want not_started", got.Current)
		}
	})
	t.Run("SC-18 unschedulable", func(t *testing.T) {
		deployment(t, ns, "nowhere", 0, func(d *appsv1.Deployment) { onNodes("no-such-node")(&d.Spec.Template) })
		s := impatient(t)
		got := harness.Into[execution](t, s.Do("scale", of(ns, "deployment", "nowhere").With("replicas", 2)))
		if got.Current.Verdict != plan.Unschedulable || !strings.Contains(got.Current.Reason, "0 of 2 available") {
			t.Errorf("verification %+v, want unschedulable with 0 of 2", got.Current)
		}
	})
	t.Run("RO-06 OnDelete ends at once", func(t *testing.T) {
		statefulSet(t, ns, "manual", 2, func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType })
		got := harness.Into[execution](t, start(t, wide...).Do("rollout_restart", of(ns, "statefulset", "manual")))
		if got.Current.Verdict != plan.Verified || !strings.Contains(got.Current.Reason, "0 of 2 pods at the new revision, strategy OnDelete") {
			t.Errorf("verification %+v", got.Current)
		}
	})
	t.Run("overridden", func(t *testing.T) {
		deployment(t, ns, "tug", 1, func(d *appsv1.Deployment) { neverReady(&d.Spec.Template) })
		s := start(t, wide...)
		args := s.Plan("scale", of(ns, "deployment", "tug").With("replicas", 3))
		done := make(chan execution)
		go func() { done <- harness.Into[execution](t, s.Must("scale", args)) }()
		lab.Eventually(t, "the write", func() (bool, error) {
			d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "tug", metav1.GetOptions{})
			return err == nil && *d.Spec.Replicas == 3 && eventOf(t, s.State, journal.EventExecute), err
		})
		if _, err := cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), "tug", types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := <-done; got.Current.Verdict != plan.Overridden {
			t.Errorf("verification %+v, want overridden", got.Current)
		}
	})
	t.Run("RO-10 reverted", func(t *testing.T) {
		deployment(t, ns, "operated", 2, func(d *appsv1.Deployment) { neverReady(&d.Spec.Template) })
		s := start(t, wide...)
		args := s.Plan("rollout_restart", of(ns, "deployment", "operated"))
		done := make(chan execution)
		go func() { done <- harness.Into[execution](t, s.Must("rollout_restart", args)) }()
		lab.Eventually(t, "the write", func() (bool, error) { return eventOf(t, s.State, journal.EventExecute), nil })
		if _, err := cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), "operated", types.JSONPatchType,
			[]byte(`[{"op":"remove","path":"/spec/template/metadata/annotations"}]`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := <-done; got.Current.Verdict != plan.Reverted {
			t.Errorf("verification %+v, want reverted", got.Current)
		}
	})
}

func eventOf(t *testing.T, state, event string) bool {
	for _, e := range harness.Events(t, state) {
		if e == event {
			return true
		}
	}
	return false
}
