//go:build unix

package replicas

import (
	"syscall"
	"testing"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestPaused stops a replica between its claim and its write for longer than its claim is
// good for. It sends nothing when it goes on, whether another one has settled its plan by
// then or not.
func TestPaused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		ask    bool // the other is asked until it has settled it
		resume bool // before the other has
	}{
		{"resumed at once", false, true},
		{"resumed when another has settled it", true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLedger(t)
			ns, scale := harness.WebScale(t, cp)
			s, other := l.spawn(), l.spawn("--verify-wait", "1s")
			args := s.Plan("scale", scale)
			reached, release := hold(t, s.Proxy, true, true, looks(s))
			_, reply, err := s.Send("tools/call", map[string]any{"name": "scale", "arguments": args})
			if err != nil {
				t.Fatal(err)
			}
			await(t, "the last look", reached)
			if err := s.Process().Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if _, err := syscall.Wait4(s.Process().Pid, nil, syscall.WUNTRACED, nil); err != nil { // every thread of it
				t.Fatal(err)
			}
			go release() // the answer waits for it
			if x := harness.Into[harness.Execution](t, other.Must("scale", args)); x.Outcome != plan.InProgress {
				t.Errorf("the other: %s, want %s", x.Outcome, plan.InProgress)
			}
			var theirs harness.Execution
			if tc.ask {
				theirs = settled(t, other, "scale", args)
			} else {
				time.Sleep(6 * time.Second) // a claim is good for five
			}
			if err := s.Process().Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			select {
			case <-reply:
			case <-time.After(time.Minute):
				t.Fatal("no answer")
			}
			first := settled(t, s, "scale", args)
			if first.Outcome != plan.Failed {
				t.Errorf("outcome %s, want %s: %s", first.Outcome, plan.Failed, first.Result)
			}
			if tc.ask {
				wantSame(t, theirs, first)
			}
			wantSame(t, first, settled(t, other, "scale", args))
			if n := scales(s, other); n != 0 {
				t.Errorf("%d scales were sent", n)
			}
			if n := harness.Replicas(t, cp, ns, "web"); n != 2 {
				t.Errorf("%d replicas", n)
			}
		})
	}
}
