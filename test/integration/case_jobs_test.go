package integration

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestCase_JB_04: who else decides about the suspension of a Job, and one that is over.
func TestCase_JB_04(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	job := func(name string, mods ...func(*batchv1.Job)) *batchv1.Job {
		t.Helper()
		tpl := harness.Template(name)
		tpl.Spec.RestartPolicy = corev1.RestartPolicyNever
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{Template: tpl}}
		for _, m := range mods {
			m(j)
		}
		made, err := cp.Client.BatchV1().Jobs(ns).Create(t.Context(), j, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	queue := func(j *batchv1.Job) { j.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "team"} }
	managed := func(j *batchv1.Job) { j.Spec.ManagedBy = ptr.To("example.com/ctl") }
	suspended := func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }
	job("queued", queue)
	job("queued-off", queue, suspended)
	job("managed", managed)
	job("managed-off", managed, suspended)
	done := job("done")
	now := metav1.Now()
	done.Status = batchv1.JobStatus{
		StartTime: &now, CompletionTime: &now, Succeeded: 1,
		Conditions: []batchv1.JobCondition{
			{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue}, {Type: batchv1.JobComplete, Status: corev1.ConditionTrue},
		},
	}
	if _, err := cp.Client.BatchV1().Jobs(ns).UpdateStatus(t.Context(), done, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := start(t, wide...)
	const owned, ignored = "a queue controller owns its admission (kueue.x-k8s.io/queue-name) and may undo the change", "the built-in one does not react at all"
	for _, tc := range []struct{ tool, job, want string }{
		{"plan_job_suspend", "queued", owned},
		{"plan_job_resume", "queued-off", owned},
		{"plan_job_suspend", "managed", ignored},
		{"plan_job_resume", "managed-off", ignored},
	} {
		got := s.Must(tc.tool, of(ns, "job", tc.job))
		if got.IsError || got.Field("confirm") == "" {
			t.Errorf("%s %s: %s", tc.tool, tc.job, got.Text)
		}
		harness.Tells(t, got, "warning: ", tc.want)
	}
	for _, tool := range []string{"plan_job_suspend", "plan_job_resume"} {
		got := s.Must(tool, of(ns, "job", "done"))
		if harness.Code(got) != "precondition_failed" {
			t.Errorf("%s of a finished job: %s", tool, got.Text)
		}
		harness.Tells(t, got, "job "+ns+"/done has finished")
	}
}
