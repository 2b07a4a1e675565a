package cluster

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	applyapps "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// The cases about rollouts that no other file of this tree has.

func fenceposts(surge, unavailable string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.Parse(surge)), MaxUnavailable: ptr.To(intstr.Parse(unavailable))}
	}
}

// wantRoll plans a restart and wants its numbers: of all pods so many stay, and so many
// are there at once.
func wantRoll(t *testing.T, s *harness.Server, args harness.Args, all, stay, most int) {
	t.Helper()
	p := wantPlanned(t, s, "rollout_restart", args,
		fmt.Sprintf("replaces %d of %s: at least %d of %d stay available, at most %d at once", all, plural(all), stay, all, most))
	if p.Blast.Pods != all || p.Blast.AtRisk.Missing != all-stay {
		t.Errorf("%d pods, %d missing; want %d and %d", p.Blast.Pods, p.Blast.AtRisk.Missing, all, all-stay)
	}
}

func plural(n int) string { return fmt.Sprintf("%d %s", n, plan.Plural(n, "pod")) }

// TestCase_RO_01: the surge rounds up, what is unavailable rounds down.
func TestCase_RO_01(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	for _, tc := range []struct{ replicas, wantStay, wantMost int }{
		{1, 1, 2}, {2, 2, 3}, {3, 3, 4}, {4, 3, 5}, {5, 4, 7}, {7, 6, 9}, {10, 8, 13},
	} {
		t.Run(fmt.Sprint(tc.replicas), func(t *testing.T) {
			name := fmt.Sprint("web-", tc.replicas)
			deployment(t, ns, name, int32(tc.replicas), fenceposts("25%", "25%"))
			wantRoll(t, s, of(ns, "deployment", name), tc.replicas, tc.wantStay, tc.wantMost)
		})
	}
}

// TestCase_RO_02: where both fenceposts come to zero, one pod is missing all the same.
func TestCase_RO_02(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	for _, tc := range []struct{ replicas, wantStay int }{{1, 0}, {3, 2}, {4, 3}} {
		t.Run(fmt.Sprint(tc.replicas), func(t *testing.T) {
			name := fmt.Sprint("web-", tc.replicas)
			deployment(t, ns, name, int32(tc.replicas), fenceposts("0", "25%"))
			wantRoll(t, s, of(ns, "deployment", name), tc.replicas, tc.wantStay, tc.replicas)
		})
	}
	wantPlanned(t, s, "rollout_restart", of(ns, "deployment", "web-1"), "the only ready pod: an outage until its replacement is ready")
	for _, zero := range []string{"0", "0%"} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "zero"}, Spec: appsv1.DeploymentSpec{Selector: selector("zero"), Template: template("zero")}}
		fenceposts(zero, zero)(d)
		if _, err := cp.Client.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("both fenceposts %s: %v, want a 422", zero, err)
		}
	}
}

// TestCase_RO_03: every controller rounds its own way.
func TestCase_RO_03(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	var nodes []string
	for i := range 5 {
		nodes = append(nodes, node(t, fmt.Sprint("case-ro-03-", i)))
	}
	quarter := ptr.To(intstr.FromString("25%"))
	daemonSet(t, ns, "agent", func(d *appsv1.DaemonSet) {
		onNodes(nodes...)(&d.Spec.Template)
		d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: quarter}
	})
	wantRoll(t, s, of(ns, "daemonset", "agent"), 5, 3, 5)
	for name, most := range map[string]*intstr.IntOrString{"quarter": quarter, "tenth": ptr.To(intstr.FromString("10%")), "unset": nil} {
		statefulSet(t, ns, name, 5, func(s *appsv1.StatefulSet) {
			onNodes(nodes...)(&s.Spec.Template)
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: most}
		})
		wantRoll(t, s, of(ns, "statefulset", name), 5, 4, 5)
	}
	deployment(t, ns, "web", 5, fenceposts("0", "25%"), func(d *appsv1.Deployment) { onNodes(nodes...)(&d.Spec.Template) })
	wantRoll(t, s, of(ns, "deployment", "web"), 5, 4, 5)
}

// TestCase_RO_04: Recreate stops every pod before a new one starts, which waits for a
// person at the defaults.
func TestCase_RO_04(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s, defaults := start(t, wide...), start(t)
	deployment(t, ns, "web", 4, func(d *appsv1.Deployment) {
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	})
	for action, args := range map[string]harness.Args{
		"rollout_restart": of(ns, "deployment", "web"),
		"set_image":       imageOf(ns, "web").With("image", "main:2"),
	} {
		p := wantPlanned(t, s, action, args, "stops all 4 pods before a new one starts (Recreate): an outage until new ones are ready")
		if p.Blast.Pods != 4 || p.Blast.AtRisk.Missing != 4 || p.Blast.AtRisk.Ready != 4 {
			t.Errorf("%s: radius %+v, want all 4 missing", action, p.Blast)
		}
		harness.Waits(t, defaults.Must("plan_"+action, args), "4 of 4 ready pods may be missing")
	}
}

// TestCase_RO_06: with OnDelete the template changes and no pod does.
func TestCase_RO_06(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	statefulSet(t, ns, "db", 3, func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType })
	daemonSet(t, ns, "agent", func(d *appsv1.DaemonSet) {
		d.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
	})
	for kind, name := range map[string]string{"statefulset": "db", "daemonset": "agent"} {
		before := uids(pods(t, ns, name))
		p := wantPlanned(t, s, "rollout_restart", of(ns, kind, name), "0 of 3 pods change until they are deleted (OnDelete)")
		if p.Blast.Pods != 0 || p.Blast.AtRisk.Missing != 0 {
			t.Errorf("%s: radius %+v, want none", name, p.Blast)
		}
		if reason := verified(t, s, "rollout_restart", of(ns, kind, name)); !strings.HasPrefix(reason, "template updated, 0 of 3 pods at the new revision, strategy OnDelete") {
			t.Errorf("%s: %s", name, reason)
		}
		if diff := cmp.Diff(before, uids(pods(t, ns, name))); diff != "" || len(before) != 3 {
			t.Errorf("%s: pods (-before +after):\n%s", name, diff)
		}
	}
}

// TestCase_RO_07: a partition leaves the highest ordinals to a roll.
func TestCase_RO_07(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	for _, tc := range []struct {
		partition int32
		wantLines []string
		wantGone  []string
	}{
		{2, []string{"replaces 1 of 3 pods: at least 2 of 3 stay available, at most 3 at once", "partition 2: of the pods only x2-2"}, []string{"x2-2"}},
		{1, []string{"replaces 2 of 3 pods: at least 2 of 3 stay available, at most 3 at once", "partition 1: of the pods only x1-2 then x1-1"}, []string{"x1-1", "x1-2"}},
		{3, []string{"replaces 0 of 3 pods"}, nil},
	} {
		t.Run(fmt.Sprint(tc.partition), func(t *testing.T) {
			name := fmt.Sprint("x", tc.partition)
			statefulSet(t, ns, name, 3, func(s *appsv1.StatefulSet) {
				s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &tc.partition}
			})
			p := wantPlanned(t, s, "rollout_restart", of(ns, "statefulset", name), tc.wantLines...)
			if p.Blast.Pods != len(tc.wantGone) {
				t.Errorf("%d pods, want %q", p.Blast.Pods, tc.wantGone)
			}
			before := pods(t, ns, name)
			verified(t, s, "rollout_restart", of(ns, "statefulset", name))
			after := uids(pods(t, ns, name))
			var gone []string
			for _, p := range before {
				if !after[string(p.UID)] {
					gone = append(gone, p.Name)
				}
			}
			slices.Sort(gone)
			if diff := cmp.Diff(tc.wantGone, gone); diff != "" {
				t.Errorf("pods that were replaced (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCase_RO_09: what a restart writes survives Flux's next reconcile, which takes away
// only what kubectl wrote.
func TestCase_RO_09(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	d := applied(t, ns, "web", "kustomize-controller", func(d *applyapps.DeploymentApplyConfiguration) {
		d.WithLabels(map[string]string{"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"})
	})
	wantPlanned(t, s, "rollout_restart", of(ns, "deployment", "web"), "kept by Flux Kustomization flux-system/apps: its next reconcile may take this back")
	verified(t, s, "rollout_restart", of(ns, "deployment", "web"))
	live, err := cp.Client.AppsV1().Deployments(ns).Apply(t.Context(), d, metav1.ApplyOptions{FieldManager: "kustomize-controller", Force: true})
	if err != nil {
		t.Fatal(err)
	}
	owner := ""
	for _, m := range live.ManagedFields {
		if m.FieldsV1 != nil && strings.Contains(string(m.FieldsV1.Raw), "f:kubectl.kubernetes.io/restartedAt") {
			owner += m.Manager
		}
	}
	if !strings.HasPrefix(owner, "kube-write-mcp:") {
		t.Errorf("the annotation is owned by %q", owner)
	}
	if live.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] == "" {
		t.Error("the annotation did not survive")
	}
	observed(t, ns, "web")
	if diff := cmp.Diff([]string{"1", "2"}, revisionsOf(t, ns)); diff != "" {
		t.Errorf("rollouts (-want +got):\n%s", diff)
	}
}

// TestCase_RO_10: who drops the annotation in the middle of the rollout reverts it.
func TestCase_RO_10(t *testing.T) {
	t.Parallel()
	ns, n := cp.Namespace(t), node(t, "case-ro-10")
	s := start(t, wide...)
	deployment(t, ns, "web", 3, func(d *appsv1.Deployment) { onNodes(n)(&d.Spec.Template) })
	cordonForNow(t, n) // no new pod gets ready
	args := s.Plan("rollout_restart", of(ns, "deployment", "web"))
	done := make(chan execution)
	go func() { done <- harness.Into[execution](t, s.Must("rollout_restart", args)) }()
	lab.Eventually(t, "one pod of the restart", func() (bool, error) {
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == 1 && eventOf(t, s.State, journal.EventExecute), err
	})
	s.Proxy.Reset()
	lab.Eventually(t, "a look of the server at it", func() (bool, error) {
		looks := s.Proxy.Requests(func(r harness.Request) bool {
			return r.Method == http.MethodGet && strings.HasSuffix(r.Path, "/deployments/web") && r.Status == http.StatusOK
		})
		return len(looks) >= 2, nil
	})
	if _, err := cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.JSONPatchType,
		[]byte(`[{"op":"remove","path":"/spec/template/metadata/annotations"}]`), metav1.PatchOptions{FieldManager: "operator"}); err != nil {
		t.Fatal(err)
	}
	got := <-done
	if got.Current == nil || got.Current.Verdict != plan.Reverted || !strings.HasSuffix(got.Current.Reason, "when it was last seen in place, 1 of 3 pods were at its revision") {
		t.Errorf("verification %+v, want reverted with 1 of 3", got.Current)
	}
}

// TestCase_RO_12: an undo leaves the replicas as they are, and says so.
func TestCase_RO_12(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	web := of(ns, "deployment", "web")
	deployment(t, ns, "web", 4)
	verified(t, s, "scale", web.With("replicas", 10))
	verified(t, s, "set_image", imageOf(ns, "web").With("image", "main:2"))
	p := harness.Into[planned](t, s.Must("plan_rollout_undo", web))
	if want := "only the pod template is put back: not replicas, strategy, paused or any other field of the spec"; !slices.Contains(p.Warnings, want) {
		t.Errorf("warnings %q, want %q", p.Warnings, want)
	}
	verified(t, s, "rollout_undo", web)
	d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 10 || d.Spec.Template.Spec.Containers[0].Image != "main" {
		t.Errorf("%d replicas of %s (%v), want 10 of main", *d.Spec.Replicas, d.Spec.Template.Spec.Containers[0].Image, err)
	}
}

// TestCase_RO_14: without a revision to go back to, and with a wrong one, nothing is
// planned; RO-15: nor is the one of now.
func TestCase_RO_14(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "one", 1)
	deployment(t, ns, "none", 1, func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(0)) })
	deployment(t, ns, "three", 1)
	for name, images := range map[string][]string{"none": {"main:2", "main:3", "main:4"}, "three": {"main:2", "main:3"}} {
		for _, image := range images {
			verified(t, s, "set_image", imageOf(ns, name).With("image", image))
		}
	}
	lab.Eventually(t, "the history of none to go", func() (bool, error) {
		sets, err := cp.Client.AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=none"})
		return err == nil && len(sets.Items) == 1, err
	})
	s.Proxy.Reset()
	for _, tc := range []struct {
		name, deployment, wantCode, wantText string
		to                                   any
	}{
		{"one revision", "one", "no_history", "has no earlier revision to go back to", nil},
		{"no history", "none", "no_history", "has no earlier revision to go back to", nil},
		{"a wrong one", "three", "no_history", "has no revision 9; it has 1, 2, 3", 9},
		{"below the first", "three", "invalid_arguments", "to_revision", -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := of(ns, "deployment", tc.deployment)
			if tc.to != nil {
				args = args.With("to_revision", tc.to)
			}
			got := s.Must("plan_rollout_undo", args)
			if harness.Code(got) != tc.wantCode || !strings.Contains(got.Text, tc.wantText) || got.Field("confirm") != "" {
				t.Errorf("want %s, %q: %s", tc.wantCode, tc.wantText, got.Text)
			}
		})
	}
	if w := s.Proxy.Writes(); len(w) > 0 {
		t.Errorf("a refusal wrote: %+v", w)
	}
}

// TestCase_RO_15: the revision of now is no change.
func TestCase_RO_15(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 1)
	verified(t, s, "set_image", imageOf(ns, "web").With("image", "main:2"))
	generation := generationOf(t, ns, "web")
	got := harness.Into[planned](t, s.Must("plan_rollout_undo", of(ns, "deployment", "web").With("to_revision", 2)))
	if got.Status != "no change" || got.Confirm != "" || got.Blast.Pods != 0 {
		t.Errorf("to the revision of now: %+v", got)
	}
	if now := generationOf(t, ns, "web"); now != generation {
		t.Errorf("generation %d, was %d", now, generation)
	}
}

// observed waits until the controller has seen a Deployment as it is.
func observed(t *testing.T, ns, name string) {
	t.Helper()
	lab.Eventually(t, "a controller that has seen "+name, func() (bool, error) {
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && d.Status.ObservedGeneration == d.Generation, err
	})
}

func generationOf(t *testing.T, ns, name string) int64 {
	t.Helper()
	d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d.Generation
}

// unplaceable is a pod template that fits on no node.
const unplaceable = `{"spec":{"template":{"spec":{"nodeSelector":{"none":"such"}}}}}`

// TestCase_RO_16: a StatefulSet that waits in order for a pod of a bad revision does so
// after the undo too. One that is parallel does not.
func TestCase_RO_16(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := impatient(t)
	for name, policy := range map[string]appsv1.PodManagementPolicyType{"x": appsv1.OrderedReadyPodManagement, "y": appsv1.ParallelPodManagement} {
		statefulSet(t, ns, name, 3, func(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = policy })
		if _, err := cp.Client.AppsV1().StatefulSets(ns).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(unplaceable), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, "a pod of the bad revision", func() (bool, error) {
			set, err := cp.Client.AppsV1().StatefulSets(ns).Get(t.Context(), name, metav1.GetOptions{})
			return err == nil && slices.ContainsFunc(pods(t, ns, name), func(p corev1.Pod) bool {
				return p.Name == name+"-2" && p.DeletionTimestamp == nil && p.Spec.NodeSelector["none"] == "such" && set.Status.ReadyReplicas == 2 && set.Status.UpdatedReplicas > 0
			}), err
		})
		p := harness.Into[planned](t, s.Must("plan_rollout_undo", of(ns, "statefulset", name)))
		warning := "pod " + name + "-2 keeps its template, for it never became ready: it must be deleted after the undo (plan_delete_pod), the controller waits for it"
		if has := slices.Contains(p.Warnings, warning); has != (name == "x") {
			t.Errorf("%s: warnings %q", policy, p.Warnings)
		}
	}
	got := harness.Into[execution](t, s.Do("rollout_undo", of(ns, "statefulset", "x")))
	if got.Current == nil || got.Current.Verdict != plan.Blocked || !strings.Contains(got.Current.Reason, "stuck on x-2 at the old revision: plan_delete_pod x-2 lets it go on") {
		t.Errorf("verification %+v, want blocked and stuck on x-2", got.Current)
	}
	s.Do("delete_pod", of(ns, "pod", "x-2"))
	lab.Eventually(t, "all three ready", func() (bool, error) {
		set, err := cp.Client.AppsV1().StatefulSets(ns).Get(t.Context(), "x", metav1.GetOptions{})
		return err == nil && set.Status.ReadyReplicas == 3 && set.Status.CurrentRevision == set.Status.UpdateRevision, err
	})
}

// TestCase_RO_17: what the Deployment said of the rollout before says nothing of the undo.
func TestCase_RO_17(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 3, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = ptr.To(int32(5)) })
	patch(t, ns, "web", "", unplaceable)
	lab.Eventually(t, "a rollout that has failed", func() (bool, error) {
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentProgressing && c.Reason == "ProgressDeadlineExceeded"
		}), err
	})
	if reason := verified(t, s, "rollout_undo", of(ns, "deployment", "web")); reason != "3 of 3 available, 3 updated, 3 in all" {
		t.Errorf("verified: %s", reason)
	}
}

// TestCase_RO_18: what no controller has seen is no success, whatever the status says. It
// stops the controllers, so nothing runs beside it.
func TestCase_RO_18(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, append(slices.Clone(wide), "--verify-timeout", "2s")...)
	deployment(t, ns, "web", 3)
	if err := cp.PauseControllers(); err != nil {
		t.Fatal(err)
	}
	defer cp.ResumeControllers()
	observed := generationOf(t, ns, "web")
	for i, tc := range []struct {
		action string
		args   harness.Args
	}{{"rollout_restart", of(ns, "deployment", "web")}, {"set_image", imageOf(ns, "web").With("image", "main:2")}} {
		got := harness.Into[execution](t, s.Do(tc.action, tc.args))
		if got.Current == nil || got.Current.Verdict != plan.NotStarted || got.Current.Reason != "not observed by the controller within 2s" {
			t.Errorf("%s: verification %+v, want not_started within 2s", tc.action, got.Current)
		}
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil || d.Generation != observed+int64(i)+1 || d.Status.ObservedGeneration != observed || d.Status.AvailableReplicas != 3 {
			t.Errorf("%s: generation %d of %d observed, was %d (%v)", tc.action, d.Status.ObservedGeneration, d.Generation, observed, err)
		}
	}
}

// TestCase_RO_19: a resume says what piled up while the rollout was paused, and releases it
// in one rollout.
func TestCase_RO_19(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	web := of(ns, "deployment", "web")
	deployment(t, ns, "web", 3)
	verified(t, s, "rollout_pause", web)
	observed(t, ns, "web") // while its status is behind, no pod counts as up to date
	if p := harness.Into[planned](t, s.Must("plan_rollout_resume", web)); p.Blast.Pods != 0 || !slices.Contains(p.Warnings, "nothing was changed meanwhile: no pod is replaced") {
		t.Errorf("nothing piled up: %+v", p)
	}
	verified(t, s, "set_image", imageOf(ns, "web").With("image", "main:b"))
	verified(t, s, "set_image", imageOf(ns, "web").With("image", "main:c"))
	patch(t, ns, "web", "", `{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"TOKEN","value":"hunter2"}]}]}}}}`)
	got := s.Must("plan_rollout_resume", web)
	p := harness.Into[planned](t, got)
	for _, want := range []string{
		"the pod template was changed since the last rollout: all of it is released now, and 3 pods are replaced",
		"released: spec.containers[0].env, spec.containers[0].image (main to main:c)",
	} {
		if !slices.Contains(p.Warnings, want) {
			t.Errorf("warnings %q, want %q", p.Warnings, want)
		}
	}
	if p.Blast.Direction != plan.Replaces || p.Blast.Pods != 3 || p.Blast.Of != 3 || !slices.Contains(p.Radius, "replaces 3 of 3 pods: at least 3 of 3 stay available, at most 4 at once") {
		t.Errorf("blast %+v, radius %q", p.Blast, p.Radius)
	}
	if strings.Contains(got.Text, "hunter2") {
		t.Errorf("it shows a value of the environment: %s", got.Text)
	}
	if reason := verified(t, s, "rollout_resume", web); reason != "3 of 3 available, 3 updated, 3 in all" {
		t.Errorf("verified: %s", reason)
	}
	sets, err := cp.Client.AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var images []string
	for _, rs := range sets.Items {
		images = append(images, rs.Spec.Template.Spec.Containers[0].Image)
	}
	slices.Sort(images)
	if diff := cmp.Diff([]string{"main", "main:c"}, images); diff != "" {
		t.Errorf("images that ran (-want +got):\n%s", diff)
	}
}

// several gives a Deployment the containers app and sidecar, and the init containers
// migrate and proxy, of which proxy goes on beside them.
func several(d *appsv1.Deployment) {
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "app", Image: "repo/app:latest"}, {Name: "sidecar", Image: "repo/sidecar"}}
	d.Spec.Template.Spec.InitContainers = []corev1.Container{
		{Name: "migrate", Image: "repo/migrate"}, {Name: "proxy", Image: "repo/proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
	}
}

// TestCase_RO_20: a name that no container has is refused; a patch would add one.
func TestCase_RO_20(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 1, several)
	web := of(ns, "deployment", "web").With("image", "nginx:1.27")
	got := s.Must("plan_set_image", web.With("container", "web"))
	if harness.Code(got) != "not_found" || !strings.Contains(got.Text, "has no container web; it has app, sidecar, migrate (init), proxy (init)") {
		t.Errorf("no such container: %s", got.Text)
	}
	d, err := cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"nginx:1.27"}]}}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || len(d.Spec.Template.Spec.Containers) != 3 {
		t.Errorf("a strategic-merge dry run: %d containers (%v), want a third one", len(d.Spec.Template.Spec.Containers), err)
	}
	verified(t, s, "set_image", web.With("container", "app"))
	d, err = cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || len(d.Spec.Template.Spec.Containers) != 2 || d.Spec.Template.Spec.Containers[0].Image != "nginx:1.27" {
		t.Errorf("containers %+v (%v)", d.Spec.Template.Spec.Containers, err)
	}
}

// TestCase_RO_21: an init container keeps its place, and all else as it was.
func TestCase_RO_21(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	want := deployment(t, ns, "web", 3, several).Spec.Template.Spec
	for i, name := range []string{"migrate", "proxy"} {
		args := of(ns, "deployment", "web").With("container", name).With("image", "repo/new:2")
		if p := harness.Into[planned](t, s.Must("plan_set_image", args)); p.Blast.Pods != 3 || p.Blast.Direction != plan.Replaces {
			t.Errorf("%s: radius %+v, want a full rollout", name, p.Blast)
		}
		verified(t, s, "set_image", args)
		want.InitContainers[i].Image = "repo/new:2"
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, d.Spec.Template.Spec); diff != "" {
			t.Errorf("%s: the pod spec (-want +got):\n%s", name, diff)
		}
	}
}

// TestCase_RO_22: the image of now is no change; another text of it is.
func TestCase_RO_22(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 1, several)
	generation := generationOf(t, ns, "web")
	app := of(ns, "deployment", "web").With("container", "app")
	got := s.Must("plan_set_image", app.With("image", "repo/app:latest"))
	if p := harness.Into[planned](t, got); p.Status != "no change" || p.Confirm != "" || p.Blast.Pods != 0 || !strings.Contains(got.Text, "plan_rollout_restart") {
		t.Errorf("the image of now: %s", got.Text)
	}
	if p := harness.Into[planned](t, s.Must("plan_set_image", app.With("image", "repo/app"))); p.Confirm == "" || p.Blast.Pods != 1 {
		t.Errorf("another text: %+v, want a rollout", p)
	}
	if now := generationOf(t, ns, "web"); now != generation {
		t.Errorf("generation %d, was %d", now, generation)
	}
}

// TestCase_RO_23: a text that no kubelet takes is refused before any request; the API
// server takes it for a pod template.
func TestCase_RO_23(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 3)
	for _, tc := range []struct {
		name, image, wantText string
		wantPod               bool // the API server takes it for a pod
	}{
		{"trailing", "nginx:1.27 ", "image is wrong: the character ' ' at 10 stands in no image reference", false},
		{"leading", "\nnginx", `image is wrong: the character '\n' at 0 stands in no image reference`, false},
		{"zero width", "nginx:1.27\u200b", `image is wrong: the character '\u200b' at 10 stands in no image reference`, true},
		{"empty", "", "image", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.Proxy.Reset()
			got := s.Must("plan_set_image", imageOf(ns, "web").With("image", tc.image))
			if harness.Code(got) != "invalid_arguments" || !strings.Contains(got.Text, tc.wantText) {
				t.Errorf("want %q: %s", tc.wantText, got.Text)
			}
			if sent := s.Proxy.Requests(func(r harness.Request) bool { return strings.Contains(r.Path, ns) }); len(sent) > 0 {
				t.Errorf("it asked the API server: %+v", sent)
			}
			if tc.image == "" {
				return
			}
			dry := []string{metav1.DryRunAll}
			body := fmt.Appendf(nil, `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":%s}]`, plan.JSON(tc.image))
			if _, err := cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.JSONPatchType, body, metav1.PatchOptions{DryRun: dry}); err != nil {
				t.Errorf("the dry run of a template: %v", err)
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: template("web").Spec}
			pod.Spec.Containers[0].Image = tc.image
			_, err := cp.Client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{DryRun: dry})
			if (err == nil) != tc.wantPod || err != nil && !strings.Contains(err.Error(), "must not have leading or trailing whitespace") {
				t.Errorf("the dry run of a pod: %v", err)
			}
		})
	}
}
