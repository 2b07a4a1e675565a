package read

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

type getWorkloadArgs struct {
	namespaced
	workload
}

// Check wants exactly one object.
func (a getWorkloadArgs) Check() []string {
	if n := count(a.each()); n != 1 {
		return []string{fmt.Sprintf("exactly one of deployment, statefulset, daemonset, replicaset, job, cronjob must be given, not %d", n)}
	}
	return nil
}

// WorkloadDetails is the answer of get_workload.
type WorkloadDetails struct {
	Head
	Workload
	Generation  int64             `json:"generation"`
	Observed    int64             `json:"observed_generation,omitempty"`
	Settings    map[string]string `json:"settings,omitempty" jsonschema:"strategy and the like"`
	Owner       *Owner            `json:"owner,omitempty" jsonschema:"the controller that would undo a change"`
	Conditions  []Condition       `json:"conditions"`
	History     []Revision        `json:"history" jsonschema:"newest first"`
	Autoscalers []Autoscaler      `json:"autoscalers"`
	Budgets     []Budget          `json:"budgets" jsonschema:"disruption budgets over its pods"`
	Containers  []Container       `json:"containers"`
	Annotations []Annotation      `json:"annotations"`
	Managers    []Manager         `json:"managers" jsonschema:"who set its fields, newest first"`
	Selector    string            `json:"untrusted_selector,omitempty" jsonschema:"of its pods, for list_pods"`
	Truncated   string            `json:"truncated,omitempty" jsonschema:"how much is missing"`
}

// Owner is a controller.
type Owner struct {
	Kind string `json:"untrusted_kind"`
	Name string `json:"untrusted_name"`
}

// Revision is one pod template that the workload has had.
type Revision struct {
	Revision int64    `json:"revision"`
	Current  bool     `json:"current,omitempty"`
	Object   string   `json:"object" jsonschema:"the ReplicaSet or ControllerRevision"`
	Replicas int32    `json:"replicas,omitempty"`
	Created  string   `json:"created"`
	Images   []string `json:"untrusted_images,omitempty"`
	Cause    string   `json:"untrusted_change_cause,omitempty"`
}

// Autoscaler is a HorizontalPodAutoscaler of the workload.
type Autoscaler struct {
	Name       string      `json:"name"`
	Min        int32       `json:"min"`
	Max        int32       `json:"max"`
	Current    int32       `json:"current"`
	Desired    int32       `json:"desired"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// Budget is a PodDisruptionBudget over the workload's pods.
type Budget struct {
	Name           string `json:"name"`
	MinAvailable   string `json:"min_available,omitempty"`
	MaxUnavailable string `json:"max_unavailable,omitempty"`
	Allowed        int32  `json:"disruptions_allowed"`
	Healthy        int32  `json:"healthy"`
	Desired        int32  `json:"desired_healthy"`
}

// Container is one of the pod template. Values of env, command and arguments are never
// shown: their hash tells whether two are the same.
type Container struct {
	Name    string            `json:"name"`
	Init    bool              `json:"init,omitempty"`
	Image   string            `json:"untrusted_image"`
	Request map[string]string `json:"requests,omitempty"`
	Limit   map[string]string `json:"limits,omitempty"`
	Env     []Env             `json:"env,omitempty"`
	Command []string          `json:"command_hashes,omitempty"`
	Args    []string          `json:"args_hashes,omitempty"`
}

// Env is an environment variable: where its value comes from, or a keyed hash of it.
type Env struct {
	Name string `json:"untrusted_name"`
	From string `json:"from,omitempty"`
	Hash string `json:"hash,omitempty"`
}

// Annotation is one annotation: its value where the key is on a short list, else a keyed
// hash of it.
type Annotation struct {
	Key   string `json:"key"`
	Value string `json:"untrusted_value,omitempty"`
	Hash  string `json:"hash,omitempty"`
}

// Manager is a field manager.
type Manager struct {
	Name        string   `json:"untrusted_name"`
	Operation   string   `json:"operation"`
	Subresource string   `json:"untrusted_subresource,omitempty"`
	At          string   `json:"at,omitempty"`
	Owns        []string `json:"owns,omitempty" jsonschema:"of the fields that an action may change"`
}

// The most of each list of get_workload, and of the objects that are looked through.
const (
	maxItems  = 20
	maxSearch = 200
)

var getWorkload = of(Tool{
	Name: "get_workload", Title: "Look at one workload",
	Doc: "Reads one Deployment, StatefulSet, DaemonSet, ReplicaSet, Job or CronJob: conditions, rollout status and history by revision, owner, autoscalers, disruption budgets, containers, field managers. Env, arguments and annotations as keyed hashes.",
	Needs: append(needsOfWorkloads(get),
		need("apps", list, "replicasets", "controllerrevisions"),
		need("autoscaling", list, "horizontalpodautoscalers"), need("policy", list, "poddisruptionbudgets")),
}, func(ctx context.Context, v view, a *getWorkloadArgs) (*WorkloadDetails, error) {
	m, err := v.one(ctx, a)
	if err != nil {
		return nil, err
	}
	out := &WorkloadDetails{
		Generation: m.meta.Generation, Observed: max(m.observed, 0), Settings: m.settings,
		Conditions: few(m.conditions), Annotations: v.annotations(m.meta.Annotations), Managers: managers(m),
		History: []Revision{}, Autoscalers: []Autoscaler{}, Budgets: []Budget{},
	}
	maps.DeleteFunc(out.Settings, func(_, s string) bool { return s == "" })
	if out.Workload, err = m.row(1); err != nil {
		return nil, err
	}
	if ref := metav1.GetControllerOf(m.meta); ref != nil {
		out.Owner = &Owner{plan.Untrusted(ref.Kind), plan.Untrusted(ref.Name)}
	}
	if m.selector != nil {
		out.Selector = plan.Untrusted(metav1.FormatLabelSelector(m.selector))
	}
	out.Containers = v.containers(m.template)
	var cut []string
	for _, more := range []func(context.Context, made, *WorkloadDetails) (string, error){v.history, v.autoscalers, v.budgets} {
		missing, err := more(ctx, m, out)
		if err != nil {
			return nil, err
		}
		if missing != "" {
			cut = append(cut, missing)
		}
	}
	if n := len(m.conditions) - len(out.Conditions); n > 0 {
		cut = append(cut, fmt.Sprintf("%d conditions", n))
	}
	if n := len(m.meta.Annotations) - len(out.Annotations); n > 0 {
		cut = append(cut, fmt.Sprintf("%d annotations", n))
	}
	if cut != nil {
		out.Truncated = "not shown: " + strings.Join(cut, ", ")
	}
	return out, nil
})

func few[T any](all []T) []T {
	return append([]T{}, all[:min(len(all), maxItems)]...) // never null
}

// one reads the object that the arguments name.
func (v view) one(ctx context.Context, a *getWorkloadArgs) (m made, err error) {
	kind, name := a.named()
	apps, batch, opts := v.API.AppsV1(), v.API.BatchV1(), metav1.GetOptions{}
	switch kind {
	case "deployment":
		return gotten(deployment)(apps.Deployments(a.Namespace).Get(ctx, name, opts))("deployments.apps", a.Namespace)
	case "statefulset":
		return gotten(statefulSet)(apps.StatefulSets(a.Namespace).Get(ctx, name, opts))("statefulsets.apps", a.Namespace)
	case "daemonset":
		return gotten(daemonSet)(apps.DaemonSets(a.Namespace).Get(ctx, name, opts))("daemonsets.apps", a.Namespace)
	case "replicaset":
		return gotten(replicaSet)(apps.ReplicaSets(a.Namespace).Get(ctx, name, opts))("replicasets.apps", a.Namespace)
	case "job":
		return gotten(job)(batch.Jobs(a.Namespace).Get(ctx, name, opts))("jobs.batch", a.Namespace)
	}
	return gotten(cronJob)(batch.CronJobs(a.Namespace).Get(ctx, name, opts))("cronjobs.batch", a.Namespace)
}

// gotten takes what a typed Get gave.
func gotten[T any](of func(*T) made) func(*T, error) func(resource, namespace string) (made, error) {
	return func(o *T, err error) func(string, string) (made, error) {
		return func(resource, namespace string) (made, error) {
			if err != nil {
				return made{}, denied(err, "get", resource, namespace)
			}
			return of(o), nil
		}
	}
}

const (
	revisionKey = "deployment.kubernetes.io/revision"
	causeKey    = "kubernetes.io/change-cause"
)

// history lists the revisions of what rolls its pods.
func (v view) history(ctx context.Context, m made, out *WorkloadDetails) (missing string, err error) {
	opts := metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(m.selector), Limit: maxSearch, TimeoutSeconds: new(int64(listTimeout))}
	ns, rest := m.meta.Namespace, ""
	switch m.kind {
	case "deployment":
		l, err := v.API.AppsV1().ReplicaSets(ns).List(ctx, opts)
		if err != nil {
			return "", denied(err, "list", "replicasets.apps", ns)
		}
		rest = l.Continue
		for _, r := range l.Items {
			if !metav1.IsControlledBy(&r, m.meta) {
				continue
			}
			n, _ := strconv.ParseInt(r.Annotations[revisionKey], 10, 64)
			out.History = append(out.History, Revision{
				Revision: n, Current: n > 0 && r.Annotations[revisionKey] == m.meta.Annotations[revisionKey], Object: r.Name, Replicas: r.Status.Replicas,
				Created: when(r.CreationTimestamp), Images: images(&r.Spec.Template, 1), Cause: plan.Untrusted(r.Annotations[causeKey]),
			})
		}
	case "statefulset", "daemonset":
		l, err := v.API.AppsV1().ControllerRevisions(ns).List(ctx, opts)
		if err != nil {
			return "", denied(err, "list", "controllerrevisions.apps", ns)
		}
		rest = l.Continue
		newest := int64(0)
		for _, r := range l.Items {
			if !metav1.IsControlledBy(&r, m.meta) {
				continue
			}
			var data struct {
				Spec struct {
					Template corev1.PodTemplateSpec `json:"template"`
				} `json:"spec"`
			}
			if err := json.Unmarshal(r.Data.Raw, &data); err != nil {
				data.Spec.Template = corev1.PodTemplateSpec{} // it is free-form
			}
			newest = max(newest, r.Revision)
			out.History = append(out.History, Revision{
				Revision: r.Revision, Object: r.Name, Created: when(r.CreationTimestamp),
				Images: images(&data.Spec.Template, 1), Cause: plan.Untrusted(r.Annotations[causeKey]),
			})
		}
		current := ""
		if s, ok := m.object.(*appsv1.StatefulSet); ok {
			current = s.Status.UpdateRevision
		}
		for i, r := range out.History {
			out.History[i].Current = r.Object == current || current == "" && r.Revision == newest
		}
	}
	slices.SortFunc(out.History, func(a, b Revision) int {
		return cmp.Or(cmp.Compare(b.Revision, a.Revision), strings.Compare(a.Object, b.Object))
	})
	if n := len(out.History) - maxItems; n > 0 {
		missing = fmt.Sprintf("%d older revisions", n)
	}
	if rest != "" {
		missing = fmt.Sprintf("revisions beyond the first %d", maxSearch)
	}
	out.History = few(out.History)
	return missing, nil
}

func (v view) autoscalers(ctx context.Context, m made, out *WorkloadDetails) (missing string, err error) {
	ns := m.meta.Namespace
	l, err := v.API.AutoscalingV2().HorizontalPodAutoscalers(ns).List(ctx, metav1.ListOptions{Limit: maxSearch, TimeoutSeconds: new(int64(listTimeout))})
	if err != nil {
		return "", denied(err, "list", "horizontalpodautoscalers.autoscaling", ns)
	}
	for _, h := range l.Items {
		if ref := h.Spec.ScaleTargetRef; strings.ToLower(ref.Kind) != m.kind || ref.Name != m.meta.Name || len(out.Autoscalers) == maxItems {
			continue
		}
		a := Autoscaler{Name: h.Name, Min: ptr.Deref(h.Spec.MinReplicas, 1), Max: h.Spec.MaxReplicas, Current: h.Status.CurrentReplicas, Desired: h.Status.DesiredReplicas}
		for _, c := range h.Status.Conditions[:min(len(h.Status.Conditions), maxItems)] {
			a.Conditions = append(a.Conditions, condition[autoscalingv2.HorizontalPodAutoscalerConditionType](c.Type, c.Status, c.LastTransitionTime, c.Reason, c.Message))
		}
		out.Autoscalers = append(out.Autoscalers, a)
	}
	if l.Continue != "" {
		missing = fmt.Sprintf("autoscalers beyond the first %d of the namespace", maxSearch)
	}
	return missing, nil
}

func (v view) budgets(ctx context.Context, m made, out *WorkloadDetails) (missing string, err error) {
	ns := m.meta.Namespace
	l, err := v.API.PolicyV1().PodDisruptionBudgets(ns).List(ctx, metav1.ListOptions{Limit: maxSearch, TimeoutSeconds: new(int64(listTimeout))})
	if err != nil {
		return "", denied(err, "list", "poddisruptionbudgets.policy", ns)
	}
	for _, b := range l.Items {
		if covers(b, m.template.Labels) && len(out.Budgets) < maxItems {
			out.Budgets = append(out.Budgets, Budget{
				Name: b.Name, MinAvailable: share(b.Spec.MinAvailable), MaxUnavailable: share(b.Spec.MaxUnavailable),
				Allowed: b.Status.DisruptionsAllowed, Healthy: b.Status.CurrentHealthy, Desired: b.Status.DesiredHealthy,
			})
		}
	}
	if l.Continue != "" {
		missing = fmt.Sprintf("budgets beyond the first %d of the namespace", maxSearch)
	}
	return missing, nil
}

func covers(b policyv1.PodDisruptionBudget, pods map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && selector.Matches(labels.Set(pods))
}

func (v view) containers(t *corev1.PodTemplateSpec) []Container {
	out := []Container{}
	add := func(c corev1.Container, init bool) {
		if len(out) == maxItems {
			return
		}
		row := Container{
			Name: c.Name, Init: init, Image: plan.Untrusted(c.Image), Request: amounts(c.Resources.Requests), Limit: amounts(c.Resources.Limits),
			Command: v.hashes(c.Command), Args: v.hashes(c.Args),
		}
		for _, e := range c.Env[:min(len(c.Env), maxItems)] {
			env := Env{Name: plan.Untrusted(e.Name)}
			switch from := e.ValueFrom; {
			case from == nil:
				env.Hash = v.Redact(e.Value)
			case from.SecretKeyRef != nil:
				env.From = "a secret"
			case from.ConfigMapKeyRef != nil:
				env.From = "a configmap"
			default:
				env.From = "the pod"
			}
			row.Env = append(row.Env, env)
		}
		out = append(out, row)
	}
	for _, c := range t.Spec.InitContainers {
		add(c, true)
	}
	for _, c := range t.Spec.Containers {
		add(c, false)
	}
	return out
}

func (v view) hashes(values []string) (out []string) {
	for _, s := range values[:min(len(values), maxItems)] {
		out = append(out, v.Redact(s))
	}
	return out
}

func amounts(l corev1.ResourceList) map[string]string {
	out := map[string]string{}
	for name, q := range l {
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory {
			out[string(name)] = q.String()
		}
	}
	return out
}

// shownAnnotations are those whose values are shown.
var shownAnnotations = []string{causeKey, revisionKey, "deprecated.daemonset.template.generation", "kubectl.kubernetes.io/restartedAt"}

const ownAnnotations = "kubewrite.dev/"

func (v view) annotations(all map[string]string) []Annotation {
	out := []Annotation{}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if len(out) == maxItems {
			break
		}
		a := Annotation{Key: k}
		if slices.Contains(shownAnnotations, k) || strings.HasPrefix(k, ownAnnotations) {
			a.Value = plan.Untrusted(all[k])
		} else {
			a.Hash = v.Redact(all[k])
		}
		out = append(out, a)
	}
	return out
}

// schedule is a cron schedule of numbers, names and signs.
var schedule = regexp.MustCompile(`^(@[a-z]{4,8}|[0-9*/,?LW#A-Z-]+( [0-9*/,?LW#A-Z-]+){4})$`)

// changeable are the fields that actions write, as field managers own them.
var changeable = []string{"spec.replicas", "spec.paused", "spec.suspend", "spec.template", "spec.jobTemplate", "spec.strategy", "spec.updateStrategy"}

// managers are who set fields of an object, the newest first.
func managers(m made) []Manager {
	out := []Manager{}
	for _, f := range m.meta.ManagedFields {
		row := Manager{Name: plan.Untrusted(f.Manager), Operation: "Update", Subresource: plan.Untrusted(f.Subresource)}
		if f.Operation == metav1.ManagedFieldsOperationApply {
			row.Operation = "Apply"
		}
		if f.Time != nil {
			row.At = when(*f.Time)
		}
		var owned map[string]map[string]json.RawMessage
		if f.FieldsV1 != nil && json.Unmarshal(f.FieldsV1.GetRawBytes(), &owned) == nil {
			for _, field := range changeable {
				if _, ok := owned["f:spec"]["f:"+strings.TrimPrefix(field, "spec.")]; ok {
					row.Owns = append(row.Owns, field)
				}
			}
		}
		out = append(out, row)
	}
	slices.SortStableFunc(out, func(a, b Manager) int { return strings.Compare(b.At, a.At) })
	return few(out)
}

// Text is the answer line by line.
func (w *WorkloadDetails) Text() string {
	s := sheet{head: fmt.Sprintf("%s %s/%s: %s", w.Kind, w.Namespace, w.Name, w.State)}
	s.line("desired %d, ready %d, updated %d, available %d, generation %d (observed %d), version %s, created %s", w.Desired, w.Ready, w.Updated, w.Available, w.Generation, w.Observed, w.Version, w.Created)
	var settings []string
	for _, k := range slices.Sorted(maps.Keys(w.Settings)) {
		settings = append(settings, k+" "+w.Settings[k])
	}
	if settings != nil {
		s.line("%s", strings.Join(settings, ", "))
	}
	if w.Owner != nil {
		s.line("owned by a controller, which would undo a change")
		s.quote("owner", w.Owner.Kind+" "+w.Owner.Name)
	}
	for _, a := range w.Autoscalers {
		s.line("autoscaler %s: %d to %d, now %d, wants %d", a.Name, a.Min, a.Max, a.Current, a.Desired)
		for _, c := range a.Conditions {
			s.quote("condition of autoscaler "+a.Name, conditionText(c))
		}
	}
	for _, b := range w.Budgets {
		rule := "max_unavailable " + b.MaxUnavailable
		if b.MinAvailable != "" {
			rule = "min_available " + b.MinAvailable
		}
		s.line("disruption budget %s: %s, allows %d now, %d of %d healthy", b.Name, rule, b.Allowed, b.Healthy, b.Desired)
	}
	for _, c := range w.Containers {
		what := "container "
		if c.Init {
			what = "init container "
		}
		s.line("%s%s: requests %s, limits %s, %d env, command %s, args %s", what, c.Name, amountsText(c.Request), amountsText(c.Limit), len(c.Env), hashText(c.Command), hashText(c.Args))
		s.quote("image of "+c.Name, c.Image)
		for _, e := range c.Env {
			s.quote("env of "+c.Name+", "+cmp.Or(e.From, e.Hash), e.Name)
		}
	}
	if len(w.History) > 0 {
		s.table = [][]string{{"REVISION", "OBJECT", "REPLICAS", "CREATED", "CURRENT"}}
	}
	for _, r := range w.History {
		current := ""
		if r.Current {
			current = "yes"
		}
		s.table = append(s.table, []string{fmt.Sprint(r.Revision), r.Object, fmt.Sprint(r.Replicas), r.Created, current})
		s.quote(fmt.Sprintf("images of revision %d", r.Revision), strings.Join(r.Images, ", "))
		s.quote(fmt.Sprintf("cause of revision %d", r.Revision), r.Cause)
	}
	for _, a := range w.Annotations {
		if a.Hash != "" {
			s.line("annotation %s: %s", a.Key, a.Hash)
		}
		s.quote("annotation "+a.Key, a.Value)
	}
	for i, m := range w.Managers {
		s.line("field manager %d: %s at %s, owns %s", i+1, m.Operation, cmp.Or(m.At, "an unknown time"), cmp.Or(strings.Join(m.Owns, ", "), "nothing that an action changes"))
		s.quote(fmt.Sprintf("field manager %d", i+1), strings.TrimSpace(m.Name+" "+m.Subresource))
	}
	if w.Truncated != "" {
		s.line("truncated: %s", w.Truncated)
	}
	for _, c := range w.Conditions {
		s.quote("condition", conditionText(c))
	}
	s.quote("selector", w.Selector)
	return s.text(w.Head)
}

func conditionText(c Condition) string {
	return fmt.Sprintf("%s %s since %s: %s: %s", c.Type, c.Status, cmp.Or(c.Since, "?"), c.Reason, c.Message)
}

func amountsText(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+" "+m[k])
	}
	return cmp.Or(strings.Join(out, " "), "none")
}

func hashText(all []string) string { return cmp.Or(strings.Join(all, " "), "none") }
