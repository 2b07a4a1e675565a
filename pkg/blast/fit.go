package blast

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// space is what a node has left.
type space struct {
	plan.Node
	cpu, memory, pods int64
	other             map[string]int64
}

// spaces gives what the nodes beside those of the plan have left: what they can give less
// what the pods there request. Nodes that do not say what they can give are left out.
func (t *tally) spaces(n nodes) (out []*space) {
	for _, node := range t.in.Facts.Nodes {
		if node.MaxPods == 0 || !node.Ready || node.Unschedulable || slices.Contains(n.names, node.Name) {
			continue
		}
		s := &space{Node: node, cpu: node.Allocatable.CPU, memory: node.Allocatable.Memory, pods: node.MaxPods, other: maps.Clone(node.Allocatable.Other)}
		load := t.in.Facts.Loads[node.Name]
		s.take(load.Running, load.Requests)
		out = append(out, s)
	}
	return out
}

// take places so many pods that together request r.
func (s *space) take(pods int, r plan.Resources) {
	s.cpu, s.memory, s.pods = s.cpu-r.CPU, s.memory-r.Memory, s.pods-int64(pods)
	for name, n := range r.Other {
		if _, has := s.other[name]; has {
			s.other[name] -= n
		}
	}
}

// lacks names the first resource of which the node has too little for a pod, "" for none.
func (s *space) lacks(r plan.Resources) string {
	switch {
	case s.pods < 1:
		return "pods"
	case r.CPU > 0 && r.CPU > s.cpu:
		return "cpu"
	case r.Memory > 0 && r.Memory > s.memory:
		return "memory"
	case len(r.Other) == 0: // asked for each pod of each node
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(r.Other)) {
		if r.Other[name] > s.other[name] {
			return name
		}
	}
	return ""
}

// sayFit tells whether the pods that leave their nodes fit on others, as far as requests,
// taints, node selector and required node affinity decide it. The largest are placed
// first, each where most is free.
func (t *tally) sayFit(n nodes, gone []removal) {
	all := t.spaces(n)
	if len(all) == 0 || n.full() {
		return
	}
	var leaving []removal
	for _, r := range gone {
		if r.waits && !r.Finished() && !r.bare() {
			leaving = append(leaving, r)
		}
	}
	slices.SortFunc(leaving, func(a, b removal) int {
		return cmp.Or(cmp.Compare(b.Requests.CPU, a.Requests.CPU), cmp.Compare(b.Requests.Memory, a.Requests.Memory), cmp.Compare(a.Name, b.Name))
	})
	fit, first := 0, ""
	var pinned []string
	for _, r := range leaving {
		switch why := place(r, t.in.Targets[r.UID], all); {
		case why == "":
			fit++
		case why == nowhere:
			pinned = append(pinned, full(r.Namespace, r.Name))
		case first == "":
			first = full(r.Namespace, r.Name) + " " + why
		}
	}
	t.sayNamed(blocked, pinned, nowhere)
	leaving = leaving[len(pinned):] // how many are left to tell of
	switch {
	case len(leaving) == 0:
	case first == "":
		t.say(detail, "%s on other nodes, by requests, taints and node affinity", fits(len(leaving)))
	default:
		t.say(blocked, "%d of %s %s on other nodes; %s", fit, count(len(leaving), "evicted pod"), map[bool]string{true: "fits", false: "fit"}[fit == 1], first)
	}
}

func fits(n int) string {
	if n == 1 {
		return "the evicted pod fits"
	}
	return fmt.Sprintf("all %d evicted pods fit", n)
}

// nowhere is why a pod that is tied to its node fits on no other.
const nowhere = "cannot run elsewhere, by node selector, affinity or tolerations"

// place puts a pod where most is free, or says why it fits nowhere.
func place(r removal, o plan.Object, all []*space) (why string) {
	pod, err := decode[corev1.Pod](o)
	if err != nil {
		pod = &corev1.Pod{}
	}
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	allowed, node := make([]*space, 0, len(all)), &corev1.Node{}
	for _, s := range all {
		node.Name, node.Labels = s.Name, s.Labels // all that affinity looks at
		ok, err := affinity.Match(node)
		if ok && err == nil && toleratesAll(pod.Spec.Tolerations, s.Taints) {
			allowed = append(allowed, s)
		}
	}
	if len(allowed) == 0 {
		return nowhere
	}
	most := slices.MaxFunc(allowed, func(a, b *space) int {
		room := func(s *space) int {
			if s.lacks(r.Requests) == "" {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(room(a), room(b)), cmp.Compare(a.cpu, b.cpu), cmp.Compare(a.memory, b.memory))
	})
	lack := most.lacks(r.Requests)
	switch lack {
	case "":
		most.take(1, r.Requests)
		return ""
	case "pods":
		return "finds no node that takes one more pod"
	}
	if !slices.ContainsFunc(allowed, func(s *space) bool { return s.of(lack) >= need(r.Requests, lack) }) {
		free := slices.MaxFunc(allowed, func(a, b *space) int { return cmp.Compare(a.of(lack), b.of(lack)) })
		return fmt.Sprintf("needs %s %s, the most free is %s", shownAmount(lack, need(r.Requests, lack)), noun(lack), shownAmount(lack, max(free.of(lack), 0)))
	}
	return "finds no node with enough of everything that it requests"
}

func need(r plan.Resources, name string) int64 {
	switch name {
	case "cpu":
		return r.CPU
	case "memory":
		return r.Memory
	}
	return r.Other[name]
}

func (s *space) of(name string) int64 {
	return need(plan.Resources{CPU: s.cpu, Memory: s.memory, Other: s.other}, name)
}

func noun(name string) string {
	if name == "cpu" {
		return "CPU"
	}
	return short(name)
}

// toleratesAll reports whether a pod may be placed in spite of the taints of a node.
func toleratesAll(tolerations []corev1.Toleration, taints []plan.Taint) bool {
	return !slices.ContainsFunc(taints, func(taint plan.Taint) bool {
		return !slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
			switch {
			case t.Effect != "" && string(t.Effect) != taint.Effect, t.Key != "" && t.Key != taint.Key:
				return false
			case t.Operator == corev1.TolerationOpExists:
				return true
			}
			return (t.Operator == "" || t.Operator == corev1.TolerationOpEqual) && t.Value == taint.Value
		})
	})
}
