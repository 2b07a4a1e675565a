package cluster

import (
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

var storage = resource.MustParse("1Gi")

// accountWithout is an account with the generated RBAC but for some verbs on a resource.
func accountWithout(t *testing.T, without string, verbs ...string) *rest.Config {
	t.Helper()
	var rules []rbacv1.PolicyRule
	for _, r := range engine.Rules(actions.All()) {
		for _, res := range r.Resources {
			one := *r.DeepCopy()
			one.Resources = []string{res}
			if res == without {
				one.Verbs = slices.DeleteFunc(one.Verbs, func(v string) bool { return slices.Contains(verbs, v) })
			}
			if len(one.Verbs) > 0 {
				rules = append(rules, one)
			}
		}
	}
	cfg, err := cp.ServiceAccount(t.Context(), cp.Namespace(t), "partial", rules)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestDrainUnderABudget evicts four pods of one node, one at a time as their budget
// allows; an independent watcher sees that availability holds.
func TestDrainUnderABudget(t *testing.T) {
	ns, from, to := cp.Namespace(t), node(t, "drain-from"), node(t, "drain-to")
	cordonForNow(t, to)
	deployment(t, ns, "web", 4, func(d *appsv1.Deployment) { onNodes(from, to)(&d.Spec.Template) })
	budget(t, ns, "web", 1, 1)
	uncordonNow(t, to)
	lowest := watchAvailable(t, ns, "web")
	s := start(t, wide...)
	args := s.Plan("drain", harness.Args{"node": from, "timeout_seconds": 60})
	text := s.Must("plan_drain", harness.Args{"node": from, "timeout_seconds": 60}).Text
	for _, want := range []string{"4 pods", "web", "1"} {
		if !strings.Contains(text, want) {
			t.Errorf("the plan lacks %q:\n%s", want, text)
		}
	}
	got := harness.Into[execution](t, s.Must("drain", args))
	if got.Outcome != plan.Executed || got.Current == nil || got.Current.Verdict != plan.Verified {
		t.Fatalf("outcome %s %s, verification %+v", got.Outcome, got.Result.Detail, got.Current)
	}
	applied := 0
	for _, r := range got.Result.Steps {
		if strings.HasPrefix(r.Step, "evict ") && r.Outcome == "applied" {
			applied++
		}
	}
	if applied != 4 || !unschedulable(t, from) {
		t.Errorf("%d evictions applied, node unschedulable %t; want 4 and true", applied, unschedulable(t, from))
	}
	for _, p := range pods(t, ns, "web") {
		if p.Spec.NodeName == from && p.DeletionTimestamp == nil {
			t.Errorf("pod %s is still on %s", p.Name, from)
		}
	}
	if n := lowest(); n < 3 {
		t.Errorf("available fell to %d, the budget allows 3", n)
	}
}

func cordonForNow(t *testing.T, name string) { setUnschedulable(t, name, true) }
func uncordonNow(t *testing.T, name string)  { setUnschedulable(t, name, false) }

func setUnschedulable(t *testing.T, name string, v bool) {
	t.Helper()
	lab.Eventually(t, "cordon "+name, func() (bool, error) {
		n, err := cp.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		n.Spec.Unschedulable = v
		_, err = cp.Client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		return err == nil, err
	})
}

// watchAvailable watches a Deployment's available pods; the function gives the lowest
// number that was seen.
func watchAvailable(t *testing.T, ns, name string) func() int32 {
	t.Helper()
	w, err := cp.Client.AppsV1().Deployments(ns).Watch(t.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	lowest := int32(1 << 30)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			if d, ok := e.Object.(*appsv1.Deployment); ok {
				mu.Lock()
				lowest = min(lowest, d.Status.AvailableReplicas)
				mu.Unlock()
			}
		}
	}()
	return func() int32 {
		w.Stop()
		<-done
		return lowest
	}
}

// TestCase_ND_02 sorts the pods of a node into those that go, stay, or stand in the way.
func TestCase_ND_02(t *testing.T) {
	ns, n := cp.Namespace(t), node(t, "classes")
	emptyDir := func(tpl *corev1.PodTemplateSpec) {
		tpl.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	deployment(t, ns, "web", 2, func(d *appsv1.Deployment) { onNodes(n)(&d.Spec.Template) })
	deployment(t, ns, "scratch", 1, func(d *appsv1.Deployment) { onNodes(n)(&d.Spec.Template); emptyDir(&d.Spec.Template) })
	daemonSet(t, ns, "agent", func(d *appsv1.DaemonSet) { onNodes(n)(&d.Spec.Template) })
	bare(t, ns, "loner", n)
	if _, err := cp.Client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "static", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}},
		Spec:       corev1.PodSpec{NodeName: n, Containers: []corev1.Container{{Name: "main", Image: "main"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := start(t, wide...)
	no := s.Must("plan_drain", harness.Args{"node": n})
	if harness.Code(no) != "precondition_failed" {
		t.Fatalf("without options: %s", no.Text)
	}
	for _, want := range []string{ns + "/loner", "emptyDir cache", "force: true", "delete_emptydir_data: true"} {
		if !strings.Contains(no.Text, want) {
			t.Errorf("the refusal lacks %q:\n%s", want, no.Text)
		}
	}
	if unschedulable(t, n) {
		t.Error("a refused plan cordoned the node")
	}
	args := harness.Args{"node": n, "force": true, "delete_emptydir_data": true, "timeout_seconds": 60}
	got := s.Must("plan_drain", args)
	p := harness.Into[planned](t, got)
	stays := strings.Join(p.Stays, "\n")
	if !strings.Contains(stays, ns+"/agent-") || !strings.Contains(stays, ns+"/static: a static pod") {
		t.Errorf("stays: %v", p.Stays)
	}
	if !strings.Contains(got.Text, "evicting 4 pods") || p.Class != plan.Irreversible {
		t.Errorf("class %s, want irreversible and 4 evictions:\n%s", p.Class, got.Text)
	}
	done := harness.Into[execution](t, s.Do("drain", args))
	if done.Outcome != plan.Executed {
		t.Fatalf("drain: %+v", done)
	}
	left := map[string]bool{}
	list, err := cp.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			left[strings.Split(p.Name, "-")[0]] = true
		}
	}
	if !left["agent"] || !left["static"] || len(left) != 2 {
		t.Errorf("left on the node: %v, want agent and static", left)
	}
}

// TestCase_ND_05 and ND_06: a budget of zero stops a drain at its deadline, with what is
// left; the node stays cordoned, and a replay resumes nothing.
func TestCase_ND_05(t *testing.T) {
	ns, n := cp.Namespace(t), node(t, "blocked")
	deployment(t, ns, "web", 2, func(d *appsv1.Deployment) { onNodes(n)(&d.Spec.Template) })
	budget(t, ns, "web", 0, 0)
	s := start(t, wide...)
	args := s.Plan("drain", harness.Args{"node": n, "timeout_seconds": 5})
	got := s.Must("drain", args)
	first := harness.Into[execution](t, got)
	if first.Outcome != plan.Failed || !got.IsError || !strings.HasPrefix(got.Text, "FAILED") {
		t.Fatalf("outcome %s: %s", first.Outcome, got.Text)
	}
	if !strings.Contains(got.Text, "blocked") || !strings.Contains(got.Text, "plan_uncordon") || !strings.Contains(got.Text, "untrusted: ") {
		t.Errorf("the answer must name what is blocked, the budget's words and the undo:\n%s", got.Text)
	}
	if !unschedulable(t, n) || running(t, ns, "web") != 2 {
		t.Errorf("unschedulable %t, running %d; want true and 2", unschedulable(t, n), running(t, ns, "web"))
	}
	s.Proxy.Reset()
	again := harness.Into[execution](t, s.Must("drain", args))
	if !again.Replayed || again.Outcome != plan.Failed || len(s.Proxy.Requests(nil)) != 0 {
		t.Errorf("replayed %t, outcome %s, %d requests; want a replay that asks nothing", again.Replayed, again.Outcome, len(s.Proxy.Requests(nil)))
	}
}

// TestCase_MC_10 answers in progress and goes on; a repeated call gives the
// rest.
func TestCase_MC_10(t *testing.T) {
	ns, n := cp.Namespace(t), node(t, "slow")
	deployment(t, ns, "web", 1, func(d *appsv1.Deployment) { onNodes(n)(&d.Spec.Template) })
	budget(t, ns, "web", 0, 0)
	s := start(t, append(wide, "--verify-wait", "1s")...)
	args := s.Plan("drain", harness.Args{"node": n, "timeout_seconds": 6})
	got := harness.Into[execution](t, s.Must("drain", args))
	if got.Outcome != plan.InProgress {
		t.Fatalf("outcome %s, want IN PROGRESS", got.Outcome)
	}
	lab.Eventually(t, "the rest", func() (bool, error) {
		got = harness.Into[execution](t, s.Must("drain", args))
		return got.Outcome == plan.Failed && got.Replayed, nil
	})
}

// TestCase_ND_14 wants a person for the last schedulable node.
func TestCase_ND_14(t *testing.T) {
	var others []string
	nodes, err := cp.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items[1:] {
		if !n.Spec.Unschedulable {
			others = append(others, n.Name)
		}
	}
	for _, n := range others {
		cordonForNow(t, n)
	}
	defer func() {
		for _, n := range others {
			uncordonNow(t, n)
		}
	}()
	s := start(t)
	got := s.Must("plan_cordon", harness.Args{"node": nodes.Items[0].Name})
	harness.Waits(t, got, "last schedulable node")
}

// TestCase_CL_02: a fact that a gate needs and that cannot be had refuses, and says which.
func TestCase_CL_02(t *testing.T) {
	ns := cp.Namespace(t)
	deployment(t, ns, "web", 2)
	s := harness.Start(t, cp, harness.Options{Config: accountWithout(t, "poddisruptionbudgets", "get", "list", "watch"), Args: wide})
	got := s.Must("plan_delete_pod", of(ns, "pod", pods(t, ns, "web")[0].Name))
	if harness.Code(got) != "facts_missing" || !strings.Contains(got.Text, "poddisruptionbudgets") {
		t.Errorf("delete_pod: %s", got.Text)
	}
	if got := s.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 3)); got.IsError {
		t.Errorf("scale: %s", got.Text)
	}
}

// TestCase_ND_17: without the right to evict, the plan is refused before the cordon.
func TestCase_ND_17(t *testing.T) {
	ns, n := cp.Namespace(t), node(t, "forbidden")
	deployment(t, ns, "web", 1, func(d *appsv1.Deployment) { onNodes(n)(&d.Spec.Template) })
	s := harness.Start(t, cp, harness.Options{Config: accountWithout(t, "pods/eviction", "create"), Args: wide})
	got := s.Must("plan_drain", harness.Args{"node": n})
	if harness.Code(got) != "dry_run_failed" || !strings.Contains(got.Text, "create on pods/eviction") {
		t.Errorf("drain: %s", got.Text)
	}
	if unschedulable(t, n) {
		t.Error("the node was cordoned")
	}
}

func TestDeletePod(t *testing.T) {
	ns := cp.Namespace(t)
	deployment(t, ns, "web", 3)
	bare(t, ns, "loner", "node-1")
	victim := pods(t, ns, "web")[0]
	s := start(t)
	got := harness.Into[execution](t, s.Do("delete_pod", of(ns, "pod", victim.Name)))
	if got.Outcome != plan.Executed || got.Current.Verdict != plan.Verified {
		t.Fatalf("delete_pod: %+v, %+v", got, got.Current)
	}
	harness.Waits(t, s.Must("plan_delete_pod", of(ns, "pod", "loner")), "no controller") // PO-12
	budget(t, ns, "web", 0, 0)
	lab.Eventually(t, "3 ready", func() (bool, error) { return running(t, ns, "web") == 3, nil })
	harness.Waits(t, s.Must("plan_delete_pod", of(ns, "pod", pods(t, ns, "web")[0].Name)), "web") // PO-01, a budget that allows nothing
}
