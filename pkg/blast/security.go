package blast

import (
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// podSecurity has the checks of every version, made on first use.
var podSecurity = sync.OnceValues(func() (policy.Evaluator, error) {
	return policy.NewEvaluator(policy.DefaultChecks(), nil)
})

// sayPodSecurity tells that the namespace refuses new pods of a template: admission looks
// at pods, so the dry run of a workload says yes. Exemptions cannot be read.
func (t *tally) sayPodSecurity(s plan.Step, tpl *corev1.PodTemplateSpec) {
	everything := api.LevelVersion{Level: api.LevelPrivileged, Version: api.LatestVersion()}
	by, _ := api.PolicyToEvaluate(t.in.Labels, api.Policy{Enforce: everything}) // a label without sense is the strictest level
	evaluator, err := podSecurity()
	if err != nil {
		t.warnings = append(t.warnings, "not known: whether pod security refuses new pods")
		return
	}
	got := policy.AggregateCheckResults(evaluator.EvaluatePod(by.Enforce, &tpl.ObjectMeta, &tpl.Spec))
	if !got.Allowed {
		t.say(blocked, "pod security %s of namespace %s refuses new pods, unless exempt: %s", by.Enforce.Level, short(s.Target.Namespace), strings.Join(got.ForbiddenReasons, ", "))
	}
}
