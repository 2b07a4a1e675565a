package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestCase_PX_11 sends phrases that are nearly right. None of them does anything, none
// consumes anything, and the right one still works.
func TestCase_PX_11(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2), harness.Deployment("api").Replicas(2).Ready(2))
	harness.Converge(t, cp, ns)
	s := start(t, wide...)
	call := of(ns, "deployment", "web").With("replicas", 3)
	right := s.Plan("scale", call)
	phrase := right["confirm"].(string)
	other := s.Plan("scale", of(ns, "deployment", "api").With("replicas", 3))["confirm"].(string)
	second := s.Plan("scale", call)["confirm"].(string) // the same plan, made again
	sentence, code, _ := strings.Cut(phrase, " [")
	otherSentence, otherCode, _ := strings.Cut(other, " [")
	_, secondCode, _ := strings.Cut(second, " [")
	id, mac, _ := strings.Cut(strings.TrimSuffix(code, "]"), "-")
	_, secondMAC, _ := strings.Cut(strings.TrimSuffix(secondCode, "]"), "-")
	flipped := strings.Map(func(r rune) rune { return map[bool]rune{true: 'b', false: 'a'}[r == 'a'] }, mac)
	for _, tc := range []struct {
		name     string
		phrase   any
		wantCode string
	}{
		{"confirmed by a boolean", true, "invalid_arguments"},
		{"guessed", sentence + " [aaaaaaaaaa-aaaaaaaaaaaa]", "unknown_phrase"},
		{"a guessed code for the right plan", sentence + " [" + id + "-" + flipped + "]", "unknown_phrase"},
		{"one character of the code", sentence + " [" + id + "-" + mac[:11] + flipped[11:] + "]", "unknown_phrase"},
		{"without its end", phrase[:len(phrase)-1], "unknown_phrase"},
		{"without its sentence", "[" + code, "unknown_phrase"},
		{"the sentence alone", sentence, "unknown_phrase"},
		{"the code alone", strings.TrimSuffix(code, "]"), "unknown_phrase"},
		{"the code of another plan", sentence + " [" + otherCode, "unknown_phrase"},
		{"the sentence of another plan", otherSentence + " [" + code, "unknown_phrase"},
		{"the mac of the same plan made again", sentence + " [" + id + "-" + secondMAC + "]", "unknown_phrase"},
		{"another number", strings.Replace(phrase, "to 3", "to 4", 1), "unknown_phrase"},
		{"another cluster", strings.Replace(phrase, "kind-lab", "kind-prod", 1), "unknown_phrase"},
		{"in capitals", strings.ToUpper(phrase), "unknown_phrase"},
		{"with a space behind", phrase + " ", "unknown_phrase"},
		{"with two spaces", strings.Replace(phrase, " ", "  ", 1), "unknown_phrase"},
		{"with a line feed", phrase + "\n", "unknown_phrase"},
		{"too long", strings.Repeat("x", 640) + phrase, "invalid_arguments"},
		{"empty", "", "invalid_arguments"},
		{"yes", "yes", "unknown_phrase"},
		{"another plan's whole phrase", other, "wrong_arguments"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := s.Must("scale", call.With("confirm", tc.phrase).With("reason", "a test"))
			if code := harness.Code(got); code != tc.wantCode {
				t.Errorf("code %q, want %s: %s", code, tc.wantCode, got.Text)
			}
			if strings.Contains(got.Text, mac) && !strings.Contains(fmt.Sprint(tc.phrase), mac) {
				t.Errorf("the refusal gives the code away: %s", got.Text)
			}
		})
	}
	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Fatalf("it wrote %+v", w)
	}
	if got := harness.Into[execution](t, s.Must("scale", right)); got.Outcome != plan.Executed {
		t.Errorf("the right phrase: outcome %q", got.Outcome)
	}
}

// TestCase_PX_05: a phrase with another change names both sides and consumes nothing.
func TestCase_PX_05(t *testing.T) {
	t.Parallel()
	ns, elsewhere := cp.Namespace(t), cp.Namespace(t)
	for _, n := range []string{ns, elsewhere} {
		harness.Create(t, cp, n, harness.Deployment("web").Replicas(3).Ready(3), harness.Deployment("api").Replicas(3).Ready(3), harness.Pod("loner"))
	}
	harness.Converge(t, cp, ns)
	s := start(t, wide...)
	right := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 5))
	wrong := func(key string, value any) harness.Args { return right.With(key, value) }
	kind := right.With("statefulset", "web")
	delete(kind, "deployment")
	pod := of(ns, "pod", "loner").With("confirm", right["confirm"]).With("reason", "a test")
	for _, tc := range []struct {
		name, tool string
		args       harness.Args
		want       []string
	}{
		{"another number", "scale", wrong("replicas", 6), []string{`"replicas":5`, `"replicas":6`}},
		{"another name", "scale", wrong("deployment", "api"), []string{`"deployment":"web"`, `"deployment":"api"`}},
		{"another namespace", "scale", wrong("namespace", elsewhere), []string{ns, elsewhere}},
		{"another kind", "scale", kind, []string{`"deployment":"web"`, `"statefulset":"web"`}},
		{"another tool", "delete_pod", pod, []string{`"deployment":"web"`, "delete_pod", `"pod":"loner"`}},
		{"an expected version more", "scale", wrong("expected_version", "v0123456789"), []string{"v0123456789"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := s.Must(tc.tool, tc.args)
			if code := harness.Code(got); code != "wrong_arguments" {
				t.Fatalf("code %q: %s", code, got.Text)
			}
			for _, want := range tc.want {
				if !strings.Contains(got.Text, want) {
					t.Errorf("the refusal lacks %s: %s", want, got.Text)
				}
			}
		})
	}
	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Fatalf("it wrote %+v", w)
	}
	// The reason is no part of the plan, and 5.0 is 5.
	if got := harness.Into[execution](t, s.Must("scale", right.With("replicas", json.RawMessage("5.0")).With("reason", "another reason"))); got.Outcome != plan.Executed {
		t.Errorf("the right call: outcome %q", got.Outcome)
	}
}

// TestCase_PX_08_PlanOutlivesItsProcess: a phrase outlives its process and is good nowhere else.
func TestCase_PX_08_PlanOutlivesItsProcess(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	harness.Converge(t, cp, ns)
	state := filepath.Join(t.TempDir(), "state")
	first := harness.Start(t, cp, harness.Options{State: state, Args: wide})
	args := first.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	stranger := start(t, wide...)
	if got := stranger.Must("scale", args); harness.Code(got) != "unknown_phrase" {
		t.Errorf("a server with another key: %s", got.Text)
	}
	restarted := harness.Start(t, cp, harness.Options{State: state, Args: wide})
	if got := harness.Into[execution](t, restarted.Must("scale", args)); got.Outcome != plan.Executed || got.Replayed {
		t.Errorf("a restarted server: outcome %q, replayed %t", got.Outcome, got.Replayed)
	}
	if n := len(stranger.Proxy.Requests(nil)); n != 0 {
		t.Errorf("the stranger sent %d requests", n)
	}
}

// TestCase_PX_16_AnotherCluster: a phrase that was made for one cluster does nothing on another,
// even where state, names and label are the same.
func TestCase_PX_16_AnotherCluster(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	state := filepath.Join(t.TempDir(), "state")
	s := harness.Start(t, cp, harness.Options{State: state, Args: wide})
	args := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
		if r.Path != "/api/v1/namespaces/kube-system" {
			return true
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"0b6a5f64-0000-4000-8000-000000000000"}}`))
		return false
	})
	got := s.Must("scale", args)
	if harness.Code(got) != "stale" || !strings.Contains(got.Text, "another cluster") {
		t.Errorf("on another cluster: %s", got.Text)
	}
	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Errorf("it wrote %+v", w)
	}
}

// TestCase_MC_14_WithoutAllowWrite: the write tools do not exist.
func TestCase_MC_14_WithoutAllowWrite(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	s := harness.Start(t, cp, harness.Options{ReadOnly: true})
	call := of(ns, "deployment", "web").With("replicas", 3)
	args := s.Plan("scale", call)
	for _, a := range actions.All() {
		if got := s.Must(a.Name, args); got.Code != -32602 {
			t.Errorf("%s: code %d, want -32602: %s", a.Name, got.Code, got.Text)
		}
	}
	m, err := s.Request("tools/list", nil)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(m.Line, `"name":"scale"`) || !strings.Contains(m.Line, `"name":"plan_scale"`) {
		t.Errorf("tools/list: %s", m.Line)
	}
	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Errorf("it wrote %+v", w)
	}
}

// TestExpectedVersion holds a plan to what its caller has read.
func TestExpectedVersion(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	harness.Converge(t, cp, ns)
	s := start(t, wide...)
	call := of(ns, "deployment", "web").With("replicas", 3)
	version := harness.Into[planned](t, s.Must("plan_scale", call)).Version
	no := s.Must("plan_scale", call.With("expected_version", "v0000000000"))
	if harness.Code(no) != "precondition_failed" || !strings.Contains(no.Text, version) || !strings.Contains(no.Text, "v0000000000") {
		t.Errorf("another version: %s", no.Text)
	}
	patchAs(t, "deployments", ns, "web", `{"metadata":{"labels":{"a":"b"}}}`) // no part of it
	args := s.Plan("scale", call.With("expected_version", version))
	patchAs(t, "deployments", ns, "web", `{"spec":{"revisionHistoryLimit":5}}`) // a part of it, and no drift of a scale
	if got := s.Must("scale", args); harness.Code(got) != "precondition_failed" {
		t.Errorf("a version that has passed: %s", got.Text)
	}
	d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 2 {
		t.Errorf("replicas %d (%v)", *d.Spec.Replicas, err)
	}
	now := harness.Into[planned](t, s.Must("plan_scale", call)).Version
	if got := harness.Into[execution](t, s.Do("scale", call.With("expected_version", now))); got.Outcome != plan.Executed {
		t.Errorf("the right version: outcome %q", got.Outcome)
	}
}
