package blast

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

func TestFit(t *testing.T) {
	// n1 is drained; n2 has two CPUs and 4 GiB, n3 one CPU and 8 GiB.
	room := func(w *world) {
		w.nodes("n1", "n2", "n3")
		for i, r := range []plan.Resources{{CPU: 8000, Memory: 8 << 30}, {CPU: 2000, Memory: 4 << 30}, {CPU: 1000, Memory: 8 << 30}} {
			n := &w.in.Facts.Nodes[i]
			n.Allocatable, n.MaxPods, n.Labels = r, 10, map[string]string{"kubernetes.io/hostname": n.Name}
		}
	}
	node := func(i int, edit func(*plan.Node)) func(*world) { return func(w *world) { edit(&w.in.Facts.Nodes[i]) } }
	requests := func(all ...plan.Resources) func(*world) {
		return func(w *world) {
			w.pods(webSet, len(all), len(all), func(i int, p *plan.Pod) { p.Requests = all[i] })
		}
	}
	cpu := func(n int64) plan.Resources { return plan.Resources{CPU: n} }
	// stay puts a pod of another owner on a node.
	stay := func(on string, r plan.Resources, edit func(*plan.Pod)) func(*world) {
		return func(w *world) {
			w.pods(newSet, 1, 1, func(_ int, p *plan.Pod) { p.Node, p.Requests = on, r; edit(p) })
		}
	}
	// pod changes the live pod that is evicted first.
	pod := func(edit func(*corev1.PodSpec)) func(*world) {
		return func(w *world) {
			p := &corev1.Pod{}
			edit(&p.Spec)
			o, err := plan.ObjectOf(p)
			if err != nil {
				t.Fatal(err)
			}
			w.in.Targets["pod-web-5f7-0"] = o
		}
	}
	as := func(*plan.Pod) {}
	for name, tc := range map[string]struct {
		build []func(*world)
		want  string
	}{
		"all fit":           {[]func(*world){requests(cpu(1000), cpu(1000), cpu(1000))}, "all 3 evicted pods fit on other nodes, by requests, taints and node affinity"},
		"one fits":          {[]func(*world){requests(cpu(500))}, "the evicted pod fits on other nodes, by requests, taints and node affinity"},
		"one does not":      {[]func(*world){requests(cpu(4000), cpu(100), cpu(100), cpu(100))}, "3 of 4 evicted pods fit on other nodes; default/web-5f7-0 needs 4 CPU, the most free is 2"},
		"the sum does not":  {[]func(*world){requests(cpu(1500), cpu(1500))}, "1 of 2 evicted pods fits on other nodes; default/web-5f7-1 needs 1500m CPU, the most free is 1"},
		"the largest first": {[]func(*world){requests(cpu(900), cpu(900), cpu(1900))}, "2 of 3 evicted pods fit on other nodes; default/web-5f7-1 needs 900m CPU, the most free is 100m"},
		"memory":            {[]func(*world){requests(plan.Resources{Memory: 9 << 30})}, "0 of 1 evicted pod fit on other nodes; default/web-5f7-0 needs 9Gi memory, the most free is 8Gi"},
		"not of both":       {[]func(*world){requests(plan.Resources{CPU: 2000, Memory: 8 << 30})}, "0 of 1 evicted pod fit on other nodes; default/web-5f7-0 finds no node with enough of everything that it requests"},
		"a device":          {[]func(*world){requests(plan.Resources{Other: map[string]int64{"nvidia.com/gpu": 1}})}, "0 of 1 evicted pod fit on other nodes; default/web-5f7-0 needs 1 nvidia.com/gpu, the most free is 0"},
		"a device that one has": {[]func(*world){
			requests(plan.Resources{Other: map[string]int64{"nvidia.com/gpu": 1}}, plan.Resources{Other: map[string]int64{"nvidia.com/gpu": 1}}),
			node(2, func(n *plan.Node) { n.Allocatable.Other = map[string]int64{"nvidia.com/gpu": 1} }),
		}, "1 of 2 evicted pods fits on other nodes; default/web-5f7-1 needs 1 nvidia.com/gpu, the most free is 0"},
		"what is there already":       {[]func(*world){requests(cpu(1500)), stay("n2", cpu(1000), as)}, "0 of 1 evicted pod fit on other nodes; default/web-5f7-0 needs 1500m CPU, the most free is 1"},
		"what has ended":              {[]func(*world){requests(cpu(1500)), stay("n2", cpu(1000), func(p *plan.Pod) { p.Phase, p.Ready = "Succeeded", false })}, "the evicted pod fits on other nodes, by requests, taints and node affinity"},
		"more there than it can give": {[]func(*world){requests(cpu(1500)), stay("n2", cpu(3000), as)}, "0 of 1 evicted pod fit on other nodes; default/web-5f7-0 needs 1500m CPU, the most free is 1"},
		"pods without requests":       {[]func(*world){requests(cpu(0)), stay("n2", cpu(3000), as), stay("n3", cpu(3000), as)}, "the evicted pod fits on other nodes, by requests, taints and node affinity"},
		"no place for one more": {[]func(*world){
			requests(cpu(0)), node(1, func(n *plan.Node) { n.MaxPods = 1 }), node(2, func(n *plan.Node) { n.Unschedulable = true }), stay("n2", cpu(0), as),
		}, "0 of 1 evicted pod fit on other nodes; default/web-5f7-0 finds no node that takes one more pod"},
		"a cordoned node":     {[]func(*world){requests(cpu(1500)), node(1, func(n *plan.Node) { n.Unschedulable = true })}, "0 of 1 evicted pod fit on other nodes; default/web-5f7-0 needs 1500m CPU, the most free is 1"},
		"a node that is down": {[]func(*world){requests(cpu(1500)), node(1, func(n *plan.Node) { n.Ready = false })}, "0 of 1 evicted pod fit on other nodes; default/web-5f7-0 needs 1500m CPU, the most free is 1"},
		"a taint":             {[]func(*world){requests(cpu(1500)), node(1, func(n *plan.Node) { n.Taints = []plan.Taint{{Key: "gpu", Value: "a", Effect: "NoSchedule"}} })}, "0 of 1 evicted pod fit on other nodes; default/web-5f7-0 needs 1500m CPU, the most free is 1"},
		"a taint that it tolerates": {[]func(*world){
			requests(cpu(1500)), node(1, func(n *plan.Node) { n.Taints = []plan.Taint{{Key: "gpu", Value: "a", Effect: "NoSchedule"}} }),
			pod(func(s *corev1.PodSpec) { s.Tolerations = []corev1.Toleration{{Key: "gpu", Value: "a"}} }),
		}, "the evicted pod fits on other nodes, by requests, taints and node affinity"},
		"a taint of another value": {[]func(*world){
			requests(cpu(1500)), node(1, func(n *plan.Node) { n.Taints = []plan.Taint{{Key: "gpu", Value: "a", Effect: "NoSchedule"}} }),
			pod(func(s *corev1.PodSpec) {
				s.Tolerations = []corev1.Toleration{{Key: "gpu", Value: "b"}, {Key: "gpu", Operator: "Exists", Effect: "NoExecute"}, {Key: "x", Operator: "Exists"}}
			}),
		}, "0 of 1 evicted pod fit on other nodes; default/web-5f7-0 needs 1500m CPU, the most free is 1"},
		"it tolerates everything": {[]func(*world){
			requests(cpu(1500)), node(1, func(n *plan.Node) { n.Taints = []plan.Taint{{Key: "gpu", Effect: "NoExecute"}} }),
			pod(func(s *corev1.PodSpec) { s.Tolerations = []corev1.Toleration{{Operator: "Exists"}} }),
		}, "the evicted pod fits on other nodes, by requests, taints and node affinity"},
		"a node selector": {[]func(*world){
			requests(cpu(1500)), pod(func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"kubernetes.io/hostname": "n3"} }),
		}, "0 of 1 evicted pod fit on other nodes; default/web-5f7-0 needs 1500m CPU, the most free is 1"},
		"an affinity for the drained node": {[]func(*world){requests(cpu(1)), pod(func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: "In", Values: []string{"n1"}}}}},
			}}}
		})}, "1 pod cannot run elsewhere, by node selector, affinity or tolerations: default/web-5f7-0"},
		"nodes that do not say": {[]func(*world){requests(cpu(1)), func(w *world) {
			for i := range w.in.Facts.Nodes {
				w.in.Facts.Nodes[i].MaxPods = 0
			}
		}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			room(w)
			for _, b := range tc.build {
				b(w)
			}
			w.cordon("n1")
			for _, p := range w.in.Facts.Pods {
				if p.Owner == webSet {
					live := w.in.Targets[p.UID]
					w.gone(plan.Evict, plan.Wait, p.Name)
					if live != nil {
						w.in.Targets[p.UID] = live
					}
				}
			}
			e := w.compute()
			got := strings.Join(append(linesWith(e, "cannot run elsewhere"), linesWith(e, "on other nodes")...), "; ")
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}

	w := newWorld(t)
	room(w)
	wantLine(t, w.cordon("n1").compute(), "2 of 3 schedulable nodes left (34 % fewer, 73 % less CPU)")
}
