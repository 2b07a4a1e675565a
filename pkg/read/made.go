package read

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

type rule = rbacv1.PolicyRule

// made is what the tools take from an object that makes pods, whatever its kind.
type made struct {
	kind     string
	object   any // the typed object
	meta     *metav1.ObjectMeta
	template *corev1.PodTemplateSpec
	selector *metav1.LabelSelector // nil where it is the API server's own

	desired, ready, updated, available int32
	observed                           int64 // generation; -1 where the kind has none
	state                              string
	settings                           map[string]string
	conditions                         []Condition
}

// Condition is a condition of an object. What its controller says is untrusted.
type Condition struct {
	Type    string `json:"untrusted_type"`
	Status  string `json:"status"`
	Since   string `json:"since,omitempty"`
	Reason  string `json:"untrusted_reason,omitempty"`
	Message string `json:"untrusted_message,omitempty"`
}

func condition[T, S ~string](of T, status S, since metav1.Time, reason, message string) Condition {
	c := Condition{plan.Untrusted(string(of)), string(status), when(since), plan.Untrusted(reason), plan.Untrusted(message)}
	if !slices.Contains([]string{"True", "False", "Unknown"}, c.Status) {
		c.Status = "other"
	}
	return c
}

func deployment(d *appsv1.Deployment) made {
	st := d.Status
	m := made{
		kind: "deployment", object: d, meta: &d.ObjectMeta, template: &d.Spec.Template, selector: d.Spec.Selector,
		desired: ptr.Deref(d.Spec.Replicas, 1), ready: st.ReadyReplicas, updated: st.UpdatedReplicas, available: st.AvailableReplicas, observed: st.ObservedGeneration,
		settings: map[string]string{"strategy": string(d.Spec.Strategy.Type)},
	}
	if r := d.Spec.Strategy.RollingUpdate; r != nil {
		m.settings["max_unavailable"], m.settings["max_surge"] = share(r.MaxUnavailable), share(r.MaxSurge)
	}
	for _, c := range st.Conditions {
		m.conditions = append(m.conditions, condition(c.Type, c.Status, c.LastUpdateTime, c.Reason, c.Message))
	}
	m.rolled(st.Replicas)
	if d.Spec.Paused {
		m.state = "paused"
	}
	return m
}

func statefulSet(s *appsv1.StatefulSet) made {
	st := s.Status
	m := made{
		kind: "statefulset", object: s, meta: &s.ObjectMeta, template: &s.Spec.Template, selector: s.Spec.Selector,
		desired: ptr.Deref(s.Spec.Replicas, 1), ready: st.ReadyReplicas, updated: st.UpdatedReplicas, available: st.AvailableReplicas, observed: st.ObservedGeneration,
		settings: map[string]string{"strategy": string(s.Spec.UpdateStrategy.Type)},
	}
	if r := s.Spec.UpdateStrategy.RollingUpdate; r != nil {
		m.settings["max_unavailable"], m.settings["partition"] = share(r.MaxUnavailable), fmt.Sprint(ptr.Deref(r.Partition, 0))
	}
	for _, c := range st.Conditions {
		m.conditions = append(m.conditions, condition(c.Type, c.Status, c.LastTransitionTime, c.Reason, c.Message))
	}
	m.rolled(st.Replicas)
	return m
}

func daemonSet(d *appsv1.DaemonSet) made {
	st := d.Status
	m := made{
		kind: "daemonset", object: d, meta: &d.ObjectMeta, template: &d.Spec.Template, selector: d.Spec.Selector,
		desired: st.DesiredNumberScheduled, ready: st.NumberReady, updated: st.UpdatedNumberScheduled, available: st.NumberAvailable, observed: st.ObservedGeneration,
		settings: map[string]string{"strategy": string(d.Spec.UpdateStrategy.Type)},
	}
	if r := d.Spec.UpdateStrategy.RollingUpdate; r != nil {
		m.settings["max_unavailable"], m.settings["max_surge"] = share(r.MaxUnavailable), share(r.MaxSurge)
	}
	for _, c := range st.Conditions {
		m.conditions = append(m.conditions, condition(c.Type, c.Status, c.LastTransitionTime, c.Reason, c.Message))
	}
	m.rolled(st.CurrentNumberScheduled)
	return m
}

func replicaSet(r *appsv1.ReplicaSet) made {
	st := r.Status
	m := made{
		kind: "replicaset", object: r, meta: &r.ObjectMeta, template: &r.Spec.Template, selector: r.Spec.Selector,
		desired: ptr.Deref(r.Spec.Replicas, 1), ready: st.ReadyReplicas, updated: st.Replicas, available: st.AvailableReplicas, observed: st.ObservedGeneration,
	}
	for _, c := range st.Conditions {
		m.conditions = append(m.conditions, condition(c.Type, c.Status, c.LastTransitionTime, c.Reason, c.Message))
	}
	m.rolled(st.Replicas)
	return m
}

func job(j *batchv1.Job) made {
	st := j.Status
	m := made{
		kind: "job", object: j, meta: &j.ObjectMeta, template: &j.Spec.Template, selector: j.Spec.Selector,
		desired: ptr.Deref(j.Spec.Completions, ptr.Deref(j.Spec.Parallelism, 1)), ready: ptr.Deref(st.Ready, 0), updated: st.Succeeded, available: st.Active, observed: -1,
		state: "running", settings: map[string]string{
			"parallelism": fmt.Sprint(ptr.Deref(j.Spec.Parallelism, 1)), "active": fmt.Sprint(st.Active), "succeeded": fmt.Sprint(st.Succeeded), "failed": fmt.Sprint(st.Failed),
		},
	}
	for _, c := range st.Conditions {
		m.conditions = append(m.conditions, condition(c.Type, c.Status, c.LastTransitionTime, c.Reason, c.Message))
		if c.Status == corev1.ConditionTrue {
			switch c.Type {
			case batchv1.JobComplete:
				m.state = "complete"
			case batchv1.JobFailed:
				m.state = "failed"
			}
		}
	}
	if ptr.Deref(j.Spec.Suspend, false) {
		m.state = "suspended"
	}
	m.ending()
	return m
}

func cronJob(c *batchv1.CronJob) made {
	m := made{
		kind: "cronjob", object: c, meta: &c.ObjectMeta, template: &c.Spec.JobTemplate.Spec.Template, observed: -1,
		available: int32(len(c.Status.Active)), state: "ready", settings: map[string]string{
			"schedule": plan.Show(c.Spec.Schedule), "active": fmt.Sprint(len(c.Status.Active)), "concurrency": string(c.Spec.ConcurrencyPolicy),
		},
	}
	if len(c.Spec.Schedule) <= 200 && schedule.MatchString(c.Spec.Schedule) {
		m.settings["schedule"] = c.Spec.Schedule
	}
	if c.Status.LastScheduleTime != nil {
		m.settings["last_schedule"] = when(*c.Status.LastScheduleTime)
	}
	if ptr.Deref(c.Spec.Suspend, false) {
		m.state = "suspended"
	}
	m.ending()
	return m
}

func share(v *intstr.IntOrString) string {
	if v == nil {
		return ""
	}
	return v.String()
}

// rolled finds the state of what rolls its pods: all is the number of pods there are.
func (m *made) rolled(all int32) {
	switch {
	case m.observed >= 0 && m.observed < m.meta.Generation:
		m.state = "not observed yet"
	case m.updated < m.desired && m.kind != "replicaset":
		m.state = "rolling"
	case all > m.desired || m.kind == "deployment" && all > m.updated:
		m.state = "rolling"
	case m.ready < m.desired || m.available < m.desired:
		m.state = "not ready"
	default:
		m.state = "ready"
	}
	m.ending()
}

func (m *made) ending() {
	if m.meta.DeletionTimestamp != nil {
		m.state = "terminating"
	}
}

// row is the object in a list of so many rows.
func (m made) row(rows int) (Workload, error) {
	version, err := versioned(m.object)
	return Workload{
		Kind: m.kind, Namespace: m.meta.Namespace, Name: m.meta.Name, State: m.state,
		Desired: m.desired, Ready: m.ready, Updated: m.updated, Available: m.available,
		Created: when(m.meta.CreationTimestamp), Version: version, Images: images(m.template, rows),
	}, err
}

// images are those of a pod's containers, each once, the first few.
func images(t *corev1.PodTemplateSpec, rows int) (out []string) {
	for _, c := range t.Spec.Containers {
		if image := bounded(c.Image, rows); len(out) < 4 && !slices.Contains(out, image) {
			out = append(out, image)
		}
	}
	return out
}
