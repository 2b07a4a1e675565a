package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// reader starts a server with the read tools alone, as an account with exactly the rules
// that "rbac --read-only" prints.
func reader(t *testing.T, args ...string) *harness.Server {
	t.Helper()
	return harness.Start(t, cp, harness.Options{ReadOnly: true, Config: readerAccount(t), Args: append([]string{"--read-only"}, args...)})
}

var readerAccounts struct {
	sync.Mutex
	cfg *rest.Config
}

func readerAccount(t *testing.T) *rest.Config {
	t.Helper()
	readerAccounts.Lock()
	defer readerAccounts.Unlock()
	if readerAccounts.cfg == nil {
		cfg, err := cp.ServiceAccount(t.Context(), "kube-write-mcp", "reader", read.Rules())
		if err != nil {
			t.Fatal(err)
		}
		readerAccounts.cfg = cfg
	}
	return readerAccounts.cfg
}

// lines are the rows of a list.
func rows[T any](t *testing.T, got stdio.Tool, field string) (out []T) {
	t.Helper()
	all := harness.Into[map[string]json.RawMessage](t, got)
	if err := json.Unmarshal(all[field], &out); err != nil {
		t.Fatalf("%v in %s", err, got.Structured)
	}
	return out
}

func event(t *testing.T, ns, name, kind, object, reason, message string) {
	t.Helper()
	if _, err := cp.Client.CoreV1().Events(ns).Create(t.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Type: "Warning", Reason: reason, Message: message, Count: 3,
		LastTimestamp: metav1.Now(), InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: ns, Name: object},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestReads calls every read tool under exactly the RBAC of --read-only. Each leaves one
// line, and sends nothing that could write.
func TestReads(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	k := newKubelet(t, ns+"-node")
	harness.Create(t, cp, ns,
		harness.Deployment("web").Replicas(3).Ready(2).With(func(d *appsv1.Deployment) {
			d.Annotations = map[string]string{"deployment.kubernetes.io/revision": "1", "example.com/note": "a note"}
		}).Pods(func(p *corev1.PodTemplateSpec) { p.Spec.NodeName = k.node }),
		harness.StatefulSet("db").Replicas(1).Ready(1),
		harness.Budget("web").MaxUnavailable(1).Allows(0, 2),
	)
	if _, err := cp.Client.AutoscalingV2().HorizontalPodAutoscalers(ns).Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "grow"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MinReplicas: ptr.To(int32(2)), MaxReplicas: 5,
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	event(t, ns, "late", "Deployment", "web", "Slow", "the image is pulled")
	event(t, ns, "other", "Pod", "elsewhere", "Slow", "not asked for")
	pod := harness.PodName("web", 0)
	k.writes(ns+"/"+pod+"/main", []byte("first\nsecond\nthird\n"))

	s := reader(t)
	list, err := s.Request("tools/list", nil)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(list.Line, `"plan_`) || strings.Contains(list.Line, `"scale"`) {
		t.Errorf("--read-only lists more than reads: %s", list.Line)
	}

	workloads := rows[read.Workload](t, s.Must("list_workloads", harness.Args{"namespace": ns}), "workloads")
	var names []string
	for _, w := range workloads {
		names = append(names, fmt.Sprintf("%s %s %s %d/%d", w.Kind, w.Name, w.State, w.Ready, w.Desired))
	}
	if diff := cmp.Diff([]string{"deployment web not ready 2/3", "statefulset db ready 1/1"}, names); diff != "" {
		t.Errorf("list_workloads (-want +got):\n%s", diff)
	}
	pods := rows[read.Pod](t, s.Must("list_pods", harness.Args{"namespace": ns, "selector": "app=web"}), "pods")
	if len(pods) != 3 || pods[0].Ready || !pods[1].Ready || pods[0].Owner == nil || pods[0].Node != k.node {
		t.Errorf("list_pods: what is not ready must come first: %+v", pods)
	}
	if on := rows[read.Pod](t, s.Must("list_pods", harness.Args{"namespace": ns, "node": k.node}), "pods"); len(on) != 3 {
		t.Errorf("on the node are %+v", on)
	}
	got := s.Must("get_workload", of(ns, "deployment", "web"))
	w := harness.Into[read.WorkloadDetails](t, got)
	if w.Version != workloads[0].Version || w.Settings["strategy"] != "RollingUpdate" || len(w.History) != 1 || len(w.Containers) != 1 || len(w.Managers) == 0 {
		t.Errorf("get_workload: %+v", w)
	}
	if len(w.Budgets) != 1 || w.Budgets[0].Healthy != 2 || len(w.Autoscalers) != 1 || w.Autoscalers[0].Max != 5 {
		t.Errorf("budgets %+v, autoscalers %+v", w.Budgets, w.Autoscalers)
	}
	for _, a := range w.Annotations {
		if shown := a.Key == "deployment.kubernetes.io/revision"; (a.Value != "") != shown || (a.Hash == "") != shown {
			t.Errorf("annotation %+v", a)
		}
	}
	harness.Tells(t, got, "deployment "+ns+"/web: not ready on kind-lab", "disruption budget web: max_unavailable 1, allows 0 now", "autoscaler grow: 2 to 5", w.Version)
	owned := harness.Into[read.WorkloadDetails](t, s.Must("get_workload", of(ns, "replicaset", w.History[0].Object)))
	if owned.Owner == nil || owned.Owner.Name != "web" {
		t.Errorf("the owner of the ReplicaSet: %+v", owned.Owner)
	}
	nodes := rows[read.Node](t, s.Must("list_nodes", harness.Args{"selector": "kubernetes.io/hostname=" + k.node}), "nodes")
	if len(nodes) != 1 || !nodes[0].Ready || !nodes[0].Schedulable || nodes[0].MaxPods != 110 {
		t.Errorf("list_nodes: %+v", nodes)
	}
	events := rows[read.Event](t, s.Must("list_events", of(ns, "deployment", "web").With("warnings", true)), "events")
	if len(events) != 1 || events[0].Message != "the image is pulled" || events[0].Count != 3 {
		t.Errorf("list_events: %+v", events)
	}
	logs := harness.Into[read.Logs](t, s.Must("get_logs", of(ns, "pod", pod).With("tail", 2)))
	if diff := cmp.Diff([]string{"second", "third"}, logs.Lines); diff != "" || logs.Truncated == "" {
		t.Errorf("get_logs (%s), -want +got:\n%s", logs.Truncated, diff)
	}
	spaces := rows[read.Namespace](t, s.Must("list_namespaces", harness.Args{"selector": corev1.LabelMetadataName + " in (kube-system, " + ns + ")"}), "namespaces")
	if len(spaces) != 2 || spaces[0].Writes != "allowed" && spaces[1].Writes != "allowed" || spaces[0].Writes != "protected" && spaces[1].Writes != "protected" {
		t.Errorf("list_namespaces: %+v", spaces)
	}
	history := s.Must("write_history", nil)
	if w := rows[read.Write](t, history, "writes"); len(w) != 0 {
		t.Errorf("write_history: %+v", w)
	}

	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Errorf("a read wrote: %+v", w)
	}
	for _, r := range s.Proxy.Requests(nil) {
		if strings.Contains(r.Path, "/secrets") || strings.Contains(r.Path, "/configmaps") {
			t.Errorf("a read asked for %s", r.Path)
		}
	}
	if got := harness.Events(t, s.State); !slices.Equal(got, slices.Repeat([]string{"read"}, 10)) {
		t.Errorf("10 reads left %v", got)
	}
	for _, l := range harness.Lines(t, s.State) {
		if l.Args == nil || l.Call == 0 || l.Principal == nil {
			t.Errorf("a line without arguments, call or principal: %+v", l)
		}
	}
}

// TestReadVersion: the version that every read prints is the one that a plan expects.
func TestReadVersion(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	node := ns + "-node"
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2), harness.Pod("loner"), harness.Node(node).Ready())
	t.Cleanup(workbench{ns, node, node}.removeNodes)
	s := start(t, wide...)
	versions := map[string]string{
		"scale":      rows[read.Workload](t, s.Must("list_workloads", harness.Args{"namespace": ns}), "workloads")[0].Version,
		"delete_pod": rows[read.Pod](t, s.Must("list_pods", harness.Args{"namespace": ns, "selector": "app=loner"}), "pods")[0].Version,
		"cordon":     rows[read.Node](t, s.Must("list_nodes", harness.Args{"selector": "kubernetes.io/hostname=" + node}), "nodes")[0].Version,
	}
	for action, args := range map[string]harness.Args{
		"scale": of(ns, "deployment", "web").With("replicas", 3), "delete_pod": of(ns, "pod", "loner"), "cordon": {"node": node},
	} {
		if got := s.Must("plan_"+action, args.With("expected_version", versions[action])); got.Field("version") != versions[action] {
			t.Errorf("plan_%s at version %s: %s", action, versions[action], got.Text)
		}
		if got := s.Must("plan_"+action, args.With("expected_version", "v0000000000")); harness.Code(got) != "precondition_failed" {
			t.Errorf("plan_%s at another version: %s", action, got.Text)
		}
	}
}

// crowd makes pods, one in seven of them not ready.
func crowd(t *testing.T, ns string, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for part := range 8 {
		wg.Go(func() {
			for i := part; i < n; i += 8 {
				p := harness.Pod(fmt.Sprintf("pod-%04d", i))
				if i%7 == 0 {
					p.Phase(corev1.PodPending)
				}
				harness.Create(t, cp, ns, p)
			}
		})
	}
	wg.Wait()
}

// TestReadPages walks a list of 130 pods by its handle: each pod once, what is not ready
// first in each page, the limit in the query, what is missing in numbers.
func TestReadPages(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	crowd(t, ns, 130)
	s := reader(t)
	seen, args := map[string]bool{}, harness.Args{"namespace": ns}
	for i, want := range []struct {
		shown     int
		truncated string
	}{{50, "80 more of pods"}, {50, "30 more of pods"}, {30, ""}} {
		got := s.Must("list_pods", args)
		page := harness.Into[read.Page](t, got)
		if page.Shown != want.shown || !strings.HasPrefix(page.Truncated, want.truncated) || (page.Continue == "") != (want.truncated == "") {
			t.Errorf("page %d: %+v", i, page)
		}
		if want.truncated != "" && !strings.Contains(page.Truncated, "narrow with namespace, node or selector") {
			t.Errorf("page %d does not say how to narrow: %s", i, page.Truncated)
		}
		if n := utf8.RuneCountInString(got.Text); n >= 8000 {
			t.Errorf("page %d is %d characters", i, n)
		}
		settled := false
		for _, p := range rows[read.Pod](t, got, "pods") {
			if seen[p.Name] {
				t.Errorf("%s came twice", p.Name)
			}
			if settled && !p.Ready {
				t.Errorf("%s is not ready and comes after ready ones", p.Name)
			}
			seen[p.Name], settled = true, p.Ready
		}
		args = harness.Args{"namespace": ns, "continue": page.Continue}
	}
	if len(seen) != 130 {
		t.Errorf("%d pods were seen", len(seen))
	}
	for _, r := range s.Proxy.Requests(func(r harness.Request) bool { return strings.HasSuffix(r.Path, "/pods") }) {
		if !strings.Contains(r.Query, "limit=50") || !strings.Contains(r.Query, "timeoutSeconds=20") {
			t.Errorf("the query is not bounded: %s", r.Query)
		}
	}

	most := s.Must("list_pods", harness.Args{"namespace": ns, "limit": 200})
	if page := harness.Into[read.Page](t, most); page.Shown != 130 || page.Truncated != "" || utf8.RuneCountInString(most.Text) >= 8000 {
		t.Errorf("all at once: %+v, %d characters", page, utf8.RuneCountInString(most.Text))
	}
	harness.Tells(t, most, "more rows stand in the structured answer only")

	handle := harness.Into[read.Page](t, s.Must("list_pods", harness.Args{"namespace": ns})).Continue
	for name, bad := range map[string]harness.Args{
		"another namespace":  {"namespace": "default", "continue": handle},
		"another selector":   {"namespace": ns, "selector": "app=x", "continue": handle},
		"no handle":          {"namespace": ns, "continue": "bm9uZQ"},
		"too many rows":      {"namespace": ns, "limit": 201},
		"no rows":            {"namespace": ns, "limit": 0},
		"half a row":         {"namespace": ns, "limit": 1.5},
		"no selector":        {"namespace": ns, "selector": "app in (\u202e"},
		"no namespace":       {"namespace": "-x"},
		"an unknown one":     {"namespace": ns, "all": true},
		"an empty namespace": {"namespace": ""},
	} {
		if got := s.Must("list_pods", bad); harness.Code(got) != "invalid_arguments" || strings.Contains(got.Text, "\u202e") {
			t.Errorf("%s: %s", name, got.Text)
		}
	}
}

// TestReadPagesOfKinds: a page may end between two kinds, and the next one begins there.
func TestReadPagesOfKinds(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("a"), harness.Deployment("b"), harness.StatefulSet("c"), harness.DaemonSet("d"))
	s := reader(t)
	var seen, truncated []string
	args := harness.Args{"namespace": ns, "limit": 1}
	for range 10 {
		got := s.Must("list_workloads", args)
		page := harness.Into[read.Page](t, got)
		for _, w := range rows[read.Workload](t, got, "workloads") {
			seen = append(seen, w.Name)
		}
		if truncated = append(truncated, strings.Split(page.Truncated, ".")[0]); page.Continue == "" {
			break
		}
		args = args.With("continue", page.Continue)
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d"}, seen); diff != "" {
		t.Errorf("workloads (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(truncated[0], "1 more of deployments") {
		t.Errorf("truncated: %q", truncated)
	}
}

// TestReadScope: scope bounds the query itself. Out of it, nothing is asked.
func TestReadScope(t *testing.T) {
	t.Parallel()
	in, out := cp.Namespace(t), cp.Namespace(t)
	harness.Create(t, cp, in, harness.Pod("mine"))
	harness.Create(t, cp, out, harness.Pod("theirs"))
	s := reader(t, "--allow-namespaces", in)
	for tool, args := range map[string]harness.Args{
		"list_pods": {"namespace": out}, "list_workloads": {"namespace": out}, "list_events": {"namespace": out}, "write_history": {"namespace": out},
		"get_workload": of(out, "deployment", "web"), "get_logs": of(out, "pod", "theirs"),
	} {
		if got := s.Must(tool, args); harness.Code(got) != "out_of_scope" {
			t.Errorf("%s: %s", tool, got.Text)
		}
	}
	if r := s.Proxy.Requests(nil); len(r) != 0 {
		t.Errorf("a call out of scope asked for something: %+v", r)
	}
	for tool, field := range map[string]string{"list_pods": "pods", "list_workloads": "workloads", "list_events": "events", "list_namespaces": "namespaces"} {
		got := s.Must(tool, nil)
		if strings.Contains(string(got.Structured), out) || strings.Contains(string(got.Structured), "theirs") {
			t.Errorf("%s: %s", tool, got.Structured)
		}
		if n := len(rows[json.RawMessage](t, got, field)); field == "pods" && n != 1 || field == "namespaces" && n != 1 {
			t.Errorf("%s gave %d rows: %s", tool, n, got.Text)
		}
	}
	for _, r := range s.Proxy.Requests(func(r harness.Request) bool { return r.Method == http.MethodGet }) {
		identity := r.Path == "/api/v1/namespaces/kube-system"
		if !identity && !strings.Contains(r.Path, "/namespaces/"+in+"/") && !strings.Contains(r.Query, "metadata.name%3D"+in) {
			t.Errorf("a query out of scope: %s?%s", r.Path, r.Query)
		}
	}
	everywhere := reader(t)
	if got := everywhere.Must("list_pods", harness.Args{"namespace": "kube-system"}); got.IsError {
		t.Errorf("a protected namespace may be read: %s", got.Text)
	}
}

// TestReadForbidden: without a rule, the read is refused and the rule is named.
func TestReadForbidden(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web"), harness.Pod("loner"))
	cfg, err := cp.ServiceAccount(t.Context(), "kube-write-mcp", "half-"+ns, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get"}},
		{APIGroups: []string{"apps"}, Resources: []string{"replicasets"}, Verbs: []string{"list"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := harness.Start(t, cp, harness.Options{ReadOnly: true, Config: cfg, Args: []string{"--read-only"}})
	for _, tc := range []struct {
		tool string
		args harness.Args
		want string
	}{
		{"list_pods", nil, "the verb list on pods;"},
		{"list_pods", harness.Args{"namespace": ns}, "the verb list on pods;"},
		{"list_workloads", nil, "the verb list on deployments.apps;"},
		{"list_nodes", nil, "the verb list on nodes;"},
		{"list_events", nil, "the verb list on events;"},
		{"list_namespaces", nil, "the verb list on namespaces;"},
		{"get_workload", of(ns, "statefulset", "db"), "the verb get on statefulsets.apps;"},
		{"get_workload", of(ns, "deployment", "web"), "the verb list on horizontalpodautoscalers.autoscaling;"},
		{"get_logs", of(ns, "pod", "loner"), "the verb get on pods/log;"},
	} {
		if got := s.Must(tc.tool, tc.args); harness.Code(got) != "forbidden" || !strings.Contains(got.Field("hint"), tc.want) {
			t.Errorf("%s %v: %s", tc.tool, tc.args, got.Text)
		}
	}
}

// TestReadAbsent: an object that is not there comes with near names.
func TestReadAbsent(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web-frontend"), harness.Pod("web-0"))
	s := reader(t)
	for _, tc := range []struct {
		tool string
		args harness.Args
		want string
	}{
		{"get_workload", of(ns, "deployment", "web-frontent"), "near names are web-frontend"},
		{"get_logs", of(ns, "pod", "web-1"), "near names are web-0"},
	} {
		got := s.Must(tc.tool, tc.args)
		if harness.Code(got) != "not_found" || got.Field("hint") != tc.want || strings.Contains(got.Text, "plan") {
			t.Errorf("%s: %s", tc.tool, got.Text)
		}
	}
	for name, args := range map[string]harness.Args{
		"no object": {"namespace": ns}, "two objects": of(ns, "deployment", "web").With("job", "web"), "no namespace": {"deployment": "web"},
	} {
		if got := s.Must("get_workload", args); harness.Code(got) != "invalid_arguments" {
			t.Errorf("%s: %s", name, got.Text)
		}
	}
}

// TestReadNotOnRecord: a journal that cannot be written stops no read, and the answer says
// that it is not on record.
func TestReadNotOnRecord(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web"))
	s := reader(t)
	audit := filepath.Join(s.State, "audit.jsonl")
	s.Must("list_workloads", harness.Args{"namespace": ns})
	if err := os.Rename(audit, audit+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(audit, 0o700); err != nil {
		t.Fatal(err)
	}
	got := s.Must("list_workloads", harness.Args{"namespace": ns})
	if got.IsError || !harness.Into[read.Workloads](t, got).NotOnRecord || !strings.HasPrefix(got.Text, "not on record: ") {
		t.Errorf("the answer: %s", got.Text)
	}
	if err := os.Remove(audit); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(audit+".away", audit); err != nil {
		t.Fatal(err)
	}
}

// TestWriteHistory: one's own calls, newest first, by every filter.
func TestWriteHistory(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2), harness.StatefulSet("db").Replicas(2).Ready(2))
	s := start(t, append(wide, "--verify-timeout", "1s")...)
	s.Must("plan_scale", of("kube-system", "deployment", "web").With("replicas", 1))
	planned := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	s.Must("scale", planned)
	s.Must("scale", planned)
	s.Must("plan_rollout_restart", of(ns, "statefulset", "db"))
	s.Must("list_pods", harness.Args{"namespace": ns})
	id := strings.Split(planned["confirm"].(string), "[")[1][:10]
	for name, tc := range map[string]struct {
		args harness.Args
		want []string
	}{
		"all":          {nil, []string{"plan rollout_restart", "replayed scale", "verify scale", "execute scale", "plan scale", "refused scale"}},
		"a namespace":  {harness.Args{"namespace": ns}, []string{"plan rollout_restart", "replayed scale", "verify scale", "execute scale", "plan scale"}},
		"a plan":       {harness.Args{"plan": id}, []string{"replayed scale", "verify scale", "execute scale", "plan scale"}},
		"an action":    {harness.Args{"action": "rollout_restart"}, []string{"plan rollout_restart"}},
		"a target":     {harness.Args{"statefulset": "db"}, []string{"plan rollout_restart"}},
		"an event":     {harness.Args{"outcome": "plan"}, []string{"plan rollout_restart", "plan scale"}},
		"a code":       {harness.Args{"outcome": "EXECUTED"}, []string{"execute scale"}},
		"since":        {harness.Args{"since_seconds": 3600, "outcome": "refused"}, []string{"refused scale"}},
		"another name": {harness.Args{"deployment": "db"}, nil},
	} {
		var got []string
		for _, w := range rows[read.Write](t, s.Must("write_history", tc.args), "writes") {
			got = append(got, w.Event+" "+strings.TrimPrefix(w.Tool, "plan_"))
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	first := s.Must("write_history", harness.Args{"limit": 4})
	page := harness.Into[read.Page](t, first)
	if page.Shown != 4 || !strings.HasPrefix(page.Truncated, "older lines") {
		t.Errorf("the first page: %+v", page)
	}
	rest := rows[read.Write](t, s.Must("write_history", harness.Args{"limit": 4, "continue": page.Continue}), "writes")
	if len(rest) != 2 || rest[1].Code != "out_of_scope" {
		t.Errorf("the second page: %+v", rest)
	}
	for name, bad := range map[string]harness.Args{
		"two targets": {"pod": "a", "node": "b"}, "no words": {"outcome": "x;y"}, "no handle": {"continue": "x"}, "no id": {"plan": "x"},
	} {
		if got := s.Must("write_history", bad); harness.Code(got) != "invalid_arguments" {
			t.Errorf("%s: %s", name, got.Text)
		}
	}
}
