package blast

import (
	"fmt"
	"slices"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// removal is one pod that a plan deletes or evicts.
type removal struct {
	plan.Pod
	evicted bool
	waits   bool // for its budget: of a drain
}

// bare reports whether nothing makes the pod again. A drain leaves the pods of a
// DaemonSet alone, so one that it evicts has lost its DaemonSet.
func (r removal) bare() bool {
	return r.Top() == (plan.Owner{}) || r.waits && r.Owner.Kind == "DaemonSet"
}

// serves reports whether the pod carries capacity that its loss puts at risk: a Job's
// pod works, but serves nothing, and one that has failed with its node still says that it
// is ready.
func (r removal) serves() bool { return r.Ready && !r.Finished() && r.Top().Kind != "Job" }

// remove adds up the pods that go, and the nodes that take no new ones.
func (t *tally) remove(gone []removal, cordoned []string) {
	if len(gone) == 0 && len(cordoned) == 0 {
		return
	}
	n := t.nodes(gone, cordoned)
	owners := t.siblings(gone)
	held := newLedger(budgetsOf(t.in.Facts.Budgets, gone), t.pods)
	for _, r := range gone {
		o := owners[topOf(r.Pod)]
		o.lose(held.take(o, r), !r.bare() && !n.full())
		o.exposed = append(o.exposed, r.Pod)
		t.losesPod(r)
	}
	t.sayRemovals(gone, owners, n)
	t.sayNodes(n, gone)
	t.sayFit(n, gone)
	t.sayBudgets(held, n)
}

// siblings makes the records of the owners of pods that go.
func (t *tally) siblings(gone []removal) map[key]*owner {
	type group struct {
		uid       string
		ready, of int
	}
	groups := map[key]*group{}
	var order []key
	for _, r := range gone {
		k := topOf(r.Pod)
		if groups[k] == nil {
			groups[k], order = &group{uid: uidOf(r.Pod)}, append(order, k)
		}
	}
	for _, p := range t.pods.of(gone) {
		// Owners of one kind and name may be two: the kinds of other API groups have no group here.
		if g := groups[topOf(p)]; g != nil && g.uid == uidOf(p) {
			if (removal{Pod: p}).serves() {
				g.ready++
			}
			if !p.Finished() && !p.Terminating {
				g.of++
			}
		}
	}
	owners := map[key]*owner{}
	for _, k := range order {
		owners[k] = t.find(k, groups[k].uid)
		owners[k].count(groups[k].ready)
		owners[k].pods = groups[k].of
	}
	return owners
}

// losesPod names what goes with a pod and does not come back.
func (t *tally) losesPod(r removal) {
	if r.Finished() {
		return
	}
	t.losesEmptyDirs(r.Pod)
	if r.bare() {
		t.class = plan.Irreversible
		t.lost("pod " + r.Namespace + "/" + r.Name + ": no controller makes it again")
		t.needsPerson("pod " + full(r.Namespace, r.Name) + " has no controller: it does not come back")
	}
}

// losesEmptyDirs names the data that goes with one pod.
func (t *tally) losesEmptyDirs(p plan.Pod) {
	if dirs := emptyDirs(p); dirs != "" && !p.Finished() {
		t.lost("emptyDir data of pod " + p.Namespace + "/" + p.Name + ": " + dirs)
		t.dirty = append(t.dirty, short(p.Name)+" ("+dirs+")")
	}
}

// losesAnyEmptyDirs names the data that goes with some pods of a workload, not by the
// pods: they change by themselves.
func (t *tally) losesAnyEmptyDirs(k key, how string, pods []plan.Pod) {
	for _, p := range pods {
		if dirs := emptyDirs(p); dirs != "" {
			t.lost(fmt.Sprintf("emptyDir data of the %s pods of %s: %s", how, k.display(), dirs))
			t.say(loss, "emptyDir data of every %s pod is lost: %s", how, dirs)
			return
		}
	}
}

// sayRemovals describes the pods that go.
func (t *tally) sayRemovals(gone []removal, owners map[key]*owner, n nodes) {
	if len(gone) == 0 {
		return
	}
	of := 0
	for _, o := range owners {
		of += o.pods
	}
	if len(n.names) > 0 {
		of = n.pods
	}
	of = max(of, len(gone))
	t.touch(plan.Evicts, len(gone), of)
	verb := "deletes"
	if gone[0].evicted {
		verb = "evicts"
	}
	switch top := topOf(gone[0].Pod); {
	case len(n.names) > 0:
		t.say(extent, "%s %d of %s on %s; %d stay", verb, len(gone), count(of, "pod"), list(shortened(n.names), ", "), of-len(gone))
	case len(owners) > 1:
		t.say(extent, "%s %d of %s of %d owners", verb, len(gone), count(of, "pod"), len(owners))
	case top.kind == "Pod":
		t.say(extent, "%s %s", verb, top.display())
	default:
		t.say(extent, "%s %d of %s of %s", verb, len(gone), count(of, "pod"), top.display())
	}
	t.sayAfterwards(gone)
}

// sayAfterwards tells which pods come back, and who does not want them gone.
func (t *tally) sayAfterwards(gone []removal) {
	var bare, jobs, optOut, back []string
	for _, r := range gone {
		name, top := full(r.Namespace, r.Name), topOf(r.Pod).display()
		switch {
		case r.Finished():
		case r.bare():
			bare = append(bare, name)
		case r.Top().Kind == "Job":
			jobs, back = append(jobs, name), append(back, top+" while it has retries left")
		default:
			back = append(back, top)
		}
		if r.OptOut {
			optOut = append(optOut, name)
		}
	}
	t.sayNamed(loss, bare, "no controller makes again")
	t.sayNamed(blocked, optOut, "marked by the owner as not to be disrupted")
	t.sayNamed(extent, jobs, "of a Job: its work is cut short and may count as a failure")
	slices.Sort(back)
	switch back = slices.Compact(back); len(back) {
	case 0:
		t.afterwards("gone")
		return
	case 1:
		t.afterwards("recreated by " + back[0])
	default:
		t.afterwards("recreated by their controllers")
	}
	if len(bare) > 0 {
		t.afterwards(count(len(bare), "pod") + " gone")
	}
}

func (t *tally) sayNamed(r rank, names []string, what string) {
	if len(names) > 0 {
		slices.Sort(names)
		t.say(r, "%s %s: %s", count(len(names), "pod"), what, list(names, ", "))
	}
}
