package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// request is one request of a plain client, as a dry run or for real.
type request func(t *testing.T, c kubernetes.Interface, dry []string) error

func scaleTo(ns, name string, n int32) request {
	return func(t *testing.T, c kubernetes.Interface, dry []string) error {
		_, err := c.AppsV1().Deployments(ns).UpdateScale(t.Context(), name, &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Spec: autoscalingv1.ScaleSpec{Replicas: n},
		}, metav1.UpdateOptions{DryRun: dry})
		return err
	}
}

func patchDeployment(ns, name, body string) request {
	return func(t *testing.T, c kubernetes.Interface, dry []string) error {
		_, err := c.AppsV1().Deployments(ns).Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{DryRun: dry})
		return err
	}
}

func createDeployment(ns, name string, n int32) request {
	return func(t *testing.T, c kubernetes.Interface, dry []string) error {
		d := harness.Deployment(name).Replicas(n).Object
		_, err := c.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{DryRun: dry})
		return err
	}
}

func createJob(ns string) request {
	return func(t *testing.T, c kubernetes.Interface, dry []string) error {
		tpl := harness.Template("made")
		tpl.Spec.RestartPolicy = corev1.RestartPolicyNever
		_, err := c.BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "made-"}, Spec: batchv1.JobSpec{Template: tpl},
		}, metav1.CreateOptions{DryRun: dry})
		return err
	}
}

func deletePod(ns, name string) request {
	return func(t *testing.T, c kubernetes.Interface, dry []string) error {
		return c.CoreV1().Pods(ns).Delete(t.Context(), name, metav1.DeleteOptions{DryRun: dry})
	}
}

func evictPod(ns, name string) request {
	return func(t *testing.T, c kubernetes.Interface, dry []string) error {
		return c.CoreV1().Pods(ns).EvictV1(t.Context(), &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, DeleteOptions: &metav1.DeleteOptions{DryRun: dry},
		})
	}
}

func patchNode(name, body string) request {
	return func(t *testing.T, c kubernetes.Interface, dry []string) error {
		_, err := c.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{DryRun: dry})
		return err
	}
}

// connect asks for a subresource that runs something elsewhere; it has no dry run.
func connect(ns, pod, subresource string) request {
	return func(t *testing.T, c kubernetes.Interface, _ []string) error {
		r := c.CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name(pod).SubResource(subresource)
		if subresource == "exec" {
			r = r.Param("command", "id").Param("stdout", "true")
		}
		return r.Do(t.Context()).Error()
	}
}

// denied reports whether a policy said no with these words.
func denied(err error, words string) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), words)
}

// inForce waits for a policy to become active: by a request that it must deny.
func inForce(t *testing.T, c kubernetes.Interface, r request, dry []string, words string) {
	t.Helper()
	lab.Eventually(t, words, func() (bool, error) {
		err := r(t, c, dry)
		return denied(err, words), err
	})
}

var dryAll = []string{metav1.DryRunAll}

// everything is RBAC that stops nobody.
var everything = []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}

// confined are namespaces and nodes, an account that RBAC lets do everything, and the
// flags of a policy about them.
type confined struct {
	free, tight, protected, home string
	name                         string
	config                       *rest.Config
	account                      kubernetes.Interface
	nodeIn, nodeOut              string
	flags                        []string
}

func newConfined(t *testing.T, policy string, flags ...string) confined {
	t.Helper()
	c := confined{free: cp.Namespace(t), tight: cp.Namespace(t), protected: cp.Namespace(t), home: cp.Namespace(t)}
	c.name, c.nodeIn, c.nodeOut = "held-"+c.free, c.free+"-in", c.free+"-out"
	for _, ns := range []string{c.free, c.tight, c.protected} {
		harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2), harness.Deployment("big").Replicas(10), harness.Pod("loner"))
	}
	harness.Create(t, cp, "", harness.Node(c.nodeIn).Ready(), harness.Node(c.nodeOut).Ready().With(func(n *corev1.Node) { delete(n.Labels, "pool") }))
	t.Cleanup(func() {
		for _, n := range []string{c.nodeIn, c.nodeOut} {
			_ = cp.Client.CoreV1().Nodes().Delete(context.Background(), n, metav1.DeleteOptions{})
		}
	})
	var err error
	if c.config, err = cp.ServiceAccount(t.Context(), c.home, c.name, everything); err != nil {
		t.Fatal(err)
	}
	if c.account, err = kubernetes.NewForConfig(c.config); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	text := strings.NewReplacer("TIGHT", c.tight, "FREE", c.free, "PROTECTED", c.protected).Replace(policy)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.flags = append([]string{"--policy", file}, flags...)
	apply(t, printed(t, append([]string{"admission", "--namespace", c.home, "--service-account", c.name}, c.flags...)...)...)
	inForce(t, c.account, createJob(c.protected), dryAll, "the namespace is")
	inForce(t, c.account, func(t *testing.T, k kubernetes.Interface, dry []string) error {
		return k.CoreV1().Nodes().Delete(t.Context(), c.nodeOut, metav1.DeleteOptions{DryRun: dry})
	}, dryAll, "the node is not allowed")
	inForce(t, c.account, createDeployment(c.free, "huge", 1000), dryAll, "more replicas than max_replicas")
	return c
}

const limits = `protect_namespaces: [kube-system, PROTECTED]
max_replicas: 5
allow_node_selector: pool=lab
namespaces: {TIGHT: {max_replicas: 3}}
`

// TestAdmissionHoldsAPlainClient: what the policy forbids, the API server denies to the
// server's account whatever client it uses, in a dry run and for real; the rest passes,
// and nobody else is held.
func TestAdmissionHoldsAPlainClient(t *testing.T) {
	t.Parallel()
	c := newConfined(t, limits)
	const protected, node, replicas, reach = "the namespace is protected", "the node is not allowed", "more replicas than max_replicas", "nothing may reach into a pod"
	for _, tc := range []struct {
		name string
		do   request
		want string // the words of the denial; "" passes
	}{
		{"scale in a protected namespace", scaleTo(c.protected, "web", 1), protected},
		{"patch in a protected namespace", patchDeployment(c.protected, "web", `{"metadata":{"annotations":{"a":"b"}}}`), protected},
		{"delete a pod in a protected namespace", deletePod(c.protected, "loner"), protected},
		{"evict a pod in a protected namespace", evictPod(c.protected, "loner"), protected},
		{"make a job in a protected namespace", createJob(c.protected), protected},
		{"make a job in the server's namespace", createJob(c.home), protected},
		{"run a command in a pod", connect(c.free, "loner", "exec"), reach},
		{"attach to a pod", connect(c.free, "loner", "attach"), reach},
		{"forward a port of a pod", connect(c.free, "loner", "portforward"), reach},
		{"cordon a node that is not allowed", patchNode(c.nodeOut, `{"spec":{"unschedulable":true}}`), node},
		{"label a node to be allowed", patchNode(c.nodeOut, `{"metadata":{"labels":{"pool":"lab"}}}`), node},
		{"delete a node that is allowed", func(t *testing.T, k kubernetes.Interface, dry []string) error {
			return k.CoreV1().Nodes().Delete(t.Context(), c.nodeIn, metav1.DeleteOptions{DryRun: dry})
		}, node},
		{"scale above the limit", scaleTo(c.free, "web", 6), replicas},
		{"scale above the limit of its namespace", scaleTo(c.tight, "web", 4), replicas},
		{"patch replicas above the limit", patchDeployment(c.free, "web", `{"spec":{"replicas":6}}`), replicas},
		{"create above the limit", createDeployment(c.free, "six", 6), replicas},
		{"scale up what is above the limit", scaleTo(c.free, "big", 11), replicas},

		{"scale to the limit", scaleTo(c.free, "web", 5), ""},
		{"scale to the limit of its namespace", scaleTo(c.tight, "web", 3), ""},
		{"scale to none", scaleTo(c.free, "web", 0), ""},
		{"reduce to a value above the limit", scaleTo(c.free, "big", 8), ""},
		{"change something else of what is above the limit", patchDeployment(c.free, "big", `{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}`), ""},
		{"make a job", createJob(c.free), ""},
		{"create to the limit", createDeployment(c.free, "five", 5), ""},
		{"cordon a node", patchNode(c.nodeIn, `{"spec":{"unschedulable":true}}`), ""},
		{"evict a pod", evictPod(c.tight, "loner"), ""},
		{"delete a pod", deletePod(c.free, "loner"), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for mode, dry := range map[string][]string{"dry run": dryAll, "for real": nil} {
				if tc.want == "" && dry == nil {
					continue // after its dry run, once
				}
				switch err := tc.do(t, c.account, dry); {
				case tc.want == "" && err != nil:
					t.Errorf("%s: %v", mode, err)
				case tc.want != "" && !denied(err, tc.want):
					t.Errorf("%s: %v, want a denial that says %q", mode, err, tc.want)
				}
			}
			if tc.want == "" {
				if err := tc.do(t, c.account, nil); err != nil {
					t.Errorf("for real: %v", err)
				}
			} else if err := tc.do(t, cp.Client, dryAll); denied(err, "kube-write-mcp:") {
				t.Errorf("another user is held too: %v", err)
			}
		})
	}
}

// TestAdmissionAgreesWithTheGates: the server's own gates refuse what the policies deny;
// and where the gates are looser, the plan's dry run shows the denial.
func TestAdmissionAgreesWithTheGates(t *testing.T) {
	t.Parallel()
	c := newConfined(t, limits)
	strict := start(t, append(c.flags, wide...)...) // under an account that no policy holds
	loose := harness.Start(t, cp, harness.Options{Config: c.config, Args: append([]string{"--allow-nodes", c.nodeOut, "--protect-namespaces", "kube-system"}, wide...)})
	for _, tc := range []struct {
		tool string
		args harness.Args
		gate refusal.Code
		want string
	}{
		{"plan_scale", of(c.free, "deployment", "web").With("replicas", 6), refusal.InvalidArguments, "more replicas than max_replicas"},
		{"plan_scale", of(c.tight, "deployment", "web").With("replicas", 4), refusal.CapExceeded, "more replicas than max_replicas"},
		{"plan_scale", of(c.protected, "deployment", "web").With("replicas", 1), refusal.OutOfScope, "the namespace is protected"},
		{"plan_delete_pod", of(c.protected, "pod", "loner"), refusal.OutOfScope, "the namespace is protected"},
		{"plan_evict_pod", of(c.protected, "pod", "loner"), refusal.OutOfScope, "the namespace is protected"},
		{"plan_rollout_restart", of(c.protected, "deployment", "web"), refusal.OutOfScope, "the namespace is protected"},
		{"plan_cordon", harness.Args{"node": c.nodeOut}, refusal.NodeNotAllowed, "the node is not allowed"},
	} {
		t.Run(fmt.Sprint(tc.tool, " ", tc.gate), func(t *testing.T) {
			if got := strict.Must(tc.tool, tc.args); harness.Code(got) != string(tc.gate) {
				t.Errorf("the gates say %q, want %s: %s", harness.Code(got), tc.gate, got.Text)
			}
			got := loose.Must(tc.tool, tc.args)
			if harness.Code(got) != string(refusal.DryRunFailed) {
				t.Errorf("code %q: %s", harness.Code(got), got.Text)
			}
			harness.Tells(t, got, "dry run failed (403)", tc.want, "no confirm phrase")
		})
	}
}

// TestAdmissionOfAllowedNamespaces: with a list of namespaces all others are denied; a
// drain that may reach into protected ones may evict there, and no more.
func TestAdmissionOfAllowedNamespaces(t *testing.T) {
	t.Parallel()
	c := newConfined(t, `protect_namespaces: [PROTECTED]
allow_namespaces: [FREE]
allow_nodes: []
drain_protected: true
`)
	for _, tc := range []struct {
		name string
		do   request
		want string
	}{
		{"inside", scaleTo(c.free, "web", 1), ""},
		{"outside", scaleTo(c.tight, "web", 1), "the namespace is not allowed"},
		{"evict outside", evictPod(c.tight, "loner"), "the namespace is not allowed"},
		{"evict in a protected one", evictPod(c.protected, "loner"), ""},
		{"delete in a protected one", deletePod(c.protected, "loner"), "the namespace is protected"},
		{"no node at all", patchNode(c.nodeIn, `{"spec":{"unschedulable":true}}`), "the node is not allowed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.do(t, c.account, dryAll)
			if (tc.want == "" && err != nil) || (tc.want != "" && !denied(err, tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestPlanOnly: with the policy of admission --plan-only a credential that RBAC lets write
// plans everything and writes nothing, by the program or by a plain client.
func TestPlanOnly(t *testing.T) {
	t.Parallel()
	b := newWorkbench(t)
	calls := b.furnish(t)
	harness.Create(t, cp, b.ns, harness.Deployment("probe"))
	home := cp.Namespace(t)
	name := "planner-" + b.ns
	of := []string{"--namespace", home, "--service-account", name}
	rights := printed(t, append([]string{"rbac", "--allow-node-selector", "pool=lab"}, of...)...)
	apply(t, append(rights, printed(t, append([]string{"admission", "--plan-only"}, of...)...)...)...)
	granted(t, "system:serviceaccount:"+home+":"+name, rights...)
	cfg := login(t, home, name)
	account, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const never = "may plan and never write"
	inForce(t, account, scaleTo(b.ns, "probe", 2), nil, never)
	s := harness.Start(t, cp, harness.Options{Config: cfg, Args: append([]string{"--verify-timeout", "1s"}, wide...)})
	for _, a := range actions.All() {
		t.Run(a.Name, func(t *testing.T) {
			got := s.Must(a.Name, s.Plan(a.Name, calls[a.Name]))
			if x := harness.Into[execution](t, got); x.Outcome != plan.Failed {
				t.Errorf("outcome %s: %s", x.Outcome, got.Text)
			}
			harness.Tells(t, got, "403")
		})
	}
	for _, w := range s.Proxy.Writes() {
		if w.Status != 403 {
			t.Errorf("%s %s was answered with %d", w.Method, w.Path, w.Status)
		}
	}
	for what, do := range map[string]request{
		"scale": scaleTo(b.ns, "web", 1), "patch": patchDeployment(b.ns, "web", `{"spec":{"paused":true}}`), "delete": deletePod(b.ns, "loner"),
		"create": createJob(b.ns), "cordon": patchNode(b.node, `{"spec":{"unschedulable":true}}`), "evict": evictPod(b.ns, "loner"),
	} {
		if err := do(t, account, nil); !denied(err, never) {
			t.Errorf("%s: %v", what, err)
		}
		// An eviction that says so in its body alone is no dry run to a policy.
		if err := do(t, account, dryAll); (err != nil) != (what == "evict") {
			t.Errorf("%s as a dry run: %v", what, err)
		}
	}
	if d, err := cp.Client.AppsV1().Deployments(b.ns).Get(t.Context(), "web", metav1.GetOptions{}); err != nil || *d.Spec.Replicas != 2 || d.Spec.Paused {
		t.Errorf("the target was changed: %v %+v", err, d.Spec)
	}
}

// TestManifestsAreAccepted: every object of the manifests is one that the API server
// knows, field by field, and its namespace admits its pod.
func TestManifestsAreAccepted(t *testing.T) {
	t.Parallel()
	ns := "m-" + cp.Namespace(t)
	objects := printed(t, "manifests", "--namespace", ns, "--service-account", ns, "--allow-write", "--policy", "../../hack/packaging/policy.yaml", "--allow-node-selector", "pool=lab")
	apply(t, objects...)
	d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), ns, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "server", Labels: d.Spec.Template.Labels}, Spec: d.Spec.Template.Spec}
	if _, err := cp.Client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Errorf("the namespace does not admit the server's pod: %v", err)
	}
	pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: *pod.Spec.DeepCopy()}
	pod.Spec.Containers[0].SecurityContext.Privileged = ptr.To(true)
	pod.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
	if _, err := cp.Client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a privileged pod: %v, want 403", err)
	}
}
