package blast

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// TestJobs: they carry no capacity, need no facts, and what a suspend ends is named.
func TestJobs(t *testing.T) {
	job := func(active, succeeded int32, completions *int32) *batchv1.Job {
		return &batchv1.Job{
			TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mail", UID: "uid-1"},
			Spec:       batchv1.JobSpec{Parallelism: ptr.To[int32](5), Completions: completions},
			Status:     batchv1.JobStatus{Active: active, Succeeded: succeeded},
		}
	}
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mail", UID: "uid-2"}}
	suspend := func(op string, value any) []plan.Op {
		return []plan.Op{{Op: op, Path: "/spec/suspend", Value: plan.JSON(value)}}
	}
	twenty := ptr.To[int32](20)
	for name, tc := range map[string]struct {
		resource   string
		target     metav1.Object
		step       plan.Step
		want       numbers
		wantLines  []string
		wantLosses []string
	}{
		"JB-01 suspend": {
			"jobs", job(5, 10, twenty), plan.Step{Verb: plan.Patch, Patch: suspend("add", true)}, numbers{plan.Removes, 5, 5, 0, 0, 0, false},
			[]string{"ends 5 active pods: what they have begun is lost; 10 succeeded are kept"}, []string{"what the active pods of job default/mail have begun"},
		},
		"suspend what has no active pod": {
			"jobs", job(0, 0, twenty), plan.Step{Verb: plan.Patch, Patch: suspend("add", true)}, numbers{plan.Removes, 0, 0, 0, 0, 0, false},
			[]string{"ends no pod: none is active"}, nil,
		},
		"JB-01 resume": {
			"jobs", job(0, 10, twenty), plan.Step{Verb: plan.Patch, Patch: suspend("add", false)}, numbers{plan.Adds, 5, 0, 0, 0, 0, false},
			[]string{"starts 5 pods at once, 10 completions left"}, nil,
		},
		"resume what is almost done": {
			"jobs", job(0, 19, twenty), plan.Step{Verb: plan.Patch, Patch: suspend("remove", nil)}, numbers{plan.Adds, 1, 0, 0, 0, 0, false},
			[]string{"starts 1 pod at once, 1 completion left"}, nil,
		},
		"suspend a cronjob": {
			"cronjobs", cron, plan.Step{Verb: plan.Patch, Patch: suspend("add", true)}, numbers{Direction: plan.None},
			[]string{"stops future runs, and no pod: jobs that are active go on"}, nil,
		},
		"trigger": {
			"cronjobs", cron, plan.Step{Verb: plan.Create, Object: plan.JSON(job(0, 0, nil))}, numbers{plan.Adds, 5, 0, 0, 0, 0, false},
			[]string{"starts 5 pods at once"}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.step.Target = w.live(tc.resource, tc.target)
			e := w.step(tc.step).compute()
			if got := numbersOf(e); got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
			if diff := cmp.Diff(tc.wantLines, e.Blast.Lines); diff != "" {
				t.Errorf("Lines (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLosses, e.Blast.Losses); diff != "" {
				t.Errorf("Losses (-want +got):\n%s", diff)
			}
			class, person := plan.Reversible, []string(nil)
			if tc.step.Verb == plan.Create {
				class, person = plan.Irreversible, []string{"a run of cronjob default/mail cannot be taken back"}
			}
			if diff := cmp.Diff(person, e.NeedsPerson); e.Class != class || diff != "" {
				t.Errorf("class %s, want %s; a person for (-want +got):\n%s", e.Class, class, diff)
			}
			if n := Needs(w.in.Steps, w.in.Targets); n != (Need{}) {
				t.Errorf("needs %+v", n)
			}
		})
	}
}

// TestJobsUnknown: what is no plain suspend or create of a Job counts as everything.
func TestJobsUnknown(t *testing.T) {
	for name, s := range map[string]plan.Step{
		"ensure":           {Verb: plan.Patch, Patch: []plan.Op{{Op: "ensure", Path: "/spec/suspend", Value: plan.JSON(true)}}},
		"another value":    {Verb: plan.Patch, Patch: []plan.Op{{Op: "add", Path: "/spec/suspend", Value: plan.JSON("yes")}}},
		"parallelism":      {Verb: plan.Patch, Patch: []plan.Op{{Op: "add", Path: "/spec/parallelism", Value: plan.JSON(0)}}},
		"create of a pod":  {Verb: plan.Create, Object: []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}`)},
		"create of nobody": {Verb: plan.Create},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s.Target = w.live("jobs", &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mail", UID: "uid-1"}})
			if e := w.step(s).compute(); e.Blast.AtRisk.Percent != 100 {
				t.Errorf("%+v", e.Blast.AtRisk)
			}
		})
	}
}
