package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// part is a program of a lab, which may be paused, killed and started again.
type part struct {
	pid  int
	argv []string
}

// findPart finds a program of a lab among the children of this process.
func findPart(t *testing.T, l *lab.Lab, name string) *part {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(l.AuditLog())
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		argv := strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
		if filepath.Base(argv[0]) != name || !strings.HasPrefix(argv[0], dir+"/") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			t.Fatal(err)
		}
		return &part{pid, argv}
	}
	t.Fatalf("there is no %s in %s", name, dir)
	return nil
}

func (p *part) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.pid, s); err != nil {
		t.Fatal(err)
	}
}

// restart starts the program again as it was. It ends with the lab's test, or with the
// process.
func (p *part) restart(t *testing.T, l *lab.Lab) {
	t.Helper()
	dir, name := filepath.Dir(l.AuditLog()), filepath.Base(p.argv[0])
	lab.Eventually(t, name+" to leave its port", func() (bool, error) {
		err := syscall.Kill(p.pid, 0)
		return err == syscall.ESRCH, err
	})
	out, err := os.Create(filepath.Join(dir, name+"-again.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(filepath.Join(dir, "bin", name), p.argv[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.pid = cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lab.Eventually(t, name+" to be back", func() (bool, error) {
		_, err := l.Client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil, err
	})
}

// TestFault_22_ControlPlaneDies kills or pauses the API server or etcd while a write is in
// it. Nobody knows what became of it; it is never sent again; and when the control plane
// is back, what is found out is what the object says.
func TestFault_22_ControlPlaneDies(t *testing.T) {
	t.Parallel()
	l, err := lab.Start(t.Context(), lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, tc := range []struct {
		name string
		hurt func(api, etcd *part) // while etcd is paused, and the write waits for it
		heal func(api, etcd *part)
	}{
		{
			"the API server is killed",
			func(api, _ *part) { api.signal(t, syscall.SIGKILL) },
			func(api, etcd *part) { etcd.signal(t, syscall.SIGCONT); api.restart(t, l) },
		},
		{
			"etcd is killed",
			func(_, etcd *part) { etcd.signal(t, syscall.SIGKILL) },
			func(_, etcd *part) { etcd.restart(t, l) },
		},
		{
			"the API server is paused for 40 s",
			func(api, etcd *part) { api.signal(t, syscall.SIGSTOP); etcd.signal(t, syscall.SIGCONT) },
			func(api, _ *part) { time.Sleep(10 * time.Second); api.signal(t, syscall.SIGCONT) }, // the write has waited for 30
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := l.Namespace(t)
			harness.Create(t, l, ns, harness.Deployment("web").Replicas(2).Ready(2))
			s := harness.Start(t, l, harness.Options{Args: quick})
			args := s.Plan("scale", harness.Of(ns, "deployment", "web").With("replicas", 3))
			api, etcd := findPart(t, l, "kube-apiserver"), findPart(t, l, "etcd")
			arrived, release := s.Proxy.Hold(isScale)
			_, reply, err := s.Send("tools/call", map[string]any{"name": "scale", "arguments": args})
			if err != nil {
				t.Fatal(err)
			}
			<-arrived
			etcd.signal(t, syscall.SIGSTOP)
			release()
			id := s.Proxy.Writes()[0].AuditID
			lab.Eventually(t, "the write to be in the API server", func() (bool, error) {
				raw, err := os.ReadFile(l.AuditLog()) // which logs a request before it works on it
				return strings.Contains(string(raw), id), err
			})
			tc.hurt(api, etcd)
			first, err := stdio.Parse(<-reply)
			if err != nil {
				t.Fatal(err)
			}
			wantOutcome(t, first, plan.Unknown, plan.Executed) // it may have been through already
			tc.heal(api, etcd)
			lab.Eventually(t, "the object to have another version", func() (bool, error) { // so that it can come no more
				_, err := l.Client.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
				return err == nil, err
			})
			var x harness.Execution
			lab.Eventually(t, "the outcome to be found out", func() (bool, error) {
				got := s.Must("scale", args)
				x = harness.Into[harness.Execution](t, got)
				return x.Outcome != plan.Unknown && x.Outcome != plan.InProgress, fmt.Errorf("%s", got.Text)
			})
			d, err := l.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := map[int32]plan.Outcome{2: plan.Failed, 3: plan.Executed}[*d.Spec.Replicas]
			if x.Outcome != want {
				t.Errorf("outcome %s with %d replicas", x.Outcome, *d.Spec.Replicas)
			}
			wantReplay(t, s, "scale", args, x)
			if w := s.Proxy.Requests(func(r harness.Request) bool { return r.Mutates() && isScale(r) }); len(w) != 1 {
				t.Errorf("%d writes, want 1: %+v", len(w), w)
			}
		})
	}
}
