package engine

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
)

// Rules is the RBAC that the server's account needs for a set of actions, and no more:
// what the engine itself reads, what each action declares, and what beside it the read
// tools need. The dry run needs the same verbs as the write.
func Rules(actions []*action.Action, reads ...rbacv1.PolicyRule) []rbacv1.PolicyRule {
	watch := []string{"get", "list", "watch"}
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}}, // terminating; the cluster's identity
		{APIGroups: []string{""}, Resources: []string{"pods", "nodes"}, Verbs: watch},        // the blast radius
		{APIGroups: []string{""}, Resources: []string{"services", "resourcequotas"}, Verbs: watch},
		{APIGroups: []string{"autoscaling"}, Resources: []string{"horizontalpodautoscalers"}, Verbs: watch},
		{APIGroups: []string{"policy"}, Resources: []string{"poddisruptionbudgets"}, Verbs: watch},
	}
	for _, a := range actions {
		for _, need := range a.Needs {
			rules = merge(rules, need)
		}
	}
	for _, need := range reads {
		rules = merge(rules, need)
	}
	return rules
}

// merge adds a rule, joining verbs on the same resources.
func merge(rules []rbacv1.PolicyRule, r rbacv1.PolicyRule) []rbacv1.PolicyRule {
	for i, have := range rules {
		if slices.Equal(have.APIGroups, r.APIGroups) && slices.Equal(have.Resources, r.Resources) {
			rules[i].Verbs = slices.Clone(have.Verbs)
			for _, v := range r.Verbs {
				if !slices.Contains(rules[i].Verbs, v) {
					rules[i].Verbs = append(rules[i].Verbs, v)
				}
			}
			return rules
		}
	}
	return append(rules, r)
}
