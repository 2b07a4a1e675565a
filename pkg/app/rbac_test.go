package app

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// TestRBAC: --read-only needs no verb that writes; without it, whatever the reads need is
// there beside what the enabled actions need.
func TestRBAC(t *testing.T) {
	rules := func(args ...string) (out []rbacv1.PolicyRule) {
		t.Helper()
		code, stdout, stderr := run(append([]string{"rbac"}, args...)...)
		var role rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict([]byte(stdout), &role); code != 0 || err != nil {
			t.Fatalf("%v: exit %d, %v: %s", args, code, err, stderr)
		}
		return role.Rules
	}
	grants := func(all []rbacv1.PolicyRule, group, resource, verb string) bool {
		return slices.ContainsFunc(all, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb)
		})
	}
	reads, cordon := rules("--read-only"), rules("--actions", "cordon")
	for _, r := range reads {
		for _, v := range r.Verbs {
			if v != "get" && v != "list" {
				t.Errorf("--read-only has the verb %s on %v", v, r.Resources)
			}
			for _, res := range r.Resources {
				if !grants(cordon, r.APIGroups[0], res, v) {
					t.Errorf("the reads need %s on %s, which --actions cordon lacks", v, res)
				}
			}
		}
	}
	if !grants(reads, "", "pods/log", "get") || !grants(cordon, "", "nodes", "patch") || grants(cordon, "apps", "deployments", "patch") {
		t.Errorf("the rules are %v and %v", reads, cordon)
	}
}
