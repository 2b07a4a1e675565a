package blast

import (
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

// sayQuotas tells which quotas have no room for so many more pods of a template.
func (t *tally) sayQuotas(e effect, s plan.Step, o plan.Object, tpl *corev1.PodTemplateSpec) {
	pod := &corev1.Pod{Spec: *tpl.Spec.DeepCopy()}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			defaultRequests(&list[i].Resources)
		}
	}
	each := perPod(pod)
	for _, q := range t.in.Facts.Quotas {
		if q.Namespace != s.Target.Namespace || !counts(q, pod) {
			continue
		}
		noun := "new pod"
		if e == rolls {
			noun = "surge pod"
		}
		fits := t.sayQuota(q, surges(e, s, o), noun, each)
		t.take(q.Namespace+"/"+q.Name, fits, each)
		if fits == 0 && e == rolls {
			if p, _ := paceOf(s.Target.Resource, o, 0); p.unavailable == 0 {
				t.say(blocked, "the rollout cannot begin: no old pod may go before a new one is there")
			}
		}
	}
}

// sayQuota gives how many of n pods a quota has room for.
func (t *tally) sayQuota(q plan.Quota, n int, noun string, each map[string]int64) (fits int) {
	tightest := ""
	usedBy := func(name string) int64 { return q.Used[name] + t.taken[q.Namespace+"/"+q.Name][name] }
	fits = n
	for _, name := range slices.Sorted(maps.Keys(q.Hard)) {
		one := each[name]
		if one == 0 {
			t.say(blocked, "quota %s counts %s, which not every container states: new pods are refused unless a LimitRange sets it", short(q.Name), name)
			continue
		}
		if room := int(max(q.Hard[name]-usedBy(name), 0) / one); room < fits {
			tightest, fits = name, room
		}
	}
	if tightest == "" {
		return fits
	}
	used, hard, one := usedBy(tightest), q.Hard[tightest], ""
	if each[tightest] != 1 {
		one = ", each needs " + shownAmount(tightest, each[tightest])
	}
	t.say(blocked, "quota %s: %s %s of %s used%s: %d of %s cannot be created", short(q.Name), tightest,
		shownAmount(tightest, used), shownAmount(tightest, hard), one, n-fits, count(n, noun))
	return fits
}

// take keeps in mind what so many pods take of a quota: the Steps behind find the rest.
func (t *tally) take(quota string, pods int, each map[string]int64) {
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

// perPod is what one pod takes of a quota, by the quota's names: 0 where admission misses
// it in one of the containers.
func perPod(pod *corev1.Pod) map[string]int64 {
	out := map[string]int64{"pods": 1, "count/pods": 1}
	for prefix, list := range map[string]corev1.ResourceList{
		"requests.": requests.PodRequests(pod, requests.PodResourcesOptions{}),
		"limits.":   requests.PodLimits(pod, requests.PodResourcesOptions{}),
	} {
		out[prefix+"cpu"], out[prefix+"memory"] = list.Cpu().MilliValue(), list.Memory().Value()
	}
	if pod.Spec.Resources != nil {
		return out
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for prefix, stated := range map[string]corev1.ResourceList{"requests.": c.Resources.Requests, "limits.": c.Resources.Limits} {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				if _, ok := stated[name]; !ok {
					out[prefix+string(name)] = 0
				}
			}
		}
	}
	return out
}

// counts reports whether a quota counts such a pod. Of the scopes those are known that a
// template decides by itself; in doubt it does not.
func counts(q plan.Quota, pod *corev1.Pod) bool {
	bestEffort := true
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		bestEffort = bestEffort && len(c.Resources.Requests) == 0
	}
	for _, s := range q.Scopes {
		switch corev1.ResourceQuotaScope(s) {
		case corev1.ResourceQuotaScopeNotTerminating:
			if pod.Spec.ActiveDeadlineSeconds != nil {
				return false
			}
		case corev1.ResourceQuotaScopeNotBestEffort:
			if bestEffort {
				return false
			}
		case corev1.ResourceQuotaScopeBestEffort:
			if !bestEffort {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// shownAmount is an amount as manifests write it.
func shownAmount(name string, n int64) string {
	switch {
	case strings.HasSuffix(name, "cpu"):
		return resource.NewMilliQuantity(n, resource.DecimalSI).String()
	case strings.HasSuffix(name, "memory"):
		return resource.NewQuantity(n, resource.BinarySI).String()
	}
	return resource.NewQuantity(n, resource.DecimalSI).String()
}
