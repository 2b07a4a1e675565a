package plan

import (
	"fmt"
	"maps"
	"slices"
)

// stateFields is what a plan shows of each kind: label and field. It is also what an
// audit line keeps as before and after.
var stateFields = map[string][][2]string{
	"deployments": {
		{"replicas", "spec.replicas"}, {"ready", "status.readyReplicas"}, {"available", "status.availableReplicas"},
		{"updated", "status.updatedReplicas"}, {"max_unavailable", "spec.strategy.rollingUpdate.maxUnavailable"},
		{"strategy", "spec.strategy.type"}, {"paused", "spec.paused"},
		{"restarted_at", "spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]"},
	},
	"statefulsets": {
		{"replicas", "spec.replicas"}, {"ready", "status.readyReplicas"}, {"available", "status.availableReplicas"},
		{"updated", "status.updatedReplicas"}, {"max_unavailable", "spec.updateStrategy.rollingUpdate.maxUnavailable"},
		{"partition", "spec.updateStrategy.rollingUpdate.partition"}, {"strategy", "spec.updateStrategy.type"},
		{"restarted_at", "spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]"},
	},
	"daemonsets": {
		{"replicas", "status.desiredNumberScheduled"}, {"ready", "status.numberReady"}, {"available", "status.numberAvailable"},
		{"updated", "status.updatedNumberScheduled"}, {"max_unavailable", "spec.updateStrategy.rollingUpdate.maxUnavailable"},
		{"strategy", "spec.updateStrategy.type"},
		{"restarted_at", "spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]"},
	},
	"replicasets": {
		{"replicas", "spec.replicas"}, {"ready", "status.readyReplicas"}, {"available", "status.availableReplicas"},
	},
	"jobs": {
		{"suspend", "spec.suspend"}, {"parallelism", "spec.parallelism"}, {"completions", "spec.completions"},
		{"active", "status.active"}, {"succeeded", "status.succeeded"}, {"failed", "status.failed"},
	},
	"cronjobs": {
		{"suspend", "spec.suspend"}, {"last_schedule", "status.lastScheduleTime"},
	},
	"pods":  {{"phase", "status.phase"}, {"node", "spec.nodeName"}},
	"nodes": {{"unschedulable", "spec.unschedulable"}},
}

// StateOf is what a plan shows and an audit line keeps of one object. Values are
// numbers, booleans or validated names; absent ones are left out, except counts, which
// are 0.
func StateOf(resource string, o Object) State {
	s := State{"uid": o.Value("metadata.uid"), "rv": o.Value("metadata.resourceVersion")}
	if g := o.at(Path("metadata.generation")); g != nil {
		s["generation"] = g
	}
	for _, f := range stateFields[resource] {
		switch v := o.at(Path(f[1])).(type) {
		case nil:
			switch f[0] {
			case "ready", "available", "updated", "replicas", "active", "succeeded", "failed":
				s[f[0]] = 0
			case "unschedulable", "suspend":
				s[f[0]] = false
			}
		case string:
			s[f[0]] = o.Value(f[1])
		default:
			s[f[0]] = v
		}
	}
	if o.Value("metadata.deletionTimestamp") != "" {
		s["terminating"] = true
	}
	return s
}

// BeforeOf is the State of an object before a plan's Steps. Of a pod that no controller
// makes again it holds what a person makes it anew from as well: names and images of its
// containers, and of what kind its volumes are. Environment, commands and arguments are
// left out, for they may be secrets.
func BeforeOf(resource string, o Object) State {
	s := StateOf(resource, o)
	if resource != "pods" || o.Value(OwnerField) != "" {
		return s
	}
	s["owner"] = "none"
	for key, entries := range map[string][]string{
		"containers": o.parts("spec.containers", image), "init_containers": o.parts("spec.initContainers", image), "volumes": o.parts("spec.volumes", volume),
	} {
		if len(entries) > 0 {
			s[key] = bounded(entries)
		}
	}
	if account := o.Value("spec.serviceAccountName"); account != "" {
		s["service_account"] = account
	}
	return s
}

// parts shows each element of a list of named things: main=nginx:1.
func (o Object) parts(field string, show func(Object) string) (out []string) {
	list, _ := o.at(Path(field)).([]any)
	for _, e := range list {
		part, _ := e.(map[string]any)
		out = append(out, Object(part).Value("name")+"="+show(part))
	}
	return out
}

func image(container Object) string { return container.Value("image") }

// volume is the kind of a volume, with the name of the object that it mounts where it
// mounts one.
func volume(v Object) string {
	for _, kind := range slices.Sorted(maps.Keys(v)) {
		if kind == "name" {
			continue
		}
		for _, of := range []string{"claimName", "secretName", "name"} {
			if name := v.Value(kind + "." + of); name != "" {
				return kind + "/" + name
			}
		}
		return kind
	}
	return "emptyDir"
}

// maxEntries is how many characters of a list a State holds.
const maxEntries = 600

// bounded joins entries, and counts those that have no room.
func bounded(entries []string) string {
	out := entries[0]
	for i, e := range entries[1:] {
		if len(out)+len(e) > maxEntries {
			return fmt.Sprintf("%s and %d more", out, len(entries)-1-i)
		}
		out += ", " + e
	}
	return out
}
