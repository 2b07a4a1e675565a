package actions

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
)

// JobResumeArgs are the arguments of job_resume.
type JobResumeArgs struct {
	action.Namespaced
	Job string `json:"job" jsonschema:"exact name"`
}

// JobResume lets the pods of one suspended Job start again.
var JobResume = add(action.New(action.Spec{
	Name:  "job_resume",
	Title: "Resume a job",
	Doc:   "Resume one suspended Job: the pods that it still needs start.",
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get", "list", "patch"}},
	},
}, planJobResume))

func planJobResume(ctx context.Context, s *action.Session, a JobResumeArgs) error {
	j, err := unfinishedJob(ctx, s, a.Namespace, a.Job)
	if err != nil || j.Spec.Suspend == nil || !*j.Spec.Suspend {
		return err
	}
	if err := s.Say("resume", "job", j.Namespace+"/"+j.Name); err != nil {
		return err
	}
	s.Kubectl("%s", kubectlSuspend("job", j, false))
	s.UndoCall("plan_job_suspend", JobSuspendArgs{action.Namespaced{Namespace: j.Namespace}, j.Name}, kubectlSuspend("job", j, true), "it deletes the pods that are active by then")
	return s.Patch(j, action.Set("spec.suspend", false))
}
