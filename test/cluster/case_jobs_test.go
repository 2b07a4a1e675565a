package cluster

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// once is a pod template that is run once, on no node: kwok would end its pods at once,
// these are active until the test says otherwise.
func once(name string) corev1.PodTemplateSpec {
	return template(name, onNodes("no-such-node"), func(t *corev1.PodTemplateSpec) { t.Spec.RestartPolicy = corev1.RestartPolicyNever })
}

func job(t *testing.T, ns, name string, spec batchv1.JobSpec) {
	t.Helper()
	spec.Template = once(name)
	if _, err := cp.Client.BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// jobIs waits until a Job has so many active and succeeded pods, and gives it.
func jobIs(t *testing.T, ns, name string, active, succeeded int32) (j *batchv1.Job) {
	t.Helper()
	lab.Eventually(t, fmt.Sprintf("job %s with %d active and %d succeeded", name, active, succeeded), func() (_ bool, err error) {
		j, err = cp.Client.BatchV1().Jobs(ns).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && j.Status.Active == active && j.Status.Succeeded == succeeded, err
	})
	return j
}

// phase plays the kubelet of a pod of a Job: a running one is ready.
func phase(t *testing.T, ns, name string, to corev1.PodPhase) {
	t.Helper()
	lab.Eventually(t, name+" to be "+string(to), func() (bool, error) {
		p, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		p.Status.Phase = to
		if to == corev1.PodRunning {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		_, err = cp.Client.CoreV1().Pods(ns).UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		return err == nil, err
	})
}

// TestCase_JB_01_HalfDone: what is done is kept, what is under way is lost, and the clock
// of the active deadline starts again.
func TestCase_JB_01_HalfDone(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	job(t, ns, "work", batchv1.JobSpec{Completions: ptr.To[int32](20), Parallelism: ptr.To[int32](5), ActiveDeadlineSeconds: ptr.To[int64](3600)})
	for done := int32(0); done < 10; done += 5 {
		jobIs(t, ns, "work", 5, done)
		for _, p := range pods(t, ns, "work") {
			if p.Status.Phase != corev1.PodSucceeded {
				phase(t, ns, p.Name, corev1.PodSucceeded)
			}
		}
	}
	jobIs(t, ns, "work", 5, 10)
	s := start(t, wide...)
	work := of(ns, "job", "work")
	got := s.Must("plan_job_suspend", work)
	harness.Tells(t, got, "ends 5 active pods: what they have begun is lost; 10 succeeded are kept", "at risk: nothing", "its active deadline of 3600 s starts again on resume")
	verified(t, s, "job_suspend", work)
	j := jobIs(t, ns, "work", 0, 10)
	lab.Eventually(t, "the start time to be cleared", func() (bool, error) {
		j = jobIs(t, ns, "work", 0, 10)
		return j.Status.StartTime == nil, nil
	})
	suspended := false
	for _, c := range j.Status.Conditions {
		suspended = suspended || c.Type == batchv1.JobSuspended && c.Status == corev1.ConditionTrue
	}
	if !suspended {
		t.Errorf("conditions %+v, want Suspended", j.Status.Conditions)
	}
	harness.Tells(t, s.Must("plan_job_resume", work), "starts 5 pods at once, 10 completions left")
	verified(t, s, "job_resume", work)
	if j := jobIs(t, ns, "work", 5, 10); j.Status.StartTime == nil {
		t.Error("no start time after the resume")
	}
}

func cronJob(t *testing.T, ns, name string, spec batchv1.CronJobSpec, lastRun time.Duration) {
	t.Helper()
	spec.TimeZone = ptr.To("Etc/UTC")
	spec.JobTemplate.Spec.Template = once(name)
	api := cp.Client.BatchV1().CronJobs(ns)
	c, err := api.Create(t.Context(), &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if lastRun == 0 {
		return
	}
	c.Status.LastScheduleTime = ptr.To(metav1.NewTime(time.Now().Add(-lastRun)))
	if _, err := api.UpdateStatus(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func jobsOf(t *testing.T, ns, cron string) (out []batchv1.Job) {
	t.Helper()
	list, err := cp.Client.BatchV1().Jobs(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range list.Items {
		if ref := metav1.GetControllerOf(&j); ref != nil && ref.Name == cron {
			out = append(out, j)
		}
	}
	return out
}

// TestCase_JB_02: a suspended CronJob starts nothing more and stops nothing.
func TestCase_JB_02(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	cronJob(t, ns, "mail", batchv1.CronJobSpec{Schedule: "0 * * * *", ConcurrencyPolicy: batchv1.ForbidConcurrent}, 3*time.Hour)
	crons := cp.Client.BatchV1().CronJobs(ns)
	lab.Eventually(t, "an active job", func() (bool, error) {
		c, err := crons.Get(t.Context(), "mail", metav1.GetOptions{})
		return err == nil && len(c.Status.Active) == 1, err
	})
	active := jobsOf(t, ns, "mail")[0].Name
	jobIs(t, ns, active, 1, 0)
	s := start(t, wide...)
	mail := of(ns, "cronjob", "mail")
	got := s.Must("plan_cronjob_suspend", mail)
	if b := harness.Into[planned](t, got).Blast; b.Pods != 0 || b.AtRisk.Missing != 0 {
		t.Errorf("radius %+v, want no pod", b)
	}
	harness.Tells(t, got, "stays: job "+ns+"/"+active+": it runs already and goes on", "stops future runs, and no pod")
	verified(t, s, "cronjob_suspend", mail)
	c, err := crons.Get(t.Context(), "mail", metav1.GetOptions{})
	if err != nil || len(c.Status.Active) != 1 || c.Status.Active[0].Name != active {
		t.Errorf("active %+v (%v), want %s", c.Status.Active, err, active)
	}
	jobIs(t, ns, active, 1, 0)
}

// TestCase_JB_03_Variants: beyond the starting deadline no missed run starts, and of more
// than a hundred it is still one.
func TestCase_JB_03_Variants(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	last := time.Now().UTC().Add(-5 * time.Minute)
	cronJob(t, ns, "late", batchv1.CronJobSpec{
		Schedule: fmt.Sprintf("%d * * * *", last.Minute()), StartingDeadlineSeconds: ptr.To[int64](60), Suspend: ptr.To(true),
	}, 3*time.Hour)
	// Forbid, so that the next minute brings no second one while the first is active.
	cronJob(t, ns, "often", batchv1.CronJobSpec{Schedule: "* * * * *", ConcurrencyPolicy: batchv1.ForbidConcurrent, Suspend: ptr.To(true)}, 5*time.Hour)
	harness.Tells(t, s.Must("plan_cronjob_resume", of(ns, "cronjob", "late")), "no missed run starts: the next one is by the schedule")
	verified(t, s, "cronjob_resume", of(ns, "cronjob", "late"))
	harness.Tells(t, s.Must("plan_cronjob_resume", of(ns, "cronjob", "often")), "exactly one missed run starts at once", "however many were missed")
	verified(t, s, "cronjob_resume", of(ns, "cronjob", "often"))
	lab.Eventually(t, "the missed run and the event that there are many", func() (bool, error) {
		events, err := cp.Client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{
			FieldSelector: fields.Set{"involvedObject.name": "often", "reason": "TooManyMissedTimes"}.String(),
		})
		return err == nil && len(events.Items) > 0 && len(jobsOf(t, ns, "often")) > 0, err
	})
	if n := len(jobsOf(t, ns, "often")); n != 1 {
		t.Errorf("%d jobs, want one", n)
	}
	if n := len(jobsOf(t, ns, "late")); n != 0 {
		t.Errorf("%d jobs beyond the starting deadline, want none", n)
	}
}
