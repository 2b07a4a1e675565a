package actions

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

func aJob(edit ...func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: meta("mail")}
	for _, e := range edit {
		e(j)
	}
	return j
}

func ended(j *batchv1.Job) {
	j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
}

func asleep(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }

func aCronJob(edit ...func(*batchv1.CronJob)) *batchv1.CronJob {
	c := &batchv1.CronJob{ObjectMeta: meta("mail"), Spec: batchv1.CronJobSpec{Schedule: "0 * * * *"}}
	c.CreationTimestamp = metav1.NewTime(noon.Add(-24 * time.Hour))
	for _, e := range edit {
		e(c)
	}
	return c
}

func off(c *batchv1.CronJob) { c.Spec.Suspend = ptr.To(true) }

func TestSuspendAndResume(t *testing.T) {
	const (
		jobOn   = `kubectl -n default patch job/mail --type=merge -p '{"spec":{"suspend":false}}'`
		jobOff  = `kubectl -n default patch job/mail --type=merge -p '{"spec":{"suspend":true}}'`
		cronOn  = `kubectl -n default patch cronjob/mail --type=merge -p '{"spec":{"suspend":false}}'`
		cronOff = `kubectl -n default patch cronjob/mail --type=merge -p '{"spec":{"suspend":true}}'`
		theJob  = ` {"namespace":"default","job":"mail"} `
		theCron = ` {"namespace":"default","cronjob":"mail"} `
	)
	suspendJob := shown{
		Sentence: "suspend job default/mail", Kubectl: jobOff, Undo: "plan_job_resume" + theJob + jobOn,
		Note: "it starts new pods; what the deleted ones had begun is lost", Steps: []string{"patch job default/mail: spec.suspend: false → true"},
	}
	warned := func(s shown, warnings ...string) shown { s.Warnings = warnings; return s }
	for name, tc := range map[string]struct {
		action *action.Action
		object runtime.Object
		want   shown
	}{
		"a job":           {JobSuspend, aJob(), suspendJob},
		"a job, it is so": {JobSuspend, aJob(asleep), shown{}},
		"JB-01 with a deadline": {JobSuspend, aJob(func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = ptr.To[int64](600) }),
			warned(suspendJob, "its active deadline of 600 s starts again on resume")},
		"JB-04 of a queue": {JobSuspend, aJob(func(j *batchv1.Job) { j.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "q"} }),
			warned(suspendJob, "a queue controller owns its admission (kueue.x-k8s.io/queue-name) and may undo the change")},
		"JB-04 managed elsewhere": {JobSuspend, aJob(func(j *batchv1.Job) { j.Spec.ManagedBy = ptr.To("example.com/ctl") }),
			warned(suspendJob, "spec.managedBy names another controller: the built-in one does not react at all")},
		"of a set": {JobSuspend, aJob(func(j *batchv1.Job) { j.OwnerReferences = controlledBy("JobSet", "all") }),
			warned(suspendJob, "controlled by JobSet/all, which may undo the change")},
		"of a cronjob": {JobSuspend, aJob(func(j *batchv1.Job) { j.OwnerReferences = controlledBy("CronJob", "all") }), suspendJob},
		"resume a job": {JobResume, aJob(asleep), shown{
			Sentence: "resume job default/mail", Kubectl: jobOn, Undo: "plan_job_suspend" + theJob + jobOff,
			Note: "it deletes the pods that are active by then", Steps: []string{"patch job default/mail: spec.suspend: true → false"},
		}},
		"resume a job, it is so": {JobResume, aJob(), shown{}},
		"JB-02 a cronjob": {CronJobSuspend, aCronJob(func(c *batchv1.CronJob) { c.Status.Active = []corev1.ObjectReference{{Name: "mail-1"}, {Name: "x\ny"}} }), shown{
			Sentence: "suspend cronjob default/mail", Kubectl: cronOff, Undo: "plan_cronjob_resume" + theCron + cronOn,
			Note: "a run that was missed meanwhile may start at once", Steps: []string{"patch cronjob default/mail: spec.suspend: false → true"},
			Stays: []string{"job default/mail-1: it runs already and goes on", "job default/(name withheld): it runs already and goes on"},
		}},
		"a cronjob, it is so": {CronJobSuspend, aCronJob(off), shown{}},
		"JB-03 resume a cronjob": {CronJobResume, aCronJob(off, func(c *batchv1.CronJob) { c.Status.LastScheduleTime = ptr.To(metav1.NewTime(noon.Add(-3 * time.Hour))) }), shown{
			Sentence: "resume cronjob default/mail", Kubectl: cronOn, Undo: "plan_cronjob_suspend" + theCron + cronOff,
			Note: "runs that have started by then go on", Steps: []string{"patch cronjob default/mail: spec.suspend: true → false"},
			Warnings: []string{"exactly one missed run starts at once, that of 2026-11-30T12:00:00Z, however many were missed"},
		}},
		"resume a cronjob, it is so": {CronJobResume, aCronJob(), shown{}},
	} {
		t.Run(name, func(t *testing.T) {
			raw := samples[tc.action.Name]
			out, err := run(t, tc.action, raw, []runtime.Object{tc.object})
			if err != nil {
				t.Fatal(err)
			}
			checkOutcome(t, tc.action, raw, out)
			if diff := cmp.Diff(tc.want, shownOf(out)); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMissedRun is JB-03: the most recent run that was due, or none.
func TestMissedRun(t *testing.T) {
	now := noon.Add(5 * time.Minute)
	for name, tc := range map[string]struct {
		schedule string
		last     time.Duration // before now; 0 is never
		edit     func(*batchv1.CronJobSpec)
		want     string // "" is none
		unknown  bool
	}{
		"three missed, one starts":      {"0 * * * *", 3 * time.Hour, nil, "2026-11-30T12:00:00Z", false},
		"none since the last":           {"0 * * * *", 4 * time.Minute, nil, "", false},
		"beyond the starting deadline":  {"0 * * * *", 3 * time.Hour, func(s *batchv1.CronJobSpec) { s.StartingDeadlineSeconds = ptr.To[int64](60) }, "", false},
		"within the starting deadline":  {"0 * * * *", 3 * time.Hour, func(s *batchv1.CronJobSpec) { s.StartingDeadlineSeconds = ptr.To[int64](600) }, "2026-11-30T12:00:00Z", false},
		"more than a hundred":           {"* * * * *", 5 * time.Hour, nil, "2026-11-30T12:05:00Z", false},
		"every minute for years":        {"* * * * *", 5 * 365 * 24 * time.Hour, nil, "2026-11-30T12:05:00Z", false},
		"once a year, long ago":         {"0 0 1 3 *", 400 * 24 * time.Hour, nil, "2026-03-01T00:00:00Z", false},
		"never run, made a day ago":     {"0 3 * * *", 0, nil, "2026-11-30T03:00:00Z", false},
		"in its own time zone":          {"0 3 * * *", 0, func(s *batchv1.CronJobSpec) { s.TimeZone = ptr.To("America/New_York") }, "2026-11-30T08:00:00Z", false},
		"a day that never comes":        {"0 0 31 2 *", 0, nil, "", false},
		"a schedule that is none":       {"soon", 0, nil, "", true},
		"a time zone that is not known": {"0 3 * * *", 0, func(s *batchv1.CronJobSpec) { s.TimeZone = ptr.To("Mars/Base") }, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := aCronJob(func(c *batchv1.CronJob) {
				c.Spec.Schedule = tc.schedule
				if tc.last != 0 {
					c.Status.LastScheduleTime = ptr.To(metav1.NewTime(now.Add(-tc.last)))
				}
				if tc.edit != nil {
					tc.edit(&c.Spec)
				}
			})
			got, known := missedRun(c, now)
			text := ""
			if !got.IsZero() {
				text = got.UTC().Format(time.RFC3339)
			}
			if text != tc.want || known == tc.unknown {
				t.Errorf("%q, known %t; want %q", text, known, tc.want)
			}
		})
	}
}

// TestTrigger: the Job is that of kubectl create job --from, named by the plan.
func TestTrigger(t *testing.T) {
	cron := func(edit ...func(*batchv1.CronJob)) *batchv1.CronJob {
		return aCronJob(append([]func(*batchv1.CronJob){func(c *batchv1.CronJob) {
			c.Spec.JobTemplate = batchv1.JobTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "mail"}, Annotations: map[string]string{"a": "b"}},
				Spec:       batchv1.JobSpec{Parallelism: ptr.To[int32](2), Template: withImage("mail:1")},
			}
		}}, edit...)...)
	}
	out, err := run(t, CronJobTrigger, samples["cronjob_trigger"], []runtime.Object{cron()})
	if err != nil {
		t.Fatal(err)
	}
	checkOutcome(t, CronJobTrigger, samples["cronjob_trigger"], out)
	want := shown{
		Sentence: "trigger cronjob default/mail as job mail-mf3q7x2ad5", Kubectl: "kubectl -n default create job mail-mf3q7x2ad5 --from=cronjob/mail",
		Undo: "  kubectl -n default delete job/mail-mf3q7x2ad5", Note: "there is none for what its pods do; deleting the job ends them",
		Steps: []string{"create job default/mail-mf3q7x2ad5 from cronjob default/mail: spec.suspend: unset; spec.jobTemplate: sha256:*"},
	}
	if diff := cmp.Diff(want, shownOf(out)); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
	var made batchv1.Job
	if err := json.Unmarshal(out.Proposals[0].Step.Object, &made); err != nil {
		t.Fatal(err)
	}
	wantJob := batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "mail-mf3q7x2ad5", Labels: map[string]string{"app": "mail"},
			Annotations:     map[string]string{"a": "b", "cronjob.kubernetes.io/instantiate": "manual", plan.PlanAnnotation: "mf3q7x2ad5"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: "mail", UID: "uid-1", Controller: ptr.To(true)}},
		},
		Spec: cron().Spec.JobTemplate.Spec,
	}
	if diff := cmp.Diff(wantJob, made); diff != "" {
		t.Errorf("job (-want +got):\n%s", diff)
	}

	t.Run("a long name", func(t *testing.T) {
		long := strings.Repeat("a", 51) + "-." + strings.Repeat("b", 10)
		if got, want := jobFrom(cron(func(c *batchv1.CronJob) { c.Name = long }), "mf3q7x2ad5").Name, strings.Repeat("a", 51)+"-mf3q7x2ad5"; got != want || len(got) > 63 {
			t.Errorf("name %q, want %q", got, want)
		}
		if got := jobFrom(cron(func(c *batchv1.CronJob) { c.Name = strings.Repeat("a", 52) }), "mf3q7x2ad5").Name; len(got) != 63 {
			t.Errorf("name of %d characters", len(got))
		}
	})
	for name, tc := range map[string]struct {
		edit func(*batchv1.CronJob)
		want string
	}{
		"suspended": {off, "the cronjob is suspended: its schedule starts no run, this one starts all the same"},
		"active":    {func(c *batchv1.CronJob) { c.Status.Active = make([]corev1.ObjectReference, 2) }, "2 of its jobs are active, and this one runs beside them"},
		"forbid":    {func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent }, "concurrencyPolicy Forbid does not count a job that was made by hand: a scheduled run may start beside it"},
		"replace":   {func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = batchv1.ReplaceConcurrent }, "concurrencyPolicy Replace does not count a job that was made by hand: a scheduled run may start beside it"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, CronJobTrigger, samples["cronjob_trigger"], []runtime.Object{cron(tc.edit)})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(out.Warnings, "; "); got != tc.want {
				t.Errorf("warnings %q, want %q", got, tc.want)
			}
		})
	}
}
