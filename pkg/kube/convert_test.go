package kube

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

var created = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// onePod is a ready pod of a ReplicaSet.
func onePod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-5f7-a", UID: "uid-a", CreationTimestamp: metav1.NewTime(created),
			Labels:          map[string]string{"app": "web"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-5f7", UID: "uid-rs", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "node-1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}},
	}
	change(p)
	return p
}

func TestPodFacts(t *testing.T) {
	emptyDir := func(name string, medium corev1.StorageMedium) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   func(*plan.Pod)
	}{
		"ready": {func(*corev1.Pod) {}, func(*plan.Pod) {}},
		"not ready": {
			func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse },
			func(p *plan.Pod) { p.Ready = false },
		},
		"readiness unknown": {
			func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionUnknown },
			func(p *plan.Pod) { p.Ready = false },
		},
		"no condition yet": {
			func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending}; p.Spec.NodeName = "" },
			func(p *plan.Pod) { p.Ready, p.Phase, p.Node = false, "Pending", "" },
		},
		"terminating, and its condition still says ready": {
			func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(created)) },
			func(p *plan.Pod) { p.Ready, p.Terminating = false, true },
		},
		"static": {
			func(p *corev1.Pod) {
				p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
				p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name = "Node", "node-1"
			},
			func(p *plan.Pod) { p.Mirror, p.Owner = true, plan.Owner{Kind: "Node", Name: "node-1", UID: "uid-rs"} },
		},
		"bare": {
			func(p *corev1.Pod) { p.OwnerReferences = nil },
			func(p *plan.Pod) { p.Owner = plan.Owner{} },
		},
		"an owner that does not control it": {
			func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
			func(p *plan.Pod) { p.Owner = plan.Owner{} },
		},
		"the controller among owners": {
			func(p *corev1.Pod) {
				p.OwnerReferences = append([]metav1.OwnerReference{{Kind: "Tenant", Name: "a", UID: "b", Controller: ptr.To(false)}}, p.OwnerReferences...)
			},
			func(*plan.Pod) {},
		},
		"volumes": {
			func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{
					emptyDir("scratch", ""), {Name: "token"}, emptyDir("shm", corev1.StorageMediumMemory), emptyDir("huge", "HugePages-2Mi"),
				}
			},
			func(p *plan.Pod) { p.EmptyDirs = []string{"scratch", "shm/Memory", "huge/HugePages-2Mi"} },
		},
		"not safe to evict": {
			func(p *corev1.Pod) {
				p.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
			},
			func(p *plan.Pod) { p.OptOut = true },
		},
		"not to be disrupted": {
			func(p *corev1.Pod) { p.Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"} },
			func(p *plan.Pod) { p.OptOut = true },
		},
		"requests": {
			func(p *corev1.Pod) {
				p.Spec.Containers = []corev1.Container{
					{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("1Gi"), "nvidia.com/gpu": resource.MustParse("1")}}},
					{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1"), "ephemeral-storage": resource.MustParse("1Gi")}}},
				}
				p.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"memory": resource.MustParse("2Gi")}}}}
			},
			func(p *plan.Pod) {
				p.Requests = plan.Resources{CPU: 1250, Memory: 2 << 30, Other: map[string]int64{"nvidia.com/gpu": 1}}
			},
		},
		"annotations that opt in": {
			func(p *corev1.Pod) {
				p.Annotations = map[string]string{
					"cluster-autoscaler.kubernetes.io/safe-to-evict": "true", "karpenter.sh/do-not-disrupt": "false",
				}
			},
			func(*plan.Pod) {},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := plan.Pod{
				Namespace: "default", Name: "web-5f7-a", UID: "uid-a", Node: "node-1", Phase: "Running", Ready: true,
				Owner: plan.Owner{Kind: "ReplicaSet", Name: "web-5f7", UID: "uid-rs"}, Labels: map[string]string{"app": "web"}, Created: created,
			}
			tc.want(&want)
			if diff := cmp.Diff(want, PodFacts(onePod(tc.change))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBudgetFacts(t *testing.T) {
	web := plan.Pod{Namespace: "default", Labels: map[string]string{"app": "web"}}
	for name, tc := range map[string]struct {
		change     func(*policyv1.PodDisruptionBudget)
		want       func(*plan.Budget)
		wantCovers bool
	}{
		"selects":        {func(*policyv1.PodDisruptionBudget) {}, func(*plan.Budget) {}, true},
		"selects others": {func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector.MatchLabels["app"] = "db" }, func(*plan.Budget) {}, false},
		"null selector":  {func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = nil }, func(*plan.Budget) {}, false},
		"empty selector": {func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = &metav1.LabelSelector{} }, func(*plan.Budget) {}, true},
		"selector without sense": {func(b *policyv1.PodDisruptionBudget) {
			b.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "?"}}
		}, func(*plan.Budget) {}, true},
		"other namespace": {func(b *policyv1.PodDisruptionBudget) { b.Namespace = "other" }, func(b *plan.Budget) { b.Namespace = "other" }, false},
		"not processed":   {func(b *policyv1.PodDisruptionBudget) { b.Status = policyv1.PodDisruptionBudgetStatus{} }, func(b *plan.Budget) { b.Allowed, b.Healthy, b.Desired, b.Observed = 0, 0, 0, false }, true},
		"changed since":   {func(b *policyv1.PodDisruptionBudget) { b.Generation = 3 }, func(b *plan.Budget) { b.Observed = false }, true},
		"always allows unhealthy": {func(b *policyv1.PodDisruptionBudget) {
			b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
		}, func(b *plan.Budget) { b.AlwaysAllow = true }, true},
		"if healthy": {func(b *policyv1.PodDisruptionBudget) {
			b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.IfHealthyBudget)
		}, func(*plan.Budget) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-b", Generation: 2},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
				Status:     policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: 1, CurrentHealthy: 3, DesiredHealthy: 2},
			}
			tc.change(b)
			want := plan.Budget{Namespace: "default", Name: "web", UID: "uid-b", Allowed: 1, Healthy: 3, Desired: 2, Observed: true}
			tc.want(&want)
			got := budgetFacts(b)
			if covers := got.Covers(web); covers != tc.wantCovers {
				t.Errorf("covers the pod: %t, want %t", covers, tc.wantCovers)
			}
			got.Selector = nil
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodeFacts(t *testing.T) {
	taint := func(key string, effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: key, Effect: effect}} }
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Node)
		want   plan.Node
	}{
		"ready":          {func(*corev1.Node) {}, plan.Node{Name: "node-1", Ready: true}},
		"not ready":      {func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionUnknown }, plan.Node{Name: "node-1"}},
		"new":            {func(n *corev1.Node) { n.Status.Conditions = nil }, plan.Node{Name: "node-1"}},
		"no schedule":    {taint("gpu", corev1.TaintEffectNoSchedule), plan.Node{Name: "node-1", Ready: true, Taints: []plan.Taint{{Key: "gpu", Effect: "NoSchedule"}}}},
		"no execute":     {taint("gpu", corev1.TaintEffectNoExecute), plan.Node{Name: "node-1", Ready: true, Taints: []plan.Taint{{Key: "gpu", Effect: "NoExecute"}}}},
		"rather not":     {taint("gpu", corev1.TaintEffectPreferNoSchedule), plan.Node{Name: "node-1", Ready: true}},
		"cordon's taint": {taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), plan.Node{Name: "node-1", Ready: true}},
		"what it can give": {func(n *corev1.Node) {
			n.Labels = map[string]string{"pool": "lab"}
			n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("3920m"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110"), "nvidia.com/gpu": resource.MustParse("2")}
			n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4")}
		}, plan.Node{Name: "node-1", Ready: true, Labels: map[string]string{"pool": "lab"}, MaxPods: 110,
			Allocatable: plan.Resources{CPU: 3920, Memory: 8 << 30, Other: map[string]int64{"nvidia.com/gpu": 2}}}},
		"cordoned": {func(n *corev1.Node) { n.Spec.Unschedulable = true }, plan.Node{Name: "node-1", Ready: true, Unschedulable: true}},
	} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
				Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
					{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue},
				}},
			}
			tc.change(n)
			if diff := cmp.Diff(tc.want, nodeFacts(n)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceFacts(t *testing.T) {
	web := plan.Pod{Namespace: "default", Labels: map[string]string{"app": "web", "tier": "front"}}
	for name, tc := range map[string]struct {
		spec        corev1.ServiceSpec
		wantListed  bool
		wantSelects bool
	}{
		"selects":         {corev1.ServiceSpec{Selector: map[string]string{"app": "web"}}, true, true},
		"selects others":  {corev1.ServiceSpec{Selector: map[string]string{"app": "db"}}, true, false},
		"of two labels":   {corev1.ServiceSpec{Selector: map[string]string{"app": "web", "tier": "back"}}, true, false},
		"no selector":     {corev1.ServiceSpec{}, false, false},
		"an outside name": {corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, Selector: map[string]string{"app": "web"}}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := compact(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: tc.spec})
			if err != nil {
				t.Fatal(err)
			}
			var f plan.Facts
			r.(*record).addTo(&f)
			if listed := len(f.Services) == 1; listed != tc.wantListed {
				t.Fatalf("listed %t, want %t", listed, tc.wantListed)
			}
			if tc.wantListed && f.Services[0].Selects(web) != tc.wantSelects {
				t.Errorf("selects %t, want %t", !tc.wantSelects, tc.wantSelects)
			}
		})
	}
}

func TestAutoscalerFacts(t *testing.T) {
	ref := func(apiVersion, kind string) autoscalingv2.CrossVersionObjectReference {
		return autoscalingv2.CrossVersionObjectReference{APIVersion: apiVersion, Kind: kind, Name: "web"}
	}
	keda := []metav1.OwnerReference{{APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Name: "shop", Controller: ptr.To(true)}}
	for name, tc := range map[string]struct {
		hpa  autoscalingv2.HorizontalPodAutoscaler
		want plan.Autoscaler
	}{
		"bounds": {
			autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: ref("apps/v1", "Deployment"), MinReplicas: ptr.To(int32(3)), MaxReplicas: 10}},
			plan.Autoscaler{Group: "apps", Kind: "Deployment", Target: "web", Min: 3, Max: 10},
		},
		"no minimum": {
			autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: ref("v1", "ReplicationController"), MaxReplicas: 10}},
			plan.Autoscaler{Kind: "ReplicationController", Target: "web", Min: 1, Max: 10},
		},
		"a minimum of zero": {
			autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: ref("apps/v1", "StatefulSet"), MinReplicas: ptr.To(int32(0)), MaxReplicas: 10}},
			plan.Autoscaler{Group: "apps", Kind: "StatefulSet", Target: "web", Max: 10},
		},
		"KEDA's": {
			autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{OwnerReferences: keda}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: ref("apps/v1", "Deployment"), MaxReplicas: 4}},
			plan.Autoscaler{Group: "apps", Kind: "Deployment", Target: "web", Min: 1, Max: 4, ScaledObject: "shop"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.hpa.Namespace, tc.hpa.Name = "default", "web"
			tc.want.Namespace, tc.want.Name = "default", "web"
			if diff := cmp.Diff(tc.want, autoscalerFacts(&tc.hpa)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestQuotaFacts(t *testing.T) {
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "team"},
		Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{
				"pods": resource.MustParse("3"), "cpu": resource.MustParse("2"), "limits.memory": resource.MustParse("1Gi"), "secrets": resource.MustParse("5"),
				"requests.cpu": resource.MustParse("1500m"), "requests.nvidia.com/gpu": resource.MustParse("4"), "hugepages-2Mi": resource.MustParse("4Mi"),
			},
			Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating},
			ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"high"}},
				{ScopeName: corev1.ResourceQuotaScopeBestEffort, Operator: corev1.ScopeSelectorOpExists},
			}},
		},
		Status: corev1.ResourceQuotaStatus{Used: corev1.ResourceList{
			"pods": resource.MustParse("2"), "cpu": resource.MustParse("900m"), "requests.cpu": resource.MustParse("900m"), "requests.nvidia.com/gpu": resource.MustParse("3"),
		}},
	}
	want := plan.Quota{
		Namespace: "default", Name: "team",
		Scopes: []plan.QuotaScope{{Name: "NotTerminating", Operator: "Exists"}, {Name: "PriorityClass", Operator: "In", Values: []string{"high"}}, {Name: "BestEffort", Operator: "Exists"}},
		Hard:   map[string]int64{"pods": 3, "requests.cpu": 1500, "limits.memory": 1 << 30, "secrets": 5, "requests.nvidia.com/gpu": 4, "requests.hugepages-2Mi": 4 << 20},
		Used:   map[string]int64{"pods": 2, "requests.cpu": 900, "limits.memory": 0, "secrets": 0, "requests.nvidia.com/gpu": 3, "requests.hugepages-2Mi": 0},
	}
	if diff := cmp.Diff(want, quotaFacts(q)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
