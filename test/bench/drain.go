package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/test/bench/report"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// The shape of a fed cluster. The pods of an owner stand on three nodes, whose pods are of
// the same 110 owners and of a few namespaces: the node that is drained is the same one,
// with the same pods, whatever the size of the cluster.
const (
	podsPerNamespace = 100
	podsPerOwner     = 3
	podsPerNode      = 110
	ownersPerBudget  = 5
)

// where is what the shape says of a pod, by its number.
type where struct{ namespace, owner, node int }

func place(pod int) where {
	owner := pod / podsPerOwner
	return where{pod / podsPerNamespace, owner, podsPerOwner*(owner/podsPerNode) + pod%podsPerOwner}
}

// fed is a cluster of many pods: a real API server that has the node to drain, what runs
// on it and its budgets, and behind a proxy the lists and watches of all the rest, which
// come from this process.
type fed struct {
	pods    []*corev1.Pod
	nodes   []*corev1.Node
	budgets []*policyv1.PodDisruptionBudget
	proxy   *httptest.Server
}

const drained = "drained-0"

// feed makes a cluster of so many pods. made are those of the node to drain as the API
// server has them, by name.
func feed(cfg *rest.Config, pods int, made map[string]*corev1.Pod) (*fed, error) {
	f := &fed{}
	nodes := 0
	for n := range pods {
		nodes = max(nodes, place(n).node+1)
		p := fedPod(n)
		if real := made[p.Namespace+"/"+p.Name]; real != nil {
			p = real
		} else {
			p.UID, p.ResourceVersion = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n)), "1000"
		}
		f.pods = append(f.pods, p)
		if w := place(n); n%podsPerOwner == 0 && w.owner%ownersPerBudget == 0 {
			budget := fedBudget(w)
			budget.UID, budget.ResourceVersion = types.UID(fmt.Sprintf("00000000-0000-4000-9000-%012d", n)), "1000"
			f.budgets = append(f.budgets, budget)
		}
	}
	for n := range nodes {
		node := fedNode(n)
		node.UID, node.ResourceVersion = types.UID(fmt.Sprintf("00000000-0000-4000-a000-%012d", n)), "1000"
		f.nodes = append(f.nodes, node)
	}
	return f, f.serve(cfg)
}

func fedNamespace(w where) string { return fmt.Sprintf("team-%d", w.namespace) }
func fedNodeName(n int) string    { return fmt.Sprintf("drained-%d", n) }

func fedPod(n int) *corev1.Pod {
	w := place(n)
	app := fmt.Sprintf("app-%d", w.owner)
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fedNamespace(w), Name: fmt.Sprintf("%s-5d8f9c7b6-%d", app, n),
			Labels: map[string]string{"app": app, "pod-template-hash": "5d8f9c7b6"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-5d8f9c7b6", UID: types.UID(fmt.Sprintf("00000000-0000-4000-b000-%012d", w.owner)), Controller: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: fedNodeName(w.node), TerminationGracePeriodSeconds: ptr.To(int64(0)),
			Containers: []corev1.Container{{Name: "main", Image: "main", Resources: corev1.ResourceRequirements{Requests: room}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func fedBudget(w where) *policyv1.PodDisruptionBudget {
	app := fmt.Sprintf("app-%d", w.owner)
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: fedNamespace(w), Name: app, Generation: 1},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, MaxUnavailable: ptr.To(intstr.FromInt32(1))},
		Status:     policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1, CurrentHealthy: 3, DesiredHealthy: 2, ExpectedPods: 3},
	}
}

func fedNode(n int) *corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("128Gi"), corev1.ResourcePods: resource.MustParse("250"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fedNodeName(n), Labels: map[string]string{"pool": "lab"}},
		Status: corev1.NodeStatus{
			Allocatable: room, Capacity: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// fill makes in the API server what the drain of the one node meets.
func (r *rig) drained(ctx context.Context) (made map[string]*corev1.Pod, err error) {
	core := r.Client.CoreV1()
	node, err := core.Nodes().Create(ctx, fedNode(0), metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	node.Spec.Taints = nil
	if node, err = core.Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	node.Status = fedNode(0).Status
	if _, err := core.Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	made = map[string]*corev1.Pod{}
	known := map[string]bool{}
	for n := range podsPerNode * podsPerOwner {
		w := place(n)
		if w.node != 0 {
			continue
		}
		ns := fedNamespace(w)
		if !known[ns] {
			known[ns] = true
			if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
				return nil, err
			}
		}
		pod, err := core.Pods(ns).Create(ctx, fedPod(n), metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		pod.Status = fedPod(n).Status
		if pod, err = core.Pods(ns).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
			return nil, err
		}
		made[ns+"/"+pod.Name] = pod
		if w.owner%ownersPerBudget != 0 {
			continue
		}
		budget, err := r.Client.PolicyV1().PodDisruptionBudgets(ns).Create(ctx, fedBudget(w), metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		budget.Status = fedBudget(w).Status
		if _, err := r.Client.PolicyV1().PodDisruptionBudgets(ns).UpdateStatus(ctx, budget, metav1.UpdateOptions{}); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// newest is the version that the fed lists are of: one that no object has reached.
const newest = "1000000000000"

// serve starts the proxy.
func (f *fed) serve(cfg *rest.Config) error {
	host, err := url.Parse(cfg.Host)
	if err != nil {
		return err
	}
	anonymous := rest.AnonymousClientConfig(cfg)
	anonymous.QPS = -1
	transport, err := rest.TransportFor(anonymous)
	if err != nil {
		return err
	}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(host) }, Transport: transport, FlushInterval: -1}
	lists := map[string]func(from, to int) (runtime.Object, int){
		"/api/v1/pods": page(f.pods, func(items []corev1.Pod, m metav1.ListMeta) runtime.Object {
			return &corev1.PodList{ListMeta: m, Items: items}
		}),
		"/api/v1/nodes": page(f.nodes, func(items []corev1.Node, m metav1.ListMeta) runtime.Object {
			return &corev1.NodeList{ListMeta: m, Items: items}
		}),
		"/apis/policy/v1/poddisruptionbudgets": page(f.budgets, func(items []policyv1.PodDisruptionBudget, m metav1.ListMeta) runtime.Object {
			return &policyv1.PodDisruptionBudgetList{ListMeta: m, Items: items}
		}),
	}
	f.proxy = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		list := lists[req.URL.Path]
		switch {
		case list == nil || req.Method != http.MethodGet || q.Get("fieldSelector") != "":
			forward.ServeHTTP(w, req)
		case q.Get("sendInitialEvents") != "": // as a server without it says: the client lists then
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		case q.Get("watch") != "": // which brings nothing for as long as it is open
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
		default:
			from, _ := strconv.Atoi(q.Get("continue"))
			limit, _ := strconv.Atoi(q.Get("limit"))
			if limit == 0 {
				limit = len(f.pods)
			}
			out, _ := list(from, from+limit)
			w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
			_ = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(out, w)
		}
	}))
	f.proxy.EnableHTTP2 = true
	f.proxy.StartTLS()
	return nil
}

// page gives a part of a list, as the API server's own pages are.
func page[T any](all []*T, list func([]T, metav1.ListMeta) runtime.Object) func(from, to int) (runtime.Object, int) {
	return func(from, to int) (runtime.Object, int) {
		m := metav1.ListMeta{ResourceVersion: newest}
		to = min(to, len(all))
		var items []T
		for _, o := range all[min(from, to):to] {
			items = append(items, *o)
		}
		if to < len(all) {
			m.Continue = strconv.Itoa(to)
		}
		return list(items, m), to
	}
}

// config reaches the cluster through the proxy.
func (f *fed) config(cfg *rest.Config) *rest.Config {
	c := rest.CopyConfig(cfg)
	c.Host = f.proxy.URL
	c.TLSClientConfig = rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.proxy.Certificate().Raw})}
	return c
}

func (f *fed) close() {
	f.proxy.CloseClientConnections()
	f.proxy.Close()
}

// drain compares the same drain in clusters of several sizes.
func (b *bench) drain(ctx context.Context) error {
	r, err := b.cluster(ctx)
	if err != nil {
		return err
	}
	made, err := r.drained(ctx)
	if err != nil {
		return err
	}
	sizes := []int{1_000, 10_000, 50_000}
	var sides []side
	for _, size := range sizes {
		f, err := feed(r.account, size, made)
		if err != nil {
			return err
		}
		defer f.close()
		at := *r
		at.kubeconfig = filepath.Join(b.dir, fmt.Sprintf("kubeconfig-%d", size))
		if err := r.Kubeconfig(at.kubeconfig, "kind-lab", f.config(r.account)); err != nil {
			return err
		}
		s, err := b.server(&at, fmt.Sprintf("drain-%d", size))
		if err != nil {
			return err
		}
		defer s.Kill()
		plan := func() error {
			_, err := planned(s, "drain", map[string]any{"node": drained})
			return err
		}
		if err := synced(s, plan); err != nil {
			return err
		}
		sides = append(sides, side{run: plan})
	}
	ms, err := b.turns(ctx, sides...)
	if err != nil {
		return err
	}
	var p50 []float64
	for _, s := range ms {
		p50 = append(p50, report.Quantile(s, 0.5))
	}
	for i, size := range sizes[1:] {
		b.add(report.Row{
			What: fmt.Sprintf("plan_drain of %d pods in a cluster of %d pods", podsPerNode, size), Baseline: fmt.Sprintf("in a cluster of %d pods", sizes[0]),
			Ours: p50[i+1], Base: p50[0], Unit: "ms", Value: p50[i+1] / p50[0], Bar: report.AtMost(1.3, "×"), Runs: len(ms[0]),
		})
	}
	return nil
}

// synced plans until the caches are used.
func synced(s *stdio.Client, plan func() error) error {
	if err := plan(); err != nil {
		return err
	}
	time.Sleep(5 * time.Second) // the watch of a large cluster begins behind its first list
	return plan()
}
