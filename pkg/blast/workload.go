package blast

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// podsOf gives the pods of a workload that are neither finished nor terminating, and how
// many of it are terminating.
func podsOf(target plan.Target, o plan.Object, all []plan.Pod) (pods []plan.Pod, terminating int) {
	mine := func(p plan.Pod) bool { return p.Owner.UID == target.UID }
	if target.Resource == "deployments" {
		selector := labels.Everything()
		if d, err := decode[appsv1.Deployment](o); err == nil && d.Spec.Selector != nil {
			if s, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err == nil {
				selector = s
			}
		}
		top := plan.Owner{Kind: "Deployment", Name: target.Name}
		mine = func(p plan.Pod) bool { return p.Top() == top && selector.Matches(labels.Set(p.Labels)) }
	}
	for _, p := range all {
		switch {
		case p.Namespace != target.Namespace || p.Finished() || !mine(p):
		case p.Terminating:
			terminating++
		default:
			pods = append(pods, p)
		}
	}
	return pods, terminating
}

func readyOf(pods []plan.Pod) (n int) {
	for _, p := range pods {
		if p.Ready {
			n++
		}
	}
	return n
}

// Agrees reports whether a snapshot shows of a target what its live object says of
// itself. What was not fetched is not disputed. A ready pod that is terminating may count
// on either side.
func Agrees(target plan.Target, o plan.Object, f plan.Facts) bool {
	fact := factPods
	if target.Resource == "nodes" {
		fact = factNodes
	}
	if _, fetched := f.Sources[fact]; !fetched {
		return true
	}
	switch target.Resource {
	case "nodes":
		return slices.ContainsFunc(f.Nodes, func(n plan.Node) bool {
			return n.Name == target.Name && n.Unschedulable == (o.Value("spec.unschedulable") == "true")
		})
	case "pods":
		return slices.ContainsFunc(f.Pods, func(p plan.Pod) bool {
			return p.UID == target.UID && p.Node == o.Value("spec.nodeName") && p.Phase == o.Value("status.phase") &&
				p.Owner.UID == o.Value(plan.OwnerField) && p.Terminating == (o.Value("metadata.deletionTimestamp") != "")
		})
	}
	return len(readings(target, o, f.Pods)) == 1
}

// readings are how many ready pods a target may have: as many as are listed, and as many
// as its status says where that is another number. A ready pod that is terminating may
// count on either side.
func readings(target plan.Target, o plan.Object, all []plan.Pod) []int {
	pods, terminating := podsOf(target, o, all)
	listed, status := readyOf(pods), readyStatus(o)
	if listed <= status && status <= listed+terminating {
		return []int{listed}
	}
	return []int{listed, status}
}

// readings are those of a Step's target. By now the list is a live one where the two
// disagree; the share is then of what is worse.
func (t *tally) readings(s plan.Step, o plan.Object) []int {
	n := readings(s.Target, o, t.in.Facts.Pods)
	if len(n) > 1 {
		t.say(extent, "%s listed, the status of %s says %d: the larger share at risk is taken", count(n[0], "ready pod"), keyOf(s.Target).display(), n[1])
	}
	return n
}

// behind reports whether the controller has yet to see the latest change of the spec: its
// status speaks of the one before.
func behind(o plan.Object) bool {
	return o.Int("status.observedGeneration") < o.Int("metadata.generation")
}

// readyStatus is how many pods the controller called ready last.
func readyStatus(o plan.Object) int {
	return o.Int("status.readyReplicas") + o.Int("status.numberReady")
}

// podStatus is how many pods the controller counted last.
func podStatus(o plan.Object) int {
	return o.Int("status.replicas") + o.Int("status.currentNumberScheduled")
}

// nothing is a Step that touches no pod; of a workload the ready pods are kept in mind.
func (t *tally) nothing(s plan.Step, o plan.Object) {
	if k, _ := plan.KindOf(s.Target.Resource); k.Pods {
		t.known(s, o)
	}
	if s.Target.Resource == "cronjobs" && slices.ContainsFunc(s.Patch, func(op plan.Op) bool { return op.Path == "/spec/suspend" && string(op.Value) == "true" }) {
		t.say(extent, "stops future runs, and no pod: jobs that are active go on")
	}
}

// unknown is a Step of which the effect is not known: everything is at risk.
func (t *tally) unknown(s plan.Step, o plan.Object) {
	t.known(s, o).all = true
	n := podStatus(o)
	t.touch(plan.Removes, n, n)
	t.say(outage, "the effect of this %s of %s is not known: it counts as all of its capacity", s.Verb, keyOf(s.Target).display())
}

// scaleUp adds pods.
func (t *tally) scaleUp(s plan.Step, o plan.Object) {
	t.known(s, o)
	from, to := replicas(o), int(*s.Replicas)
	t.touch(plan.Adds, to-from, from)
	t.say(extent, "adds %s to %d", count(to-from, "pod"), from)
}

// hold is a change of the template that no pod follows now.
func (t *tally) hold(s plan.Step, o plan.Object) {
	t.known(s, o)
	n := podStatus(o)
	t.touch(plan.None, 0, n)
	t.say(extent, "0 of %s change %s", count(n, "pod"), heldBack(s.Target.Resource, o))
	t.afterwards("no pod changes " + heldBack(s.Target.Resource, o))
}

// roll replaces the pods at the pace of the update strategy.
func (t *tally) roll(s plan.Step, o plan.Object) {
	pods, _ := podsOf(s.Target, o, t.in.Facts.Pods)
	p, ok := paceOf(s.Target.Resource, o, len(pods))
	if !ok {
		t.unknown(s, o)
		return
	}
	touched, listed := pods, readyOf(pods)
	missing := func(ready int) int { return ready - p.stays(available(o, ready)) }
	replaced := func(unlisted int) int { return len(pods) + unlisted }
	if !s.Rolls() { // a resume: the pods that have the template stay
		replaced = func(unlisted int) int { return max(max(len(pods)+unlisted, podStatus(o))-upToDate(o), 0) }
		whole := missing
		missing = func(ready int) int { return min(whole(ready), replaced(max(ready-listed, 0))) }
		if replaced(0) == 0 {
			touched = nil
		}
	}
	if s.Target.Resource == "statefulsets" && !p.recreate {
		set, err := decode[appsv1.StatefulSet](o)
		if err != nil {
			t.unknown(s, o)
			return
		}
		var room int
		touched, room = updated(set, pods, p.want)
		t.sayPartition(o, set.Name, touched)
		replaced = func(unlisted int) int { return min(len(touched)+unlisted, room) }
		whole := missing
		missing = func(ready int) int {
			n := whole(ready)
			if set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
				n = max(n, 1) // before MaxUnavailableStatefulSet, even while others are not ready
			}
			return min(n, readyOf(touched)+max(ready-listed, 0), room)
		}
	}
	w := t.find(keyOf(s.Target), s.Target.UID)
	ready, lost := w.worst(t.readings(s, o), missing)
	w.count(ready)
	w.lose(lost, true)
	w.exposed = touched
	unlisted := max(ready-listed, 0)
	goes := replaced(unlisted)
	of := max(len(pods)+unlisted, goes)
	t.touch(plan.Replaces, goes, of)
	t.sayRoll(p, goes, of, ready)
	t.losesAnyEmptyDirs(w.key, "replaced", touched)
}

// available is how many of the ready pods count for a controller: with minReadySeconds
// those that it calls available, none that is known while its status is behind. It may
// end the others at once.
func available(o plan.Object, ready int) int {
	switch {
	case o.Int("spec.minReadySeconds") == 0:
		return ready
	case behind(o):
		return 0
	}
	return min(ready, o.Int("status.availableReplicas")+o.Int("status.numberAvailable"))
}

// updated narrows a roll of a StatefulSet to the ordinals from its partition on: the pods,
// and how many there may be.
func updated(set *appsv1.StatefulSet, pods []plan.Pod, replicas int) (touched []plan.Pod, room int) {
	partition := 0
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		partition = int(*r.Partition)
	}
	for _, p := range pods {
		if ordinal(set.Name, p.Name) >= startOf(set)+partition {
			touched = append(touched, p)
		}
	}
	return touched, max(replicas-partition, len(touched))
}

// sayPartition names the pods that a partition leaves to a roll.
func (t *tally) sayPartition(o plan.Object, set string, touched []plan.Pod) {
	n := o.Int("spec.updateStrategy.rollingUpdate.partition")
	if n == 0 || len(touched) == 0 {
		return
	}
	touched = slices.Clone(touched)
	sortDown(set, touched)
	var names []string
	for _, p := range touched {
		names = append(names, short(p.Name))
	}
	t.say(detail, "partition %d: of the pods only %s", n, list(names, " then "))
}

func (t *tally) sayRoll(p pace, touched, of, ready int) {
	stays, r := p.stays(p.want), extent
	if stays == 0 && ready > 0 {
		r = outage
	}
	switch {
	case touched == 0:
		t.say(extent, "replaces 0 of %s", count(of, "pod"))
		return
	case p.recreate:
		t.say(r, "stops %s before a new one starts (Recreate): an outage until new ones are ready", every(of, "pod"))
		t.afterwards("recreated, all at once")
		return
	}
	t.say(r, "replaces %d of %s: at least %d of %d stay available, at most %d at once", touched, count(of, "pod"), stays, p.want, p.want+p.surge)
	if p.unavailable == 0 {
		t.afterwards("rolling, each old pod stays until a new one is available")
		return
	}
	t.afterwards(fmt.Sprintf("rolling, at most %d at a time", p.unavailable))
}
