package manifests

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Admission is the policy's limits as admission policies: the API server holds the
// server's account to them as well, in dry runs too, whatever client uses it. It cannot
// know what a request is for: an undo above max_replicas is refused, and drain_protected
// lets any eviction pass. What the account writes to its ledger is left to RBAC.
func Admission(c Config) []any {
	scope := []admissionv1.Validation{deny("request.operation != 'CONNECT'", "nothing may reach into a pod or through the API server")}
	evicts := "request.resource.resource == 'pods' && has(request.subResource) && request.subResource == 'eviction'"
	inside := "!has(request.namespace) || request.namespace == '' || " + c.ledger()
	if len(c.Policy.ProtectNamespaces) > 0 {
		protected := inside + fmt.Sprintf("!(request.namespace in %s)", list(c.Policy.ProtectNamespaces))
		if c.Policy.DrainProtected {
			protected += " || (" + evicts + ")"
		}
		scope = append(scope, deny(protected, "the namespace is protected (protect_namespaces)"))
	}
	if len(c.Policy.AllowNamespaces) > 0 {
		allowed := inside + fmt.Sprintf("request.namespace in %s", list(c.Policy.AllowNamespaces))
		if c.Policy.DrainProtected {
			allowed += fmt.Sprintf(" || (%s && request.namespace in %s)", evicts, list(c.Policy.ProtectNamespaces))
		}
		scope = append(scope, deny(allowed, "the namespace is not allowed (allow_namespaces)"))
	}
	var out []any
	out = append(out, c.policy("-scope", all(), nil, scope...)...)
	out = append(out, c.policy("-nodes", rules([]string{""}, "nodes", "nodes/*"), []admissionv1.Variable{
		{Name: "labels", Expression: "oldObject != null && has(oldObject.metadata.labels) ? oldObject.metadata.labels : {}"},
	}, deny("request.operation == 'UPDATE' && ("+c.nodes()+")", "the node is not allowed (allow_nodes, allow_node_selector)"))...)
	return append(out, c.policy("-replicas",
		rules([]string{"apps"}, "deployments", "statefulsets", "replicasets", "deployments/scale", "statefulsets/scale", "replicasets/scale"),
		[]admissionv1.Variable{
			{Name: "limit", Expression: c.limit()},
			{Name: "wanted", Expression: "object != null && has(object.spec.replicas) ? object.spec.replicas : 0"},
			{Name: "before", Expression: "oldObject != null && has(oldObject.spec.replicas) ? oldObject.spec.replicas : 0"},
		}, deny("variables.wanted <= variables.limit || variables.wanted <= variables.before", "more replicas than max_replicas"))...)
}

// PlanOnly is the policy that lets a credential dry-run and never write, whatever RBAC
// lets it do.
func PlanOnly(c Config) []any {
	return c.policy("-plan-only", all(), nil, deny(c.ledger()+"(has(request.dryRun) && request.dryRun)", "this credential may plan and never write"))
}

// ledger lets pass what is written to the ledger's objects where they are; it is "" where
// there is none.
func (c Config) ledger() string {
	if c.Ledger == nil {
		return ""
	}
	var objects []string
	for _, r := range c.Ledger.Rules {
		var written []string
		for _, resource := range r.Resources {
			resource, _, _ = strings.Cut(resource, "/")
			written = append(written, resource)
		}
		if slices.ContainsFunc(r.Verbs, func(v string) bool { return v != "get" && v != "list" && v != "watch" }) {
			objects = append(objects, fmt.Sprintf("(request.resource.group in %s && request.resource.resource in %s)", list(r.APIGroups), list(written)))
		}
	}
	slices.Sort(objects)
	return fmt.Sprintf("(request.namespace == %s && (%s)) || ", quote(c.Ledger.Namespace), strings.Join(slices.Compact(objects), " || "))
}

// policy makes a policy and its binding; it holds the one user alone.
func (c Config) policy(suffix string, match []admissionv1.NamedRuleWithOperations, variables []admissionv1.Variable, checks ...admissionv1.Validation) []any {
	user := c.User
	if user == "" {
		user = "system:serviceaccount:" + c.Namespace + ":" + c.Name
	}
	return []any{
		&admissionv1.ValidatingAdmissionPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicy"},
			ObjectMeta: c.meta(suffix),
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				FailurePolicy:    new(admissionv1.Fail),
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: match},
				MatchConditions:  []admissionv1.MatchCondition{{Name: "user", Expression: "request.userInfo.username == " + quote(user)}},
				Variables:        variables,
				Validations:      checks,
			},
		},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding"},
			ObjectMeta: c.meta(suffix),
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: c.Name + suffix, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		},
	}
}

func deny(unless, message string) admissionv1.Validation {
	return admissionv1.Validation{Expression: unless, Message: "kube-write-mcp: " + message, Reason: new(metav1.StatusReasonForbidden)}
}

// all is everything that admission sees: creates, updates, deletes and connects, of
// objects and of their subresources (an eviction is a create, a scale an update).
func all() []admissionv1.NamedRuleWithOperations { return rules([]string{"*"}, "*/*") }

func rules(groups []string, resources ...string) []admissionv1.NamedRuleWithOperations {
	return []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.OperationAll},
		Rule:       admissionv1.Rule{APIGroups: groups, APIVersions: []string{"*"}, Resources: resources},
	}}}
}

// limit is max_replicas of the request's namespace.
func (c Config) limit() string {
	base := c.Policy.MaxReplicas
	var stricter []string
	for _, ns := range slices.Sorted(maps.Keys(c.Policy.Namespaces)) {
		if n := c.Policy.For(ns).MaxReplicas; n != base {
			stricter = append(stricter, fmt.Sprintf("%s: %d", quote(ns), n))
		}
	}
	if stricter == nil {
		return fmt.Sprint(base)
	}
	table := "{" + strings.Join(stricter, ", ") + "}"
	return fmt.Sprintf("request.namespace in %s ? %s[request.namespace] : %d", table, table, base)
}

// nodes says which nodes pass. The labels are those before the request: a node does not
// become allowed by being labelled.
func (c Config) nodes() string {
	pass := []string{fmt.Sprintf("request.name in %s", list(c.Policy.AllowNodes))}
	if len(c.Policy.AllowNodes) == 0 {
		pass = nil
	}
	if s := c.Policy.AllowNodeSelector; s != nil {
		pass = append(pass, selects(s))
	}
	if pass == nil {
		return "false"
	}
	return strings.Join(pass, " || ")
}

// selects is a label selector as an expression over variables.labels.
func selects(s labels.Selector) string {
	requirements, selectable := s.Requirements()
	if !selectable {
		return "false"
	}
	var checks []string
	for _, r := range requirements {
		key, values := quote(r.Key()), r.ValuesUnsorted()
		has, value := key+" in variables.labels", "variables.labels["+key+"]"
		switch r.Operator() {
		case selection.Exists:
			checks = append(checks, has)
		case selection.DoesNotExist:
			checks = append(checks, "!("+has+")")
		case selection.NotIn, selection.NotEquals:
			checks = append(checks, fmt.Sprintf("!(%s && %s in %s)", has, value, list(values)))
		case selection.GreaterThan, selection.LessThan:
			op := map[selection.Operator]string{selection.GreaterThan: ">", selection.LessThan: "<"}[r.Operator()]
			checks = append(checks, fmt.Sprintf("(%s && %s.matches('^-?[0-9]{1,18}$') && int(%s) %s %s)", has, value, value, op, values[0]))
		default:
			checks = append(checks, fmt.Sprintf("(%s && %s in %s)", has, value, list(values)))
		}
	}
	if checks == nil {
		return "true" // the empty selector
	}
	return "(" + strings.Join(checks, " && ") + ")"
}

// list is a sorted list of strings in CEL.
func list(names []string) string {
	names = slices.Clone(names)
	slices.Sort(names)
	for i, n := range names {
		names[i] = quote(n)
	}
	return "[" + strings.Join(slices.Compact(names), ", ") + "]"
}

// quote is a CEL string: what JSON can say, CEL reads the same way.
func quote(s string) string {
	raw, _ := json.Marshal(s) // a string always can be
	return string(raw)
}
