package blast

import (
	"cmp"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// pace is how a controller replaces pods: of want pods at most unavailable are missing,
// and at most surge are there beside them. Every controller counts pods that are not
// available already as missing ones, so that at least want-unavailable stay.
type pace struct {
	want, surge, unavailable int
	recreate                 bool // all old pods end before a new one starts
}

// stays is how many of the available pods there are at the worst moment.
func (p pace) stays(available int) int { return min(available, max(p.want-p.unavailable, 0)) }

// paceOf resolves the update strategy of a live workload, which has that many pods, as
// its controller does. ok is false for a strategy that is not known.
func paceOf(resource string, o plan.Object, pods int) (p pace, ok bool) {
	switch resource {
	case "deployments":
		if d, err := decode[appsv1.Deployment](o); err == nil {
			return deploymentPace(d.Spec.Strategy, replicas(o))
		}
	case "statefulsets":
		if s, err := decode[appsv1.StatefulSet](o); err == nil {
			return statefulSetPace(s.Spec.UpdateStrategy, replicas(o))
		}
	case "daemonsets":
		if d, err := decode[appsv1.DaemonSet](o); err == nil {
			want := cmp.Or(int(d.Status.DesiredNumberScheduled), pods)
			if behind(o) {
				want = min(want, pods) // it may want fewer by now, and so keep fewer
			}
			return daemonSetPace(d.Spec.UpdateStrategy, want)
		}
	}
	return pace{}, false
}

// deploymentPace: the surge rounds up, what is unavailable rounds down, and where both
// come to zero one is unavailable.
func deploymentPace(s appsv1.DeploymentStrategy, n int) (pace, bool) {
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		return pace{want: n, unavailable: n, recreate: true}, true
	case appsv1.RollingUpdateDeploymentStrategyType, "":
	default:
		return pace{}, false
	}
	var r appsv1.RollingUpdateDeployment
	if s.RollingUpdate != nil {
		r = *s.RollingUpdate
	}
	quarter := intstr.FromString("25%")
	p := pace{want: n, surge: resolve(r.MaxSurge, quarter, n, true), unavailable: resolve(r.MaxUnavailable, quarter, n, false)}
	if p.surge == 0 && p.unavailable == 0 {
		p.unavailable = 1
	}
	p.unavailable = min(p.unavailable, n)
	return p, true
}

// statefulSetPace: what is unavailable rounds down, but to 1 at least.
func statefulSetPace(s appsv1.StatefulSetUpdateStrategy, n int) (pace, bool) {
	switch s.Type {
	case appsv1.RecreateStatefulSetStrategyType:
		return pace{want: n, unavailable: n, recreate: true}, true
	case appsv1.RollingUpdateStatefulSetStrategyType, "":
	default:
		return pace{}, false
	}
	var most *intstr.IntOrString
	if s.RollingUpdate != nil {
		most = s.RollingUpdate.MaxUnavailable
	}
	return pace{want: n, unavailable: min(max(resolve(most, intstr.FromInt32(1), n, false), 1), n)}, true
}

// daemonSetPace: both round up; with a surge no old pod ends before its new one is
// available.
func daemonSetPace(s appsv1.DaemonSetUpdateStrategy, n int) (pace, bool) {
	switch s.Type {
	case appsv1.RollingUpdateDaemonSetStrategyType, "":
	default:
		return pace{}, false
	}
	var r appsv1.RollingUpdateDaemonSet
	if s.RollingUpdate != nil {
		r = *s.RollingUpdate
	}
	p := pace{want: n, surge: resolve(r.MaxSurge, intstr.FromInt32(0), n, true)}
	if p.surge == 0 {
		p.unavailable = min(max(resolve(r.MaxUnavailable, intstr.FromInt32(1), n, true), 1), n)
	}
	return p, true
}

// resolve gives a count or a share of n; one that makes no sense is all of them.
func resolve(v *intstr.IntOrString, unset intstr.IntOrString, n int, up bool) int {
	got, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, unset), n, up)
	if err != nil {
		return n
	}
	return max(got, 0)
}

// decode gives the typed form of a live object.
func decode[T any](o plan.Object) (*T, error) {
	out := new(T)
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, out)
	return out, err
}
