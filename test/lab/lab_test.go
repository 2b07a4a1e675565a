package lab

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

var lab *Lab

func TestMain(m *testing.M) { Main(m, Options{Controllers: true, Nodes: 3}, func(l *Lab) { lab = l }) }

// TestLabIsReal shows that what the other tests rest on really happens here: rollouts,
// budgets, garbage collection, RBAC and the audit log.
func TestLabIsReal(t *testing.T) {
	ns, c := lab.Namespace(t), lab.Client
	labels := map[string]string{"app": "web"}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(6)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			},
		},
	}
	if _, err := c.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	available := func(generation int64) func() (bool, error) {
		return func() (bool, error) {
			w, err := c.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
			return err == nil && w.Status.ObservedGeneration >= generation && w.Status.UpdatedReplicas == 6 && w.Status.AvailableReplicas == 6 && w.Status.Replicas == 6, err
		}
	}
	Eventually(t, "6 available", available(1))
	patched, err := c.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"metadata":{"annotations":{"again":"yes"}}}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	Eventually(t, "a rollout", available(patched.Generation))

	if _, err := c.PolicyV1().PodDisruptionBudgets(ns).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the budget", func() (bool, error) {
		b, err := c.PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && b.Status.DisruptionsAllowed == 1, err
	})
	pods, err := c.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	evict := func(name string) error {
		return c.CoreV1().Pods(ns).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}})
	}
	if err := evict(pods.Items[0].Name); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the budget to allow another", func() (bool, error) {
		err := evict(pods.Items[1].Name)
		if err != nil && !apierrors.IsTooManyRequests(err) {
			t.Fatal(err)
		}
		return err == nil, err
	})
	if err := c.AppsV1().Deployments(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "garbage collection", func() (bool, error) {
		pods, err := c.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(pods.Items) == 0, err
	})
}

func TestAccountHasExactlyItsRules(t *testing.T) {
	ns := lab.Namespace(t)
	cfg, err := lab.ServiceAccount(t.Context(), ns, "reader", []rbacv1.PolicyRule{{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get"}}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v, want not found", err)
	}
	if _, err := c.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("patch: %v, want forbidden", err)
	}
	events, err := lab.AuditEvents()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Verb == "patch" && e.ObjectRef.Namespace == ns && e.ResponseStatus.Code == 403 {
			return
		}
	}
	t.Error("the audit log does not have the refused patch")
}
