//go:build unix

package torture

import (
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestPaused stops a process between its claim and its write for longer than its claim is
// good for. Nobody takes over from it while it is there, and it sends nothing when it goes
// on.
func TestPaused(t *testing.T) {
	t.Parallel()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, newWatcher(t), cp.Namespace(t), "one", "scale")
	o := harness.Options{State: t.TempDir() + "/state", Args: wide}
	s := harness.Spawn(t, cp, bin, o)
	args := s.Plan(b.action, b.args)
	m := moment{b, s.Proxy, o.State}
	reached, gate := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(once)
	var held sync.Once
	s.Proxy.After(func(r *harness.Request, _ *http.Response) {
		if m.reads(*r) && m.onDisk(t, "execute_intent") {
			held.Do(func() { close(reached); <-gate })
		}
	})
	_, reply, err := s.Send("tools/call", map[string]any{"name": b.action, "arguments": args})
	if err != nil {
		t.Fatal(err)
	}
	<-reached
	if err := s.Process().Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(s.Process().Pid, nil, syscall.WUNTRACED, nil); err != nil { // every thread of it
		t.Fatal(err)
	}
	once() // the answer waits for it
	other := harness.Spawn(t, cp, bin, harness.Options{State: o.State, Args: append([]string{"--verify-wait", "1s"}, wide...)})
	a := harness.Into[answer](t, other.Must(b.action, args))
	if a.Outcome != plan.InProgress {
		t.Errorf("the other process: %s, want %s", a.Outcome, plan.InProgress)
	}
	time.Sleep(6 * time.Second) // a claim is good for five
	if err := s.Process().Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-reply:
	case <-time.After(time.Minute):
		t.Fatal("no answer")
	}
	first := settled(t, other, b.action, args)
	if first.Outcome != plan.Failed || !first.Replayed {
		t.Errorf("outcome %s, replayed %t, want the replay of %s: %s", first.Outcome, first.Replayed, plan.Failed, first.Result)
	}
	if w := append(s.Proxy.Writes(), other.Proxy.Writes()...); len(w) != 0 {
		t.Errorf("sent %+v", w)
	}
	if n := b.effects(t); n[0] != 0 {
		t.Errorf("%d effects", n[0])
	}
}
