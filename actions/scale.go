package actions

import (
	"context"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// ScaleArgs are the arguments of scale.
type ScaleArgs struct {
	action.Namespaced
	action.Scalable
	Replicas int32 `json:"replicas" jsonschema:"how many replicas there shall be"`
}

// Scale sets the number of replicas of one workload by its scale subresource.
var Scale = add(action.New(action.Spec{
	Name:     "scale",
	Title:    "Scale a workload",
	Doc:      "Set the number of replicas of one Deployment, StatefulSet or ReplicaSet.",
	Destroys: true,
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"deployments", "statefulsets", "replicasets"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{"apps"}, Resources: []string{"deployments/scale", "statefulsets/scale", "replicasets/scale"}, Verbs: []string{"update"}},
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"patch"}}, // the change-cause note
	},
	Schema: func(s *jsonschema.Schema) { s.Properties["replicas"].Minimum = ptr.To(0.0) },
}, planScale))

func planScale(ctx context.Context, s *action.Session, a ScaleArgs) error {
	w, err := a.Get(ctx, s, a.Namespace)
	if err != nil {
		return err
	}
	if err := s.Target(w.Observed); err != nil {
		return err
	}
	if owner := action.Controller(w); owner != "" && w.Argument == "replicaset" {
		return s.Refuse(refusal.OwnedByController, instead(w),
			"replicaset %s is controlled by %s, which would undo the change at once", w.FullName(), owner)
	} else if owner != "" {
		s.Warn("controlled by %s, which may undo the change", owner)
	}
	if w.Replicas == a.Replicas {
		return nil
	}
	if err := s.Say("scale", w.Argument, w.FullName(), "from", w.Replicas, "to", a.Replicas); err != nil {
		return err
	}
	kubectl := func(from, to int32) string {
		return fmt.Sprintf("kubectl -n %s scale %s/%s --current-replicas=%d --replicas=%d", a.Namespace, w.Argument, w.GetName(), from, to)
	}
	s.Kubectl("%s", kubectl(w.Replicas, a.Replicas))
	back := a
	back.Replicas, back.ExpectedVersion = w.Replicas, ""
	s.UndoCall("plan_scale", back, kubectl(a.Replicas, w.Replicas), undoesScale(w, a.Replicas))
	if err := s.Scale(w.Observed, a.Replicas); err != nil {
		return err
	}
	if w.Argument == "deployment" {
		return s.Note(w.Observed)
	}
	return nil
}

// instead is the call that scales the controller of a workload.
func instead(w action.Workload) string {
	if ref := metav1.GetControllerOf(w); ref.APIVersion == appsv1.SchemeGroupVersion.String() && ref.Kind == "Deployment" {
		return "call plan_scale with deployment: " + action.SafeName(ref.Name)
	}
	return "call plan_scale for its controller instead"
}

// undoesScale is what scaling back does not restore.
func undoesScale(w action.Workload, to int32) string {
	set, ok := w.Observed.(*appsv1.StatefulSet)
	if !ok || to >= w.Replicas || len(set.Spec.VolumeClaimTemplates) == 0 {
		return ""
	}
	policy := set.Spec.PersistentVolumeClaimRetentionPolicy
	if policy == nil || policy.WhenScaled != appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
		return ""
	}
	return "it makes the pods again, with empty volume claims: the data of the deleted ones is gone"
}
