package integration

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

type finding struct{ Check, State, Finding, Fix string }

// examine runs the doctor through a proxy.
func examine(t *testing.T, p *harness.Proxy, args ...string) (code int, report []finding) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cp.Kubeconfig(kubeconfig, "kind-lab", p.Config()); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	args = append([]string{"doctor", "--output", "json", "--kubeconfig", kubeconfig, "--state-dir", filepath.Join(t.TempDir(), "state")}, args...)
	code = app.Main(args, nil, &stdout, &stderr, actions.All()...)
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatalf("%v: %s %s", err, stdout.String(), stderr.String())
	}
	return code, report
}

// wants a finding of a check in a state, with words in it and with a fix where it is bad.
func wants(t *testing.T, report []finding, check, state, words string) {
	t.Helper()
	for _, f := range report {
		if f.Check == check && f.State == state && strings.Contains(f.Finding, words) {
			if (state == "broken" || state == "warning") && f.Fix == "" {
				t.Errorf("no fix stands beside %+v", f)
			}
			return
		}
	}
	t.Errorf("no finding of %s is %s and says %q: %+v", check, state, words, report)
}

// served is an account with exactly the rights of a server that may write in one
// namespace, with something in it.
func served(t *testing.T, more ...string) (ns string, cfg *rest.Config, args []string) {
	t.Helper()
	ns = cp.Namespace(t)
	home := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web"))
	args = append([]string{"--allow-namespaces", ns}, more...)
	name := "well-" + ns
	objects := printed(t, append([]string{"rbac", "--namespace", home, "--service-account", name}, args...)...)
	apply(t, objects...)
	granted(t, "system:serviceaccount:"+home+":"+name, objects...)
	return ns, login(t, home, name), args
}

// almighty is an account that may do everything.
func almighty(t *testing.T) *rest.Config {
	t.Helper()
	cfg, err := cp.ServiceAccount(t.Context(), cp.Namespace(t), "almighty", everything)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestDoctorFindsNothing: under the generated rights all is well, and nothing is written.
func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	_, cfg, args := served(t, "--allow-nodes", "n1")
	p := harness.NewProxy(t, cfg)
	code, report := examine(t, p, args...)
	if code != 0 {
		t.Errorf("code %d", code)
	}
	for _, f := range report {
		if f.State != "ok" && f.Check != "webhooks" { // which the server need not list
			t.Errorf("%+v", f)
		}
	}
	wants(t, report, "dry run", "ok", "it changed nothing")
	wants(t, report, "webhooks", "unknown", "need not")
	if w := p.Writes(); len(w) != 0 {
		t.Errorf("the doctor wrote %+v", w)
	}
}

// TestDoctorFindsRights: what is missing, action by action, and what is too much.
func TestDoctorFindsRights(t *testing.T) {
	t.Parallel()
	ns, cfg, args := served(t, "--actions", "scale")
	code, report := examine(t, harness.NewProxy(t, cfg), args[:2]...)
	if code != 1 {
		t.Errorf("code %d with rights missing", code)
	}
	wants(t, report, "rights of rollout_restart", "broken", "patch daemonsets.apps in "+ns)
	for _, f := range report {
		if f.Check == "rights of scale" {
			t.Errorf("%+v", f)
		}
	}
	code, report = examine(t, harness.NewProxy(t, cfg), append(slices.Clone(args[:2]), "--actions", "rollout_pause")...)
	if code != 0 {
		t.Errorf("code %d: %+v", code, report)
	}
	wants(t, report, "rights too many", "warning", "update deployments/scale.apps in "+ns)

	code, report = examine(t, harness.NewProxy(t, almighty(t)), args...)
	if code != 1 {
		t.Errorf("code %d of an admin", code)
	}
	wants(t, report, "rights too many", "broken", "* *.*")
	for _, tc := range []struct{ name, resource, verb, state string }{
		{"secrets", "secrets", "get", "broken"}, {"maps", "configmaps", "get", "warning"}, {"exec", "pods/exec", "create", "broken"}, {"grow", "serviceaccounts", "impersonate", "broken"},
	} {
		rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{tc.resource}, Verbs: []string{tc.verb}}
		cfg, err := cp.ServiceAccount(t.Context(), ns, tc.name, append([]rbacv1.PolicyRule{rule}, engine.Rules(actions.All(), read.Rules()...)...))
		if err != nil {
			t.Fatal(err)
		}
		code, report := examine(t, harness.NewProxy(t, cfg), "--allow-node-selector", "pool=lab")
		if code != map[string]int{"broken": 1, "warning": 0}[tc.state] {
			t.Errorf("%s: code %d: %+v", tc.name, code, report)
		}
		wants(t, report, "rights too many", tc.state, tc.verb+" "+tc.resource)
	}
}

// TestDoctorFindsTheServer: clocks, versions, and what answers for an API server without
// honouring dry runs.
func TestDoctorFindsTheServer(t *testing.T) {
	t.Parallel()
	ns, cfg, args := served(t)
	late := harness.NewProxy(t, cfg)
	late.After(func(_ *harness.Request, resp *http.Response) {
		resp.Header.Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
	})
	code, report := examine(t, late, args...)
	if code != 1 {
		t.Errorf("code %d with an hour between the clocks", code)
	}
	wants(t, report, "clocks", "broken", "apart")

	old := harness.NewProxy(t, cfg)
	old.Before(func(r *harness.Request, w http.ResponseWriter) bool {
		if r.Path != "/version" {
			return true
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"major":"1","minor":"33+","gitVersion":"v1.33.1"}`))
		return false
	})
	_, report = examine(t, old, args...)
	wants(t, report, "version", "warning", "v1.33.1")

	deaf := harness.NewProxy(t, cfg)
	deaf.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
		if r.Method == http.MethodPatch {
			r.Query = strings.ReplaceAll(r.Query, "dryRun=All", "")
		}
		return true
	})
	code, report = examine(t, deaf, args...)
	if code != 1 {
		t.Errorf("code %d where dry runs write", code)
	}
	wants(t, report, "dry run", "broken", "it was written: deployment "+ns+"/web")

	unknown := rest.CopyConfig(cfg)
	unknown.BearerToken = "nobody"
	code, report = examine(t, harness.NewProxy(t, unknown), args...)
	if code != 1 {
		t.Errorf("code %d without a good token", code)
	}
	wants(t, report, "API server", "broken", "")
}

// TestDoctorFindsWebhooks: which of them see the dry runs of what the actions write.
func TestDoctorFindsWebhooks(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web"))
	// Nor objects that are in no namespace: those of the tests beside it.
	nowhere := &metav1.LabelSelector{MatchLabels: map[string]string{"no": "namespace"}}
	hook := func(name, resource string, policy admissionv1.FailurePolicyType) admissionv1.ValidatingWebhook {
		return admissionv1.ValidatingWebhook{
			Name: name + ".example.com", NamespaceSelector: nowhere, ObjectSelector: nowhere, FailurePolicy: &policy, SideEffects: ptr.To(admissionv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"apps", ""}, APIVersions: []string{"*"}, Resources: []string{resource}},
			}},
		}
	}
	apply(t, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "doctor-" + ns},
		Webhooks: []admissionv1.ValidatingWebhook{
			hook("strict", "deployments/scale", admissionv1.Fail), hook("wide", "*/*", admissionv1.Fail), hook("lenient", "deployments", admissionv1.Ignore), hook("other", "configmaps", admissionv1.Fail),
		},
	})
	_, report := examine(t, harness.NewProxy(t, almighty(t)), "--allow-namespaces", ns)
	wants(t, report, "webhooks", "warning", "strict.example.com sees the dry runs of deployments/scale")
	wants(t, report, "webhooks", "warning", "wide.example.com")
	for _, f := range report {
		if strings.Contains(f.Finding, "lenient") || strings.Contains(f.Finding, "other.example") {
			t.Errorf("%+v", f)
		}
	}
}

// TestDoctorFindsApprovals: without its policy, or with another one of its name, an Approval
// proves nothing.
func TestDoctorFindsApprovals(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	args := []string{"--allow-namespaces", ns, "--ledger", "cluster", "--ledger-namespace", ns}
	operator := harness.NewProxy(t, almighty(t))
	policy, binding := cluster.ApprovalPolicy()
	_, report := examine(t, operator, args...)
	wants(t, report, "approvals", "broken", "is not installed")
	apply(t, policy)
	_, report = examine(t, operator, args...)
	wants(t, report, "approvals", "broken", "not bound")
	apply(t, binding)
	_, report = examine(t, operator, args...)
	wants(t, report, "approvals", "ok", "can name nobody else")
	_, cfg, _ := served(t)
	_, report = examine(t, harness.NewProxy(t, cfg), args...)
	wants(t, report, "approvals", "unknown", "cannot be read")

	policy.Spec.Validations = policy.Spec.Validations[:1]
	if _, err := cp.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Update(t.Context(), policy, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, report = examine(t, operator, args...)
	wants(t, report, "approvals", "broken", "is not as this version needs it")
}

// TestDoctorFindsImpersonation: whom the server may speak for is bounded by name, and only
// where it is asked to.
func TestDoctorFindsImpersonation(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web"))
	for _, tc := range []struct {
		name  string
		names []string
		args  []string
		want  string // "" is not found
	}{
		{"named", []string{"alice"}, []string{"--http", "127.0.0.1:0", "--impersonate"}, ""},
		{"anybody", nil, []string{"--http", "127.0.0.1:0", "--impersonate"}, "broken"},
		{"unused", []string{"alice"}, nil, "broken"},
	} {
		rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"users"}, ResourceNames: tc.names, Verbs: []string{"impersonate"}}
		cfg, err := cp.ServiceAccount(t.Context(), ns, tc.name, append([]rbacv1.PolicyRule{rule}, engine.Rules(actions.All(), read.Rules()...)...))
		if err != nil {
			t.Fatal(err)
		}
		_, report := examine(t, harness.NewProxy(t, cfg), append([]string{"--allow-node-selector", "pool=lab"}, tc.args...)...)
		if tc.want != "" {
			wants(t, report, "rights too many", tc.want, "impersonate users")
			continue
		}
		for _, f := range report {
			if strings.Contains(f.Finding, "impersonate") {
				t.Errorf("%s: %+v", tc.name, f)
			}
		}
	}
}
