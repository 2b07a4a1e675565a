package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// verified executes a plan and wants its verdict.
func verified(t *testing.T, s *harness.Server, action string, args harness.Args) string {
	t.Helper()
	got := s.Do(action, args)
	x := harness.Into[execution](t, got)
	if x.Outcome != plan.Executed || x.Current == nil || x.Current.Verdict != plan.Verified {
		t.Fatalf("%s: %s", action, got.Text)
	}
	return x.Current.Reason
}

func imageOf(ns, name string) harness.Args {
	return of(ns, "deployment", name).With("container", "main")
}

func revisionsOf(t *testing.T, ns string) (out []string) {
	t.Helper()
	list, err := cp.Client.AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, rs := range list.Items {
		out = append(out, rs.Annotations["deployment.kubernetes.io/revision"])
	}
	slices.Sort(out)
	return out
}

// TestCase_RO_11: undo goes to the revision before and renumbers it; RO-12: the replicas
// stay; RO-14 and RO-15 on the way.
func TestCase_RO_11(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 2)
	web := of(ns, "deployment", "web")
	if got := s.Must("plan_rollout_undo", web); harness.Code(got) != "no_history" {
		t.Errorf("one revision: %s", got.Text)
	}
	for _, image := range []string{"main:2", "main:3"} {
		verified(t, s, "set_image", imageOf(ns, "web").With("image", image))
	}
	verified(t, s, "scale", web.With("replicas", 3))
	for _, tc := range []struct {
		args          harness.Args
		from, to      int
		image         string
		wantRevisions []string
	}{
		{web, 3, 2, "main:2", []string{"1", "3", "4"}},
		{web, 4, 3, "main:3", []string{"1", "4", "5"}},
		{web.With("to_revision", 1), 5, 1, "main", []string{"4", "5", "6"}},
	} {
		want := fmt.Sprintf("from revision %d to %d ", tc.from, tc.to)
		if got := s.Must("plan_rollout_undo", tc.args); !strings.Contains(got.Text, want) {
			t.Errorf("want %q: %s", want, got.Text)
		}
		verified(t, s, "rollout_undo", tc.args)
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil || d.Spec.Template.Spec.Containers[0].Image != tc.image || *d.Spec.Replicas != 3 {
			t.Errorf("image %s, replicas %d (%v)", d.Spec.Template.Spec.Containers[0].Image, *d.Spec.Replicas, err)
		}
		if diff := cmp.Diff(tc.wantRevisions, revisionsOf(t, ns)); diff != "" {
			t.Errorf("revisions (-want +got):\n%s", diff)
		}
	}
	if got := s.Must("plan_rollout_undo", web.With("to_revision", 2)); harness.Code(got) != "no_history" || !strings.Contains(got.Text, "it has 4, 5, 6") {
		t.Errorf("a revision that was renumbered: %s", got.Text)
	}
	if got := harness.Into[planned](t, s.Must("plan_rollout_undo", web.With("to_revision", 6))); got.Status != "no change" {
		t.Errorf("to the current one: %+v", got)
	}
}

// TestUndoOfOtherKinds: ControllerRevisions as their controllers write them.
func TestUndoOfOtherKinds(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, wide...)
	statefulSet(t, ns, "db", 2)
	daemonSet(t, ns, "agent")
	for kind, name := range map[string]string{"statefulset": "db", "daemonset": "agent"} {
		target := of(ns, kind, name)
		verified(t, s, "set_image", target.With("container", "main").With("image", "main:2"))
		verified(t, s, "rollout_undo", target)
		for _, p := range pods(t, ns, name) {
			if p.DeletionTimestamp == nil && p.Spec.Containers[0].Image != "main" {
				t.Errorf("%s runs %s", p.Name, p.Spec.Containers[0].Image)
			}
		}
		verified(t, s, "rollout_undo", target.With("to_revision", 2))
	}
}

// TestUndoOfARestart: it goes back to the template that was restarted, also after a rollout
// that came later, which it says and for which it is not exempt from the limits.
func TestUndoOfARestart(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 2)
	statefulSet(t, ns, "db", 1)
	daemonSet(t, ns, "agent")
	for kind, name := range map[string]string{"deployment": "web", "statefulset": "db", "daemonset": "agent"} {
		target := of(ns, kind, name)
		args := harness.Args{"plan": s.Do("rollout_restart", target).Field("plan")}
		const since = "changed again since: spec.template, by others"
		if back := s.Must("plan_undo", args); back.Field("confirm") == "" || !strings.Contains(back.Text, `"to_revision":2`) || strings.Contains(back.Text, since) {
			t.Errorf("of a %s: %s", kind, back.Text)
		}
		verified(t, s, "set_image", target.With("container", "main").With("image", "main:2"))
		if back := s.Must("plan_undo", args); !strings.Contains(back.Text, "containers[0].image: main:2 → main\n") || !strings.Contains(back.Text, since) {
			t.Errorf("of a %s, after a later rollout: %s", kind, back.Text)
		}
	}
}

// TestCase_RO_05: what a paused Deployment takes and what it does not; RO-19: all of it is
// released at once.
func TestCase_RO_05(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 3)
	web := of(ns, "deployment", "web")
	verified(t, s, "rollout_pause", web)
	observed(t, ns, "web")
	if got := s.Must("plan_rollout_resume", web); !strings.Contains(got.Text, "nothing was changed meanwhile") {
		t.Errorf("nothing piled up: %s", got.Text)
	}
	for _, image := range []string{"main:2", "main:3"} {
		p := harness.Into[planned](t, s.Must("plan_set_image", imageOf(ns, "web").With("image", image)))
		if p.Blast.Pods != 0 || !strings.Contains(strings.Join(p.Radius, " "), "0 of 3 pods change until the rollout is resumed") {
			t.Errorf("radius %q", p.Radius)
		}
		if reason := verified(t, s, "set_image", imageOf(ns, "web").With("image", image)); !strings.Contains(reason, "no pod changes until it is resumed") {
			t.Errorf("verified: %s", reason)
		}
	}
	for _, action := range []string{"rollout_restart", "rollout_undo"} {
		if got := s.Must("plan_"+action, web); harness.Code(got) != "paused" {
			t.Errorf("%s: %s", action, got.Text)
		}
	}
	if got := s.Must("plan_rollout_resume", web); !strings.Contains(got.Text, "all of it is released now, and 3 pods are replaced") {
		t.Errorf("what piled up: %s", got.Text)
	}
	verified(t, s, "rollout_resume", web)
	lab.Eventually(t, "one rollout to main:3", func() (bool, error) {
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && d.Status.UpdatedReplicas == 3 && d.Status.AvailableReplicas == 3 && d.Status.Replicas == 3, err
	})
	if diff := cmp.Diff([]string{"1", "2"}, revisionsOf(t, ns)); diff != "" {
		t.Errorf("revisions (-want +got):\n%s", diff)
	}
}

// TestCase_JB_01: a suspended Job loses its active pods and starts them anew.
func TestCase_JB_01(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, wide...)
	job(t, ns, "work", batchv1.JobSpec{Completions: ptr.To[int32](20), Parallelism: ptr.To[int32](5)})
	active := func(n int32) {
		t.Helper()
		lab.Eventually(t, fmt.Sprint(n, " active pods"), func() (bool, error) {
			j, err := cp.Client.BatchV1().Jobs(ns).Get(t.Context(), "work", metav1.GetOptions{})
			return err == nil && j.Status.Active == n, err
		})
	}
	active(5)
	work := of(ns, "job", "work")
	p := harness.Into[planned](t, s.Must("plan_job_suspend", work))
	if p.Blast.Pods != 5 || p.Blast.AtRisk.Missing != 0 || !slices.Equal(p.Losses, []string{"what the active pods of job " + ns + "/work have begun"}) {
		t.Errorf("%+v, losses %q", p.Blast, p.Losses)
	}
	verified(t, s, "job_suspend", work)
	active(0)
	verified(t, s, "job_resume", work)
	active(5)
}

// TestCase_JB_03: exactly one missed run starts at once, as the plan says, also beside one
// that was triggered: its policy does not count that one.
func TestCase_JB_03(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, wide...)
	// Its pods are active until the test ends, so that Forbid keeps the next hour's run away.
	cronJob(t, ns, "mail", batchv1.CronJobSpec{Schedule: "0 * * * *", ConcurrencyPolicy: batchv1.ForbidConcurrent, Suspend: ptr.To(true)}, 3*time.Hour)
	jobs := func() (out []batchv1.Job) {
		list, err := cp.Client.BatchV1().Jobs(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	mail := of(ns, "cronjob", "mail")
	verified(t, s, "cronjob_trigger", mail)
	if got := s.Must("plan_cronjob_resume", mail); !strings.Contains(got.Text, "exactly one missed run starts at once") {
		t.Errorf("resume: %s", got.Text)
	}
	verified(t, s, "cronjob_resume", mail)
	lab.Eventually(t, "the missed run", func() (bool, error) { return len(jobs()) == 2, nil })
	verified(t, s, "cronjob_suspend", mail)
	if got := jobs(); len(got) != 2 {
		t.Errorf("%d jobs, want the trigger and one missed run", len(got))
	}
}

// TestEvict: the pod of this uid goes, the budget is asked and debited.
func TestEvict(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 3)
	before := pods(t, ns, "web")
	if reason := verified(t, s, "evict_pod", of(ns, "pod", before[0].Name)); !strings.Contains(reason, "is gone") {
		t.Errorf("verified: %s", reason)
	}
	args := s.Plan("evict_pod", of(ns, "pod", before[1].Name))
	if err := cp.Client.CoreV1().Pods(ns).Delete(t.Context(), before[1].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the pod to be gone", func() (bool, error) {
		return !slices.ContainsFunc(pods(t, ns, "web"), func(p corev1.Pod) bool { return p.Name == before[1].Name }), nil
	})
	if got := s.Must("evict_pod", args); !got.IsError || len(s.Proxy.Writes()) != 1 {
		t.Errorf("a pod that has left: %s", got.Text)
	}
}
