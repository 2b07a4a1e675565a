package blast

import (
	"fmt"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// sayAutoscalers tells which autoscaler sets the replicas of a target again. Its bounds
// hold without any metric; within them its metrics decide.
func (t *tally) sayAutoscalers(s plan.Step, o plan.Object) {
	kind, _ := plan.KindOf(s.Target.Resource)
	from, to := replicas(o), int(*s.Replicas)
	for _, a := range t.in.Facts.Autoscalers {
		if a.Namespace != s.Target.Namespace || a.Group != kind.GVK.Group || a.Kind != kind.GVK.Kind || a.Target != s.Target.Name {
			continue
		}
		who := autoscaler(a)
		keeps := fmt.Sprintf("%s keeps %d to %d", who, a.Min, a.Max)
		if from == 0 && a.Min > 0 {
			keeps = fmt.Sprintf("%s starts again and keeps %d to %d", who, a.Min, a.Max)
		}
		switch {
		case to == 0 && a.Min > 0 && a.ScaledObject == "":
			t.say(blocked, "%s, but stops at 0: it will not bring pods back until someone scales up", keeps)
			continue
		case to == 0 && a.Min > 0:
			t.say(blocked, "%s, and leaves 0 when one of its triggers is active", keeps)
		case to < a.Min:
			t.say(blocked, "%s: %d is below, it will set %d", keeps, to, a.Min)
		case to > a.Max:
			t.say(blocked, "%s: %d is above, it will set %d", keeps, to, a.Max)
		default:
			t.say(blocked, "%s: it will set its own number again", keeps)
		}
		t.takesBack(who)
	}
}

// autoscaler names one as a person does: KEDA names its autoscalers after its own objects.
func autoscaler(a plan.Autoscaler) string {
	switch {
	case a.ScaledObject == "":
		return "HPA " + short(a.Name)
	case a.Name == "keda-hpa-"+a.ScaledObject:
		return "KEDA ScaledObject " + short(a.ScaledObject)
	}
	return fmt.Sprintf("KEDA ScaledObject %s (HPA %s)", short(a.ScaledObject), short(a.Name))
}
