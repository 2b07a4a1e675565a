package cluster

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// place is where the ways of one row are tried, each in one of its own.
type place struct {
	ns, node string
	pods     []string // of web, before
	state    string   // of the server
	done     map[string]string
}

// call is one tool call: planned, and executed where there is a phrase.
type call struct {
	action string
	args   harness.Args
}

// way is a sequence of calls that could have the row's effect, until one is refused. Before
// it, others may have been executed by a server that allows them: done has their plans.
type way struct {
	name  string
	calls func(p *place) []call
}

// row is an effect that some calls refuse.
type row struct {
	effect string
	flags  func(t *testing.T, p *place) []string
	make   func(t *testing.T, p *place)
	// watch gives the function that says whether the effect was there at any time.
	watch func(t *testing.T, p *place) func() bool
	ways  []way
	alone bool // it changes all nodes, so that no other test may run beside it
	// decided are ways that have the effect after all, and why that is no way around.
	decided map[string]string
}

// one is a way of a single call.
func one(action string, args func(p *place) harness.Args) way {
	return way{action, func(p *place) []call { return []call{{action, args(p)}} }}
}

// together is a way whose calls are those of one plan.
func together(w way) way {
	return way{w.name + ", as changes", func(p *place) []call {
		var steps []map[string]any
		for _, c := range w.calls(p) {
			steps = append(steps, map[string]any{"action": c.action, "arguments": c.args})
		}
		return []call{{"changes", harness.Args{"steps": steps}}}
	}}
}

func web(p *place) harness.Args  { return of(p.ns, "deployment", "web") }
func on(p *place) harness.Args   { return harness.Args{"node": p.node} }
func lone(p *place) harness.Args { return of(p.ns, "pod", "loner") }
func first(p *place) harness.Args {
	return of(p.ns, "pod", p.pods[0])
}
func image(p *place) harness.Args {
	return imageOf(p.ns, "web").With("image", "main:9")
}
func drained(p *place) harness.Args {
	return on(p).With("force", true).With("delete_emptydir_data", true).With("timeout_seconds", 1)
}
func scaled(n int) func(*place) harness.Args {
	return func(p *place) harness.Args { return web(p).With("replicas", n) }
}

// makeWeb makes a Deployment whose pods are all on the place's node and stop before new
// ones start, with a revision before the current one.
func makeWeb(replicas int32) func(*testing.T, *place) {
	return func(t *testing.T, p *place) {
		deployment(t, p.ns, "web", replicas, func(d *appsv1.Deployment) {
			onNodes(p.node)(&d.Spec.Template)
			d.Spec.Template.Spec.Containers[0].Image = "main:1"
			d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		})
		api := cp.Client.AppsV1().Deployments(p.ns)
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			d, err := api.Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			d.Spec.Template.Spec.Containers[0].Image = "main:2"
			_, err = api.Update(t.Context(), d, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, "the second revision", func() (bool, error) {
			d, err := api.Get(t.Context(), "web", metav1.GetOptions{})
			return err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.Replicas == replicas &&
				d.Status.UpdatedReplicas == replicas && d.Status.AvailableReplicas == replicas && len(pods(t, p.ns, "web")) == int(replicas), err
		})
		for _, pod := range pods(t, p.ns, "web") {
			p.pods = append(p.pods, pod.Name)
		}
	}
}

// below watches whether fewer pods of web than that were available at any time.
func below(n int32) func(*testing.T, *place) func() bool {
	return func(t *testing.T, p *place) func() bool {
		lowest := watchAvailable(t, p.ns, "web")
		return func() bool { return lowest() < n }
	}
}

// podsGone watches whether pods with these labels are others than before.
func podsGone(apps ...string) func(*testing.T, *place) func() bool {
	return func(t *testing.T, p *place) func() bool {
		before := map[string]bool{}
		for _, app := range apps {
			maps.Copy(before, uids(pods(t, p.ns, app)))
		}
		return func() bool {
			now := map[string]bool{}
			for _, app := range apps {
				for _, pod := range pods(t, p.ns, app) {
					if pod.DeletionTimestamp == nil {
						now[string(pod.UID)] = true
					}
				}
			}
			return !maps.Equal(before, now)
		}
	}
}

// nodeShut watches whether the place's node takes no more pods.
func nodeShut(t *testing.T, p *place) func() bool {
	return func() bool { return unschedulable(t, p.node) }
}

func fixed(flags ...string) func(*testing.T, *place) []string {
	return func(*testing.T, *place) []string { return flags }
}

func policyFile(t *testing.T, text string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--policy", file}
}

// deleteAll deletes the pods of web one after the other.
var deleteAll = way{"delete_pod, one after the other", func(p *place) (all []call) {
	for _, name := range p.pods {
		all = append(all, call{"delete_pod", of(p.ns, "pod", name)})
	}
	return all
}}

// everything is what can be called on a namespace and on the node of its pods.
var everything = []way{
	one("scale", scaled(1)), one("rollout_restart", web), one("set_image", image), one("rollout_undo", web),
	one("rollout_pause", web), one("delete_pod", first), one("evict_pod", first),
	{"delete_pod, of none", func(p *place) []call { return []call{{"delete_pod", lone(p)}} }},
	{"evict_pod, of none", func(p *place) []call { return []call{{"evict_pod", lone(p)}} }},
	one("job_suspend", func(p *place) harness.Args { return of(p.ns, "job", "batch") }),
	one("drain", drained), together(one("scale", scaled(1))), together(one("drain", drained)),
	{"undo", func(p *place) []call { return []call{{"undo", harness.Args{"plan": p.done["scale"]}}} }},
}

// inhabited has one of each that everything is about.
func inhabited(t *testing.T, p *place) {
	makeWeb(2)(t, p)
	bare(t, p.ns, "loner", p.node)
	makeJob(t, p)
	p.before(t, "scale", scaled(3)(p))
	lab.Eventually(t, "3 ready", func() (bool, error) { return running(t, p.ns, "web") == 3, nil })
}

// makeJob makes a Job with one running pod. It is on no node: there it would be completed.
func makeJob(t *testing.T, p *place) {
	job(t, p.ns, "batch", batchv1.JobSpec{})
	jobIs(t, p.ns, "batch", 1, 0)
	p.pods = append(p.pods, pods(t, p.ns, "batch")[0].Name)
	phase(t, p.ns, p.pods[len(p.pods)-1], corev1.PodRunning)
}

// before executes a call on a server that allows it.
func (p *place) before(t *testing.T, action string, args harness.Args) {
	t.Helper()
	s := harness.Start(t, cp, harness.Options{State: p.state, Args: wide})
	p.done[action] = s.Do(action, args).Field("plan")
}

var rows = []row{
	{
		effect: "a pod gone that nothing makes again",
		make:   func(t *testing.T, p *place) { bare(t, p.ns, "loner", p.node) },
		watch:  podsGone("loner"),
		ways:   []way{one("delete_pod", lone), one("evict_pod", lone), one("drain", drained), together(one("evict_pod", lone))},
	},
	{
		effect: "pods gone though their budget allows none",
		make: func(t *testing.T, p *place) {
			makeWeb(2)(t, p)
			pdb(t, p.ns, "web", policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(2)), Selector: selector("web")}, 2, 0)
		},
		watch: podsGone("web"),
		ways: []way{
			one("delete_pod", first), one("evict_pod", first), one("drain", drained), one("scale", scaled(1)),
			together(one("delete_pod", first)),
			one("rollout_restart", web), one("set_image", image), one("rollout_undo", web),
			{"pause, set_image and resume", func(p *place) []call {
				return []call{{"rollout_pause", web(p)}, {"set_image", image(p)}, {"rollout_resume", web(p)}}
			}},
		},
		decided: map[string]string{
			"scale": "it says how many pods there shall be, which no budget is about; the blast limit bounds it",
		},
	},
	{
		effect: "a job's pod gone though its budget allows none",
		make: func(t *testing.T, p *place) {
			makeJob(t, p)
			pdb(t, p.ns, "batch", policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: selector("batch")}, 1, 0)
		},
		watch: podsGone("batch"),
		ways: []way{
			one("delete_pod", first), one("evict_pod", first),
			one("job_suspend", func(p *place) harness.Args { return of(p.ns, "job", "batch") }),
		},
		decided: map[string]string{
			"job_suspend": "it says that none shall run; what the pods have begun is a loss that the plan names",
		},
	},
	{
		effect: "more capacity gone than the blast limit",
		make:   makeWeb(4), watch: below(2),
		ways: []way{
			one("scale", scaled(1)),
			{"scale to 0", func(p *place) []call { return []call{{"scale", scaled(0)(p)}} }},
			{"scale in steps", func(p *place) []call {
				return []call{{"scale", scaled(3)(p)}, {"scale", scaled(2)(p)}, {"scale", scaled(1)(p)}}
			}},
			{"scale up and down", func(p *place) []call {
				return []call{{"scale", scaled(6)(p)}, {"scale", scaled(3)(p)}, {"scale", scaled(1)(p)}}
			}},
			deleteAll, together(deleteAll), together(one("scale", scaled(1))),
			one("rollout_restart", web), one("set_image", image), one("rollout_undo", web), one("drain", drained),
			{"pause, set_image and resume", func(p *place) []call {
				return []call{{"rollout_pause", web(p)}, {"set_image", image(p)}, {"rollout_resume", web(p)}}
			}},
			{"pause, set_image and undo of the pause", func(p *place) []call {
				return []call{{"rollout_pause", web(p)}, {"set_image", image(p)}, {"undo", harness.Args{"plan": "rollout_pause"}}}
			}},
			{"pause, rollout_undo and resume", func(p *place) []call {
				return []call{{"rollout_pause", web(p)}, {"rollout_undo", web(p)}, {"rollout_resume", web(p)}}
			}},
			{"scale and its undo, twice", func(p *place) []call {
				return []call{{"scale", scaled(2)(p)}, {"undo", harness.Args{"plan": "scale"}}, {"undo", harness.Args{"plan": "undo"}}, {"scale", scaled(1)(p)}}
			}},
		},
	},
	{
		effect: "the only pod gone where a single one counts",
		flags:  func(t *testing.T, _ *place) []string { return policyFile(t, "gate_single_pod: true\n") },
		make:   makeWeb(1), watch: podsGone("web"),
		ways: []way{
			one("delete_pod", first), one("evict_pod", first), one("drain", drained), one("scale", scaled(0)),
			one("rollout_restart", web), one("set_image", image), one("rollout_undo", web),
			{"pause, set_image and resume", func(p *place) []call {
				return []call{{"rollout_pause", web(p)}, {"set_image", image(p)}, {"rollout_resume", web(p)}}
			}},
		},
	},
	{
		effect: "a node that is not allowed takes no more pods",
		flags:  fixed("--allow-node-selector", "pool=none"),
		make: func(t *testing.T, p *place) {
			cordonForNow(t, p.node)
			p.before(t, "uncordon", on(p))
		},
		watch: nodeShut,
		ways: []way{
			one("cordon", on), one("drain", drained), together(one("cordon", on)),
			{"undo", func(p *place) []call { return []call{{"undo", harness.Args{"plan": p.done["uncordon"]}}} }},
		},
	},
	{
		effect: "the last node takes no more pods", alone: true,
		make: func(t *testing.T, p *place) {
			cordonForNow(t, p.node)
			p.before(t, "uncordon", on(p))
			list, err := cp.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range list.Items {
				if n.Name != p.node && !n.Spec.Unschedulable {
					cordonForNow(t, n.Name)
					t.Cleanup(func() { reopen(t, n.Name) })
				}
			}
		},
		watch: nodeShut,
		ways: []way{
			one("cordon", on), one("drain", drained), together(one("cordon", on)),
			{"undo", func(p *place) []call { return []call{{"undo", harness.Args{"plan": p.done["uncordon"]}}} }},
		},
	},
	{
		effect: "a protected namespace touched",
		flags: func(_ *testing.T, p *place) []string {
			return []string{"--protect-namespaces", p.ns, "--max-blast-percent", "100", "--irreversible", "allow"}
		},
		make: inhabited, watch: podsGone("web", "loner", "batch"), ways: everything,
	},
	{
		effect: "a namespace touched that is not allowed",
		flags: func(_ *testing.T, p *place) []string {
			return []string{"--allow-namespaces", "elsewhere", "--max-blast-percent", "100", "--irreversible", "allow"}
		},
		make: inhabited, watch: podsGone("web", "loner", "batch"), ways: everything,
	},
	{
		effect: "a namespace touched outside its change window",
		flags: func(t *testing.T, p *place) []string {
			window := fmt.Sprintf("change_windows:\n- {name: freeze, kind: deny, schedule: '@daily', duration: 48h, time_zone: UTC, namespaces: [%s]}\n", p.ns)
			return append(policyFile(t, window), "--max-blast-percent", "100", "--irreversible", "allow")
		},
		make: inhabited, watch: podsGone("web", "loner", "batch"), ways: everything,
	},
}

// reopen ends a cordon, also when the test's own context has ended.
func reopen(t *testing.T, name string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := cp.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Unschedulable = false
		_, err = cp.Client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// taken is what came of a way.
type taken struct {
	code     string // of the call that was refused, or ""
	text     string
	happened bool
}

// take goes a way in a place of its own.
func (r row) take(t *testing.T, i int, w way) (out taken) {
	p := &place{ns: cp.Namespace(t), state: filepath.Join(t.TempDir(), "state"), done: map[string]string{}}
	p.node = node(t, fmt.Sprintf("way-%s-%d", p.ns, i))
	r.make(t, p)
	flags := []string{"--verify-timeout", "5s", "--writes-per-minute", "100"}
	if r.flags != nil {
		flags = append(flags, r.flags(t, p)...)
	}
	s := harness.Start(t, cp, harness.Options{State: p.state, Args: flags})
	happened := r.watch(t, p)
	for _, c := range w.calls(p) {
		args := c.args
		if earlier, ok := args["plan"].(string); ok && p.done[earlier] != "" {
			args = args.With("plan", p.done[earlier])
		}
		planned := s.Must("plan_"+c.action, args)
		out.code, out.text = harness.Code(planned), planned.Text
		phrase := planned.Field("confirm")
		if phrase == "" {
			break
		}
		done := s.Must(c.action, args.With("confirm", phrase).With("reason", "a test"))
		out.code, out.text = harness.Code(done), done.Text
		if out.code != "" {
			break
		}
		p.done[c.action] = done.Field("plan")
	}
	if out.code == "" {
		p.settle(t)
	}
	out.happened = happened()
	return out
}

// settle waits until the controllers have done what was asked of web, if there is one.
func (p *place) settle(t *testing.T) {
	t.Helper()
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		d, err := cp.Client.AppsV1().Deployments(p.ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil || d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == *d.Spec.Replicas && d.Status.AvailableReplicas == *d.Spec.Replicas {
			return
		}
	}
}

// TestNoWayAround: what one tool refuses, none gives. Of every ordered pair of ways to an
// effect, where the first is refused the second has not the effect.
func TestNoWayAround(t *testing.T) {
	t.Parallel()
	for _, r := range rows {
		if !r.alone {
			t.Run(r.effect, func(t *testing.T) {
				t.Parallel()
				r.test(t)
			})
		}
	}
}

// TestNoWayAroundAlone is TestNoWayAround with the cluster for itself.
func TestNoWayAroundAlone(t *testing.T) {
	for _, r := range rows {
		if r.alone {
			t.Run(r.effect, r.test)
		}
	}
}

func (r row) test(t *testing.T) {
	came := map[string]taken{}
	for i, w := range r.ways {
		t.Run(w.name, func(t *testing.T) {
			came[w.name] = r.take(t, i, w)
			t.Logf("%q, happened %t: %s", came[w.name].code, came[w.name].happened, strings.SplitN(came[w.name].text, "\n", 2)[0])
		})
	}
	refused, pairs := 0, 0
	for _, a := range slices.Sorted(maps.Keys(came)) {
		if came[a].code == "" {
			continue
		}
		refused++
		if came[a].happened {
			t.Errorf("%s was refused (%s) and had the effect", a, came[a].code)
		}
		for _, b := range slices.Sorted(maps.Keys(came)) {
			if pairs++; a != b && came[b].happened && r.decided[b] == "" {
				t.Errorf("%s is refused (%s), and %s is a way around: %s", a, came[a].code, b, came[b].text)
			}
		}
	}
	for b, why := range r.decided {
		if !came[b].happened {
			t.Errorf("%s has not the effect, so it needs no reason: %s", b, why)
		}
	}
	if len(came) != len(r.ways) || refused < 2 {
		t.Errorf("of %d ways %d were taken and %d refused", len(r.ways), len(came), refused)
	}
	t.Logf("%d ways, %d refused, %d pairs", len(came), refused, pairs)
}
