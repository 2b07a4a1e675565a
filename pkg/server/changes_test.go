package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// changesPlan is a plan of n calls, with words of some length in each of their parts.
func changesPlan(n int, words string) *plan.Plan {
	p := answerPlan()
	p.Action, p.Steps, p.Kubectl, p.Before = plan.ChangesTool, nil, nil, plan.State{}
	type call struct {
		Action    string         `json:"action"`
		Arguments map[string]any `json:"arguments"`
	}
	var calls []call
	var sentences []string
	for i := range n {
		name := fmt.Sprintf("web-%d", i)
		target := plan.Target{Resource: "deployments", Namespace: "d", Name: name, UID: name}
		part := plan.Part{
			Action: "scale", Sentence: "scale deployment d/" + name, Steps: 2, Target: target, Version: "v0123456789",
			Before: plan.State{"replicas": 2, "ready": 2, "strategy": "RollingUpdate", "rv": "12345", "uid": "11111111-2222-4333-8444-555555555555"},
			Blast:  plan.Blast{Lines: []string{words + "radius " + name, "x" + words + "x"}},
		}
		p.Parts = append(p.Parts, part)
		p.Before[target.String()] = part.Before
		p.Steps = append(p.Steps,
			plan.Step{Verb: plan.Scale, Target: target, Replicas: ptr.To[int32](3), Changes: []plan.Change{{Field: "spec.replicas", Old: "2", New: "3"}}},
			plan.Step{Verb: plan.Patch, Target: target, Optional: true})
		p.Kubectl = append(p.Kubectl, "kubectl -n d scale deployment/"+name+" --current-replicas=2 --replicas=3")
		calls = append(calls, call{"scale", map[string]any{"namespace": "d", "deployment": name, "replicas": 3, "expected_version": "v0123456789"}})
		sentences = append(sentences, fmt.Sprint(i+1, " ", part.Sentence))
	}
	p.Args = plan.JSON(map[string]any{"steps": calls})
	p.Undo = plan.Undo{Tool: "plan_changes", Arguments: p.Args, Kubectl: strings.Join(p.Kubectl, " && "), Note: "x" + words + "x"}
	p.Sentence = "changes: " + strings.Join(sentences, "; ") + " on kind-lab"
	return p
}

// TestPlannedChanges: each call has a block of its own, and as much of it as there is room
// for; no call is ever left out.
func TestPlannedChanges(t *testing.T) {
	long := strings.Repeat("a line of the radius ", 7)
	for name, tc := range map[string]struct {
		p          *plan.Plan
		want, lack []string
	}{
		"three": {changesPlan(3, ""), []string{
			"\n  2 scale deployment d/web-1\n    radius: radius web-1\n", "    change: spec.replicas: 2 → 3\n    before: replicas 2, ready 2, strategy RollingUpdate; version v0123456789\n    request: PUT ",
			"  note: your reason will be written to the annotation kubernetes.io/change-cause of deployment d/web-0, deployment d/web-1, deployment d/web-2\n", "NEXT: changes {",
		}, nil},
		"twenty":              {changesPlan(20, ""), []string{"\n  20 scale deployment d/web-19\n    radius: radius web-19\n"}, []string{"    request: "}},
		"twenty of long ones": {changesPlan(20, long), []string{"\n  20 scale deployment d/web-19\n    radius: a line", "note: next: call changes with the planned steps"}, []string{"NEXT", "    before: "}},
	} {
		t.Run(name, func(t *testing.T) {
			a := planned(&engine.Planned{Plan: tc.p, Phrase: tc.p.Sentence + " [mf3q7x2ad5-x4k2p7f2qd6x]"}, true)
			checkAnswer(t, a, tc.p.Untrusted)
			valid(t, changesOutput, a)
			for _, want := range tc.want {
				if !strings.Contains(a.text(), want) {
					t.Errorf("no %q in\n%s", want, a.text())
				}
			}
			for _, lack := range tc.lack {
				if strings.Contains(a.text(), lack) {
					t.Errorf("%q in\n%s", lack, a.text())
				}
			}
			if n := len(a.(changesAnswer).Calls); n != len(tc.p.Parts) {
				t.Errorf("%d calls of %d", n, len(tc.p.Parts))
			}
		})
	}
	t.Run("without --allow-write", func(t *testing.T) {
		a := planned(&engine.Planned{Plan: changesPlan(20, long), Phrase: "x"}, false)
		if text := a.text(); strings.Contains(text, "NEXT") || strings.Contains(text, "next: ") || !strings.Contains(text, "this server cannot execute") {
			t.Error(text)
		}
	})
	t.Run("one has no undo", func(t *testing.T) {
		p := changesPlan(2, "")
		p.Undo = plan.Undo{Note: "no call takes back 2"}
		p.Parts[0].Undo = plan.Undo{Tool: "plan_scale", Arguments: json.RawMessage(`{"x":1}`)}
		if text := planned(&engine.Planned{Plan: p, Phrase: "x"}, true).text(); !strings.Contains(text, "    undo: plan_scale {\"x\":1}\n  2 ") {
			t.Error(text)
		}
	})
}

// TestExecutedChanges: what was done and what is left is told, however many they are.
func TestExecutedChanges(t *testing.T) {
	for _, n := range []int{2, 20} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			p := changesPlan(n, "")
			x := execution(t, func(r *plan.Result) {
				r.Sentence, r.Outcome, r.Before, r.After, r.Undo, r.Rest, r.Steps = p.Sentence, plan.Failed, p.Before, p.Before, p.Undo, p.Args, nil
				r.Detail = "1 of 2 calls are done; it stopped at 2"
				for _, s := range p.Steps {
					r.Steps = append(r.Steps, plan.StepResult{Step: s.Key(), Outcome: "applied"})
				}
			})
			x.Plan, x.Outcome = p, plan.Failed
			x.Current = &plan.Verification{Verdict: plan.TimedOut, Reason: strings.Repeat("a reason of a call; ", 10*n) + "x", State: p.Before}
			a := executed(x)
			checkAnswer(t, a, "")
			valid(t, executionOutput, a)
			got := a.(executionAnswer)
			if got.Rest == nil || !strings.Contains(a.text(), "\n  rest: plan_changes {\"steps\":[{\"action\":\"scale\"") {
				t.Errorf("the rest is %+v in\n%s", got.Rest, a.text())
			}
			if whole := strings.Contains(a.text(), "undo: plan_changes {"); whole != (n == 2) {
				t.Errorf("undo in\n%s", a.text())
			}
			if !strings.Contains(a.text(), "  before: deployment d/web-0 (replicas 2, ready 2, strategy RollingUpdate), deployment d/web-1 (") {
				t.Error(a.text())
			}
		})
	}
}
