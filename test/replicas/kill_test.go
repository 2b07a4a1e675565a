package replicas

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// hold stops the first request that match picks, or its answer, and says so, until release.
// Where cutOff is set, the connection is cut then.
func hold(t *testing.T, p *harness.Proxy, answer, cutOff bool, match func(harness.Request) bool) (reached <-chan struct{}, release func()) {
	t.Helper()
	at, gate := make(chan struct{}), make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	var mu sync.Mutex
	held := false
	stop := func(r harness.Request) {
		mu.Lock()
		mine := !held && match(r)
		held = held || mine
		mu.Unlock()
		if !mine {
			return
		}
		close(at)
		<-gate
		if cutOff {
			cut()
		}
	}
	if answer {
		p.After(func(r *harness.Request, _ *http.Response) { stop(*r) })
	} else {
		p.Before(func(r *harness.Request, _ http.ResponseWriter) bool { stop(*r); return true })
	}
	return at, release
}

func await(t *testing.T, what string, reached <-chan struct{}) {
	t.Helper()
	select {
	case <-reached:
	case <-time.After(time.Minute):
		t.Fatalf("%s was never reached", what)
	}
}

// looks tells the read of the target that comes after the claim, since before it there is
// none with a write of this replica in the ledger.
func looks(s *harness.Server) func(harness.Request) bool {
	return func(r harness.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.Path, "/deployments/web") &&
			len(s.Proxy.Requests(func(r harness.Request) bool { return updates(r, claims) && r.Status == 200 })) > 0
	}
}

// TestKilled kills a replica (-9) at each step of an execution, in the middle of what it has
// with the ledger and with the target. Another one is then asked with the same phrase: there
// is at most one effect, and the first result is the truth, and stays.
func TestKilled(t *testing.T) {
	t.Parallel()
	result := func(r harness.Request) bool { return updates(r, `"state":"Executed"`) }
	for _, tc := range []struct {
		name   string
		answer bool // it is the answer that is held
		at     func(*harness.Server) func(harness.Request) bool
		free   bool // the plan is as good as before, and is executed by the other
		want   plan.Outcome
	}{
		{"claim sent, never arrived", false, func(*harness.Server) func(harness.Request) bool {
			return func(r harness.Request) bool { return updates(r, claims) }
		}, true, plan.Executed},
		{"claimed, answer held", true, func(*harness.Server) func(harness.Request) bool {
			return func(r harness.Request) bool { return updates(r, claims) }
		}, false, plan.Failed},
		{"claimed, last look held", false, looks, false, plan.Failed},
		{"sent, never arrived", false, func(*harness.Server) func(harness.Request) bool { return isScale }, false, plan.Failed},
		{"committed, answer held", true, func(*harness.Server) func(harness.Request) bool { return isScale }, false, plan.Executed},
		{"the next intent never arrived", false, func(*harness.Server) func(harness.Request) bool {
			return func(r harness.Request) bool { return updates(r, `"state":"Claimed","serial":3,`) }
		}, false, plan.Executed},
		{"in its file, and the ledger never heard", false, func(*harness.Server) func(harness.Request) bool { return result }, false, plan.Executed},
		{"in the ledger, answer held", true, func(*harness.Server) func(harness.Request) bool { return result }, false, plan.Executed},
	} {
		for _, planner := range []string{"planned there", "planned by the other"} {
			t.Run(tc.name+", "+planner, func(t *testing.T) {
				t.Parallel()
				l := newLedger(t)
				ns, scale := harness.WebScale(t, cp)
				doomed, next := l.spawn(), l.spawn()
				by := map[string]*harness.Server{"planned there": doomed, "planned by the other": next}[planner]
				args := by.Plan("scale", scale)
				reached, release := hold(t, doomed.Proxy, tc.answer, true, tc.at(doomed))
				if _, _, err := doomed.Send("tools/call", map[string]any{"name": "scale", "arguments": args}); err != nil {
					t.Fatal(err)
				}
				await(t, tc.name, reached)
				doomed.Kill()
				release()
				first := settled(t, next, "scale", args)
				if first.Outcome != tc.want || first.Replayed == tc.free {
					t.Errorf("outcome %s, replayed %t, want %s: %s", first.Outcome, first.Replayed, tc.want, first.Result)
				}
				effects := map[plan.Outcome]int32{plan.Executed: 3, plan.Failed: 2}
				if n := harness.Replicas(t, cp, ns, "web"); n != effects[tc.want] {
					t.Errorf("%d replicas, and the result is %s", n, first.Outcome)
				}
				sent := len(next.Proxy.Requests(isScale))
				if want := map[bool]int{true: 1, false: 0}[tc.free]; sent != want {
					t.Errorf("the other sent %d scales, want %d", sent, want)
				}
				wantSame(t, first, settled(t, next, "scale", args))
				if w := l.one(); w.Status.Result != string(first.Result) {
					t.Errorf("the ledger has %s", w.Status.Result)
				}
			})
		}
	}
}

// TestRestarted kills a replica that had its result in its file and not in the ledger. Started
// again on its file, it gives that very result to all.
func TestRestarted(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	_, scale := harness.WebScale(t, cp)
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	o := l.options()
	s := harness.Spawn(t, cp, bin, o)
	args := s.Plan("scale", scale)
	reached, release := hold(t, s.Proxy, false, true, func(r harness.Request) bool { return updates(r, `"state":"Executed"`) })
	if _, _, err := s.Send("tools/call", map[string]any{"name": "scale", "arguments": args}); err != nil {
		t.Fatal(err)
	}
	await(t, "the result", reached)
	s.Kill()
	release()
	first := settled(t, harness.Spawn(t, cp, bin, o), "scale", args)
	var own []string
	for _, line := range harness.Lines(t, o.State) {
		if line.Result != nil {
			raw, err := journal.Encode(line.Result)
			if err != nil {
				t.Fatal(err)
			}
			own = append(own, string(raw))
		}
	}
	if !slices.Equal(own, []string{string(first.Result)}) {
		t.Errorf("its file has %q, it answers %s", own, first.Result)
	}
}

// TestSettledUnasked kills the replica that leads, after its claim. Another one leads then,
// and settles what it left behind without being asked.
func TestSettledUnasked(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	_, scale := harness.WebScale(t, cp)
	doomed := l.spawn()
	args := doomed.Plan("scale", scale)
	lab.Eventually(t, "the first replica to lead", func() (bool, error) {
		return len(doomed.Proxy.Requests(func(r harness.Request) bool {
			return r.Method == http.MethodGet && strings.Contains(r.Query, "status.state%3DClaimed")
		})) > 0, nil
	})
	next := l.spawn()
	reached, release := hold(t, doomed.Proxy, false, true, looks(doomed))
	if _, _, err := doomed.Send("tools/call", map[string]any{"name": "scale", "arguments": args}); err != nil {
		t.Fatal(err)
	}
	await(t, "the last look", reached)
	doomed.Kill()
	release()
	lab.Eventually(t, "the plan to be settled", func() (bool, error) { return l.one().Status.State == cluster.Failed, nil })
	if x := settled(t, next, "scale", args); !x.Replayed || x.Outcome != plan.Failed {
		t.Errorf("outcome %s, replayed %t", x.Outcome, x.Replayed)
	}
}

// TestTakenForDead takes away the lease of a replica that is alive and at work, so that
// another one begins to settle its plan. What that one finds counts for nothing, since the
// first has gone on: its result has all that it did.
func TestTakenForDead(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	_, scale := harness.WebScale(t, cp)
	s, other := l.start(), l.start("--verify-wait", "1s")
	args := s.Plan("scale", scale)
	scaled, goOn := hold(t, s.Proxy, true, false, isScale)
	noted, send := hold(t, s.Proxy, false, false, func(r harness.Request) bool { return r.Mutates() && r.Method == http.MethodPatch })
	_, reply, err := s.Send("tools/call", map[string]any{"name": "scale", "arguments": args})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the scale", scaled)
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		leases := cp.Client.CoordinationV1().Leases(l.namespace)
		for {
			_ = leases.Delete(context.Background(), "kube-write-mcp-"+l.one().Status.Claim.Instance, metav1.DeleteOptions{})
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	defer wg.Wait()
	defer close(ended)
	looked, see := hold(t, other.Proxy, true, false, func(r harness.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.Path, "/deployments/web")
	})
	lab.Eventually(t, "the other to look what became of it", func() (bool, error) {
		if x := harness.Into[harness.Execution](t, other.Must("scale", args)); x.Result != nil {
			t.Fatalf("it has a result: %s", x.Result)
		}
		select {
		case <-looked:
			return true, nil
		default:
			return false, nil
		}
	})
	goOn()
	await(t, "the note", noted)
	see()
	lab.Eventually(t, "the other to decide", func() (bool, error) {
		reads, decides := 0, false // what it found, what came of it, and then the ledger
		for _, r := range other.Proxy.Requests(func(r harness.Request) bool { return r.Method == http.MethodGet && r.Status == 200 }) {
			switch {
			case strings.HasSuffix(r.Path, "/deployments/web"):
				reads++
			case reads >= 2 && strings.Contains(r.Path, "/writes/"):
				decides = true
			}
		}
		return decides, nil
	})
	time.Sleep(time.Second) // for what it would write, if it did
	if w := l.one(); w.Status.State != cluster.Claimed {
		t.Errorf("state %s while its replica is at work", w.Status.State)
	}
	send()
	<-reply
	first := settled(t, s, "scale", args)
	res := harness.Into[plan.Result](t, stdio.Tool{Structured: first.Result})
	if first.Outcome != plan.Executed || len(res.Steps) != 2 {
		t.Errorf("outcome %s of steps %+v, want both", first.Outcome, res.Steps)
	}
	wantSame(t, first, settled(t, other, "scale", args))
}
