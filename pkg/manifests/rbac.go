package manifests

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clusterScoped are the resources of the rules that stand in no namespace.
var clusterScoped = []string{"namespaces", "nodes", "persistentvolumes", "tokenreviews", "subjectaccessreviews"}

// RBAC is the ServiceAccount with the rights that its rules need, in the namespaces where
// it may write: Roles there, and a ClusterRole for what stands in no namespace. Without a
// list of namespaces all stands in the ClusterRole, since RBAC cannot exclude one: the
// protected ones are then Admission's. What the ledger needs stands in a Role of its own.
func RBAC(c Config) []any {
	out := []any{c.account()}
	if c.Ledger != nil {
		out = append(out, c.role("-ledger", c.Ledger.Namespace, c.Ledger.Rules)...)
	}
	if len(c.Policy.AllowNamespaces) == 0 {
		return append(out, c.clusterRole(c.onNodes(c.Rules))...)
	}
	var cluster, inside []rbacv1.PolicyRule
	for _, r := range c.Rules {
		for _, resource := range clusterScoped {
			var above rbacv1.PolicyRule
			if above, r = part(r, resource); resource == "namespaces" { // listed by name, too
				above.ResourceNames = append(c.allowed(), metav1.NamespaceSystem) // its UID is the cluster's identity
			}
			cluster = add(cluster, above)
		}
		inside = add(inside, r)
	}
	var evictees []rbacv1.PolicyRule // of protected namespaces, where a drain may evict
	for _, r := range c.OnNodes {
		for _, resource := range r.Resources {
			one, _ := part(r, resource)
			if !slices.Contains(clusterScoped, resource) {
				evictees = append(evictees, one)
			}
			if resource == "pods" { // those of a node, whatever namespace they are in
				all := *one.DeepCopy()
				all.Verbs = slices.DeleteFunc(all.Verbs, func(v string) bool { return v != "list" && v != "watch" })
				cluster = append(cluster, all)
			}
		}
	}
	out = append(out, c.clusterRole(c.onNodes(cluster))...)
	for _, ns := range c.allowed() {
		out = append(out, c.role("", ns, inside)...)
	}
	if c.Policy.DrainProtected && len(evictees) > 0 {
		protected := slices.Clone(c.Policy.ProtectNamespaces)
		slices.Sort(protected)
		for _, ns := range slices.Compact(protected) {
			out = append(out, c.role("", ns, evictees)...)
		}
	}
	return out
}

// onNodes narrows the writes to nodes to the ones that the policy names, where it names
// them all.
func (c Config) onNodes(rules []rbacv1.PolicyRule) (out []rbacv1.PolicyRule) {
	for _, r := range rules {
		nodes, rest := part(r, "nodes")
		if c.Policy.AllowNodeSelector != nil || !slices.Contains(nodes.Verbs, "patch") {
			out = add(out, r)
			continue
		}
		nodes.Verbs = slices.DeleteFunc(nodes.Verbs, func(v string) bool { return v == "patch" })
		names := slices.Clone(c.Policy.AllowNodes)
		slices.Sort(names)
		write := rbacv1.PolicyRule{APIGroups: nodes.APIGroups, Resources: nodes.Resources, ResourceNames: names, Verbs: []string{"patch"}}
		out = add(add(add(out, rest), nodes), write)
	}
	return out
}

// part takes one resource out of a rule; where it is not in it, there is no part.
func part(r rbacv1.PolicyRule, resource string) (of, rest rbacv1.PolicyRule) {
	if !slices.Contains(r.Resources, resource) {
		return of, r
	}
	of, rest = *r.DeepCopy(), *r.DeepCopy()
	of.Resources = []string{resource}
	rest.Resources = slices.DeleteFunc(rest.Resources, func(s string) bool { return s == resource })
	return of, rest
}

func add(rules []rbacv1.PolicyRule, r rbacv1.PolicyRule) []rbacv1.PolicyRule {
	if len(r.Resources) == 0 || len(r.Verbs) == 0 {
		return rules
	}
	return append(rules, r)
}

func (c Config) clusterRole(rules []rbacv1.PolicyRule) []any {
	return []any{
		&rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"}, ObjectMeta: c.meta(""), Rules: rules},
		&rbacv1.ClusterRoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
			ObjectMeta: c.meta(""),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: c.Name},
			Subjects:   c.subject(),
		},
	}
}

func (c Config) role(suffix, namespace string, rules []rbacv1.PolicyRule) []any {
	m := c.meta(suffix)
	m.Namespace = namespace
	return []any{
		&rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"}, ObjectMeta: m, Rules: rules},
		&rbacv1.RoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
			ObjectMeta: m,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: m.Name},
			Subjects:   c.subject(),
		},
	}
}

func (c Config) subject() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: c.Namespace, Name: c.Name}}
}
