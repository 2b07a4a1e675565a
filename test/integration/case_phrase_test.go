package integration

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// TestCase_PX_01: an approved change is not applied to a state that has moved on, and its
// plan is over. That it loses under the write as well is TestCase_CL_11.
func TestCase_PX_01(t *testing.T) {
	t.Parallel()
	checkDrift(t, "scale", func(t *testing.T, ns string) harness.Args {
		harness.Create(t, cp, ns, harness.Deployment("web").Replicas(3).Ready(3))
		return of(ns, "deployment", "web").With("replicas", 5)
	}, drift{
		move:     func(t *testing.T, ns string) { setReplicas(t, ns, "web", 4) },
		wantCode: "stale", wantText: []string{"spec.replicas", "planned 3", "now 4", "plan again"},
	})
}

// TestCase_PX_02: neither the resourceVersion nor the generation is drift. Conflicts that
// these cause under the write are TestConflictStorm.
func TestCase_PX_02(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"scale", "rollout_restart", "cordon"} {
		moves := map[string]string{"status": "", "annotation": `{"metadata":{"annotations":{"deployment.kubernetes.io/revision":"7"}}}`}
		for name, body := range moves {
			t.Run(action+"/"+name, func(t *testing.T) {
				t.Parallel()
				b := newTarget(t, action)
				harness.Converge(t, cp, b.ns)
				version := func() string {
					if action == "cordon" {
						n, err := cp.Client.CoreV1().Nodes().Get(t.Context(), b.node, metav1.GetOptions{})
						if err != nil || n.Generation != 0 {
							t.Fatalf("generation %d (%v): a node has none", n.Generation, err)
						}
						return n.ResourceVersion
					}
					d, err := cp.Client.AppsV1().Deployments(b.ns).Get(t.Context(), "web", metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					return d.ResourceVersion
				}
				s := start(t, wide...)
				args := s.Plan(action, b.calls()[action])
				was := version()
				for i := range 5 {
					switch {
					case body == "":
						if err := touchStatus(t, b, action, i); err != nil {
							t.Fatal(err)
						}
					case action == "cordon":
						patchAs(t, "nodes", "", b.node, body)
					default:
						patchAs(t, "deployments", b.ns, "web", body)
					}
				}
				if version() == was {
					t.Error("the resourceVersion has not moved")
				}
				if got := s.Must(action, args); harness.Into[execution](t, got).Outcome != plan.Executed {
					t.Errorf("%s", got.Text)
				}
			})
		}
	}
}

// TestCase_PX_03: a call that is repeated gives the first result, whatever has moved since,
// sends nothing, and is no write for the rate.
func TestCase_PX_03(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2), harness.Deployment("api").Replicas(2).Ready(2))
	harness.Converge(t, cp, ns)
	s := start(t, "--writes-per-minute", "2")
	args := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	next := s.Plan("scale", of(ns, "deployment", "api").With("replicas", 3))
	first := harness.Into[execution](t, s.Must("scale", args))
	if first.Outcome != plan.Executed || first.Replayed {
		t.Fatalf("the first call: %+v", first)
	}
	// A conflict, with a status that is written meanwhile, wrote nothing and is tried again.
	wrote := func() []string {
		return slices.DeleteFunc(realWrites(t, ns), func(w string) bool { return strings.HasSuffix(w, " 409") })
	}
	onRecord := wrote()
	puts := slices.DeleteFunc(slices.Clone(onRecord), func(w string) bool { return !strings.HasPrefix(w, "update ") })
	if len(puts) != 1 || len(onRecord) > 2 {
		t.Errorf("the API server's audit log has %q, want one PUT and at most one note", onRecord)
	}
	for i := range 2 {
		if i == 1 {
			setReplicas(t, ns, "web", 7)
		}
		again := harness.Into[execution](t, s.Must("scale", args))
		if !again.Replayed || string(again.Result) != string(first.Result) {
			t.Errorf("call %d: replayed %t, result\n%s\nwant\n%s", i+2, again.Replayed, again.Result, first.Result)
		}
	}
	if diff := cmp.Diff(onRecord, wrote()); diff != "" {
		t.Errorf("the repeats wrote (-before +after):\n%s", diff)
	}
	if got := s.Must("scale", next); harness.Into[execution](t, got).Outcome != plan.Executed {
		t.Errorf("the second write of two: %s", got.Text)
	}
}

// TestCase_PX_04: 20 calls of one phrase at once over a slow connection send each Step once,
// and all of them have the one result.
func TestCase_PX_04(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	harness.Converge(t, cp, ns)
	s := start(t, wide...)
	args := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	s.Proxy.Before(func(*harness.Request, http.ResponseWriter) bool {
		<-time.After(500 * time.Millisecond)
		return true
	})
	answers := together(t, 20, "scale", args, s)
	sameResult(t, answers, plan.Executed)
	for _, a := range answers {
		if a.IsError {
			t.Errorf("%s", a.Text)
		}
	}
	sent := map[string]int{}
	for _, r := range s.Proxy.Writes() {
		if r.Status != http.StatusConflict { // a definite no, after which the Step leaves again
			sent[r.Method]++
		}
	}
	if diff := cmp.Diff(map[string]int{http.MethodPut: 1, http.MethodPatch: 1}, sent); diff != "" {
		t.Errorf("requests, those of the scale and its note (-want +got):\n%s", diff)
	}
}

// TestCase_PX_06_Drain: a phrase must be good when its execution starts, not when it ends.
func TestCase_PX_06_Drain(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	node := ns + "-drained"
	harness.Create(t, cp, ns, harness.Node(node).Ready(), harness.Node(ns+"-node").Ready(),
		harness.Deployment("web").Replicas(1).Pods(onNode(node)).Ready(1), harness.Budget("web").Allows(0, 1))
	t.Cleanup(workbench{ns, ns + "-node", node}.removeNodes)
	s := start(t, append(wide, "--ttl", "20s", "--verify-timeout", "1s")...)
	call := harness.Args{"node": node, "timeout_seconds": 60}
	got := s.Must("plan_drain", call)
	expires, err := time.Parse(time.RFC3339, got.Field("expires"))
	if err != nil {
		t.Fatal(err, got.Text)
	}
	args := call.With("confirm", got.Field("confirm")).With("reason", "a test")
	_, answer, err := s.Send("tools/call", map[string]any{"name": "drain", "arguments": args})
	if err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the plan to expire", func() (bool, error) { return time.Now().After(expires), nil })
	allow(t, ns, "web", 1)
	first, err := stdio.Parse(<-answer)
	if err != nil {
		t.Fatal(err)
	}
	x := harness.Into[execution](t, first)
	if x.Outcome != plan.Executed {
		t.Errorf("a drain that took longer than its plan lives: %s", first.Text)
	}
	if again := harness.Into[execution](t, s.Must("drain", args)); !again.Replayed || string(again.Result) != string(x.Result) {
		t.Errorf("replayed %t with %s, want %s", again.Replayed, again.Result, x.Result)
	}
}

// onNode places the pods of a template.
func onNode(name string) func(*corev1.PodTemplateSpec) {
	return func(p *corev1.PodTemplateSpec) { p.Spec.NodeName = name }
}

// allow sets how many disruptions a budget allows.
func allow(t *testing.T, ns, budget string, n int32) {
	t.Helper()
	api := cp.Client.PolicyV1().PodDisruptionBudgets(ns)
	b, err := api.Get(t.Context(), budget, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.Status.DisruptionsAllowed = n
	if _, err := api.UpdateStatus(t.Context(), b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestCase_PX_16: the server stays on the cluster that it was started on, whatever becomes
// of its kubeconfig, and its name and identity are on record.
func TestCase_PX_16(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	harness.Converge(t, cp, ns)
	a, b := harness.NewProxy(t, harness.Account(t, cp)), harness.NewProxy(t, harness.Account(t, cp))
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(current string) {
		t.Helper()
		both := clientcmdapi.NewConfig()
		for name, p := range map[string]*harness.Proxy{"a": a, "b": b} {
			cfg := p.Config()
			both.Clusters[name] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
			both.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: cfg.BearerToken}
			both.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
		}
		both.CurrentContext = current
		if err := clientcmd.WriteToFile(*both, path); err != nil {
			t.Fatal(err)
		}
	}
	write("a")
	s := harness.Start(t, cp, harness.Options{Proxy: a, Args: append([]string{"--kubeconfig", path, "--context", "a"}, wide...)})
	call := of(ns, "deployment", "web").With("replicas", 3)
	args := s.Plan("scale", call)
	if !strings.Contains(args["confirm"].(string), " on a [") {
		t.Errorf("the phrase does not name its cluster: %s", args["confirm"])
	}
	write("b")
	if got := s.Must("scale", args); harness.Into[execution](t, got).Outcome != plan.Executed {
		t.Errorf("%s", got.Text)
	}
	if n := len(b.Requests(nil)); n != 0 || count(a.Writes(), isEffect("scale")) != 1 {
		t.Errorf("%d requests to the other cluster; to the right one %+v", n, a.Writes())
	}
	system, err := cp.Client.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range harness.Lines(t, s.State) {
		if l.Plan != "" && (l.Cluster != string(system.UID) || l.Label != "a") {
			t.Errorf("the %s line is of cluster %q, label %q", l.Event, l.Cluster, l.Label)
		}
	}
	if got := s.Must("plan_scale", call.With("context", "b")); harness.Code(got) != "invalid_arguments" || !strings.Contains(got.Text, "unknown argument context") {
		t.Errorf("an argument context: %s", got.Text)
	}
}
