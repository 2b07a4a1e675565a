// Package lab runs a real Kubernetes control plane on loopback, for tests and for the
// demo: etcd and the API server through envtest and, on request, the controller manager,
// the scheduler and kwok's simulated nodes beside them. Nothing in it is a mock. Any
// number of labs run side by side.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
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
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Options say what a lab consists of beside etcd and the API server.
type Options struct {
	Controllers bool   // controller manager, scheduler and kwok
	Nodes       int    // nodes node-1 ..., schedulable when Start returns; they need Controllers
	Dir         string // working folder, with the logs; "" is a temporary one that Stop removes
}

// Lab is a running control plane.
type Lab struct {
	Config *rest.Config // of an admin, without a rate limit
	Client kubernetes.Interface

	dir       string
	temporary bool
	env       *envtest.Environment
	processes []*process // those that envtest does not start
	audit     auditSeen

	stop    sync.Once
	stopErr error
}

// startTimeout guards against a start that hangs.
const startTimeout = time.Minute

// Start brings a lab up. On failure what was started is ended, and the error holds the
// end of the log that says why. Without the control plane's programs it is one line.
func Start(ctx context.Context, o Options) (*Lab, error) {
	if o.Nodes > 0 && !o.Controllers {
		return nil, errors.New("lab: nodes need controllers")
	}
	programs, err := programs(o.Controllers)
	if err != nil {
		return nil, err
	}
	l := &Lab{temporary: o.Dir == ""}
	if l.temporary {
		l.dir, err = os.MkdirTemp("", "kube-write-lab-")
	} else {
		l.dir, err = filepath.Abs(o.Dir)
	}
	if err != nil {
		return nil, err
	}
	if err := l.start(ctx, programs, o); err != nil {
		return nil, errors.Join(fmt.Errorf("lab: %w", err), l.Stop())
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context, programs string, o Options) error {
	if err := l.layOut(programs); err != nil {
		return err
	}
	if err := l.startServer(ctx); err != nil {
		return err
	}
	if !o.Controllers {
		return nil
	}
	if err := l.startControllers(); err != nil {
		return err
	}
	for i := range o.Nodes {
		if err := l.Node(ctx, fmt.Sprintf("node-%d", i+1)); err != nil {
			return err
		}
	}
	return l.await(ctx, "the default service account and nodes without a taint", func(ctx context.Context) (bool, error) {
		if _, err := l.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return false, err
		}
		nodes, err := l.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, n := range nodes.Items {
			if !schedulable(&n) {
				return false, nil
			}
		}
		return true, nil
	})
}

// schedulable is later than Ready: the controller manager takes the taint away.
func schedulable(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return len(n.Spec.Taints) == 0
		}
	}
	return false
}

// await polls until done, a process has ended, or the time is over. An error of done is
// kept for the message and tried again.
func (l *Lab) await(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(ctx context.Context) (ok bool, _ error) {
		if err := l.ended(); err != nil {
			return false, err
		}
		ok, last = done(ctx)
		return ok, nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("waiting for %s: %w", what, err), last)
	}
	return nil
}

// Stop ends exactly the processes that Start started. It may be called twice.
func (l *Lab) Stop() error {
	l.stop.Do(func() {
		for _, p := range l.processes {
			p.kill()
		}
		if l.env != nil {
			l.stopErr = l.env.Stop()
		}
		if l.temporary {
			l.stopErr = errors.Join(l.stopErr, os.RemoveAll(l.dir))
		}
	})
	return l.stopErr
}

// Node makes a simulated node with the label pool=lab; kwok makes it ready.
func (l *Lab) Node(ctx context.Context, name string) error {
	room := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("32"),
		corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods:   resource.MustParse("1000"),
	}
	_, err := l.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "pool": "lab"}},
		Status:     corev1.NodeStatus{Allocatable: room, Capacity: room},
	}, metav1.CreateOptions{})
	return err
}

// ServiceAccount makes an account with exactly these rules in the whole cluster, and its
// namespace where that is missing. The config has a token of the account, and the API
// server already grants the rules.
func (l *Lab) ServiceAccount(ctx context.Context, namespace, name string, rules []rbacv1.PolicyRule) (*rest.Config, error) {
	core, rbac := l.Client.CoreV1(), l.Client.RbacV1()
	if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
	}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	if _, err := core.ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{Name: namespace + ":" + name}
	if _, err := rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if _, err := rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	token, err := core.ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(24 * 60 * 60))},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	cfg := rest.AnonymousClientConfig(l.Config)
	cfg.BearerToken = token.Status.Token
	cfg.QPS = -1
	if len(rules) == 0 {
		return cfg, nil
	}
	user := "system:serviceaccount:" + namespace + ":" + name
	return cfg, l.await(ctx, "the permissions of "+user, func(ctx context.Context) (bool, error) {
		return l.allows(ctx, user, rules[0])
	})
}

// allows asks whether the API server's cache of roles holds a rule for a user yet.
func (l *Lab) allows(ctx context.Context, user string, rule rbacv1.PolicyRule) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{User: user}
	if len(rule.NonResourceURLs) > 0 {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: rule.Verbs[0], Path: rule.NonResourceURLs[0]}
	} else {
		res, sub, _ := strings.Cut(rule.Resources[0], "/")
		spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: res, Subresource: sub}
		if len(rule.ResourceNames) > 0 {
			spec.ResourceAttributes.Name = rule.ResourceNames[0]
		}
	}
	review, err := l.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed, err
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
