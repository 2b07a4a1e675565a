package blast

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// BenchmarkDrain is the radius of a drain of 110 pods in clusters of several sizes: 100
// pods per namespace, three per owner, a budget for every fifth owner. The facts are those
// of the namespaces in which pods go.
func BenchmarkDrain(b *testing.B) {
	for _, size := range []int{1_000, 50_000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			in := Input{Targets: map[string]plan.Object{}, Facts: plan.Facts{Sources: map[string]string{"pods": "cache", "poddisruptionbudgets": "cache", "nodes": "cache"}}}
			for n := range size {
				owner := n / 3
				p := plan.Pod{
					Namespace: fmt.Sprintf("team-%03d", n/100), Name: fmt.Sprintf("app-%d-%d", owner, n), UID: strconv.Itoa(n), Phase: "Running", Ready: true,
					Node: fmt.Sprintf("node-%d", 3*(owner/110)+n%3), Owner: plan.Owner{Kind: "ReplicaSet", Name: fmt.Sprintf("app-%d", owner), UID: fmt.Sprintf("o-%d", owner)},
					Labels: map[string]string{"app": fmt.Sprintf("app-%d", owner)}, Requests: plan.Resources{CPU: 100, Memory: 128 << 20},
				}
				in.Facts.Pods = append(in.Facts.Pods, p)
				if p.Node == "node-0" {
					in.Targets[p.UID] = plan.Object{"metadata": map[string]any{"uid": p.UID}}
					in.Steps = append(in.Steps, plan.Step{Verb: plan.Evict, OnBudget: plan.Wait, Target: plan.Target{Resource: "pods", Namespace: p.Namespace, Name: p.Name, UID: p.UID}})
				}
				if n%3 == 0 && owner%5 == 0 {
					in.Facts.Budgets = append(in.Facts.Budgets, plan.Budget{Namespace: p.Namespace, Name: p.Owner.Name, Selector: labels.SelectorFromSet(p.Labels), Allowed: 1, Healthy: 3, Desired: 2, Observed: true})
				}
			}
			for n := range size/110 + 1 {
				in.Facts.Nodes = append(in.Facts.Nodes, plan.Node{Name: fmt.Sprintf("node-%d", n), Ready: true, Allocatable: plan.Resources{CPU: 32_000, Memory: 128 << 30}, MaxPods: 250})
			}
			concerned := map[string]bool{}
			for _, s := range in.Steps {
				concerned[s.Target.Namespace] = true
			}
			in.Facts.Loads = loadsOf(in.Facts.Pods)
			in.Facts.Pods = slices.DeleteFunc(in.Facts.Pods, func(p plan.Pod) bool { return !concerned[p.Namespace] })
			in.Facts.Budgets = slices.DeleteFunc(in.Facts.Budgets, func(p plan.Budget) bool { return !concerned[p.Namespace] })
			for b.Loop() {
				e, no := Compute(in)
				if no != nil || e.Blast.Pods != 110 {
					b.Fatal(no, e.Blast)
				}
			}
		})
	}
}
