package kube

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// PodFacts is the compact record of a pod.
func PodFacts(p *corev1.Pod) plan.Pod {
	out := plan.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Phase: string(p.Status.Phase),
		Terminating: p.DeletionTimestamp != nil, Labels: p.Labels, Created: p.CreationTimestamp.Time,
		OptOut: p.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false" || p.Annotations["karpenter.sh/do-not-disrupt"] == "true",
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
	out := plan.Node{Name: n.Name, Unschedulable: n.Spec.Unschedulable}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Ready = c.Status == corev1.ConditionTrue
		}
	}
	for _, t := range n.Spec.Taints {
		if t.Key != corev1.TaintNodeUnschedulable && t.Effect != corev1.TaintEffectPreferNoSchedule {
			out.NoSchedule = true
		}
	}
	return out
}
