package engine

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
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
		wantWaits  bool
		wantCode   refusal.Code // "" passes
	}{
		"allowed":            {[]string{"", "dev"}, false, ""},
		"one wants a person": {[]string{"", "dev", "prod"}, true, ""},
		"one refuses":        {[]string{"vault", "prod", "dev"}, false, refusal.BlastLimit},
		"the last refuses":   {[]string{"dev", "prod", "vault"}, false, refusal.BlastLimit},
	} {
		t.Run(name, func(t *testing.T) {
			var steps []plan.Step
			for _, ns := range tc.namespaces {
				steps = append(steps, plan.Step{Target: plan.Target{Namespace: ns}})
			}
			waits, r := e.needsPerson(steps, []string{"a pod that does not come back"})
			if (r == nil) != (tc.wantCode == "") || r != nil && r.Code != tc.wantCode || waits != tc.wantWaits {
				t.Errorf("refusal %+v, want %q; it waits: %t, want %t", r, tc.wantCode, waits, tc.wantWaits)
			}
			if waits, r := e.needsPerson(steps, nil); r != nil || waits {
				t.Errorf("without a reason: %+v, it waits: %t", r, waits)
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
	e := New(Config{}, nil, j, ours, time.Now, rand.Reader)
	p := &plan.Plan{ID: "mf3q7x2ad5", Action: "scale", Args: json.RawMessage("{}"), Principal: "os:alice", KeyID: theirs.Current(), Sentence: "scale deployment default/web from 2 to 3 on kind-lab"}
	key, err := theirs.Derive(p.KeyID, "confirm")
	if err != nil {
		t.Fatal(err)
	}
	phrase := p.Sign(key)
	if err := e.append(&journal.Line{Event: journal.EventPlan, Plan: p.ID, Record: p}); err != nil {
		t.Fatal(err)
	}
	alice, mallory := Call{Principal: Principal{Kind: "os", Name: "alice"}}, Call{Principal: Principal{Kind: "os", Name: "mallory"}}
	if _, err := e.confirmed(alice, phrase); !refusal.Is(err, refusal.KeyUnknown) {
		t.Errorf("with another key ring: %v", err)
	}
	e.keys = theirs
	if _, err := e.confirmed(mallory, phrase); !refusal.Is(err, refusal.UnknownPhrase) {
		t.Errorf("of another principal: %v", err)
	}
	if got, err := e.confirmed(alice, phrase); err != nil || got.ID != p.ID {
		t.Errorf("with its own key ring: %v", err)
	}
}

// engineOnDisk is an Engine with a journal, and with a cluster that does not answer.
type engineOnDisk struct {
	*Engine
	audit string
}

func onDisk(t *testing.T, now func() time.Time) engineOnDisk {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	keys, err := journal.LoadKeys(filepath.Join(state, "keys.json"), now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(journal.Options{Dir: state, Keys: keys, Now: now, Inst: "aaaa"})
	if err != nil {
		t.Fatal(err)
	}
	k, err := kube.New(&rest.Config{Host: "localhost:1"}, "test", now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Inst: "aaaa", VerifyTimeout: time.Minute}
	return engineOnDisk{New(cfg, k, j, keys, now, rand.Reader), filepath.Join(state, "audit.jsonl")}
}

// TestSettledMeanwhile: where another process took this one for dead and wrote a result,
// that one holds: nothing more is sent, what was sent is still recorded, and the journal
// verifies.
func TestSettledMeanwhile(t *testing.T) {
	e := onDisk(t, time.Now)
	web := plan.Step{Verb: plan.Evict, Target: plan.Target{Resource: "pods", Namespace: "default", Name: "web", UID: "u"}}
	p := &plan.Plan{ID: "mf3q7x2ad5", Action: "drain", Args: json.RawMessage("{}"), Principal: "os:alice", Steps: []plan.Step{web}, Expires: time.Now().Add(time.Minute)}
	if err := e.append(&journal.Line{Event: journal.EventPlan, Plan: p.ID, Record: p}); err != nil {
		t.Fatal(err)
	}
	x := &execution{Engine: e.Engine, call: e.begin(Call{Tool: "drain"}), p: p, claim: "bbbbbbbbbb", results: map[int]*plan.StepResult{}, flight: &flight{}}
	x.cfg.Policy.WritesPerMinute = 1
	w := &work{n: 1, step: web, attempt: 1}
	if err := x.intend(w, "kube-write-mcp-mf3q7x2ad5-s1-x1"); err != nil {
		t.Fatal(err)
	}
	x.outcome(w, plan.StepResult{Outcome: stepApplied, AuditID: "kube-write-mcp-mf3q7x2ad5-s1-x1"})
	settled := resultLine(e.line(x.call, journal.EventReconciled), p, &plan.Result{Outcome: plan.Failed})
	settled.Claim = x.claim
	if err := e.append(settled); err != nil {
		t.Fatal(err)
	}

	w.attempt = 2
	if err := x.intend(w, "kube-write-mcp-mf3q7x2ad5-s1-x2"); !errors.Is(err, errDone) {
		t.Errorf("one more attempt: %v, want none", err)
	}
	if err := x.finish(resultLine(e.line(x.call, journal.EventExecute), p, &plan.Result{Outcome: plan.Executed})); err != nil {
		t.Fatal(err)
	}
	if got, err := e.recorded(p); err != nil || got.Outcome != plan.Failed {
		t.Errorf("the result is %+v (%v), want the first one", got, err)
	}
	report, err := journal.Verify(e.audit, e.keys, journal.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if report.Events[journal.EventStep] != 1 {
		t.Errorf("events %v: the outcome of what was sent is lost", report.Events)
	}
}

// TestWindows: a clock that was ahead for a moment does not empty the windows of the rates.
func TestWindows(t *testing.T) {
	var ahead time.Duration
	e := onDisk(t, func() time.Time { return time.Now().Add(ahead) })
	e.cfg.Policy.PlansPerMinute = 1
	if err := e.append(&journal.Line{Event: journal.EventPlan, Plan: "mf3q7x2ad5", Cluster: e.k.Read.Server(), Record: &plan.Plan{}}); err != nil {
		t.Fatal(err)
	}
	ahead = time.Hour
	e.now()
	ahead = 0
	if err := e.j.View(e.withinPlanRate); !refusal.Is(err, refusal.RateLimited) {
		t.Errorf("%v, want %s", err, refusal.RateLimited)
	}
}

// TestNoVerdict: a result whose verdict nobody brings any more is not said to be verified
// for ever.
func TestNoVerdict(t *testing.T) {
	e := onDisk(t, time.Now)
	for name, tc := range map[string]struct {
		id   string
		ago  time.Duration
		want plan.Verdict
	}{
		"a moment ago": {"aaaaaaaaaa", time.Second, plan.Verifying},
		"long ago":     {"bbbbbbbbbb", 2 * time.Minute, plan.TimedOut},
	} {
		t.Run(name, func(t *testing.T) {
			p := &plan.Plan{ID: tc.id, Steps: []plan.Step{{Verb: plan.Evict}}}
			res := &plan.Result{Outcome: plan.Executed, Time: time.Now().Add(-tc.ago)}
			if err := e.append(&journal.Line{Event: journal.EventPlan, Plan: p.ID, Record: p}, &journal.Line{Event: journal.EventExecute, Plan: p.ID, Result: res}); err != nil {
				t.Fatal(err)
			}
			if x, err := e.recorded(p); err != nil || x.Current == nil || x.Current.Verdict != tc.want {
				t.Errorf("%+v (%v), want %s", x, err, tc.want)
			}
		})
	}
}
