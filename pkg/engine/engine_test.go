package engine

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// TestNeedsPerson: a drain reaches into many namespaces, and the strictest one decides.
func TestNeedsPerson(t *testing.T) {
	e := &Engine{cfg: Config{Policy: gate.Policy{
		Limits:     gate.Limits{Irreversible: gate.Allow},
		Namespaces: map[string]gate.Limits{"prod": {Irreversible: gate.Human}, "vault": {Irreversible: gate.Refuse}},
	}}}
	for name, tc := range map[string]struct {
		namespaces []string
		wantCode   refusal.Code // "" passes
	}{
		"allowed":            {[]string{"", "dev"}, ""},
		"one wants a person": {[]string{"", "dev", "prod"}, refusal.NeedsPerson},
		"one refuses":        {[]string{"vault", "prod", "dev"}, refusal.BlastLimit},
		"the last refuses":   {[]string{"dev", "prod", "vault"}, refusal.BlastLimit},
	} {
		t.Run(name, func(t *testing.T) {
			var steps []plan.Step
			for _, ns := range tc.namespaces {
				steps = append(steps, plan.Step{Target: plan.Target{Namespace: ns}})
			}
			r := e.needsPerson(steps, []string{"a pod that does not come back"})
			if (r == nil) != (tc.wantCode == "") || r != nil && r.Code != tc.wantCode {
				t.Errorf("refusal %+v, want %q", r, tc.wantCode)
			}
			if r := e.needsPerson(steps, nil); r != nil {
				t.Errorf("without a reason: %+v", r)
			}
		})
	}
}

// TestRecover: a panic in one execution is that one's answer. After the claim nobody
// knows what became of it.
func TestRecover(t *testing.T) {
	for name, tc := range map[string]struct {
		results     map[int]*plan.StepResult
		wantUnknown bool
	}{
		"before the claim": {nil, false},
		"after it":         {map[int]*plan.StepResult{1: {}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			x := &execution{
				Engine: &Engine{cfg: Config{Log: slog.New(slog.DiscardHandler)}}, p: &plan.Plan{ID: "aaaaaaaaaa"}, flight: &flight{answer: &Execution{}}, results: tc.results,
			}
			func() {
				defer x.recover()
				panic("on purpose")
			}()
			if x.flight.err == nil || x.flight.answer != nil || errors.Is(x.flight.err, errUnknown) != tc.wantUnknown {
				t.Errorf("error %v, answer %v; want unknown %t and no answer", x.flight.err, x.flight.answer, tc.wantUnknown)
			}
		})
	}
}
