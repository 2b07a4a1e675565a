package read

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

type listPodsArgs struct {
	scoped
	Node string `json:"node,omitempty" jsonschema:"exact name: the pods on it"`
	selecting
	paging
}

// Pods is the answer of list_pods.
type Pods struct {
	Head
	Page
	Pods []Pod `json:"pods"`
}

// Pod is one row of Pods.
type Pod struct {
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Phase      string `json:"phase"`
	Ready      bool   `json:"ready"`
	Containers string `json:"containers" jsonschema:"ready of all"`
	Restarts   int32  `json:"restarts"`
	Node       string `json:"node,omitempty"`
	Created    string `json:"created"`
	Version    string `json:"version"`
	Owner      *Owner `json:"owner,omitempty"`
	Why        string `json:"untrusted_why,omitempty" jsonschema:"why it waits or ended"`
}

func (p Pod) settled() bool { return p.Ready || p.Phase == string(corev1.PodSucceeded) }

var listPods = of(Tool{
	Name: "list_pods", Title: "List pods",
	Doc:   "Lists pods with phase, readiness, restarts, node, owner and version, those that are not ready first.",
	Needs: []rule{need("", list, "pods")},
}, func(ctx context.Context, v view, a *listPodsArgs) (*Pods, error) {
	out := &Pods{Pods: []Pod{}}
	var sources []source
	for _, ns := range v.namespaces {
		sources = append(sources, listing("pods", ns, v.API.CoreV1().Pods(ns).List, func(l *corev1.PodList) (int, metav1.ListMeta, error) {
			for i := range l.Items {
				row, err := podRow(&l.Items[i], a.rows())
				if err != nil {
					return 0, l.ListMeta, err
				}
				out.Pods = append(out.Pods, row)
			}
			return len(l.Items), l.ListMeta, nil
		}))
	}
	var on fields.Set
	if a.Node != "" {
		on = fields.Set{"spec.nodeName": a.Node}
	}
	var err error
	out.Page, err = page(ctx, a.paging, a.Selector, on, sources, "namespace, node or selector")
	slices.SortStableFunc(out.Pods, func(a, b Pod) int { return settledLast(a.settled(), b.settled()) })
	return out, err
})

// phases are all that a pod can be in.
var phases = []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown}

func podRow(p *corev1.Pod, rows int) (Pod, error) {
	version, err := versioned(p)
	row := Pod{Namespace: p.Namespace, Name: p.Name, Phase: "other", Node: p.Spec.NodeName, Created: when(p.CreationTimestamp), Version: version}
	if slices.Contains(phases, p.Status.Phase) {
		row.Phase = string(p.Status.Phase)
	}
	why, ready := p.Status.Reason, 0
	for _, c := range p.Status.ContainerStatuses {
		row.Restarts += c.RestartCount
		switch {
		case c.Ready:
			ready++
		case c.State.Waiting != nil:
			why = c.State.Waiting.Reason + ": " + c.State.Waiting.Message
		case c.State.Terminated != nil:
			why = c.State.Terminated.Reason + ": " + c.State.Terminated.Message
		}
	}
	for _, c := range p.Status.Conditions {
		row.Ready = row.Ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			why = c.Reason + ": " + c.Message
		}
	}
	if p.DeletionTimestamp != nil {
		row.Phase, row.Ready = "terminating", false
	}
	row.Containers, row.Why = fmt.Sprintf("%d/%d", ready, len(p.Spec.Containers)), bounded(why, rows)
	if ref := metav1.GetControllerOf(p); ref != nil {
		row.Owner = &Owner{bounded(ref.Kind, rows), bounded(ref.Name, rows)}
	}
	return row, err
}

// Text is the answer as a table.
func (p *Pods) Text() string {
	s := sheet{head: fmt.Sprintf("%d %s", p.Shown, plan.Plural(p.Shown, "pod")), table: [][]string{{"NAMESPACE", "NAME", "PHASE", "READY", "CONTAINERS", "RESTARTS", "NODE", "CREATED", "VERSION"}}}
	for _, r := range p.Pods {
		s.table = append(s.table, []string{r.Namespace, r.Name, r.Phase, fmt.Sprint(r.Ready), r.Containers, fmt.Sprint(r.Restarts), r.Node, r.Created, r.Version})
		owner := ""
		if r.Owner != nil {
			owner = "of " + r.Owner.Kind + " " + r.Owner.Name
		}
		s.quote(r.Namespace+"/"+r.Name, strings.TrimSpace(owner+" "+r.Why))
	}
	s.page(p.Page)
	return s.text(p.Head)
}
