package actions

import (
	"context"
	"fmt"
	"maps"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// CronJobTriggerArgs are the arguments of cronjob_trigger.
type CronJobTriggerArgs struct {
	action.Namespaced
	CronJob string `json:"cronjob" jsonschema:"exact name"`
}

// CronJobTrigger makes a Job from the template of one CronJob.
var CronJobTrigger = add(action.New(action.Spec{
	Name:  "cronjob_trigger",
	Title: "Run a cronjob now",
	Doc:   "Create one Job from the template of one CronJob, beside its schedule.",
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"batch"}, Resources: []string{"cronjobs"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get", "create"}},
	},
}, planCronJobTrigger))

func planCronJobTrigger(ctx context.Context, s *action.Session, a CronJobTriggerArgs) error {
	c, err := s.BatchV1().CronJobs(a.Namespace).Get(ctx, a.CronJob, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := s.Target(c); err != nil {
		return err
	}
	job := jobFrom(c, s.ID)
	if err := s.Say("trigger", "cronjob", c.Namespace+"/"+c.Name, "as", "job", job.Name); err != nil {
		return err
	}
	if suspended(c) {
		s.Warn("the cronjob is suspended: its schedule starts no run, this one starts all the same")
	}
	if n := len(c.Status.Active); n > 0 {
		s.Warn("%d of its jobs are active, and this one runs beside them", n)
	}
	if p := c.Spec.ConcurrencyPolicy; p == batchv1.ForbidConcurrent || p == batchv1.ReplaceConcurrent {
		s.Warn("concurrencyPolicy %s does not count a job that was made by hand: a scheduled run may start beside it", p)
	}
	s.Kubectl("kubectl -n %s create job %s --from=cronjob/%s", c.Namespace, job.Name, c.Name)
	s.Undo(plan.Undo{
		Kubectl: fmt.Sprintf("kubectl -n %s delete job/%s", c.Namespace, job.Name),
		Note:    "there is none for what its pods do; deleting the job ends them",
	})
	return s.Create(c, job, "spec.suspend", "spec.jobTemplate")
}

// jobFrom is what kubectl create job --from makes, named by the plan.
func jobFrom(c *batchv1.CronJob, id string) *batchv1.Job {
	name := c.Name
	if most := validation.DNS1123LabelMaxLength - len(id) - 1; len(name) > most {
		name = strings.TrimRight(name[:most], "-.")
	}
	notes := map[string]string{"cronjob.kubernetes.io/instantiate": "manual"}
	maps.Copy(notes, c.Spec.JobTemplate.Annotations)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: name + "-" + id, Annotations: notes, Labels: c.Spec.JobTemplate.Labels,
			// Without blockOwnerDeletion, which would need the right to set finalizers.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "CronJob", Name: c.Name, UID: c.UID, Controller: ptr.To(true),
			}},
		},
		Spec: c.Spec.JobTemplate.Spec,
	}
}
