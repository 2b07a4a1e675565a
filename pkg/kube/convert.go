package kube

import (
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	requests "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// PodFacts is the compact record of a pod.
func PodFacts(p *corev1.Pod) plan.Pod {
	out := plan.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Phase: string(p.Status.Phase),
		Terminating: p.DeletionTimestamp != nil, Labels: p.Labels, Created: p.CreationTimestamp.Time,
		Requests: resourcesOf(requests.PodRequests(p, requests.PodResourcesOptions{})),
		OptOut:   p.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false" || p.Annotations["karpenter.sh/do-not-disrupt"] == "true",
	}
	_, out.Mirror = p.Annotations[corev1.MirrorPodAnnotationKey]
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		out.Owner = plan.Owner{Kind: ref.Kind, Name: ref.Name, UID: string(ref.UID)}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			out.Ready = c.Status == corev1.ConditionTrue && !out.Terminating
		}
	}
	for _, v := range p.Spec.Volumes {
		switch {
		case v.EmptyDir == nil:
		case v.EmptyDir.Medium == corev1.StorageMediumDefault:
			out.EmptyDirs = append(out.EmptyDirs, v.Name)
		default:
			out.EmptyDirs = append(out.EmptyDirs, v.Name+"/"+string(v.EmptyDir.Medium))
		}
	}
	return out
}

func budgetFacts(b *policyv1.PodDisruptionBudget) plan.Budget {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector) // null matches nothing, {} everything
	if err != nil {
		selector = labels.Everything() // the API server validates selectors; in doubt the budget counts
	}
	return plan.Budget{
		Namespace: b.Namespace, Name: b.Name, UID: string(b.UID), Selector: selector,
		Allowed: int(b.Status.DisruptionsAllowed), Healthy: int(b.Status.CurrentHealthy), Desired: int(b.Status.DesiredHealthy),
		Observed:    b.Status.ObservedGeneration >= b.Generation,
		AlwaysAllow: b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow,
	}
}

func nodeFacts(n *corev1.Node) plan.Node {
	out := plan.Node{
		Name: n.Name, Unschedulable: n.Spec.Unschedulable, Labels: n.Labels,
		Allocatable: resourcesOf(n.Status.Allocatable), MaxPods: n.Status.Allocatable.Pods().Value(),
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Ready = c.Status == corev1.ConditionTrue
		}
	}
	for _, t := range n.Spec.Taints {
		if t.Key != corev1.TaintNodeUnschedulable && t.Effect != corev1.TaintEffectPreferNoSchedule {
			out.Taints = append(out.Taints, plan.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
		}
	}
	return out
}

// resourcesOf takes what decides where a pod fits: cpu, memory and extended resources.
func resourcesOf(list corev1.ResourceList) plan.Resources {
	out := plan.Resources{CPU: list.Cpu().MilliValue(), Memory: list.Memory().Value()}
	for name, n := range list {
		if strings.Contains(string(name), "/") {
			if out.Other == nil {
				out.Other = map[string]int64{}
			}
			out.Other[string(name)] = n.Value()
		}
	}
	return out
}

func serviceFacts(s *corev1.Service) plan.Service {
	out := plan.Service{Namespace: s.Namespace, Name: s.Name}
	if len(s.Spec.Selector) > 0 && s.Spec.Type != corev1.ServiceTypeExternalName {
		out.Selector = labels.SelectorFromSet(s.Spec.Selector)
	}
	return out
}

func autoscalerFacts(h *autoscalingv2.HorizontalPodAutoscaler) plan.Autoscaler {
	ref := h.Spec.ScaleTargetRef
	group, _, grouped := strings.Cut(ref.APIVersion, "/")
	if !grouped {
		group = ""
	}
	out := plan.Autoscaler{
		Namespace: h.Namespace, Name: h.Name, Group: group, Kind: ref.Kind, Target: ref.Name,
		Min: int(ptr.Deref(h.Spec.MinReplicas, 1)), Max: int(h.Spec.MaxReplicas),
	}
	if owner := metav1.GetControllerOfNoCopy(h); owner != nil && owner.Kind == "ScaledObject" {
		out.ScaledObject = owner.Name
	}
	return out
}

// quotaFacts takes all that a quota limits: what of it the new pods need decides who knows
// them.
func quotaFacts(q *corev1.ResourceQuota) plan.Quota {
	out := plan.Quota{Namespace: q.Namespace, Name: q.Name, Hard: map[string]int64{}, Used: map[string]int64{}}
	for _, s := range q.Spec.Scopes {
		out.Scopes = append(out.Scopes, plan.QuotaScope{Name: string(s), Operator: string(corev1.ScopeSelectorOpExists)})
	}
	if q.Spec.ScopeSelector != nil {
		for _, s := range q.Spec.ScopeSelector.MatchExpressions {
			out.Scopes = append(out.Scopes, plan.QuotaScope{Name: string(s.ScopeName), Operator: string(s.Operator), Values: s.Values})
		}
	}
	for name, hard := range q.Spec.Hard {
		key := string(name)
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage || strings.HasPrefix(key, corev1.ResourceHugePagesPrefix) {
			key = "requests." + key
		}
		most := amount(key, hard)
		if other, twice := out.Hard[key]; twice {
			most = min(most, other)
		}
		out.Hard[key], out.Used[key] = most, amount(key, q.Status.Used[name])
	}
	return out
}

// amount is in millicores for cpu, in the resource's own unit for all else.
func amount(name string, q resource.Quantity) int64 {
	if strings.HasSuffix(name, "cpu") {
		return q.MilliValue()
	}
	return q.Value()
}
