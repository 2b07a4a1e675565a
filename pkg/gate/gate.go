// Package gate decides what may be planned and executed. Each gate is a function that
// gives a refusal or nil; every gate runs and every reason is kept.
package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// Person says what happens to a plan that needs a person.
type Person string

// The values of --irreversible.
const (
	Human  Person = "human"
	Refuse Person = "refuse"
	Allow  Person = "allow"
)

// Policy is what an operator allows. It is fixed when the server starts.
type Policy struct {
	ProtectNamespaces []string
	AllowNamespaces   []string // empty: every namespace that is not protected
	AllowNodes        []string
	AllowNodeSelector labels.Selector // nil: none
	Actions           []string        // empty: all
	Limits

	DrainProtected     bool // a drain may evict pods of protected namespaces
	ChangeCauseOnScale bool // note the reason of a scale on the Deployment

	// Namespaces tightens Limits for single namespaces; it never loosens them.
	Namespaces map[string]Limits

	Downstream []Downstream
	Windows    []Window
}

// Downstream is what an operator wants said wherever a plan touches a workload: who
// depends on it, how long they retry, when they give up.
type Downstream struct {
	Namespace string
	Name      string // of the workload; "" is every one in the namespace
	Note      string // at most MaxNote characters
}

// MaxNote is how many characters an operator's note has at most.
const MaxNote = 200

// Notes are the operator's words about what a plan touches: its targets, and the owners
// of the pods that it puts at risk.
func (p Policy) Notes(steps []plan.Step, risks []plan.Risk) (notes []string) {
	for _, d := range p.Downstream {
		touches := func(namespace, name string) bool {
			return namespace == d.Namespace && (d.Name == "" || d.Name == name)
		}
		if slices.ContainsFunc(steps, func(s plan.Step) bool { return touches(s.Target.Namespace, s.Target.Name) }) ||
			slices.ContainsFunc(risks, func(r plan.Risk) bool { return touches(r.Namespace(), r.Name()) }) {
			notes = append(notes, d.Note)
		}
	}
	return notes
}

// Limits are the numbers of a Policy. In Policy.Namespaces a zero value means: as for
// every namespace.
type Limits struct {
	MaxReplicas            int32
	MaxBlastPercent        int
	WritesPerMinute        int
	PlansPerMinute         int
	TTL                    time.Duration
	ApprovalTTL            time.Duration // of a plan that waits for a person
	Irreversible           Person
	GateSinglePod          bool // the only ready pod counts like any other
	RequireExpectedVersion bool
	TwoPersons             bool // every plan waits for a person who did not plan it
}

// For gives the limits that hold in a namespace: the stricter of both, field by field.
func (p Policy) For(namespace string) Limits {
	return p.Stricter(p.Namespaces[namespace])
}

// Stricter gives the stricter of both, field by field.
func (l Limits) Stricter(over Limits) Limits {
	l.MaxReplicas = stricter(l.MaxReplicas, over.MaxReplicas)
	l.MaxBlastPercent = stricter(l.MaxBlastPercent, over.MaxBlastPercent)
	l.WritesPerMinute = stricter(l.WritesPerMinute, over.WritesPerMinute)
	l.PlansPerMinute = stricter(l.PlansPerMinute, over.PlansPerMinute)
	l.TTL = stricter(l.TTL, over.TTL)
	l.ApprovalTTL = stricter(l.ApprovalTTL, over.ApprovalTTL)
	strictness := []Person{Allow, Human, Refuse}
	if slices.Index(strictness, over.Irreversible) > slices.Index(strictness, cmp.Or(l.Irreversible, Human)) {
		l.Irreversible = over.Irreversible
	}
	l.GateSinglePod = l.GateSinglePod || over.GateSinglePod
	l.RequireExpectedVersion = l.RequireExpectedVersion || over.RequireExpectedVersion
	l.TwoPersons = l.TwoPersons || over.TwoPersons
	return l
}

func stricter[T int | int32 | time.Duration](base, over T) T {
	if over > 0 && over < base {
		return over
	}
	return base
}

// Scope refuses a namespace that is protected or not allowed.
func (p Policy) Scope(s plan.Scope) *refusal.Refusal {
	if why := p.Excluded(s.Namespace); s.Node == "" && why != "" {
		return refusal.New(refusal.OutOfScope, "only the operator can change this, with --protect-namespaces or --allow-namespaces",
			"namespace %s is %s; nothing was read", s.Namespace, why)
	}
	return nil
}

// Excluded says why a namespace is out of scope, or "".
func (p Policy) Excluded(namespace string) string {
	switch {
	case slices.Contains(p.ProtectNamespaces, namespace):
		return "protected"
	case len(p.AllowNamespaces) > 0 && !slices.Contains(p.AllowNamespaces, namespace):
		return "not in --allow-namespaces"
	}
	return ""
}

// NeedsNode reports whether the node's labels must be read to decide about it.
func (p Policy) NeedsNode(s plan.Scope) bool {
	return s.Node != "" && p.AllowNodeSelector != nil && !slices.Contains(p.AllowNodes, s.Node)
}

// Node refuses a node that is not allowed; its labels are only looked at where NeedsNode
// says so.
func (p Policy) Node(s plan.Scope, nodeLabels map[string]string) *refusal.Refusal {
	switch {
	case s.Node == "" || slices.Contains(p.AllowNodes, s.Node):
		return nil
	case p.AllowNodeSelector != nil && p.AllowNodeSelector.Matches(labels.Set(nodeLabels)):
		return nil
	case p.AllowNodeSelector != nil:
		return refusal.New(refusal.NodeNotAllowed, "the operator allows nodes with --allow-nodes or a wider --allow-node-selector",
			"node %s is not in --allow-nodes and does not match --allow-node-selector %s", s.Node, p.AllowNodeSelector)
	}
	return refusal.New(refusal.NodeNotAllowed, "the operator allows nodes with --allow-nodes "+s.Node+" or --allow-node-selector",
		"node %s is not in --allow-nodes", s.Node)
}

// Action refuses an action that is not enabled.
func (p Policy) Action(name string) *refusal.Refusal {
	if len(p.Actions) == 0 || slices.Contains(p.Actions, name) {
		return nil
	}
	return refusal.New(refusal.OutOfScope, "enabled are "+strings.Join(p.Actions, ", "), "action %s is not enabled by --actions", name)
}

// Version refuses a call without expected_version where the policy wants one.
func (l Limits) Version(expected string) *refusal.Refusal {
	if !l.RequireExpectedVersion || expected != "" {
		return nil
	}
	return refusal.New(refusal.PreconditionFailed, "read the target and pass its version as expected_version",
		"the policy requires expected_version here")
}

// Cap refuses a scale above MaxReplicas, unless it reduces.
func (l Limits) Cap(steps []plan.Step) *refusal.Refusal {
	for _, s := range steps {
		if s.Verb != plan.Scale || *s.Replicas <= l.MaxReplicas {
			continue
		}
		if from := s.Changes[0].Old; from != "" && number(from) > int64(*s.Replicas) {
			continue
		}
		return refusal.New(refusal.CapExceeded, fmt.Sprintf("at most %d passes", l.MaxReplicas),
			"%d replicas are more than max_replicas %d", *s.Replicas, l.MaxReplicas)
	}
	return nil
}

func number(s string) (n int64) {
	_, _ = fmt.Sscan(s, &n)
	return n
}

// Memory is how long the highest capacity of a target is remembered.
const Memory = 10 * time.Minute

// Blast refuses a plan that puts too much capacity at risk. seen is when the peak that
// the shares are measured against was last seen. Where the action has no smaller step by
// its nature, the plan is a person's to decide: person says why.
func (l Limits) Blast(b plan.Blast, seen time.Time) (no *refusal.Refusal, person string) {
	r := b.AtRisk
	if r.Percent <= l.MaxBlastPercent {
		return nil, ""
	}
	if r.Single() && !l.GateSinglePod {
		return nil, "" // printed in plain words instead: see blast
	}
	text := fmt.Sprintf("%d of %d ready %s may be missing at once: %d %% at risk, the limit is %d %%",
		r.Missing, r.Ready, plan.Plural(r.Ready, "pod"), r.Percent, l.MaxBlastPercent)
	if r.Peak > r.Ready {
		text = fmt.Sprintf("%d of the %d ready %s of the last 10 minutes may be missing at once: %d %% at risk, the limit is %d %%",
			r.Peak-(r.Ready-r.Missing), r.Peak, plan.Plural(r.Peak, "pod"), r.Percent, l.MaxBlastPercent)
	}
	switch {
	case b.Largest != nil:
		return refusal.New(refusal.BlastLimit, fmt.Sprintf("the largest step that passes is replicas: %d", *b.Largest), "%s", text), ""
	case r.Peak > r.Ready && (b.Direction == plan.Removes || 100*r.Missing <= l.MaxBlastPercent*r.Ready):
		at, when := named(seen.Add(Memory))
		if 100*r.Missing > l.MaxBlastPercent*r.Ready {
			return refusal.New(refusal.BlastLimit, "no smaller step passes before "+when+"; plan a smaller one then", "%s", text), ""
		}
		return refusal.New(refusal.BlastLimit, "it passes at "+when, "%s", text).Later(at), ""
	}
	return nil, text
}

// NeedsPerson decides about a plan for which reasons say that it is a person's: whether it
// waits for one, or is refused.
func (l Limits) NeedsPerson(reasons []string) (waits bool, no *refusal.Refusal) {
	switch {
	case len(reasons) == 0 || l.Irreversible == Allow:
		return false, nil
	case l.Irreversible == Refuse:
		return false, refusal.New(refusal.BlastLimit, "there is no smaller step; the operator has forbidden this one with --irreversible=refuse", "%s", strings.Join(reasons, "; "))
	}
	return true, nil
}

// Rate refuses the call after limit ones in the last minute; past is when they were,
// in ascending order, and what names one of them.
func Rate(what string, past []time.Time, limit int, now time.Time) *refusal.Refusal {
	if len(past) < limit {
		return nil
	}
	at, when := named(past[len(past)-limit].Add(time.Minute))
	wait := max(at.Sub(now), time.Second).Round(time.Second)
	return refusal.New(refusal.RateLimited, fmt.Sprintf("call again in %s, at %s", wait, when),
		"%d %s in the last minute: no more are allowed", limit, plan.Plural(limit, what)).Later(at)
}

// named gives a time as it can be said, to the second, and never before it has come.
func named(at time.Time) (time.Time, string) {
	at = at.UTC().Add(time.Second - 1).Truncate(time.Second)
	return at, at.Format(time.RFC3339)
}
