package cluster

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
)

// The resources of the ledger.
const (
	writes    = "writes"
	budgets   = "ratebudgets"
	approvals = "approvals"
)

// next are the states that may follow a state; it may always stay.
var next = []struct {
	from State
	to   []State
}{
	{Planned, []State{Claimed, Expired, Stale}},
	{Claimed, []State{Unknown, Executed, Failed, Indeterminate}},
	{Unknown, []State{Executed, Failed, Indeterminate}},
	{Executed, nil}, {Failed, nil}, {Indeterminate, nil}, {Expired, nil}, {Stale, nil},
}

// final reports whether nothing can follow.
func (s State) final() bool {
	for _, n := range next {
		if n.from == s {
			return n.to == nil
		}
	}
	return false
}

func quoted(states ...State) string {
	out := make([]string, len(states))
	for i, s := range states {
		out[i] = "'" + string(s) + "'"
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// writeRules are what the API server holds every update of a Write to, whoever makes it.
// An update of the object itself leaves the status as it is.
func writeRules() apiextensionsv1.ValidationRules {
	const both = "!has(oldSelf.status) || !has(self.status) || "
	follows := "self.status.state == oldSelf.status.state"
	var finals []State
	for _, n := range next {
		if n.to == nil {
			finals = append(finals, n.from)
			continue
		}
		follows += fmt.Sprintf(" || (oldSelf.status.state == '%s' && self.status.state in %s)", n.from, quoted(n.to...))
	}
	return apiextensionsv1.ValidationRules{
		{Rule: "self.spec == oldSelf.spec", Message: "a plan never changes"},
		{Rule: "!has(oldSelf.status) || has(self.status)", Message: "what became of a plan is never taken away"},
		{Rule: "has(oldSelf.status) || !has(self.status) || (self.status.state == 'Planned' && self.status.serial == 1)", Message: "a plan begins as Planned"},
		{Rule: both + follows, Message: "no plan goes from that state to this one"},
		{Rule: both + "!has(oldSelf.status.claim) || (has(self.status.claim) && self.status.claim == oldSelf.status.claim)", Message: "a claim holds for ever"},
		{
			Rule: both + "!(oldSelf.status.state in " + quoted(finals...) + ") || (self.status.lines == oldSelf.status.lines" +
				" && (has(self.status.result) ? self.status.result : '') == (has(oldSelf.status.result) ? oldSelf.status.result : ''))",
			Message: "a result never changes",
		},
		{Rule: both + "self.status == oldSelf.status || self.status.serial == oldSelf.status.serial + 1", Message: "no older status may come back"},
	}
}

// statusRules hold for a status by itself.
func statusRules() apiextensionsv1.ValidationRules {
	return apiextensionsv1.ValidationRules{
		{Rule: "has(self.claim) == (self.state in " + quoted(Claimed, Unknown, Executed, Failed, Indeterminate) + ")", Message: "who claimed a plan is named, once it is claimed"},
		{Rule: "has(self.result) == (self.state in " + quoted(Executed, Failed, Indeterminate) + ")", Message: "what was executed has a result, and nothing else has"},
	}
}

// The most that the texts of a Write may hold, in characters. A line of the journal, which
// holds a whole record or result, has 256 KiB at most.
const (
	maxLines = 512 // two for each of 200 Steps, and what stands beside them
	maxKept  = 16 << 10
	maxWhole = journal.MaxLine
)

func text(most int64) apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{Type: "string", MaxLength: &most}
}

func number() apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{Type: "integer", Format: "int64"}
}

func object(required []string, p map[string]apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{Type: "object", Required: required, Properties: p}
}

func list(of apiextensionsv1.JSONSchemaProps, most int64) apiextensionsv1.JSONSchemaProps {
	atomic := "atomic"
	return apiextensionsv1.JSONSchemaProps{Type: "array", MaxItems: &most, XListType: &atomic, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &of}}
}

type props = map[string]apiextensionsv1.JSONSchemaProps

// CRDs are the definitions of Write, RateBudget and Approval, which the API server must
// have before a server with --ledger cluster starts.
func CRDs() []*apiextensionsv1.CustomResourceDefinition {
	states := text(16)
	for _, n := range next {
		states.Enum = append(states.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + string(n.from) + `"`)})
	}
	status := object([]string{"state", "serial", "lines", "kid", "mac"}, props{
		"state": states, "serial": number(), "verdict": text(32),
		"claim": object([]string{"id", "instance", "time"}, props{"id": text(32), "instance": text(8), "time": text(40)}),
		"lines": list(text(maxKept), maxLines), "verification": text(maxKept), "result": text(maxWhole),
		"kid": text(32), "mac": text(64),
	})
	status.XValidations = statusRules()
	write := definition(writes, "Write", "kw", object([]string{"spec"}, props{
		"spec": object([]string{"action", "principal", "expires", "record", "kid", "mac"}, props{
			"action": text(64), "target": text(512), "sentence": text(640), "principal": text(512), "expires": text(40), "record": text(maxWhole),
			"kid": text(32), "mac": text(64),
		}),
		"status": status,
	}), writeRules())
	v := &write.Spec.Versions[0]
	v.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".status.state"}}
	v.AdditionalPrinterColumns = columns(
		"State", ".status.state", "Action", ".spec.action", "Target", ".spec.target", "Principal", ".spec.principal", "Verdict", ".status.verdict", "Age", ".metadata.creationTimestamp",
		"Expires", ".spec.expires", "Replica", ".status.claim.instance", "Sentence", ".spec.sentence",
	)
	used := list(object([]string{"cluster", "at"}, props{"plan": text(16), "cluster": text(128), "at": number()}), maxUsed)
	budgetStatus := object([]string{"serial", "writes", "calls", "seen", "kid", "mac"}, props{
		"serial": number(), "writes": used, "calls": used,
		"seen": list(object([]string{"uid", "ready", "at"}, props{"uid": text(512), "ready": number(), "at": number()}), maxSeen),
		"kid":  text(32), "mac": text(64),
	})
	budget := definition(budgets, "RateBudget", "kwb", object(nil, props{"status": budgetStatus}), apiextensionsv1.ValidationRules{
		{Rule: "!has(oldSelf.status) || has(self.status)", Message: "what was used up is never taken away"},
		{Rule: "!has(oldSelf.status) || !has(self.status) || self.status.serial == oldSelf.status.serial + 1 || (self.status.serial == oldSelf.status.serial && self.status.mac == oldSelf.status.mac)", Message: "no older status may come back"},
	})
	approval := definition(approvals, "Approval", "kwa", object([]string{"spec"}, props{
		"spec": object([]string{"plan", "approver", "action"}, props{
			"plan": text(16), "approver": text(512), "action": text(64), "namespace": text(63), "reason": text(256),
		}),
	}), apiextensionsv1.ValidationRules{
		{Rule: "self.spec == oldSelf.spec", Message: "an approval never changes"},
		{Rule: "self.metadata.name == self.spec.plan", Message: "an approval is named by the plan's id"},
	})
	approval.Spec.Versions[0].Subresources = nil
	approval.Spec.Versions[0].AdditionalPrinterColumns = columns("Approver", ".spec.approver", "Action", ".spec.action", "Namespace", ".spec.namespace", "Reason", ".spec.reason", "Age", ".metadata.creationTimestamp")
	return []*apiextensionsv1.CustomResourceDefinition{write, budget, approval}
}

func definition(resource, kind, short string, schema apiextensionsv1.JSONSchemaProps, rules apiextensionsv1.ValidationRules) *apiextensionsv1.CustomResourceDefinition {
	schema.Properties["apiVersion"], schema.Properties["kind"] = apiextensionsv1.JSONSchemaProps{Type: "string"}, apiextensionsv1.JSONSchemaProps{Type: "string"}
	schema.Properties["metadata"] = apiextensionsv1.JSONSchemaProps{Type: "object"}
	schema.XValidations = rules
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: resource + "." + kube.LedgerGroup.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: kube.LedgerGroup.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: resource, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List", ShortNames: []string{short}, Categories: []string{"kube-write"},
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: kube.LedgerGroup.Version, Served: true, Storage: true,
				Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &schema},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
}

// columns are those of kubectl get, from name and path each. What stands behind the age is
// shown with -o wide only.
func columns(pairs ...string) (out []apiextensionsv1.CustomResourceColumnDefinition) {
	priority := int32(0)
	for pair := range slices.Chunk(pairs, 2) {
		c := apiextensionsv1.CustomResourceColumnDefinition{Name: pair[0], JSONPath: pair[1], Type: "string", Priority: priority}
		if pair[0] == "Age" {
			c.Type, priority = "date", 1
		}
		out = append(out, c)
	}
	return out
}

// Rules is what the server's account needs for the ledger, in its own namespace only, and
// no more.
func Rules() []rbacv1.PolicyRule {
	group := []string{kube.LedgerGroup.Group}
	return []rbacv1.PolicyRule{
		{APIGroups: group, Resources: []string{writes}, Verbs: []string{"get", "list", "create", "delete"}},
		{APIGroups: group, Resources: []string{writes + "/status"}, Verbs: []string{"update"}},
		{APIGroups: group, Resources: []string{budgets}, Verbs: []string{"get", "create"}},
		{APIGroups: group, Resources: []string{budgets + "/status"}, Verbs: []string{"update"}},
		{APIGroups: group, Resources: []string{approvals}, Verbs: []string{"get"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "list", "create", "update", "delete"}},
	}
}

// ApproverRules is what who approves needs where the ledger is, beside the verb approve on
// the plan's action where that writes.
func ApproverRules() []rbacv1.PolicyRule {
	group := []string{kube.LedgerGroup.Group}
	return []rbacv1.PolicyRule{
		{APIGroups: group, Resources: []string{writes}, Verbs: []string{"get", "list"}},
		{APIGroups: group, Resources: []string{approvals}, Verbs: []string{"create"}},
	}
}

// ApprovalPolicy is what makes an Approval the word of the one whom it names: its creator
// is its approver, and may approve the action where it writes (the verb approve on actions of
// kubewrite.dev; in all namespaces where it names none). Without it an approval proves
// nothing. The API server asks its authorizer about the request itself, with its groups,
// which no object could tell.
func ApprovalPolicy() (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	const name = "kube-write-approvals"
	fail := admissionv1.Fail
	group := kube.LedgerGroup.Group
	policy := &admissionv1.ValidatingAdmissionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: name + "." + group},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{approvals}},
			}}}},
			Validations: []admissionv1.Validation{
				{Expression: "object.spec.approver == request.userInfo.username", Message: "spec.approver must be you"},
				{
					Expression: "authorizer.group('" + group + "').resource('actions').namespace(has(object.spec.namespace) ? object.spec.namespace : '').name(object.spec.action).check('approve').allowed()",
					Message:    "you may not approve that action there: it takes the verb approve on actions." + group,
				},
			},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}
	return policy, binding
}
