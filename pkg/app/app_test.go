package app

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// run runs the program with no input.
func run(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = Main(args, strings.NewReader(""), &out, &err, actions.All()...)
	return code, out.String(), err.String()
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const twoContexts = `apiVersion: v1
kind: Config
clusters:
- {name: a, cluster: {server: "https://127.0.0.1:1"}}
users:
- {name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: no-such-plugin, interactiveMode: Never}}}
contexts:
- {name: one, context: {cluster: a, user: u}}
- {name: two, context: {cluster: a, user: u}}
- {name: "no phrase", context: {cluster: a, user: u}}
current-context: one
`

// window is a policy with one change window, of which the last line is changed.
func window(name, change string) string {
	fields := map[string]string{"kind": "deny", "schedule": "0 22 * * *", "duration": "8h", "time_zone": "Europe/Berlin"}
	if key, value, ok := strings.Cut(change, ": "); ok {
		fields[key] = value
	}
	text := "change_windows:\n- name: " + name + "\n"
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		text += "  " + key + ": " + fields[key] + "\n"
	}
	return text
}

// TestSamplePolicy: what is shipped as an example is understood, windows too.
func TestSamplePolicy(t *testing.T) {
	o := &options{actions: actions.All()}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.addServe(f)
	if err := f.Parse([]string{"--policy", filepath.Join("..", "..", "hack", "packaging", "policy.yaml")}); err != nil {
		t.Fatal(err)
	}
	p, err := o.policy(f)
	if err != nil {
		t.Fatal(err)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		at          time.Time
		namespace   string
		wantMessage string
		wantUnless  bool
	}{
		{time.Date(2026, 11, 30, 10, 0, 0, 0, berlin), "prod", "", false},
		{time.Date(2026, 11, 30, 8, 0, 0, 0, berlin), "prod", "the change window prod-hours is closed to scale in namespace prod", false},
		{time.Date(2026, 12, 28, 10, 0, 0, 0, berlin), "prod", "the change window year-end forbids scale in namespace prod", false},
		{time.Date(2026, 12, 28, 10, 0, 0, 0, berlin), "dev", "", false},
	} {
		no, unless := p.Window("scale", tc.namespace, tc.at, false)
		if no == nil {
			no = &refusal.Refusal{}
		}
		if no.Message != tc.wantMessage || unless != tc.wantUnless {
			t.Errorf("at %s in %s: %q, unless %t; want %q, %t", tc.at, tc.namespace, no.Message, unless, tc.wantMessage, tc.wantUnless)
		}
	}
}

// TestRefusesToStart: what is wrong with the configuration is said in one line, and
// nothing is served.
func TestRefusesToStart(t *testing.T) {
	kubeconfig := write(t, "config", twoContexts)
	state := filepath.Join(t.TempDir(), "state")
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"several contexts", []string{"--allow-write"}, []string{"--context", "no phrase, one, two"}},
		{"unknown context", []string{"--context", "three"}, []string{`"three"`, "one, two"}},
		{"a name that cannot stand in a phrase", []string{"--context", "no phrase"}, []string{"--cluster-name"}},
		{"a cluster name that cannot stand in a phrase", []string{"--context", "one", "--cluster-name", "my cluster"}, []string{`"my cluster"`, "--cluster-name"}},
		{"exec credentials", []string{"--exec-credentials", "maybe"}, []string{"allow or deny", `"maybe"`}},
		{"unknown key", []string{"--policy", write(t, "p", "max_replica: 3\n")}, []string{"max_replica"}},
		{"key with a dash", []string{"--policy", write(t, "p", "max-replicas: 3\n")}, []string{"max-replicas"}},
		{"duplicate key", []string{"--policy", write(t, "p", "max_replicas: 3\nmax_replicas: 4\n")}, []string{"max_replicas"}},
		{"a flag only", []string{"--policy", write(t, "p", "allow_write: true\n")}, []string{"allow_write is a flag only"}},
		{"unknown key of a namespace", []string{"--policy", write(t, "p", "namespaces: {prod: {max_replica: 3}}\n")}, []string{"max_replica"}},
		{"two that contradict each other", []string{"--context", "one", "--read-only", "--allow-write"}, []string{"read-only and allow-write"}},
		{"a note without a namespace", []string{"--policy", write(t, "p", "downstream: [{note: x}]\n")}, []string{"downstream[0]"}},
		{"a note of two lines", []string{"--policy", write(t, "p", "downstream: [{namespace: a, note: \"x\\ny\"}]\n")}, []string{"downstream[0]"}},
		{"an unknown key of a window", []string{"--policy", write(t, "p", "change_windows: [{from: now}]\n")}, []string{"change_windows[0].from", "time_zone, namespaces"}},
		{"a window of nothing", []string{"--policy", write(t, "p", "change_windows: [{}]\n")},
			[]string{"change_windows[0].name", "[0].kind", "[0].schedule", "[0].duration", "[0].time_zone", "such as"}},
		{"a zone that does not exist", []string{"--policy", write(t, "p", window("x", "time_zone: Europe/Bonn"))}, []string{"change_windows[0].time_zone", "Europe/Bonn", "Europe/Berlin"}},
		{"a number for a duration", []string{"--policy", write(t, "p", window("x", "duration: 8"))}, []string{"change_windows[0].duration", `"8"`, "8h"}},
		{"an action that does not exist", []string{"--policy", write(t, "p", window("x", "actions: [scael]"))}, []string{"change_windows[0].actions", "scael", "job_suspend"}},
		{"a pattern for a namespace", []string{"--policy", write(t, "p", window("x", `namespaces: ["prod-*"]`))}, []string{"change_windows[0].namespaces", "prod-*"}},
		{"one namespace, not in a list", []string{"--policy", write(t, "p", window("x", "namespaces: prod"))}, []string{"change_windows[0].namespaces", "[one, two]"}},
		{"two windows of one name", []string{"--policy", write(t, "p", window("x", "")+strings.TrimPrefix(window("x", ""), "change_windows:\n"))}, []string{"change_windows[1].name", `"x"`}},
		{"several faults at once", []string{"--ttl", "2h", "--irreversible", "maybe", "--actions", "scael", "--max-blast-percent", "101"},
			[]string{"60m", `"maybe"`, `"scael"`, "101"}},
		{"waiting for days", []string{"--approval-ttl", "25h"}, []string{"approval-ttl", "24h"}},
		{"a selector that is none", []string{"--allow-node-selector", "a in"}, []string{"allow-node-selector"}},
		{"no loopback without a certificate", []string{"--context", "one", "--http", "0.0.0.0:0"}, []string{"no loopback address", "--tls-cert", "127.0.0.1"}},
		{"all addresses without a certificate", []string{"--context", "one", "--http", ":0"}, []string{"no loopback address"}},
		{"half a certificate", []string{"--context", "one", "--http", "127.0.0.1:0", "--tls-cert", "x"}, []string{"go together"}},
		{"a certificate that is not there", []string{"--context", "one", "--http", "0.0.0.0:0", "--tls-cert", "no-such", "--tls-key", "no-such"}, []string{"tls-cert", "no-such"}},
		{"an address that is none", []string{"--context", "one", "--http", "kube"}, []string{"http:"}},
		{"the API server's audience", []string{"--context", "one", "--http", "127.0.0.1:0", "--audience", ""}, []string{"audience"}},
		{"no requests", []string{"--context", "one", "--http", "127.0.0.1:0", "--requests-per-second", "0"}, []string{"requests-per-second"}},
		{"an audit path that is a folder", []string{"--audit", t.TempDir()}, []string{"not a regular file"}},
		{"a key file that is not there", []string{"--key-file", filepath.Join(t.TempDir(), "keys.json")}, []string{"keys.json"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := run(append([]string{"serve", "--kubeconfig", kubeconfig, "--state-dir", state, "--quiet"}, tc.args...)...)
			if code != 1 || stdout != "" {
				t.Errorf("code %d, stdout %q; want 1 and nothing", code, stdout)
			}
			for _, w := range tc.want {
				if !strings.Contains(stderr, w) {
					t.Errorf("stderr lacks %q: %s", w, stderr)
				}
			}
		})
	}
}

// TestPolicy: a flag wins over the file, and namespaces tighten.
func TestPolicy(t *testing.T) {
	o := &options{actions: actions.All()}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.addServe(f)
	policy := write(t, "policy", `max_replicas: 20
ttl: 60s
allow_nodes: [n1, n2]
irreversible: refuse
change_cause_on_scale: false
gate_single_pod: true
namespaces:
  prod: {max_blast_percent: 25, require_expected_version: true, ttl: 30s, approval_ttl: 10m}
downstream:
- {namespace: prod, name: web, note: the shop retries}
`)
	if err := f.Parse([]string{"--policy", policy, "--max-replicas", "30"}); err != nil {
		t.Fatal(err)
	}
	p, err := o.policy(f)
	if err != nil {
		t.Fatal(err)
	}
	want := gate.Limits{MaxReplicas: 30, MaxBlastPercent: 25, WritesPerMinute: 6, PlansPerMinute: 60, TTL: 30 * time.Second, ApprovalTTL: 10 * time.Minute, Irreversible: gate.Refuse, GateSinglePod: true, RequireExpectedVersion: true}
	if diff := cmp.Diff(want, p.For("prod")); diff != "" {
		t.Errorf("limits of prod (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]gate.Downstream{{Namespace: "prod", Name: "web", Note: "the shop retries"}}, p.Downstream); diff != "" {
		t.Errorf("downstream (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"n1", "n2"}, p.AllowNodes); diff != "" || p.ChangeCauseOnScale {
		t.Errorf("nodes (-want +got):\n%s\nchange_cause_on_scale %t, want false", diff, p.ChangeCauseOnScale)
	}
}

// TestExecCredentials: the kubeconfig's plugins run as it says, or not at all.
func TestExecCredentials(t *testing.T) {
	for _, tc := range []struct {
		flag     string
		wantDeny bool
	}{{"allow", false}, {"deny", true}} {
		o := &options{kubeconfig: write(t, "config", twoContexts), context: "one", execCredentials: tc.flag}
		c, err := o.cluster()
		if err != nil {
			t.Fatal(err)
		}
		if denied := c.config.ExecProvider.PluginPolicy.PolicyType == "DenyAll"; denied != tc.wantDeny || c.label != "one" {
			t.Errorf("%s: denied %t, label %q; want %t and one", tc.flag, denied, c.label, tc.wantDeny)
		}
	}
}

// TestCommands need no cluster.
func TestCommands(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	for _, tc := range []struct {
		args     []string
		wantCode int
		want     string
	}{
		{[]string{"version"}, 0, "dev"},
		{[]string{"--version"}, 0, "dev"},
		{[]string{"tools"}, 0, "plan_scale"},
		{[]string{"serve", "--list-tools", "--allow-write"}, 0, " scale "},
		{[]string{"rbac", "--actions", "cordon"}, 0, "kind: ClusterRole"},
		{[]string{"plans", "--state-dir", state}, 1, "no journal"},
		{[]string{"audit", "show", "--state-dir", state}, 1, "no journal"},
		{[]string{"no-such-command"}, 1, "no-such-command"},
		{[]string{"--help"}, 0, "--max-blast-percent"},
	} {
		t.Run(strings.Join(tc.args[:1], " "), func(t *testing.T) {
			code, stdout, stderr := run(tc.args...)
			if code != tc.wantCode || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("code %d, want %d; want %q in:\n%s%s", code, tc.wantCode, tc.want, stdout, stderr)
			}
		})
	}
}
