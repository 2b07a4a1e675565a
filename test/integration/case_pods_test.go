package integration

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// counted makes a budget over the pods with the label app=web, counted as its controller
// would count them.
func counted(t *testing.T, ns, name string, policy *policyv1.UnhealthyPodEvictionPolicyType, allows, healthy, desired int32) *policyv1.PodDisruptionBudget {
	t.Helper()
	api := cp.Client.PolicyV1().PodDisruptionBudgets(ns)
	b, err := api.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(desired)), Selector: harness.Selector("web"), UnhealthyPodEvictionPolicy: policy},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.Status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: b.Generation, DisruptionsAllowed: allows, CurrentHealthy: healthy, DesiredHealthy: desired, ExpectedPods: 3,
	}
	if b, err = api.UpdateStatus(t.Context(), b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// webPod is a bare pod with the label app=web.
func webPod(name string) *harness.PodBuilder {
	return harness.Pod(name).With(func(p *corev1.Pod) { p.Labels["app"] = "web" })
}

func notReady(t *testing.T, ns, name string) {
	t.Helper()
	p := podOf(t, ns, name)
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	if _, err := cp.Client.CoreV1().Pods(ns).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestCase_PO_01_Delete: a delete asks no budget, so the plan does.
func TestCase_PO_01_Delete(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(3).Ready(3))
	counted(t, ns, "web", nil, 0, 3, 3)
	pod := of(ns, "pod", harness.PodName("web", 0))
	waits := start(t).Must("plan_delete_pod", pod)
	harness.Waits(t, waits, "pdb/web (3 healthy, 3 needed)")
	harness.Tells(t, waits, "evict_pod")
	s := start(t, wide...)
	got := s.Must("plan_delete_pod", pod)
	harness.Tells(t, got, "violates pdb/web (3 healthy, 3 needed); delete bypasses it", "evict_pod")
	no := s.Must("plan_evict_pod", pod)
	if harness.Code(no) != "dry_run_failed" || no.Field("confirm") != "" {
		t.Errorf("evict: %s", no.Text)
	}
	harness.Tells(t, no, "dry run failed (429)", "needs 3 healthy pods and has 3 currently")
}

// TestCase_PO_02: the eviction API has no answer for a pod of two budgets; the plan names
// them.
func TestCase_PO_02(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	n := ns + "-n1"
	caseNodes(t, harness.Node(n), harness.Node(ns+"-n2"))
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(3).Pods(on(n)).Ready(3))
	counted(t, ns, "b", nil, 1, 3, 2)
	counted(t, ns, "a", nil, 1, 3, 2)
	s := start(t, wide...)
	for tool, args := range map[string]harness.Args{
		"plan_evict_pod": of(ns, "pod", harness.PodName("web", 0)),
		"plan_drain":     {"node": n},
	} {
		got := s.Must(tool, args)
		if harness.Code(got) != "dry_run_failed" || got.Field("confirm") != "" || !strings.Contains(got.Text, "retryable false") {
			t.Errorf("%s: %s", tool, got.Text)
		}
		harness.Tells(t, got, "dry run failed (500)", ns+"/"+harness.PodName("web", 0), "the disruption budgets a, b all cover it", "no confirm phrase was issued")
	}
	if n := len(s.Proxy.Writes()); n != 0 || allowed(t, ns, "a") != 1 || allowed(t, ns, "b") != 1 {
		t.Errorf("%d writes, the budgets allow %d and %d", n, allowed(t, ns, "a"), allowed(t, ns, "b"))
	}
}

// TestCase_PO_04: whether an unready pod may be evicted, in all cells; what a deletion is
// said to violate is the plan's own prediction of the eviction's dry run.
func TestCase_PO_04(t *testing.T) {
	t.Parallel()
	always := ptr.To(policyv1.AlwaysAllow)
	for name, tc := range map[string]struct {
		unready                int
		policy                 *policyv1.UnhealthyPodEvictionPolicyType
		wantReady, wantUnready bool // may be evicted
	}{
		"A, unset":       {1, nil, false, true},
		"A, AlwaysAllow": {1, always, false, true},
		"B, unset":       {2, nil, false, false},
		"B, AlwaysAllow": {2, always, false, true},
		"B, IfHealthy":   {2, ptr.To(policyv1.IfHealthyBudget), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := cp.Namespace(t)
			harness.Create(t, cp, ns, webPod("web-0"), webPod("web-1"), webPod("web-2"))
			for _, pod := range []string{"web-2", "web-1"}[:tc.unready] {
				notReady(t, ns, pod)
			}
			counted(t, ns, "web", tc.policy, 0, int32(3-tc.unready), 2)
			s := start(t, wide...)
			for pod, want := range map[string]bool{"web-0": tc.wantReady, "web-2": tc.wantUnready} {
				got := s.Must("plan_evict_pod", of(ns, "pod", pod))
				if may := !got.IsError; may != want {
					t.Errorf("%s may be evicted: %t, want %t\n%s", pod, may, want, got.Text)
				}
				if got.IsError {
					harness.Tells(t, got, "dry run failed (429)")
				} else {
					harness.Silent(t, got, "pdb/web allows 0")
				}
				deletion := s.Must("plan_delete_pod", of(ns, "pod", pod))
				if violates := strings.Contains(deletion.Text, "violates pdb/web"); violates == want {
					t.Errorf("%s: the plan predicts a violation: %t, the dry run of the eviction passes: %t", pod, violates, want)
				}
			}
			before := allowed(t, ns, "web")
			if tc.wantUnready {
				if got := s.Do("evict_pod", of(ns, "pod", "web-2")); got.IsError {
					t.Errorf("evict: %s", got.Text)
				}
			}
			if after := allowed(t, ns, "web"); after != before {
				t.Errorf("the budget allows %d, %d before", after, before)
			}
		})
	}
}

// TestCase_PO_05: a pod that does not run is nothing to a budget.
func TestCase_PO_05(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, webPod("pending").Phase(corev1.PodPending), webPod("done").Phase(corev1.PodSucceeded), webPod("runs"))
	before := counted(t, ns, "web", nil, 0, 1, 2) // no unready one may go either
	s := start(t, wide...)
	if got := s.Must("plan_evict_pod", of(ns, "pod", "runs")); harness.Code(got) != "dry_run_failed" {
		t.Errorf("the running one: %s", got.Text)
	}
	for _, pod := range []string{"pending", "done"} {
		got := s.Must("plan_evict_pod", of(ns, "pod", pod))
		harness.Silent(t, got, "pdb/web", "blocked", "budget")
		if got := s.Do("evict_pod", of(ns, "pod", pod)); got.IsError {
			t.Errorf("%s: %s", pod, got.Text)
		}
	}
	after, err := cp.Client.PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the budget was written: %+v (%v)", after.Status, err)
	}
}

// TestCase_PO_12: a bare pod does not come back, and what it was is on record.
func TestCase_PO_12(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Pod("loner").On("some-node").With(func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "TOKEN", Value: "hunter2-in-the-env"}}
		p.Spec.Containers[0].Args = []string{"--password=hunter2-in-the-args"}
		p.Spec.InitContainers = []corev1.Container{{Name: "migrate", Image: "registry.example.com/migrate:7", Command: []string{"hunter2"}}}
		p.Spec.Volumes = append(p.Spec.Volumes,
			corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-1"}}},
			corev1.Volume{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}))
	pod := of(ns, "pod", "loner")
	harness.Waits(t, start(t).Must("plan_delete_pod", pod), "pod "+ns+"/loner has no controller")
	s := start(t, wide...)
	got := s.Must("plan_delete_pod", pod)
	harness.Tells(t, got, "LOST: pod "+ns+"/loner: no controller makes it again", "undo: there is none: no controller makes this pod again", ", irreversible, ")
	uid := string(podOf(t, ns, "loner").UID)
	if got := s.Do("delete_pod", pod); got.IsError {
		t.Fatal(got.Text)
	}
	lines := harness.Lines(t, s.State)
	i := slices.IndexFunc(lines, func(l *journal.Line) bool { return l.Event == journal.EventExecute })
	if i < 0 {
		t.Fatal("no execute line")
	}
	b := lines[i].Before
	if b["uid"] != uid || b["phase"] != "Running" || b["node"] != "some-node" {
		t.Errorf("before on record: %v", b)
	}
	want := plan.State{"owner": "none", "containers": "main=main", "init_containers": "migrate=registry.example.com/migrate:7", "volumes": "data=persistentVolumeClaim/data-1, tmp=emptyDir"}
	for key, v := range want {
		if b[key] != v {
			t.Errorf("before on record: %s is %v, want %v", key, b[key], v)
		}
	}
	if raw := string(plan.JSON(lines)); strings.Contains(raw, "hunter2") {
		t.Error("the record holds a value of the pod's environment")
	}
}

// TestCase_PO_13: a static pod is its node's.
func TestCase_PO_13(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	n := ns + "-n1"
	caseNodes(t, harness.Node(n), harness.Node(ns+"-n2"))
	node, err := cp.Client.CoreV1().Nodes().Get(t.Context(), n, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	harness.Create(t, cp, ns, harness.Pod("static").On(n).With(func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n, UID: node.UID, Controller: ptr.To(true)}}
	}))
	s := start(t, wide...)
	for _, tool := range []string{"plan_delete_pod", "plan_evict_pod"} {
		got := s.Must(tool, of(ns, "pod", "static"))
		if harness.Code(got) != "owned_by_controller" {
			t.Errorf("%s: %s", tool, got.Text)
		}
		harness.Tells(t, got, "static pod, managed by the kubelet of node "+n)
	}
	harness.Tells(t, s.Must("plan_drain", harness.Args{"node": n}), "evicting 0 pods", "stays: "+ns+"/static: a static pod")
}
