package plan

import "k8s.io/apimachinery/pkg/runtime/schema"

// Kind names one kind of object in each of the ways in which it is written. Typed
// answers carry no TypeMeta, so this table is the only place that knows.
type Kind struct {
	Argument   string // the tool argument that names one: deployment
	Resource   string // plural, as in the API's path: deployments
	GVK        schema.GroupVersionKind
	Namespaced bool
	Pods       bool // its spec.template makes pods that serve
}

// Kinds lists every kind that a plan can be about.
var Kinds = []Kind{
	{"deployment", "deployments", schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, true, true},
	{"statefulset", "statefulsets", schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"}, true, true},
	{"daemonset", "daemonsets", schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "DaemonSet"}, true, true},
	{"replicaset", "replicasets", schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}, true, true},
	{"job", "jobs", schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}, true, false},
	{"cronjob", "cronjobs", schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "CronJob"}, true, false},
	{"pod", "pods", schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, true, false},
	{"node", "nodes", schema.GroupVersionKind{Version: "v1", Kind: "Node"}, false, false},
}

// KindOf finds the Kind of a resource; ok is false for one that the table does not have.
func KindOf(resource string) (k Kind, ok bool) {
	for _, k := range Kinds {
		if k.Resource == resource {
			return k, true
		}
	}
	return Kind{}, false
}

// GroupResource is the resource as kubectl and RBAC write it: deployments.apps.
func (k Kind) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.GVK.Group, Resource: k.Resource}
}
