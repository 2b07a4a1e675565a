package harness

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// Wide are flags that let a test do what is not its subject.
var Wide = []string{"--max-blast-percent", "100", "--irreversible", "allow", "--writes-per-minute", "1000", "--plans-per-minute", "10000"}

// Of are the arguments that name a target.
func Of(ns, kind, name string) Args { return Args{"namespace": ns, kind: name} }

// Execution is the structured answer of a write tool.
type Execution struct {
	Outcome  plan.Outcome       `json:"outcome"`
	Replayed bool               `json:"replayed"`
	Plan     string             `json:"plan"`
	Detail   string             `json:"detail"`
	Result   json.RawMessage    `json:"result"`
	Current  *plan.Verification `json:"current"`
}

var programs struct {
	sync.Mutex
	of map[*lab.Lab]string
}

// Program is the path of the shipped program, built once into the folder of the lab.
func Program(t testing.TB, l *lab.Lab) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if path := programs.of[l]; path != "" {
		return path
	}
	path := filepath.Join(filepath.Dir(l.AuditLog()), "kube-write-mcp")
	out, err := exec.Command("go", "build", "-o", path, "github.com/kubewrite/kube-write-mcp/cmd/kube-write-mcp").CombinedOutput()
	if err != nil {
		t.Fatal(fmt.Errorf("%w: %s", err, out))
	}
	if programs.of == nil {
		programs.of = map[*lab.Lab]string{}
	}
	programs.of[l] = path
	return path
}

// Hold stops the first request that matches: arrived is closed when it is there, and
// release lets it go on.
func (p *Proxy) Hold(match func(Request) bool) (arrived chan struct{}, release func()) {
	arrived, gate := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	p.Before(func(r *Request, _ http.ResponseWriter) bool {
		if match(*r) && !held.Swap(true) {
			close(arrived)
			<-gate
		}
		return true
	})
	return arrived, func() { close(gate) }
}

// Bind makes an admission policy and binds it to one namespace. It is in force a moment
// later.
func Bind(t testing.TB, l *lab.Lab, ns string, policy *admissionv1.ValidatingAdmissionPolicy) {
	t.Helper()
	api := l.Client.AdmissionregistrationV1()
	if _, err := api.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: policy.ObjectMeta,
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			MatchResources: &admissionv1.MatchResources{NamespaceSelector: InNamespace(ns)},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// InNamespace selects one namespace by its name.
func InNamespace(ns string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
}

// Tells wants every text in an answer.
func Tells(t testing.TB, got stdio.Tool, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got.Text, w) {
			t.Errorf("the answer lacks %q:\n%s", w, got.Text)
		}
	}
}

// Waits wants the answer of a plan tool to be a plan that waits for a person, who is told
// why, and to say so before everything else.
func Waits(t testing.TB, got stdio.Tool, why string) {
	t.Helper()
	first, _, _ := strings.Cut(got.Text, "\n")
	if got.IsError || got.Field("status") != "waits for a person" || got.Field("confirm") == "" || !strings.HasPrefix(first, "WAITS FOR A PERSON: ") || !strings.Contains(first, why) {
		t.Errorf("want a plan that waits for a person (%s), got:\n%s", why, got.Text)
	}
}

// Silent wants none of the texts in an answer.
func Silent(t testing.TB, got stdio.Tool, unwanted ...string) {
	t.Helper()
	for _, w := range unwanted {
		if strings.Contains(got.Text, w) {
			t.Errorf("the answer must not say %q:\n%s", w, got.Text)
		}
	}
}
