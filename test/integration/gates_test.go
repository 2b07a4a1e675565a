package integration

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestCap bounds what a scale may set; a step down to a value above it passes the gate.
func TestCap(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2), harness.Deployment("big").Replicas(9))
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, policy, "max_replicas: 10\nnamespaces:\n  "+ns+":\n    max_replicas: 5\n")
	s := start(t, "--policy", policy)
	for _, tc := range []struct {
		name     string
		args     harness.Args
		wantCode string
		wantText string
	}{
		{"at the cap", of(ns, "deployment", "web").With("replicas", 5), "", ""},
		{"above the namespace's", of(ns, "deployment", "web").With("replicas", 6), "cap_exceeded", "5"},
		{"above the schema's", of(ns, "deployment", "web").With("replicas", 11), "invalid_arguments", "--max-replicas"},
		{"down to a value above it", of(ns, "deployment", "big").With("replicas", 8), "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := s.Must("plan_scale", tc.args)
			if code := harness.Code(got); code != tc.wantCode || !strings.Contains(got.Text, tc.wantText) {
				t.Errorf("code %q, want %q and %q: %s", code, tc.wantCode, tc.wantText, got.Text)
			}
		})
	}
}

// TestCase_PX_15 refuses the fourth and fifth write of a minute, says when they pass, and
// consumes nothing. Plans and replays do not count, another process on the same journal
// does, and a restart refills nothing.
func TestCase_PX_15(t *testing.T) {
	ns := cp.Namespace(t)
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names {
		harness.Create(t, cp, ns, harness.Deployment(name).Ready(1))
	}
	harness.Converge(t, cp, ns)
	state := filepath.Join(t.TempDir(), "state")
	three := harness.Options{State: state, Args: []string{"--writes-per-minute", "3"}}
	s := harness.Start(t, cp, three)
	calls := map[string]harness.Args{}
	for range 4 { // 20 plans
		for _, name := range names {
			calls[name] = s.Plan("scale", of(ns, "deployment", name).With("replicas", 2))
		}
	}
	for _, name := range names[:3] {
		if got := harness.Into[execution](t, s.Must("scale", calls[name])); got.Outcome != plan.Executed {
			t.Fatalf("%s: %+v", name, got)
		}
	}
	limited := func(t *testing.T, s *harness.Server) {
		t.Helper()
		s.Proxy.Reset()
		for _, name := range names[3:] {
			got := s.Must("scale", calls[name])
			at, err := time.Parse(time.RFC3339, got.Field("retry_at"))
			if harness.Code(got) != "rate_limited" || err != nil || time.Until(at) > time.Minute+time.Second || !strings.Contains(got.Text, got.Field("retry_at")) {
				t.Errorf("%s: %s (%v)", name, got.Text, err)
			}
		}
		if n := len(s.Proxy.Requests(nil)); n != 0 {
			t.Errorf("refusals sent %d requests", n)
		}
	}
	limited(t, s)
	if got := harness.Into[execution](t, s.Must("scale", calls["a"])); !got.Replayed {
		t.Errorf("a replay counts as a write: %+v", got)
	}
	limited(t, harness.Start(t, cp, three)) // a second process beside the first
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	limited(t, harness.Start(t, cp, three))
	onRecord := 0
	for _, e := range harness.Events(t, state) {
		if e == "rate_limited" {
			onRecord++
		}
	}
	if onRecord != 6 {
		t.Errorf("%d refusals for the rate are on record, want 6", onRecord)
	}
	wider := harness.Start(t, cp, harness.Options{State: state, Args: []string{"--writes-per-minute", "5"}})
	for _, name := range names[3:] {
		if got := harness.Into[execution](t, wider.Must("scale", calls[name])); got.Outcome != plan.Executed {
			t.Errorf("the phrase of %s was consumed by the refusals: %+v", name, got)
		}
	}
}

// TestPlanRate counts plans and refused calls alike.
func TestPlanRate(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	state := filepath.Join(t.TempDir(), "state")
	s := harness.Start(t, cp, harness.Options{State: state, Args: []string{"--plans-per-minute", "3"}})
	call := of(ns, "deployment", "web").With("replicas", 3)
	s.Must("plan_scale", of("kube-system", "deployment", "x").With("replicas", 1)) // before the cluster is known
	args := s.Plan("scale", call)
	s.Must("scale", args.With("replicas", 4))
	for range 2 {
		if got := s.Must("plan_scale", call); harness.Code(got) != "rate_limited" || got.Field("retry_at") == "" {
			t.Errorf("the fourth: %s", got.Text)
		}
	}
	restarted := harness.Start(t, cp, harness.Options{State: state, Proxy: s.Proxy, Args: []string{"--plans-per-minute", "3"}})
	if got := restarted.Must("plan_scale", call); harness.Code(got) != "rate_limited" {
		t.Errorf("after a restart: %s", got.Text)
	}
}

// TestScope allows and protects namespaces and nodes.
func TestScope(t *testing.T) {
	ns, other := cp.Namespace(t), cp.Namespace(t)
	b := workbench{ns, ns + "-node", ns + "-drained"}
	for _, n := range []string{ns, other} {
		harness.Create(t, cp, n, harness.Deployment("web").Replicas(2).Ready(2))
	}
	harness.Create(t, cp, ns, harness.Node(b.node).Ready(), harness.Node(b.drained).Ready())
	t.Cleanup(b.removeNodes)
	scale := func(ns string) harness.Args { return of(ns, "deployment", "web").With("replicas", 3) }
	for _, tc := range []struct {
		name     string
		flags    []string
		tool     string
		args     harness.Args
		wantCode string
		wantText string
	}{
		{"allowed", []string{"--allow-namespaces", ns}, "plan_scale", scale(ns), "", ""},
		{"not allowed", []string{"--allow-namespaces", ns}, "plan_scale", scale(other), "out_of_scope", "--allow-namespaces"},
		{"protected", []string{"--protect-namespaces", other}, "plan_scale", scale(other), "out_of_scope", "is protected"},
		{"protected and allowed", []string{"--protect-namespaces", other, "--allow-namespaces", other}, "plan_scale", scale(other), "out_of_scope", "is protected"},
		{"a node by name", []string{"--allow-node-selector", "", "--allow-nodes", b.node}, "plan_cordon", harness.Args{"node": b.node}, "", ""},
		{"another node", []string{"--allow-node-selector", "", "--allow-nodes", b.node}, "plan_cordon", harness.Args{"node": b.drained}, "node_not_allowed", "--allow-nodes"},
		{"no node at all", []string{"--allow-node-selector", ""}, "plan_drain", harness.Args{"node": b.node}, "node_not_allowed", "--allow-nodes " + b.node},
		{"a node that is not there", nil, "plan_cordon", harness.Args{"node": ns + "-none"}, "not_found", "not found"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := start(t, tc.flags...)
			got := s.Must(tc.tool, tc.args)
			if code := harness.Code(got); code != tc.wantCode || !strings.Contains(got.Text, tc.wantText) {
				t.Errorf("code %q, want %q and %q: %s", code, tc.wantCode, tc.wantText, got.Text)
			}
		})
	}
}

// TestScopeAsOfNow: a phrase of a namespace that was allowed does nothing once it is not.
func TestScopeAsOfNow(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	for _, tc := range []struct{ name, flag, value, wantCode string }{
		{"protected by now", "--protect-namespaces", ns, "out_of_scope"},
		{"not allowed any more", "--allow-namespaces", "elsewhere", "out_of_scope"},
		{"not enabled any more", "--actions", "rollout_restart", "out_of_scope"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "state")
			args := harness.Start(t, cp, harness.Options{State: state}).Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
			s := harness.Start(t, cp, harness.Options{State: state, Args: []string{tc.flag, tc.value}})
			if got := s.Must("scale", args); harness.Code(got) != tc.wantCode {
				t.Errorf("code %q, want %s: %s", harness.Code(got), tc.wantCode, got.Text)
			}
			if n := len(s.Proxy.Requests(nil)); n != 0 {
				t.Errorf("it sent %d requests", n)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRefusesToStart: what is wrong in flags, policy file or kubeconfig ends the program
// at once, with one line that names it.
func TestRefusesToStart(t *testing.T) {
	dir := t.TempDir()
	kubeconfig, several := filepath.Join(dir, "one"), filepath.Join(dir, "several")
	if err := cp.Kubeconfig(kubeconfig, "kind-lab", cp.Config); err != nil {
		t.Fatal(err)
	}
	two, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	two.Contexts["prod"] = &clientcmdapi.Context{Cluster: "kind-lab", AuthInfo: "kind-lab"}
	if err := clientcmd.WriteToFile(*two, several); err != nil {
		t.Fatal(err)
	}
	policy := func(name, text string) string {
		path := filepath.Join(dir, name)
		write(t, path, text)
		return path
	}
	audit := filepath.Join(dir, "a-folder")
	if err := os.Mkdir(audit, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		want []string // in the one line on stderr; nil starts
	}{
		{"as it should be", nil, nil},
		{"an unknown key", []string{"--policy", policy("unknown", "max_blast_percent: 25\nmax_blats_percent: 25\n")}, []string{"max_blats_percent"}},
		{"an unknown key of a namespace", []string{"--policy", policy("deep", "namespaces: {prod: {ttl: 60s, approve: true}}\n")}, []string{"approve"}},
		{"a key given twice", []string{"--policy", policy("twice", "max_replicas: 5\nmax_replicas: 50\n")}, []string{"max_replicas"}},
		{"a flag that is no policy", []string{"--policy", policy("flag", "allow_write: true\n")}, []string{"allow_write", "flag only"}},
		{"a policy file that is not there", []string{"--policy", filepath.Join(dir, "none")}, []string{"none"}},
		{"too long a ttl", []string{"--ttl", "2h"}, []string{"ttl", "60m"}},
		{"more than everything", []string{"--max-blast-percent", "101"}, []string{"max-blast-percent"}},
		{"an action that is none", []string{"--actions", "scal"}, []string{"scal"}},
		{"a selector that is none", []string{"--allow-node-selector", "a in"}, []string{"allow-node-selector"}},
		{"several contexts", []string{"--kubeconfig", several}, []string{"--context", "kind-lab, prod"}},
		{"several contexts, one named", []string{"--kubeconfig", several, "--context", "prod"}, nil},
		{"a context that is not there", []string{"--context", "prd"}, []string{`"prd"`, "kind-lab"}},
		{"a name that can stand in no phrase", []string{"--cluster-name", "a b"}, []string{`"a b"`}},
		{"a folder for an audit file", []string{"--audit", audit}, []string{"a-folder"}},
		{"a key file that is not there", []string{"--key-file", filepath.Join(dir, "none")}, []string{"none"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			args := append([]string{"serve", "--allow-write", "--quiet", "--kubeconfig", kubeconfig, "--state-dir", filepath.Join(t.TempDir(), "state")}, tc.args...)
			code := app.Main(args, strings.NewReader(""), &out, &errs, actions.All()...)
			if (code == 0) != (tc.want == nil) {
				t.Fatalf("it ended with %d: %s", code, errs.String())
			}
			for _, want := range tc.want {
				if !strings.Contains(errs.String(), want) {
					t.Errorf("stderr lacks %q: %s", want, errs.String())
				}
			}
			if n := strings.Count(errs.String(), "\n"); tc.want != nil && n != 1 {
				t.Errorf("%d lines on stderr: %s", n, errs.String())
			}
			if out.Len() != 0 {
				t.Errorf("stdout: %s", out.String())
			}
		})
	}
	if code := app.Main([]string{"serve", "--quiet", "--kubeconfig", several, "--state-dir", filepath.Join(dir, "reads")}, strings.NewReader(""), io.Discard, io.Discard, actions.All()...); code != 0 {
		t.Error("without --allow-write the current context will do")
	}
}

// TestCase_SC_09: accounts that may do the half of it. A failed dry run names verb and
// resource; a note that is not permitted is a warning.
func TestCase_SC_09(t *testing.T) {
	common := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces", "pods"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"policy"}, Resources: []string{"poddisruptionbudgets"}, Verbs: []string{"get", "list", "watch"}},
	}
	for _, tc := range []struct {
		name                   string
		rules                  []rbacv1.PolicyRule
		works, denied          string
		wantVerb, wantResource string
		wantNote               bool
	}{
		{"scale alone", []rbacv1.PolicyRule{
			{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get", "list"}},
			{APIGroups: []string{"apps"}, Resources: []string{"deployments/scale"}, Verbs: []string{"patch", "update"}},
		}, "scale", "rollout_restart", "patch", "deployments.apps", true},
		{"patch alone", []rbacv1.PolicyRule{
			{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get", "patch"}},
		}, "rollout_restart", "scale", "update", "deployments/scale.apps", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := cp.Namespace(t)
			harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
			harness.Converge(t, cp, ns)
			cfg, err := cp.ServiceAccount(t.Context(), ns, "half", append(tc.rules, common...))
			if err != nil {
				t.Fatal(err)
			}
			s := harness.Start(t, cp, harness.Options{Config: cfg})
			calls := map[string]harness.Args{
				"scale":           of(ns, "deployment", "web").With("replicas", 3),
				"rollout_restart": of(ns, "deployment", "web"),
			}
			no := s.Must("plan_"+tc.denied, calls[tc.denied])
			for _, want := range []string{"dry run failed (403)", tc.wantVerb, tc.wantResource, "no confirm phrase was issued"} {
				if harness.Code(no) != "dry_run_failed" || !strings.Contains(no.Text, want) {
					t.Errorf("plan_%s lacks %q: %s", tc.denied, want, no.Text)
				}
			}
			p := harness.Into[planned](t, s.Must("plan_"+tc.works, calls[tc.works]))
			note := strings.Contains(strings.Join(p.Warnings, " "), "cannot be noted")
			if p.Confirm == "" || note != tc.wantNote {
				t.Errorf("plan_%s: phrase %q, warnings %q", tc.works, p.Confirm, p.Warnings)
			}
			got := harness.Into[execution](t, s.Must(tc.works, calls[tc.works].With("confirm", p.Confirm).With("reason", "a test")))
			if got.Outcome != plan.Executed {
				t.Errorf("%s: outcome %q %s", tc.works, got.Outcome, got.Detail)
			}
			d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
			if _, noted := d.Annotations["kubernetes.io/change-cause"]; err != nil || noted == tc.wantNote {
				t.Errorf("noted %t (%v)", noted, err)
			}
		})
	}
}
