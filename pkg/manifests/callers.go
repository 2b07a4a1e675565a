package manifests

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Role is what some of those who call the server need, bound to nobody. It is a ClusterRole
// where Namespace is "": bound by a RoleBinding it holds in that one's namespace, by a
// ClusterRoleBinding in all, and on nodes.
type Role struct {
	Suffix    string // of its name
	Namespace string
	Rules     []rbacv1.PolicyRule
}

func (c Config) callers() (out []any) {
	for _, r := range c.Callers {
		m := c.meta(r.Suffix)
		if m.Namespace = r.Namespace; r.Namespace == "" {
			out = append(out, &rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"}, ObjectMeta: m, Rules: r.Rules})
			continue
		}
		out = append(out, &rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"}, ObjectMeta: m, Rules: r.Rules})
	}
	return out
}
