package plan

import (
	"maps"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// Facts are the siblings of a target, as compact records: what the blast radius is
// computed from. Each kind that was asked for is either there, with its Source, or in
// Missing with the reason.
type Facts struct {
	Pods        []Pod
	Loads       Loads // of every pod of the cluster, where nodes were asked for
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

// Loads are what pods add up to, by node.
type Loads map[string]Load

// Load is what stands on one node.
type Load struct {
	Pods     int       // all of them
	Running  int       // of those, the ones that have not run to their end
	Requests Resources // of the running ones; no Other is zero
}

// Add counts a pod on its node, if it has one.
func (l Loads) Add(p Pod) { l.count(p, 1) }

// Remove is the opposite of Add, of the same facts.
func (l Loads) Remove(p Pod) { l.count(p, -1) }

func (l Loads) count(p Pod, sign int) {
	if p.Node == "" {
		return
	}
	on := l[p.Node]
	on.Pods += sign
	if !p.Finished() {
		on.Running += sign
		on.Requests = on.Requests.plus(p.Requests, int64(sign))
	}
	if l[p.Node] = on; on.Pods == 0 {
		delete(l, p.Node)
	}
}

// Clone is a copy that Add and Remove leave as it is.
func (l Loads) Clone() Loads { return maps.Clone(l) }

// plus adds other resources so many times. It writes to neither map: a Clone of Loads may
// have it.
func (r Resources) plus(other Resources, times int64) Resources {
	r.CPU, r.Memory = r.CPU+times*other.CPU, r.Memory+times*other.Memory
	if len(other.Other) == 0 {
		return r
	}
	sum := maps.Clone(r.Other)
	if sum == nil {
		sum = map[string]int64{}
	}
	for name, n := range other.Other {
		if sum[name] += times * n; sum[name] == 0 {
			delete(sum, name)
		}
	}
	if r.Other = sum; len(sum) == 0 {
		r.Other = nil
	}
	return r
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
