// Package cluster tests the server where rollouts, evictions, budgets and garbage
// collection really happen: a full control plane with simulated nodes.
package cluster

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

var cp *lab.Lab

func TestMain(m *testing.M) {
	lab.Main(m, lab.Options{Controllers: true, Nodes: 3}, func(l *lab.Lab) { cp = l })
}

// wide lets a test do what is not its subject, and waits for controllers that get little of
// the machine.
var wide = []string{
	"--max-blast-percent", "100", "--irreversible", "allow", "--writes-per-minute", "1000", "--plans-per-minute", "1000",
	"--verify-timeout", "90s", "--verify-wait", "100s",
}

func start(t *testing.T, args ...string) *harness.Server {
	t.Helper()
	return harness.Start(t, cp, harness.Options{Args: args})
}

// template is a pod template; each mod changes it. Its pods run on the lab's own nodes: those
// of other tests come and go, are drained, and are counted.
func template(name string, mods ...func(*corev1.PodTemplateSpec)) corev1.PodTemplateSpec {
	out := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To(int64(0)), Containers: []corev1.Container{{Name: "main", Image: "main"}}},
	}
	onNodes("node-1", "node-2", "node-3")(&out)
	for _, m := range mods {
		m(&out)
	}
	return out
}

func onNodes(names ...string) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) {
		t.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names},
			}}},
		}}}
	}
}

// neverReady makes pods that fit on no node: they are there and never become ready.
func neverReady(t *corev1.PodTemplateSpec) {
	onNodes("no-such-node")(t)
	t.Labels["ready"] = "never"
}

func selector(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

// deployment makes a Deployment and waits until its pods are as they will be.
func deployment(t *testing.T, ns, name string, replicas int32, mods ...func(*appsv1.Deployment)) *appsv1.Deployment {
	t.Helper()
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector(name), Template: template(name)},
	}
	for _, m := range mods {
		m(d)
	}
	if _, err := cp.Client.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantReady := replicas
	if d.Spec.Template.Labels["ready"] == "never" {
		wantReady = 0
	}
	var out *appsv1.Deployment
	lab.Eventually(t, "deployment "+name, func() (bool, error) {
		var err error
		out, err = cp.Client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && out.Status.ObservedGeneration == out.Generation && out.Status.Replicas == replicas &&
			out.Status.UpdatedReplicas == replicas && out.Status.AvailableReplicas == wantReady, err
	})
	return out
}

func running(t *testing.T, ns, name string) (n int) {
	for _, p := range pods(t, ns, name) {
		if p.Status.Phase == corev1.PodRunning {
			n++
		}
	}
	return n
}

func statefulSet(t *testing.T, ns, name string, replicas int32, mods ...func(*appsv1.StatefulSet)) {
	t.Helper()
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.StatefulSetSpec{Replicas: &replicas, Selector: selector(name), Template: template(name), ServiceName: name},
	}
	for _, m := range mods {
		m(s)
	}
	if _, err := cp.Client.AppsV1().StatefulSets(ns).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "statefulset "+name, func() (bool, error) {
		got, err := cp.Client.AppsV1().StatefulSets(ns).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && got.Status.ReadyReplicas == replicas && got.Status.AvailableReplicas == replicas && got.Status.CurrentRevision == got.Status.UpdateRevision, err
	})
}

func daemonSet(t *testing.T, ns, name string, mods ...func(*appsv1.DaemonSet)) {
	t.Helper()
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DaemonSetSpec{Selector: selector(name), Template: template(name)}}
	for _, m := range mods {
		m(d)
	}
	if _, err := cp.Client.AppsV1().DaemonSets(ns).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "daemonset "+name, func() (bool, error) {
		got, err := cp.Client.AppsV1().DaemonSets(ns).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && got.Status.DesiredNumberScheduled > 0 && got.Status.NumberAvailable == got.Status.DesiredNumberScheduled, err
	})
}

func bare(t *testing.T, ns, name, node string, mods ...func(*corev1.PodTemplateSpec)) {
	t.Helper()
	tpl := template(name, append([]func(*corev1.PodTemplateSpec){onNodes(node)}, mods...)...)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: tpl.Labels}, Spec: tpl.Spec}
	p.Spec.NodeName = node
	if _, err := cp.Client.CoreV1().Pods(ns).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "pod "+name, func() (bool, error) { return running(t, ns, name) == 1, nil })
}

func budget(t *testing.T, ns, name string, maxUnavailable int32, wantAllowed int32) {
	t.Helper()
	if _, err := cp.Client.PolicyV1().PodDisruptionBudgets(ns).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(maxUnavailable)), Selector: selector(name)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "budget "+name, func() (bool, error) {
		b, err := cp.Client.PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.DisruptionsAllowed == wantAllowed, err
	})
}

// node makes a node of the test's own and waits until pods can be placed on it. No pods come
// there but those that onNodes sends.
func node(t *testing.T, name string) string {
	t.Helper()
	if err := cp.Node(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "node "+name, func() (bool, error) {
		n, err := cp.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return len(n.Spec.Taints) == 0, nil
			}
		}
		return false, nil
	})
	t.Cleanup(func() {
		_ = cp.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return name
}

func pods(t *testing.T, ns, name string) []corev1.Pod {
	t.Helper()
	list, err := cp.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func unschedulable(t *testing.T, name string) bool {
	t.Helper()
	n, err := cp.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n.Spec.Unschedulable
}

func of(ns, kind, name string) harness.Args { return harness.Args{"namespace": ns, kind: name} }

func uids(all []corev1.Pod) map[string]bool {
	out := map[string]bool{}
	for _, p := range all {
		out[string(p.UID)] = true
	}
	return out
}
