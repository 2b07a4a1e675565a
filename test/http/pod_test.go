package http

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// run runs a command of the program in this process.
func run(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = app.Main(args, nil, &out, &err, actions.All()...)
	return code, out.String(), err.String()
}

// installed is what `manifests --ledger cluster` prints, applied to the cluster as an
// operator does it: its namespace is its own, and so is the name of all of it.
type installed struct {
	t     *testing.T
	name  string
	flags []string // of the server, but for what is the pod's own
	args  []string // of the server in its pod
	keys  []byte
}

func install(t *testing.T, flags ...string) *installed {
	t.Helper()
	in := &installed{t: t, name: "pod-" + cp.Namespace(t), flags: flags}
	code, stdout, stderr := run(append([]string{"manifests", "--ledger", "cluster", "--namespace", in.name, "--service-account", in.name}, flags...)...)
	if code != 0 {
		t.Fatal(stderr)
	}
	c, err := ctrl.New(cp.Config, ctrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c = ctrl.WithFieldValidation(c, metav1.FieldValidationStrict)
	for docs := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(stdout))); ; {
		doc, err := docs.Read()
		if err == io.EOF {
			break
		}
		o := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.Unmarshal(doc, &o.Object)
		}
		if err != nil {
			t.Fatal(err)
		}
		err = c.Create(t.Context(), o)
		if shared := strings.HasSuffix(o.GetName(), ".kubewrite.dev"); err != nil && !(shared && apierrors.IsAlreadyExists(err)) {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		if o.GetKind() != "StatefulSet" {
			continue
		}
		containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		if err != nil {
			t.Fatal(err)
		}
		in.args, _, err = unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "made")
	if code, _, stderr := run("keys", "make", "--state-dir", dir); code != 0 {
		t.Fatal(stderr)
	}
	if in.keys, err = os.ReadFile(filepath.Join(dir, "keys.json")); err != nil {
		t.Fatal(err)
	}
	almighty := rest.CopyConfig(cp.Config) // by its name it is held by the policies, and by no rights
	almighty.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + in.name + ":" + in.name, Groups: []string{"system:masters"}}
	own, err := kubernetes.NewForConfig(almighty)
	if err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the policy that protects its namespace", func() (bool, error) {
		_, err := own.AppsV1().StatefulSets(in.name).Patch(t.Context(), in.name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "the namespace is protected"), nil
	})
	lab.Eventually(t, "the definitions, and the rights to the ledger", func() (bool, error) {
		l, err := kube.NewLedger(in.login(), "test", in.name, cluster.Register)
		if err != nil {
			return false, err
		}
		_, err = kube.LedgerObjects(l, "writes", func() *cluster.Write { return &cluster.Write{} }, func() *cluster.WriteList { return &cluster.WriteList{} }).List(t.Context(), metav1.ListOptions{})
		return err == nil, nil
	})
	return in
}

// login is the account that the pod has.
func (in *installed) login() *rest.Config {
	in.t.Helper()
	token, err := cp.Client.CoreV1().ServiceAccounts(in.name).CreateToken(in.t.Context(), in.name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(3600))},
	}, metav1.CreateOptions{})
	if err != nil {
		in.t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(cp.Config)
	cfg.BearerToken = token.Status.Token
	return cfg
}

// start runs a replica with the arguments of the pod, but for where things are in one.
func (in *installed) start() *program {
	in.t.Helper()
	state := filepath.Join(in.t.TempDir(), "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		in.t.Fatal(err)
	}
	keys := filepath.Join(state, "keys.json")
	if err := os.WriteFile(keys, in.keys, 0o600); err != nil {
		in.t.Fatal(err)
	}
	flags := []string{"--state-dir=" + state, "--key-file=" + keys, "--ledger-namespace=" + in.name}
	for _, a := range in.args[1:] {
		name, _, _ := strings.Cut(a, "=")
		if !slices.Contains([]string{"--http", "--tls-cert", "--tls-key", "--state-dir", "--key-file", "--policy"}, name) {
			flags = append(flags, a)
		}
	}
	if i := slices.Index(in.flags, "--policy"); i >= 0 {
		flags = append(flags, in.flags[i:i+2]...)
	}
	return start(in.t, options{cfg: in.login(), flags: flags, state: state})
}

// grant binds a ClusterRole that was printed for callers, in one namespace.
func (in *installed) grant(ns, suffix, user string) {
	in.t.Helper()
	parts := strings.Split(user, ":")
	if _, err := cp.Client.RbacV1().RoleBindings(ns).Create(in.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: in.name + suffix + parts[2]},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: in.name + suffix},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: parts[2], Name: parts[3]}},
	}, metav1.CreateOptions{}); err != nil {
		in.t.Fatal(err)
	}
}

// TestInstalled: two replicas with the arguments of the printed pods, under exactly the
// printed rights and policies, execute one scale once; the doctor finds no right missing and
// none too many; without the ledger a replica is not ready.
func TestInstalled(t *testing.T) {
	t.Parallel()
	ns, args := harness.Web(t, cp)
	in := install(t, "--allow-write", "--allow-namespaces", ns, "--cluster-name", "prod")
	set, err := cp.Client.AppsV1().StatefulSets(in.name).Get(t.Context(), in.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	set.Spec.Template.Spec.Volumes = append(set.Spec.Template.Spec.Volumes, corev1.Volume{Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	if _, err := cp.Client.CoreV1().Pods(in.name).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "like-a-replica"}, Spec: set.Spec.Template.Spec}, metav1.CreateOptions{}); err != nil {
		t.Errorf("the namespace does not admit the server's pod: %v", err)
	}
	user, token := caller(t)
	in.grant(ns, "-write", user)
	one, two := in.start(), in.start()
	var phrase harness.Args
	lab.Eventually(t, "the caller's rights", func() (bool, error) {
		tools, err := one.connect(stdio.Modern, token).tools()
		return slices.Contains(tools, "scale"), err
	})
	phrase = one.connect(stdio.Modern, token).plan("scale", args.With("replicas", 3))
	first := two.connect(stdio.Legacy, token).call("scale", phrase)
	if !strings.Contains(first.Text, "EXECUTED") || harness.Replicas(t, cp, ns, "web") != 3 {
		t.Fatalf("%s\n%s", first.Text, two.log)
	}
	if again := one.connect(stdio.Modern, token).call("scale", phrase); again.Field("result") != first.Field("result") || !strings.Contains(again.Text, "EXECUTED") {
		t.Errorf("the other replica says: %s", again.Text)
	}
	history := one.connect(stdio.Modern, token).call("write_history", harness.Args{"namespace": ns})
	if !strings.Contains(history.Text, "each replica has an audit log of its own") {
		t.Errorf("write_history does not say whose it is: %s", history.Text)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cp.Kubeconfig(kubeconfig, "kind-lab", in.login()); err != nil {
		t.Fatal(err)
	}
	_, stdout, stderr := run(append([]string{"doctor", "--output", "json", "--kubeconfig", kubeconfig, "--state-dir", filepath.Join(t.TempDir(), "state"),
		"--ledger", "cluster", "--ledger-namespace", in.name, "--http", ":8443"}, in.flags...)...)
	var report []struct{ Check, State, Finding string }
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err, stderr)
	}
	found := false
	for _, f := range report {
		found = found || f.Check == "rights too many"
		if strings.HasPrefix(f.Check, "rights") && f.State != "ok" {
			t.Errorf("the doctor says %+v", f)
		}
	}
	if !found {
		t.Errorf("the doctor did not look for rights: %+v", report)
	}
	if got := one.connect(stdio.Modern, "").get("/readyz"); got.status != 200 {
		t.Errorf("/readyz: %d %s", got.status, got.body)
	}
	if err := cp.Client.RbacV1().RoleBindings(in.name).Delete(t.Context(), in.name+"-ledger", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "a replica without its ledger not to be ready", func() (bool, error) {
		got := one.connect(stdio.Modern, "").get("/readyz")
		return got.status == 503 && strings.Contains(got.body, "the ledger cannot be reached"), nil
	})
}

// TestTwoPersons: where two persons are required nothing but another one's Approval lets a
// plan be executed, however reversible it is and whatever irreversible says.
func TestTwoPersons(t *testing.T) {
	t.Parallel()
	ns, args := harness.Web(t, cp)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(fmt.Sprintf("irreversible: allow\nnamespaces: {%s: {two_persons: true}}\n", ns)), 0o600); err != nil {
		t.Fatal(err)
	}
	in := install(t, "--allow-write", "--allow-namespaces", ns, "--policy", policy)
	p := in.start()
	planner, token := caller(t)
	in.grant(ns, "-write", planner)
	in.grant(ns, "-approve", planner) // and may approve what others plan
	c := p.connect(stdio.Modern, token)
	lab.Eventually(t, "the caller's rights", func() (bool, error) {
		tools, err := c.tools()
		return slices.Contains(tools, "scale"), err
	})
	planned := c.call("plan_scale", args.With("replicas", 3))
	if !strings.Contains(planned.Text, "two persons are required for changes to namespace "+ns) || !strings.Contains(planned.Text, "--ledger cluster") {
		t.Fatalf("the plan does not say so: %s", planned.Text)
	}
	write := args.With("replicas", 3).With("confirm", planned.Field("confirm")).With("reason", "a test")
	refused := func(why string) {
		t.Helper()
		got := c.call("scale", write)
		if got.Field("code") != string(refusal.NeedsPerson) || !strings.Contains(got.Text, why) || harness.Replicas(t, cp, ns, "web") != 2 {
			t.Errorf("want a refusal that says %q: %s", why, got.Text)
		}
	}
	refused("not approved")
	id := planned.Field("plan")
	ledgerOf := func(user string) *kube.LedgerClient {
		t.Helper()
		parts := strings.Split(user, ":")
		got, err := cp.Client.CoreV1().ServiceAccounts(parts[2]).CreateToken(t.Context(), parts[3], &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cfg := rest.AnonymousClientConfig(cp.Config)
		cfg.BearerToken = got.Status.Token
		l, err := kube.NewLedger(cfg, "test", in.name, cluster.Register)
		if err != nil {
			t.Fatal(err)
		}
		bindRole(t, in.name, in.name+"-approvals", parts[2])
		return l
	}
	approve := func(user string) error {
		l := ledgerOf(user)
		var made error
		lab.Eventually(t, "the right to read plans", func() (bool, error) {
			rec, err := cluster.Recorded(t.Context(), l, id)
			if err == nil {
				made = cluster.Approve(t.Context(), l, rec, user)
			}
			return err == nil, nil
		})
		return made
	}
	bystander, _ := caller(t)
	if err := approve(bystander); err == nil {
		t.Error("who may not approve scale there approves it")
	}
	refused("not approved")
	if err := approve(planner); err != nil {
		t.Fatal(err)
	}
	refused("who planned it cannot approve it")
	admin, err := kube.NewLedger(cp.Config, "test", in.name, cluster.Register)
	if err != nil {
		t.Fatal(err)
	}
	if err := kube.LedgerObjects(admin, "approvals", func() *cluster.Approval { return &cluster.Approval{} }, func() *cluster.ApprovalList { return &cluster.ApprovalList{} }).Delete(t.Context(), id, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	approver, _ := caller(t)
	in.grant(ns, "-approve", approver)
	lab.Eventually(t, "the approver's rights", func() (bool, error) {
		err := approve(approver)
		return err == nil, nil
	})
	if got := c.call("scale", write); !strings.Contains(got.Text, "EXECUTED") || harness.Replicas(t, cp, ns, "web") != 3 {
		t.Errorf("approved, and yet: %s", got.Text)
	}
	var by []string
	for _, l := range harness.Lines(t, p.state) {
		if l.Event == journal.EventApproved {
			by = append(by, l.Principal.String()+" "+l.Channel)
		}
	}
	if want := []string{"kubernetes:" + approver + " approval"}; !slices.Equal(by, want) {
		t.Errorf("approved by %v, want %v", by, want)
	}
}

// bindRole binds a Role to the caller of a namespace, once.
func bindRole(t *testing.T, ns, role, of string) {
	t.Helper()
	_, err := cp.Client.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role + "-" + of},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: of, Name: "caller"}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// TestTwoPersonsNeedTheCluster: a file has nobody else's word.
func TestTwoPersonsNeedTheCluster(t *testing.T) {
	t.Parallel()
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	for text, want := range map[string]string{
		"two_persons: true\n":                      "two_persons needs --ledger cluster",
		"namespaces: {web: {two_persons: true}}\n": "namespaces.web.two_persons needs --ledger cluster",
	} {
		if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(harness.Program(t, cp), "serve", "--policy", policy, "--state-dir", filepath.Join(t.TempDir(), "state")).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v %s, want %s", text, err, out, want)
		}
	}
}
