package read

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

type listNamespacesArgs struct {
	clusterWide
	selecting
	paging
}

// Namespaces is the answer of list_namespaces.
type Namespaces struct {
	Head
	Page
	Namespaces []Namespace `json:"namespaces"`
}

// Namespace is one row of Namespaces.
type Namespace struct {
	Name    string `json:"name"`
	Phase   string `json:"phase"`
	Writes  string `json:"writes" jsonschema:"allowed, or why nothing is written there"`
	Created string `json:"created"`
}

var listNamespaces = of(Tool{
	Name: "list_namespaces", Title: "List namespaces",
	Doc:   "Lists the namespaces in scope, and whether this server may write in them.",
	Needs: []rule{need("", getAndList, "namespaces")},
}, func(ctx context.Context, v view, a *listNamespacesArgs) (*Namespaces, error) {
	out := &Namespaces{Namespaces: []Namespace{}}
	keep := func(l *corev1.NamespaceList) (int, metav1.ListMeta, error) {
		for _, n := range l.Items {
			row := Namespace{Name: n.Name, Phase: "active", Writes: "allowed", Created: when(n.CreationTimestamp)}
			if why := v.Excluded(n.Name); why != "" {
				row.Writes = why
			}
			if n.Status.Phase == corev1.NamespaceTerminating {
				row.Phase = "terminating"
			}
			out.Namespaces = append(out.Namespaces, row)
		}
		return len(l.Items), l.ListMeta, nil
	}
	var sources []source
	for _, ns := range v.namespaces {
		api := v.API.CoreV1().Namespaces()
		if ns == metav1.NamespaceAll {
			sources = append(sources, listing("namespaces", "", api.List, keep))
			continue
		}
		// One that is allowed is asked for by its name, so that no other is read.
		sources = append(sources, listing("namespaces", ns, func(ctx context.Context, o metav1.ListOptions) (*corev1.NamespaceList, error) {
			o.FieldSelector = "metadata.name=" + ns
			return api.List(ctx, o)
		}, keep))
	}
	var err error
	out.Page, err = page(ctx, a.paging, a.Selector, nil, sources, "selector")
	return out, err
})

// Text is the answer as a table.
func (n *Namespaces) Text() string {
	s := sheet{head: fmt.Sprintf("%d %s", n.Shown, plan.Plural(n.Shown, "namespace")), table: [][]string{{"NAME", "PHASE", "WRITES", "CREATED"}}}
	for _, r := range n.Namespaces {
		s.table = append(s.table, []string{r.Name, r.Phase, r.Writes, r.Created})
	}
	s.page(n.Page)
	return s.text(n.Head)
}
