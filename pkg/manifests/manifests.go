// Package manifests makes the Kubernetes objects that hold the server's account to what
// its policy allows, and those that run it in a pod: typed objects, derived from the
// policy and the rules of the enabled actions. It has no client.
package manifests

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubewrite/kube-write-mcp/pkg/gate"
)

// Config is what the objects are made from.
type Config struct {
	Namespace string // of the server
	Name      string // of its ServiceAccount, and of everything made here
	Policy    gate.Policy

	// Rules are all that the server needs. OnNodes are those of its node actions alone,
	// whose reads reach into every namespace.
	Rules, OnNodes []rbacv1.PolicyRule

	// Ledger is what the cluster ledger needs; nil where the journal's file is all there is.
	Ledger *Ledger

	// Callers are the rights of those who call the server over HTTP.
	Callers []Role

	// User is whom the admission policies hold; "" is the ServiceAccount.
	User string

	// Image and Args are what the pod runs; PolicyFile is the text of the file that Args
	// name as PolicyPath, "" for none.
	Image      string
	Args       []string
	PolicyFile string
}

// Ledger is what several replicas share a ledger by.
type Ledger struct {
	Namespace   string              // of its objects
	Rules       []rbacv1.PolicyRule // in that namespace
	Definitions []any               // what the API server must know before it
}

// labels are on everything, so that it can be found and removed again.
func (c Config) labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": "kube-write-mcp", "app.kubernetes.io/instance": c.Name}
}

func (c Config) meta(suffix string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: c.Name + suffix, Labels: c.labels()}
}

func (c Config) namespaced(suffix string) metav1.ObjectMeta {
	m := c.meta(suffix)
	m.Namespace = c.Namespace
	return m
}

// allowed are the namespaces that the server writes in, sorted; nil is every one.
func (c Config) allowed() (names []string) {
	for _, n := range c.Policy.AllowNamespaces {
		if !slices.Contains(c.Policy.ProtectNamespaces, n) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// account is the ServiceAccount; pods that want its token say so.
func (c Config) account() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:                     metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta:                   c.namespaced(""),
		AutomountServiceAccountToken: new(false),
	}
}

// Write prints objects as YAML documents, without what only a server fills in.
func Write(w io.Writer, objects []any) error {
	for i, o := range objects {
		raw, err := json.Marshal(o)
		if err != nil {
			return err
		}
		var fields map[string]any
		if err := json.Unmarshal(raw, &fields); err != nil {
			return err
		}
		delete(fields, "status")
		out, err := yaml.Marshal(fields)
		if err != nil {
			return err
		}
		if i > 0 {
			out = append([]byte("---\n"), out...)
		}
		if _, err := w.Write(out); err != nil {
			return fmt.Errorf("printing: %w", err)
		}
	}
	return nil
}
