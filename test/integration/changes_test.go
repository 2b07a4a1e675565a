package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// step is one call of a plan of several.
func step(action string, args harness.Args) harness.Args {
	return harness.Args{"action": action, "arguments": args}
}

func steps(all ...harness.Args) harness.Args { return harness.Args{"steps": all} }

func deployment(t *testing.T, ns, name string) *appsv1.Deployment {
	t.Helper()
	d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// shape is what the tests look at of three Deployments: replicas, and whether one was
// restarted.
func shape(t *testing.T, ns string) (out []string) {
	t.Helper()
	for _, name := range []string{"a", "b", "c"} {
		d := deployment(t, ns, name)
		now := fmt.Sprintf("%s %d", name, *d.Spec.Replicas)
		if d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] != "" {
			now += " restarted"
		}
		out = append(out, now)
	}
	return out
}

// threeWorkloads makes the Deployments a, b and c, and gives the calls that scale a and b to 3
// and restart c.
func threeWorkloads(t *testing.T) (ns string, args harness.Args) {
	t.Helper()
	ns = cp.Namespace(t)
	for _, name := range []string{"a", "b", "c"} {
		harness.Create(t, cp, ns, harness.Deployment(name).Replicas(2).Ready(2))
	}
	return ns, steps(
		step("scale", of(ns, "deployment", "a").With("replicas", 3)),
		step("scale", of(ns, "deployment", "b").With("replicas", 3.0)),
		step("rollout_restart", of(ns, "deployment", "c")),
	)
}

type changed struct {
	Outcome plan.Outcome
	Result  json.RawMessage
	Rest    *struct {
		Tool      string
		Arguments json.RawMessage
	}
}

// TestChanges makes two scales and a restart as one plan: one phrase, in order, each with its
// own line, replayed byte for byte and taken back as one.
func TestChanges(t *testing.T) {
	t.Parallel()
	ns, args := threeWorkloads(t)
	s := start(t, "--verify-timeout", "5s", "--writes-per-minute", "6") // in which it is looked at, and no controller observes it
	got := s.Must("plan_changes", args)
	sentence := fmt.Sprintf("changes: 1 scale deployment %s/a from 2 to 3; 2 scale deployment %[1]s/b from 2 to 3; 3 restart deployment %[1]s/c on kind-lab", ns)
	harness.Tells(t, got, "PLAN "+sentence+"\n", "spec.replicas: 2 → 3", "3 restart deployment",
		`undo: plan_changes {"steps":[{"action":"rollout_undo","arguments":{"namespace":"`+ns+`","deployment":"c"}},{"action":"scale",`,
		`NEXT: changes {"steps":[{"action":"scale","arguments":{`)
	if lines := strings.Count(got.Text, "\n") + 1; lines > 25 {
		t.Errorf("%d lines:\n%s", lines, got.Text)
	}
	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Fatalf("a plan wrote %+v", w)
	}
	confirmed := args.With("confirm", got.Field("confirm")).With("reason", "a test")
	for name, tc := range map[string]struct {
		tool string
		args harness.Args
		want string
	}{
		"other steps":        {"changes", steps(args["steps"].([]harness.Args)[:2]...).With("confirm", confirmed["confirm"]).With("reason", "a test"), "wrong_arguments"},
		"in its action":      {"scale", of(ns, "deployment", "a").With("replicas", 3).With("confirm", confirmed["confirm"]).With("reason", "a test"), "wrong_arguments"},
		"an altered phrase":  {"changes", confirmed.With("confirm", strings.Replace(confirmed["confirm"].(string), "a from 2", "b from 2", 1)), "unknown_phrase"},
		"without any phrase": {"changes", args, "invalid_arguments"},
	} {
		if no := s.Must(tc.tool, tc.args); harness.Code(no) != tc.want {
			t.Errorf("%s: want %s: %s", name, tc.want, no.Text)
		}
	}
	if d := cmp.Diff([]string{"a 2", "b 2", "c 2"}, shape(t, ns)); d != "" {
		t.Fatal(d)
	}
	done := s.Must("changes", confirmed)
	x := harness.Into[execution](t, done)
	if d := cmp.Diff([]string{"a 3", "b 3", "c 2 restarted"}, shape(t, ns)); d != "" || x.Outcome != plan.Executed {
		t.Errorf("%s\n%s", d, done.Text)
	}
	harness.Tells(t, done, "EXECUTED "+sentence, "before: deployment "+ns+"/a (replicas 2, ", "right after the write: deployment "+ns+"/a (replicas 3, ", "not_started: 1 scale deployment")
	again := harness.Into[execution](t, s.Must("changes", confirmed))
	if !again.Replayed || string(again.Result) != string(x.Result) {
		t.Errorf("the second call gave %s, the first %s", again.Result, x.Result)
	}
	var order []string
	claims := map[string]bool{}
	for _, l := range harness.Lines(t, s.State) {
		if l.Event == "execute_intent" {
			order, claims[l.Claim] = append(order, fmt.Sprintf("%d %s", l.Step, l.StepKey)), true
		}
	}
	want := []string{
		"1 scale deployment " + ns + "/a", "2 patch deployment " + ns + "/a (note)",
		"3 scale deployment " + ns + "/b", "4 patch deployment " + ns + "/b (note)", "5 patch deployment " + ns + "/c",
	}
	if d := cmp.Diff(want, order); d != "" || len(claims) != 1 {
		t.Errorf("intents under %d claims (-want +got):\n%s", len(claims), d)
	}

	t.Run("three writes of the rate", func(t *testing.T) {
		_, more := threeWorkloads(t)
		other := s.Plan("changes", more)
		fourth := s.Plan("scale", of(ns, "deployment", "a").With("replicas", 2))
		if no := s.Must("scale", fourth); no.IsError { // the fourth
			t.Fatal(no.Text)
		}
		no := s.Must("changes", other) // to the seventh
		if harness.Code(no) != "rate_limited" {
			t.Errorf("%s", no.Text)
		}
		harness.Tells(t, no, "4 writes in the last minute and 3 calls in this plan: 6 in a minute are allowed")
	})
}

// TestChangesUndone takes a plan of several calls back, in reverse order.
func TestChangesUndone(t *testing.T) {
	t.Parallel()
	ns, all := threeWorkloads(t)
	args := steps(all["steps"].([]harness.Args)[:2]...)
	s := start(t, append([]string{"--verify-timeout", "1s"}, wide...)...)
	got := s.Must("plan_changes", args)
	harness.Tells(t, got, `undo: plan_changes {"steps":[{"action":"scale","arguments":{"namespace":"`+ns+`","deployment":"b","replicas":2}},{"action":"scale","arguments":{"namespace":"`+ns+`","deployment":"a","replicas":2}}]}`)
	x := harness.Into[execution](t, s.Must("changes", args.With("confirm", got.Field("confirm")).With("reason", "a test")))
	if d := cmp.Diff([]string{"a 3", "b 3", "c 2"}, shape(t, ns)); d != "" {
		t.Fatal(d)
	}
	undo := s.Plan("undo", harness.Args{"plan": x.Plan})
	if phrase := undo["confirm"].(string); !strings.HasPrefix(phrase, "undo "+x.Plan+": changes: 1 scale deployment "+ns+"/b from 3 to 2; 2 scale") {
		t.Errorf("%s", phrase)
	}
	back := harness.Into[execution](t, s.Must("undo", undo))
	if d := cmp.Diff([]string{"a 2", "b 2", "c 2"}, shape(t, ns)); d != "" || back.Outcome != plan.Executed {
		t.Errorf("%s %s", back.Outcome, d)
	}
}

// TestChangesStop: what differs when its turn comes ends the plan there, and the answer
// says what is left.
func TestChangesStop(t *testing.T) {
	for name, tc := range map[string]struct {
		move func(*testing.T, string)
		want string
	}{
		"drift of a later one": {func(t *testing.T, ns string) { setReplicas(t, ns, "b", 5) }, "steps[1]: spec.replicas of deployment"},
		"gone":                 {func(t *testing.T, ns string) { remove(t, ns, "b") }, "steps[1]: deployment"},
		"so already":           {func(t *testing.T, ns string) { setReplicas(t, ns, "b", 3) }, "steps[1]: nothing is left to do"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, args := threeWorkloads(t)
			s := start(t, append([]string{"--verify-timeout", "1s"}, wide...)...)
			confirmed := s.Plan("changes", args)
			arrived, release := s.Proxy.Hold(func(r harness.Request) bool { return r.Mutates() && strings.HasSuffix(r.Path, "/a/scale") })
			_, answer, err := s.Send("tools/call", map[string]any{"name": "changes", "arguments": confirmed})
			if err != nil {
				t.Fatal(err)
			}
			<-arrived
			tc.move(t, ns)
			release()
			got, err := stdio.Parse(<-answer)
			if err != nil {
				t.Fatal(err)
			}
			x := harness.Into[changed](t, got)
			if x.Outcome != plan.Failed || !got.IsError {
				t.Fatalf("%s", got.Text)
			}
			harness.Tells(t, got, "1 of 3 calls are done; it stopped at 2 scale deployment "+ns+"/b from 2 to 3: ", tc.want, "patch deployment "+ns+"/c: not sent",
				`undo: plan_changes {"steps":[{"action":"scale","arguments":{"namespace":"`+ns+`","deployment":"a","replicas":2}}]}; kubectl`)
			if d := deployment(t, ns, "a"); *d.Spec.Replicas != 3 {
				t.Errorf("the first one was not done: %s", got.Text)
			}
			if d := deployment(t, ns, "c"); d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] != "" {
				t.Errorf("what came after it was done: %s", got.Text)
			}
			if x.Rest == nil || x.Rest.Tool != "plan_changes" || strings.Count(string(x.Rest.Arguments), "action") != 2 {
				t.Fatalf("the rest is %+v", x.Rest)
			}
			var rest harness.Args
			if err := json.Unmarshal(x.Rest.Arguments, &rest); err != nil {
				t.Fatal(err)
			}
			again := s.Must(x.Rest.Tool, rest)
			if gone := name == "gone"; (harness.Code(again) == "not_found") != gone || (again.Field("confirm") == "") != gone {
				t.Errorf("the rest cannot be planned again: %s", again.Text)
			}
		})
	}
	t.Run("a request that fails", func(t *testing.T) {
		t.Parallel()
		ns, args := threeWorkloads(t)
		s := start(t, wide...)
		confirmed := s.Plan("changes", args)
		s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
			if !r.Mutates() || !strings.HasSuffix(r.Path, "/b/scale") {
				return true
			}
			w.WriteHeader(http.StatusForbidden)
			return false
		})
		got := s.Must("changes", confirmed)
		harness.Tells(t, got, "FAILED changes: ", "1 of 3 calls are done; it stopped at 2 scale deployment "+ns+"/b", "scale deployment "+ns+"/b: not applied (403)", "patch deployment "+ns+"/c: not sent")
		if d := cmp.Diff([]string{"a 3", "b 2", "c 2"}, shape(t, ns)); d != "" {
			t.Error(d)
		}
	})
	t.Run("before the first one nothing is sent", func(t *testing.T) {
		t.Parallel()
		ns, args := threeWorkloads(t)
		s := start(t, wide...)
		confirmed := s.Plan("changes", args)
		setReplicas(t, ns, "b", 5)
		if no := s.Must("changes", confirmed); harness.Code(no) != "stale" || !strings.Contains(no.Text, "steps[1]: spec.replicas of deployment "+ns+"/b: planned 2, now 5") {
			t.Errorf("%s", no.Text)
		}
		if w := s.Proxy.Writes(); len(w) != 0 {
			t.Errorf("it wrote %+v", w)
		}
	})
}

func remove(t *testing.T, ns, name string) {
	t.Helper()
	if err := cp.Client.AppsV1().Deployments(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestChangesRefused is what makes no plan of several calls, and what it says.
func TestChangesRefused(t *testing.T) {
	ns, args := threeWorkloads(t)
	harness.Create(t, cp, ns,
		harness.Deployment("four").Replicas(4).Ready(4), harness.Budget("four").MaxUnavailable(4).Allows(4, 4),
		harness.Deployment("held").Replicas(6).Ready(6), harness.Budget("held").Allows(1, 6),
	)
	node := ns + "-node"
	harness.Create(t, cp, ns, harness.Node(node).Ready(), harness.Node(ns+"-other").Ready(),
		harness.Deployment("placed").Replicas(2).Pods(func(p *corev1.PodTemplateSpec) { p.Spec.NodeName = node }).Ready(2))
	t.Cleanup(workbench{ns, node, ns + "-other"}.removeNodes)
	harness.Converge(t, cp, ns)
	all := args["steps"].([]harness.Args)
	evict := func(name string, i int) harness.Args {
		return step("evict_pod", of(ns, "pod", harness.PodName(name, i)))
	}
	web := of(ns, "deployment", "a")
	many := steps()
	for range 21 {
		many["steps"] = append(many["steps"].([]harness.Args), all[0])
	}
	long := steps()
	for i := range 12 {
		name := fmt.Sprintf("a-very-long-name-of-a-deployment-with-number-%02d", i)
		harness.Create(t, cp, ns, harness.Deployment(name).Replicas(1))
		long["steps"] = append(long["steps"].([]harness.Args), step("scale", of(ns, "deployment", name).With("replicas", 2)))
	}
	for name, tc := range map[string]struct {
		args  harness.Args
		flags []string
		code  string
		want  []string
		reads bool // it may have read something
	}{
		"no steps":         {args: harness.Args{}, code: "invalid_arguments", want: []string{"missing argument steps"}},
		"none":             {args: steps([]harness.Args{}...).With("steps", []any{}), code: "invalid_arguments", want: []string{"steps must be a list of 1 to 20"}},
		"21":               {args: many, code: "invalid_arguments", want: []string{"steps must be a list of 1 to 20"}},
		"no object":        {args: harness.Args{"steps": []any{"scale"}}, code: "invalid_arguments", want: []string{"steps[0]: arguments must be a JSON object"}},
		"an unknown key":   {args: steps(all[0].With("confirm", "x")), code: "invalid_arguments", want: []string{"steps[0]: unknown argument confirm"}},
		"itself":           {args: steps(step("changes", args)), code: "invalid_arguments", want: []string{"steps[0].action: there is no such action"}},
		"every fault":      {args: steps(all[0], step("scale", web.With("replicas", "3").With("yes", true)), step("scale", web.With("replicas", 101))), code: "invalid_arguments", want: []string{"steps[1].arguments: replicas must be an integer from 0 to 100 (--max-replicas) without quotes", "unknown argument yes", "steps[2].arguments: replicas must be"}},
		"one out of scope": {args: steps(all[0], step("scale", of("kube-system", "deployment", "x").With("replicas", 1))), code: "out_of_scope", want: []string{"steps[1]: namespace kube-system is protected; nothing was read"}},
		"a node by labels": {args: steps(step("cordon", harness.Args{"node": node}), step("scale", of("kube-system", "deployment", "x").With("replicas", 1))), code: "out_of_scope", want: []string{"steps[1]: namespace kube-system"}},
		"an action that is off": {args: args, flags: []string{"--actions", "scale"}, code: "out_of_scope",
			want: []string{"steps[2]: action rollout_restart is not enabled by --actions"}},
		"twice": {args: steps(all[0], step("rollout_restart", web)), code: "precondition_failed", reads: true,
			want: []string{"steps[0] and steps[1] both touch deployment " + ns + "/a", "plan steps[1] by itself, after steps[0] was executed"}},
		"a workload and its pod": {args: steps(evict("four", 0), step("rollout_restart", of(ns, "deployment", "four"))), code: "precondition_failed", reads: true,
			want: []string{"both touch deployment " + ns + "/four"}},
		"a drain and a pod on it": {args: steps(step("drain", harness.Args{"node": node}), evict("placed", 0)), flags: wide, code: "precondition_failed", reads: true,
			want: []string{"both touch pod " + ns + "/" + harness.PodName("placed", 0)}},
		"a drain and a workload on it": {args: steps(step("rollout_restart", of(ns, "deployment", "placed")), step("drain", harness.Args{"node": node})), flags: wide, code: "precondition_failed", reads: true,
			want: []string{"both touch deployment " + ns + "/placed"}},
		"one that is not there": {args: steps(all[0], step("scale", of(ns, "deployment", "cc").With("replicas", 1))), code: "not_found", reads: true,
			want: []string{"steps[1]: deployment " + ns + "/cc not found"}},
		"too much of one owner in sum": {args: steps(evict("four", 0), evict("four", 1), evict("four", 2)), code: "needs_person", reads: true,
			want: []string{"Deployment/" + ns + "/four: 3 of 4 ready pods may be missing at once: 75 % at risk"}},
		"too large a step of one": {args: steps(all[0], step("scale", of(ns, "deployment", "four").With("replicas", 1))), code: "blast_limit", reads: true,
			want: []string{"Deployment/" + ns + "/four: 3 of 4 ready pods may be missing at once: 75 % at risk", "the largest step that passes is replicas: 2"}},
		"too much of a budget in sum": {args: steps(evict("held", 0), evict("held", 1)), code: "blast_limit", reads: true,
			want: []string{"pdb/held allows 1 disruption now (6 healthy, 5 needed), and this plan needs 2 at once"}},
		"too many for the rate": {args: args, flags: []string{"--writes-per-minute", "2"}, code: "cap_exceeded", reads: true,
			want: []string{"3 calls in one plan are more than --writes-per-minute 2 ever lets through", "plan at most 2 calls at once"}},
		"too long": {args: long, flags: wide, code: "precondition_failed", reads: true, want: []string{"their sentence has ", "and 513 fit into a phrase", "plan fewer calls at once"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, tc.flags...)
			no := s.Must("plan_changes", tc.args)
			if tc.code == "needs_person" {
				harness.Waits(t, no, "")
			} else if harness.Code(no) != tc.code || no.Field("confirm") != "" {
				t.Errorf("want %s: %s", tc.code, no.Text)
			}
			harness.Tells(t, no, tc.want...)
			if r := s.Proxy.Requests(func(harness.Request) bool { return true }); !tc.reads && len(r) != 0 {
				t.Errorf("it read %+v", r)
			}
			if w := s.Proxy.Writes(); len(w) != 0 {
				t.Errorf("it wrote %+v", w)
			}
		})
	}
	t.Run("each by itself passes", func(t *testing.T) {
		s := start(t)
		for _, one := range []harness.Args{evict("four", 0), evict("four", 1), evict("four", 2), evict("held", 0), evict("held", 1)} {
			s.Plan("changes", steps(one))
		}
	})
	t.Run("one dry run denied", func(t *testing.T) {
		s := start(t, wide...)
		s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
			if r.Method != http.MethodPut || !strings.HasSuffix(r.Path, "/b/scale") {
				return true
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: 403, Reason: metav1.StatusReasonForbidden, Message: "no",
			})
			return false
		})
		no := s.Must("plan_changes", args)
		wantNoPhrase(t, s, no, "dry run failed (403)", "no")
		harness.Tells(t, no, "the API server refuses to scale deployment "+ns+"/b")
	})
	t.Run("what is so already is left out", func(t *testing.T) {
		s := start(t, wide...)
		got := s.Must("plan_changes", steps(all[0], step("scale", of(ns, "deployment", "b").With("replicas", 2)), all[2]))
		harness.Tells(t, got, "PLAN changes: 1 scale deployment "+ns+"/a from 2 to 3; 3 restart", "warning: 2: no change, it is so already: deployment "+ns+"/b")
		none := s.Must("plan_changes", steps(step("scale", of(ns, "deployment", "b").With("replicas", 2))))
		if none.Field("status") != "no change" || none.Field("confirm") != "" {
			t.Errorf("%s", none.Text)
		}
	})
}

// TestChangesKilled kills a process (-9) between two calls: what is done is found out, what
// is not was not sent, and can be planned again.
func TestChangesKilled(t *testing.T) {
	t.Parallel()
	ns, args := threeWorkloads(t)
	state := t.TempDir() + "/state"
	quick := append([]string{"--verify-timeout", "1s"}, wide...)
	s := harness.Spawn(t, cp, program(t), harness.Options{State: state, Args: quick})
	confirmed := s.Plan("changes", args)
	var begun atomic.Bool
	arrived, release := s.Proxy.Hold(func(r harness.Request) bool { // the look at b before its turn
		if r.Mutates() && strings.HasSuffix(r.Path, "/a/scale") {
			begun.Store(true)
		}
		return begun.Load() && r.Method == http.MethodGet && strings.HasSuffix(r.Path, "/deployments/b")
	})
	if _, _, err := s.Send("tools/call", map[string]any{"name": "changes", "arguments": confirmed}); err != nil {
		t.Fatal(err)
	}
	<-arrived
	s.Kill()
	release()
	next := harness.Start(t, cp, harness.Options{State: state, Args: quick})
	got := next.Must("changes", confirmed)
	x := harness.Into[changed](t, got)
	if x.Outcome != plan.Failed {
		t.Fatalf("%s", got.Text)
	}
	harness.Tells(t, got, "1 of 3 calls are done; it stopped at 2 scale deployment "+ns+"/b from 2 to 3")
	if d := cmp.Diff([]string{"a 3", "b 2", "c 2"}, shape(t, ns)); d != "" {
		t.Error(d)
	}
	var rest harness.Args
	if x.Rest == nil || json.Unmarshal(x.Rest.Arguments, &rest) != nil {
		t.Fatalf("the rest is %+v", x.Rest)
	}
	if done := harness.Into[execution](t, next.Do("changes", rest)); done.Outcome != plan.Executed {
		t.Errorf("the rest: %+v", done)
	}
	if d := cmp.Diff([]string{"a 3", "b 3", "c 2 restarted"}, shape(t, ns)); d != "" {
		t.Error(d)
	}
}
