package actions

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// RolloutUndoArgs are the arguments of rollout_undo.
type RolloutUndoArgs struct {
	action.Namespaced
	action.Rollable
	ToRevision *int32 `json:"to_revision,omitempty" jsonschema:"the one before the current when left out"`
}

// RolloutUndo puts an earlier pod template back.
var RolloutUndo = add(action.New(action.Spec{
	Name:     "rollout_undo",
	Title:    "Undo a rollout",
	Doc:      "Put the pod template of an earlier revision back into one Deployment, StatefulSet or DaemonSet. The replica count stays.",
	Destroys: true,
	Rolls:    true,
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"deployments", "statefulsets", "daemonsets"}, Verbs: []string{"get", "list", "patch"}},
		{APIGroups: []string{"apps"}, Resources: []string{"replicasets", "controllerrevisions"}, Verbs: []string{"list"}},
	},
	Schema: func(s *jsonschema.Schema) { action.Between(s, "to_revision", 1, math.MaxInt32) },
}, planRolloutUndo))

func planRolloutUndo(ctx context.Context, s *action.Session, a RolloutUndoArgs) error {
	w, err := a.Rolling(ctx, s, a.Namespace)
	if err != nil {
		return err
	}
	h, err := historyOf(ctx, s, w.Observed)
	if err != nil {
		return err
	}
	target, err := h.find(s, w, a.ToRevision)
	if err != nil {
		return err
	}
	current := h.revisions[0]
	if target.same(h.template) {
		return nil
	}
	if err := s.Say("undo", w.Argument, w.FullName(), "from", "revision", current.number, "to", target.number); err != nil {
		return err
	}
	kubectl := func(to int64) string {
		return fmt.Sprintf("kubectl -n %s rollout undo %s/%s --to-revision=%d", a.Namespace, w.Argument, w.GetName(), to)
	}
	s.Kubectl("%s", kubectl(target.number))
	back := a
	back.ToRevision, back.ExpectedVersion = ptr.To(int32(current.number)), ""
	s.UndoCall("plan_rollout_undo", back, kubectl(current.number), undoesTemplate)
	s.Warn("only the pod template is put back: not replicas, strategy, paused or any other field of the spec")
	if h.stuck {
		s.Warn("%s keeps its template, for it never became ready: it must be deleted after the undo (plan_delete_pod), the controller waits for it", stuckPod(ctx, s, w))
	}
	edits := []action.Edit{action.Set("spec.template", target.template)}
	if w.Argument == "deployment" {
		edits = append(edits, action.Hold("spec.paused"))
	}
	return s.Patch(w.Observed, append(append(edits, target.images(h.template)...), action.SetReason())...)
}

// stuckPod names the pod of a StatefulSet that is at the new revision and not ready. Where
// the pods cannot be had it is said in general.
func stuckPod(ctx context.Context, s *action.Session, w action.Workload) string {
	set, ok := w.Observed.(*appsv1.StatefulSet)
	if !ok {
		return "a pod"
	}
	list, err := s.CoreV1().Pods(w.GetNamespace()).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(set.Spec.Selector)})
	if err != nil {
		return "a pod"
	}
	for _, p := range list.Items {
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if metav1.IsControlledBy(&p, set) && !ready && p.Labels[appsv1.ControllerRevisionHashLabelKey] == set.Status.UpdateRevision {
			return "pod " + p.Name
		}
	}
	return "a pod"
}

// undoesTemplate is what no undo of a rollout restores.
const undoesTemplate = "it reverts the pod template, not the replica count or other fields, and no pod that was replaced"

// template is a pod template in its JSON form, without the label that a Deployment adds.
type template = map[string]any

// history is what there is to go back to.
type history struct {
	revisions []revision // the current one first
	template  template   // of the workload itself
	seen      bool       // its controller has seen the live spec
	stuck     bool       // its controller waits for a pod before it goes on
}

// revision is one earlier template, or the current one.
type revision struct {
	number   int64
	template template
}

func (r revision) same(t template) bool { return plan.Show(r.template) == plan.Show(t) }

// images shows for every place of a container which image is there after the undo.
func (r revision) images(now template) (edits []action.Edit) {
	for _, list := range []string{"initContainers", "containers"} {
		for i := range max(len(containers(now, list)), len(containers(r.template, list))) {
			field := fmt.Sprintf("spec.%s[%d].image", list, i)
			was, is := plan.Object(now).Value(field), plan.Object(r.template).Value(field)
			if was != is {
				edits = append(edits, action.Follows("spec.template."+field, is))
			}
		}
	}
	return edits
}

// changes names the fields in which a template differs from this revision, images with
// both sides. Other values are not shown: they may be secrets.
func (r revision) changes(now template) []string { return differences("", r.template, now) }

func differences(field string, was, is any) (fields []string) {
	if plan.Show(was) == plan.Show(is) {
		return nil
	}
	old, both := was.(map[string]any)
	if now, ok := is.(map[string]any); ok && both {
		keys := map[string]any{}
		maps.Copy(keys, old)
		maps.Copy(keys, now)
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			fields = append(fields, differences(strings.TrimPrefix(field+"."+k, "."), old[k], now[k])...)
		}
		return fields
	}
	before, isList := was.([]any)
	after, stillList := is.([]any)
	switch {
	case isList && stillList && len(before) == len(after) && strings.HasSuffix(strings.ToLower(field), "containers"):
		for i := range before {
			fields = append(fields, differences(fmt.Sprintf("%s[%d]", field, i), before[i], after[i])...)
		}
		return fields
	case strings.HasSuffix(field, "].image"):
		return []string{fmt.Sprintf("%s (%s to %s)", field, plan.Show(was), plan.Show(is))}
	}
	return []string{field}
}

func containers(t template, list string) []any {
	spec, _ := t["spec"].(map[string]any)
	all, _ := spec[list].([]any)
	return all
}

// find resolves the revision to go back to.
func (h history) find(s *action.Session, w action.Workload, to *int32) (revision, error) {
	if !h.seen {
		return revision{}, s.Refuse(refusal.PreconditionFailed, "wait until its controller has seen the change, then plan again",
			"%s %s was changed, and its controller has made no revision of it yet", w.Argument, w.FullName())
	}
	if to == nil && len(h.revisions) > 1 {
		return h.revisions[1], nil
	}
	var have []string
	for _, r := range h.revisions {
		if to != nil && r.number == int64(*to) {
			return r, nil
		}
		have = append(have, strconv.FormatInt(r.number, 10))
	}
	slices.Reverse(have)
	switch {
	case len(have) < 2:
		return revision{}, s.Refuse(refusal.NoHistory, "set what is wanted by plan_set_image", "%s %s has no earlier revision to go back to", w.Argument, w.FullName())
	default:
		return revision{}, s.Refuse(refusal.NoHistory, "use one of these for to_revision", "%s %s has no revision %d; it has %s", w.Argument, w.FullName(), *to, list(have))
	}
}

// historyOf reads the revisions of a workload: the ReplicaSets of a Deployment, the
// ControllerRevisions of the other kinds.
func historyOf(ctx context.Context, s *action.Session, o action.Observed) (h history, err error) {
	switch w := o.(type) {
	case *appsv1.Deployment:
		h.seen = w.Status.ObservedGeneration >= w.Generation
		if h.template, err = templateOf(w.Spec.Template); err == nil {
			h.revisions, err = replicaSets(ctx, s, w)
		}
	case *appsv1.StatefulSet:
		h.seen = w.Status.ObservedGeneration >= w.Generation
		h.stuck = w.Spec.PodManagementPolicy != appsv1.ParallelPodManagement && w.Spec.Replicas != nil &&
			w.Status.CurrentRevision != w.Status.UpdateRevision && w.Status.ReadyReplicas < *w.Spec.Replicas
		if h.template, err = templateOf(w.Spec.Template); err == nil {
			h.revisions, err = controllerRevisions(ctx, s, w, w.Spec.Selector)
		}
	case *appsv1.DaemonSet:
		h.seen = w.Status.ObservedGeneration >= w.Generation
		if h.template, err = templateOf(w.Spec.Template); err == nil {
			h.revisions, err = controllerRevisions(ctx, s, w, w.Spec.Selector)
		}
	}
	slices.SortFunc(h.revisions, func(a, b revision) int { return cmp.Compare(b.number, a.number) })
	return h, err
}

func templateOf(t corev1.PodTemplateSpec) (template, error) {
	t = *t.DeepCopy()
	delete(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	o, err := plan.ObjectOf(&t)
	return o, err
}

func replicaSets(ctx context.Context, s *action.Session, d *appsv1.Deployment) (all []revision, err error) {
	sets, err := s.AppsV1().ReplicaSets(d.Namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)})
	if err != nil {
		return nil, err
	}
	for i := range sets.Items {
		rs := &sets.Items[i]
		number, err := strconv.ParseInt(rs.Annotations["deployment.kubernetes.io/revision"], 10, 32)
		if err != nil || !metav1.IsControlledBy(rs, d) {
			continue
		}
		t, err := templateOf(rs.Spec.Template)
		if err != nil {
			return nil, err
		}
		all = append(all, revision{number, t})
	}
	return all, nil
}

func controllerRevisions(ctx context.Context, s *action.Session, of metav1.Object, selector *metav1.LabelSelector) (all []revision, err error) {
	list, err := s.AppsV1().ControllerRevisions(of.GetNamespace()).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(selector)})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		r := &list.Items[i]
		if !metav1.IsControlledBy(r, of) {
			continue
		}
		var data struct {
			Spec struct{ Template corev1.PodTemplateSpec }
		}
		if err := json.Unmarshal(r.Data.Raw, &data); err != nil {
			return nil, fmt.Errorf("revision %d of %s cannot be read: %w", r.Revision, strings.ToLower(of.GetName()), err)
		}
		t, err := templateOf(data.Spec.Template)
		if err != nil {
			return nil, err
		}
		all = append(all, revision{r.Revision, t})
	}
	return all, nil
}
