package actions

import (
	"context"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
)

// CronJobResumeArgs are the arguments of cronjob_resume.
type CronJobResumeArgs struct {
	action.Namespaced
	CronJob string `json:"cronjob" jsonschema:"exact name"`
}

// CronJobResume lets the runs of one CronJob start again.
var CronJobResume = add(action.New(action.Spec{
	Name:  "cronjob_resume",
	Title: "Resume a cronjob",
	Doc:   "Resume one suspended CronJob: runs start again by its schedule, a missed one perhaps at once.",
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"batch"}, Resources: []string{"cronjobs"}, Verbs: []string{"get", "list", "patch"}},
	},
}, planCronJobResume))

func planCronJobResume(ctx context.Context, s *action.Session, a CronJobResumeArgs) error {
	c, err := s.BatchV1().CronJobs(a.Namespace).Get(ctx, a.CronJob, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := s.Target(c); err != nil || !suspended(c) {
		return err
	}
	if err := s.Say("resume", "cronjob", c.Namespace+"/"+c.Name); err != nil {
		return err
	}
	switch run, known := missedRun(c, s.Time); {
	case !known:
		s.Warn("its schedule cannot be read here: whether a missed run starts at once is not known")
	case run.IsZero():
		s.Warn("no missed run starts: the next one is by the schedule")
	default:
		s.Warn("exactly one missed run starts at once, that of %s, however many were missed", run.UTC().Format(time.RFC3339))
	}
	s.Kubectl("%s", kubectlSuspend("cronjob", c, false))
	s.UndoCall("plan_cronjob_suspend", CronJobSuspendArgs{action.Namespaced{Namespace: c.Namespace}, c.Name}, kubectlSuspend("cronjob", c, true), "runs that have started by then go on")
	return s.Patch(c, action.Set("spec.suspend", false))
}

// missedRun is the run that the controller starts at once: the most recent one that was
// due since the last, and within the starting deadline; the zero time for none.
func missedRun(c *batchv1.CronJob, now time.Time) (run time.Time, known bool) {
	schedule, err := cron.ParseStandard(c.Spec.Schedule)
	if err != nil {
		return run, false
	}
	since, zone := c.CreationTimestamp.Time, time.UTC // the controller's own zone where none is named
	if c.Status.LastScheduleTime != nil {
		since = c.Status.LastScheduleTime.Time
	}
	if d := c.Spec.StartingDeadlineSeconds; d != nil {
		if oldest := now.Add(-time.Duration(*d) * time.Second); oldest.After(since) {
			since = oldest
		}
	}
	if c.Spec.TimeZone != nil {
		if zone, err = time.LoadLocation(*c.Spec.TimeZone); err != nil {
			return run, false
		}
	}
	// Backwards in growing steps, so that a schedule of every minute is not walked for a year.
	for back := time.Minute; run.IsZero() && back > 0; back *= 8 {
		from := now.Add(-back)
		if from.Before(since) {
			from = since
		}
		for next := schedule.Next(from.In(zone)); !next.IsZero() && !next.After(now); next = schedule.Next(next) {
			run = next
		}
		if !from.After(since) {
			break
		}
	}
	return run, true
}
