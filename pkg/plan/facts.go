package plan

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// Facts are the siblings of a target, as compact records: what the blast radius is
// computed from. Each kind that was asked for is either there, with its Source, or in
// Missing with the reason.
type Facts struct {
	Pods        []Pod
	Budgets     []Budget
	Services    []Service
	Nodes       []Node
	Autoscalers []Autoscaler
	Quotas      []Quota
	Sources     map[string]string // by resource: "cache, 3s old", "live list"
	Missing     map[string]string // by resource: why it cannot be had
}

// Owner is the controller of an object.
type Owner struct {
	Kind, Name, UID string
}

// Pod is what the arithmetic needs of a pod.
type Pod struct {
	Namespace, Name, UID string
	Node                 string
	Phase                string // Pending, Running, Succeeded, Failed, Unknown
	Ready                bool   // condition Ready is True and the pod is not terminating
	Terminating          bool
	Mirror               bool // a static pod's image in the API
	Owner                Owner
	Labels               map[string]string
	EmptyDirs            []string // names of emptyDir volumes; "shm/Memory" for medium Memory
	OptOut               bool     // marked safe-to-evict=false or do-not-disrupt=true
	Created              time.Time
	Requests             Resources
}

// Resources are what a pod requests or a node has to give.
type Resources struct {
	CPU    int64            // millicores
	Memory int64            // bytes
	Other  map[string]int64 // extended ones, such as nvidia.com/gpu; nil is none
}

// Finished reports whether the pod has run to its end: it serves nothing and no budget
// counts it.
func (p Pod) Finished() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// Top is the workload that a person would name as the pod's owner: the Deployment above
// a ReplicaSet that is named after the pod's template hash, else the controller itself.
// The zero Owner means a pod that nothing replaces.
func (p Pod) Top() Owner {
	hash := p.Labels["pod-template-hash"]
	if p.Owner.Kind == "ReplicaSet" && hash != "" {
		if name, ok := strings.CutSuffix(p.Owner.Name, "-"+hash); ok {
			return Owner{Kind: "Deployment", Name: name}
		}
	}
	return p.Owner
}

// Budget is a PodDisruptionBudget with what its controller last said of it.
type Budget struct {
	Namespace, Name, UID string
	Selector             labels.Selector // the null selector matches nothing, the empty one everything
	Allowed              int             // status.disruptionsAllowed
	Healthy, Desired     int             // status.currentHealthy, status.desiredHealthy
	Observed             bool            // status.observedGeneration has caught up
	AlwaysAllow          bool            // unhealthyPodEvictionPolicy is AlwaysAllow
}

// Covers reports whether the budget counts the pod.
func (b Budget) Covers(p Pod) bool {
	return b.Namespace == p.Namespace && b.Selector.Matches(labels.Set(p.Labels))
}

// Service is a Service with a selector: without one nothing is known of its endpoints.
type Service struct {
	Namespace, Name string
	Selector        labels.Selector
}

// Selects reports whether the pod, when it is ready, is an endpoint of the Service.
func (s Service) Selects(p Pod) bool {
	return s.Namespace == p.Namespace && s.Selector.Matches(labels.Set(p.Labels))
}

// Autoscaler is a HorizontalPodAutoscaler.
type Autoscaler struct {
	Namespace, Name     string
	Group, Kind, Target string // what it scales: apps, Deployment, web
	Min, Max            int
	ScaledObject        string // the KEDA object that owns it, "" for none
}

// Quota is a ResourceQuota: the pods that it counts, and what it limits, in millicores for
// cpu and in the resource's own unit for all else. What the API has two names for stands
// under the longer one: requests.cpu, requests.memory.
type Quota struct {
	Namespace, Name string
	Scopes          []QuotaScope // all of them must hold of a pod; all pods count where there is none
	Hard, Used      map[string]int64
}

// QuotaScope is one condition on the pods that a quota counts.
type QuotaScope struct {
	Name     string // BestEffort, PriorityClass and the like
	Operator string // Exists, In, NotIn, DoesNotExist
	Values   []string
}

// Node is what the arithmetic needs of a node.
type Node struct {
	Name          string
	Unschedulable bool
	Ready         bool
	Labels        map[string]string
	Taints        []Taint // NoSchedule and NoExecute, without that of cordon
	Allocatable   Resources
	MaxPods       int64 // how many it takes
}

// Taint keeps pods without a toleration off a node.
type Taint struct{ Key, Value, Effect string }

// Schedulable reports whether new pods without tolerations may be placed on the node.
func (n Node) Schedulable() bool { return n.Ready && !n.Unschedulable && len(n.Taints) == 0 }
