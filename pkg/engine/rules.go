package engine

import (
	"cmp"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
)

// Rules is the RBAC that the server's account needs for a set of actions, and no more:
// what the engine reads to judge them, what each action declares, and what beside it the
// read tools need. The dry run needs the same verbs as the write. Each resource stands in
// one rule, in a fixed order.
func Rules(actions []*action.Action, reads ...rbacv1.PolicyRule) []rbacv1.PolicyRule {
	all := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}}, // terminating; the cluster's identity
	}
	for _, a := range actions {
		all = append(append(all, a.Needs...), radius(a)...)
	}
	return Canonical(append(all, reads...))
}

// radius is what the engine reads to compute what an action's writes can do to pods, and
// to verify them. It goes by what the action may write: see blast.Needs.
func radius(a *action.Action) (rules []rbacv1.PolicyRule) {
	writes := map[string]bool{}
	for _, n := range a.Needs {
		for _, res := range n.Resources {
			for _, v := range n.Verbs {
				writes[v+" "+res] = true
			}
		}
	}
	read := func(group, resource string, verbs ...string) {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs})
	}
	scales := writes["update deployments/scale"] || writes["update statefulsets/scale"] || writes["update replicasets/scale"]
	removes := writes["delete pods"] || writes["create pods/eviction"]
	if scales || a.Rolls || removes {
		read("", "pods", "list", "watch")
		read("", "services", "list", "watch")
	}
	if scales || a.Rolls {
		read("", "resourcequotas", "list", "watch")
	}
	if scales {
		read("autoscaling", "horizontalpodautoscalers", "list", "watch")
	}
	if removes {
		read("policy", "poddisruptionbudgets", "list", "watch")
		read("", "nodes", "get") // whether a kubelet is there to confirm the end of a pod
	}
	for _, n := range a.Needs {
		for _, res := range n.Resources {
			if kind, sub, _ := strings.Cut(res, "/"); slices.Contains(n.Verbs, "patch") || sub == "scale" {
				read(n.APIGroups[0], kind, "watch") // its versions, after an unknown outcome
			}
		}
	}
	return rules
}

// Canonical joins rules: each resource with all its verbs once, resources of the same
// verbs in one rule, in order of their names. Rules for named objects stay as they are.
func Canonical(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	verbs := map[schema.GroupResource][]string{}
	var out, named []rbacv1.PolicyRule
	for _, r := range rules {
		if len(r.ResourceNames) > 0 || len(r.NonResourceURLs) > 0 {
			named = append(named, r)
			continue
		}
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				k := schema.GroupResource{Group: group, Resource: resource}
				verbs[k] = append(verbs[k], r.Verbs...)
			}
		}
	}
	keys := make([]schema.GroupResource, 0, len(verbs))
	for k := range verbs {
		slices.Sort(verbs[k])
		verbs[k] = slices.Compact(verbs[k])
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b schema.GroupResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
	for _, k := range keys {
		i := slices.IndexFunc(out, func(r rbacv1.PolicyRule) bool { return r.APIGroups[0] == k.Group && slices.Equal(r.Verbs, verbs[k]) })
		if i >= 0 {
			out[i].Resources = append(out[i].Resources, k.Resource)
			continue
		}
		out = append(out, rbacv1.PolicyRule{APIGroups: []string{k.Group}, Resources: []string{k.Resource}, Verbs: verbs[k]})
	}
	return append(out, named...)
}
