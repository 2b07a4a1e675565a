package integration

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// operate runs a command of the operator on a server's state folder.
func operate(s *harness.Server, args ...string) (code int, out string) {
	var stdout, stderr bytes.Buffer
	code = app.Main(append(args, "--state-dir", s.State), strings.NewReader(""), &stdout, &stderr)
	return code, stdout.String() + stderr.String()
}

// auditLogFrom copies what the API server's audit log has from an offset on, whole.
func auditLogFrom(t *testing.T, offset int64) (file string) {
	t.Helper()
	if _, err := cp.AuditEvents(t.Context()); err != nil { // until every end is in it
		t.Fatal(err)
	}
	raw, err := os.ReadFile(cp.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "apiserver.jsonl")
	if err := os.WriteFile(file, raw[offset:], 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestJoin does something of everything and joins it with the API server's own audit log:
// every dry run and every write is in both logs and the same, and there is none beside
// them. Then somebody writes in our name.
func TestJoin(t *testing.T) {
	b := newWorkbench(t)
	harness.Create(t, cp, b.ns, harness.Deployment("api").Replicas(2).Ready(2))
	harness.Converge(t, cp, b.ns)
	denyAbove(t, b.ns, 5, quoting)
	if _, err := cp.AuditEvents(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(cp.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, append([]string{"--verify-timeout", "1s"}, wide...)...)
	api := of(b.ns, "deployment", "api")

	calls := 0
	call := func(tool string, args harness.Args, want string) {
		t.Helper()
		calls++
		if got := s.Must(tool, args); harness.Code(got) != want {
			t.Errorf("%s: %s, want code %q", tool, got.Text, want)
		}
	}
	do := func(action string, args harness.Args) harness.Args {
		t.Helper()
		calls++
		confirmed := s.Plan(action, args)
		call(action, confirmed, "")
		return confirmed
	}
	call("plan_scale", api.With("replicas", 2), "") // a no-op
	call("plan_scale", api.With("replicas", 6), "dry_run_failed")
	call("plan_scale", of("kube-system", "deployment", "x").With("replicas", 2), "out_of_scope")
	call("scale", api.With("replicas", 3).With("confirm", "yes").With("reason", "a test"), "unknown_phrase")
	var moved atomic.Bool
	s.Proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
		if r.Method == http.MethodPut && r.Mutates() && !moved.Swap(true) { // a real 409 after a dry run that passed
			patchAs(t, "deployments", b.ns, "api", `{"metadata":{"labels":{"example.com/moved":"yes"}}}`)
		}
		return true
	})
	scaled := do("scale", api.With("replicas", 3))
	call("scale", scaled, "") // a replay
	_, planCode, _ := strings.Cut(scaled["confirm"].(string), "[")
	call("write_status", harness.Args{"plan": planCode[:10]}, "")
	for _, action := range []string{"rollout_restart", "delete_pod", "cordon", "drain"} {
		do(action, b.calls()[action])
	}
	calls++
	stale := s.Plan("scale", api.With("replicas", 4))
	setReplicas(t, b.ns, "api", 5)
	call("scale", stale, "stale")

	sent := len(s.Proxy.Requests(func(r harness.Request) bool {
		return r.Method != http.MethodGet && !strings.HasSuffix(r.Path, "/selfsubjectreviews")
	}))
	joinFrom := func() (int, string) {
		return operate(s, "audit", "join", "--apiserver-audit", auditLogFrom(t, before.Size()))
	}
	code, out := joinFrom()
	if want := fmt.Sprintf("\n%d of %d match exactly\n", sent, sent); code != 0 || !strings.HasSuffix(out, want) || !strings.Contains(out, ": dry run ok, real 409\n") {
		t.Errorf("code %d, want 0 and%sand a real 409 in\n%s", code, want, out)
	}
	for _, kind := range []string{"legal", "noted", "missing", "differs", "alarm"} {
		if strings.Contains(out, "  "+kind+" ") {
			t.Errorf("%s in\n%s", kind, out)
		}
	}
	code, out = operate(s, "audit", "report")
	if want := fmt.Sprintf("%d calls, %d with an outcome\n", calls, calls); code != 0 || !strings.HasSuffix(out, want) || !strings.Contains(out, "READ") {
		t.Errorf("code %d, want 0 and %s in\n%s", code, want, out)
	}

	recorded := map[string]int{}
	for _, l := range harness.Lines(t, s.State) {
		for _, d := range l.DryRuns {
			if recorded[d.AuditID]++; recorded[d.AuditID] > 1 {
				t.Errorf("line %d has the dry run %s again", l.Seq, d.AuditID)
			}
		}
	}

	for _, tc := range []struct {
		name, agent, manager string
		dryRun               []string
		want                 string
	}{
		{"a dry run in our name", "kube-write-mcp/9", "kubectl", []string{metav1.DryRunAll}, ""},
		{"a write of somebody else", "kubectl/1", "kubectl", nil, ""},
		{"our user agent", "kube-write-mcp/9", "kubectl", nil, "1 alarms"},
		{"our field manager", "kubectl/1", "kube-write-mcp:aaaaaaaaaa", nil, "2 alarms"},
	} {
		cfg := rest.CopyConfig(cp.Config)
		cfg.UserAgent = tc.agent
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		body := fmt.Appendf(nil, `{"metadata":{"labels":{"example.com/by":%q}}}`, strings.Fields(tc.name)[1])
		_, err = client.AppsV1().Deployments(b.ns).Patch(t.Context(), "api", types.MergePatchType, body, metav1.PatchOptions{DryRun: tc.dryRun, FieldManager: tc.manager})
		if err != nil {
			t.Fatal(err)
		}
		wantCode := 0
		if tc.want != "" {
			wantCode = 1
		}
		if code, out := joinFrom(); code != wantCode || !strings.Contains(out, tc.want) {
			t.Errorf("%s: code %d, want %d and %q in\n%s", tc.name, code, wantCode, tc.want, out)
		}
	}
}
