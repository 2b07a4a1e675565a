package cluster

import (
	"net/http"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// pdb makes a disruption budget and waits until its controller has counted so many pods as
// needed and so many disruptions as allowed.
func pdb(t *testing.T, ns, name string, spec policyv1.PodDisruptionBudgetSpec, wantDesired, wantAllowed int32) {
	t.Helper()
	api := cp.Client.PolicyV1().PodDisruptionBudgets(ns)
	if _, err := api.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "budget "+name, func() (bool, error) {
		b, err := api.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.DesiredHealthy == wantDesired && b.Status.DisruptionsAllowed == wantAllowed, err
	})
}

// TestCase_PO_06: the percentages of a budget round up, those of maxUnavailable as well.
func TestCase_PO_06(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	for _, tc := range []struct {
		name                 string
		pods                 int32
		min, max             string
		wantDesired, allowed int32
		want                 string
	}{
		{"a", 3, "", "25%", 2, 1, "pdb/a allows 1 now; 1 of this plan's pods needs it"},
		{"b", 3, "", "40%", 1, 2, "pdb/b allows 2 now; 1 of this plan's pods needs it"},
		{"c", 7, "50%", "", 4, 3, "pdb/c allows 3 now; 1 of this plan's pods needs it"},
		{"d", 1, "", "30%", 0, 1, "pdb/d allows 1 now; 1 of this plan's pods needs it"},
		{"e", 10, "81%", "", 9, 1, "pdb/e allows 1 now; 1 of this plan's pods needs it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			deployment(t, ns, tc.name, tc.pods)
			spec := policyv1.PodDisruptionBudgetSpec{Selector: selector(tc.name)}
			if tc.min != "" {
				spec.MinAvailable = ptr.To(intstr.FromString(tc.min))
			} else {
				spec.MaxUnavailable = ptr.To(intstr.FromString(tc.max))
			}
			pdb(t, ns, tc.name, spec, tc.wantDesired, tc.allowed)
			got := s.Must("plan_evict_pod", of(ns, "pod", pods(t, ns, tc.name)[0].Name))
			if got.IsError {
				t.Fatal(got.Text)
			}
			harness.Tells(t, got, tc.want)
		})
	}
}

// TestCase_PO_08: a budget that needs to know how many pods there should be counts none
// without a controller.
func TestCase_PO_08(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	team := func(name string) func(*corev1.PodTemplateSpec) {
		return func(tpl *corev1.PodTemplateSpec) { tpl.Labels["team"] = name }
	}
	for _, name := range []string{"max", "min"} {
		bare(t, ns, name+"-0", "node-1", team(name))
		bare(t, ns, name+"-1", "node-1", team(name))
	}
	of2 := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"team": name}}
	}
	pdb(t, ns, "min", policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: of2("min")}, 1, 1)
	pdb(t, ns, "max", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: of2("max")}, 0, 0)
	no := s.Must("plan_evict_pod", of(ns, "pod", "max-0"))
	if harness.Code(no) != "dry_run_failed" {
		t.Errorf("maxUnavailable: %s", no.Text)
	}
	harness.Tells(t, no, "dry run failed (429)")
	got := s.Must("plan_evict_pod", of(ns, "pod", "min-0"))
	harness.Tells(t, got, "pdb/min allows 1 now", "no controller makes it again")
}

// TestCase_PO_09: the empty selector covers every pod of the namespace, none at all covers
// none.
func TestCase_PO_09(t *testing.T) {
	t.Parallel()
	s := start(t, wide...)
	all := ptr.To(intstr.FromString("100%"))
	for _, tc := range []struct {
		name        string
		selector    *metav1.LabelSelector
		wantDesired int32
		wantBlocked bool
	}{
		{"empty", &metav1.LabelSelector{}, 2, true},
		{"null", nil, 0, false},
	} {
		ns := cp.Namespace(t)
		deployment(t, ns, "a", 1)
		deployment(t, ns, "b", 1)
		pdb(t, ns, "all", policyv1.PodDisruptionBudgetSpec{MinAvailable: all, Selector: tc.selector}, tc.wantDesired, 0)
		for _, name := range []string{"a", "b"} {
			pod := of(ns, "pod", pods(t, ns, name)[0].Name)
			got := s.Must("plan_evict_pod", pod)
			if blocked := harness.Code(got) == "dry_run_failed" && strings.Contains(got.Text, "429"); blocked != tc.wantBlocked {
				t.Errorf("%s selector: blocked %t, want %t\n%s", tc.name, blocked, tc.wantBlocked, got.Text)
			}
			deletion := s.Must("plan_delete_pod", pod)
			if violates := strings.Contains(deletion.Text, "violates pdb/all"); violates != tc.wantBlocked {
				t.Errorf("%s selector: the plan sees a violation: %t, the server: %t\n%s", tc.name, violates, tc.wantBlocked, deletion.Text)
			}
		}
	}
}

// again deletes a pod and waits until another one of its name runs.
func again(t *testing.T, ns, name string) *corev1.Pod {
	t.Helper()
	api := cp.Client.CoreV1().Pods(ns)
	old, err := api.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var now *corev1.Pod
	lab.Eventually(t, "another "+name, func() (bool, error) {
		now, err = api.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && now.UID != old.UID && now.Status.Phase == corev1.PodRunning, err
	})
	return now
}

// TestCase_PO_10: a phrase is about the pod that was looked at, not about its name.
func TestCase_PO_10(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	statefulSet(t, ns, "db", 1)
	s := start(t, wide...)
	pod := of(ns, "pod", "db-0")
	for _, action := range []string{"evict_pod", "delete_pod"} {
		args := s.Plan(action, pod)
		now := again(t, ns, "db-0")
		got := s.Must(action, args)
		if harness.Code(got) != "stale" || len(s.Proxy.Writes()) != 0 {
			t.Errorf("%s with the phrase of the pod before, %d writes: %s", action, len(s.Proxy.Writes()), got.Text)
		}
		if p, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), "db-0", metav1.GetOptions{}); err != nil || p.UID != now.UID || p.DeletionTimestamp != nil {
			t.Errorf("%s touched the new pod: %v", action, err)
		}
	}
	// It goes while the eviction is on its way: the uid of the request stops it.
	args := s.Plan("evict_pod", pod)
	var now *corev1.Pod
	s.Proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
		if r.Mutates() && now == nil {
			if !strings.Contains(r.Body, `"preconditions":{"uid":`) {
				t.Errorf("the request has no precondition: %s", r.Body)
			}
			now = again(t, ns, "db-0")
		}
		return true
	})
	got := s.Must("evict_pod", args)
	s.Proxy.Before(nil)
	writes := s.Proxy.Writes()
	if len(writes) != 1 || writes[0].Status != http.StatusConflict || !got.IsError {
		t.Errorf("writes %+v; want one, answered with 409: %s", writes, got.Text)
	}
	if p, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), "db-0", metav1.GetOptions{}); err != nil || p.UID != now.UID || p.DeletionTimestamp != nil {
		t.Errorf("the new pod was touched: %v", err)
	}
	// It goes for good: a 404 is no reason to delete by name.
	bare(t, ns, "loner", "node-1")
	args = s.Plan("evict_pod", of(ns, "pod", "loner"))
	s.Proxy.Reset()
	s.Proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
		if r.Mutates() {
			if err := cp.Client.CoreV1().Pods(ns).Delete(t.Context(), "loner", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			lab.Eventually(t, "loner to be gone", func() (bool, error) { return len(pods(t, ns, "loner")) == 0, nil })
		}
		return true
	})
	got = s.Must("evict_pod", args)
	s.Proxy.Before(nil)
	if w := s.Proxy.Writes(); len(w) != 1 || w[0].Status != http.StatusNotFound {
		t.Errorf("writes %+v, want one eviction that is answered with 404: %s", w, got.Text)
	}
}

// TestCase_PO_15: what an eviction costs a Job.
func TestCase_PO_15(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	ignore := &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action:          batchv1.PodFailurePolicyActionIgnore,
		OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
	}}}
	job(t, ns, "fails", batchv1.JobSpec{BackoffLimit: ptr.To[int32](0)})
	job(t, ns, "ignores", batchv1.JobSpec{BackoffLimit: ptr.To[int32](0), PodFailurePolicy: ignore})
	job(t, ns, "retries", batchv1.JobSpec{BackoffLimit: ptr.To[int32](2)})
	cronJob(t, ns, "mail", batchv1.CronJobSpec{Schedule: "0 0 1 1 *"}, 0)
	s := start(t, wide...)
	verified(t, s, "cronjob_trigger", of(ns, "cronjob", "mail"))
	triggered := jobsOf(t, ns, "mail")[0].Name
	podOfJob := func(name string) harness.Args {
		t.Helper()
		var pod string
		lab.Eventually(t, "a pod of job "+name, func() (bool, error) {
			list, err := cp.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name})
			if err != nil || len(list.Items) == 0 {
				return false, err
			}
			pod = list.Items[0].Name
			return true, nil
		})
		phase(t, ns, pod, corev1.PodRunning)
		return of(ns, "pod", pod)
	}
	for _, tc := range []struct {
		job, want, wantNot string
	}{
		{"fails", "job " + ns + "/fails fails with it: no retries left", "not counted"},
		{"ignores", "job " + ns + "/ignores makes the pod again, and its failure policy does not count a disruption", "no retries left"},
		{"retries", "job " + ns + "/retries counts it as a failure; retries left: 2", "not count"},
		{triggered, "(of CronJob/mail)", "no retries left"},
	} {
		got := s.Must("plan_evict_pod", podOfJob(tc.job))
		harness.Tells(t, got, tc.want, "of job "+ns+"/"+tc.job)
		harness.Silent(t, got, tc.wantNot)
	}
	verified(t, s, "evict_pod", podOfJob("fails"))
	lab.Eventually(t, "the job to fail", func() (bool, error) {
		j, err := cp.Client.BatchV1().Jobs(ns).Get(t.Context(), "fails", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range j.Status.Conditions {
			if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
}

// TestCase_PO_16: the pod of this uid is gone, whatever has its name by then.
func TestCase_PO_16(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	statefulSet(t, ns, "web", 3)
	for action, name := range map[string]string{"delete_pod": "web-1", "evict_pod": "web-2"} {
		old, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := start(t, wide...)
		// The server gives the next pod a moment to find its node. It looks when it has one.
		s.Proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
			if r.Method == http.MethodGet && strings.HasSuffix(r.Path, "/pods/"+name) && eventOf(t, s.State, journal.EventExecute) {
				lab.Eventually(t, "the next "+name, func() (bool, error) {
					next, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
					return err == nil && next.UID != old.UID && next.Spec.NodeName != "", err
				})
			}
			return true
		})
		got := s.Do(action, of(ns, "pod", name))
		x := harness.Into[execution](t, got)
		if x.Outcome != plan.Executed || x.Current == nil || x.Current.Verdict != plan.Verified {
			t.Fatalf("%s: %s", action, got.Text)
		}
		now, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		harness.Tells(t, got, "pod "+ns+"/"+name+" is gone (uid "+string(old.UID)+", node "+old.Spec.NodeName+"); one of that name has uid "+
			string(now.UID)+" and node "+now.Spec.NodeName)
	}
}
