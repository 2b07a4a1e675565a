package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestStatus: write_status tells from the journal alone what became of a plan.
func TestStatus(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	s := start(t, append(wide, "--verify-timeout", "1s")...)
	web := of(ns, "deployment", "web")
	id := func(args harness.Args) string {
		code := args["confirm"].(string)
		return code[strings.LastIndexByte(code, '[')+1:][:10]
	}
	open, stale, done := s.Plan("scale", web.With("replicas", 4)), s.Plan("scale", web.With("replicas", 5)), s.Plan("scale", web.With("replicas", 3))
	first := harness.Into[execution](t, s.Must("scale", done))
	s.Must("scale", stale)
	noop := harness.Into[planned](t, s.Must("plan_scale", web.With("replicas", 3))).Plan
	s.Proxy.Reset()
	for name, tc := range map[string]struct {
		plan string
		want plan.Outcome
		text string
	}{
		"open":      {id(open), plan.NotExecuted, "good until"},
		"stale":     {id(stale), plan.NotExecuted, "it is stale"},
		"executed":  {id(done), plan.Executed, "right after the write"},
		"no change": {noop, plan.NotExecuted, "nothing to change"},
	} {
		got := s.Must("write_status", harness.Args{"plan": tc.plan})
		x := harness.Into[execution](t, got)
		if got.IsError || x.Outcome != tc.want || !strings.Contains(got.Text, tc.text) {
			t.Errorf("%s: %s", name, got.Text)
		}
		if tc.want == plan.Executed && !bytes.Equal(x.Result, first.Result) {
			t.Errorf("the first result was\n%s\nwrite_status has\n%s", first.Result, x.Result)
		}
	}
	for plan, want := range map[string]string{"aaaaaaaaaa": "not_found", "AAAAAAAAAA": "invalid_arguments", "": "invalid_arguments"} {
		if got := s.Must("write_status", harness.Args{"plan": plan}); harness.Code(got) != want {
			t.Errorf("plan %q: want %s: %s", plan, want, got.Text)
		}
	}
	if r := s.Proxy.Requests(func(harness.Request) bool { return true }); len(r) != 0 {
		t.Errorf("it asked the API server: %+v", r)
	}
	events := harness.Events(t, s.State)
	if diff := cmp.Diff([]string{"read", "read", "read", "read", "refused", "refused", "refused"}, events[len(events)-7:]); diff != "" {
		t.Errorf("the last events (-want +got):\n%s", diff)
	}
}

// TestCase_MC_14_ReadOnly: with --read-only the read tools are all that exists; a plan made by
// another process on the same state folder can be read.
func TestCase_MC_14_ReadOnly(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	writer := start(t, wide...)
	call := of(ns, "deployment", "web").With("replicas", 3)
	made := harness.Into[planned](t, writer.Must("plan_scale", call))
	s := harness.Start(t, cp, harness.Options{ReadOnly: true, State: writer.State, Args: []string{"--read-only"}})
	for _, tool := range []string{"plan_scale", "scale", "plan_drain", "drain"} {
		if got := s.Must(tool, call); got.Code != -32602 {
			t.Errorf("%s: code %d, want -32602: %s", tool, got.Code, got.Text)
		}
	}
	if got := s.Must("write_status", harness.Args{"plan": made.Plan}); !strings.Contains(got.Text, "NOT EXECUTED scale deployment") {
		t.Errorf("write_status: %s", got.Text)
	}
}

// TestDownstream: an operator's note stands in the plans that touch what it is about.
func TestDownstream(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2), harness.Deployment("api").Replicas(2).Ready(2))
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, fmt.Appendf(nil, `downstream:
- {namespace: %[1]s, name: web, note: the shop retries for 30 s}
- {namespace: %[1]s, note: "on call: the payments team"}
- {namespace: elsewhere, note: never shown}
`, ns), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, append(wide, "--policy", policy)...)
	webPod := harness.PodName("web", 0)
	for name, tc := range map[string]struct {
		tool string
		args harness.Args
		want []string
	}{
		"by name":          {"plan_scale", of(ns, "deployment", "web").With("replicas", 3), []string{"the shop retries for 30 s", "on call: the payments team"}},
		"by namespace":     {"plan_rollout_restart", of(ns, "deployment", "api"), []string{"on call: the payments team"}},
		"by a pod's owner": {"plan_delete_pod", of(ns, "pod", webPod), []string{"the shop retries for 30 s", "on call: the payments team"}},
	} {
		got := s.Must(tc.tool, tc.args)
		var shown []string
		for line := range strings.Lines(got.Text) {
			if note, ok := strings.CutPrefix(strings.TrimSpace(line), "downstream: "); ok {
				shown = append(shown, note)
			}
		}
		if diff := cmp.Diff(tc.want, shown); diff != "" {
			t.Errorf("%s (-want +got):\n%s\n%s", name, diff, got.Text)
		}
	}
}

// TestRecordDamaged: a plan whose line was changed on the disk after it was written is
// never executed.
func TestRecordDamaged(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	s := start(t, wide...)
	args := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	path := filepath.Join(s.State, "audit.jsonl")
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Replace(sound, []byte(`"replicas":3`), []byte(`"replicas":9`), 1)
	rewrite(t, path, damaged)
	if got := s.Must("scale", args); harness.Code(got) != "record_missing" {
		t.Errorf("a changed record: %s", got.Text)
	}
	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Errorf("it wrote %+v", w)
	}
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, path, append(sound, now[len(sound):]...)) // what follows is sound
	if got := harness.Into[execution](t, s.Must("scale", args)); got.Outcome != plan.Executed {
		t.Errorf("the record is whole again, and yet: %+v", got)
	}
}

// rewrite changes a file in place: it stays the same file.
func rewrite(t *testing.T, path string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

// TestNoteMoved: another of our changes noted its reason meanwhile; that is no drift of a
// scale, whose own note is then left out and said so.
func TestNoteMoved(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	harness.Converge(t, cp, ns)
	s := start(t, append(wide, "--verify-timeout", "1s")...)
	scale := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	s.Do("rollout_restart", of(ns, "deployment", "web"))
	got := s.Must("scale", scale)
	if x := harness.Into[execution](t, got); x.Outcome != plan.Executed || !strings.Contains(got.Text, "note: the reason was not noted") {
		t.Errorf("%s", got.Text)
	}
}
