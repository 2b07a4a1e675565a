package engine

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

func back(tool, args, note string) plan.Undo {
	return plan.Undo{Tool: tool, Arguments: json.RawMessage(args), Kubectl: "kubectl " + tool, Note: note}
}

// TestUndoOf: the inverses of what is done, the last one first, or words that name which
// has none.
func TestUndoOf(t *testing.T) {
	scale := plan.Part{Sentence: "scale a", Steps: 2, Undo: back("plan_scale", `{"x":1}`, "")}
	cordon := plan.Part{Sentence: "cordon n", Steps: 1, Undo: back("plan_uncordon", `{"x":2}`, "no pod moves")}
	remove := plan.Part{Sentence: "delete pod p", Steps: 1, Undo: plan.Undo{Note: "it does not come back"}}
	for name, tc := range map[string]struct {
		parts []plan.Part
		done  []int
		want  plan.Undo
	}{
		"all": {[]plan.Part{scale, cordon}, []int{0, 1}, plan.Undo{
			Tool: "plan_changes", Arguments: json.RawMessage(`{"steps":[{"action":"uncordon","arguments":{"x":2}},{"action":"scale","arguments":{"x":1}}]}`),
			Kubectl: "kubectl plan_uncordon && kubectl plan_scale", Note: "2: no pod moves",
		}},
		"the first": {[]plan.Part{scale, cordon}, []int{0}, plan.Undo{
			Tool: "plan_changes", Arguments: json.RawMessage(`{"steps":[{"action":"scale","arguments":{"x":1}}]}`), Kubectl: "kubectl plan_scale",
		}},
		"one has none": {[]plan.Part{scale, remove}, []int{0, 1}, plan.Undo{
			Kubectl: "kubectl plan_scale", Note: "no call takes back 2 delete pod p; 2: it does not come back",
		}},
		"one was so already": {[]plan.Part{{Undo: scale.Undo}, cordon}, []int{0, 1}, plan.Undo{
			Tool: "plan_changes", Arguments: json.RawMessage(`{"steps":[{"action":"uncordon","arguments":{"x":2}}]}`), Kubectl: "kubectl plan_uncordon", Note: "2: no pod moves",
		}},
		"none is done": {[]plan.Part{scale}, nil, plan.Undo{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := undoOf(tc.parts, func(i int) bool { return slices.Contains(tc.done, i) })
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestSettleParts: what is done, where it stopped, and what can be planned again.
func TestSettleParts(t *testing.T) {
	pod := func(name string, optional bool) plan.Step {
		return plan.Step{Verb: plan.Evict, Target: plan.Target{Resource: "pods", Name: name}, Optional: optional}
	}
	p := &plan.Plan{
		Args:  json.RawMessage(`{"steps":[{"n":1},{"n":2},{"n":3},{"n":4}]}`),
		Steps: []plan.Step{pod("a", false), pod("b", true), pod("c", false), pod("d", false), pod("e", false)},
		Parts: []plan.Part{
			{Sentence: "one", Steps: 2, Undo: back("plan_one", "{}", "")}, {Sentence: ""},
			{Sentence: "three", Steps: 2, Undo: back("plan_three", "{}", "")}, {Sentence: "four", Steps: 1, Undo: back("plan_four", "{}", "")},
		},
	}
	for name, tc := range map[string]struct {
		outcomes          string // of the five Steps: applied, not applied, gone, indeterminate, or - for one that was never sent
		skipped, leftOver []string
		wantDetail        string
		wantRest          string
		wantUndo          string // the actions of its undo
	}{
		"all":                  {"aaaaa", nil, nil, "", "", "four three one"},
		"without its note":     {"a-aga", nil, nil, "", "", "four three one"},
		"skipped":              {"a-a-a", []string{pod("d", false).Key()}, nil, "", "", "four three one"},
		"stopped in the third": {"aaan-", nil, nil, "1 of 3 calls are done; it stopped at 3 three: why", `{"steps":[{"n":3},{"n":4}]}`, "three one"},
		"never begun":          {"aa---", nil, nil, "1 of 3 calls are done; it stopped at 3 three: why", `{"steps":[{"n":3},{"n":4}]}`, "one"},
		"nobody knows":         {"aai--", nil, nil, "1 of 3 calls are done; it stopped at 3 three: why", `{"steps":[{"n":4}]}`, "one"},
		"left over":            {"aaaa-", nil, []string{"3: evict pod x"}, "1 of 3 calls are done; it stopped at 3 three: why", `{"steps":[{"n":3},{"n":4}]}`, "three one"},
		"the first":            {"n----", nil, nil, "0 of 3 calls are done; it stopped at 1 one: why", `{"steps":[{"n":1},{"n":3},{"n":4}]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			res := &plan.Result{Skipped: tc.skipped, LeftOver: tc.leftOver}
			if tc.wantDetail != "" {
				res.Detail = "why"
			}
			became := make([]*plan.StepResult, len(p.Steps))
			for i, c := range tc.outcomes {
				if o := map[rune]string{'a': stepApplied, 'n': stepNotApplied, 'g': stepGone, 'i': stepIndeterminate}[c]; o != "" {
					became[i] = &plan.StepResult{Outcome: o}
				}
			}
			settleParts(res, p, became)
			if res.Detail != tc.wantDetail || string(res.Rest) != tc.wantRest {
				t.Errorf("detail %q, rest %s; want %q, %s", res.Detail, res.Rest, tc.wantDetail, tc.wantRest)
			}
			var undo struct{ Steps []change }
			if res.Undo.Arguments != nil {
				if err := json.Unmarshal(res.Undo.Arguments, &undo); err != nil {
					t.Fatal(err)
				}
			}
			var names []string
			for _, s := range undo.Steps {
				names = append(names, s.Action)
			}
			if got := strings.Join(names, " "); got != tc.wantUndo {
				t.Errorf("undo %q, want %q", got, tc.wantUndo)
			}
		})
	}
}

// TestConflict: two calls may not touch one object, nor one what owns the other's.
func TestConflict(t *testing.T) {
	object := func(resource, name, uid, owner string, labels map[string]any) part {
		meta := map[string]any{"namespace": "default", "name": name, "uid": uid, "labels": labels}
		if owner != "" {
			kind, rest, _ := strings.Cut(owner, "/")
			ownerName, ownerUID, _ := strings.Cut(rest, "/")
			meta["ownerReferences"] = []any{map[string]any{"apiVersion": "apps/v1", "kind": kind, "name": ownerName, "uid": ownerUID, "controller": true}}
		}
		target := plan.Target{Resource: resource, Namespace: "default", Name: name, UID: uid}
		o := plan.Object{"metadata": meta}
		return part{Outcome: action.Outcome{
			Target: target, Object: o, Sentence: "x", Proposals: []action.Proposal{{Step: plan.Step{Verb: plan.Patch, Target: target}, Object: o}},
		}}
	}
	web := object("deployments", "web", "u-web", "", nil)
	set := object("replicasets", "web-5f7", "u-rs", "Deployment/web/u-web", nil)
	pod := object("pods", "web-5f7-x", "u-pod", "ReplicaSet/web-5f7/u-rs", map[string]any{"pod-template-hash": "5f7"})
	other := object("pods", "api-5f7-x", "u-api", "ReplicaSet/api-5f7/u-rs-api", map[string]any{"pod-template-hash": "5f7"})
	sibling := object("pods", "web-5f7-y", "u-sibling", "ReplicaSet/web-5f7/u-rs", map[string]any{"pod-template-hash": "5f7"})
	drain := object("nodes", "n1", "u-node", "", nil)
	drain.Proposals = append(drain.Proposals, pod.Proposals...)
	so := web
	so.Proposals, so.Sentence = nil, ""
	for name, tc := range map[string]struct {
		parts []part
		want  string // "" passes
	}{
		"apart":                     {[]part{web, other, drain.of("n2")}, ""},
		"twice":                     {[]part{web, other, web}, "steps[0] and steps[2] both touch deployment default/web"},
		"one was so already":        {[]part{so, web}, "steps[0] and steps[1] both touch deployment default/web"},
		"a pod of it":               {[]part{web, pod}, "both touch deployment default/web"},
		"it, after its pod":         {[]part{pod, web}, "both touch deployment default/web"},
		"a ReplicaSet of it":        {[]part{set, web}, "both touch deployment default/web"},
		"a ReplicaSet and its pod":  {[]part{set, pod}, "both touch replicaset default/web-5f7"},
		"a drain and a pod":         {[]part{drain, pod}, "both touch pod default/web-5f7-x"},
		"a drain and what is on it": {[]part{web, drain}, "both touch deployment default/web"},
		"two pods of one owner":     {[]part{pod, sibling}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&passed{parts: tc.parts}).conflict(0)
			if (err == nil) != (tc.want == "") || err != nil && (!strings.Contains(err.Error(), tc.want) || !refusal.Is(err, refusal.PreconditionFailed)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// of is the same call on a node of another name, with no pods on it.
func (o part) of(node string) part {
	o.Target.Name, o.Target.UID = node, "u-"+node
	o.Proposals = []action.Proposal{{Step: plan.Step{Verb: plan.Patch, Target: o.Target}, Object: o.Object}}
	return o
}

// TestLimitsOfSeveral: of the namespaces of a plan the strictest holds.
func TestLimitsOfSeveral(t *testing.T) {
	e := &Engine{cfg: Config{Policy: gate.Policy{
		Limits:     gate.Limits{WritesPerMinute: 4, MaxReplicas: 10},
		Namespaces: map[string]gate.Limits{"prod": {WritesPerMinute: 2}, "small": {MaxReplicas: 3}},
	}}, wall: func() time.Time { return time.Unix(1000, 0) }}
	step := func(namespace string, replicas int32) plan.Step {
		return plan.Step{Verb: plan.Scale, Target: plan.Target{Namespace: namespace}, Replicas: &replicas, Changes: []plan.Change{{Field: "spec.replicas", Old: "1"}}}
	}
	several := func(namespaces ...string) *plan.Plan {
		p := &plan.Plan{}
		for _, ns := range namespaces {
			p.Steps, p.Parts = append(p.Steps, step(ns, 2)), append(p.Parts, plan.Part{Steps: 1})
		}
		return p
	}
	for name, tc := range map[string]struct {
		p    *plan.Plan
		want refusal.Code
	}{
		"four of four":               {several("dev", "dev", "dev", "dev"), ""},
		"five of four":               {several("dev", "dev", "dev", "dev", "dev"), refusal.CapExceeded},
		"three, one of them in prod": {several("dev", "dev", "prod"), refusal.CapExceeded},
		"two of prod":                {several("prod", "dev"), ""},
		"one call of many Steps":     {&plan.Plan{Steps: several("dev", "dev", "dev", "dev", "dev").Steps}, ""},
	} {
		r := e.writeRate(&journal.Ledger{}, tc.p)
		if (r == nil) != (tc.want == "") || r != nil && r.Code != tc.want {
			t.Errorf("%s: %v, want %q", name, r, tc.want)
		}
	}
	if r := e.caps([]plan.Step{step("dev", 9), step("small", 3)}); r != nil {
		t.Errorf("each within its own cap: %v", r)
	}
	if r := e.caps([]plan.Step{step("dev", 11), step("small", 4)}); r == nil || len(r.Also) != 1 {
		t.Errorf("each over its own cap: %v", r)
	}
}

// TestGravity: every verdict has its place in the order.
func TestGravity(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "../plan/plan.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(f, func(node ast.Node) bool {
		v, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); !ok || id.Name != "Verdict" {
			return true
		}
		n++
		word, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if err != nil || !slices.Contains(gravity, plan.Verdict(word)) {
			t.Errorf("%s has no place (%v)", word, err)
		}
		return true
	})
	if n != len(gravity) || gravity[n-1] != plan.Verified {
		t.Errorf("%d verdicts, %d places", n, len(gravity))
	}
}
