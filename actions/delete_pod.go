package actions

import (
	"context"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// DeletePodArgs are the arguments of delete_pod.
type DeletePodArgs struct {
	action.Namespaced
	Pod   string `json:"pod" jsonschema:"exact name"`
	Grace *int64 `json:"grace_period_seconds,omitempty" jsonschema:"instead of the pod's own"`
}

// DeletePod deletes one pod, with its uid as the precondition.
var DeletePod = add(action.New(action.Spec{
	Name:         "delete_pod",
	Title:        "Delete a pod",
	Doc:          "Delete one Pod. Disruption budgets are not asked; the plan names those that it passes over.",
	Destroys:     true,
	RequiresUser: true,
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "delete"}},
	},
	Schema: func(s *jsonschema.Schema) { action.Between(s, "grace_period_seconds", 1, 3600) },
}, planDeletePod))

func planDeletePod(ctx context.Context, s *action.Session, a DeletePodArgs) error {
	p, err := removable(ctx, s, a.Namespace, a.Pod)
	if err != nil {
		return err
	}
	if err := s.Say("delete", "pod", p.Namespace+"/"+p.Name); err != nil {
		return err
	}
	kubectl := fmt.Sprintf("kubectl -n %s delete pod/%s", a.Namespace, p.Name)
	if a.Grace != nil {
		kubectl += fmt.Sprintf(" --grace-period=%d", *a.Grace)
	}
	s.Kubectl("%s", kubectl)
	return s.Delete(p, a.Grace)
}

// removable reads a pod that shall go and says what becomes of it.
func removable(ctx context.Context, s *action.Session, namespace, name string) (*corev1.Pod, error) {
	p, err := s.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if err := s.Target(p); err != nil {
		return nil, err
	}
	if s.Facts(p).Mirror {
		return nil, s.Refuse(refusal.OwnedByController, "change the static pod's file on its node",
			"pod %s/%s is a static pod, managed by the kubelet of node %s", p.Namespace, p.Name, p.Spec.NodeName)
	}
	undo := "there is none: no controller makes this pod again"
	if owner := action.Controller(p); owner != "" {
		undo = "there is none and none is needed: " + owner + " makes a new pod; data in emptyDir volumes is gone"
	}
	s.Undo(plan.Undo{Note: undo})
	return p, nil
}
