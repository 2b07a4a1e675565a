package app

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kubewrite/kube-write-mcp/actions"
)

// objects are what a command prints.
func objects(t *testing.T, args ...string) (out []runtime.Object) {
	t.Helper()
	code, stdout, stderr := run(args...)
	if code != 0 {
		t.Fatalf("%v: %s", args, stderr)
	}
	docs := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(stdout)))
	for {
		doc, err := docs.Read()
		if err == io.EOF {
			return out
		}
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v in %s", err, doc)
		}
		out = append(out, o)
	}
}

// granted are the rights that objects grant: namespace (of a Role), verb, resource, and
// the names where it is about some alone.
func granted(all []runtime.Object) (out []string) {
	add := func(ns string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					out = append(out, strings.TrimSpace(ns+" "+verb+" "+resource+" "+strings.Join(r.ResourceNames, ",")))
				}
			}
		}
	}
	for _, o := range all {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			add("*", o.Rules)
		case *rbacv1.Role:
			add(o.Namespace, o.Rules)
		}
	}
	slices.Sort(out)
	return out
}

// TestRBAC: rights are no more than the policy's actions, namespaces and nodes need, beside
// what the reads do.
func TestRBAC(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want []string // beside the reads
	}{
		{"read only with everything else", []string{"--read-only", "--allow-nodes", "n1", "--actions", "scale,drain"}, nil},
		{"a node action and no node", []string{"--actions", "drain"}, nil},
		{"callers over HTTP", []string{"--actions", "rollout_pause", "--http", ":8443"}, []string{"* create subjectaccessreviews", "* create tokenreviews", "* patch deployments", "* watch deployments"}},
		{"one action", []string{"--actions", "rollout_pause"}, []string{"* patch deployments", "* watch deployments"}},
		{"one action in one namespace", []string{"--actions", "rollout_pause", "--allow-namespaces", "web,kube-system"}, []string{"web patch deployments", "web watch deployments"}},
		{"named nodes", []string{"--actions", "uncordon", "--allow-nodes", "n2,n1"}, []string{"* get nodes", "* patch nodes n1,n2", "* watch nodes"}},
		{"nodes by their labels", []string{"--actions", "uncordon", "--allow-nodes", "n1", "--allow-node-selector", "pool=lab"}, []string{"* get nodes", "* patch nodes", "* watch nodes"}},
		{"a drain of one namespace's pods", []string{"--actions", "drain", "--allow-nodes", "n1", "--allow-namespaces", "web"}, []string{
			"* get nodes", "* list persistentvolumes", "* list pods", "* patch nodes n1", "* watch nodes", "* watch pods",
			"web create pods/eviction", "web list services", "web watch poddisruptionbudgets", "web watch pods", "web watch services",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			scope := []string{"rbac", "--read-only"}
			if i := slices.Index(tc.args, "--allow-namespaces"); i >= 0 {
				scope = append(scope, tc.args[i:]...)
			}
			want := append(granted(objects(t, scope...)), tc.want...)
			slices.Sort(want)
			if diff := cmp.Diff(want, granted(objects(t, append([]string{"rbac"}, tc.args...)...))); diff != "" {
				t.Errorf("rights (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRBACReadOnly: the reads need no verb that writes, and in one namespace they reach into
// no other.
func TestRBACReadOnly(t *testing.T) {
	all := granted(objects(t, "rbac", "--read-only"))
	for _, g := range all {
		if _, rest, _ := strings.Cut(g, " "); !strings.HasPrefix(rest, "get ") && !strings.HasPrefix(rest, "list ") {
			t.Errorf("--read-only grants %s", g)
		}
	}
	for _, want := range []string{"* get pods/log", "* list events", "* get namespaces"} {
		if !slices.Contains(all, want) {
			t.Errorf("--read-only grants %v, and not %s", all, want)
		}
	}
	var cluster []string
	for _, g := range granted(objects(t, "rbac", "--read-only", "--allow-namespaces", "web")) {
		if strings.HasPrefix(g, "* ") {
			cluster = append(cluster, g)
		}
	}
	if diff := cmp.Diff([]string{"* get namespaces web,kube-system", "* list namespaces web,kube-system", "* list nodes"}, cluster); diff != "" {
		t.Errorf("in the whole cluster (-want +got):\n%s", diff)
	}
}

// TestRBACDrainProtected: where a drain may reach into protected namespaces, it may evict
// there and nothing else.
func TestRBACDrainProtected(t *testing.T) {
	policy := write(t, "policy", "drain_protected: true\nprotect_namespaces: [sys]\nallow_namespaces: [web]\nallow_nodes: [n1]\n")
	for _, g := range granted(objects(t, "rbac", "--policy", policy)) {
		if ns, rest, _ := strings.Cut(g, " "); ns == "sys" {
			if verb, _, _ := strings.Cut(rest, " "); !slices.Contains([]string{"get", "list", "watch"}, verb) && rest != "create pods/eviction" {
				t.Errorf("in a protected namespace it may %s", rest)
			}
		}
	}
	if got := granted(objects(t, "rbac", "--policy", policy)); !slices.Contains(got, "sys create pods/eviction") {
		t.Errorf("it may not evict in a protected namespace: %v", got)
	}
}

// TestPodArgs: the server's pod is started with flags that this binary has, and comes to
// the policy that was given here.
func TestPodArgs(t *testing.T) {
	policy := write(t, "policy", "max_replicas: 7\n")
	all := objects(t, "manifests", "--allow-write", "--policy", policy, "--allow-namespaces", "a,b", "--ttl", "60s", "--kubeconfig", "mine", "--context", "mine", "--cluster-name", "prod")
	var d *appsv1.Deployment
	var m *corev1.ConfigMap
	for _, o := range all {
		switch o := o.(type) {
		case *appsv1.Deployment:
			d = o
		case *corev1.ConfigMap:
			m = o
		}
	}
	args := d.Spec.Template.Spec.Containers[0].Args
	want := []string{
		"serve", "--allow-namespaces=a,b", "--allow-write=true", "--cluster-name=prod", "--http=:8443",
		"--policy=/etc/kube-write-mcp/policy/policy.yaml", "--state-dir=/state/kube-write-mcp",
		"--tls-cert=/etc/kube-write-mcp/tls/tls.crt", "--tls-key=/etc/kube-write-mcp/tls/tls.key", "--ttl=1m0s",
	}
	if diff := cmp.Diff(want, args); diff != "" {
		t.Errorf("args (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"policy.yaml": "max_replicas: 7\n"}, m.Data); diff != "" {
		t.Errorf("policy file (-want +got):\n%s", diff)
	}
	serve, rest, err := newCommand(nil, actions.All()).Find(args)
	if err != nil || serve.Name() != "serve" {
		t.Fatalf("%v starts %s: %v", args, serve.Name(), err)
	}
	if err := serve.ParseFlags(rest); err != nil {
		t.Error(err)
	}
}

// TestPodArgsCluster: replicas read the keys that they share, and nothing has a journal's
// volume for all of them.
func TestPodArgsCluster(t *testing.T) {
	code, stdout, stderr := run("manifests", "--ledger", "cluster", "--allow-write")
	if code != 0 {
		t.Fatal(stderr)
	}
	for _, want := range []string{
		"- --key-file=/etc/kube-write-mcp/keys/keys.json", "- --ledger=cluster", "secretName: kube-write-mcp-keys", "secretName: kube-write-mcp-tls",
		"defaultMode: 288", "replicas: 3", "kind: StatefulSet", "name: writes.kubewrite.dev", "name: kube-write-approvals.kubewrite.dev",
		"- tokenreviews", "name: kube-write-mcp-approve", "name: kube-write-mcp-approvals", "maxUnavailable: 1",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("it lacks %q", want)
		}
	}
	for _, not := range []string{"kind: Deployment", "kind: PersistentVolumeClaim\n  metadata:\n    name: kube-write-mcp-state"} {
		if strings.Contains(stdout, not) {
			t.Errorf("it has %q", not)
		}
	}
}

// TestPlaceNames: names that cannot be are refused before anything is printed.
func TestPlaceNames(t *testing.T) {
	for _, args := range [][]string{
		{"rbac", "--namespace", "Kube"}, {"admission", "--service-account", "a b"}, {"manifests", "--namespace", ""},
		{"admission", "--plan-only", "--policy", "none"}, {"manifests", "--policy", "none"},
	} {
		if code, stdout, stderr := run(args...); code != 1 || stdout != "" || stderr == "" {
			t.Errorf("%v: code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
}

// TestAdmissionUser: a policy can hold a person's credential as well; a name is data.
func TestAdmissionUser(t *testing.T) {
	_, stdout, _ := run("admission", "--plan-only", "--user", `alice" || true || "`)
	if !strings.Contains(stdout, `request.userInfo.username == "alice\" || true || \""`) {
		t.Error(stdout)
	}
}
