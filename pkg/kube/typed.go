package kube

import (
	"context"
	"encoding/json"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// typed is one kind's typed client with its types erased. Dry run and execution go
// through the same one, so they are the same call.
type typed struct {
	get    func(context.Context, kubernetes.Interface, plan.Target) (plan.Object, error)
	patch  func(context.Context, kubernetes.Interface, plan.Target, []byte, metav1.PatchOptions) (plan.Object, error)
	create func(context.Context, kubernetes.Interface, plan.Target, []byte, metav1.CreateOptions) (plan.Object, error)
	delete func(context.Context, kubernetes.Interface, plan.Target, metav1.DeleteOptions) error
	names  func(context.Context, kubernetes.Interface, string) ([]string, error)
	watch  func(context.Context, kubernetes.Interface, string, metav1.ListOptions) (watch.Interface, error)
	scale  func(kubernetes.Interface, string) scaler
}

type scaler interface {
	UpdateScale(context.Context, string, *autoscalingv1.Scale, metav1.UpdateOptions) (*autoscalingv1.Scale, error)
}

type client[T any, L runtime.Object] interface {
	Get(context.Context, string, metav1.GetOptions) (*T, error)
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
	Create(context.Context, *T, metav1.CreateOptions) (*T, error)
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

func erase[T any, L runtime.Object, C client[T, L]](of func(kubernetes.Interface, string) C) typed {
	return typed{
		get: func(ctx context.Context, c kubernetes.Interface, t plan.Target) (plan.Object, error) {
			return objectOf(of(c, t.Namespace).Get(ctx, t.Name, metav1.GetOptions{}))
		},
		patch: func(ctx context.Context, c kubernetes.Interface, t plan.Target, body []byte, o metav1.PatchOptions) (plan.Object, error) {
			return answerOf(of(c, t.Namespace).Patch(ctx, t.Name, types.JSONPatchType, body, o))
		},
		create: func(ctx context.Context, c kubernetes.Interface, t plan.Target, body []byte, o metav1.CreateOptions) (plan.Object, error) {
			made := new(T)
			if err := json.Unmarshal(body, made); err != nil {
				return nil, err
			}
			return answerOf(of(c, t.Namespace).Create(ctx, made, o))
		},
		delete: func(ctx context.Context, c kubernetes.Interface, t plan.Target, o metav1.DeleteOptions) error {
			return of(c, t.Namespace).Delete(ctx, t.Name, o)
		},
		names: func(ctx context.Context, c kubernetes.Interface, namespace string) ([]string, error) {
			list, err := of(c, namespace).List(ctx, metav1.ListOptions{Limit: maxNames})
			if err != nil {
				return nil, err
			}
			var names []string
			err = meta.EachListItem(list, func(o runtime.Object) error {
				m, err := meta.Accessor(o)
				if err == nil {
					names = append(names, m.GetName())
				}
				return err
			})
			return names, err
		},
		watch: func(ctx context.Context, c kubernetes.Interface, namespace string, o metav1.ListOptions) (watch.Interface, error) {
			return of(c, namespace).Watch(ctx, o)
		},
	}
}

// answerOf is objectOf an answer to a write, without its managed fields: they are the
// larger part of the work, and only what is read is asked for its field managers.
func answerOf[T any](o *T, err error) (plan.Object, error) {
	if m, ok := any(o).(metav1.Object); ok && err == nil {
		m.SetManagedFields(nil)
	}
	return objectOf(o, err)
}

func objectOf[T any](o *T, err error) (plan.Object, error) {
	if err != nil {
		return nil, err
	}
	return plan.ObjectOf(o)
}

// maxNames is how many names are read in search of one that is near.
const maxNames = 500

// kinds has a typed client for every resource in plan.Kinds.
var kinds = func() map[string]typed {
	out := map[string]typed{
		"deployments": erase(func(c kubernetes.Interface, ns string) appsclient.DeploymentInterface {
			return c.AppsV1().Deployments(ns)
		}),
		"statefulsets": erase(func(c kubernetes.Interface, ns string) appsclient.StatefulSetInterface {
			return c.AppsV1().StatefulSets(ns)
		}),
		"daemonsets": erase(func(c kubernetes.Interface, ns string) appsclient.DaemonSetInterface {
			return c.AppsV1().DaemonSets(ns)
		}),
		"replicasets": erase(func(c kubernetes.Interface, ns string) appsclient.ReplicaSetInterface {
			return c.AppsV1().ReplicaSets(ns)
		}),
		"jobs":     erase(func(c kubernetes.Interface, ns string) batchclient.JobInterface { return c.BatchV1().Jobs(ns) }),
		"cronjobs": erase(func(c kubernetes.Interface, ns string) batchclient.CronJobInterface { return c.BatchV1().CronJobs(ns) }),
		"pods":     erase(func(c kubernetes.Interface, ns string) coreclient.PodInterface { return c.CoreV1().Pods(ns) }),
		"nodes":    erase(func(c kubernetes.Interface, _ string) coreclient.NodeInterface { return c.CoreV1().Nodes() }),
	}
	for resource, scale := range map[string]func(kubernetes.Interface, string) scaler{
		"deployments":  func(c kubernetes.Interface, ns string) scaler { return c.AppsV1().Deployments(ns) },
		"statefulsets": func(c kubernetes.Interface, ns string) scaler { return c.AppsV1().StatefulSets(ns) },
		"replicasets":  func(c kubernetes.Interface, ns string) scaler { return c.AppsV1().ReplicaSets(ns) },
	} {
		t := out[resource]
		t.scale = scale
		out[resource] = t
	}
	return out
}()

func typedFor(resource string) (typed, error) {
	t, ok := kinds[resource]
	if !ok {
		return typed{}, fmt.Errorf("no typed client for %q", resource)
	}
	return t, nil
}
