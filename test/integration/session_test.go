package integration

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// closedPort is an address at which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestUnreachable: with no cluster there, the protocol works, and a plan says so.
func TestUnreachable(t *testing.T) {
	for _, era := range []stdio.Era{stdio.Legacy, stdio.Modern} {
		t.Run(string(era), func(t *testing.T) {
			kubeconfig, state := filepath.Join(t.TempDir(), "kubeconfig"), filepath.Join(t.TempDir(), "state")
			if err := cp.Kubeconfig(kubeconfig, "kind-lab", &rest.Config{Host: "https://" + closedPort(t), BearerToken: "x"}); err != nil {
				t.Fatal(err)
			}
			c, err := stdio.Start(era, program(t), nil, "serve", "--allow-write", "--quiet", "--kubeconfig", kubeconfig, "--state-dir", state)
			if err != nil {
				t.Fatal(err, c.Stderr)
			}
			defer c.Kill()
			list, err := c.Request("tools/list", nil)
			if err != nil || !strings.Contains(list.Line, `"plan_scale"`) {
				t.Fatalf("tools/list: %s (%v)", list.Line, err)
			}
			got, err := c.Call("plan_scale", of("default", "deployment", "web").With("replicas", 3))
			if err != nil || harness.Code(got) != "unreachable" {
				t.Errorf("plan_scale: %s (%v)", got.Text, err)
			}
			for _, line := range c.Lines() {
				if !json.Valid([]byte(line)) {
					t.Errorf("a line that is no JSON: %s", line)
				}
			}
			if diff := cmp.Diff([]string{"refused"}, harness.Events(t, state)); diff != "" {
				t.Errorf("journal (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCase_MC_02 writes a whole session into the program and closes its input: every
// request is answered, nothing but JSON comes, and it ends with 0.
func TestCase_MC_02(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	p := harness.NewProxy(t, harness.Account(t, cp))
	answered := byID(t, pipe(t, p, initialize+initialized+strings.Join([]string{
		`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
		planLine("3", ns, "web", "3"),
		`not json`,
		`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"scale","arguments":{}}}`,
	}, "\n")+"\n"))
	for id, want := range map[string]string{"1": `"protocolVersion":"2025-06-18"`, "2": `"plan_scale"`, "3": "CONFIRM: ", "4": "invalid_arguments"} {
		if !strings.Contains(answered[id].Line, want) {
			t.Errorf("the answer to %s lacks %s: %s", id, want, answered[id].Line)
		}
	}
}

// TestCase_MC_02_MidWrite ends the process while its write is on the way: the write finishes,
// its outcome is on record and in the answer, no further step is sent, and nobody waits
// for verification.
func TestCase_MC_02_MidWrite(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*harness.Server) error
	}{
		{"SIGTERM", func(s *harness.Server) error { return s.Process().Signal(syscall.SIGTERM) }},
		{"end of input", func(s *harness.Server) error { return s.CloseInput() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := cp.Namespace(t)
			harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2)) // never observed: no verdict comes
			state := filepath.Join(t.TempDir(), "state")
			s := harness.Spawn(t, cp, program(t), harness.Options{State: state, Args: wide})
			args := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
			arrived, release := hold(s, "scale")
			_, answer, err := s.Send("tools/call", map[string]any{"name": "scale", "arguments": args})
			if err != nil {
				t.Fatal(err)
			}
			<-arrived
			if err := tc.end(s); err != nil {
				t.Fatal(err)
			}
			release()
			if err := s.Close(); err != nil {
				t.Errorf("it ended with %v: %s", err, s.Stderr)
			}
			select {
			case m := <-answer:
				if got, err := stdio.Parse(m); err != nil || !strings.HasPrefix(got.Text, "EXECUTED") {
					t.Errorf("the answer: %s (%v)", m.Line, err)
				}
			default:
				t.Error("the call was not answered")
			}
			var steps, executes int
			for _, e := range harness.Events(t, state) {
				switch e {
				case "step":
					steps++
				case "execute":
					executes++
				}
			}
			if steps == 0 || executes != 1 {
				t.Errorf("journal: %q", harness.Events(t, state))
			}
			if n := count(s.Proxy.Writes(), isEffect("scale")); n != 1 {
				t.Errorf("%d writes", n)
			}
		})
	}
}
