package read

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

type listNodesArgs struct {
	clusterWide
	selecting
	paging
}

// Nodes is the answer of list_nodes.
type Nodes struct {
	Head
	Page
	Nodes []Node `json:"nodes"`
}

// Node is one row of Nodes.
type Node struct {
	Name        string            `json:"name"`
	Ready       bool              `json:"ready"`
	Schedulable bool              `json:"schedulable"`
	Allocatable map[string]string `json:"allocatable" jsonschema:"cpu and memory"`
	MaxPods     int64             `json:"max_pods"`
	Created     string            `json:"created"`
	Version     string            `json:"version"`
	Kubelet     string            `json:"untrusted_kubelet,omitempty"`
	Labels      map[string]string `json:"untrusted_labels,omitempty" jsonschema:"zone, region, type, system"`
	Taints      []string          `json:"untrusted_taints,omitempty"`
	Why         []string          `json:"untrusted_conditions,omitempty" jsonschema:"those that are not as they should be"`
}

func (n Node) settled() bool { return n.Ready && n.Schedulable }

// nodeLabels are those that are shown, under a short name.
var nodeLabels = [][2]string{
	{"zone", corev1.LabelTopologyZone}, {"region", corev1.LabelTopologyRegion}, {"instance_type", corev1.LabelInstanceTypeStable},
	{"os", corev1.LabelOSStable}, {"arch", corev1.LabelArchStable},
}

var listNodes = of(Tool{
	Name: "list_nodes", Title: "List nodes",
	Doc:   "Lists nodes with readiness, schedulability, allocatable resources, taints and version, those that are not ready or not schedulable first.",
	Needs: []rule{need("", list, "nodes")}, Nodes: true,
}, func(ctx context.Context, v view, a *listNodesArgs) (*Nodes, error) {
	out := &Nodes{Nodes: []Node{}}
	var err error
	out.Page, err = page(ctx, a.paging, a.Selector, nil, []source{
		listing("nodes", "", v.API.CoreV1().Nodes().List, func(l *corev1.NodeList) (int, metav1.ListMeta, error) {
			for i := range l.Items {
				row, err := nodeRow(&l.Items[i], a.rows())
				if err != nil {
					return 0, l.ListMeta, err
				}
				out.Nodes = append(out.Nodes, row)
			}
			return len(l.Items), l.ListMeta, nil
		}),
	}, "selector")
	slices.SortStableFunc(out.Nodes, func(a, b Node) int { return settledLast(a.settled(), b.settled()) })
	return out, err
})

func nodeRow(n *corev1.Node, rows int) (Node, error) {
	version, err := versioned(n)
	row := Node{
		Name: n.Name, Schedulable: !n.Spec.Unschedulable, Allocatable: amounts(n.Status.Allocatable), MaxPods: n.Status.Allocatable.Pods().Value(),
		Created: when(n.CreationTimestamp), Version: version, Kubelet: bounded(n.Status.NodeInfo.KubeletVersion, rows), Labels: map[string]string{},
	}
	for _, l := range nodeLabels {
		if value := n.Labels[l[1]]; value != "" {
			row.Labels[l[0]] = bounded(value, rows)
		}
	}
	for _, t := range n.Spec.Taints[:min(len(n.Spec.Taints), maxItems)] {
		row.Taints = append(row.Taints, bounded(t.ToString(), rows))
	}
	for _, c := range n.Status.Conditions[:min(len(n.Status.Conditions), maxItems)] {
		good := corev1.ConditionFalse
		if c.Type == corev1.NodeReady {
			good = corev1.ConditionTrue
			row.Ready = c.Status == good
		}
		if c.Status != good {
			row.Why = append(row.Why, bounded(fmt.Sprintf("%s %s: %s: %s", c.Type, c.Status, c.Reason, c.Message), rows))
		}
	}
	return row, err
}

// Text is the answer as a table.
func (n *Nodes) Text() string {
	s := sheet{head: fmt.Sprintf("%d %s", n.Shown, plan.Plural(n.Shown, "node")), table: [][]string{{"NAME", "READY", "SCHEDULABLE", "CPU", "MEMORY", "PODS", "CREATED", "VERSION"}}}
	for _, r := range n.Nodes {
		s.table = append(s.table, []string{
			r.Name, fmt.Sprint(r.Ready), fmt.Sprint(r.Schedulable), r.Allocatable["cpu"], r.Allocatable["memory"], fmt.Sprint(r.MaxPods), r.Created, r.Version,
		})
		var all []string
		for _, l := range nodeLabels {
			if value := r.Labels[l[0]]; value != "" {
				all = append(all, l[0]+" "+value)
			}
		}
		if r.Taints != nil {
			all = append(all, "taints "+strings.Join(r.Taints, ", "))
		}
		if r.Kubelet != "" {
			all = append(all, "kubelet "+r.Kubelet)
		}
		s.quote(r.Name, strings.Join(append(all, r.Why...), "; "))
	}
	s.page(n.Page)
	return s.text(n.Head)
}
