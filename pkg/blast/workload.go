package blast

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// podsOf gives the pods of a workload that are neither finished nor terminating.
func podsOf(target plan.Target, o plan.Object, all []plan.Pod) (pods []plan.Pod) {
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
		if p.Namespace == target.Namespace && !p.Finished() && !p.Terminating && mine(p) {
			pods = append(pods, p)
		}
	}
	return pods
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
	ready, status, terminating := readyOf(podsOf(target, o, f.Pods)), readyStatus(o), 0
	for _, p := range f.Pods {
		if p.Namespace == target.Namespace && p.Terminating && topOf(p) == keyOf(target) {
			terminating++
		}
	}
	return ready <= status && status <= ready+terminating
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
	pods := podsOf(s.Target, o, t.in.Facts.Pods)
	p, ok := paceOf(s.Target.Resource, o, len(pods))
	if !ok {
		t.unknown(s, o)
		return
	}
	ready := readyOf(pods)
	w := t.counted(keyOf(s.Target), s.Target.UID, ready)
	touched, missing := pods, ready-p.stays(available(o, ready))
	if s.Target.Resource == "statefulsets" && !p.recreate {
		set, err := decode[appsv1.StatefulSet](o)
		if err != nil {
			t.unknown(s, o)
			return
		}
		touched, missing = updated(set, pods, missing)
	}
	w.lose(missing, true)
	t.touch(plan.Replaces, len(touched), len(pods))
	t.sayRoll(p, len(touched), len(pods), ready)
	t.losesAnyEmptyDirs(w.key, "replaced", touched)
}

// available is how many of the ready pods count for a controller: with minReadySeconds
// those that it calls available. It may end the others at once.
func available(o plan.Object, ready int) int {
	if o.Int("spec.minReadySeconds") == 0 {
		return ready
	}
	return min(ready, o.Int("status.availableReplicas")+o.Int("status.numberAvailable"))
}

// updated narrows a roll of a StatefulSet to the ordinals from its partition on. With
// Parallel management and before MaxUnavailableStatefulSet, the controller ends one pod
// even while others are not ready.
func updated(set *appsv1.StatefulSet, pods []plan.Pod, missing int) (touched []plan.Pod, lost int) {
	first := startOf(set)
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		first += int(*r.Partition)
	}
	for _, p := range pods {
		if ordinal(set.Name, p.Name) >= first {
			touched = append(touched, p)
		}
	}
	if set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		missing = max(missing, 1)
	}
	return touched, min(missing, readyOf(touched))
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
