package action

import (
	"context"

	"github.com/google/jsonschema-go/jsonschema"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// Between bounds an integer argument in a Spec's Schema.
func Between(s *jsonschema.Schema, argument string, low, high int) {
	s.Properties[argument].Minimum, s.Properties[argument].Maximum = ptr.To(float64(low)), ptr.To(float64(high))
}

// Facts is the compact record of an observed pod.
func (s *Session) Facts(p *corev1.Pod) plan.Pod { return s.opts.PodFacts(p) }

// PodsOnNode lists the pods that are bound to a node, live.
func (s *Session) PodsOnNode(ctx context.Context, node string) ([]*corev1.Pod, error) {
	list, err := s.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

// Excluded says why nothing may be sent to a namespace that the arguments do not name
// (out of scope, terminating), or "".
func (s *Session) Excluded(ctx context.Context, namespace string) (why string, err error) {
	return s.opts.Excluded(ctx, namespace)
}
