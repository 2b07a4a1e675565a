package blast

import (
	"fmt"
	"slices"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// answer is what the eviction API says of one pod.
type answer int

const (
	free  answer = iota // no budget is asked, or it lets a pod go that is not ready
	takes               // one of the disruptions that the budget allows
	no                  // 429, until the budget allows one
	never               // 500: the API has no answer for two budgets
)

// ask predicts the answer for a pod from the budgets that cover it.
func ask(p plan.Pod, covering []*account) answer {
	switch {
	case p.Phase == "Pending" || p.Finished() || p.Terminating || len(covering) == 0:
		return free
	case len(covering) > 1:
		return never
	}
	b := covering[0]
	switch {
	case !p.Ready && (b.AlwaysAllow || b.Healthy >= b.Desired && b.Desired > 0):
		return free
	case !b.Observed || b.Allowed <= 0:
		return no
	}
	return takes
}

// account is one budget with what the whole plan takes from it: the API's dry runs of
// evictions do not add up.
type account struct {
	plan.Budget
	evictions int      // that need a disruption
	deletions int      // that take one without asking
	against   []string // pods deleted though the budget forbids their eviction
	refused   int      // of the evictions, those that the API would refuse after the others, and that do not wait
	missing   map[*owner]int
	most      map[*owner]int // how many may be missing at once
	where     string         // " in default", where the plan meets budgets of several namespaces
}

type ledger struct {
	accounts []*account
	pods     byNamespace
	stuck    []string // pods that can never be evicted, with their budgets
}

// budgetsOf leaves out the budgets of namespaces in which no pod goes.
func budgetsOf(budgets []plan.Budget, gone []removal) (out []plan.Budget) {
	in := namespacesOf(gone)
	for _, b := range budgets {
		if in[b.Namespace] {
			out = append(out, b)
		}
	}
	return out
}

func newLedger(budgets []plan.Budget, pods byNamespace) *ledger {
	l := &ledger{pods: pods}
	for _, b := range budgets {
		l.accounts = append(l.accounts, &account{Budget: b, missing: map[*owner]int{}, most: map[*owner]int{}})
	}
	return l
}

func (l *ledger) covering(p plan.Pod) (out []*account) {
	for _, b := range l.accounts {
		if b.Covers(p) {
			out = append(out, b)
		}
	}
	return out
}

// take debits the budgets for one pod, and gives how many more pods of its owner may be
// missing at once: an eviction waits for its budget, a deletion does not.
func (l *ledger) take(o *owner, r removal) int {
	covering := l.covering(r.Pod)
	capacity := 0
	if r.serves() {
		capacity = 1
	}
	if len(covering) > 1 && ask(r.Pod, covering) == never {
		l.stuck = append(l.stuck, fmt.Sprintf("%s (%s, %s)", full(r.Namespace, r.Name), covering[0].name(), covering[1].name()))
	}
	if !r.evicted {
		for _, b := range covering {
			b.delete(r.Pod)
		}
		return capacity
	}
	switch ask(r.Pod, covering) {
	case free:
		return capacity
	case never:
		return 0
	}
	b := covering[0]
	b.evictions++
	if taken := b.evictions + b.deletions; !r.waits && taken > 1 && taken > b.Allowed {
		b.refused++ // each dry run by itself says yes
	}
	if b.Observed && b.missing[o] >= b.bound(o, l.pods.in(b.Namespace)) {
		return 0
	}
	b.missing[o] += capacity
	return capacity
}

// bound is how many of the ready pods of an owner may be missing at once by evictions:
// what the budget allows now, or all but those that it still needs when the pods of every
// other owner are healthy, whichever is more. Pods of the owner that become healthy raise
// what it allows as well, but then as many serve.
func (b *account) bound(o *owner, pods []plan.Pod) int {
	if most, known := b.most[o]; known {
		return most
	}
	ready, others := 0, 0
	for _, p := range pods {
		switch {
		case p.Finished() || !b.Covers(p):
		case topOf(p) != o.key:
			others++
		case p.Ready:
			ready++
		}
	}
	most := max(b.Allowed, 0)
	if !b.exhausted(pods) {
		most = max(most, ready-max(b.Desired-others, 0))
	}
	b.most[o] = most
	return most
}

// delete takes a pod away without asking.
func (b *account) delete(p plan.Pod) {
	switch ask(p, []*account{b}) {
	case takes:
		if b.deletions++; b.deletions+b.evictions <= b.Allowed {
			return
		}
	case no:
	default:
		return
	}
	b.against = append(b.against, full(p.Namespace, p.Name))
}

func (b *account) name() string { return "pdb/" + short(b.Name) }

// state says why a budget allows nothing.
func (b *account) state() string {
	if !b.Observed {
		return "not counted yet"
	}
	return fmt.Sprintf("%d healthy, %d needed", b.Healthy, b.Desired)
}

// exhausted reports whether no waiting helps: the budget wants every pod that it covers,
// or counts none of them because they have no controller.
func (b *account) exhausted(pods []plan.Pod) bool {
	covered := 0
	for _, p := range pods {
		if !p.Finished() && b.Covers(p) {
			covered++
		}
	}
	return b.Observed && b.Allowed <= 0 && (b.Desired >= covered || b.Desired == 0 && b.Healthy > 0)
}

// sayBudgets describes what the budgets do to the plan, or the plan to them.
func (t *tally) sayBudgets(l *ledger, n nodes) {
	met := slices.DeleteFunc(slices.Clone(l.accounts), func(b *account) bool { return b.evictions == 0 && b.against == nil })
	if slices.ContainsFunc(met, func(b *account) bool { return b.Namespace != met[0].Namespace }) {
		for _, b := range met {
			b.where = " in " + short(b.Namespace)
		}
	}
	for _, b := range met {
		if b.refused > 0 {
			t.over = append(t.over, fmt.Sprintf("%s%s allows %s now (%s), and this plan needs %d at once",
				b.name(), b.where, count(max(b.Allowed, 0), "disruption"), b.state(), b.evictions+b.deletions))
		}
		t.sayDeletions(b)
		t.sayEvictions(b, n)
	}
	if len(l.stuck) > 0 {
		slices.Sort(l.stuck)
		t.say(blocked, "covered by two budgets, so never evicted: %s", list(l.stuck, ", "))
	}
}

func (t *tally) sayDeletions(b *account) {
	if len(b.against) == 0 {
		return
	}
	t.say(blocked, "violates %s (%s)%s; delete bypasses it, evict_pod honours it", b.name(), b.state(), b.where)
	t.needsPerson(fmt.Sprintf("deleting %s bypasses %s (%s), which evict_pod honours", list(b.against, ", "), b.name(), b.state()))
}

func (t *tally) sayEvictions(b *account, n nodes) {
	need := fmt.Sprintf("%d of this plan's pods%s need it", b.evictions, b.where)
	if b.evictions == 1 {
		need = "1 of this plan's pods" + b.where + " needs it"
	}
	pace := "one at a time"
	if b.Allowed > 1 {
		pace = fmt.Sprintf("%d at a time", b.Allowed)
	}
	switch {
	case b.evictions == 0:
	case b.exhausted(t.pods.in(b.Namespace)):
		t.say(blocked, "can never finish: %s allows 0 (%s); %s", b.name(), b.state(), need)
	case !b.Observed || b.Allowed <= 0:
		t.say(blocked, "%s allows 0 now (%s); %s and must wait until it allows more", b.name(), b.state(), need)
	case b.evictions <= b.Allowed:
		t.say(detail, "%s allows %d now; %s", b.name(), b.Allowed, need)
	case n.full():
		t.say(blocked, "cannot finish: %s allows %d now; %s, and no node is left for their replacements", b.name(), b.Allowed, need)
	default:
		t.say(extent, "%s allows %d now; %s: %s, as replacements become ready", b.name(), b.Allowed, need, pace)
	}
}
