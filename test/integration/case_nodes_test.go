package integration

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// caseNodes makes ready nodes that are gone after the test.
func caseNodes(t *testing.T, nodes ...*harness.NodeBuilder) {
	t.Helper()
	for _, n := range nodes {
		harness.Create(t, cp, "", n.Ready())
		t.Cleanup(func() {
			_ = cp.Client.CoreV1().Nodes().Delete(context.Background(), n.Object.Name, metav1.DeleteOptions{})
		})
	}
}

func on(node string, mods ...func(*corev1.PodTemplateSpec)) func(*corev1.PodTemplateSpec) {
	return func(tpl *corev1.PodTemplateSpec) {
		tpl.Spec.NodeName = node
		for _, m := range mods {
			m(tpl)
		}
	}
}

func evictions(s *harness.Server) []harness.Request {
	return s.Proxy.Requests(func(r harness.Request) bool { return strings.HasSuffix(r.Path, "/eviction") })
}

func allowed(t *testing.T, ns, name string) int32 {
	t.Helper()
	b, err := cp.Client.PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b.Status.DisruptionsAllowed
}

func podOf(t *testing.T, ns, name string) *corev1.Pod {
	t.Helper()
	p, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCase_ND_01: every eviction alone would pass its dry run, all of them together take
// more than the budget has.
func TestCase_ND_01(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	n := ns + "-n1"
	caseNodes(t, harness.Node(n), harness.Node(ns+"-n2"))
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(3).Pods(on(n)).Ready(3), harness.Budget("web").Allows(1, 3))
	s := start(t, wide...)
	got := s.Must("plan_drain", harness.Args{"node": n})
	harness.Tells(t, got, "pdb/web allows 1 now; 3 of this plan's pods need it: one at a time, as replacements become ready",
		"at risk: 1 of 3 ready pods")
	for _, r := range evictions(s) {
		if r.Status != http.StatusCreated || r.Mutates() {
			t.Errorf("%s: %d, want dry runs that all pass", r.Path, r.Status)
		}
	}
	if all := len(evictions(s)); all != 3 {
		t.Errorf("%d evictions were dry-run, want 3", all)
	}
	if left := allowed(t, ns, "web"); left != 1 {
		t.Errorf("the budget allows %d after the plan, want 1", left)
	}
}

// TestCase_ND_02_All counts every class of pod that a node may have.
func TestCase_ND_02_All(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	n := ns + "-n1"
	caseNodes(t, harness.Node(n), harness.Node(ns+"-n2"))
	harness.Create(t, cp, ns,
		harness.Deployment("web").Replicas(2).Pods(on(n)).Ready(2),
		harness.DaemonSet("agent").Pods(on(n)).Ready(1),
		harness.Pod("static").On(n).With(func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }),
		harness.Pod("loner").On(n),
		harness.ReplicaSet("scratch").Pods(on(n, func(tpl *corev1.PodTemplateSpec) {
			tpl.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		})).Ready(1),
		harness.Pod("done").On(n).Phase(corev1.PodSucceeded),
		harness.Pod("work").On(n).With(func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "work", UID: "a-job", Controller: ptr.To(true)}}
		}),
	)
	s := start(t, wide...)
	no := s.Must("plan_drain", harness.Args{"node": n})
	if harness.Code(no) != "precondition_failed" || len(s.Proxy.Writes()) != 0 {
		t.Errorf("without options, %d writes: %s", len(s.Proxy.Writes()), no.Text)
	}
	harness.Tells(t, no, ns+"/loner (no controller makes it again)", ns+"/scratch-0 (emptyDir cache)")
	harness.Silent(t, no, ns+"/done", ns+"/work", ns+"/web")
	drain := harness.Args{"node": n, "delete_emptydir_data": true, "force": true, "timeout_seconds": 5}
	got := s.Must("plan_drain", drain)
	harness.Tells(t, got, "evicting 6 pods", "evicts 6 of 8 pods on", "; 2 stay")
	if p := harness.Into[planned](t, got); len(p.Stays) != 2 {
		t.Errorf("stays: %q, want the DaemonSet's pod and the static one", p.Stays)
	}
	if x := harness.Into[execution](t, s.Do("drain", drain)); x.Outcome != plan.Executed {
		t.Errorf("outcome %s %s", x.Outcome, x.Detail)
	}
	left, err := cp.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range left.Items {
		names = append(names, p.Name)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"agent-0", "static"}) {
		t.Errorf("left: %q", names)
	}
}

// TestCase_ND_03: a pod whose DaemonSet is gone is not the DaemonSet's to keep.
func TestCase_ND_03(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	n := ns + "-n1"
	caseNodes(t, harness.Node(n), harness.Node(ns+"-n2"))
	orphan := func(name string) *harness.PodBuilder {
		return harness.Pod(name).On(n).With(func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "gone", UID: "no-such-uid", Controller: ptr.To(true)}}
		})
	}
	harness.Create(t, cp, ns, orphan("running"), orphan("done").Phase(corev1.PodSucceeded))
	s := start(t, wide...)
	no := s.Must("plan_drain", harness.Args{"node": n})
	if harness.Code(no) != "precondition_failed" {
		t.Fatalf("without force: %s", no.Text)
	}
	harness.Tells(t, no, ns+"/running (daemonset gone not found)", "force: true")
	harness.Silent(t, no, ns+"/done")
	forced := harness.Args{"node": n, "force": true, "timeout_seconds": 5}
	got := s.Must("plan_drain", forced)
	harness.Tells(t, got, "evicting 2 pods", "warning: "+ns+"/running belongs to daemonset gone, which is gone", "1 pod no controller makes again: ")
	if o := harness.Into[execution](t, s.Do("drain", forced)).Outcome; o != plan.Executed {
		t.Errorf("outcome %s", o)
	}
	left, err := cp.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("%d pods are left (%v), want none", len(left.Items), err)
	}
}

// TestCase_ND_04: what an emptyDir holds is lost, and said, by whatever way the pod goes.
func TestCase_ND_04(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	n := ns + "-n1"
	caseNodes(t, harness.Node(n), harness.Node(ns+"-n2"))
	harness.Create(t, cp, ns, harness.Deployment("web").Pods(on(n, func(tpl *corev1.PodTemplateSpec) {
		tpl.Spec.Volumes = []corev1.Volume{
			{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "shm", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
		}
	})).Ready(1))
	s := start(t, wide...)
	no := s.Must("plan_drain", harness.Args{"node": n})
	if harness.Code(no) != "precondition_failed" {
		t.Fatalf("without the option: %s", no.Text)
	}
	harness.Tells(t, no, "emptyDir cache, shm/Memory", "delete_emptydir_data: true")
	pod := of(ns, "pod", harness.PodName("web", 0))
	loss := "LOST: emptyDir data of pod " + ns + "/" + harness.PodName("web", 0) + ": cache, shm/Memory"
	harness.Tells(t, s.Must("plan_evict_pod", pod), loss)
	harness.Tells(t, s.Must("plan_delete_pod", pod), loss)
	with := harness.Args{"node": n, "delete_emptydir_data": true}
	harness.Tells(t, s.Must("plan_drain", with), loss)
	args := s.Plan("drain", with)
	delete(args, "delete_emptydir_data")
	if got := s.Must("drain", args); harness.Code(got) != "wrong_arguments" || len(s.Proxy.Writes()) != 0 {
		t.Errorf("the phrase without its option, %d writes: %s", len(s.Proxy.Writes()), got.Text)
	}
}

// TestCase_ND_08: on a node that nobody answers for, evicted pods stay terminating; the
// answer says so, and nothing is forced.
func TestCase_ND_08(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	n := ns + "-n1"
	caseNodes(t, harness.Node(n), harness.Node(ns+"-n2"))
	node, err := cp.Client.CoreV1().Nodes().Get(t.Context(), n, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	if _, err := cp.Client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Pods(on(n, func(tpl *corev1.PodTemplateSpec) {
		tpl.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
	})).Ready(2))
	s := start(t, append(slices.Clone(wide), "--verify-timeout", "6s")...)
	args := harness.Args{"node": n, "timeout_seconds": 15}
	harness.Tells(t, s.Must("plan_drain", args), "node "+n+" is not ready: evicted pods may stay terminating, since no kubelet confirms their end")
	got := s.Do("drain", args)
	x := harness.Into[execution](t, got)
	if x.Current == nil || x.Current.Verdict != plan.TimedOut {
		t.Fatalf("verdict %+v: %s", x.Current, got.Text)
	}
	harness.Tells(t, got, "0 of 2 pods are gone", "is terminating, kubelet unreachable")
	for i := range 2 {
		p := podOf(t, ns, harness.PodName("web", i))
		if p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 30 {
			t.Errorf("pod %s: deleted %v, grace %v; want an eviction with its own 30 s", p.Name, p.DeletionTimestamp, p.DeletionGracePeriodSeconds)
		}
	}
	for _, r := range s.Proxy.Writes() {
		if r.Method == http.MethodDelete {
			t.Errorf("%s %s: a drain deletes nothing", r.Method, r.Path)
		}
	}
}

// TestCase_ND_10: a terminating namespace lets no eviction be created, so none is sent;
// the rest of the drain goes on.
func TestCase_ND_10(t *testing.T) {
	t.Parallel()
	ns, going := cp.Namespace(t), cp.Namespace(t)
	n := ns + "-n1"
	caseNodes(t, harness.Node(n), harness.Node(ns+"-n2"))
	slow := func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30) }
	harness.Create(t, cp, going, harness.Pod("ending").On(n).With(slow), harness.Pod("there").On(n).With(slow))
	harness.Create(t, cp, ns, harness.ReplicaSet("web").Pods(on(n)).Ready(1))
	if err := cp.Client.CoreV1().Pods(going).Delete(t.Context(), "ending", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// No namespace controller ends it: it stays terminating.
	if err := cp.Client.CoreV1().Namespaces().Delete(t.Context(), going, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s := start(t, wide...)
	args := harness.Args{"node": n, "timeout_seconds": 5}
	harness.Tells(t, s.Must("plan_drain", args), "evicting 1 pod ",
		"stays: "+going+"/ending: its namespace is terminating", "stays: "+going+"/there: its namespace is terminating")
	got := s.Do("drain", args)
	if x := harness.Into[execution](t, got); x.Outcome != plan.Executed || x.Current == nil || x.Current.Verdict != plan.Verified {
		t.Errorf("drain: %s", got.Text)
	}
	for _, r := range evictions(s) {
		if strings.Contains(r.Path, "/"+going+"/") {
			t.Errorf("an eviction was sent into the terminating namespace: %s", r.Path)
		}
	}
	if p := podOf(t, going, "there"); p.DeletionTimestamp != nil {
		t.Error("the pod in the terminating namespace was touched")
	}
}

// TestCase_ND_11: cordon and uncordon of what is so already, and the taints that keep pods
// off all the same.
func TestCase_ND_11(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	n1, n2, n3 := ns+"-n1", ns+"-n2", ns+"-n3"
	caseNodes(t,
		harness.Node(n1).With(func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		harness.Node(n2).With(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
		}),
		harness.Node(n3))
	s := start(t, wide...)
	for _, tc := range []struct{ tool, node, want, wantNot string }{
		{"plan_cordon", n1, "NO CHANGE", "taint"},
		{"plan_uncordon", n2, "the taint dedicated=x:NoSchedule still keeps pods off", "CONFIRM"},
		{"plan_uncordon", n3, "NO CHANGE", "taint"},
	} {
		got := s.Must(tc.tool, harness.Args{"node": tc.node})
		if p := harness.Into[planned](t, got); p.Status != "no change" || p.Confirm != "" {
			t.Errorf("%s %s: %+v", tc.tool, tc.node, p)
		}
		harness.Tells(t, got, tc.want)
		harness.Silent(t, got, tc.wantNot)
	}
	harness.Tells(t, s.Must("plan_uncordon", harness.Args{"node": n1}), "it moves no pods back")
	if n := len(s.Proxy.Writes()); n != 0 {
		t.Errorf("%d writes", n)
	}
}

// TestCase_ND_13: a node has one name; neither its host name nor a shorter one stands for
// it, and its pods are those that are bound to that name.
func TestCase_ND_13(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	const short, long = "ip-10-0-0-7", "ip-10-0-0-7.eu-west-1.compute.internal"
	caseNodes(t, harness.Node(ns+"-n2"), harness.Node(long).With(func(n *corev1.Node) { n.Labels[corev1.LabelHostname] = short }))
	harness.Create(t, cp, ns, harness.ReplicaSet("web").Pods(on(long)).Ready(1), harness.ReplicaSet("decoy").Pods(on(short)).Ready(1))
	s := start(t, wide...)
	no := s.Must("plan_drain", harness.Args{"node": short})
	if harness.Code(no) != "not_found" {
		t.Errorf("the host name: %s", no.Text)
	}
	harness.Tells(t, no, long)
	if n := len(evictions(s)); n != 0 {
		t.Errorf("%d evictions were tried for a name that is none", n)
	}
	harness.Tells(t, s.Must("plan_drain", harness.Args{"node": long}), "evicting 1 pod ")
	byField := s.Proxy.Requests(func(r harness.Request) bool {
		return r.Path == "/api/v1/pods" && strings.Contains(r.Query, "fieldSelector=spec.nodeName%3D"+long)
	})
	if len(byField) == 0 {
		t.Error("the pods of the node were not asked for by spec.nodeName")
	}
	if all := evictions(s); len(all) != 1 || !strings.Contains(all[0].Path, "/web-") {
		t.Errorf("evictions: %v", all)
	}
}

// TestCase_ND_15: marks by which owners ask that a pod be left alone are shown, and counted
// in the phrase.
func TestCase_ND_15(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	n := ns + "-n1"
	caseNodes(t, harness.Node(n), harness.Node(ns+"-n2"))
	marked := func(name, key, value string) harness.Object {
		return harness.ReplicaSet(name).Pods(on(n, func(tpl *corev1.PodTemplateSpec) { tpl.Annotations = map[string]string{key: value} })).Ready(1)
	}
	const safe = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	harness.Create(t, cp, ns, marked("a", safe, "false"), marked("b", "karpenter.sh/do-not-disrupt", "true"), marked("c", safe, "true"))
	s := start(t, wide...)
	got := s.Must("plan_drain", harness.Args{"node": n})
	harness.Tells(t, got, "2 pods marked by the owner as not to be disrupted: "+ns+"/a-0, "+ns+"/b-0")
	if phrase, want := got.Field("confirm"), "drain node "+n+" evicting 3 pods with 2 opt-outs on "; !strings.HasPrefix(phrase, want) {
		t.Errorf("phrase %q, want %q at its head", phrase, want)
	}
	for name, want := range map[string]bool{"a-0": true, "b-0": true, "c-0": false} {
		got := s.Must("plan_evict_pod", of(ns, "pod", name))
		if has := strings.Contains(got.Text, "1 pod marked by the owner as not to be disrupted: "+ns+"/"+name); has != want {
			t.Errorf("%s shown as an opt-out: %t, want %t\n%s", name, has, want, got.Text)
		}
	}
}
