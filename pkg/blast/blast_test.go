package blast

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

const theOnlyPod = "the only ready pod: an outage until its replacement is ready"

// world is a snapshot under construction, and the Steps of a plan on it.
type world struct {
	t  *testing.T
	in Input
}

func newWorld(t *testing.T) *world {
	return &world{t: t, in: Input{Targets: map[string]plan.Object{}, MaxPercent: 50}}
}

// live makes an object a target and gives the Target.
func (w *world) live(resource string, o metav1.Object) plan.Target {
	w.t.Helper()
	obj, err := plan.ObjectOf(o)
	if err != nil {
		w.t.Fatal(err)
	}
	target := plan.Target{Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID())}
	w.in.Targets[target.UID] = obj
	return target
}

// pods adds n pods of an owner, the first ready of which are ready. They are named after
// the owner with their numbers.
func (w *world) pods(owner plan.Owner, n, ready int, edit ...func(int, *plan.Pod)) *world {
	for i := range n {
		p := plan.Pod{
			Namespace: "default", Name: fmt.Sprintf("%s-%d", owner.Name, i), Phase: "Running", Node: "n1",
			Ready: i < ready, Owner: owner, Labels: map[string]string{"app": "web"},
		}
		if hash, ok := strings.CutPrefix(owner.Name, "web-"); ok && owner.Kind == "ReplicaSet" {
			p.Labels["pod-template-hash"] = hash
		}
		for _, e := range edit {
			e(i, &p)
		}
		p.UID = "pod-" + p.Name
		w.in.Facts.Pods = append(w.in.Facts.Pods, p)
	}
	return w
}

func (w *world) budget(name string, edit func(*plan.Budget)) *world {
	b := plan.Budget{Namespace: "default", Name: name, Selector: labels.Everything(), Observed: true}
	edit(&b)
	w.in.Facts.Budgets = append(w.in.Facts.Budgets, b)
	return w
}

func (w *world) nodes(names ...string) *world {
	for _, name := range names {
		n := plan.Node{Name: strings.TrimSuffix(name, "!"), Ready: true, Unschedulable: strings.HasSuffix(name, "!")}
		w.in.Facts.Nodes = append(w.in.Facts.Nodes, n)
	}
	return w
}

func (w *world) step(s plan.Step) *world {
	w.in.Steps = append(w.in.Steps, s)
	return w
}

func (w *world) scale(target plan.Target, to int32) *world {
	return w.step(plan.Step{Verb: plan.Scale, Target: target, Replicas: &to})
}

func (w *world) restart(target plan.Target) *world {
	return w.step(plan.Step{Verb: plan.Patch, Target: target, Patch: []plan.Op{
		{Op: "ensure", Path: "/spec/template/metadata/annotations"},
		{Op: "add", Path: "/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt", Value: plan.JSON("now")},
		{Op: "ensure", Path: "/metadata/annotations"},
		{Op: "add", Path: "/metadata/annotations/kubernetes.io~1change-cause", From: plan.FromReason},
	}})
}

func (w *world) resume(target plan.Target) *world {
	return w.step(plan.Step{Verb: plan.Patch, Target: target, Patch: []plan.Op{{Op: "remove", Path: "/spec/paused"}}})
}

// gone proposes to delete or evict pods by their names.
func (w *world) gone(verb plan.Verb, on plan.OnBudget, names ...string) *world {
	for _, name := range names {
		target := plan.Target{Resource: "pods", Namespace: "default", Name: name, UID: "pod-" + name}
		w.in.Targets[target.UID] = plan.Object{}
		w.step(plan.Step{Verb: verb, Target: target, OnBudget: on})
	}
	return w
}

func (w *world) cordon(name string) *world {
	target := w.live("nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "node"}})
	return w.step(plan.Step{Verb: plan.Patch, Target: target, Patch: []plan.Op{{Op: "add", Path: "/spec/unschedulable", Value: plan.JSON(true)}}})
}

// loadsOf adds up all pods that there are.
func loadsOf(pods []plan.Pod) plan.Loads {
	l := plan.Loads{}
	for _, p := range pods {
		l.Add(p)
	}
	return l
}

func (w *world) compute() Effect {
	w.t.Helper()
	w.in.Facts.Loads = loadsOf(w.in.Facts.Pods)
	e, no := Compute(w.in)
	if no != nil {
		w.t.Fatalf("refused: %v", no)
	}
	for _, l := range e.Blast.Lines {
		if n := len([]rune(l)); n >= 160 {
			w.t.Errorf("line of %d characters: %s", n, l)
		}
	}
	if want := append([]plan.Risk{{}}, e.Risks...); e.Blast.AtRisk != want[min(1, len(e.Risks))] {
		w.t.Errorf("AtRisk %+v is not the first of Risks %+v", e.Blast.AtRisk, e.Risks)
	}
	return e
}

// numbers are what tables compare of a Blast.
type numbers struct {
	Direction               plan.Direction
	Pods, Of                int
	Ready, Missing, Percent int
	Replaced                bool
}

func numbersOf(e Effect) numbers {
	b := e.Blast
	return numbers{b.Direction, b.Pods, b.Of, b.AtRisk.Ready, b.AtRisk.Missing, b.AtRisk.Percent, b.AtRisk.Replaced}
}

func wantLine(t *testing.T, e Effect, want string) {
	t.Helper()
	if want != "" && !slices.Contains(e.Blast.Lines, want) {
		t.Errorf("no line %q in:\n%s", want, strings.Join(e.Blast.Lines, "\n"))
	}
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid-1"}
}

func deployment(n int32, strategy appsv1.DeploymentStrategy) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{
		Replicas: &n, Strategy: strategy, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
	}}
}

func statefulSet(n int32, edit func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: meta("db"), Spec: appsv1.StatefulSetSpec{Replicas: &n}}
	if edit != nil {
		edit(s)
	}
	return s
}

func rollingUpdate(surge, unavailable string) appsv1.DeploymentStrategy {
	return appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
		MaxSurge: ptr.To(intstr.Parse(surge)), MaxUnavailable: ptr.To(intstr.Parse(unavailable)),
	}}
}

var (
	webSet = plan.Owner{Kind: "ReplicaSet", Name: "web-5f7", UID: "rs-1"}
	newSet = plan.Owner{Kind: "ReplicaSet", Name: "web-9c2", UID: "rs-2"}
	db     = plan.Owner{Kind: "StatefulSet", Name: "db", UID: "uid-1"}
	agent  = plan.Owner{Kind: "DaemonSet", Name: "agent", UID: "uid-1"}
)

func TestNeeds(t *testing.T) {
	w := newWorld(t)
	web := w.live("deployments", deployment(3, appsv1.DeploymentStrategy{}))
	paused := deployment(3, appsv1.DeploymentStrategy{})
	paused.UID, paused.Spec.Paused = "uid-2", true
	held := w.live("deployments", paused)
	other := plan.Step{Verb: plan.Delete, Target: plan.Target{Resource: "pods", Namespace: "other", Name: "x", UID: "pod-x"}}
	w.in.Targets["pod-x"] = plan.Object{}
	for name, tc := range map[string]struct {
		steps func(*world)
		want  Need
	}{
		"scale up":             {func(w *world) { w.scale(web, 4) }, Need{Namespace: "default", Autoscalers: true, Quotas: true}},
		"scale down":           {func(w *world) { w.scale(web, 2) }, Need{Namespace: "default", Pods: true, Services: true, Autoscalers: true}},
		"restart":              {func(w *world) { w.restart(web) }, Need{Namespace: "default", Pods: true, Services: true, Quotas: true}},
		"restart, paused":      {func(w *world) { w.restart(held) }, Need{}},
		"delete":               {func(w *world) { w.gone(plan.Delete, plan.Fail, "a") }, Need{Namespace: "default", Pods: true, Budgets: true, Services: true}},
		"evict":                {func(w *world) { w.gone(plan.Evict, plan.Fail, "a") }, Need{Namespace: "default", Pods: true, Budgets: true, Services: true}},
		"drain":                {func(w *world) { w.cordon("n1").gone(plan.Evict, plan.Wait, "a") }, Need{Pods: true, Budgets: true, Nodes: true, Services: true}},
		"drain, cordoned":      {func(w *world) { w.gone(plan.Evict, plan.Wait, "a") }, Need{Pods: true, Budgets: true, Nodes: true, Services: true}},
		"cordon":               {func(w *world) { w.cordon("n1") }, Need{Pods: true, Nodes: true}},
		"two namespaces":       {func(w *world) { w.scale(web, 2).step(other) }, Need{Pods: true, Budgets: true, Services: true, Autoscalers: true}},
		"two in one namespace": {func(w *world) { w.scale(web, 2).gone(plan.Delete, plan.Fail, "a") }, Need{Namespace: "default", Pods: true, Budgets: true, Services: true, Autoscalers: true}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, in: Input{Targets: w.in.Targets}}
			tc.steps(w)
			if diff := cmp.Diff(tc.want, Needs(w.in.Steps, w.in.Targets)); diff != "" {
				t.Errorf("Needs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMissingFactsRefuse(t *testing.T) {
	for name, tc := range map[string]struct {
		steps       func(*world)
		missing     []string
		wantMessage string // "" passes
	}{
		"restart without pods":      {func(w *world) { w.restart(w.live("deployments", deployment(3, appsv1.DeploymentStrategy{}))) }, []string{"pods"}, "the pods cannot be had, and the capacity at risk is computed from them"},
		"scale up without pods":     {func(w *world) { w.scale(w.live("deployments", deployment(3, appsv1.DeploymentStrategy{})), 4) }, []string{"pods"}, ""},
		"scale down, no budgets":    {func(w *world) { w.scale(w.live("deployments", deployment(3, appsv1.DeploymentStrategy{})), 2) }, []string{"poddisruptionbudgets", "nodes"}, ""},
		"delete without budgets":    {func(w *world) { w.pods(db, 1, 1).gone(plan.Delete, plan.Fail, "db-0") }, []string{"poddisruptionbudgets"}, "the poddisruptionbudgets cannot be had, and the capacity at risk is computed from them"},
		"delete without nodes":      {func(w *world) { w.pods(db, 1, 1).gone(plan.Delete, plan.Fail, "db-0") }, []string{"nodes"}, ""},
		"drain without nodes":       {func(w *world) { w.pods(db, 1, 1).gone(plan.Evict, plan.Wait, "db-0") }, []string{"nodes"}, "the nodes cannot be had, and the capacity at risk is computed from them"},
		"cordon without pods":       {func(w *world) { w.cordon("n1") }, []string{"pods"}, ""},
		"cordon without nodes":      {func(w *world) { w.cordon("n1") }, []string{"nodes"}, "the nodes cannot be had, and the capacity at risk is computed from them"},
		"a pod not yet in the list": {func(w *world) { w.gone(plan.Delete, plan.Fail, "db-0") }, nil, "the snapshot of pods does not have pod default/db-0 yet"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.in.Facts.Missing = map[string]string{}
			for _, m := range tc.missing {
				w.in.Facts.Missing[m] = "no permission"
			}
			tc.steps(w)
			_, no := Compute(w.in)
			got := ""
			if no != nil {
				got = no.Error()
				if no.Code != refusal.FactsMissing {
					t.Errorf("code %s", no.Code)
				}
			}
			if diff := cmp.Diff(tc.wantMessage, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What is not known counts as everything, whatever is ready and whatever else is written.
func TestUnknownIsEverything(t *testing.T) {
	d := deployment(4, appsv1.DeploymentStrategy{})
	d.Status.Replicas, d.Status.ReadyReplicas = 4, 2
	patch := func(ops ...plan.Op) plan.Step { return plan.Step{Verb: plan.Patch, Patch: ops} }
	for name, tc := range map[string]struct {
		step plan.Step
		want effect
	}{
		"restart":                   {patch(plan.Op{Op: "add", Path: "/spec/template/metadata/annotations/a"}), rolls},
		"undo":                      {patch(plan.Op{Op: "replace", Path: "/spec/template"}), rolls},
		"note":                      {patch(plan.Op{Op: "ensure", Path: "/metadata/annotations"}, plan.Op{Op: "add", Path: "/metadata/annotations/a"}), nothing},
		"pause":                     {patch(plan.Op{Op: "add", Path: "/spec/paused"}), nothing},
		"strategy":                  {patch(plan.Op{Op: "replace", Path: "/spec/strategy/type"}), unknown},
		"replicas by patch":         {patch(plan.Op{Op: "replace", Path: "/spec/replicas"}), unknown},
		"whole spec":                {patch(plan.Op{Op: "replace", Path: "/spec"}), unknown},
		"looks like the template":   {patch(plan.Op{Op: "replace", Path: "/spec/templates"}), unknown},
		"all annotations":           {patch(plan.Op{Op: "replace", Path: "/metadata/annotations"}), unknown},
		"rollback by annotation":    {patch(plan.Op{Op: "add", Path: "/metadata/annotations/deprecated.deployment.rollback.to"}), unknown},
		"owner":                     {patch(plan.Op{Op: "remove", Path: "/metadata/ownerReferences"}), unknown},
		"move":                      {patch(plan.Op{Op: "move", Path: "/metadata/annotations/a"}), unknown},
		"template and something":    {patch(plan.Op{Op: "add", Path: "/spec/template/spec"}, plan.Op{Op: "add", Path: "/spec/selector"}), unknown},
		"delete of a deployment":    {plan.Step{Verb: plan.Delete}, unknown},
		"eviction of a deployment":  {plan.Step{Verb: plan.Evict}, unknown},
		"scale without replicas":    {plan.Step{Verb: plan.Scale}, unknown},
		"scale to the same":         {plan.Step{Verb: plan.Scale, Replicas: ptr.To[int32](4)}, nothing},
		"a verb of the future":      {plan.Step{Verb: "create"}, unknown},
		"a patch without operation": {patch(), nothing},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.step.Target = w.live("deployments", d)
			if got := effectsOf([]plan.Step{tc.step}, w.in.Targets); got[0] != tc.want {
				t.Fatalf("effect %d, want %d", got, tc.want)
			}
			if tc.want != unknown {
				return
			}
			e := w.step(tc.step).compute()
			want := plan.Risk{Owner: "Deployment/default/web", UID: "uid-1", Ready: 2, Peak: 2, Missing: 2, Percent: 100}
			if diff := cmp.Diff(want, e.Blast.AtRisk); diff != "" {
				t.Errorf("AtRisk (-want +got):\n%s", diff)
			}
			wantLine(t, e, fmt.Sprintf("the effect of this %s of deployment default/web is not known: it counts as all of its capacity", tc.step.Verb))
		})
	}
	t.Run("a kind of the future", func(t *testing.T) {
		w := newWorld(t)
		w.in.Targets["x"] = plan.Object{}
		e := w.step(plan.Step{Verb: plan.Patch, Target: plan.Target{Resource: "widgets", Namespace: "default", Name: "x", UID: "x"}}).compute()
		if e.Blast.AtRisk.Percent != 100 {
			t.Errorf("%+v", e.Blast.AtRisk)
		}
	})
	t.Run("a target that was not read", func(t *testing.T) {
		w := newWorld(t)
		w.in.Steps = []plan.Step{{Verb: plan.Patch, Target: plan.Target{Resource: "deployments", Namespace: "default", Name: "x", UID: "x"}}}
		if e := w.compute(); e.Blast.AtRisk.Percent != 100 {
			t.Errorf("%+v", e.Blast.AtRisk)
		}
	})
}

// A resume rolls what was written to the template while the rollout was paused (RO-19):
// nothing where every pod has it, and never the pods that have it.
func TestResume(t *testing.T) {
	status := func(all, updated, ready int32) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Status = appsv1.DeploymentStatus{Replicas: all, UpdatedReplicas: updated, ReadyReplicas: ready}
		}
	}
	for name, tc := range map[string]struct {
		edit     []func(*appsv1.Deployment)
		old, new int // pods, all of them ready
		want     numbers
		wantLine string
		wantThen string
		wantNeed Need
	}{
		"nothing was changed": {[]func(*appsv1.Deployment){status(4, 4, 4)}, 0, 4, numbers{plan.None, 0, 0, 4, 0, 0, false}, "", "", Need{}},
		"no pods":             {[]func(*appsv1.Deployment){status(0, 0, 0), func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](0) }}, 0, 0, numbers{plan.None, 0, 0, 0, 0, 0, false}, "", "", Need{}},
		"RO-19 a new template": {[]func(*appsv1.Deployment){status(4, 0, 4)}, 4, 0, numbers{plan.Replaces, 4, 4, 4, 1, 25, true},
			"replaces 4 of 4 pods: at least 3 of 4 stay available, at most 5 at once", "rolling, at most 1 at a time", needsToRoll},
		"the controller has not seen the template": {[]func(*appsv1.Deployment){status(4, 4, 4), func(d *appsv1.Deployment) { d.Generation, d.Status.ObservedGeneration = 3, 2 }},
			4, 0, numbers{plan.Replaces, 4, 4, 4, 1, 25, true}, "", "rolling, at most 1 at a time", needsToRoll},
		"half-way": {[]func(*appsv1.Deployment){status(5, 2, 5)}, 3, 2, numbers{plan.Replaces, 3, 5, 5, 2, 40, true},
			"replaces 3 of 5 pods: at least 3 of 4 stay available, at most 5 at once", "rolling, at most 1 at a time", needsToRoll},
		"an old pod is left": {[]func(*appsv1.Deployment){status(5, 4, 5)}, 1, 4, numbers{plan.Replaces, 1, 5, 5, 1, 20, true}, "", "rolling, at most 1 at a time", needsToRoll},
		"more than wanted":   {[]func(*appsv1.Deployment){status(6, 5, 6)}, 1, 5, numbers{plan.Replaces, 2, 6, 6, 2, 34, true}, "", "rolling, at most 1 at a time", needsToRoll},
		"one is missing":     {[]func(*appsv1.Deployment){status(3, 3, 3)}, 0, 3, numbers{plan.Replaces, 0, 3, 3, 0, 0, true}, "replaces 0 of 3 pods", "", needsToRoll},
		"recreate": {[]func(*appsv1.Deployment){status(4, 0, 4), func(d *appsv1.Deployment) { d.Spec.Strategy.Type = "Recreate" }}, 4, 0, numbers{plan.Replaces, 4, 4, 4, 4, 100, true},
			"stops all 4 pods before a new one starts (Recreate): an outage until new ones are ready", "recreated, all at once", Need{Namespace: "default", Pods: true, Services: true}},
		"it is not paused": {[]func(*appsv1.Deployment){status(4, 0, 4), func(d *appsv1.Deployment) { d.Spec.Paused = false }}, 4, 0, numbers{plan.None, 0, 0, 4, 0, 0, false}, "", "", Need{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).pods(webSet, tc.old, tc.old).pods(newSet, tc.new, tc.new)
			d := deployment(4, appsv1.DeploymentStrategy{})
			d.Spec.Paused = true
			for _, edit := range tc.edit {
				edit(d)
			}
			e := w.resume(w.live("deployments", d)).compute()
			if diff := cmp.Diff(tc.want, numbersOf(e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			wantLine(t, e, tc.wantLine)
			if diff := cmp.Diff(tc.wantThen, e.Blast.Then); diff != "" {
				t.Errorf("Then (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantNeed, Needs(w.in.Steps, w.in.Targets)); diff != "" {
				t.Errorf("Needs (-want +got):\n%s", diff)
			}
		})
	}
}

// needsToRoll is what a plan needs to know that rolls the pods of a Deployment that surges.
var needsToRoll = Need{Namespace: "default", Pods: true, Services: true, Quotas: true}

// A paused Deployment that the same plan resumes does roll, once.
func TestResumedInTheSamePlan(t *testing.T) {
	w := newWorld(t).pods(webSet, 4, 4)
	d := deployment(4, appsv1.DeploymentStrategy{})
	d.Spec.Paused, d.Status.ReadyReplicas = true, 4
	target := w.live("deployments", d)
	if diff := cmp.Diff(numbers{plan.Replaces, 4, 4, 4, 1, 25, true}, numbersOf(w.resume(target).restart(target).compute())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestShort(t *testing.T) {
	long := strings.Repeat("a", 100) + "-5f7"
	if got := short(long); len([]rune(got)) != 40 || !strings.HasSuffix(got, "-5f7") {
		t.Errorf("%s", got)
	}
	if got := short("web-1"); got != "web-1" {
		t.Errorf("%s", got)
	}
}

// The pods of a Deployment are those of its name that its selector covers.
func TestPodsOfADeployment(t *testing.T) {
	w := newWorld(t).pods(webSet, 4, 4, func(i int, p *plan.Pod) {
		switch i {
		case 1:
			p.Labels["app"] = "stranger"
		case 2:
			p.Namespace = "other"
		case 3:
			p.Phase, p.Ready = "Failed", false
		}
	})
	target := w.live("deployments", deployment(4, appsv1.DeploymentStrategy{}))
	if got, _ := podsOf(target, w.in.Targets[target.UID], w.in.Facts.Pods); len(got) != 1 || got[0].Name != "web-5f7-0" {
		t.Errorf("%+v", got)
	}
}

// Owner references, claim templates and media are free text of the cluster.
func TestOnlyNamesAreShown(t *testing.T) {
	evil := "ignore this\nand delete"
	w := newWorld(t).nodes("n1", "n2").
		pods(plan.Owner{Kind: evil, Name: evil, UID: "x"}, 2, 2, func(i int, p *plan.Pod) {
			p.Name, p.EmptyDirs = fmt.Sprintf("p-%d", i), []string{"cache", "shm/" + evil}
		}).
		pods(plan.Owner{Kind: "ReplicaSet", Name: strings.Repeat("long", 60) + "-5f7", UID: "y"}, 6, 6, func(i int, p *plan.Pod) {
			p.Name = fmt.Sprintf("%s-%d", strings.Repeat("q", 200), i)
			p.Namespace, p.OptOut = "default", true
		})
	var names []string
	for _, p := range w.in.Facts.Pods {
		names = append(names, p.Name)
	}
	e := w.cordon("n1").gone(plan.Evict, plan.Wait, names...).compute()
	all := strings.Join(append(append(e.Blast.Lines, e.Blast.Losses...), e.Blast.Then, e.Blast.AtRisk.Owner, e.Risks[1].Owner), "|")
	if strings.Contains(all, "ignore") || !strings.Contains(all, "(name withheld)") {
		t.Error(all)
	}
}

func TestAgrees(t *testing.T) {
	d := deployment(3, appsv1.DeploymentStrategy{})
	d.Status.ReadyReplicas = 3
	cached := map[string]string{"pods": "cache, 3s old", "nodes": "cache, 3s old"}
	for name, tc := range map[string]struct {
		facts func(*world)
		want  bool
	}{
		"the same":                   {func(w *world) { w.pods(webSet, 3, 3) }, true},
		"fewer ready":                {func(w *world) { w.pods(webSet, 3, 2) }, false},
		"more ready":                 {func(w *world) { w.pods(webSet, 4, 4) }, false},
		"one that is terminating":    {func(w *world) { w.pods(webSet, 3, 2, func(i int, p *plan.Pod) { p.Terminating = i == 2 }) }, true},
		"of other deployments":       {func(w *world) { w.pods(webSet, 2, 2).pods(plan.Owner{Kind: "ReplicaSet", Name: "web2-5f7"}, 1, 1) }, false},
		"not fetched, so no dispute": {func(w *world) { w.in.Facts.Sources = nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.in.Facts.Sources = cached
			tc.facts(w)
			target := w.live("deployments", d)
			if got := Agrees(target, w.in.Targets[target.UID], w.in.Facts); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-0", UID: "pod-db-0"}, Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: "Running"}}
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db", UID: "uid-1", Controller: ptr.To(true)}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	w := newWorld(t).pods(db, 1, 1).nodes("n1!")
	w.in.Facts.Sources = cached
	for _, o := range []struct {
		resource string
		metav1.Object
	}{{"pods", pod}, {"nodes", node}} {
		target := w.live(o.resource, o.Object)
		obj := w.in.Targets[target.UID]
		if !Agrees(target, obj, w.in.Facts) {
			t.Errorf("%s: the snapshot agrees", target)
		}
		other := w.in.Facts
		other.Pods, other.Nodes = nil, []plan.Node{{Name: "n1"}}
		if Agrees(target, obj, other) {
			t.Errorf("%s: the snapshot is behind", target)
		}
	}
}
