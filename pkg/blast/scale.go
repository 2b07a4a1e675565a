package blast

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// scaleDown removes pods.
func (t *tally) scaleDown(s plan.Step, o plan.Object) {
	pods, _ := podsOf(s.Target, o, t.in.Facts.Pods)
	exposed := pods
	from, to := replicas(o), int(*s.Replicas)
	unlisted := func(ready int) int { return max(ready-readyOf(pods), 0) }
	// Those that are not ready go first.
	stays := func(ready, to int) int { return min(ready, to) }
	say := func(w *owner, ready, _ int) {
		of := len(pods) + unlisted(ready)
		t.sayDown(w.key, pods, of, ready, of-to)
	}
	switch s.Target.Resource {
	case "statefulsets":
		set, err := decode[appsv1.StatefulSet](o)
		if err != nil {
			t.unknown(s, o)
			return
		}
		stays = func(ready, to int) int {
			gone := condemned(set, pods, to)
			return ready - min(readyOf(gone)+unlisted(ready), max(from-to, len(gone)))
		}
		exposed = condemned(set, pods, to)
		say = func(_ *owner, ready, lost int) {
			t.saySetDown(set, condemned(set, pods, to), len(pods)+unlisted(ready), lost, from, to)
		}
	case "deployments":
		d, err := decode[appsv1.Deployment](o)
		if err != nil {
			t.unknown(s, o)
			return
		}
		if behind(o) {
			t.say(detail, "the status of %s is behind its spec: a rollout may be going on", keyOf(s.Target).display())
		}
		if behind(o) || rolling(d, pods, from) {
			stays = rollingStays(d, pods, from)
		}
		say = func(w *owner, ready, _ int) {
			of := len(pods) + unlisted(ready)
			t.sayDown(w.key, pods, of, ready, max(t.saySplit(d, pods, from, to), min(of-to, from-to)))
		}
	}
	w, counts := t.find(keyOf(s.Target), s.Target.UID), t.readings(s, o)
	loss := func(to int) (ready, lost int) {
		return w.worst(counts, func(ready int) int { return ready - stays(ready, to) })
	}
	ready, lost := loss(to)
	say(w, ready, lost)
	w.count(ready)
	w.lose(lost, false)
	w.exposed = exposed
	t.afterwards("gone")
	passes := func(to int) bool { return w.share(loss(to)) <= t.in.MaxPercent }
	if w.share(w.Ready, w.Missing) <= t.in.MaxPercent {
		return
	}
	// More replicas never mean a larger loss, and there may be two billion of them.
	if n := to + 1 + sort.Search(from-to-1, func(i int) bool { return passes(to + 1 + i) }); n < from {
		largest := int32(n)
		w.largest = &largest
	}
}

// rollingStays gives how many ready pods a Deployment keeps at the worst moment when it
// is reduced in the middle of a rollout: the reduction is spread over its ReplicaSets,
// each of which may lose ready pods while another has some that are not, and the rollout
// goes on. ready may be more than are listed.
func rollingStays(d *appsv1.Deployment, pods []plan.Pod, from int) func(ready, to int) int {
	listed, sets := readyOf(pods), len(replicaSets(pods))
	before, known := deploymentPace(d.Spec.Strategy, from)
	return func(ready, to int) int {
		after, _ := deploymentPace(d.Spec.Strategy, to)
		if to == 0 || !known {
			return 0
		}
		room, unlisted := to+after.surge, max(ready-listed, 0)
		stays := max(ready-max(from+before.surge-room, len(pods)+unlisted-room), 0)
		switch {
		case !d.Spec.Paused:
			return after.stays(stays)
		case sets == 1:
			return min(stays, to)
		}
		return stays
	}
}

// rolling reports whether a Deployment has, or may have, ReplicaSets of several
// templates: one that cannot make its pods does not show in them.
func rolling(d *appsv1.Deployment, pods []plan.Pod, from int) bool {
	complete := slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentProgressing && c.Reason == "NewReplicaSetAvailable"
	})
	return len(replicaSets(pods)) > 1 || d.Status.UpdatedReplicas != d.Status.Replicas ||
		len(pods) < from && !complete
}

// replicaSet is one ReplicaSet as its pods show it.
type replicaSet struct {
	name  string
	pods  int
	first plan.Pod // the oldest
}

func replicaSets(pods []plan.Pod) (sets []replicaSet) {
	index := map[string]int{}
	for _, p := range pods {
		i, ok := index[p.Owner.UID]
		if !ok {
			i, sets = len(sets), append(sets, replicaSet{name: p.Owner.Name, first: p})
			index[p.Owner.UID] = i
		}
		sets[i].pods++
		if p.Created.Before(sets[i].first.Created) {
			sets[i].first = p
		}
	}
	return sets
}

// split spreads a reduction over the ReplicaSets of a rolling Deployment as its
// controller does: in proportion, from the largest (and oldest) to the smallest, the
// remainder to the largest. It sorts sets, and gives the new sizes in their order.
func split(d *appsv1.Deployment, sets []replicaSet, from, to int) (sizes []int) {
	before, _ := deploymentPace(d.Spec.Strategy, from)
	after, _ := deploymentPace(d.Spec.Strategy, to)
	slices.SortStableFunc(sets, func(a, b replicaSet) int {
		return cmp.Or(cmp.Compare(b.pods, a.pods), a.first.Created.Compare(b.first.Created), cmp.Compare(a.name, b.name))
	})
	room, total := 0, 0
	if to > 0 {
		room = to + after.surge
	}
	for _, rs := range sets {
		total += rs.pods
	}
	left := min(room-total, 0)
	for _, rs := range sets {
		share := -rs.pods
		if to > 0 {
			share = int(math.Round(float64(rs.pods*room)/float64(max(from+before.surge, total)))) - rs.pods
		}
		share = min(max(share, left), 0)
		sizes, left = append(sizes, rs.pods+share), left-share
	}
	if len(sizes) > 0 {
		sizes[0] = max(sizes[0]+left, 0)
	}
	return sizes
}

// saySplit describes the split, and gives how many pods it removes.
func (t *tally) saySplit(d *appsv1.Deployment, pods []plan.Pod, from, to int) (removed int) {
	sets := replicaSets(pods)
	if len(sets) < 2 || d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return 0
	}
	var parts []string
	for i, size := range split(d, sets, from, to) {
		parts = append(parts, fmt.Sprintf("%s %d → %d", short(sets[i].name), sets[i].pods, size))
		removed += sets[i].pods - size
	}
	until := "then the rollout goes on"
	if d.Spec.Paused {
		until = "until the rollout is resumed"
	}
	t.say(extent, "mid-rollout: %s, %s", list(parts, ", "), until)
	return removed
}

// sayDown describes a scale-down of pods that have no order.
func (t *tally) sayDown(k key, pods []plan.Pod, of, ready, removed int) {
	removed = max(removed, 0)
	t.touch(plan.Removes, removed, of)
	switch {
	case removed == of && ready > 0:
		t.say(outage, "removes %s: nothing serves any more", every(removed, "pod"))
	case ready < of:
		t.say(extent, "removes %d of %s, those that are not ready first (%d are ready)", removed, count(of, "pod"), ready)
	default:
		t.say(extent, "removes %d of %s", removed, count(of, "pod"))
	}
	if removed > 0 {
		t.losesAnyEmptyDirs(k, "removed", pods)
	}
}

// condemned gives the pods of a StatefulSet that a scale-down ends, in its order: the
// highest ordinal first.
func condemned(set *appsv1.StatefulSet, pods []plan.Pod, to int) (gone []plan.Pod) {
	for _, p := range pods {
		if ordinal(set.Name, p.Name) >= startOf(set)+to {
			gone = append(gone, p)
		}
	}
	sortDown(set.Name, gone)
	return gone
}

// sortDown brings the pods of a StatefulSet into the order in which it ends them.
func sortDown(set string, pods []plan.Pod) {
	slices.SortFunc(pods, func(a, b plan.Pod) int { return cmp.Compare(ordinal(set, b.Name), ordinal(set, a.Name)) })
}

func startOf(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

// ordinal is the number of a StatefulSet's pod, -1 for what is none.
func ordinal(set, pod string) int {
	digits, ok := strings.CutPrefix(pod, set+"-")
	n, err := strconv.ParseUint(digits, 10, 31)
	if !ok || err != nil {
		return -1
	}
	return int(n)
}

// saySetDown describes a scale-down of a StatefulSet and what becomes of its claims.
func (t *tally) saySetDown(set *appsv1.StatefulSet, gone []plan.Pod, of, lost, from, to int) {
	removed := max(len(gone), lost) // some that are lost may not be listed
	t.touch(plan.Removes, removed, of)
	how, separator := "", " then "
	if set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		how, separator = " at once", ", "
	}
	var names []string
	for _, p := range gone {
		names = append(names, short(p.Name))
		t.losesEmptyDirs(p)
	}
	switch {
	case removed == 0:
		t.say(extent, "removes 0 of %s", count(of, "pod"))
	case to == 0 && lost > 0 && len(names) > 0:
		t.say(outage, "removes %s%s, %s: nothing serves any more", every(of, "pod"), how, list(names, separator))
	case to == 0 && lost > 0:
		t.say(outage, "removes %s%s: nothing serves any more", every(of, "pod"), how)
	case len(names) == 0:
		t.say(extent, "removes %d of %s%s", removed, count(of, "pod"), how)
	default:
		t.say(extent, "removes %d of %s%s: %s", removed, count(of, "pod"), how, list(names, separator))
	}
	t.sayClaims(set, from, to)
}

// maxClaims is how many volume claims are named: spec.replicas may be two billion where
// hardly a pod was ever made.
const maxClaims = 100

// sayClaims describes what becomes of the volume claims of a StatefulSet's ordinals.
func (t *tally) sayClaims(set *appsv1.StatefulSet, from, to int) {
	total := (from - to) * len(set.Spec.VolumeClaimTemplates)
	if total == 0 {
		return
	}
	var claims, shown []string
	for n := startOf(set) + from - 1; n >= startOf(set)+to && len(claims) < maxClaims; n-- {
		for _, c := range set.Spec.VolumeClaimTemplates {
			claims = append(claims, fmt.Sprintf("%s-%s-%d", safe(c.Name), set.Name, n))
		}
	}
	for _, c := range claims {
		shown = append(shown, short(c))
	}
	names := listOf(shown, ", ", total)
	policy := set.Spec.PersistentVolumeClaimRetentionPolicy
	if policy == nil || policy.WhenScaled != appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
		t.say(detail, "keeps %s: %s", count(total, "volume claim"), names)
		return
	}
	for _, c := range claims {
		t.lost("volume claim " + set.Namespace + "/" + c)
	}
	if more := total - len(claims); more > 0 {
		t.lost(fmt.Sprintf("%d volume claims more of statefulset %s/%s", more, set.Namespace, set.Name))
	}
	t.class = plan.Irreversible
	t.say(loss, "deletes %s with the data: %s", count(total, "volume claim"), names)
	t.needsPerson(fmt.Sprintf("statefulset %s loses %s with the data (whenScaled: Delete)", full(set.Namespace, set.Name), count(total, "volume claim")))
}
