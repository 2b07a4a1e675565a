package action

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// Scalable is exactly one of the kinds that have a scale subresource.
type Scalable struct {
	Deployment  string `json:"deployment,omitempty" jsonschema:"exact name"`
	StatefulSet string `json:"statefulset,omitempty" jsonschema:"exact name"`
	ReplicaSet  string `json:"replicaset,omitempty" jsonschema:"exact name; one without a Deployment"`
}

// Check wants exactly one name.
func (w Scalable) Check() []string { return exactlyOne(w.named()) }

// Get reads the workload that is named.
func (w Scalable) Get(ctx context.Context, s *Session, namespace string) (Workload, error) {
	return get(ctx, s, namespace, w.named())
}

func (w Scalable) named() []named {
	return []named{{"deployment", w.Deployment}, {"statefulset", w.StatefulSet}, {"replicaset", w.ReplicaSet}}
}

// Rollable is exactly one of the kinds that roll their pods.
type Rollable struct {
	Deployment  string `json:"deployment,omitempty" jsonschema:"exact name"`
	StatefulSet string `json:"statefulset,omitempty" jsonschema:"exact name"`
	DaemonSet   string `json:"daemonset,omitempty" jsonschema:"exact name"`
}

// Check wants exactly one name.
func (w Rollable) Check() []string { return exactlyOne(w.named()) }

// Get reads the workload that is named.
func (w Rollable) Get(ctx context.Context, s *Session, namespace string) (Workload, error) {
	return get(ctx, s, namespace, w.named())
}

// Rolling reads the workload, names it as the target, and refuses one whose rollout is
// paused: nothing would roll.
func (w Rollable) Rolling(ctx context.Context, s *Session, namespace string) (Workload, error) {
	got, err := w.Get(ctx, s, namespace)
	if err != nil {
		return got, err
	}
	if err := s.Target(got.Observed); err != nil {
		return got, err
	}
	if got.Paused {
		return got, s.Refuse(refusal.Paused, "resume the rollout first", "deployment %s is paused, nothing would roll", got.FullName())
	}
	return got, nil
}

func (w Rollable) named() []named {
	return []named{{"deployment", w.Deployment}, {"statefulset", w.StatefulSet}, {"daemonset", w.DaemonSet}}
}

type named struct{ argument, name string }

func exactlyOne(of []named) []string {
	var all, set []string
	for _, n := range of {
		all = append(all, n.argument)
		if n.name != "" {
			set = append(set, n.argument)
		}
	}
	if len(set) == 1 {
		return nil
	}
	given := "none is given"
	if len(set) > 1 {
		given = strings.Join(set, " and ") + " are given"
	}
	return []string{fmt.Sprintf("name exactly one of %s; %s", strings.Join(all, ", "), given)}
}

// Workload is a live object that makes pods from a template.
type Workload struct {
	Observed
	Argument string // its kind as the tools name it: deployment
	Replicas int32  // spec.replicas; 1 where unset, 0 for a DaemonSet
	Paused   bool
}

// FullName is namespace/name.
func (w Workload) FullName() string { return w.GetNamespace() + "/" + w.GetName() }

func get(ctx context.Context, s *Session, namespace string, of []named) (Workload, error) {
	var o metav1.GetOptions
	for _, n := range of {
		if n.name == "" {
			continue
		}
		switch apps := s.AppsV1(); n.argument {
		case "deployment":
			d, err := apps.Deployments(namespace).Get(ctx, n.name, o)
			if err != nil {
				return Workload{}, err
			}
			return Workload{d, n.argument, replicas(d.Spec.Replicas), d.Spec.Paused}, nil
		case "statefulset":
			d, err := apps.StatefulSets(namespace).Get(ctx, n.name, o)
			if err != nil {
				return Workload{}, err
			}
			return Workload{d, n.argument, replicas(d.Spec.Replicas), false}, nil
		case "daemonset":
			d, err := apps.DaemonSets(namespace).Get(ctx, n.name, o)
			if err != nil {
				return Workload{}, err
			}
			return Workload{d, n.argument, 0, false}, nil
		case "replicaset":
			d, err := apps.ReplicaSets(namespace).Get(ctx, n.name, o)
			if err != nil {
				return Workload{}, err
			}
			return Workload{d, n.argument, replicas(d.Spec.Replicas), false}, nil
		}
	}
	return Workload{}, fmt.Errorf("no workload is named")
}

func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// Controller names what controls an object, or "": Deployment/web.
func Controller(o metav1.Object) string {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return ""
	}
	return SafeName(ref.Kind) + "/" + SafeName(ref.Name)
}

// SafeName gives a name that comes from an ownerReference, where the API takes any text,
// or says that it is none.
func SafeName(s string) string {
	if len(s) == 0 || validation.IsDNS1123Subdomain(strings.ToLower(s)) != nil {
		return "(name withheld)"
	}
	return s
}
