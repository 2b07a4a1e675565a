package actions

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
)

// RolloutResumeArgs are the arguments of rollout_resume.
type RolloutResumeArgs struct {
	action.Namespaced
	Deployment string `json:"deployment" jsonschema:"exact name"`
}

// RolloutResume lets changes of one Deployment's pod template reach its pods again.
var RolloutResume = add(action.New(action.Spec{
	Name:     "rollout_resume",
	Title:    "Resume a rollout",
	Doc:      "Resume one paused Deployment: what was changed in its pod template meanwhile reaches its pods.",
	Destroys: true,
	Rolls:    true,
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get", "list", "patch"}},
		{APIGroups: []string{"apps"}, Resources: []string{"replicasets"}, Verbs: []string{"list"}},
	},
}, planRolloutResume))

func planRolloutResume(ctx context.Context, s *action.Session, a RolloutResumeArgs) error {
	d, err := s.AppsV1().Deployments(a.Namespace).Get(ctx, a.Deployment, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := s.Target(d); err != nil || !d.Spec.Paused {
		return err
	}
	if err := s.Say("resume", "deployment", d.Namespace+"/"+d.Name); err != nil {
		return err
	}
	h, err := historyOf(ctx, s, d)
	if err != nil {
		return err
	}
	switch last := h.revisions; {
	case len(last) == 0 || !last[0].same(h.template):
		s.Warn("the pod template was changed since the last rollout: all of it is released now, and %d pods are replaced", d.Status.Replicas)
		if len(last) > 0 {
			s.Warn("released: %s", list(last[0].changes(h.template)))
		}
	case !h.seen:
		s.Warn("its controller has not seen its last change yet: which pods are updated is not known, and all are counted as replaced")
	case d.Status.UpdatedReplicas < d.Status.Replicas:
		s.Warn("its rollout goes on: %d of %d pods are updated", d.Status.UpdatedReplicas, d.Status.Replicas)
	default:
		s.Warn("nothing was changed meanwhile: no pod is replaced")
	}
	kubectl := func(verb string) string {
		return fmt.Sprintf("kubectl -n %s rollout %s deployment/%s", d.Namespace, verb, d.Name)
	}
	s.Kubectl("%s", kubectl("resume"))
	s.UndoCall("plan_rollout_pause", RolloutPauseArgs{action.Namespaced{Namespace: d.Namespace}, d.Name}, kubectl("pause"), "pods that were replaced meanwhile stay so")
	return s.Patch(d, action.Hold("spec.template"), action.Remove("spec.paused"))
}
