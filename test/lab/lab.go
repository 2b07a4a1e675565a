// Package lab is a real local control plane for tests and for the demo: etcd and the API
// server through envtest, and on request the controller manager, the scheduler and
// simulated nodes. Nothing in it is a mock.
package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Options say what a lab consists of beside etcd and the API server.
type Options struct {
	Controllers bool   // controller manager, scheduler and kwok
	Nodes       int    // simulated nodes node-1 ..., Ready when Start returns; label pool=lab
	Dir         string // working folder; "" is a temporary one that Stop removes
}

// Lab is a running control plane.
type Lab struct {
	Config *rest.Config // of an admin
	Client kubernetes.Interface

	env       *envtest.Environment
	dir       string
	temporary bool
	processes []*process
}

// startTimeout guards against a start that hangs.
const startTimeout = 2 * time.Minute

// Start brings a lab up. On failure what was started is ended, and the error holds the
// end of the log that says why.
func Start(ctx context.Context, o Options) (l *Lab, err error) {
	assets, err := Assets()
	if err != nil {
		return nil, err
	}
	l = &Lab{dir: o.Dir}
	if l.dir == "" {
		l.temporary = true
		if l.dir, err = os.MkdirTemp("", "kube-write-lab-"); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Stop())
			l = nil
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := l.startServer(assets); err != nil {
		return l, err
	}
	if l.Client, err = kubernetes.NewForConfig(l.Config); err != nil {
		return l, err
	}
	if o.Controllers {
		if err := l.startControllers(assets); err != nil {
			return l, err
		}
		if err := l.await(ctx, "the default service account", func(ctx context.Context) (bool, error) {
			_, err := l.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
			return err == nil, nil
		}); err != nil {
			return l, err
		}
	}
	for i := range o.Nodes {
		if err := l.Node(ctx, fmt.Sprintf("node-%d", i+1)); err != nil {
			return l, err
		}
	}
	if !o.Controllers {
		return l, nil
	}
	return l, l.await(ctx, "ready nodes", func(ctx context.Context) (bool, error) {
		nodes, err := l.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil
		}
		ready := 0
		for _, n := range nodes.Items {
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && len(n.Spec.Taints) == 0 {
					ready++
				}
			}
		}
		return ready == o.Nodes, nil
	})
}

func (l *Lab) await(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, done)
	if err == nil {
		return nil
	}
	return fmt.Errorf("lab: waiting for %s: %w%s", what, err, l.tails())
}

// auditPolicy keeps the whole request of whatever could change something.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, userGroups: ["system:nodes"]}
- {level: None, resources: [{group: coordination.k8s.io, resources: [leases]}, {resources: [events]}, {group: events.k8s.io, resources: [events]}]}
- {level: Request, verbs: [create, update, patch, delete, deletecollection]}
- {level: Metadata, verbs: [get, list, watch]}
`

func (l *Lab) startServer(assets string) error {
	policy := filepath.Join(l.dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	l.env = &envtest.Environment{BinaryAssetsDirectory: assets, ControlPlaneStartTimeout: startTimeout, ControlPlaneStopTimeout: 20 * time.Second}
	api := l.env.ControlPlane.GetAPIServer().Configure()
	api.Set("authorization-mode", "RBAC").
		Set("audit-policy-file", policy).
		Set("audit-log-path", l.AuditLog()).
		Set("audit-log-mode", "blocking-strict"). // a test reads its own events at once
		Set("allow-privileged", "true")
	l.env.ControlPlane.Etcd = &envtest.Etcd{}
	l.env.ControlPlane.Etcd.Configure().Set("unsafe-no-fsync", "true")
	cfg, err := l.env.Start()
	if err != nil {
		return fmt.Errorf("lab: etcd and API server: %w", err)
	}
	l.Config = rest.CopyConfig(cfg)
	l.Config.QPS, l.Config.Burst = -1, 0
	return nil
}

// Stop ends exactly what Start started.
func (l *Lab) Stop() error {
	var errs []error
	for i := len(l.processes) - 1; i >= 0; i-- {
		errs = append(errs, l.processes[i].stop())
	}
	if l.env != nil {
		errs = append(errs, l.env.Stop())
	}
	if l.temporary {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	return errors.Join(errs...)
}

// Node makes a simulated node; kwok, where it runs, makes it ready.
func (l *Lab) Node(ctx context.Context, name string) error {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	_, err := l.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "pool": "lab"}},
		Status:     corev1.NodeStatus{Allocatable: room, Capacity: room},
	}, metav1.CreateOptions{})
	return err
}

// ServiceAccount makes an account with exactly these rules and gives a config with its
// token.
func (l *Lab) ServiceAccount(ctx context.Context, namespace, name string, rules []rbacv1.PolicyRule) (*rest.Config, error) {
	meta := metav1.ObjectMeta{Name: namespace + "-" + name}
	_, err := l.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	if _, err := l.Client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if _, err := l.Client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if _, err := l.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	token, err := l.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(24 * 3600))},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	cfg := rest.AnonymousClientConfig(l.Config)
	cfg.BearerToken, cfg.QPS = token.Status.Token, -1
	return cfg, l.await(ctx, "the account's permissions", func(ctx context.Context) (bool, error) {
		return l.allowed(ctx, cfg, rules)
	})
}

// allowed waits out the API server's own cache of roles: the last rule is asked for.
func (l *Lab) allowed(ctx context.Context, cfg *rest.Config, rules []rbacv1.PolicyRule) (bool, error) {
	if len(rules) == 0 {
		return true, nil
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return false, err
	}
	last := rules[len(rules)-1]
	if len(last.Resources) == 0 {
		return true, nil
	}
	res, sub, _ := strings.Cut(last.Resources[0], "/")
	return can(ctx, c, last.Verbs[0], last.APIGroups[0], res, sub)
}

// Kubeconfig writes a kubeconfig file (mode 0600) with one context.
func (l *Lab) Kubeconfig(path, contextName string, cfg *rest.Config) error {
	out := clientcmdapi.NewConfig()
	out.Clusters[contextName] = &clientcmdapi.Cluster{
		Server: cfg.Host, CertificateAuthorityData: cfg.CAData, InsecureSkipTLSVerify: cfg.Insecure,
	}
	out.AuthInfos[contextName] = &clientcmdapi.AuthInfo{
		Token: cfg.BearerToken, ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData,
	}
	out.Contexts[contextName] = &clientcmdapi.Context{Cluster: contextName, AuthInfo: contextName}
	out.CurrentContext = contextName
	return clientcmd.WriteToFile(*out, path)
}

// Main starts a lab for the tests of one package and ends the process with their code.
// Without the binaries it fails in one line.
func Main(m *testing.M, o Options, set func(*Lab)) {
	l, err := Start(context.Background(), o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	set(l)
	code := m.Run()
	if err := l.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// Namespace makes a namespace for one test. It is left to the lab's end.
func (l *Lab) Namespace(t testing.TB) string {
	t.Helper()
	name := "t-" + strings.ToLower(rand.Text()[:10])
	if _, err := l.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

// Eventually waits until a condition holds. The bound is only a guard against hanging.
func Eventually(t testing.TB, what string, done func() (bool, error)) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 90*time.Second, true, func(context.Context) (bool, error) {
		ok, err := done()
		last = err
		return ok, nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v (%v)", what, err, last)
	}
}
