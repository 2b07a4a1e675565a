package blast

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	requests "k8s.io/component-helpers/resource"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// template is what pods are made of by a workload.
func template(o plan.Object) (*corev1.PodTemplateSpec, error) {
	w, err := decode[struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}](o)
	return &w.Spec.Template, err
}

// surges is how many pods a Step of this effect makes beside those that there are.
func surges(e effect, s plan.Step, o plan.Object) int {
	switch e {
	case adds:
		return int(*s.Replicas) - replicas(o)
	case rolls:
		p, _ := paceOf(s.Target.Resource, o, 0)
		return p.surge
	}
	return 0
}

// sayQuotas tells which quotas have no room for so many more pods of a template, and which
// ones it cannot judge.
func (t *tally) sayQuotas(e effect, s plan.Step, o plan.Object, tpl *corev1.PodTemplateSpec) {
	pod := &corev1.Pod{Spec: *tpl.Spec.DeepCopy()}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			defaultRequests(&list[i].Resources)
		}
	}
	for _, q := range t.in.Facts.Quotas {
		if q.Namespace != s.Target.Namespace {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(q.Hard)) {
			if madeBeside(e, s, o, pod, name) {
				t.notEvaluated("quota %s counts %s, and more than pods is made", short(q.Name), safe(name))
			}
		}
		counted, unknown := counts(q, pod)
		switch {
		case unknown != "" && slices.ContainsFunc(slices.Collect(maps.Keys(q.Hard)), ofPods):
			t.notEvaluated("quota %s counts pods by %s, which the template does not say", short(q.Name), safe(unknown))
			continue
		case !counted:
			continue
		}
		noun := "new pod"
		if e == rolls {
			noun = "surge pod"
		}
		fits := t.sayQuota(q, surges(e, s, o), noun, pod)
		t.take(q.Namespace+"/"+q.Name, fits, pod)
		if fits == 0 && e == rolls {
			if p, _ := paceOf(s.Target.Resource, o, 0); p.unavailable == 0 {
				t.say(blocked, "the rollout cannot begin: no old pod may go before a new one is there")
			}
		}
	}
}

// notEvaluated warns of a quota, or a part of one, that was not judged.
func (t *tally) notEvaluated(format string, args ...any) {
	w := "not evaluated: " + fmt.Sprintf(format, args...)
	if !slices.Contains(t.warnings, w) {
		t.warnings = append(t.warnings, w)
	}
}

// sayQuota gives how many of n pods a quota has room for.
func (t *tally) sayQuota(q plan.Quota, n int, noun string, pod *corev1.Pod) (fits int) {
	each, unstated := perPod(pod)
	tightest := ""
	usedBy := func(name string) int64 { return q.Used[name] + t.taken[q.Namespace+"/"+q.Name][name] }
	fits = n
	for _, name := range slices.Sorted(maps.Keys(q.Hard)) {
		switch one := each[name]; {
		case unstated[name]:
			t.say(blocked, "quota %s counts %s, which not every container states: new pods are refused unless a LimitRange sets it", short(q.Name), name)
		case one > 0:
			if room := int(max(q.Hard[name]-usedBy(name), 0) / one); room < fits {
				tightest, fits = name, room
			}
		}
	}
	if tightest == "" {
		return fits
	}
	used, hard, one := usedBy(tightest), q.Hard[tightest], ""
	if each[tightest] != 1 {
		one = ", each needs " + shownAmount(tightest, each[tightest])
	}
	t.say(blocked, "quota %s: %s %s of %s used%s: %d of %s cannot be created", short(q.Name), safe(tightest),
		shownAmount(tightest, used), shownAmount(tightest, hard), one, n-fits, count(n, noun))
	return fits
}

// take keeps in mind what so many pods take of a quota: the Steps behind find the rest.
func (t *tally) take(quota string, pods int, pod *corev1.Pod) {
	each, _ := perPod(pod)
	if t.taken == nil {
		t.taken = map[string]map[string]int64{}
	}
	if t.taken[quota] == nil {
		t.taken[quota] = map[string]int64{}
	}
	for name, one := range each {
		t.taken[quota][name] += int64(pods) * one
	}
}

// defaultRequests does what the API does with a pod that it makes of a template.
func defaultRequests(r *corev1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, stated := r.Requests[name]; !stated {
			if r.Requests == nil {
				r.Requests = corev1.ResourceList{}
			}
			r.Requests[name] = limit
		}
	}
}

// ofPods reports whether a quota's name is about pods themselves.
func ofPods(name string) bool {
	switch name {
	case "pods", "count/pods", "limits.cpu", "limits.memory", "limits.ephemeral-storage":
		return true
	}
	what, requested := strings.CutPrefix(name, "requests.")
	return requested && what != "storage"
}

// perPod is what one pod takes of a quota, by the quota's names, and of which of them
// admission misses what it wants of every container: of cpu and memory alone.
func perPod(pod *corev1.Pod) (each map[string]int64, unstated map[string]bool) {
	each, unstated = map[string]int64{"pods": 1, "count/pods": 1}, map[string]bool{}
	for prefix, list := range map[string]corev1.ResourceList{
		"requests.": requests.PodRequests(pod, requests.PodResourcesOptions{}),
		"limits.":   requests.PodLimits(pod, requests.PodResourcesOptions{}),
	} {
		for name, n := range list {
			if each[prefix+string(name)] = n.Value(); name == corev1.ResourceCPU {
				each[prefix+string(name)] = n.MilliValue()
			}
		}
	}
	if pod.Spec.Resources != nil {
		return each, unstated
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for prefix, stated := range map[string]corev1.ResourceList{"requests.": c.Resources.Requests, "limits.": c.Resources.Limits} {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				if _, ok := stated[name]; !ok {
					unstated[prefix+string(name)] = true
				}
			}
		}
	}
	return each, unstated
}

// madeBeside reports whether a Step makes other objects than pods that a quota of this name
// counts.
func madeBeside(e effect, s plan.Step, o plan.Object, pod *corev1.Pod, name string) bool {
	switch {
	case name == "count/replicasets.apps":
		return e == rolls && s.Target.Resource == "deployments"
	case name == "count/controllerrevisions.apps":
		return e == rolls && s.Target.Resource != "deployments"
	case name == "persistentvolumeclaims", name == "count/persistentvolumeclaims", name == "requests.storage", strings.Contains(name, ".storageclass.storage.k8s.io/"):
		return e == adds && o.Value("spec.volumeClaimTemplates") != "" ||
			slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil })
	case name == "count/resourceclaims.resource.k8s.io", strings.Contains(name, ".deviceclass.resource.k8s.io/"):
		return len(pod.Spec.ResourceClaims) > 0
	}
	return false
}

// counts reports whether a quota counts such a pod, by all of its scopes; unknown names the
// scope by which that is not known.
func counts(q plan.Quota, pod *corev1.Pod) (yes bool, unknown string) {
	for _, s := range q.Scopes {
		switch holds, known := scoped(s, pod); {
		case !known:
			unknown = s.Name
		case !holds:
			return false, ""
		}
	}
	return unknown == "", unknown
}

// scoped reports whether a pod is in a scope, as the API server's evaluator of quotas
// decides.
func scoped(s plan.QuotaScope, pod *corev1.Pod) (holds, known bool) {
	switch corev1.ResourceQuotaScope(s.Name) {
	case corev1.ResourceQuotaScopeTerminating:
		return pod.Spec.ActiveDeadlineSeconds != nil, true
	case corev1.ResourceQuotaScopeNotTerminating:
		return pod.Spec.ActiveDeadlineSeconds == nil, true
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(pod), true
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(pod), true
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(pod.Spec.Affinity), true
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		return false, true // of claims
	case corev1.ResourceQuotaScopePriorityClass:
		class := pod.Spec.PriorityClassName
		if class == "" {
			return false, false // the cluster may have a default
		}
		switch corev1.ScopeSelectorOperator(s.Operator) {
		case corev1.ScopeSelectorOpIn:
			return slices.Contains(s.Values, class), true
		case corev1.ScopeSelectorOpNotIn:
			return !slices.Contains(s.Values, class), true
		case corev1.ScopeSelectorOpExists:
			return true, true
		case corev1.ScopeSelectorOpDoesNotExist:
			return false, true
		}
	}
	return false, false
}

// bestEffort reports whether a pod states no cpu and no memory.
func bestEffort(pod *corev1.Pod) bool {
	stated := func(r corev1.ResourceRequirements) bool {
		return !r.Requests.Cpu().IsZero() || !r.Requests.Memory().IsZero() || !r.Limits.Cpu().IsZero() || !r.Limits.Memory().IsZero()
	}
	if pod.Spec.Resources != nil {
		return !stated(*pod.Spec.Resources)
	}
	return !slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool { return stated(c.Resources) })
}

// crossesNamespaces reports whether an affinity looks at pods of other namespaces.
func crossesNamespaces(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	var weighted []corev1.WeightedPodAffinityTerm
	if p := a.PodAffinity; p != nil {
		terms, weighted = append(terms, p.RequiredDuringSchedulingIgnoredDuringExecution...), append(weighted, p.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if p := a.PodAntiAffinity; p != nil {
		terms, weighted = append(terms, p.RequiredDuringSchedulingIgnoredDuringExecution...), append(weighted, p.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	for _, w := range weighted {
		terms = append(terms, w.PodAffinityTerm)
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil })
}

// shownAmount is an amount as manifests write it.
func shownAmount(name string, n int64) string {
	switch {
	case strings.HasSuffix(name, "cpu"):
		return resource.NewMilliQuantity(n, resource.DecimalSI).String()
	case strings.HasSuffix(name, "memory"), strings.HasSuffix(name, "ephemeral-storage"), strings.Contains(name, "hugepages-"):
		return resource.NewQuantity(n, resource.BinarySI).String()
	}
	return resource.NewQuantity(n, resource.DecimalSI).String()
}
