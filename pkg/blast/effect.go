package blast

import (
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
	resumed, templated := map[string]bool{}, map[string]bool{}
	for _, s := range steps {
		for _, op := range s.Patch {
			if op.Path == "/spec/paused" {
				resumed[s.Target.UID] = true
			}
		}
		if s.Verb == plan.Patch && s.Rolls() {
			templated[s.Target.UID] = true
		}
	}
	effects := make([]effect, len(steps))
	for i, s := range steps {
		o := targets[s.Target.UID]
		e := effectOf(s, o)
		switch {
		case e == rolls && !resumed[s.Target.UID] && heldBack(s.Target.Resource, o) != "":
			e = held
		case e == rolls && !s.Rolls() && templated[s.Target.UID]:
			e = nothing // the pods roll once, to the template that another Step writes
		}
		effects[i] = e
	}
	return effects
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
		return patchEffect(s, o)
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
func patchEffect(s plan.Step, o plan.Object) effect {
	kind, ok := plan.KindOf(s.Target.Resource)
	if !ok {
		return unknown
	}
	e := nothing
	for _, op := range s.Patch {
		switch found := opEffect(kind, op, o); found {
		case unknown:
			return unknown
		case nothing:
		default:
			e = found
		}
	}
	return e
}

func opEffect(kind plan.Kind, op plan.Op, o plan.Object) effect {
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
		return pausedEffect(op, o)
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

// pausedEffect is that of a resume as well: it releases whatever was written to the template
// meanwhile, unless the controller says of the spec of now that every pod has its template.
func pausedEffect(op plan.Op, o plan.Object) effect {
	resumes := op.Op == "remove" || string(op.Value) == "false"
	if !resumes || o.Value("spec.paused") != "true" {
		return nothing
	}
	if n := upToDate(o); n == replicas(o) && n == podStatus(o) {
		return nothing
	}
	return rolls
}

// upToDate is how many of the wanted pods of a Deployment have the template of its spec:
// none that is known while its status is behind.
func upToDate(o plan.Object) int {
	if behind(o) {
		return 0
	}
	return min(o.Int("status.updatedReplicas"), replicas(o))
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
