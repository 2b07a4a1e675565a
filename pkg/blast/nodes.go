package blast

import (
	"slices"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// nodes are the nodes that a plan cordons or drains, and what is left beside them.
type nodes struct {
	names     []string
	now, left int   // schedulable ones, before and after
	cpu, gone int64 // millicores that all of them can give, and those of the plan
	pods      int   // on the nodes
}

// full reports whether evicted pods find no node.
func (n nodes) full() bool { return len(n.names) > 0 && n.left == 0 }

func (t *tally) nodes(gone []removal, cordoned []string) nodes {
	n := nodes{names: slices.Clone(cordoned)}
	for _, r := range gone {
		if r.waits && r.Node != "" {
			n.names = append(n.names, r.Node)
		}
	}
	slices.Sort(n.names)
	n.names = slices.Compact(n.names)
	for _, node := range t.in.Facts.Nodes {
		if !node.Schedulable() {
			continue
		}
		n.now++
		n.cpu += node.Allocatable.CPU
		if !slices.Contains(n.names, node.Name) {
			n.left++
		} else {
			n.gone += node.Allocatable.CPU
		}
	}
	for _, name := range n.names {
		n.pods += t.in.Facts.Loads[name].Pods
	}
	return n
}

func (t *tally) sayNodes(n nodes, gone []removal) {
	if len(n.names) == 0 {
		return
	}
	names := list(shortened(n.names), ", ")
	if _, missing := t.in.Facts.Missing[factPods]; len(gone) == 0 && !missing {
		t.touch(plan.None, 0, n.pods)
		t.say(extent, "evicts none of %s on %s", count(n.pods, "pod"), names)
	}
	leaving := 0
	for _, r := range gone {
		if !r.Finished() && !r.bare() {
			leaving++
		}
	}
	switch {
	case n.left == 0 && leaving > 0:
		t.say(outage, "0 of %s left: %s will be Pending until one takes them", count(n.now, "schedulable node"), count(leaving, "evicted pod"))
		t.needsPerson("no schedulable node is left for the pods of " + names)
	case n.left == 0 && n.now > 0:
		t.say(blocked, "0 of %s left: new pods will be Pending", count(n.now, "schedulable node"))
		t.needsPerson(names + " is the last schedulable node")
	case n.now > n.left && n.gone > 0:
		t.say(extent, "%d of %s left (%d %% fewer, %d %% less CPU)", n.left, count(n.now, "schedulable node"),
			percent(n.now-n.left, n.now), percent(int(n.gone), int(n.cpu)))
	case n.now > n.left:
		t.say(extent, "%d of %s left (%d %% fewer)", n.left, count(n.now, "schedulable node"), percent(n.now-n.left, n.now))
	default:
		t.say(detail, "%s took no new pods before; %s elsewhere", names, count(n.left, "schedulable node"))
	}
}

func shortened(names []string) (out []string) {
	for _, n := range names {
		out = append(out, short(n))
	}
	return out
}
