package blast

import (
	"slices"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// byNamespace are all pods by their namespaces, in runs of those that stand beside each
// other: what bears on a few pods is in their namespaces, and a cluster has many.
type byNamespace map[string][][]plan.Pod

func sorted(pods []plan.Pod) byNamespace {
	b, from := byNamespace{}, 0
	for i := range pods {
		if i+1 == len(pods) || pods[i+1].Namespace != pods[i].Namespace {
			b[pods[i].Namespace] = append(b[pods[i].Namespace], pods[from:i+1])
			from = i + 1
		}
	}
	return b
}

// in gives the pods of one namespace, which share memory with all pods.
func (b byNamespace) in(namespace string) []plan.Pod {
	if runs := b[namespace]; len(runs) != 1 {
		return slices.Concat(runs...)
	}
	return b[namespace][0]
}

// of gives the pods of the namespaces in which pods go.
func (b byNamespace) of(gone []removal) (out []plan.Pod) {
	for namespace := range namespacesOf(gone) {
		out = append(out, b.in(namespace)...)
	}
	return out
}

func namespacesOf(gone []removal) map[string]bool {
	in := map[string]bool{}
	for _, r := range gone {
		in[r.Namespace] = true
	}
	return in
}
