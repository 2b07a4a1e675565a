package blast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// The percentage is never below the loss that really happens when the controllers, here
// simulated after their sources in v1.37, act on a scale-down or a new template and the
// new pods become ready late or never.
func FuzzNeverBelowTheTrueLoss(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		for range 100 {
			switch r.IntN(4) {
			case 0:
				deploymentTrial(t, r)
			case 1:
				statefulSetRollTrial(t, r)
			case 2:
				daemonSetTrial(t, r)
			default:
				statefulSetScaleTrial(t, r)
			}
		}
	})
}

func check(t *testing.T, w *world, r *rand.Rand, ready, least int, about any) {
	t.Helper()
	listed := lag(w, r, ready)
	about = fmt.Sprintf("%v, %d of %d pods listed", about, len(w.in.Facts.Pods), listed)
	lagged := len(w.in.Facts.Pods) != listed
	peak := ready
	if w.in.Peak != nil {
		peak = max(peak, w.in.Peak(""))
	}
	e, no := Compute(w.in)
	if no != nil {
		t.Fatal(no)
	}
	got := e.Blast.AtRisk
	want := 0
	if least < ready {
		want = int(math.Ceil(100 * float64(peak-least) / float64(peak)))
	}
	if got.Percent < want {
		t.Fatalf("%d %% at risk, but %d of %d ready (peak %d) were left at worst: %d %%\n%+v", got.Percent, least, ready, peak, want, about)
	}
	if got.Ready != ready && !lagged {
		t.Fatalf("%d ready, want %d", got.Ready, ready)
	}
	if l := e.Blast.Largest; l != nil {
		w.in.Steps[0].Replicas = l
		if e, _ := Compute(w.in); e.Blast.AtRisk.Percent > w.in.MaxPercent || e.Blast.Largest != nil {
			t.Fatalf("the largest step %d does not pass: %+v\n%+v", *l, e.Blast.AtRisk, about)
		}
	}
}

// lag lets the list of pods lack some in every second world; the status has the truth. It
// gives how many there are.
func lag(w *world, r *rand.Rand, ready int) (all int) {
	all = len(w.in.Facts.Pods)
	target := w.in.Targets[w.in.Steps[0].Target.UID]
	status, _ := target["status"].(map[string]any)
	if status == nil {
		status = map[string]any{}
		target["status"] = status
	}
	field := "readyReplicas"
	if w.in.Steps[0].Target.Resource == "daemonsets" {
		field = "numberReady"
	}
	status[field] = int64(ready)
	if r.IntN(2) == 0 {
		w.in.Facts.Pods = slices.DeleteFunc(w.in.Facts.Pods, func(plan.Pod) bool { return r.IntN(3) == 0 })
	}
	return all
}

func peakOf(r *rand.Rand) func(string) int {
	if r.IntN(2) == 0 {
		return nil
	}
	n := r.IntN(12)
	return func(string) int { return n }
}

func intOrPercent(r *rand.Rand, low int) intstr.IntOrString {
	if r.IntN(2) == 0 {
		return intstr.FromInt32(int32(low + r.IntN(5)))
	}
	return intstr.FromString(fmt.Sprintf("%d%%", low+r.IntN(100)))
}

// simSet is a ReplicaSet: it ends pods that are not ready first.
type simSet struct{ spec, ready, broken int }

func (s *simSet) scale(to int) {
	s.spec = to
	over := max(s.ready+s.broken-to, 0)
	first := min(over, s.broken)
	s.broken, s.ready = s.broken-first, s.ready-(over-first)
}

// simDeployment is a Deployment in the middle of a rollout: the last set is the new one.
type simDeployment struct {
	n, surge, unavailable int
	sets                  []*simSet
}

func (d *simDeployment) resolve(surge, unavailable intstr.IntOrString) {
	d.surge, _ = intstr.GetScaledValueFromIntOrPercent(&surge, d.n, true)
	d.unavailable, _ = intstr.GetScaledValueFromIntOrPercent(&unavailable, d.n, false)
	if d.surge == 0 && d.unavailable == 0 {
		d.unavailable = 1
	}
	d.unavailable = min(d.unavailable, d.n)
}

func (d *simDeployment) total(of func(*simSet) int) (n int) {
	for _, s := range d.sets {
		n += of(s)
	}
	return n
}

func (d *simDeployment) ready() int { return d.total(func(s *simSet) int { return s.ready }) }
func (d *simDeployment) specs() int { return d.total(func(s *simSet) int { return s.spec }) }

// scale is DeploymentController.scale; before is the max-replicas annotation.
func (d *simDeployment) scale(before int) {
	var active []*simSet
	for _, s := range d.sets {
		if s.spec > 0 {
			active = append(active, s)
		}
	}
	if len(active) == 1 {
		active[0].scale(d.n)
	}
	if len(active) < 2 {
		return
	}
	allowed := 0
	if d.n > 0 {
		allowed = d.n + d.surge
	}
	add, added := allowed-d.specs(), 0
	slices.SortStableFunc(active, func(a, b *simSet) int { return b.spec - a.spec })
	sizes := make([]int, len(active))
	for i, s := range active {
		share := 0
		if add != 0 && add != added {
			share = -s.spec
			if d.n > 0 {
				share = int(math.Round(float64(s.spec*allowed)/float64(before))) - s.spec
			}
			if add > 0 {
				share = min(share, add-added)
			} else {
				share = max(share, add-added)
			}
		}
		sizes[i], added = s.spec+share, added+share
	}
	sizes[0] = max(sizes[0]+add-added, 0)
	for i, s := range active {
		s.scale(sizes[i])
	}
}

// reconcile is DeploymentController.rolloutRolling.
func (d *simDeployment) reconcile() {
	last := d.sets[len(d.sets)-1]
	if last.spec > d.n {
		last.scale(d.n)
	} else if room := d.n + d.surge - d.specs(); room > 0 {
		last.scale(last.spec + max(min(room, d.n-last.spec), 0))
	}
	least := d.n - d.unavailable
	most := d.specs() - least - (last.spec - last.ready)
	if most <= 0 {
		return
	}
	cleaned := 0
	for _, s := range d.sets[:len(d.sets)-1] {
		if n := min(most-cleaned, s.spec-s.ready); n > 0 {
			s.scale(s.spec - n)
			cleaned += n
		}
	}
	for _, s := range d.sets[:len(d.sets)-1] {
		if n := min(s.spec, d.ready()-least); n > 0 {
			s.scale(s.spec - n)
		}
	}
}

func deploymentTrial(t *testing.T, r *rand.Rand) {
	n := 1 + r.IntN(40)
	surge, unavailable := intOrPercent(r, 0), intOrPercent(r, 0)
	d := &simDeployment{n: n}
	d.resolve(surge, unavailable)
	w := newWorld(t)
	w.in.Peak = peakOf(r)
	left := n + r.IntN(d.surge+1)
	before := n + d.surge
	for i := range 1 + r.IntN(3) {
		s := &simSet{spec: left}
		if i < 2 && r.IntN(2) == 0 {
			s.spec = r.IntN(left + 1)
		}
		made := s.spec - r.IntN(2)*r.IntN(s.spec+1) // quota may have kept some away
		s.ready = r.IntN(made + 1)
		s.broken = made - s.ready
		left -= s.spec
		d.sets = append(d.sets, s)
		w.pods(plan.Owner{Kind: "ReplicaSet", Name: fmt.Sprintf("web-%d", i), UID: fmt.Sprintf("rs-%d", i)}, made, s.ready)
	}
	ready, least := d.ready(), d.ready()
	last := d.sets[len(d.sets)-1]
	live := deployment(int32(n), appsv1.DeploymentStrategy{Type: "RollingUpdate", RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}})
	live.Spec.Paused = r.IntN(4) == 0
	live.Status.Replicas = int32(d.total(func(s *simSet) int { return s.ready + s.broken }))
	live.Status.UpdatedReplicas = int32(last.ready + last.broken)
	if d.specs() == last.spec && r.IntN(2) == 0 {
		live.Status.Conditions = []appsv1.DeploymentCondition{{Type: "Progressing", Reason: "NewReplicaSetAvailable"}}
	}
	about := fmt.Sprintf("%d replicas, surge %s, unavailable %s, paused %v:", n, surge.String(), unavailable.String(), live.Spec.Paused)
	for _, s := range d.sets {
		about += fmt.Sprintf(" %+v", *s)
	}
	target := w.live("deployments", live)
	switch r.IntN(4) {
	case 0:
		live.Spec.Paused = false
		w.live("deployments", live)
		w.restart(target)
		d.sets = append(d.sets, &simSet{})
	case 1: // a resume, in the middle of a rollout or after changes of the template
		live.Spec.Paused = true
		about += ", resumed"
		if r.IntN(2) == 0 {
			live.Status.UpdatedReplicas = 0
			d.sets = append(d.sets, &simSet{})
			about += " with a new template"
		}
		w.live("deployments", live)
		w.resume(target)
		live.Spec.Paused = false
	default:
		to := r.IntN(n)
		w.scale(target, int32(to))
		d.n = to
		d.resolve(surge, unavailable)
		d.scale(before)
		least = min(least, d.ready())
		about += fmt.Sprintf(", to %d", to)
	}
	last = d.sets[len(d.sets)-1]
	for range 60 {
		if !live.Spec.Paused {
			d.reconcile()
		}
		least = min(least, d.ready())
		if missing := last.spec - last.ready - last.broken; missing > 0 {
			last.broken += missing
		}
		if n := r.IntN(3); n > 0 && last.broken >= n {
			last.broken, last.ready = last.broken-n, last.ready+n
		}
	}
	check(t, w, r, ready, least, about)
}

// The split that is shown is the one that the controller makes.
func TestSplitIsTheControllers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		d := &simDeployment{n: 1 + r.IntN(40)}
		surge, unavailable := intOrPercent(r, 0), intOrPercent(r, 0)
		d.resolve(surge, unavailable)
		from, before := d.n, d.n+d.surge
		var sets []replicaSet
		for i := range 2 + r.IntN(3) {
			n := 1 + r.IntN(max(before/2, 1))
			d.sets = append(d.sets, &simSet{spec: n, ready: n})
			sets = append(sets, replicaSet{name: fmt.Sprintf("web-%d", i), pods: n})
		}
		d.n = r.IntN(from)
		d.resolve(surge, unavailable)
		about := fmt.Sprintf("%d to %d, surge %s, %+v", from, d.n, surge.String(), sets)
		if d.specs() <= d.n+d.surge || d.specs() > before {
			continue // nothing to reduce, or more than there ever were
		}
		live := deployment(int32(from), appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}})
		got := split(live, sets, from, d.n)
		d.scale(before)
		for i, rs := range sets { // in the order of split
			var index int
			fmt.Sscanf(rs.name, "web-%d", &index)
			if want := d.sets[index].spec; got[i] != want {
				t.Fatalf("%s: %d, want %d in %s", rs.name, got[i], want, about)
			}
		}
	}
}

func statefulSetScaleTrial(t *testing.T, r *rand.Rand) {
	n, start := 1+r.IntN(12), r.IntN(3)
	to, ready, least := r.IntN(n), 0, 0
	w := newWorld(t)
	w.in.Peak = peakOf(r)
	w.pods(db, n, 0, func(i int, p *plan.Pod) {
		p.Name, p.Ready = fmt.Sprintf("db-%d", start+i), r.IntN(3) > 0
		if p.Ready {
			ready++
			if i < to {
				least++
			}
		}
	})
	set := statefulSet(int32(n), func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: int32(start)} })
	w.scale(w.live("statefulsets", set), int32(to))
	check(t, w, r, ready, least, fmt.Sprintf("%d to %d from ordinal %d", n, to, start))
}

// simPod is one pod of a StatefulSet or a DaemonSet.
type simPod struct{ ready, updated bool }

func readySims(pods []simPod) (n int) {
	for _, p := range pods {
		if p.ready {
			n++
		}
	}
	return n
}

// statefulSetRollTrial simulates updateStatefulSetAfterInvariantEstablished, or what
// stood there before MaxUnavailableStatefulSet.
func statefulSetRollTrial(t *testing.T, r *rand.Rand) {
	n := 1 + r.IntN(10)
	partition, parallel, legacy := r.IntN(n+1), r.IntN(2) == 0, r.IntN(2) == 0
	most := intOrPercent(r, 1)
	unavailable, _ := intstr.GetScaledValueFromIntOrPercent(&most, n, false)
	unavailable = max(unavailable, 1)
	pods := make([]simPod, n)
	w := newWorld(t)
	w.in.Peak = peakOf(r)
	w.pods(db, n, 0, func(i int, p *plan.Pod) {
		pods[i].ready = r.IntN(4) > 0
		p.Ready = pods[i].ready
	})
	about := fmt.Sprintf("unavailable %s, partition %d, parallel %v, legacy %v: %v", most.String(), partition, parallel, legacy, pods)
	ready, least := readySims(pods), readySims(pods)
	for range 60 {
		gone := readySims(pods) - n + unavailable // how many ready ones may end
		if legacy {
			gone = 1
		}
		blocked := !parallel && slices.ContainsFunc(pods, func(p simPod) bool { return !p.ready })
		for i := n - 1; i >= partition && !blocked; i-- {
			switch p := &pods[i]; {
			case p.updated && legacy && !p.ready:
				i = -1 // waits for it
			case p.updated:
			case !p.ready && !legacy, gone > 0:
				if p.ready || legacy {
					gone--
				}
				*p = simPod{updated: true}
				least = min(least, readySims(pods))
				if legacy {
					i = -1
				}
			}
		}
		if i := r.IntN(n); pods[i].updated {
			pods[i].ready = true
		}
	}
	set := statefulSet(int32(n), func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To(int32(partition)), MaxUnavailable: &most}
		if parallel {
			s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		}
	})
	w.restart(w.live("statefulsets", set))
	check(t, w, r, ready, least, about)
}

// daemonSetTrial simulates DaemonSetsController.rollingUpdate on one pod a node.
func daemonSetTrial(t *testing.T, r *rand.Rand) {
	n := 1 + r.IntN(10)
	surge, most := intstr.FromInt32(0), intOrPercent(r, 0)
	if r.IntN(3) == 0 {
		surge, most = intOrPercent(r, 1), intstr.FromInt32(0)
	}
	unavailable, _ := intstr.GetScaledValueFromIntOrPercent(&most, n, true)
	surges := surge.String() != "0"
	if !surges {
		unavailable = max(unavailable, 1)
	}
	pods := make([]simPod, n)
	w := newWorld(t)
	w.in.Peak = peakOf(r)
	w.pods(agent, n, 0, func(i int, p *plan.Pod) {
		pods[i].ready = r.IntN(4) > 0
		p.Ready = pods[i].ready
	})
	about := fmt.Sprintf("surge %s, unavailable %s: %v", surge.String(), most.String(), pods)
	ready, least := readySims(pods), readySims(pods)
	for range 60 {
		gone := readySims(pods) - n + unavailable
		for _, i := range r.Perm(n) {
			switch p := &pods[i]; {
			case p.updated:
			case surges: // the new pod takes over once it is available
				*p = simPod{ready: p.ready, updated: true}
			case !p.ready:
				p.updated = true
			case gone > 0:
				gone--
				*p = simPod{updated: true}
			}
		}
		least = min(least, readySims(pods))
		if i := r.IntN(n); pods[i].updated {
			pods[i].ready = true
		}
	}
	target := w.live("daemonsets", &appsv1.DaemonSet{ObjectMeta: meta("agent"),
		Spec:   appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: "RollingUpdate", RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: &surge, MaxUnavailable: &most}}},
		Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: int32(n)}})
	w.restart(target)
	check(t, w, r, ready, least, about)
}
