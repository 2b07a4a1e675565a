package torture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// bench is one action's call and everything that it changes.
type bench struct {
	truth  *watcher
	action string
	args   harness.Args
	ns     string
	parts  []part // in the order of the Steps
	writes int    // requests that the whole execution makes, notes among them
}

// part is one target of an action, and how it is when the action has had its effect.
type part struct {
	kind, name string
	is         func(version) bool
}

// newBench makes what an action needs. Its objects and nodes begin with name and the
// namespace.
func newBench(t *testing.T, truth *watcher, ns, name, action string) bench {
	t.Helper()
	b := bench{truth: truth, action: action, ns: ns, writes: 1}
	node := ns + "-" + name
	make := func(o ...harness.Object) { t.Helper(); harness.Create(t, cp, ns, o...) }
	cordoned := func(v version) bool { return v.unschedulable }
	gone := func(v version) bool { return v.gone }
	web := func() harness.Object {
		return harness.Deployment(name).Replicas(2).Pods(func(p *corev1.PodTemplateSpec) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "PASSWORD", Value: canary}}
			p.Annotations = map[string]string{"example.com/token": canary}
		}).Ready(2)
	}
	switch action {
	case "scale":
		make(web())
		b.args, b.writes = harness.Args{"namespace": ns, "deployment": name, "replicas": 3}, 2
		b.parts = []part{{"deployment", name, func(v version) bool { return v.replicas == 3 }}}
	case "rollout_restart":
		make(web())
		b.args = harness.Args{"namespace": ns, "deployment": name}
		b.parts = []part{{"deployment", name, func(v version) bool { return v.restarted != "" }}}
	case "delete_pod":
		make(harness.Pod(name))
		b.args, b.parts = harness.Args{"namespace": ns, "pod": name}, []part{{"pod", name, gone}}
	case "cordon":
		make(harness.Node(node).Ready())
		b.args, b.parts = harness.Args{"node": node}, []part{{"node", node, cordoned}}
	case "uncordon":
		make(harness.Node(node).With(func(n *corev1.Node) { n.Spec.Unschedulable = true }).Ready())
		b.args, b.parts = harness.Args{"node": node}, []part{{"node", node, func(v version) bool { return !v.unschedulable }}}
	case "drain":
		make(
			harness.Node(node).Ready(),
			harness.Deployment(name).Replicas(2).Pods(func(p *corev1.PodTemplateSpec) { p.Spec.NodeName = node }).Ready(2),
			harness.Budget(name).MaxUnavailable(2).Allows(2, 2),
		)
		b.args, b.writes = harness.Args{"node": node, "timeout_seconds": 20}, 3
		b.parts = []part{{"node", node, cordoned}, {"pod", harness.PodName(name, 0), gone}, {"pod", harness.PodName(name, 1), gone}}
	case "changes":
		make(web(), harness.Node(node).Ready())
		job(t, ns, "cronjob", name, false)
		step := func(action string, args harness.Args) harness.Args {
			return harness.Args{"action": action, "arguments": args}
		}
		b.args, b.writes = harness.Args{"steps": []harness.Args{
			step("scale", harness.Args{"namespace": ns, "deployment": name, "replicas": 3}),
			step("cronjob_suspend", harness.Args{"namespace": ns, "cronjob": name}),
			step("cordon", harness.Args{"node": node}),
		}}, 4
		b.parts = []part{
			{"deployment", name, func(v version) bool { return v.replicas == 3 }},
			{"cronjob", name, func(v version) bool { return v.suspended }},
			{"node", node, cordoned},
		}
		t.Cleanup(func() { _ = cp.Client.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{}) })
	case "evict_pod":
		make(harness.Pod(name))
		b.args, b.parts = harness.Args{"namespace": ns, "pod": name}, []part{{"pod", name, gone}}
	case "rollout_pause", "rollout_resume":
		paused := action == "rollout_resume"
		make(harness.Deployment(name).Replicas(2).With(func(d *appsv1.Deployment) { d.Spec.Paused = paused }).Ready(2))
		b.args = harness.Args{"namespace": ns, "deployment": name}
		b.parts = []part{{"deployment", name, func(v version) bool { return v.paused != paused }}}
	case "set_image":
		make(web())
		b.args = harness.Args{"namespace": ns, "deployment": name, "container": "main", "image": "main:2"}
		b.parts = []part{{"deployment", name, func(v version) bool { return v.image == "main:2" }}}
	case "rollout_undo":
		make(web())
		revisions(t, ns, name)
		b.args = harness.Args{"namespace": ns, "deployment": name}
		b.parts = []part{{"deployment", name, func(v version) bool { return v.image == "main:0" }}}
	case "job_suspend", "job_resume", "cronjob_suspend", "cronjob_resume", "cronjob_trigger":
		kind, what, _ := strings.Cut(action, "_")
		suspended := what == "resume"
		job(t, ns, kind, name, suspended)
		b.args = harness.Args{"namespace": ns, kind: name}
		b.parts = []part{{kind, name, func(v version) bool { return v.suspended != suspended }}}
		if what == "trigger" {
			b.parts[0].is = func(v version) bool { return v.made }
		}
	default:
		t.Fatalf("no bench for %s: give it one", action)
	}
	if b.parts[0].kind == "node" {
		t.Cleanup(func() { _ = cp.Client.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{}) })
	}
	return b
}

// revisions makes the revisions of a Deployment that its controller would have made: one
// that ran main:0, and that of now.
func revisions(t *testing.T, ns, name string) {
	t.Helper()
	d, err := cp.Client.AppsV1().Deployments(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for revision, image := range []string{"main:0", d.Spec.Template.Spec.Containers[0].Image} {
		template := *d.Spec.Template.DeepCopy()
		template.Spec.Containers[0].Image = image
		template.Labels["pod-template-hash"] = fmt.Sprint("r", revision)
		_, err := cp.Client.AppsV1().ReplicaSets(ns).Create(ctx, &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-r%d", name, revision), Labels: template.Labels,
				Annotations:     map[string]string{"deployment.kubernetes.io/revision": fmt.Sprint(revision + 1)},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
			},
			Spec: appsv1.ReplicaSetSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// job makes a Job or a CronJob.
func job(t *testing.T, ns, kind, name string, suspended bool) {
	t.Helper()
	template := harness.Template(name)
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	var err error
	if kind == "job" {
		_, err = cp.Client.BatchV1().Jobs(ns).Create(ctx, &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{Template: template, Suspend: &suspended},
		}, metav1.CreateOptions{})
	} else {
		_, err = cp.Client.BatchV1().CronJobs(ns).Create(ctx, &batchv1.CronJob{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       batchv1.CronJobSpec{Schedule: "0 0 31 2 *", Suspend: &suspended, JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// canary stands where a workload has its secrets: nobody is ever told it.
const canary = "c4nary-7d1f0a"

// effects is how often each part has had its effect, by the independent watch.
func (b bench) effects(t *testing.T) (n []int) {
	t.Helper()
	for _, p := range b.parts {
		n = append(n, effects(p.is, b.truth.versions(t, b.ns, p.kind, p.name)))
	}
	return n
}

// reads reports whether a request reads one of the parts.
func (b bench) reads(r harness.Request) bool {
	return r.Method == http.MethodGet && slices.ContainsFunc(b.parts, func(p part) bool { return strings.HasSuffix(r.Path, "/"+p.name) })
}

func dryRun(r harness.Request) bool {
	return r.Method != http.MethodGet && !r.Mutates() && !strings.HasSuffix(r.Path, "/selfsubjectreviews")
}

// moment is what a row may look at to know that its point is reached.
type moment struct {
	bench
	proxy *harness.Proxy
	state string
}

// onDisk reports whether the journal has an event.
func (m moment) onDisk(t *testing.T, event string) bool {
	lines, err := events(m.state, event)
	if err != nil {
		t.Error(err)
	}
	return len(lines) > 0
}

// answered counts the writes that had an answer.
func (m moment) answered() int {
	return len(m.proxy.Requests(func(r harness.Request) bool { return r.Mutates() && r.Status != 0 }))
}

// point is a moment at which the process is killed.
type point struct {
	name     string
	only     string // the one action that has it, "" is all
	planning bool   // during the plan tool's call, else during the write tool's
	request  func(*testing.T, moment, harness.Request) bool
	answer   bool   // its answer is held, else the request itself, which then never arrives
	event    string // instead of a request: a line is on the disk

	again bool // the next process is killed too, while it finds out
	late  bool // the request arrives after all, when its process is long dead

	wantEffects int  // of the killed process, in the order of the parts
	wantFree    bool // nothing was claimed: the phrase is as good as before
}

const all = 99 // every part

// lateBy is how late a request may well arrive: the API server may work on it for 34 s.
const lateBy = 25 * time.Second

var points = []point{
	{name: "dry run held", planning: true, request: func(_ *testing.T, _ moment, r harness.Request) bool { return dryRun(r) }, wantFree: true},
	{name: "plan on disk", planning: true, event: "plan", wantFree: true},
	{name: "second dry run held", request: func(_ *testing.T, _ moment, r harness.Request) bool { return dryRun(r) }, wantFree: true},
	{
		name: "claimed, last look held", again: true,
		request: func(t *testing.T, m moment, r harness.Request) bool {
			return m.reads(r) && m.onDisk(t, "execute_intent")
		},
	},
	{name: "sent, never arrived", request: func(_ *testing.T, _ moment, r harness.Request) bool { return r.Mutates() }},
	{name: "sent, arrives late", request: func(_ *testing.T, _ moment, r harness.Request) bool { return r.Mutates() }, late: true, wantEffects: 1},
	{name: "committed, answer held", request: func(_ *testing.T, _ moment, r harness.Request) bool { return r.Mutates() }, answer: true, wantEffects: 1},
	{
		name:        "answered, next read held",
		request:     func(_ *testing.T, m moment, r harness.Request) bool { return m.reads(r) && m.answered() > 0 },
		wantEffects: 1,
	},
	{
		name:        "all answered, observation held",
		request:     func(_ *testing.T, m moment, r harness.Request) bool { return m.reads(r) && m.answered() == m.writes },
		wantEffects: all,
	},
	{name: "outcome on disk", event: "execute", wantEffects: all},
	{
		name: "note sent, never arrived", only: "scale",
		request:     func(_ *testing.T, m moment, r harness.Request) bool { return r.Mutates() && m.answered() == 1 },
		wantEffects: 1,
	},
	{
		name: "second call never arrived", only: plan.ChangesTool,
		request:     func(_ *testing.T, m moment, r harness.Request) bool { return r.Mutates() && m.answered() == 2 },
		wantEffects: 1,
	},
	{
		name: "second call committed, answer held", only: plan.ChangesTool,
		request:     func(_ *testing.T, m moment, r harness.Request) bool { return r.Mutates() && m.answered() == 3 },
		answer:      true,
		wantEffects: 2,
	},
	{
		name: "second eviction never arrived", only: "drain",
		request:     func(_ *testing.T, m moment, r harness.Request) bool { return r.Mutates() && m.answered() == 2 },
		wantEffects: 2,
	},
	{
		name: "second eviction committed, answer held", only: "drain",
		request:     func(_ *testing.T, m moment, r harness.Request) bool { return r.Mutates() && m.answered() == 3 },
		answer:      true,
		wantEffects: all,
	},
}

// reach arms the proxy. The channel gives the request that is held, or nil, when the point
// is reached; release lets go of what is held, and forgets it.
func (p point) reach(t *testing.T, m moment) (reached chan *harness.Request, release func()) {
	reached, gate := make(chan *harness.Request, 1), make(chan struct{})
	var once sync.Once
	release = func() { once.Do(func() { close(gate) }) }
	var hit sync.Once
	hold := func(r *harness.Request) {
		if !p.request(t, m, *r) {
			return
		}
		mine := false
		hit.Do(func() { mine = true })
		if !mine {
			return
		}
		reached <- r
		<-gate
		cut()
	}
	switch {
	case p.request == nil:
		go func() {
			for !m.onDisk(t, p.event) {
				select {
				case <-gate:
					return
				case <-time.After(time.Millisecond):
				}
			}
			reached <- nil
		}()
	case p.answer:
		m.proxy.After(func(r *harness.Request, _ *http.Response) { hold(r) })
	default:
		m.proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool { hold(r); return true })
	}
	return reached, release
}

// TestKilled kills the process (-9) at every point of every action. Another one on the
// same folder is then asked with the same phrase: there is at most one effect, and the
// first result is the truth, and stays.
func TestKilled(t *testing.T) {
	t.Parallel()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	truth := newWatcher(t)
	names := []string{plan.ChangesTool}
	for _, a := range actions.All() {
		names = append(names, a.Name)
	}
	for _, name := range names {
		for _, p := range points {
			if p.only != "" && p.only != name {
				continue
			}
			t.Run(name+"/"+p.name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, truth, cp.Namespace(t), "one", name)
				kill(t, bin, b, p)
			})
		}
	}
}

func kill(t *testing.T, bin string, b bench, p point) {
	o := harness.Options{State: t.TempDir() + "/state", Args: wide}
	s := harness.Spawn(t, cp, bin, o)
	tool, args := b.action, b.args
	if p.planning {
		tool = "plan_" + b.action
	} else {
		args = s.Plan(b.action, b.args)
	}
	reached, release := p.reach(t, moment{b, s.Proxy, o.State})
	t.Cleanup(release)
	_, reply, err := s.Send("tools/call", map[string]any{"name": tool, "arguments": args})
	if err != nil {
		t.Fatal(err)
	}
	if p.event != "" {
		reply = nil // who reads it is dead
	}
	var held *harness.Request
	select {
	case held = <-reached:
	case m := <-reply:
		t.Fatalf("it answered before the point was reached: %s", m.Line)
	case <-time.After(time.Minute):
		t.Fatal("the point was never reached")
	}
	s.Kill()
	release()

	want := make([]int, len(b.parts))
	for i := range want {
		if i < p.wantEffects {
			want[i] = 1
		}
	}
	if p.late {
		time.AfterFunc(lateBy, func() { _, _ = s.Proxy.Send(held) }) // that it fails is seen: there is no effect
	} else if diff := cmp.Diff(want, b.effects(t)); diff != "" {
		t.Errorf("effects of the killed process (-want +got):\n%s", diff)
	}
	if p.again {
		doomed := harness.Spawn(t, cp, bin, o)
		lab.Eventually(t, "the next process to look", func() (bool, error) { return len(doomed.Proxy.Requests(b.reads)) > 0, nil })
		doomed.Kill()
	}
	next := harness.Spawn(t, cp, bin, o)
	if p.planning {
		args = next.Plan(b.action, b.args)
	}
	first := settled(t, next, b.action, args)
	if p.wantFree {
		for i := range want {
			want[i] = 1
		}
	} else if w := next.Proxy.Writes(); len(w) != 0 {
		t.Errorf("the next process wrote %+v", w)
	}
	if first.Replayed == p.wantFree {
		t.Errorf("replayed is %t: %s", first.Replayed, first.Result)
	}
	got := b.effects(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("effects in all (-want +got):\n%s", diff)
	}
	b.right(t, first, got)
	if again := settled(t, next, b.action, args); !again.Replayed || !bytes.Equal(first.Result, again.Result) {
		t.Errorf("replayed %t, result\n%s\nwant\n%s", again.Replayed, again.Result, first.Result)
	}
	if b.action == "drain" && slices.Contains(got, 0) {
		// What was cut off in the middle can be planned again, for the rest of it.
		rest := next.Plan("drain", b.args)
		b.right(t, settled(t, next, "drain", rest), []int{1})
		if diff := cmp.Diff([]int{1, 1, 1}, b.effects(t)); diff != "" {
			t.Errorf("effects of both drains (-want +got):\n%s", diff)
		}
	}
	if b.action == plan.ChangesTool && slices.Contains(got, 0) {
		res, err := first.resultIn()
		var rest harness.Args
		if err == nil {
			err = json.Unmarshal(res.Rest, &rest)
		}
		if err != nil {
			t.Fatalf("the rest %s: %v", res.Rest, err)
		}
		settled(t, next, b.action, next.Plan(b.action, rest))
		if diff := cmp.Diff([]int{1, 1, 1}, b.effects(t)); diff != "" {
			t.Errorf("effects of both plans (-want +got):\n%s", diff)
		}
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	verified, counted, err := audited(o.State)
	if err != nil {
		t.Fatal(err)
	}
	if len(counted.Faults)+len(verified.Unsettled) > 0 {
		t.Errorf("audit report: %q; without a result: %q", counted.Faults, verified.Unsettled)
	}
}

// settled asks until there is a result.
func settled(t *testing.T, s *harness.Server, tool string, args harness.Args) (a answer) {
	t.Helper()
	lab.Eventually(t, "a result of "+tool, func() (bool, error) {
		got := s.Must(tool, args)
		a = harness.Into[answer](t, got)
		if a.Code != "" {
			t.Fatalf("refused: %s", got.Text)
		}
		return a.Result != nil, nil
	})
	return a
}

// about reports whether the key of a Step is of a part.
func (b bench) about(key string, p part) bool {
	return strings.HasSuffix(key, p.kind+" "+p.name) || strings.HasSuffix(key, p.kind+" "+b.ns+"/"+p.name)
}

// right holds a result against the truth: of the whole, and of each Step.
func (b bench) right(t *testing.T, a answer, effects []int) {
	t.Helper()
	res, err := a.resultIn()
	if err != nil {
		t.Fatal(err)
	}
	want := plan.Executed
	if slices.Contains(effects, 0) {
		want = plan.Failed
	}
	if a.Outcome != want || res.Outcome != want {
		t.Errorf("outcome %s, result %s, want %s: %s", a.Outcome, res.Outcome, want, a.Result)
	}
	if len(effects) != len(b.parts) {
		return // of the rest of a drain
	}
	for _, st := range res.Steps {
		for i, p := range b.parts {
			if !b.about(st.Step, p) {
				continue // a note among them
			}
			if applied := st.Outcome == "applied"; applied != (effects[i] == 1) {
				t.Errorf("%s: %s, and the watch saw %d effects", st.Step, st.Outcome, effects[i])
			}
		}
	}
}
