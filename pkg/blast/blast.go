// Package blast computes what a plan does to pods: how many it touches, how many of the
// ready ones may be missing at the worst moment, and what does not come back. It is
// arithmetic over the Steps, their live targets and a snapshot of the siblings; it has
// no client and no clock.
package blast

import (
	"fmt"
	"slices"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// The facts, by the resources under which plan.Facts knows them.
const (
	factPods    = "pods"
	factBudgets = "poddisruptionbudgets"
	factNodes   = "nodes"

	factServices    = "services"
	factAutoscalers = "horizontalpodautoscalers"
	factQuotas      = "resourcequotas"
)

// unknownWithout says what cannot be told without a fact on which no gate rests.
var unknownWithout = map[string]string{
	factPods:        "how many pods stay on the node",
	factServices:    "which services lose ready endpoints",
	factAutoscalers: "whether an autoscaler takes the change back",
	factQuotas:      "whether the new pods fit into a quota",
}

// Need says which facts to fetch for a plan.
type Need struct {
	Namespace            string // "" for all of them
	Pods, Budgets, Nodes bool

	Services, Autoscalers, Quotas bool // to warn: no gate rests on them
}

// Needs says which facts the Steps' gates and warnings need. What touches no pod needs
// nothing. targets holds the live object of each Step by UID.
func Needs(steps []plan.Step, targets map[string]plan.Object) Need {
	var n Need
	namespaces := map[string]bool{}
	for i, e := range effectsOf(steps, targets) {
		s := steps[i]
		facts := append(gateFacts(e, s), adviceFacts(e, s, targets[s.Target.UID])...)
		n.Pods = n.Pods || slices.Contains(facts, factPods)
		n.Budgets = n.Budgets || slices.Contains(facts, factBudgets)
		n.Nodes = n.Nodes || slices.Contains(facts, factNodes)
		n.Services = n.Services || slices.Contains(facts, factServices)
		n.Autoscalers = n.Autoscalers || slices.Contains(facts, factAutoscalers)
		n.Quotas = n.Quotas || slices.Contains(facts, factQuotas)
		switch {
		case slices.Contains(facts, factNodes):
			namespaces[""] = true // the pods of a node have owners and siblings everywhere
		case facts != nil:
			namespaces[s.Target.Namespace] = true
		}
	}
	if len(namespaces) == 1 {
		for n.Namespace = range namespaces {
		}
	}
	return n
}

// gateFacts names the facts without which a gate cannot decide about a Step.
func gateFacts(e effect, s plan.Step) []string {
	switch {
	case e == removes || e == rolls:
		return []string{factPods}
	case e == evicts && s.OnBudget == plan.Wait: // of a drain
		return []string{factPods, factBudgets, factNodes}
	case e == evicts || e == deletes:
		return []string{factPods, factBudgets}
	case e == cordons:
		return []string{factNodes}
	}
	return nil
}

// adviceFacts names the facts without which the plan of a Step says less.
func adviceFacts(e effect, s plan.Step, o plan.Object) (facts []string) {
	if s.Verb == plan.Scale && e != unknown {
		facts = append(facts, factAutoscalers)
	}
	switch e {
	case removes, rolls, evicts, deletes:
		facts = append(facts, factServices)
	case cordons:
		facts = append(facts, factPods)
	}
	if surges(e, s, o) > 0 {
		facts = append(facts, factQuotas)
	}
	return facts
}

// Input is all that Compute looks at.
type Input struct {
	Steps   []plan.Step
	Targets map[string]plan.Object // the live object of each Step, by UID
	After   map[string]plan.Object // what the dry run of a patch made of it, by UID
	Labels  map[string]string      // of the namespace of the targets
	Facts   plan.Facts

	// Peak gives the highest number of ready pods that an owner had in the last 10
	// minutes, 0 where none was seen. It is asked with the owner's UID, where that is
	// known, and with its kind/namespace/name; nil is no memory.
	Peak       func(key string) int
	MaxPercent int // of capacity at risk: what Blast.Largest may not pass
}

// Effect is what a plan does.
type Effect struct {
	Blast       plan.Blast
	Class       plan.Class
	NeedsPerson []string    // why a person must decide, whatever the limit is
	Risks       []plan.Risk // of every owner, worst first; Blast.AtRisk is the first one
	Warnings    []string    // the facts that could not be had, and what is not known without them
	OverBudget  []string    // the disruption budgets that forbid the sum of what does not wait for them
}

// Compute derives the effect from the Steps. It refuses with facts_missing where a fact
// that a gate needs cannot be had. What it does not know counts as everything at risk.
func Compute(in Input) (Effect, *refusal.Refusal) {
	effects := effectsOf(in.Steps, in.Targets)
	if no := missingFacts(in, effects); no != nil {
		return Effect{}, no
	}
	t := newTally(in)
	t.missingAdvice(effects)
	at := map[string]int{} // the pods by UID
	if slices.ContainsFunc(effects, func(e effect) bool { return e == evicts || e == deletes }) {
		steps := map[string]bool{} // a few, of a cluster that has many pods
		for _, s := range in.Steps {
			steps[s.Target.UID] = true
		}
		for i := range in.Facts.Pods {
			if uid := in.Facts.Pods[i].UID; steps[uid] {
				at[uid] = i
			}
		}
	}
	var gone []removal
	var cordoned []string
	for i, s := range in.Steps {
		o := in.Targets[s.Target.UID]
		t.advise(effects[i], s, o)
		switch e := effects[i]; e {
		case adds:
			t.scaleUp(s, o)
		case removes:
			t.scaleDown(s, o)
		case rolls:
			t.roll(s, o)
		case held:
			t.hold(s, o)
		case cordons:
			cordoned = append(cordoned, s.Target.Name)
		case evicts, deletes:
			index, ok := at[s.Target.UID]
			if !ok {
				no := refusal.New(refusal.FactsMissing, "plan again", "the snapshot of pods does not have %s yet", s.Target)
				no.Retryable = true
				return Effect{}, no
			}
			gone = append(gone, removal{Pod: in.Facts.Pods[index], evicted: e == evicts, waits: s.OnBudget == plan.Wait})
		case suspends:
			t.suspend(s, o)
		case resumes:
			t.resume(o)
		case starts:
			t.create(s)
		case nothing:
			t.nothing(s, o)
		default:
			t.unknown(s, o)
		}
	}
	t.remove(gone, cordoned)
	t.sayServices()
	return t.effect(), nil
}

// advise tells what stands in the way of a Step, or takes it back.
func (t *tally) advise(e effect, s plan.Step, o plan.Object) {
	facts := adviceFacts(e, s, o)
	if slices.Contains(facts, factAutoscalers) {
		t.sayAutoscalers(s, o)
	}
	t.sayKeepers(s, o)
	if e != adds && e != rolls {
		return
	}
	if after := t.in.After[s.Target.UID]; after != nil {
		o = after
	}
	tpl, err := template(o)
	if err != nil {
		return
	}
	t.sayPodSecurity(s, tpl)
	if slices.Contains(facts, factQuotas) {
		t.sayQuotas(e, s, t.in.Targets[s.Target.UID], tpl)
	}
}

// missingAdvice warns of the facts that the plan would tell more with.
func (t *tally) missingAdvice(effects []effect) {
	for i, s := range t.in.Steps {
		for _, fact := range adviceFacts(effects[i], s, t.in.Targets[s.Target.UID]) {
			why, missing := t.in.Facts.Missing[fact]
			w := fmt.Sprintf("not known: %s; %s", unknownWithout[fact], plan.Untrusted(why))
			if missing && !slices.Contains(t.warnings, w) {
				t.warnings = append(t.warnings, w)
			}
		}
	}
}

func missingFacts(in Input, effects []effect) *refusal.Refusal {
	var all []*refusal.Refusal
	seen := map[string]bool{}
	for i, s := range in.Steps {
		for _, fact := range gateFacts(effects[i], s) {
			why, missing := in.Facts.Missing[fact]
			if !missing || seen[fact] {
				continue
			}
			seen[fact] = true
			r := refusal.New(refusal.FactsMissing, "the server's account needs the verbs list and watch on "+fact,
				"the %s cannot be had, and the capacity at risk is computed from them", fact)
			r.Untrusted = plan.Untrusted(why)
			all = append(all, r)
		}
	}
	return refusal.Join(all...)
}
