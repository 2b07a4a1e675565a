package actions

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
)

// RolloutPauseArgs are the arguments of rollout_pause.
type RolloutPauseArgs struct {
	action.Namespaced
	Deployment string `json:"deployment" jsonschema:"exact name"`
}

// RolloutPause keeps changes of one Deployment's pod template from its pods.
var RolloutPause = add(action.New(action.Spec{
	Name:  "rollout_pause",
	Title: "Pause a rollout",
	Doc:   "Pause one Deployment: changes of its pod template reach no pod until rollout_resume.",
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get", "list", "patch"}},
	},
}, planRolloutPause))

func planRolloutPause(ctx context.Context, s *action.Session, a RolloutPauseArgs) error {
	d, err := s.AppsV1().Deployments(a.Namespace).Get(ctx, a.Deployment, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := s.Target(d); err != nil || d.Spec.Paused {
		return err
	}
	if err := s.Say("pause", "deployment", d.Namespace+"/"+d.Name); err != nil {
		return err
	}
	if st := d.Status; st.UpdatedReplicas < st.Replicas {
		s.Warn("its rollout stops where it is: %d of %d pods are updated", st.UpdatedReplicas, st.Replicas)
	}
	kubectl := func(verb string) string {
		return fmt.Sprintf("kubectl -n %s rollout %s deployment/%s", d.Namespace, verb, d.Name)
	}
	s.Kubectl("%s", kubectl("pause"))
	s.UndoCall("plan_rollout_resume", RolloutResumeArgs{action.Namespaced{Namespace: d.Namespace}, d.Name}, kubectl("resume"), "")
	return s.Patch(d, action.Hold("spec.template"), action.Set("spec.paused", true))
}
