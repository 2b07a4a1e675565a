package gate

import (
	"slices"

	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// Readable refuses to read in a namespace that is not allowed; protected ones may be read.
func (p Policy) Readable(namespace string) *refusal.Refusal {
	if len(p.AllowNamespaces) > 0 && !slices.Contains(p.AllowNamespaces, namespace) {
		return refusal.New(refusal.OutOfScope, "only the operator can change this, with --allow-namespaces",
			"namespace %s is not in --allow-namespaces; nothing was read", namespace)
	}
	return nil
}
