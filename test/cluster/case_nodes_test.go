package cluster

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// TestNodeCases are those that move pods between nodes of their own. They run beside each
// other.
func TestNodeCases(t *testing.T) {
	for name, run := range map[string]func(*testing.T){
		"TestCase_ND_06":        blockedDrain,
		"TestCase_ND_09":        movedPod,
		"TestCase_ND_16":        twoNodes,
		"TestCase_ND_17_Owners": ownersUnread,
		"TestCase_ND_19":        pinnedPods,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t)
		})
	}
}

func placed(names ...string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { onNodes(names...)(&d.Spec.Template) }
}

// blockedDrain: a drain that could not empty its node says what is left, that the node is
// cordoned and how to take that back, and is not resumed by its phrase.
func blockedDrain(t *testing.T) {
	ns, n := cp.Namespace(t), node(t, "nd-06")
	deployment(t, ns, "free", 1, placed(n))
	deployment(t, ns, "held", 2, placed(n))
	budget(t, ns, "held", 0, 0)
	s := start(t, wide...)
	drain := harness.Args{"node": n, "timeout_seconds": 5}
	harness.Tells(t, s.Must("plan_drain", drain), "can never finish: pdb/held allows 0 (2 healthy, 2 needed)")
	args := s.Plan("drain", drain)
	got := s.Must("drain", args)
	x := harness.Into[execution](t, got)
	if x.Outcome != plan.Failed || !got.IsError {
		t.Fatalf("outcome %s: %s", x.Outcome, got.Text)
	}
	outcomes := map[string]int{}
	for _, r := range x.Result.Steps {
		if strings.HasPrefix(r.Step, "evict pod "+ns+"/") {
			outcomes[r.Outcome]++
		}
	}
	if outcomes["applied"] != 1 || outcomes["blocked"] != 2 {
		t.Errorf("evictions: %v, want 1 applied and 2 blocked", outcomes)
	}
	harness.Tells(t, got, "FAILED", "undo: plan_uncordon", "kubectl uncordon "+n, "untrusted: ", "held needs 2 healthy pods and has 2 currently")
	if x.Result.Before["unschedulable"] != false || x.Result.After["unschedulable"] != true || !unschedulable(t, n) {
		t.Errorf("before %v, after %v", x.Result.Before, x.Result.After)
	}
	tries := map[string][]*journal.Line{}
	for _, l := range harness.Lines(t, s.State) {
		switch {
		case l.Event == journal.EventExecute && (l.Before["unschedulable"] != false || l.After["unschedulable"] != true):
			t.Errorf("on record: before %v, after %v", l.Before, l.After)
		case l.Event == journal.EventIntent && strings.Contains(l.StepKey, "/held-"):
			tries[l.StepKey] = append(tries[l.StepKey], l)
		}
	}
	for key, all := range tries {
		if len(all) > 3 { // at 0, 2 and perhaps 4 s of 5
			t.Errorf("%s was tried %d times in 5 s: a busy loop", key, len(all))
		}
	}
	s.Proxy.Reset()
	again := s.Must("drain", args)
	if r := harness.Into[execution](t, again); !r.Replayed || r.Outcome != plan.Failed || len(s.Proxy.Requests(nil)) != 0 {
		t.Errorf("a replay, %d requests: %s", len(s.Proxy.Requests(nil)), again.Text)
	}
	harness.Tells(t, s.Must("plan_drain", drain), "before: unschedulable true", n+" took no new pods before")
}

// movedPod: a pod that came up again elsewhere while the drain waited is not followed.
func movedPod(t *testing.T) {
	ns, from, to := cp.Namespace(t), node(t, "nd-09-from"), node(t, "nd-09-to")
	cordonForNow(t, to)
	statefulSet(t, ns, "db", 1, func(d *appsv1.StatefulSet) { onNodes(from, to)(&d.Spec.Template) })
	budget(t, ns, "db", 0, 0)
	uncordonNow(t, to)
	s := start(t, wide...)
	args := s.Plan("drain", harness.Args{"node": from, "timeout_seconds": 60})
	var now *corev1.Pod
	done := make(chan struct{})
	go func() {
		defer close(done)
		lab.Eventually(t, "the first refused eviction", func() (bool, error) {
			return slices.ContainsFunc(s.Proxy.Writes(), func(r harness.Request) bool { return r.Status == 429 }), nil
		})
		now = again(t, ns, "db-0")
	}()
	got := s.Must("drain", args)
	<-done
	if x := harness.Into[execution](t, got); x.Outcome != plan.Executed {
		t.Fatalf("drain: %s", got.Text)
	}
	harness.Tells(t, got, "evict pod "+ns+"/db-0: gone")
	p := pods(t, ns, "db")
	if len(p) != 1 || p[0].UID != now.UID || p[0].Spec.NodeName != to || p[0].DeletionTimestamp != nil {
		t.Errorf("db-0 on %s: %+v", to, p)
	}
	for _, r := range s.Proxy.Writes() {
		if strings.Contains(r.Body, string(now.UID)) {
			t.Errorf("the pod on the other node was asked to go: %s", r.Body)
		}
	}
}

// twoNodes: two drains at once share one budget, and both wait for it.
func twoNodes(t *testing.T) {
	ns := cp.Namespace(t)
	one, two, free := node(t, "nd-16-one"), node(t, "nd-16-two"), node(t, "nd-16-free")
	cordonForNow(t, free)
	deployment(t, ns, "web", 4, placed(one, two, free), func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector("web"),
		}}
	})
	budget(t, ns, "web", 1, 1)
	on := map[string]int{}
	for _, p := range pods(t, ns, "web") {
		on[p.Spec.NodeName]++
	}
	if on[one] != 2 || on[two] != 2 {
		t.Fatalf("pods on the nodes: %v, want two each", on)
	}
	lowest := watchAvailable(t, ns, "web")
	s := start(t, wide...)
	plans := map[string]harness.Args{}
	for _, n := range []string{one, two} {
		plans[n] = s.Plan("drain", harness.Args{"node": n, "timeout_seconds": 60})
	}
	s.Proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
		if r.Mutates() && strings.HasSuffix(r.Path, "/eviction") { // or a replacement could come to the node that is drained next
			lab.Eventually(t, "two cordoned nodes", func() (bool, error) { return unschedulable(t, one) && unschedulable(t, two), nil })
		}
		return true
	})
	go func() { // until then no replacement gets ready
		lab.Eventually(t, "an eviction that the budget refuses", func() (bool, error) {
			return slices.ContainsFunc(s.Proxy.Writes(), func(r harness.Request) bool { return r.Status == 429 }), nil
		})
		uncordonNow(t, free)
	}()
	answers := make(chan execution)
	for _, args := range plans {
		go func() {
			got, err := s.Call("drain", args)
			if err != nil {
				t.Error(err)
			}
			answers <- harness.Into[execution](t, got)
		}()
	}
	for range plans {
		if x := <-answers; x.Outcome != plan.Executed {
			t.Errorf("drain: %+v", x)
		}
	}
	if n := lowest(); n < 3 {
		t.Errorf("available fell to %d, the budget allows 3", n)
	}
	perPod := 0
	for _, l := range harness.Lines(t, s.State) {
		if l.Event != journal.EventExecute {
			continue
		}
		for _, r := range l.Result.Steps {
			if strings.HasPrefix(r.Step, "evict pod "+ns+"/") && r.Outcome == "applied" {
				perPod++
			}
		}
	}
	if perPod != 4 {
		t.Errorf("%d evictions on record, want 4", perPod)
	}
	for _, p := range pods(t, ns, "web") {
		if p.DeletionTimestamp == nil && p.Spec.NodeName != free {
			t.Errorf("%s is on %s", p.Name, p.Spec.NodeName)
		}
	}
}

// ownersUnread: without the right to read the DaemonSets of its pods, a node is not
// cordoned.
func ownersUnread(t *testing.T) {
	ns, n := cp.Namespace(t), node(t, "nd-17")
	daemonSet(t, ns, "agent", func(d *appsv1.DaemonSet) { onNodes(n)(&d.Spec.Template) })
	s := harness.Start(t, cp, harness.Options{Config: accountWithout(t, "daemonsets", "get"), Args: wide})
	got := s.Must("plan_drain", harness.Args{"node": n})
	if harness.Code(got) != "forbidden" || unschedulable(t, n) || len(s.Proxy.Writes()) != 0 {
		t.Errorf("unschedulable %t: %s", unschedulable(t, n), got.Text)
	}
	harness.Tells(t, got, "get", "daemonsets")
}

// pinnedPods: what may run nowhere else, by its affinity or by its volume, is pending after
// the drain, under its own name, and is left alone then.
func pinnedPods(t *testing.T) {
	ns, n := cp.Namespace(t), node(t, "nd-19")
	statefulSet(t, ns, "pin", 1, func(d *appsv1.StatefulSet) { onNodes(n)(&d.Spec.Template) })
	localVolume(t, ns, "data-db-0", n)
	statefulSet(t, ns, "db", 1, func(d *appsv1.StatefulSet) {
		d.Spec.Template.Spec.Affinity = nil
		d.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(""), VolumeName: ns,
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: storage}},
			},
		}}
	})
	s := start(t, wide...)
	drain := harness.Args{"node": n, "timeout_seconds": 60}
	harness.Tells(t, s.Must("plan_drain", drain), "1 pod cannot run elsewhere, by node selector, affinity or tolerations: "+ns+"/pin-0",
		"1 pod cannot run elsewhere, because of the nodes that have their volumes: "+ns+"/db-0")
	blind := harness.Start(t, cp, harness.Options{Config: accountWithout(t, "persistentvolumes", "list"), Args: wide})
	harness.Tells(t, blind.Must("plan_drain", drain), "not known: whether volumes tie the evicted pods to node "+n)
	got := s.Do("drain", drain)
	if x := harness.Into[execution](t, got); x.Outcome != plan.Executed {
		t.Fatalf("drain: %s", got.Text)
	}
	for _, name := range []string{"pin", "db"} {
		lab.Eventually(t, name+"-0 to be pending", func() (bool, error) {
			all := pods(t, ns, name)
			return len(all) == 1 && all[0].Name == name+"-0" && all[0].Status.Phase == corev1.PodPending && all[0].Spec.NodeName == "", nil
		})
	}
	s.Proxy.Reset()
	harness.Tells(t, s.Must("plan_drain", drain), "NO CHANGE")
	if n := len(s.Proxy.Requests(func(r harness.Request) bool { return strings.HasSuffix(r.Path, "/eviction") })); n != 0 {
		t.Errorf("%d evictions of pods that are on no node", n)
	}
}

// localVolume makes a volume, of the namespace's name, that only one node has.
func localVolume(t *testing.T, ns, claim, node string) {
	t.Helper()
	if _, err := cp.Client.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: storage},
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/data"}},
			ClaimRef:               &corev1.ObjectReference{Namespace: ns, Name: claim},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestCase_ND_14_Drain: with no other node to go to, pods will be pending and nothing is
// available, and waiting for a budget does not help. It cordons every other node, so
// nothing may run beside it.
func TestCase_ND_14_Drain(t *testing.T) {
	ns, n := cp.Namespace(t), node(t, "nd-14")
	deployment(t, ns, "web", 3, placed(n))
	nodes, err := cp.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range nodes.Items {
		if other.Name != n && !other.Spec.Unschedulable {
			cordonForNow(t, other.Name)
			defer uncordonNow(t, other.Name)
		}
	}
	drain := harness.Args{"node": n}
	harness.Waits(t, start(t).Must("plan_drain", drain), "no schedulable node is left for the pods of "+n)
	s := start(t, wide...)
	got := s.Must("plan_drain", drain)
	harness.Tells(t, got, "0 of 1 schedulable node left: 3 evicted pods will be Pending", "at risk: 3 of 3 ready pods may be missing at the worst moment (100 %)")
	t.Run("TestCase_ND_01_NoOtherNode", func(t *testing.T) {
		budget(t, ns, "web", 1, 1)
		harness.Tells(t, s.Must("plan_drain", drain),
			"cannot finish: pdb/web allows 1 now; 3 of this plan's pods need it, and no node is left for their replacements")
	})
}
