package kube

import (
	"context"
	"errors"
	"fmt"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// source is one list of the API.
type source struct{ resource, namespace string }

// calls are the typed calls of a source with their types erased.
type calls struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

type listWatcher[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func callsOf[L runtime.Object](c listWatcher[L]) calls {
	return calls{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		watch: c.Watch,
	}
}

func (s source) calls(k kubernetes.Interface) calls {
	switch s.resource {
	case "pods":
		return callsOf(k.CoreV1().Pods(s.namespace))
	case "nodes":
		return callsOf(k.CoreV1().Nodes())
	case "services":
		return callsOf(k.CoreV1().Services(s.namespace))
	case "resourcequotas":
		return callsOf(k.CoreV1().ResourceQuotas(s.namespace))
	case "horizontalpodautoscalers":
		return callsOf(k.AutoscalingV2().HorizontalPodAutoscalers(s.namespace))
	}
	return callsOf(k.PolicyV1().PodDisruptionBudgets(s.namespace))
}

func (s source) example() runtime.Object {
	switch s.resource {
	case "pods":
		return &corev1.Pod{}
	case "nodes":
		return &corev1.Node{}
	case "services":
		return &corev1.Service{}
	case "resourcequotas":
		return &corev1.ResourceQuota{}
	case "horizontalpodautoscalers":
		return &autoscalingv2.HorizontalPodAutoscaler{}
	}
	return &policyv1.PodDisruptionBudget{}
}

// qualified is the resource's name with its group.
func (s source) qualified() string {
	switch s.resource {
	case "poddisruptionbudgets":
		return s.resource + ".policy"
	case "horizontalpodautoscalers":
		return s.resource + ".autoscaling"
	}
	return s.resource
}

// advises reports whether no gate rests on the source: it warns, and changes seldom.
func (s source) advises() bool {
	switch s.resource {
	case "services", "resourcequotas", "horizontalpodautoscalers":
		return true
	}
	return false
}

// pageSize is how many objects are asked for at once.
const pageSize = 250

// list is a live list in place of the cache, whole or not at all, of which some namespaces
// are wanted.
func (s source) list(ctx context.Context, k kubernetes.Interface, namespaces []string, why string) *listing {
	// A list may expire between its pages. It is begun again, the last time in one page,
	// which cannot expire.
	var err error
	for _, limit := range []int64{pageSize, pageSize, 0} {
		l := &listing{origin: "live list: " + why}
		if l.whole, l.version, err = pages(ctx, s.calls(k), limit); err == nil {
			l.records, l.loads = l.whole.in(namespaces), l.whole.loads
			return l
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			break
		}
	}
	return &listing{missing: s.unlisted(ctx, err), forbidden: apierrors.IsForbidden(err)}
}

// pages reads all pages of a list, which are of one version.
func pages(ctx context.Context, c calls, limit int64) (whole shelf, version string, err error) {
	whole = newShelf()
	for o := (metav1.ListOptions{Limit: limit}); ; {
		list, err := c.list(ctx, o)
		if err != nil {
			return shelf{}, "", err
		}
		err = meta.EachListItem(list, func(item runtime.Object) error {
			r, err := compact(item)
			if err == nil {
				whole.put(r.(*record))
			}
			return err
		})
		if err != nil {
			return shelf{}, "", err
		}
		m, err := meta.ListAccessor(list)
		if err != nil {
			return shelf{}, "", err
		}
		if o.Continue = m.GetContinue(); o.Continue == "" {
			return whole, m.GetResourceVersion(), nil
		}
	}
}

// unlisted says why a list cannot be had, in words of ours.
func (s source) unlisted(ctx context.Context, err error) string {
	why := "the API server cannot be reached"
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code != 0 {
		why = fmt.Sprint(status.Status().Code)
	} else if ctx.Err() != nil {
		why = "no answer in time"
	}
	return fmt.Sprintf("cannot list %s (%s)", s.qualified(), why)
}

// record is what the store holds in place of an API object: the facts, and what the
// informer needs to file them.
type record struct {
	namespace, name, version string
	facts                    any // plan.Pod, plan.Node, plan.Budget ...
}

// GetObjectMeta makes a metav1.ObjectMetaAccessor of the record. The store asks for it
// now and then; kept, it would be larger than the facts.
func (r *record) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: r.namespace, Name: r.name, ResourceVersion: r.version}
}

func (r *record) addTo(f *plan.Facts) {
	switch facts := r.facts.(type) {
	case plan.Pod:
		f.Pods = append(f.Pods, facts)
	case plan.Node:
		f.Nodes = append(f.Nodes, facts)
	case plan.Budget:
		f.Budgets = append(f.Budgets, facts)
	case plan.Autoscaler:
		f.Autoscalers = append(f.Autoscalers, facts)
	case plan.Quota:
		f.Quotas = append(f.Quotas, facts)
	case plan.Service:
		if facts.Selector != nil {
			f.Services = append(f.Services, facts)
		}
	}
}

// compact makes the record of an object. It may meet its own result again.
func compact(o any) (any, error) {
	var facts any
	switch o := o.(type) {
	case *record, cache.DeletedFinalStateUnknown:
		return o, nil
	case *corev1.Pod:
		facts = PodFacts(o)
	case *corev1.Node:
		facts = nodeFacts(o)
	case *policyv1.PodDisruptionBudget:
		facts = budgetFacts(o)
	case *corev1.Service:
		facts = serviceFacts(o)
	case *corev1.ResourceQuota:
		facts = quotaFacts(o)
	case *autoscalingv2.HorizontalPodAutoscaler:
		facts = autoscalerFacts(o)
	default:
		return nil, fmt.Errorf("nothing is cached of %T", o)
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	return &record{m.GetNamespace(), m.GetName(), m.GetResourceVersion(), facts}, nil
}
