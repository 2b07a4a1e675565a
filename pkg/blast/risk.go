package blast

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// key names an owner the way it is known from itself and from its pods alike: the
// Deployment above a pod is known by name only.
type key struct{ kind, namespace, name string }

func (k key) String() string { return safe(k.kind) + "/" + k.namespace + "/" + safe(k.name) }

// display is the owner as a person names it: deployment default/web.
func (k key) display() string {
	kind := short(k.kind)
	for _, known := range plan.Kinds {
		if known.GVK.Kind == k.kind {
			kind = known.Argument
		}
	}
	return kind + " " + full(k.namespace, k.name)
}

func keyOf(t plan.Target) key {
	kind := t.Resource
	if k, ok := plan.KindOf(t.Resource); ok {
		kind = k.GVK.Kind
	}
	return key{kind, t.Namespace, t.Name}
}

// topOf is the key of the workload that a person would name as the pod's owner: the pod
// itself where nothing replaces it.
func topOf(p plan.Pod) key {
	top := p.Top()
	if top == (plan.Owner{}) {
		return key{"Pod", p.Namespace, p.Name}
	}
	return key{top.Kind, p.Namespace, top.Name}
}

// uidOf is the UID of what topOf names, "" where only the name is known.
func uidOf(p plan.Pod) string {
	top := p.Top()
	if top == (plan.Owner{}) {
		return p.UID
	}
	return top.UID
}

// owner is a workload that a plan touches, with what it may lose.
type owner struct {
	key
	plan.Risk
	counted bool   // Ready rests on the pods, not on the status alone
	pods    int    // there are, where some of them go
	forGood bool   // some of what is lost is not replaced
	all     bool   // counts as everything, whatever is ready
	largest *int32 // the largest step that passes, of a scale-down

	exposed []plan.Pod // those among which Missing are
}

// lose takes n more of the ready pods away.
func (o *owner) lose(n int, replaced bool) {
	o.Missing = min(o.Missing+max(n, 0), o.Ready)
	o.forGood = o.forGood || !replaced
	o.Replaced = !o.forGood
}

// settle turns the counts into the percentage.
func (o *owner) settle() {
	o.Percent, o.Peak = o.share(o.Ready, o.Missing), max(o.Peak, o.Ready)
	if o.all {
		o.Missing, o.Percent, o.Replaced = o.Ready, 100, false
	}
}

// share is the capacity at risk when of so many ready pods so many are missing, in
// percent of the peak.
func (o *owner) share(ready, missing int) int {
	if missing == 0 {
		return 0
	}
	peak := max(o.Peak, ready)
	return percent(peak-(ready-missing), peak)
}

// worst takes of the readings of how many pods are ready the one that puts the largest
// share at risk, and gives it with how many of those are missing.
func (o *owner) worst(readings []int, missing func(ready int) int) (ready, lost int) {
	for _, n := range readings {
		m := min(max(missing(n), 0), n)
		if cmp.Or(cmp.Compare(o.share(n, m), o.share(ready, lost)), cmp.Compare(n, ready)) > 0 {
			ready, lost = n, m
		}
	}
	return ready, lost
}

// percent rounds up; something of nothing is everything.
func percent(part, whole int) int {
	switch {
	case part <= 0:
		return 0
	case whole <= 0:
		return 100
	}
	return (100*part + whole - 1) / whole
}

// tally adds up what the Steps of a plan do.
type tally struct {
	in     Input
	pods   byNamespace
	owners []*owner
	blast  plan.Blast
	then   []string
	lines  []line
	person []string
	losses []string
	dirty  []string // pods that go with data in emptyDir volumes
	class  plan.Class

	warnings []string
	over     []string                    // budgets that forbid the sum of what does not wait for them
	taken    map[string]map[string]int64 // of quotas, by the Steps before
}

func newTally(in Input) *tally {
	t := &tally{in: in, pods: sorted(in.Facts.Pods), class: plan.Reversible}
	t.blast.Direction = plan.None
	return t
}

// find gives the record of an owner, with what the memory knows of it.
func (t *tally) find(k key, uid string) *owner {
	for _, o := range t.owners {
		if o.key == k {
			return o
		}
	}
	o := &owner{key: k, Risk: plan.Risk{Owner: k.String(), UID: cmp.Or(uid, k.String())}}
	if t.in.Peak != nil {
		for _, name := range []string{o.UID, o.Owner} {
			if n := t.in.Peak(name); n > o.Peak {
				o.Peak, o.UID = n, name // the key under which the peak was seen
			}
		}
	}
	t.owners = append(t.owners, o)
	return o
}

// count takes it that so many pods are ready. Where several Steps count the same owner,
// the most stand.
func (o *owner) count(ready int) {
	if o.counted {
		ready = max(ready, o.Ready)
	}
	o.Ready, o.counted = ready, true
}

// known is the record of a target whose pods no gate needs: its status says how many are
// ready, for the memory of the peak.
func (t *tally) known(s plan.Step, live plan.Object) *owner {
	o := t.find(keyOf(s.Target), s.Target.UID)
	if !o.counted {
		o.Ready = readyStatus(live)
	}
	return o
}

// touch counts pods of those that there are.
func (t *tally) touch(d plan.Direction, pods, of int) {
	order := []plan.Direction{plan.None, plan.Adds, plan.Replaces, plan.Removes, plan.Evicts}
	if slices.Index(order, d) > slices.Index(order, t.blast.Direction) {
		t.blast.Direction = d
	}
	t.blast.Pods += pods
	t.blast.Of += of
}

func (t *tally) afterwards(then string) {
	if then != "" && !slices.Contains(t.then, then) {
		t.then = append(t.then, then)
	}
}

// takesBack names who is expected to undo the change.
func (t *tally) takesBack(who string) {
	if !slices.Contains(t.blast.Reverts, who) {
		t.blast.Reverts = append(t.blast.Reverts, who)
	}
}

// needsPerson names a reason for which a person must decide.
func (t *tally) needsPerson(reason string) { t.person = append(t.person, reason) }

// lost names data or a pod that does not come back.
func (t *tally) lost(what string) { t.losses = append(t.losses, what) }

// effect sums up.
func (t *tally) effect() Effect {
	for _, o := range t.owners {
		o.settle()
	}
	slices.SortStableFunc(t.owners, t.worse)
	var risks []plan.Risk
	for _, o := range t.owners {
		risks = append(risks, o.Risk)
	}
	t.sayRisks()
	if len(t.dirty) > 0 {
		t.say(loss, "emptyDir data is lost: %s", list(t.dirty, ", "))
	}
	if len(t.owners) > 0 {
		t.blast.AtRisk, t.blast.Largest = risks[0], t.owners[0].largest
	}
	t.blast.Percent = percent(t.blast.Pods, t.blast.Of)
	t.blast.Then = strings.Join(t.then, "; ")
	t.blast.Lines = worstFirst(t.lines)
	t.blast.Losses = t.losses
	t.blast.Source = cmp.Or(t.in.Facts.Sources[factPods], t.in.Facts.Sources[factNodes])
	return Effect{Blast: t.blast, Class: t.class, NeedsPerson: t.person, Risks: risks, Warnings: t.warnings, OverBudget: t.over}
}

// worse orders owners: first those for which the gate says no. A single replaced pod may
// be 100 % and pass; it must not stand before 4 of 5 that do not.
func (t *tally) worse(a, b *owner) int {
	gated := func(o *owner) int {
		if o.Percent > t.in.MaxPercent && !o.Single() {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(gated(b), gated(a)), cmp.Compare(b.Percent, a.Percent),
		cmp.Compare(b.Missing, a.Missing), cmp.Compare(a.Owner, b.Owner))
}
