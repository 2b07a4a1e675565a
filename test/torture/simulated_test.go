package torture

import (
	"bytes"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

var simulated = flag.Int("simulated", 400, "how many faults are injected into the simulation, at least")

// abreast is how many plans of the simulation are in flight.
const abreast = 100

// TestSimulated runs the engine against a fake API server in simulated time: late commits
// at every moment up to the API server's own bound, and as many faults as there is patience
// for. The processes, their deaths and their disks are TestTorture's.
func TestSimulated(t *testing.T) {
	t.Parallel()
	t.Logf("seed %d", *seed)
	dir, began := filepath.Join(t.TempDir(), "state"), time.Now()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(t, dir)
		for done := 0; s.injected() < *simulated && !t.Failed(); done += abreast {
			var wave sync.WaitGroup
			for i := range abreast {
				wave.Go(func() { s.round(t, done+i) })
			}
			wave.Wait()
		}
		fmt.Printf("simulated: %d faults, %d plans, %d effects, unknown %d: applied %d, not applied %d, indeterminate %d (all undone by another writer at once, where nothing could be watched)\n",
			s.injected(), s.plans, s.effects, s.unknown, s.executed, s.failed, s.indeterminate)
	})
	verified, counted, err := audited(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(verified.Unsettled)+len(counted.Faults) > 0 {
		t.Errorf("unsettled %q, faults %q", verified.Unsettled, counted.Faults)
	}
	fmt.Printf("simulated: %d journal lines, seed %d, %s\n", verified.Lines, *seed, time.Since(began).Round(time.Second))
}

type simulation struct {
	fake   *fakeServer
	engine *engine.Engine

	mu                                                       sync.Mutex
	plans, effects, unknown, executed, failed, indeterminate int
}

func newSimulation(t *testing.T, dir string) *simulation {
	s := &simulation{fake: newFakeServer()}
	t.Cleanup(func() { _ = s.fake.server.Close() })
	keys, err := journal.LoadKeys(filepath.Join(dir, "keys.json"), time.Now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	j, err := journal.Open(journal.Options{Dir: dir, Keys: keys, Now: time.Now, Inst: "aaaa"})
	if err != nil {
		t.Fatal(err)
	}
	release, err := j.Live()
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kube.New(&rest.Config{Host: "http://fake", Dial: s.fake.listener.dial}, "test", time.Now, log)
	if err != nil {
		t.Fatal(err)
	}
	s.engine = engine.New(engine.Config{
		Policy: gate.Policy{Limits: gate.Limits{
			MaxReplicas: 100, MaxBlastPercent: 100, WritesPerMinute: 1 << 20, PlansPerMinute: 1 << 20, TTL: 10 * time.Minute, Irreversible: gate.Allow,
		}},
		Label: "fake", Inst: "aaaa",
		VerifyWait: 20 * time.Second, VerifyTimeout: time.Second, Log: log,
	}, clients, j, keys, time.Now, rand.Reader)
	t.Cleanup(func() {
		s.engine.Stop()
		s.engine.Wait(ctx)
		clients.Cache.Close()
		release()
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *simulation) injected() int {
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	return s.fake.injected
}

// round is one plan and its execution, by two callers at once.
func (s *simulation) round(t *testing.T, i int) {
	rng := mathrand.New(mathrand.NewPCG(*seed, uint64(i)))
	name := fmt.Sprintf("web-%d", i)
	o := &fakeObject{
		rng: mathrand.New(mathrand.NewPCG(*seed, uint64(i)|1<<62)), kind: rng.IntN(fakeKinds),
		reads: rng.IntN(4) == 0, lost: rng.IntN(4) == 0, override: rng.IntN(10) == 0, snatched: rng.IntN(4) == 0, blind: rng.IntN(80) == 0,
	}
	s.fake.add(name, o)
	var scale *action.Action
	for _, a := range actions.All() {
		if a.Name == "scale" {
			scale = a
		}
	}
	args := fmt.Sprintf(`{"namespace":%q,"deployment":%q,"replicas":3`, fakeNamespace, name)
	var planned *engine.Planned
	for {
		var err error
		planned, err = s.engine.Plan(ctx, engine.Call{Action: scale, Tool: "plan_scale", Raw: []byte(args + "}")})
		if err == nil {
			break
		}
		if r := passes(err); r != nil {
			t.Errorf("%s: %v", name, r)
			return
		}
	}
	var beside sync.WaitGroup
	for range rng.IntN(3) {
		at := time.Duration(rng.IntN(50_000)) * time.Millisecond
		beside.Go(func() { time.Sleep(at); s.fake.touch(o) })
	}
	if o.override {
		at := time.Duration(100+rng.IntN(45_000)) * time.Millisecond
		beside.Go(func() { time.Sleep(at); s.fake.overrule(o) })
	}
	args += fmt.Sprintf(`,"confirm":%q,"reason":"torture"}`, planned.Phrase)
	call := engine.Call{Action: scale, Tool: "scale", Raw: []byte(args)}
	results := make([]*engine.Execution, 2)
	var callers sync.WaitGroup
	for n := range results {
		callers.Go(func() {
			for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
				x, err := s.engine.Execute(ctx, call)
				if err == nil && x.Result != nil {
					results[n] = x
					return
				}
				if err != nil && passes(err) != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	callers.Wait()
	beside.Wait()
	time.Sleep(time.Minute) // nothing is on its way any more
	if results[0] == nil || results[1] == nil {
		t.Errorf("%s: no result (fault %d)", name, o.kind)
		return
	}
	s.fake.mu.Lock()
	applied, sent := len(o.applied), o.sent
	s.fake.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans++
	s.effects += applied
	got, want := results[0].Outcome, plan.Failed
	if applied > 0 {
		want = plan.Executed
	}
	switch {
	case applied > 1:
		t.Errorf("I1: %s: %d effects of %d requests", name, applied, sent)
	case !bytes.Equal(results[0].Result, results[1].Result):
		t.Errorf("I5: %s: two results:\n%s\n%s", name, results[0].Result, results[1].Result)
	case got != want && !(got == plan.Indeterminate && o.blind && (o.override || o.snatched)):
		t.Errorf("I6: %s: %s, the truth is %s (fault %d, lost %t, override %t, snatched %t, blind %t): %s", name, got, want, o.kind, o.lost, o.override, o.snatched, o.blind, results[0].Result)
	}
	if !bytes.Contains(results[0].Result, []byte("was not known and was found out")) {
		return
	}
	s.unknown++
	switch got {
	case plan.Executed:
		s.executed++
	case plan.Indeterminate:
		s.indeterminate++
	default:
		s.failed++
	}
}

// passes gives back a refusal that no fault of a read explains.
func passes(err error) error {
	if r, ok := errors.AsType[*refusal.Refusal](err); ok {
		for _, code := range passing {
			if string(r.Code) == code {
				return nil
			}
		}
	}
	return err
}
