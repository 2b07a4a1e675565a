package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestOutcomeWithoutARecord: when the journal is lost after the request went out, the
// answer must not say that nothing was sent.
func TestOutcomeWithoutARecord(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	s := start(t, append(wide, "--verify-wait", "2s")...)
	args := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	audit := filepath.Join(s.State, "audit.jsonl")
	var lost atomic.Bool
	s.Proxy.After(func(r *harness.Request, _ *http.Response) {
		if r.Method == http.MethodPut && r.Mutates() && !lost.Swap(true) {
			if err := os.Rename(audit, audit+".away"); err != nil {
				t.Error(err)
			}
			if err := os.Mkdir(audit, 0o700); err != nil {
				t.Error(err)
			}
		}
	})
	got := s.Must("scale", args)
	if harness.Code(got) != "audit_unavailable" || !strings.Contains(got.Text, "may have been applied") || strings.Contains(got.Text, "nothing was sent") {
		t.Errorf("the answer: %s", got.Text)
	}
	if err := os.Remove(audit); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(audit+".away", audit); err != nil {
		t.Fatal(err)
	}
	s.Proxy.Reset()
	if again := harness.Into[execution](t, s.Must("scale", args)); again.Outcome == plan.Executed {
		t.Errorf("there is no result on record, and yet: %+v", again)
	}
	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Errorf("it was sent again: %+v", w)
	}
}

// TestGuessesAreLimited: guesses at a phrase count as plans, and over the rate nothing is
// said about them; a right phrase still passes.
func TestGuessesAreLimited(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	s := start(t, "--plans-per-minute", "3", "--verify-timeout", "1s")
	args := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	guess := args.With("confirm", "scale deployment "+ns+"/web from 2 to 3 on kind-lab [aaaaaaaaaa-aaaaaaaaaaaa]")
	for i, want := range []string{"unknown_phrase", "unknown_phrase", "rate_limited", "rate_limited"} {
		if got := s.Must("scale", guess); harness.Code(got) != want {
			t.Errorf("guess %d: %s, want %s", i+1, got.Text, want)
		}
	}
	if got := harness.Into[execution](t, s.Must("scale", args)); got.Outcome != plan.Executed {
		t.Errorf("the right phrase: %+v", got)
	}
}
