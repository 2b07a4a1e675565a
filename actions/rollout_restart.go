package actions

import (
	"context"
	"fmt"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
)

const restartedAt = "spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]"

// RolloutRestartArgs are the arguments of rollout_restart.
type RolloutRestartArgs struct {
	action.Namespaced
	action.Rollable
}

// RolloutRestart replaces every pod of one workload, at the pace of its own strategy.
var RolloutRestart = add(action.New(action.Spec{
	Name:     "rollout_restart",
	Title:    "Restart a workload",
	Doc:      "Replace every pod of one Deployment, StatefulSet or DaemonSet at the pace of its update strategy.",
	Destroys: true,
	Rolls:    true,
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"deployments", "statefulsets", "daemonsets"}, Verbs: []string{"get", "list", "patch"}},
		{APIGroups: []string{"apps"}, Resources: []string{"replicasets", "controllerrevisions"}, Verbs: []string{"list"}},
	},
}, planRolloutRestart))

func planRolloutRestart(ctx context.Context, s *action.Session, a RolloutRestartArgs) error {
	w, err := a.Rolling(ctx, s, a.Namespace)
	if err != nil {
		return err
	}
	if err := s.Say("restart", w.Argument, w.FullName()); err != nil {
		return err
	}
	s.Kubectl("kubectl -n %s rollout restart %s/%s", a.Namespace, w.Argument, w.GetName())
	back := RolloutUndoArgs{Namespaced: action.Namespaced{Namespace: a.Namespace}, Rollable: a.Rollable, ToRevision: revisionOf(ctx, s, w)}
	kubectl := "kubectl -n " + a.Namespace + " rollout undo " + w.Argument + "/" + w.GetName()
	if back.ToRevision != nil {
		kubectl += fmt.Sprintf(" --to-revision=%d", *back.ToRevision)
	}
	s.UndoCall("plan_rollout_undo", back, kubectl, undoesTemplate)
	edits := []action.Edit{action.Hold("spec.template")}
	if w.Argument == "deployment" {
		edits = append(edits, action.Hold("spec.paused"))
	}
	return s.Patch(w.Observed, append(edits, action.Set(restartedAt, s.Time.UTC().Format(time.RFC3339)), action.SetReason())...)
}

// revisionOf is the revision that holds the template of now, nil where it is not known: the
// undo then goes to the one before the current, which is another one once there is a later
// rollout.
func revisionOf(ctx context.Context, s *action.Session, w action.Workload) *int32 {
	h, err := historyOf(ctx, s, w.Observed)
	if err != nil || !h.seen || len(h.revisions) == 0 || !h.revisions[0].same(h.template) {
		return nil
	}
	return ptr.To(int32(h.revisions[0].number))
}
