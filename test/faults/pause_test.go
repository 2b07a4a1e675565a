package faults

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// TestFault_27_PausedAfterTheClaim stops the process (SIGSTOP) between its claim and its
// last look, until its request may be sent no more, and lets it go on: nothing is sent,
// and that is the result.
func TestFault_27_PausedAfterTheClaim(t *testing.T) {
	t.Parallel()
	ns, scale := harness.WebScale(t, cp)
	s := harness.Spawn(t, cp, harness.Program(t, cp), harness.Options{Args: quick})
	args := s.Plan("scale", scale)
	arrived, release := s.Proxy.Hold(func(r harness.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.Path, "/deployments/web") && journalHas(s.State, `"execute_intent"`)
	})
	_, reply, err := s.Send("tools/call", map[string]any{"name": "scale", "arguments": args})
	if err != nil {
		t.Fatal(err)
	}
	<-arrived
	if err := s.Process().Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(s.Process().Pid, nil, syscall.WUNTRACED, nil); err != nil { // every thread of it
		t.Fatal(err)
	}
	var claim *journal.Line
	for _, l := range harness.Lines(t, s.State) {
		if l.Event == "execute_intent" {
			claim = l
		}
	}
	release() // the answer waits in the socket
	lab.Eventually(t, "the claim to be too old", func() (bool, error) {
		return time.Now().After(claim.SendNotAfter.Add(500 * time.Millisecond)), nil
	})
	if err := s.Process().Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	got, err := stdio.Parse(<-reply)
	if err != nil {
		t.Fatal(err)
	}
	x := wantOutcome(t, got, plan.Failed)
	if !strings.Contains(got.Text, "claim too old") {
		t.Errorf("it does not say why: %s", got.Text)
	}
	wantNoWrites(t, s)
	wantReplay(t, s, "scale", args, x)
	if n := harness.Replicas(t, cp, ns, "web"); n != 2 {
		t.Errorf("%d replicas", n)
	}
}
