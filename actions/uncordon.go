package actions

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
)

// UncordonArgs are the arguments of uncordon.
type UncordonArgs struct{ action.OnNode }

// Uncordon lets new pods onto one node again.
var Uncordon = add(action.New(action.Spec{
	Name:  "uncordon",
	Title: "Uncordon a node",
	Doc:   "Mark one Node schedulable again. It moves no pods back.",
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "patch"}},
	},
}, planUncordon))

func planUncordon(ctx context.Context, s *action.Session, a UncordonArgs) error {
	n, err := s.CoreV1().Nodes().Get(ctx, a.Node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := s.Target(n); err != nil {
		return err
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && t.Key != corev1.TaintNodeUnschedulable {
			s.Warn("the taint %s still keeps pods off", t.ToString())
		}
	}
	if !n.Spec.Unschedulable {
		return nil
	}
	if err := s.Say("uncordon", "node", n.Name); err != nil {
		return err
	}
	s.Warn("it moves no pods back")
	s.Kubectl("kubectl uncordon %s", n.Name)
	s.UndoCall("plan_cordon", CordonArgs{action.OnNode{Node: n.Name}}, "kubectl cordon "+n.Name, "")
	return s.Patch(n, action.Remove("spec.unschedulable"))
}
