package blast

import (
	"slices"
	"strings"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// effect is what one Step does to pods.
type effect int

const (
	unknown effect = iota // counts as everything
	nothing
	adds    // a scale-up
	removes // a scale-down
	rolls   // a change of the pod template
	held    // a change of the pod template that replaces no pod now
	cordons
	evicts
	deletes
	suspends // a Job: its active pods end
	resumes  // a Job: its pods start
	starts   // a new Job
)

// effectsOf derives the effect of each Step on its live target from what it would write.
func effectsOf(steps []plan.Step, targets map[string]plan.Object) []effect {
	resumed := map[string]bool{}
	for _, s := range steps {
		for _, op := range s.Patch {
			if op.Path == "/spec/paused" {
				resumed[s.Target.UID] = true
			}
		}
	}
	effects := make([]effect, len(steps))
	for i, s := range steps {
		o := targets[s.Target.UID]
		e := effectOf(s, o)
		switch {
		case e == rolls && !resumed[s.Target.UID] && heldBack(s.Target.Resource, o) != "":
			e = held
		case e == nothing && unpauses(s) && pending(o):
			e = rolls
		}
		effects[i] = e
	}
	return effects
}

// unpauses reports whether a Step lets a paused rollout go on.
func unpauses(s plan.Step) bool {
	return slices.ContainsFunc(s.Patch, func(op plan.Op) bool {
		return op.Path == "/spec/paused" && (op.Op == "remove" || string(op.Value) == "false")
	})
}

// pending reports whether pods of a Deployment are yet to follow its template: they do so
// when it is resumed. What its controller has not seen may be such a change.
func pending(o plan.Object) bool {
	return behind(o) || o.Int("status.updatedReplicas") < o.Int("status.replicas")
}

func effectOf(s plan.Step, o plan.Object) effect {
	if o == nil {
		return unknown
	}
	switch s.Verb {
	case plan.Scale:
		return scaleEffect(s, o)
	case plan.Evict:
		if s.Target.Resource == "pods" {
			return evicts
		}
	case plan.Delete:
		if s.Target.Resource == "pods" {
			return deletes
		}
	case plan.Patch:
		return patchEffect(s)
	case plan.Create:
		return createEffect(s)
	}
	return unknown
}

func scaleEffect(s plan.Step, o plan.Object) effect {
	switch s.Target.Resource {
	case "deployments", "statefulsets", "replicasets":
	default:
		return unknown
	}
	switch from := replicas(o); {
	case s.Replicas == nil:
		return unknown
	case int(*s.Replicas) > from:
		return adds
	case int(*s.Replicas) < from:
		return removes
	}
	return nothing
}

// replicas is spec.replicas as the API means it: 1 where it is unset.
func replicas(o plan.Object) int {
	if o.Value("spec.replicas") == "" {
		return 1
	}
	return o.Int("spec.replicas")
}

// patchEffect is the gravest effect of a patch's operations.
func patchEffect(s plan.Step) effect {
	kind, ok := plan.KindOf(s.Target.Resource)
	if !ok {
		return unknown
	}
	e := nothing
	for _, op := range s.Patch {
		switch found := opEffect(kind, op); found {
		case unknown:
			return unknown
		case nothing:
		default:
			e = found
		}
	}
	return e
}

func opEffect(kind plan.Kind, op plan.Op) effect {
	switch op.Op {
	case "add", "replace", "remove", "ensure":
	default:
		return unknown
	}
	switch path := op.Path; {
	case strings.HasPrefix(path, "/metadata/annotations/deprecated."):
		// deprecated.deployment.rollback.to makes the controller roll back.
	case strings.HasPrefix(path, "/metadata/annotations/"), path == "/metadata/annotations" && op.Op == "ensure":
		return nothing
	case kind.Resource == "replicasets" && strings.HasPrefix(path, "/metadata/labels"):
		// They decide which Deployment it belongs to.
	case kind.Pods && strings.HasPrefix(path, "/metadata/labels/"), kind.Pods && path == "/metadata/labels" && op.Op == "ensure":
		return nothing // labels of nodes and pods decide where pods run and what serves
	case kind.Pods && (path == "/spec/template" || strings.HasPrefix(path, "/spec/template/")):
		return rolls
	case kind.Resource == "deployments" && path == "/spec/paused":
		return nothing
	case (kind.Resource == "jobs" || kind.Resource == "cronjobs") && path == "/spec/suspend":
		return suspendEffect(kind.Resource, op)
	case kind.Resource == "nodes" && path == "/spec/unschedulable":
		if string(op.Value) == "true" {
			return cordons
		}
		if op.Op == "remove" || string(op.Value) == "false" {
			return nothing
		}
	}
	return unknown
}

// heldBack says why a change of the pod template replaces no pod now, or "".
func heldBack(resource string, o plan.Object) string {
	switch resource {
	case "deployments":
		if o.Value("spec.paused") == "true" {
			return "until the rollout is resumed"
		}
	case "statefulsets", "daemonsets":
		if o.Value("spec.updateStrategy.type") == "OnDelete" {
			return "until they are deleted (OnDelete)"
		}
	case "replicasets":
		return "until they are deleted: a ReplicaSet replaces no running pod"
	}
	return ""
}
