package actions

import (
	"context"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// EvictPodArgs are the arguments of evict_pod.
type EvictPodArgs struct {
	action.Namespaced
	Pod   string `json:"pod" jsonschema:"exact name"`
	Grace *int64 `json:"grace_period_seconds,omitempty" jsonschema:"instead of the pod's own"`
}

// EvictPod evicts one pod, unless a disruption budget says no.
var EvictPod = add(action.New(action.Spec{
	Name:     "evict_pod",
	Title:    "Evict a pod",
	Doc:      "Evict one Pod, as its disruption budgets allow: where one says no, nothing is done.",
	Destroys: true,
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
		{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get"}},
	},
	Schema: func(s *jsonschema.Schema) { action.Between(s, "grace_period_seconds", 1, 3600) },
}, planEvictPod))

func planEvictPod(ctx context.Context, s *action.Session, a EvictPodArgs) error {
	p, err := removable(ctx, s, a.Namespace, a.Pod)
	if err != nil {
		return err
	}
	if err := s.Say("evict", "pod", p.Namespace+"/"+p.Name); err != nil {
		return err
	}
	if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "Job" {
		warnOfJob(ctx, s, p.Namespace, owner.Name)
	}
	grace := ""
	if a.Grace != nil {
		grace = fmt.Sprintf(`,"deleteOptions":{"gracePeriodSeconds":%d}`, *a.Grace)
	}
	// kubectl has no verb for it.
	s.Kubectl(`echo '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"namespace":"%s","name":"%s"}%s}' | kubectl create --raw /api/v1/namespaces/%s/pods/%s/eviction -f -`,
		p.Namespace, p.Name, grace, p.Namespace, p.Name)
	return s.Evict(p, a.Grace, plan.Fail, 0)
}

// warnOfJob says what the eviction of one of its pods costs a Job.
func warnOfJob(ctx context.Context, s *action.Session, namespace, name string) {
	if action.SafeName(name) != name {
		return // any text: no Job has it for a name
	}
	j, err := s.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		s.Warn("job %s/%s cannot be read: whether it fails with the pod is not known", namespace, name)
		return
	}
	who := "job " + namespace + "/" + j.Name
	if above := metav1.GetControllerOf(j); above != nil {
		who += " (of " + action.Controller(j) + ")"
	}
	left := ptr.Deref(j.Spec.BackoffLimit, 6) - j.Status.Failed
	switch on := onDisruption(j); {
	case on == batchv1.PodFailurePolicyActionIgnore:
		s.Warn("%s makes the pod again, and its failure policy does not count a disruption", who)
	case on == batchv1.PodFailurePolicyActionFailJob:
		s.Warn("%s fails with it: its failure policy says so of a disruption", who)
	case j.Spec.BackoffLimitPerIndex != nil:
		s.Warn("%s counts it as a failure of its index; retries of each index: %d", who, *j.Spec.BackoffLimitPerIndex)
	case left <= 0:
		s.Warn("%s fails with it: no retries left", who)
	default:
		s.Warn("%s counts it as a failure; retries left: %d", who, left)
	}
}

// onDisruption is what the failure policy of a Job says of a pod that was evicted; the
// first rule that matches decides. "" is nothing: the failure counts.
func onDisruption(j *batchv1.Job) batchv1.PodFailurePolicyAction {
	if j.Spec.PodFailurePolicy == nil {
		return ""
	}
	for _, r := range j.Spec.PodFailurePolicy.Rules {
		for _, c := range r.OnPodConditions {
			if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
				return r.Action
			}
		}
	}
	return ""
}
