package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// versions are the resourceVersions of all that an action could write in the workbench.
func versions(t *testing.T, b workbench) map[string]string {
	t.Helper()
	out := map[string]string{}
	keep := func(kind string, m metav1.Object) { out[kind+" "+m.GetName()] = m.GetResourceVersion() }
	ctx, all := t.Context(), metav1.ListOptions{}
	apps, core := cp.Client.AppsV1(), cp.Client.CoreV1()
	deployments, err1 := apps.Deployments(b.ns).List(ctx, all)
	sets, err2 := apps.StatefulSets(b.ns).List(ctx, all)
	daemons, err3 := apps.DaemonSets(b.ns).List(ctx, all)
	replicas, err4 := apps.ReplicaSets(b.ns).List(ctx, all)
	pods, err5 := core.Pods(b.ns).List(ctx, all)
	budgets, err6 := cp.Client.PolicyV1().PodDisruptionBudgets(b.ns).List(ctx, all)
	jobs, err7 := cp.Client.BatchV1().Jobs(b.ns).List(ctx, all)
	cronJobs, err8 := cp.Client.BatchV1().CronJobs(b.ns).List(ctx, all)
	for _, err := range []error{err1, err2, err3, err4, err5, err6, err7, err8} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range deployments.Items {
		keep("deployment", &deployments.Items[i])
	}
	for i := range sets.Items {
		keep("statefulset", &sets.Items[i])
	}
	for i := range daemons.Items {
		keep("daemonset", &daemons.Items[i])
	}
	for i := range replicas.Items {
		keep("replicaset", &replicas.Items[i])
	}
	for i := range pods.Items {
		keep("pod", &pods.Items[i])
	}
	for i := range jobs.Items {
		keep("job", &jobs.Items[i])
	}
	for i := range cronJobs.Items {
		keep("cronjob", &cronJobs.Items[i])
	}
	for i := range budgets.Items {
		keep("budget", &budgets.Items[i])
	}
	for _, name := range []string{b.node, b.drained} {
		n, err := core.Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		keep("node", n)
	}
	return out
}

// TestPlansWriteNothing plans everything that there is, and then no object has moved, and
// every mutating request was a dry run in each place where the API server may look.
func TestPlansWriteNothing(t *testing.T) {
	b := newWorkbench(t)
	calls, planned := b.furnish(t), map[string]bool{}
	s := start(t, wide...)
	before := versions(t, b)
	for _, tc := range []struct {
		action  string
		args    harness.Args
		wantDry []string // method and the end of the path, sorted
	}{
		{"scale", of(b.ns, "deployment", "web").With("replicas", 3), []string{"PATCH web", "PUT scale"}},
		{"scale", of(b.ns, "deployment", "web").With("replicas", 1), []string{"PATCH web", "PUT scale"}},
		{"scale", of(b.ns, "statefulset", "db").With("replicas", 3), []string{"PUT scale"}},
		{"scale", of(b.ns, "replicaset", "rs").With("replicas", 0), []string{"PUT scale"}},
		{"rollout_restart", of(b.ns, "deployment", "web"), []string{"PATCH web"}},
		{"rollout_restart", of(b.ns, "statefulset", "db"), []string{"PATCH db"}},
		{"rollout_restart", of(b.ns, "daemonset", "agent"), []string{"PATCH agent"}},
		{"delete_pod", of(b.ns, "pod", "loner"), []string{"DELETE loner"}},
		{"delete_pod", of(b.ns, "pod", "loner").With("grace_period_seconds", 5), []string{"DELETE loner"}},
		{"cordon", harness.Args{"node": b.node}, []string{"PATCH " + b.node}},
		{"uncordon", calls["uncordon"], []string{"PATCH " + b.ns + "-cordoned"}},
		{"rollout_pause", calls["rollout_pause"], []string{"PATCH web"}},
		{"rollout_resume", calls["rollout_resume"], []string{"PATCH paused"}},
		{"rollout_undo", calls["rollout_undo"], []string{"PATCH past"}},
		{"rollout_undo", of(b.ns, "statefulset", "pastset").With("to_revision", 1), []string{"PATCH pastset"}},
		{"set_image", calls["set_image"], []string{"PATCH web"}},
		{"set_image", of(b.ns, "daemonset", "agent").With("container", "main").With("image", "main:9"), []string{"PATCH agent"}},
		{"evict_pod", calls["evict_pod"].With("grace_period_seconds", 5), []string{"POST eviction"}},
		{"job_suspend", calls["job_suspend"], []string{"PATCH mail"}},
		{"job_resume", calls["job_resume"], []string{"PATCH asleep"}},
		{"cronjob_suspend", calls["cronjob_suspend"], []string{"PATCH mail"}},
		{"cronjob_resume", calls["cronjob_resume"], []string{"PATCH asleep"}},
		{"cronjob_trigger", calls["cronjob_trigger"], []string{"POST jobs"}},
		{"drain", harness.Args{"node": b.drained}, []string{"PATCH " + b.drained, "POST eviction", "POST eviction"}},
	} {
		t.Run(tc.action, func(t *testing.T) {
			s.Proxy.Reset()
			s.T, planned[tc.action] = t, true
			s.Plan(tc.action, tc.args)
			var dry []string
			for _, r := range s.Proxy.Requests(nil) {
				if r.Method == http.MethodGet || strings.HasSuffix(r.Path, "/selfsubjectreviews") {
					continue
				}
				end := r.Path[strings.LastIndexByte(r.Path, '/')+1:]
				dry = append(dry, r.Method+" "+end)
				if !strings.Contains(r.Query, "dryRun=All") {
					t.Errorf("no dryRun in the query of %s %s?%s", r.Method, r.Path, r.Query)
				}
				inBody := strings.Contains(r.Body, `"dryRun":["All"]`)
				if wants := r.Method == http.MethodDelete || end == "eviction"; inBody != wants {
					t.Errorf("dryRun in the body of %s %s: %t, want %t: %s", r.Method, r.Path, inBody, wants, r.Body)
				}
			}
			slices.Sort(dry)
			if diff := cmp.Diff(tc.wantDry, dry); diff != "" {
				t.Errorf("dry runs (-want +got):\n%s", diff)
			}
			if w := s.Proxy.Writes(); len(w) != 0 {
				t.Errorf("a plan wrote: %+v", w)
			}
		})
	}
	s.T = t
	for _, a := range actions.All() {
		if !planned[a.Name] {
			t.Errorf("%s was not planned", a.Name)
		}
	}
	if diff := cmp.Diff(before, versions(t, b)); diff != "" {
		t.Errorf("something moved (-before +after):\n%s", diff)
	}
	if w := realWrites(t, b.ns); len(w) != 0 {
		t.Errorf("the API server's audit log has writes: %q", w)
	}
}

// TestRefusedWriteNothing provokes refusals of plans and executions, and nothing is
// written for any of them.
func TestRefusedWriteNothing(t *testing.T) {
	b := newWorkbench(t)
	harness.Create(t, cp, b.ns,
		harness.Deployment("six").Replicas(6).Ready(6),
		harness.Deployment("single").Ready(1),
		harness.Deployment("paused").Ready(1).With(func(d *appsv1.Deployment) { d.Spec.Paused = true }),
		harness.Node(b.ns+"-foreign").Ready().With(func(n *corev1.Node) { n.Labels["pool"] = "other" }),
	)
	web := of(b.ns, "deployment", "web").With("replicas", 3)
	writes := func(action string, args harness.Args) func(*testing.T, *harness.Server) (string, any) {
		return func(_ *testing.T, s *harness.Server) (string, any) { return action, s.Plan(action, args) }
	}
	plans := func(action string, args harness.Args) func(*testing.T, *harness.Server) (string, any) {
		return func(*testing.T, *harness.Server) (string, any) { return "plan_" + action, args }
	}
	executes := func(action string, change func(t *testing.T, s *harness.Server, args harness.Args) harness.Args) func(*testing.T, *harness.Server) (string, any) {
		return func(t *testing.T, s *harness.Server) (string, any) {
			return action, change(t, s, s.Plan(action, b.calls()[action]))
		}
	}
	for _, tc := range []struct {
		name      string
		flags     []string
		call      func(*testing.T, *harness.Server) (tool string, args any)
		wantCode  string
		wantEvent string
		reads     bool // it may read before it refuses
	}{
		{"a guessed phrase", nil, func(*testing.T, *harness.Server) (string, any) {
			return "scale", web.With("confirm", "scale deployment "+b.ns+"/web from 2 to 3 on kind-lab [aaaaaaaaaa-aaaaaaaaaaaa]").With("reason", "a test")
		}, "unknown_phrase", "refused", false},
		{"wrong arguments", nil, executes("scale", func(_ *testing.T, _ *harness.Server, a harness.Args) harness.Args {
			return a.With("replicas", 4)
		}), "wrong_arguments", "refused", false},
		{"another action's phrase", nil, func(_ *testing.T, s *harness.Server) (string, any) {
			return "rollout_restart", of(b.ns, "deployment", "web").With("reason", "a test").With("confirm", s.Plan("scale", web)["confirm"])
		}, "wrong_arguments", "refused", false},
		{"stale", nil, executes("scale", func(t *testing.T, _ *harness.Server, a harness.Args) harness.Args {
			setReplicas(t, b.ns, "web", 1)
			return a
		}), "stale", "stale", true},
		{"a rate of writes", []string{"--writes-per-minute", "1"}, func(t *testing.T, s *harness.Server) (string, any) {
			args := s.Plan("scale", of(b.ns, "statefulset", "db").With("replicas", 4))
			if got := s.Do("uncordon", harness.Args{"node": cordonedNode(t, b)}); got.IsError {
				t.Fatal(got.Text)
			}
			s.Proxy.Reset()
			return "scale", args
		}, "rate_limited", "rate_limited", false},
		{"a rate of plans", []string{"--plans-per-minute", "1"}, func(_ *testing.T, s *harness.Server) (string, any) {
			s.Plan("scale", web)
			s.Proxy.Reset()
			return "plan_scale", web
		}, "rate_limited", "rate_limited", false},
		{"kube-system", nil, plans("scale", of("kube-system", "deployment", "coredns").With("replicas", 0)), "out_of_scope", "refused", false},
		{"a pod of kube-public", nil, plans("delete_pod", of("kube-public", "pod", "x")), "out_of_scope", "refused", false},
		{"a namespace that is not allowed", []string{"--allow-namespaces", "elsewhere"}, plans("rollout_restart", of(b.ns, "deployment", "web")), "out_of_scope", "refused", false},
		{"a node of another pool", nil, plans("cordon", harness.Args{"node": b.ns + "-foreign"}), "node_not_allowed", "refused", true},
		{"a drain of another pool", nil, plans("drain", harness.Args{"node": b.ns + "-foreign"}), "node_not_allowed", "refused", true},
		{"an uncordon of another pool", nil, plans("uncordon", harness.Args{"node": b.ns + "-foreign"}), "node_not_allowed", "refused", true},
		{"too much at risk", nil, plans("scale", of(b.ns, "deployment", "six").With("replicas", 1)), "blast_limit", "refused", true},
		{"the last pod", nil, writes("scale", of(b.ns, "deployment", "single").With("replicas", 0)), "needs_person", "waiting_for_person", true},
		{"a pod that does not come back", nil, writes("delete_pod", of(b.ns, "pod", "loner")), "needs_person", "waiting_for_person", true},
		{"irreversible is refused", []string{"--irreversible", "refuse"}, plans("delete_pod", of(b.ns, "pod", "loner")), "blast_limit", "refused", true},
		{"a text for a number", nil, plans("scale", web.With("replicas", "3")), "invalid_arguments", "refused", false},
		{"an unknown argument", nil, plans("scale", web.With("dry_run", false)), "invalid_arguments", "refused", false},
		{"null for a number", nil, plans("scale", web.With("replicas", nil)), "invalid_arguments", "refused", false},
		{"a number that is missing", nil, plans("scale", of(b.ns, "deployment", "web")), "invalid_arguments", "refused", false},
		{"two targets", nil, plans("scale", web.With("statefulset", "db")), "invalid_arguments", "refused", false},
		{"a wildcard", nil, plans("delete_pod", of(b.ns, "pod", "*")), "invalid_arguments", "refused", false},
		{"no namespace", nil, plans("rollout_restart", harness.Args{"deployment": "web"}), "invalid_arguments", "refused", false},
		{"an empty namespace", nil, plans("rollout_restart", of("", "deployment", "web")), "invalid_arguments", "refused", false},
		{"above the cap", []string{"--max-replicas", "5"}, plans("scale", web.With("replicas", 6)), "invalid_arguments", "refused", false},
		{"a target that is not there", nil, plans("scale", of(b.ns, "deployment", "wed").With("replicas", 3)), "not_found", "refused", true},
		{"a namespace that is not there", nil, plans("scale", of(b.ns+"-x", "deployment", "web").With("replicas", 3)), "not_found", "refused", true},
		{"a version that is not so", nil, plans("scale", web.With("expected_version", "v0123456789")), "precondition_failed", "refused", true},
		{"no revision to go back to", nil, plans("rollout_undo", of(b.ns, "deployment", "six")), "no_history", "refused", true},
		{"revision 0", nil, plans("rollout_undo", of(b.ns, "deployment", "web").With("to_revision", 0)), "invalid_arguments", "refused", false},
		{"an undo of a paused rollout", nil, plans("rollout_undo", of(b.ns, "deployment", "paused")), "paused", "refused", true},
		{"no such container", nil, plans("set_image", of(b.ns, "deployment", "web").With("container", "web").With("image", "x")), "not_found", "refused", true},
		{"no image", nil, plans("set_image", of(b.ns, "deployment", "web").With("container", "main").With("image", "main:1 ")), "invalid_arguments", "refused", false},
		{"an eviction that does not come back", nil, writes("evict_pod", of(b.ns, "pod", "loner")), "needs_person", "waiting_for_person", true},
		{"a cronjob that is not there", nil, plans("cronjob_trigger", of(b.ns, "cronjob", "none")), "not_found", "refused", true},
		{"a job of kube-system", nil, plans("job_suspend", of("kube-system", "job", "x")), "out_of_scope", "refused", false},
		{"a paused rollout", nil, plans("rollout_restart", of(b.ns, "deployment", "paused")), "paused", "refused", true},
		{"a ReplicaSet of a Deployment", nil, plans("scale", of(b.ns, "replicaset", "web-5d4f8c7b9").With("replicas", 3)), "owned_by_controller", "refused", true},
		{"an action that is not enabled", []string{"--actions", "scale"}, plans("cordon", harness.Args{"node": b.node}), "out_of_scope", "refused", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := start(t, tc.flags...)
			tool, args := tc.call(t, s)
			if !tc.reads {
				s.Proxy.Reset()
			}
			was := len(soFar(t, s))
			got := s.Must(tool, args)
			if code := harness.Code(got); code != tc.wantCode || !got.IsError {
				t.Errorf("code %q, error %t, want %s: %s", code, got.IsError, tc.wantCode, got.Text)
			}
			if w := s.Proxy.Writes(); len(w) != 0 {
				t.Errorf("it wrote %+v", w)
			}
			if all := s.Proxy.Requests(nil); !tc.reads && len(all) != 0 {
				t.Errorf("nothing was to be read: %+v", all)
			}
			events := harness.Events(t, s.State)
			if diff := cmp.Diff([]string{tc.wantEvent}, events[was:]); diff != "" {
				t.Errorf("journal (-want +got):\n%s", diff)
			}
		})
	}
	if w := slices.DeleteFunc(realWrites(t, b.ns), func(w string) bool { return strings.Contains(w, "-spare") }); len(w) != 0 {
		t.Errorf("the API server's audit log has writes: %q", w)
	}
}

// cordonedNode makes a cordoned node and gives its name.
func cordonedNode(t *testing.T, b workbench) string {
	t.Helper()
	n := harness.Node(b.ns + "-spare").Ready().With(func(n *corev1.Node) { n.Spec.Unschedulable = true })
	harness.Create(t, cp, b.ns, n)
	return n.Object.Name
}

func setReplicas(t *testing.T, ns, name string, n int) {
	t.Helper()
	body := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
	if _, err := cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestWhereDryRunTravels is why the fence is as it is: what the API server takes for a
// dry run, and what it does for real (FACTS 2).
func TestWhereDryRunTravels(t *testing.T) {
	ns := cp.Namespace(t)
	admin := cp.Client.CoreV1().RESTClient()
	deleteOptions := func(dry bool) string {
		if dry {
			return `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"]}`
		}
		return `{"kind":"DeleteOptions","apiVersion":"v1"}`
	}
	eviction := func(pod string, dry bool) string {
		return fmt.Sprintf(`{"kind":"Eviction","apiVersion":"policy/v1","metadata":{"name":%q,"namespace":%q},"deleteOptions":%s}`, pod, ns, deleteOptions(dry))
	}
	// A policy sees what admission is told: it denies every eviction that is not a dry run.
	onlyDry(t, ns)
	deployments, pods := "/apis/apps/v1/namespaces/"+ns+"/deployments/", "/api/v1/namespaces/"+ns+"/pods/"
	for i, tc := range []struct {
		name     string
		verb     string
		body     func(name string) string
		query    bool
		wantReal bool // it was done, or admission was told that it would be
	}{
		{"merge patch, in its body", "PATCH", func(string) string { return `{"dryRun":["All"],"spec":{"replicas":5}}` }, false, true},
		{"merge patch, in its query", "PATCH", func(string) string { return `{"spec":{"replicas":5}}` }, true, false},
		{"scale, in its query", "PUT", func(n string) string {
			return fmt.Sprintf(`{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":%q,"namespace":%q},"spec":{"replicas":5}}`, n, ns)
		}, true, false},
		{"scale, in its body", "PUT", func(n string) string {
			return fmt.Sprintf(`{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":%q,"namespace":%q},"spec":{"replicas":5},"dryRun":["All"]}`, n, ns)
		}, false, true},
		{"delete with a body, in its query", "DELETE", func(string) string { return deleteOptions(false) }, true, true},
		{"delete, in its body", "DELETE", func(string) string { return deleteOptions(true) }, false, false},
		{"delete, in both", "DELETE", func(string) string { return deleteOptions(true) }, true, false},
		{"eviction, in its body", "POST", func(n string) string { return eviction(n, true) }, false, true},
		{"eviction, in both", "POST", func(n string) string { return eviction(n, true) }, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name := fmt.Sprint("d", i)
			req := admin.Verb(tc.verb)
			switch tc.verb {
			case "PATCH":
				harness.Create(t, cp, ns, harness.Deployment(name))
				req = admin.Patch(types.MergePatchType).AbsPath(deployments + name)
			case "PUT":
				harness.Create(t, cp, ns, harness.Deployment(name))
				req.AbsPath(deployments+name+"/scale").SetHeader("Content-Type", "application/json")
			case "DELETE":
				harness.Create(t, cp, ns, harness.Pod(name))
				req.AbsPath(pods+name).SetHeader("Content-Type", "application/json")
			case "POST":
				harness.Create(t, cp, ns, harness.Pod(name))
				req.AbsPath(pods+name+"/eviction").SetHeader("Content-Type", "application/json")
			}
			if tc.query {
				req.Param("dryRun", "All")
			}
			err := req.Body([]byte(tc.body(name))).Do(t.Context()).Error()
			if err != nil && tc.verb != "POST" {
				t.Fatal(err)
			}
			var did bool
			switch tc.verb {
			case "PATCH", "PUT":
				d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				did = *d.Spec.Replicas == 5
			case "DELETE":
				_, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
				did = apierrors.IsNotFound(err)
			case "POST":
				did = err != nil && strings.Contains(err.Error(), "only dry runs")
				if err != nil && !did {
					t.Fatal(err)
				}
			}
			if did != tc.wantReal {
				t.Errorf("real %t, want %t (%v)", did, tc.wantReal, err)
			}
		})
	}
}

// onlyDry binds a policy to a namespace that denies evictions which are no dry run, and
// waits until it is in force.
func onlyDry(t *testing.T, ns string) {
	t.Helper()
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: "has(request.dryRun) && request.dryRun", Message: "only dry runs"}},
		},
	}
	harness.Bind(t, cp, ns, policy)
	harness.Create(t, cp, ns, harness.Pod("probe"))
	lab.Eventually(t, "the policy to be in force", func() (bool, error) {
		err := cp.Client.CoreV1().Pods(ns).EvictV1(t.Context(), &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Name: "probe", Namespace: ns},
			DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
		})
		return err != nil && strings.Contains(err.Error(), "only dry runs"), nil
	})
}

// TestWhereTypedCallsPutDryRun is the other half: where client-go's typed calls put it.
func TestWhereTypedCallsPutDryRun(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web"), harness.Pod("loner"))
	p := harness.NewProxy(t, cp.Config)
	cfg := p.Config()
	cfg.CertData, cfg.KeyData = nil, nil
	cfg.ContentType = "application/json"
	cfg.BearerToken = harness.Account(t, cp).BearerToken
	c, err := kubernetes.NewForConfig(rest.AddUserAgent(cfg, "test"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, dry := t.Context(), []string{metav1.DryRunAll}
	apps, pods := c.AppsV1().Deployments(ns), c.CoreV1().Pods(ns)
	for _, tc := range []struct {
		name                string
		call                func() error
		wantQuery, wantBody bool
	}{
		{"Patch", func() error {
			_, err := apps.Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{DryRun: dry})
			return err
		}, true, false},
		{"UpdateScale", func() error {
			_, err := apps.UpdateScale(ctx, "web", &autoscalingv1.Scale{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: ns}, Spec: autoscalingv1.ScaleSpec{Replicas: 5},
			}, metav1.UpdateOptions{DryRun: dry})
			return err
		}, true, false},
		{"Delete", func() error {
			return pods.Delete(ctx, "loner", metav1.DeleteOptions{DryRun: dry, GracePeriodSeconds: ptr.To(int64(1))})
		}, false, true},
		{"EvictV1", func() error {
			return pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "loner", Namespace: ns}, DeleteOptions: &metav1.DeleteOptions{DryRun: dry}})
		}, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p.Reset()
			if err := tc.call(); err != nil {
				t.Fatal(err)
			}
			all := p.Requests(nil)
			if len(all) != 1 {
				t.Fatalf("%d requests: %+v", len(all), all)
			}
			inQuery, inBody := strings.Contains(all[0].Query, "dryRun=All"), strings.Contains(all[0].Body, `"dryRun":["All"]`)
			if inQuery != tc.wantQuery || inBody != tc.wantBody {
				t.Errorf("in the query %t, in the body %t; want %t and %t: %+v", inQuery, inBody, tc.wantQuery, tc.wantBody, all[0])
			}
		})
	}
	d, err := cp.Client.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 1 {
		t.Errorf("a dry run wrote: replicas %d (%v)", *d.Spec.Replicas, err)
	}
	if _, err := cp.Client.CoreV1().Pods(ns).Get(ctx, "loner", metav1.GetOptions{}); err != nil {
		t.Errorf("a dry run deleted: %v", err)
	}
}
