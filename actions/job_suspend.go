package actions

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// JobSuspendArgs are the arguments of job_suspend.
type JobSuspendArgs struct {
	action.Namespaced
	Job string `json:"job" jsonschema:"exact name"`
}

// JobSuspend ends the active pods of one Job and starts no more.
var JobSuspend = add(action.New(action.Spec{
	Name:     "job_suspend",
	Title:    "Suspend a job",
	Doc:      "Suspend one Job: its active pods are deleted, completed ones are kept, none start until job_resume.",
	Destroys: true,
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get", "list", "patch"}},
	},
}, planJobSuspend))

func planJobSuspend(ctx context.Context, s *action.Session, a JobSuspendArgs) error {
	j, err := unfinishedJob(ctx, s, a.Namespace, a.Job)
	if err != nil || j.Spec.Suspend != nil && *j.Spec.Suspend {
		return err
	}
	if err := s.Say("suspend", "job", j.Namespace+"/"+j.Name); err != nil {
		return err
	}
	if j.Spec.ActiveDeadlineSeconds != nil {
		s.Warn("its active deadline of %d s starts again on resume", *j.Spec.ActiveDeadlineSeconds)
	}
	s.Kubectl("%s", kubectlSuspend("job", j, true))
	s.UndoCall("plan_job_resume", JobResumeArgs{action.Namespaced{Namespace: j.Namespace}, j.Name}, kubectlSuspend("job", j, false), "it starts new pods; what the deleted ones had begun is lost")
	return s.Patch(j, action.Set("spec.suspend", true))
}

// unfinishedJob reads a Job that still has something to do, and warns of who else decides
// about its suspension.
func unfinishedJob(ctx context.Context, s *action.Session, namespace, name string) (*batchv1.Job, error) {
	j, err := s.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if err := s.Target(j); err != nil {
		return nil, err
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return nil, s.Refuse(refusal.PreconditionFailed, "there is nothing to do", "job %s/%s has finished", j.Namespace, j.Name)
		}
	}
	if m := j.Spec.ManagedBy; m != nil && *m != batchv1.JobControllerName {
		s.Warn("spec.managedBy names another controller: the built-in one does not react at all")
	}
	if _, queued := j.Labels["kueue.x-k8s.io/queue-name"]; queued {
		s.Warn("a queue controller owns its admission (kueue.x-k8s.io/queue-name) and may undo the change")
	} else if owner := metav1.GetControllerOf(j); owner != nil && owner.Kind != "CronJob" {
		s.Warn("controlled by %s, which may undo the change", action.Controller(j))
	}
	return j, nil
}

func kubectlSuspend(kind string, o metav1.Object, suspend bool) string {
	return fmt.Sprintf(`kubectl -n %s patch %s/%s --type=merge -p '{"spec":{"suspend":%t}}'`, o.GetNamespace(), kind, o.GetName(), suspend)
}
