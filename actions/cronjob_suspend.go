package actions

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
)

// CronJobSuspendArgs are the arguments of cronjob_suspend.
type CronJobSuspendArgs struct {
	action.Namespaced
	CronJob string `json:"cronjob" jsonschema:"exact name"`
}

// CronJobSuspend stops the future runs of one CronJob.
var CronJobSuspend = add(action.New(action.Spec{
	Name:  "cronjob_suspend",
	Title: "Suspend a cronjob",
	Doc:   "Suspend one CronJob: no more runs start until cronjob_resume. Jobs that run already go on.",
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"batch"}, Resources: []string{"cronjobs"}, Verbs: []string{"get", "list", "patch"}},
	},
}, planCronJobSuspend))

func planCronJobSuspend(ctx context.Context, s *action.Session, a CronJobSuspendArgs) error {
	c, err := s.BatchV1().CronJobs(a.Namespace).Get(ctx, a.CronJob, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := s.Target(c); err != nil || suspended(c) {
		return err
	}
	if err := s.Say("suspend", "cronjob", c.Namespace+"/"+c.Name); err != nil {
		return err
	}
	for _, j := range c.Status.Active {
		s.Stays("job %s/%s: it runs already and goes on", c.Namespace, action.SafeName(j.Name))
	}
	s.Kubectl("%s", kubectlSuspend("cronjob", c, true))
	s.UndoCall("plan_cronjob_resume", CronJobResumeArgs{action.Namespaced{Namespace: c.Namespace}, c.Name}, kubectlSuspend("cronjob", c, false), "a run that was missed meanwhile may start at once")
	return s.Patch(c, action.Set("spec.suspend", true))
}

func suspended(c *batchv1.CronJob) bool { return c.Spec.Suspend != nil && *c.Spec.Suspend }
