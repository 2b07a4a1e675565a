package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
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
		{"several faults at once", []string{"--ttl", "2h", "--irreversible", "maybe", "--actions", "scael", "--max-blast-percent", "101"},
			[]string{"60m", `"maybe"`, `"scael"`, "101"}},
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
  prod: {max_blast_percent: 25, require_expected_version: true, ttl: 30s}
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
	want := gate.Limits{MaxReplicas: 30, MaxBlastPercent: 25, WritesPerMinute: 6, PlansPerMinute: 60, TTL: 30 * time.Second, Irreversible: gate.Refuse, GateSinglePod: true, RequireExpectedVersion: true}
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
