package blast

import (
	"encoding/json"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// Jobs and CronJobs carry no serving capacity: none of what follows puts any at risk.

// suspendEffect is what a change of spec.suspend does.
func suspendEffect(resource string, op plan.Op) effect {
	switch value := string(op.Value); {
	case op.Op == "ensure", value != "true" && value != "false" && op.Op != "remove":
		return unknown
	case resource == "cronjobs":
		return nothing // it decides about Jobs to come and touches none that there is
	case value == "true":
		return suspends
	}
	return resumes
}

// createEffect knows the one kind of object that a plan may make.
func createEffect(s plan.Step) effect {
	if s.Subject().Resource == "jobs" {
		return starts
	}
	return unknown
}

// suspend ends the active pods of a Job: what they have begun is lost. The loss is named
// without their number, which moves by itself.
func (t *tally) suspend(s plan.Step, o plan.Object) {
	active := o.Int("status.active")
	t.touch(plan.Removes, active, active)
	t.afterwards("gone; new ones start when the job is resumed")
	if active == 0 {
		t.say(extent, "ends no pod: none is active")
		return
	}
	t.lost("what the active pods of " + keyOf(s.Target).display() + " have begun")
	t.say(loss, "ends %s: what they have begun is lost; %d succeeded are kept", count(active, "active pod"), o.Int("status.succeeded"))
}

// resume starts the pods that a Job still needs.
func (t *tally) resume(o plan.Object) {
	job, err := decode[batchv1.Job](o)
	if err != nil {
		job = &batchv1.Job{}
	}
	t.start(job)
}

// create starts the pods of a Job that there is not yet. No call takes that back: to
// suspend or delete the Job ends its pods and leaves what they have done.
func (t *tally) create(s plan.Step) {
	var job batchv1.Job
	_ = json.Unmarshal(s.Object, &job) // a Step that cannot be read is none that can be sent
	t.start(&job)
	t.class = plan.Irreversible
	t.needsPerson("a run of " + keyOf(s.Target).display() + " cannot be taken back")
}

func (t *tally) start(job *batchv1.Job) {
	n := 1
	if p := job.Spec.Parallelism; p != nil {
		n = int(*p)
	}
	left := ""
	if c := job.Spec.Completions; c != nil {
		todo := max(int(*c)-int(job.Status.Succeeded), 0)
		n = min(n, todo)
		left = ", " + count(todo, "completion") + " left"
	}
	t.touch(plan.Adds, n, int(job.Status.Active))
	t.say(extent, "starts %s at once%s", count(n, "pod"), left)
}
