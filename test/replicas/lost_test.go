package replicas

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// updates tells an update of a Write that says this.
func updates(r harness.Request, says ...string) bool {
	if r.Method != http.MethodPut || !strings.Contains(r.Path, "/writes/") {
		return false
	}
	for _, s := range says {
		if !strings.Contains(r.Body, s) {
			return false
		}
	}
	return true
}

const claims = `"state":"Claimed","serial":2,`

// cut ends a request without an answer.
func cut() { panic(http.ErrAbortHandler) }

// TestClaimLost loses the answer to a claim that was made, and a claim on its way: the
// replica finds out that it has it, and executes, once.
func TestClaimLost(t *testing.T) {
	for name, lose := range map[string]func(*harness.Proxy, func(harness.Request) bool){
		"the answer": func(p *harness.Proxy, once func(harness.Request) bool) {
			p.After(func(r *harness.Request, _ *http.Response) {
				if once(*r) {
					cut()
				}
			})
		},
		"the request": func(p *harness.Proxy, once func(harness.Request) bool) {
			p.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
				if once(*r) {
					cut()
				}
				return true
			})
		},
		"the request, and it arrives late": func(p *harness.Proxy, once func(harness.Request) bool) {
			p.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
				if once(*r) {
					if _, err := p.Send(r); err != nil {
						panic(err)
					}
					cut()
				}
				return true
			})
		},
		"a server error in its place": func(p *harness.Proxy, once func(harness.Request) bool) {
			p.Before(func(r *harness.Request, w http.ResponseWriter) bool {
				if once(*r) {
					w.WriteHeader(http.StatusServiceUnavailable)
					return false
				}
				return true
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			_, scale := harness.WebScale(t, cp)
			s, other := l.start(), l.start()
			args := s.Plan("scale", scale)
			var mu sync.Mutex
			lost := 0
			lose(s.Proxy, func(r harness.Request) bool {
				mu.Lock()
				defer mu.Unlock()
				if lost > 0 || !updates(r, claims) {
					return false
				}
				lost++
				return true
			})
			first := harness.Into[harness.Execution](t, s.Must("scale", args))
			if lost != 1 || first.Outcome != plan.Executed || first.Replayed {
				t.Errorf("lost %d, outcome %s, replayed %t", lost, first.Outcome, first.Replayed)
			}
			if n := scales(s, other); n != 1 {
				t.Errorf("%d scales were sent, want 1", n)
			}
			wantSame(t, first, settled(t, other, "scale", args))
		})
	}
}

// TestClaimOfAnother: where another replica has the claim when ours is lost, it is not ours.
func TestClaimOfAnother(t *testing.T) {
	l := newLedger(t)
	_, scale := harness.WebScale(t, cp)
	s, other := l.start(), l.start()
	args := s.Plan("scale", scale)
	var once sync.Once
	var theirs harness.Execution
	s.Proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
		if updates(*r, claims) {
			once.Do(func() {
				theirs = harness.Into[harness.Execution](t, other.Must("scale", args))
				cut()
			})
		}
		return true
	})
	ours := harness.Into[harness.Execution](t, s.Must("scale", args))
	if theirs.Outcome != plan.Executed || theirs.Replayed {
		t.Errorf("the other: %s, replayed %t", theirs.Outcome, theirs.Replayed)
	}
	wantSame(t, theirs, ours)
	if n := scales(s); n != 0 {
		t.Errorf("%d scales were sent without a claim", n)
	}
	if n := scales(other); n != 1 {
		t.Errorf("the other sent %d scales, want 1", n)
	}
}

// TestLedgerUnreachable: without the ledger nothing is planned and nothing is sent, and what
// was planned is good again when it is back.
func TestLedgerUnreachable(t *testing.T) {
	l := newLedger(t)
	_, scale := harness.WebScale(t, cp)
	s := l.start()
	args := s.Plan("scale", scale)
	s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
		if strings.Contains(r.Path, "/apis/kubewrite.dev/") {
			w.WriteHeader(http.StatusInternalServerError)
			return false
		}
		return true
	})
	for tool, args := range map[string]harness.Args{"plan_scale": scale, "scale": args} {
		if got := s.Must(tool, args); harness.Code(got) == "" {
			t.Errorf("%s: %s", tool, got.Text)
		}
	}
	if n := scales(s); n != 0 {
		t.Errorf("%d scales were sent", n)
	}
	s.Proxy.Before(nil)
	if x := harness.Into[harness.Execution](t, s.Must("scale", args)); x.Outcome != plan.Executed {
		t.Errorf("outcome %q: %s", x.Outcome, x.Detail)
	}
	if w := l.one(); w.Status.State != cluster.Executed {
		t.Errorf("state %s", w.Status.State)
	}
}
