package app

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// record makes a state folder whose audit log has these lines.
func record(t *testing.T, lines ...*journal.Line) (state string) {
	t.Helper()
	state = filepath.Join(t.TempDir(), "state")
	keys, err := journal.LoadKeys(filepath.Join(state, "keys.json"), time.Now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(journal.Options{Dir: state, Keys: keys, Now: time.Now, Inst: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Append(func(*journal.Ledger) ([]*journal.Line, error) { return lines, nil }); err != nil {
		t.Fatal(err)
	}
	return state
}

// story is a plan, its execution, two refusals, and what is no call.
func story() []*journal.Line {
	alice := &journal.Principal{Kind: "os", Name: "alice", K8s: "admin"}
	web := &plan.Target{Resource: "deployments", Namespace: "default", Name: "web"}
	args := json.RawMessage(`{"namespace":"default","deployment":"web","replicas":3}`)
	return []*journal.Line{
		{Event: "plan", Call: 1, Plan: "aaaaaaaaaa", Tool: "plan_scale", Phrase: "scale deployment default/web from 2 to 3 on lab [aaaaaaaaaa]", Principal: alice, Target: web, Args: args},
		{Event: "execute_intent", Call: 2, Plan: "aaaaaaaaaa", Tool: "scale", StepKey: "scale deployment default/web", AuditID: "kube-write-mcp-aaaaaaaaaa-s1-x1", Reason: "<more> & more traffic", Principal: alice, Target: web},
		{Event: "step", Call: 2, Plan: "aaaaaaaaaa", Tool: "scale", StepKey: "scale deployment default/web", AuditID: "kube-write-mcp-aaaaaaaaaa-s1-x1", Code: "applied", HTTP: 200, Principal: alice, Target: web},
		{Event: "execute", Call: 2, Plan: "aaaaaaaaaa", Tool: "scale", Code: "EXECUTED", Principal: alice, Target: web, Before: plan.State{"replicas": 2, "rv": "17", "generation": 12345678901}},
		{Event: "refused", Call: 3, Tool: "plan_scale", Code: "out_of_scope", Principal: &journal.Principal{Kind: "http", Name: "bob"}, Args: json.RawMessage(`{"namespace":"kube-system"}`), Output: "namespace kube-system is protected"},
		{Event: "dry_run_failed", Call: 4, Tool: "plan_scale", Code: "dry_run_failed", Principal: alice, Target: web, Output: "dry run failed (422)", Untrusted: "no \x1b[31mticket\u202e " + strings.Repeat("x", 300)},
		{Event: "recovered"},
	}
}

// TestAuditShow: the filters are all of them kept, and --json gives the lines as they
// stand in the file.
func TestAuditShow(t *testing.T) {
	state := record(t, story()...)
	raw, err := os.ReadFile(filepath.Join(state, "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	file := strings.SplitAfter(strings.TrimSuffix(string(raw), "\n"), "\n")
	for _, tc := range []struct {
		args string
		want []int // which lines of the story, from 1
	}{
		{"", []int{1, 2, 3, 4, 5, 6, 7}},
		{"--plan aaaaaaaaaa", []int{1, 2, 3, 4}},
		{"--tool plan_scale", []int{1, 5, 6}},
		{"--event execute", []int{4}},
		{"--code out_of_scope", []int{5}},
		{"--code EXECUTED", []int{4}},
		{"--namespace default", []int{1, 2, 3, 4, 6}},
		{"--namespace kube-system", []int{5}},
		{"--principal os:alice", []int{1, 2, 3, 4, 6}},
		{"--principal admin", []int{1, 2, 3, 4, 6}},
		{"--principal bob", []int{5}},
		{"--since 1h", []int{1, 2, 3, 4, 5, 6, 7}},
		{"--since 1ns", nil},
		{"--limit 2", []int{6, 7}},
		{"--limit 20", []int{1, 2, 3, 4, 5, 6, 7}},
		{"--tool plan_scale --limit 1", []int{6}},
		{"--tool plan_scale --principal alice --event plan", []int{1}},
		{"--plan bbbbbbbbbb", nil},
	} {
		want := ""
		for _, n := range tc.want {
			want += strings.TrimSuffix(file[n-1], "\n") + "\n"
		}
		code, got, stderr := run(append([]string{"audit", "show", "--json", "--state-dir", state}, strings.Fields(tc.args)...)...)
		if diff := cmp.Diff(want, got); diff != "" || code != 0 {
			t.Errorf("%s: code %d, %s (-file +shown):\n%s", tc.args, code, stderr, diff)
		}
	}
}

// TestAuditShowTable: text from the cluster stands last, bounded, and without what a
// terminal would obey.
func TestAuditShowTable(t *testing.T) {
	code, got, stderr := run("audit", "show", "--state-dir", record(t, story()...))
	_, said, found := strings.Cut(got, "dry run failed (422)")
	if code != 0 || !found || !strings.Contains(strings.TrimSpace(said), "untrusted: no [31mticket") {
		t.Errorf("code %d, %s:\n%s", code, stderr, got)
	}
	if n := strings.Count(got, "x"); n > 256+20 || strings.ContainsAny(got, "\x1b\u202e") {
		t.Errorf("%d x in\n%s", n, got)
	}
}

// TestAuditShowDamaged: what comes before a damaged line is shown, and the command fails.
func TestAuditShowDamaged(t *testing.T) {
	state := record(t, story()...)
	path := filepath.Join(state, "audit.jsonl")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(raw), "kube-system is", "prod is", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"show --json", "report", "join --apiserver-audit -"} {
		code, out, stderr := run(append([]string{"audit", "--state-dir", state}, strings.Fields(command)...)...)
		if code != 1 || !strings.Contains(stderr, "line 5") {
			t.Errorf("%s: code %d, %s", command, code, stderr)
		}
		if shown := strings.Count(out, `"event"`); command == "show --json" && shown != 4 {
			t.Errorf("%d lines are shown, want 4", shown)
		}
	}
}

// TestAuditReport: the columns add up to the calls, or the command fails and says where.
func TestAuditReport(t *testing.T) {
	whole := story()
	for name, tc := range map[string]struct {
		lines    []*journal.Line
		wantCode int
		want     []string
	}{
		"whole":         {whole, 0, []string{"plan_scale", "4 calls, 4 with an outcome"}},
		"cut off":       {whole[:3], 1, []string{"UNFINISHED", "2 calls, 1 with an outcome", "call 2 of process test began scale of plan aaaaaaaaaa"}},
		"a call is out": {append(append([]*journal.Line{}, whole[:4]...), whole[5]), 1, []string{"NO_LINE", "4 calls, 3 with an outcome", "call 3 of process test left no outcome"}},
	} {
		t.Run(name, func(t *testing.T) {
			state := record(t, tc.lines...)
			for _, format := range []string{"", "--json"} {
				code, stdout, stderr := run(strings.Fields("audit report --state-dir " + state + " " + format)...)
				if code != tc.wantCode {
					t.Errorf("code %d, want %d: %s", code, tc.wantCode, stderr)
				}
				if format != "" {
					var r journal.CallReport
					if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r.Faults) != tc.wantCode {
						t.Errorf("%v in %s", err, stdout)
					}
					continue
				}
				for _, w := range tc.want {
					if !strings.Contains(stdout+stderr, w) {
						t.Errorf("it lacks %q:\n%s%s", w, stdout, stderr)
					}
				}
			}
		})
	}
}

// TestAuditJoin: the last line says how many match, and an alarm fails the command.
func TestAuditJoin(t *testing.T) {
	now := time.Now().UTC().Format(time.RFC3339Nano)
	event := func(auditID, agent string) string {
		return `{"stage":"ResponseComplete","auditID":"` + auditID + `","verb":"update","userAgent":"` + agent + `","requestURI":"/apis/apps/v1/namespaces/default/deployments/web/scale",` +
			`"user":{"username":"admin"},"objectRef":{"apiGroup":"apps","resource":"deployments","subresource":"scale","namespace":"default","name":"web"},` +
			`"responseStatus":{"code":200},"requestReceivedTimestamp":"` + now + `"}` + "\n"
	}
	known := event("kube-write-mcp-aaaaaaaaaa-s1-x1", "kube-write-mcp/1")
	state := record(t, story()...)
	for name, tc := range map[string]struct {
		log      string
		wantCode int
		want     []string
	}{
		"all match":           {known + event("1", "kubectl/1"), 0, []string{"same", "\n1 of 1 match exactly\n"}},
		"an alarm":            {known + event("1", "kube-write-mcp/1"), 1, []string{"alarm", "1 alarms, 0 requests that differ; 1 of 1 match exactly"}},
		"a difference":        {strings.Replace(known, "admin", `eve\u001b`, 1), 1, []string{"1 differs", "0 of 1 match exactly"}},
		"missing":             {"", 0, []string{"1 missing", "\n0 of 1 match exactly\n"}},
		"no log of that kind": {"audit\nlog", 1, []string{"line 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := run("audit", "join", "--state-dir", state, "--apiserver-audit", write(t, "audit.log", tc.log))
			for _, w := range tc.want {
				if !strings.Contains(stdout+stderr, w) {
					t.Errorf("it lacks %q:\n%s%s", w, stdout, stderr)
				}
			}
			if code != tc.wantCode || strings.Contains(stdout+stderr, "\x1b") {
				t.Errorf("code %d, want %d:\n%s%s", code, tc.wantCode, stdout, stderr)
			}
		})
	}
	if code, _, stderr := run("audit", "join", "--state-dir", state, "--cluster-name", "other", "--apiserver-audit", write(t, "audit.log", known)); code != 1 || !strings.Contains(stderr, "1 alarms") {
		t.Errorf("of another cluster: code %d, %s", code, stderr)
	}
	if code, _, stderr := run("audit", "join", "--state-dir", state); code != 1 || !strings.Contains(stderr, "apiserver-audit") {
		t.Errorf("without a file: code %d, %s", code, stderr)
	}
	if code, _, stderr := run("audit", "join", "--state-dir", state, "--apiserver-audit", filepath.Join(state, "none")); code != 1 || !strings.Contains(stderr, "none") {
		t.Errorf("without that file: code %d, %s", code, stderr)
	}
}

// TestAuditVerifyAndRecover: a sound log verifies, a damaged one names its line, and the
// operator alone can carry on behind it, with the damaged file kept as it is.
func TestAuditVerifyAndRecover(t *testing.T) {
	refused := func(why string) *journal.Line { return &journal.Line{Event: journal.EventRefused, Output: why} }
	state := record(t, refused("one"), refused("two"), refused("three"))
	path := filepath.Join(state, "audit.jsonl")
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	audit := func(command string, wantCode int, want string) {
		t.Helper()
		code, out, stderr := run(append([]string{"audit", "--state-dir", state}, strings.Fields(command)...)...)
		if code != wantCode || !strings.Contains(out+stderr, want) {
			t.Errorf("%s: code %d, want %d; want %q in:\n%s%s", command, code, wantCode, want, out, stderr)
		}
	}
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	audit("verify", 0, "3 lines in 1 files are good")

	write(bytes.Replace(sound, []byte("two"), []byte("six"), 1))
	audit("verify", 1, "line 2")
	audit("recover", 1, "line 2")
	audit("recover --new-file", 0, "audit-000001.jsonl")
	audit("verify", 0, "recovered: audit-000001.jsonl is kept, and counts up to its line 1")
}

// TestKeys: a new key signs what comes, the old one goes when no line names it.
func TestKeys(t *testing.T) {
	state := record(t, &journal.Line{Event: journal.EventRefused})
	keys := func(command string, wantCode int, want string) {
		t.Helper()
		code, out, stderr := run(append([]string{"keys", "--state-dir", state}, strings.Fields(command)...)...)
		if code != wantCode || !strings.Contains(out+stderr, want) {
			t.Errorf("%s: code %d, want %d; want %q in:\n%s%s", command, code, wantCode, want, out, stderr)
		}
	}
	keys("rotate --grace 0s", 0, "signs from now on")
	keys("prune", 0, "taken away: none") // a line names the one before
	keys("rotate --grace 0s", 0, "signs from now on")
	keys("rotate --key-file x", 1, "--key-file")
	code, _, stderr := run("audit", "verify", "--state-dir", state)
	if code != 0 {
		t.Errorf("the log does not verify any more: %s", stderr)
	}
	raw, err := os.ReadFile(filepath.Join(state, "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Count(raw, []byte(`"secret"`))
	time.Sleep(time.Second) // retired is what is older than a second
	keys("prune", 0, "taken away: ")
	if raw, err = os.ReadFile(filepath.Join(state, "keys.json")); err != nil {
		t.Fatal(err)
	}
	if after := bytes.Count(raw, []byte(`"secret"`)); before != 3 || after != 2 {
		t.Errorf("%d keys, then %d; want 3, then the one that is named and the new one", before, after)
	}
}
