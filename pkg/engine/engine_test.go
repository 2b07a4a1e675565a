package engine

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
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

// TestGuarded: a panic beside others is an error of its own.
func TestGuarded(t *testing.T) {
	wait := async(slog.New(slog.DiscardHandler), func() (int, error) { panic("on purpose") })
	if v, err := wait(); v != 0 || err == nil || err.Error() != "internal fault" {
		t.Errorf("%d, %v", v, err)
	}
}

// TestKeyUnknown: a phrase whose key this server does not have is refused by name, and
// so is, without a word about it, the phrase of another principal.
func TestKeyUnknown(t *testing.T) {
	ring := func(dir string) *journal.Keyring {
		keys, err := journal.LoadKeys(filepath.Join(dir, "keys.json"), time.Now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	state := filepath.Join(t.TempDir(), "state")
	theirs, ours := ring(state), ring(filepath.Join(t.TempDir(), "state"))
	j, err := journal.Open(journal.Options{Dir: state, Keys: theirs, Inst: "aaaa"})
	if err != nil {
		t.Fatal(err)
	}
	e := New(Config{Principal: journal.Principal{Kind: "os", Name: "alice"}}, nil, j, ours, time.Now, rand.Reader)
	p := &plan.Plan{ID: "mf3q7x2ad5", Action: "scale", Args: json.RawMessage("{}"), Principal: "os:alice", KeyID: theirs.Current(), Sentence: "scale deployment default/web from 2 to 3 on kind-lab"}
	key, err := theirs.Derive(p.KeyID, "confirm")
	if err != nil {
		t.Fatal(err)
	}
	phrase := p.Sign(key)
	if err := e.append(&journal.Line{Event: journal.EventPlan, Plan: p.ID, Record: p}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.confirmed(phrase); !refusal.Is(err, refusal.KeyUnknown) {
		t.Errorf("with another key ring: %v", err)
	}
	e.keys = theirs
	e.cfg.Principal.Name = "mallory"
	if _, err := e.confirmed(phrase); !refusal.Is(err, refusal.UnknownPhrase) {
		t.Errorf("of another principal: %v", err)
	}
	e.cfg.Principal.Name = "alice"
	if got, err := e.confirmed(phrase); err != nil || got.ID != p.ID {
		t.Errorf("with its own key ring: %v", err)
	}
}
