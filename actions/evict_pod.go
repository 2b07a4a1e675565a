package actions

import (
	"context"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	rbacv1 "k8s.io/api/rbac/v1"

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
	grace := ""
	if a.Grace != nil {
		grace = fmt.Sprintf(`,"deleteOptions":{"gracePeriodSeconds":%d}`, *a.Grace)
	}
	// kubectl has no verb for it.
	s.Kubectl(`echo '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"namespace":"%s","name":"%s"}%s}' | kubectl create --raw /api/v1/namespaces/%s/pods/%s/eviction -f -`,
		p.Namespace, p.Name, grace, p.Namespace, p.Name)
	return s.Evict(p, a.Grace, plan.Fail, 0)
}
