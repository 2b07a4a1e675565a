package integration

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// wantNoPhrase checks a plan that failed in its dry run: our sentence is the first line,
// the API server's the last one, and nothing was written.
func wantNoPhrase(t *testing.T, s *harness.Server, got stdio.Tool, first, untrusted string) {
	t.Helper()
	if harness.Code(got) != "dry_run_failed" || got.Field("confirm") != "" || !strings.Contains(got.Text, "no confirm phrase was issued") {
		t.Errorf("code %q, want dry_run_failed and no phrase: %s", harness.Code(got), got.Text)
	}
	lines := strings.Split(got.Text, "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(lines[0], first) || !strings.HasPrefix(last, "untrusted: ") || !strings.Contains(last, untrusted) {
		t.Errorf("want %q first, and %q in the untrusted line: %s", first, untrusted, got.Text)
	}
	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Errorf("it wrote %+v", w)
	}
}

// dryRuns are the mutating requests that went out as dry runs, of one method.
func dryRuns(s *harness.Server, method string) []harness.Request {
	return s.Proxy.Requests(func(r harness.Request) bool { return r.Method == method && strings.Contains(r.Query, "dryRun=All") })
}

// TestCase_AD_01: a webhook that cannot take a dry run fails the plan, and is no fault of the
// arguments. This API server registers none (TestFault_38_SideEffects in test/faults).
func TestCase_AD_01(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	s := start(t, wide...)
	s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
		if r.Method != http.MethodPut {
			return true
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: 400, Reason: metav1.StatusReasonBadRequest,
			Message: `admission webhook "x.example.com" does not support dry run`,
		})
		return false
	})
	got := s.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 3))
	wantNoPhrase(t, s, got, "dry run failed (400)", `admission webhook "x.example.com" does not support dry run`)
}

// TestCase_AD_02: a webhook that is down fails the plan with its name, at the first try; one
// that may be ignored does not.
func TestCase_AD_02(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	url, fail, none := "https://"+closedPort(t), admissionv1.Fail, admissionv1.SideEffectClassNone
	api := cp.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	hook, err := api.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "x.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: &url}, NamespaceSelector: harness.InNamespace(ns),
			FailurePolicy: &fail, SideEffects: &none, TimeoutSeconds: new(int32(1)), AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	probe := func(wantDown bool) {
		t.Helper()
		lab.Eventually(t, "the webhook to be as it is said to be", func() (bool, error) {
			_, err := cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			return (err != nil && strings.Contains(err.Error(), "failed calling webhook")) == wantDown, err
		})
	}
	probe(true)
	s := start(t, wide...)
	got := s.Must("plan_rollout_restart", of(ns, "deployment", "web"))
	wantNoPhrase(t, s, got, "dry run failed (500)", `"x.example.com"`)
	if n := len(dryRuns(s, http.MethodPatch)); n != 1 {
		t.Errorf("%d dry runs, want 1", n)
	}
	ignore := admissionv1.Ignore
	hook.Webhooks[0].FailurePolicy = &ignore
	if _, err := api.Update(t.Context(), hook, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	probe(false)
	s.Plan("rollout_restart", of(ns, "deployment", "web"))
}

// TestCase_AD_04: what a policy denies and what it only warns of is both told at the plan.
func TestCase_AD_04(t *testing.T) {
	t.Parallel()
	const message = "the tag latest is not allowed here"
	for action, check := range map[admissionv1.ValidationAction]func(t *testing.T, s *harness.Server, got stdio.Tool){
		admissionv1.Deny: func(t *testing.T, s *harness.Server, got stdio.Tool) {
			wantNoPhrase(t, s, got, "dry run failed (422)", message)
		},
		admissionv1.Warn: func(t *testing.T, _ *harness.Server, got stdio.Tool) {
			lines := strings.Split(got.Text, "\n")
			if last := lines[len(lines)-1]; got.Field("confirm") == "" || !strings.HasPrefix(last, "untrusted: ") || !strings.Contains(last, message) {
				t.Errorf("want a phrase, and the warning in the untrusted line: %s", got.Text)
			}
			if !strings.Contains(string(got.Structured), message) {
				t.Errorf("the structured form has no warning: %s", got.Structured)
			}
		},
	} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			ns := cp.Namespace(t)
			harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
			api := cp.Client.AdmissionregistrationV1()
			if _, err := api.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: ns},
				Spec: admissionv1.ValidatingAdmissionPolicySpec{
					MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
						Operations: []admissionv1.OperationType{admissionv1.Update},
						Rule:       admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
					}}}},
					Validations: []admissionv1.Validation{{Expression: "object.spec.template.spec.containers.all(c, !c.image.endsWith(':latest'))", Message: message}},
				},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
				ObjectMeta: metav1.ObjectMeta{Name: ns},
				Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
					PolicyName: ns, ValidationActions: []admissionv1.ValidationAction{action}, MatchResources: &admissionv1.MatchResources{NamespaceSelector: harness.InNamespace(ns)},
				},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			s := start(t, wide...)
			call := of(ns, "deployment", "web").With("container", "main").With("image", "nginx:latest")
			var got stdio.Tool
			lab.Eventually(t, "the policy to be in force", func() (bool, error) {
				got = s.Must("plan_set_image", call)
				return strings.Contains(got.Text, message), nil
			})
			check(t, s, got)
			if got := s.Must("plan_set_image", call.With("image", "nginx:1.29")); got.Field("confirm") == "" || strings.Contains(got.Text, message) {
				t.Errorf("another tag: %s", got.Text)
			}
		})
	}
}

// TestCase_AD_06: every write that has fields asks for strict validation, since the API
// server drops an unknown field otherwise and calls it a success.
func TestCase_AD_06(t *testing.T) {
	t.Parallel()
	b := newWorkbench(t)
	s := start(t, append(wide, "--verify-timeout", "1s")...)
	calls := b.calls()
	for _, action := range slices.Backward(slices.Sorted(maps.Keys(calls))) { // rollout_pause after those that it refuses
		s.Do(action, calls[action])
	}
	dry, live := 0, 0
	for _, r := range s.Proxy.Requests(func(r harness.Request) bool {
		return (r.Method == http.MethodPut || r.Method == http.MethodPatch) && !strings.HasSuffix(r.Path, "/eviction")
	}) {
		if !strings.Contains(r.Query, "fieldValidation=Strict") {
			t.Errorf("%s %s?%s", r.Method, r.Path, r.Query)
		}
		if r.Mutates() {
			live++
		} else {
			dry++
		}
	}
	if live < 6 || dry < 2*live {
		t.Errorf("%d writes and %d dry runs were seen, want at least 6 and twice as many", live, dry)
	}
	apps := cp.Client.AppsV1().Deployments(b.ns)
	typo := []byte(`{"spec":{"replica":5}}`)
	_, err := apps.Patch(t.Context(), "web", types.MergePatchType, typo, metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict})
	if err == nil || !strings.Contains(err.Error(), "spec.replica") {
		t.Errorf("a typo with strict validation: %v", err)
	}
	if _, err := apps.Patch(t.Context(), "web", types.MergePatchType, typo, metav1.PatchOptions{}); err != nil {
		t.Errorf("a typo without: %v", err)
	}
}
