package actions

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
)

// CordonArgs are the arguments of cordon.
type CordonArgs struct{ action.OnNode }

// Cordon keeps new pods off one node; pods on it stay.
var Cordon = add(action.New(action.Spec{
	Name:  "cordon",
	Title: "Cordon a node",
	Doc:   "Mark one Node unschedulable, so that no new pods are placed on it. Pods on it stay.",
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch", "patch"}}, // those that stay schedulable
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},                  // those that stay on it
	},
}, planCordon))

func planCordon(ctx context.Context, s *action.Session, a CordonArgs) error {
	n, err := s.CoreV1().Nodes().Get(ctx, a.Node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := s.Target(n); err != nil || n.Spec.Unschedulable {
		return err
	}
	if err := s.Say("cordon", "node", n.Name); err != nil {
		return err
	}
	s.Kubectl("kubectl cordon %s", n.Name)
	s.UndoCall("plan_uncordon", UncordonArgs{action.OnNode{Node: n.Name}}, "kubectl uncordon "+n.Name, "")
	return proposeCordon(s, n)
}

func proposeCordon(s *action.Session, n *corev1.Node) error {
	return s.Patch(n, action.Set("spec.unschedulable", true))
}
