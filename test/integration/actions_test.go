package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// history makes the revisions of a workload that its controller would have made: one that
// ran main:<number> for each number, the last of which is the template of now.
func history(t *testing.T, of metav1.Object, kind string, numbers ...int) {
	t.Helper()
	ns, app := of.GetNamespace(), of.GetName()
	for _, n := range numbers {
		tpl := harness.Template(app)
		tpl.Spec.Containers[0].Image = fmt.Sprintf("main:%d", n)
		m := metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-r%d", app, n), Labels: tpl.Labels,
			Annotations:     map[string]string{"deployment.kubernetes.io/revision": fmt.Sprint(n)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(of, appsv1.SchemeGroupVersion.WithKind(kind))},
		}
		var err error
		if kind == "Deployment" {
			tpl.Labels = map[string]string{"app": app, "pod-template-hash": m.Name}
			_, err = cp.Client.AppsV1().ReplicaSets(ns).Create(t.Context(), &appsv1.ReplicaSet{
				ObjectMeta: m, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: tpl.Labels}, Template: tpl},
			}, metav1.CreateOptions{})
		} else {
			// As the controller writes it: the defaulted template, to be replaced as a whole.
			var live *appsv1.StatefulSet
			if live, err = cp.Client.AppsV1().StatefulSets(ns).Get(t.Context(), app, metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			live.Spec.Template.Spec.Containers[0].Image = fmt.Sprintf("main:%d", n)
			raw, _ := json.Marshal(live.Spec.Template)
			_, err = cp.Client.AppsV1().ControllerRevisions(ns).Create(t.Context(), &appsv1.ControllerRevision{
				ObjectMeta: m, Revision: int64(n), Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":{"$patch":"replace",` + string(raw[1:]) + `}}`)},
			}, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func image(of *corev1.PodTemplateSpec) string { return of.Spec.Containers[0].Image }

// furnish adds to a workbench what the further actions are about, and gives a call of
// every action there is.
func (b workbench) furnish(t *testing.T) map[string]harness.Args {
	t.Helper()
	runs := func(p *corev1.PodTemplateSpec) { p.Spec.Containers[0].Image = "main:3" }
	harness.Create(t, cp, b.ns,
		harness.Deployment("past").Replicas(2).Pods(runs).Ready(2), harness.StatefulSet("pastset").Replicas(2).Pods(runs).Ready(2),
		harness.Deployment("paused").Ready(1).With(func(d *appsv1.Deployment) { d.Spec.Paused = true }),
		harness.Pod("evicted"),
		harness.Node(b.ns+"-cordoned").Ready().With(func(n *corev1.Node) { n.Spec.Unschedulable = true }),
	)
	t.Cleanup(func() {
		_ = cp.Client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), b.ns+"-cordoned", metav1.DeleteOptions{})
	})
	past, err := cp.Client.AppsV1().Deployments(b.ns).Get(t.Context(), "past", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	history(t, past, "Deployment", 1, 2, 3)
	set, err := cp.Client.AppsV1().StatefulSets(b.ns).Get(t.Context(), "pastset", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	history(t, set, "StatefulSet", 1, 2, 3)
	tpl := harness.Template("mail")
	tpl.Spec.RestartPolicy = corev1.RestartPolicyNever
	for name, suspend := range map[string]bool{"mail": false, "asleep": true} {
		spec := batchv1.JobSpec{Template: tpl, Suspend: ptr.To(suspend)}
		cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.CronJobSpec{
			Schedule: "0 0 31 2 *", Suspend: ptr.To(suspend), JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: tpl}},
		}}
		_, err1 := cp.Client.BatchV1().Jobs(b.ns).Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		_, err2 := cp.Client.BatchV1().CronJobs(b.ns).Create(t.Context(), cron, metav1.CreateOptions{})
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
	}
	calls := b.calls()
	for action, args := range map[string]harness.Args{
		"uncordon":        {"node": b.ns + "-cordoned"},
		"rollout_restart": of(b.ns, "deployment", "past"),
		"rollout_resume":  of(b.ns, "deployment", "paused"),
		"rollout_undo":    of(b.ns, "deployment", "past"),
		"evict_pod":       of(b.ns, "pod", "evicted"),
		"cronjob_suspend": of(b.ns, "cronjob", "mail"),
		"cronjob_resume":  of(b.ns, "cronjob", "asleep"),
		"cronjob_trigger": of(b.ns, "cronjob", "mail"),
		"job_suspend":     of(b.ns, "job", "mail"),
		"job_resume":      of(b.ns, "job", "asleep"),
	} {
		calls[action] = args
	}
	return calls
}

// seen reports whether the controllers of Deployments and StatefulSets have seen every
// change.
func seen(t *testing.T, ns string) bool {
	t.Helper()
	deployments, err1 := cp.Client.AppsV1().Deployments(ns).List(t.Context(), metav1.ListOptions{})
	sets, err2 := cp.Client.AppsV1().StatefulSets(ns).List(t.Context(), metav1.ListOptions{})
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return !slices.ContainsFunc(deployments.Items, func(d appsv1.Deployment) bool { return d.Status.ObservedGeneration < d.Generation }) &&
		!slices.ContainsFunc(sets.Items, func(s appsv1.StatefulSet) bool { return s.Status.ObservedGeneration < s.Generation })
}

// TestEveryAction plans each action, executes it, repeats the call, and takes it back as
// the plan says: each is dry-run where the API server looks, written once, and undone.
func TestEveryAction(t *testing.T) {
	for _, a := range actions.All() {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			b := newWorkbench(t)
			args, ok := b.furnish(t)[a.Name]
			if !ok {
				t.Fatal("there is no call of it here")
			}
			harness.Converge(t, cp, b.ns) // an undo of a rollout waits for its controller
			s := start(t, append([]string{"--verify-timeout", "1s"}, wide...)...)
			p := s.Must("plan_"+a.Name, args)
			said := harness.Into[struct {
				Undo    plan.Undo
				Before  plan.State
				Confirm string
			}](t, p)
			if said.Confirm == "" {
				t.Fatalf("no phrase: %s", p.Text)
			}
			if lines := strings.Count(p.Text, "\n") + 1; lines > 25 {
				t.Errorf("a plan of %d lines: %s", lines, p.Text)
			}
			if w := s.Proxy.Writes(); len(w) != 0 {
				t.Fatalf("the plan wrote %+v", w)
			}
			confirmed := args.With("confirm", said.Confirm).With("reason", "a test")
			got := s.Must(a.Name, confirmed)
			x := harness.Into[struct {
				Outcome plan.Outcome
				Result  plan.Result
			}](t, got)
			if x.Outcome != plan.Executed {
				t.Fatalf("outcome %s: %s", x.Outcome, got.Text)
			}
			effects := len(s.Proxy.Writes())
			if again := harness.Into[execution](t, s.Must(a.Name, confirmed)); !again.Replayed || len(s.Proxy.Writes()) != effects {
				t.Errorf("the second call: replayed %t, %d writes more", again.Replayed, len(s.Proxy.Writes())-effects)
			}
			sent := s.Proxy.Writes()
			for i, r := range sent {
				again := slices.ContainsFunc(sent[i+1:], func(next harness.Request) bool { return next.Method == r.Method && next.Path == r.Path })
				if r.Status/100 != 2 && !(r.Status == 409 && again) { // a controller wrote its status meanwhile
					t.Errorf("%s %s: %d", r.Method, r.Path, r.Status)
				}
			}
			if said.Undo.Tool == "" {
				return
			}
			var undo harness.Args
			if err := json.Unmarshal(said.Undo.Arguments, &undo); err != nil {
				t.Fatal(err)
			}
			lab.Eventually(t, "the controller to see the change", func() (bool, error) { return seen(t, b.ns), nil })
			back := s.Do(strings.TrimPrefix(said.Undo.Tool, "plan_"), undo)
			y := harness.Into[struct {
				Outcome plan.Outcome
				Result  plan.Result
			}](t, back)
			if y.Outcome != plan.Executed {
				t.Fatalf("undo: %s", back.Text)
			}
			for _, key := range []string{"replicas", "paused", "suspend", "unschedulable"} {
				if was, is := fmt.Sprint(said.Before[key]), fmt.Sprint(y.Result.After[key]); was != is {
					t.Errorf("%s was %s, is %s after the undo", key, was, is)
				}
			}
		})
	}
}

// TestRolloutUndo: the template of the revision is sent as it is, and nothing else of the
// object moves (RO-12); the phrase is bound to what the revision was.
func TestRolloutUndo(t *testing.T) {
	b := newWorkbench(t)
	b.furnish(t)
	s := start(t, append([]string{"--verify-timeout", "1s"}, wide...)...)
	apps := cp.Client.AppsV1()
	got := s.Do("rollout_undo", of(b.ns, "deployment", "past").With("to_revision", 1))
	d, err := apps.Deployments(b.ns).Get(t.Context(), "past", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if image(&d.Spec.Template) != "main:1" || *d.Spec.Replicas != 2 || d.Spec.Template.Labels["pod-template-hash"] != "" {
		t.Errorf("image %s, replicas %d, labels %v: %s", image(&d.Spec.Template), *d.Spec.Replicas, d.Spec.Template.Labels, got.Text)
	}
	if d.Annotations["kubernetes.io/change-cause"] != "a test" {
		t.Errorf("annotations %v", d.Annotations)
	}
	set := s.Must("plan_rollout_undo", of(b.ns, "statefulset", "pastset"))
	for _, want := range []string{"from revision 3 to 2", "containers[0].image: main:3 → main:2", `"to_revision":3`} {
		if !strings.Contains(set.Text, want) {
			t.Errorf("%q is not in %s", want, set.Text)
		}
	}
	confirm := of(b.ns, "statefulset", "pastset").With("confirm", set.Field("confirm")).With("reason", "a test")
	patchAs(t, "statefulsets", b.ns, "pastset", `{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}`)
	if got := s.Must("rollout_undo", confirm); harness.Code(got) != "precondition_failed" && harness.Code(got) != "stale" {
		t.Errorf("after another change: %s", got.Text)
	}
	if w := s.Proxy.Writes(); len(w) != 1 {
		t.Errorf("%d writes, want 1: %+v", len(w), w)
	}
}

// TestTrigger: one Job for one phrase, bound to this CronJob.
func TestTrigger(t *testing.T) {
	b := newWorkbench(t)
	b.furnish(t)
	s := start(t, append([]string{"--verify-timeout", "1s"}, wide...)...)
	jobs := func() (names []string) {
		t.Helper()
		list, err := cp.Client.BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range list.Items {
			if j.Annotations[plan.PlanAnnotation] != "" {
				names = append(names, j.Name)
			}
		}
		return names
	}
	mail := of(b.ns, "cronjob", "mail")

	args := s.Plan("cronjob_trigger", mail)
	answers := together(t, 20, "cronjob_trigger", args, s)
	sameResult(t, answers, plan.Executed)
	made := jobs()
	if len(made) != 1 || len(s.Proxy.Writes()) != 1 {
		t.Fatalf("jobs %q by the writes %+v", made, s.Proxy.Writes())
	}
	j, err := cp.Client.BatchV1().Jobs(b.ns).Get(t.Context(), made[0], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ref := metav1.GetControllerOf(j); ref == nil || ref.Kind != "CronJob" || j.Annotations["cronjob.kubernetes.io/instantiate"] != "manual" {
		t.Errorf("owner %v, annotations %v", ref, j.Annotations)
	}

	t.Run("the name is a stranger's", func(t *testing.T) {
		s.T = t
		args := s.Plan("cronjob_trigger", mail)
		id := strings.Split(strings.Split(args["confirm"].(string), "[")[1], "-")[0]
		s.Proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
			if r.Mutates() { // after the last look
				tpl := harness.Template("x")
				tpl.Spec.RestartPolicy = corev1.RestartPolicyNever
				_, err := cp.Client.BatchV1().Jobs(b.ns).Create(t.Context(), &batchv1.Job{
					ObjectMeta: metav1.ObjectMeta{Name: "mail-" + id}, Spec: batchv1.JobSpec{Template: tpl},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
				}
			}
			return true
		})
		got := s.Must("cronjob_trigger", args)
		s.Proxy.Before(nil)
		if o := harness.Into[execution](t, got).Outcome; o != plan.Failed || !strings.Contains(got.Text, "409") {
			t.Errorf("outcome %s: %s", o, got.Text)
		}
		if n := len(s.Proxy.Writes()); n != 2 {
			t.Errorf("%d writes, want one more that is not sent again", n)
		}
	})
	t.Run("the name is this plan's", func(t *testing.T) {
		s.T = t
		args := s.Plan("cronjob_trigger", mail)
		s.Proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
			if r.Mutates() { // the same request by another way
				var j batchv1.Job
				if err := json.Unmarshal([]byte(r.Body), &j); err != nil {
					t.Error(err)
				}
				if _, err := cp.Client.BatchV1().Jobs(b.ns).Create(t.Context(), &j, metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
			return true
		})
		got := s.Must("cronjob_trigger", args)
		s.Proxy.Before(nil)
		if o := harness.Into[execution](t, got).Outcome; o != plan.Executed {
			t.Errorf("outcome %s: %s", o, got.Text)
		}
	})
	t.Run("the answer is lost", func(t *testing.T) {
		s.T = t
		before, writes := len(jobs()), len(s.Proxy.Writes())
		args := s.Plan("cronjob_trigger", mail)
		s.Proxy.After(func(r *harness.Request, _ *http.Response) {
			if r.Mutates() {
				panic(http.ErrAbortHandler)
			}
		})
		first := s.Must("cronjob_trigger", args)
		s.Proxy.After(nil)
		if o := harness.Into[execution](t, first).Outcome; o != plan.Unknown {
			t.Errorf("outcome %s: %s", o, first.Text)
		}
		got := s.Must("cronjob_trigger", args)
		if o := harness.Into[execution](t, got).Outcome; o != plan.Executed {
			t.Errorf("found out: %s: %s", o, got.Text)
		}
		if n, w := len(jobs())-before, len(s.Proxy.Writes())-writes; n != 1 || w != 1 {
			t.Errorf("%d jobs by %d writes, want one by one", n, w)
		}
	})
	t.Run("another cronjob of the name", func(t *testing.T) {
		s.T = t
		args := s.Plan("cronjob_trigger", mail)
		old, err := cp.Client.BatchV1().CronJobs(b.ns).Get(t.Context(), "mail", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := cp.Client.BatchV1().CronJobs(b.ns).Delete(t.Context(), "mail", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := cp.Client.BatchV1().CronJobs(b.ns).Create(t.Context(), &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "mail"}, Spec: old.Spec}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		before := len(s.Proxy.Writes())
		if got := s.Must("cronjob_trigger", args); harness.Code(got) != "stale" || len(s.Proxy.Writes()) != before {
			t.Errorf("%d writes more: %s", len(s.Proxy.Writes())-before, got.Text)
		}
	})
}

// TestCase_PO_01 and PO-02: a budget that says no refuses an eviction, and is named.
func TestCase_PO_01(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(3).Ready(3), harness.Budget("web").Allows(0, 3))
	s := start(t)
	pod := of(ns, "pod", harness.PodName("web", 0))
	got := s.Must("plan_evict_pod", pod)
	if harness.Code(got) != "dry_run_failed" || !strings.Contains(got.Field("message"), "429") || !strings.Contains(got.Text, "disruption budget web") {
		t.Errorf("one budget: %s", got.Text)
	}
	second := harness.Budget("web")
	second.Object.Name = "other"
	harness.Create(t, cp, ns, second.Allows(1, 3))
	if got := s.Must("plan_evict_pod", pod); harness.Code(got) != "dry_run_failed" || !strings.Contains(got.Field("message"), "500") {
		t.Errorf("two budgets: %s", got.Text)
	}
	if err := cp.Client.PolicyV1().PodDisruptionBudgets(ns).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	args := s.Plan("evict_pod", pod)
	budget := harness.Budget("web").Allows(0, 3)
	harness.Create(t, cp, ns, budget)
	if got := s.Must("evict_pod", args); harness.Code(got) != "dry_run_failed" || len(s.Proxy.Writes()) != 0 {
		t.Errorf("a budget since: %s", got.Text)
	}
	if _, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), harness.PodName("web", 0), metav1.GetOptions{}); apierrors.IsNotFound(err) {
		t.Error("the pod is gone")
	}
}
