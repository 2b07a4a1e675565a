package http

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// TestDrain: at SIGTERM nothing new is taken, and what is in flight is answered and on
// record before the process ends.
func TestDrain(t *testing.T) {
	cfg := account(t)
	proxy := harness.NewProxy(t, cfg)
	p := start(t, options{cfg: proxy.Config()})
	_, token := caller(t, may("plan,write"))
	_, args := harness.Web(t, cp)
	c := p.connect(stdio.Legacy, token)
	confirmed := c.plan("scale", args.With("replicas", 3))
	arrived, release := proxy.Hold(harness.Request.Mutates)
	type result struct {
		stdio.Tool
		error
	}
	done := make(chan result, 1)
	go func() {
		got, err := c.try("scale", confirmed)
		done <- result{got, err}
	}()
	<-arrived
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "new calls to be refused", func() (bool, error) {
		other := *c
		got, err := other.do(other.request("tools/list", nil))
		return err != nil || got.status == http.StatusServiceUnavailable, nil
	})
	select {
	case <-p.done:
		t.Fatal("it ended with a write in flight")
	default:
	}
	release()
	if got := <-done; got.error != nil || got.Field("outcome") != "EXECUTED" {
		t.Errorf("what was in flight: %v %s", got.error, got.Text)
	}
	<-p.done
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d: %s", code, p.log)
	}
	executed := 0
	for _, l := range harness.Lines(t, p.state) {
		if l.Event == journal.EventExecute {
			executed++
		}
	}
	if executed != 1 {
		t.Errorf("%d execute lines", executed)
	}
}

// TestProbes: alive means that the process answers, ready that something can be planned.
func TestProbes(t *testing.T) {
	proxy := harness.NewProxy(t, account(t))
	p := start(t, options{cfg: proxy.Config()})
	nobody := p.connect(stdio.Modern, "")
	// The kubelet asks by the address of the pod, and has no token.
	probe := func(path string) reply {
		r, err := http.NewRequest(http.MethodGet, p.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "10.0.0.1:8443"
		got, err := p.do(r)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if alive, ready := probe("/healthz"), probe("/readyz"); alive.status != 200 || ready.status != 200 || ready.body != "ready" {
		t.Fatalf("at the start: %+v %+v", alive, ready)
	}
	proxy.Before(func(_ *harness.Request, w http.ResponseWriter) bool {
		http.Error(w, "", http.StatusBadGateway)
		return false
	})
	lab.Eventually(t, "the cluster to be missed", func() (bool, error) {
		got := probe("/readyz")
		return got.status == 503 && got.body == "not ready: the API server does not answer", nil
	})
	all := func(harness.Request) bool { return true }
	before := len(proxy.Requests(all))
	for range 20 {
		if got := probe("/healthz"); got.status != 200 {
			t.Errorf("alive without a cluster: %+v", got)
		}
		probe("/readyz")
	}
	if asked := len(proxy.Requests(all)) - before; asked > 5 {
		t.Errorf("20 probes asked the API server %d times", asked)
	}
	proxy.Before(nil)
	lab.Eventually(t, "the cluster to be back", func() (bool, error) { return probe("/readyz").status == 200, nil })
	nobody.token = "x"
	if got := nobody.get("/metrics"); got.status != 401 {
		t.Errorf("metrics for nobody: %d", got.status)
	}
}

// TestSealed: a journal that cannot be trusted makes the server not ready, and alive.
func TestSealed(t *testing.T) {
	p := start(t, options{cfg: account(t)})
	_, token := caller(t, may("plan"))
	_, args := harness.Web(t, cp)
	c := p.connect(stdio.Modern, token)
	c.plan("scale", args.With("replicas", 3))
	audit := filepath.Join(p.state, "audit.jsonl")
	good, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(audit, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := c.call("plan_scale", args.With("replicas", 4)); harness.Code(got) != "audit_unavailable" {
		t.Errorf("with a record that was cut: %s", got.Text)
	}
	if ready, alive := c.get("/readyz"), c.get("/healthz"); ready.status != 503 || ready.body != "not ready: the journal is sealed" || alive.status != 200 {
		t.Errorf("ready %+v, alive %+v", ready, alive)
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.done
	if err := os.WriteFile(audit, good, 0o600); err != nil { // the clean-up verifies it
		t.Fatal(err)
	}
}

// TestMetrics: what happened is counted, under labels that no caller and no object can
// fill, for who may get it.
func TestMetrics(t *testing.T) {
	p := start(t, options{cfg: account(t)})
	scrape := rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}
	_, token := caller(t, scrape, may("plan,write"))
	ns, args := harness.Web(t, cp)
	c := p.connect(stdio.Modern, token)
	c.call("scale", c.plan("scale", args.With("replicas", 1))) // which needs the pods
	c.call("plan_scale", harness.Of(ns, "deployment", "no-such-thing").With("replicas", 3))
	c.call("plan_nothing", args)
	got := c.get("/metrics")
	if got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for _, want := range []string{
		`kube_write_mcp_lines_total{code="",event="plan",tool="plan_scale"} 1`,
		`kube_write_mcp_lines_total{code="EXECUTED",event="execute",tool="scale"} 1`,
		`kube_write_mcp_lines_total{code="not_found",event="refused",tool="plan_scale"} 1`,
		`kube_write_mcp_call_duration_seconds_count{failed="false",tool="plan_scale"} 1`,
		`kube_write_mcp_call_duration_seconds_count{failed="true",tool="plan_scale"} 1`,
		`kube_write_mcp_cache_objects{resource="pods"} 2`,
		`kube_write_mcp_cache_age_seconds{resource="pods"} `,
		`kube_write_mcp_journal_sealed 0`,
		`kube_write_mcp_journal_bytes `,
		`kube_write_mcp_http_answers_total{status="200"} `,
		`go_goroutines `,
	} {
		if !strings.Contains(got.body, want) {
			t.Errorf("there is no %s", want)
		}
	}
	for _, no := range []string{ns, "no-such-thing", "plan_nothing", "serviceaccount"} {
		if strings.Contains(got.body, no) {
			t.Errorf("a label says %s", no)
		}
	}
}

// TestTraces: where the environment names an endpoint, a call and what it asked of the API
// server are spans of the caller's trace.
func TestTraces(t *testing.T) {
	var mu sync.Mutex
	var spans []byte
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/v1/traces" {
			spans = append(spans, body...)
		}
	}))
	defer collector.Close()
	p := start(t, options{cfg: account(t), env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL}})
	_, token := caller(t, may("plan"))
	ns, args := harness.Web(t, cp)
	c := p.connect(stdio.Modern, token)
	r := c.request("tools/call", map[string]any{"name": "plan_scale", "arguments": args.With("replicas", 3)})
	trace := "\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36"
	r.Header.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	if got, err := p.do(r); err != nil || got.status != 200 {
		t.Fatal(err, got.body)
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.done // it sends the last ones
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{trace, "tools/call plan_scale", "url.path", "/apis/apps/v1/namespaces/" + ns + "/deployments/web"} {
		if !strings.Contains(string(spans), want) {
			t.Errorf("no span has %q", want)
		}
	}
	if strings.Contains(string(spans), token) || strings.Contains(p.log.String(), "traces could not") {
		t.Error("a token is in the spans, or they could not be sent: " + p.log.String())
	}
}

// lend lets the server's account impersonate the caller of a namespace, and nobody else.
func lend(t *testing.T, server *rest.Config, ns string) {
	t.Helper()
	self, err := kubernetes.NewForConfigOrDie(server).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bind(t, ns, "lend", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, Verbs: []string{"impersonate"}, ResourceNames: []string{"caller"}},
		rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: self.Status.UserInfo.Username})
	lab.Eventually(t, "leave to impersonate", func() (bool, error) {
		as := rest.CopyConfig(server)
		as.Impersonate.UserName = "system:serviceaccount:" + ns + ":caller"
		_, err := kubernetes.NewForConfigOrDie(as).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err == nil, err
	})
}

var impersonated = regexp.MustCompile(`"impersonatedUser":\{"username":"([^"]*)"`)

// TestImpersonate: with --impersonate the API server is asked whether the caller itself may
// write, and its audit log names both.
func TestImpersonate(t *testing.T) {
	writer := rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"deployments", "deployments/scale"}, Verbs: []string{"get", "patch", "update"}}
	able, ableToken := caller(t, may("plan,write"), writer)
	unable, unableToken := caller(t, may("plan,write"))
	_, strangerToken := caller(t, may("plan,write"), writer)
	server := account(t)
	for _, user := range []string{able, unable} {
		lend(t, server, strings.Split(user, ":")[2])
	}
	p := start(t, options{cfg: server, flags: []string{"--impersonate"}})
	_, args := harness.Web(t, cp)
	c := p.connect(stdio.Modern, ableToken)
	if got := c.call("scale", c.plan("scale", args.With("replicas", 3))); got.Field("outcome") != "EXECUTED" {
		t.Errorf("who may write: %s", got.Text)
	}
	for name, token := range map[string]string{"who may not write": unableToken, "who may not be impersonated": strangerToken} {
		if got := p.connect(stdio.Modern, token).call("plan_scale", args.With("replicas", 4)); harness.Code(got) != "dry_run_failed" || !strings.Contains(got.Text, "(403)") {
			t.Errorf("%s: %s", name, got.Text)
		}
	}
	events, err := cp.AuditEvents(t.Context())
	if err != nil || len(events) == 0 {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(cp.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	as := map[string]int{}
	for _, m := range impersonated.FindAllStringSubmatch(string(raw), -1) {
		as[m[1]]++
	}
	if as[able] == 0 || as[unable] == 0 {
		t.Errorf("impersonated were %v", as)
	}
}
