package plan

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
