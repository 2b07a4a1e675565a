package faults

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// TestFault_21_ConflictWithoutEnd answers every attempt with a conflict: each has its own
// intent on disk before it leaves, and they end.
func TestFault_21_ConflictWithoutEnd(t *testing.T) {
	t.Parallel()
	ns, scale := harness.WebScale(t, cp)
	s := start(t)
	args := s.Plan("scale", scale)
	s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
		if !isScale(*r) {
			return true
		}
		if !journalHas(s.State, `"audit_id":"`+r.AuditID+`"`) {
			t.Errorf("%s left before its intent was on disk", r.AuditID)
		}
		answer(w, http.StatusConflict, metav1.StatusReasonConflict)
		return false
	})
	x := wantOutcome(t, s.Must("scale", args), plan.Failed)
	var intents, sent []string
	for _, l := range harness.Lines(t, s.State) {
		if l.Event == "execute_intent" {
			intents = append(intents, l.AuditID)
		}
	}
	for _, r := range s.Proxy.Writes() {
		sent = append(sent, r.AuditID)
	}
	if diff := cmp.Diff(intents, sent); diff != "" || len(sent) < 2 {
		t.Errorf("%d attempts, intents and requests (-intents +sent):\n%s", len(sent), diff)
	}
	wantReplay(t, s, "scale", args, x)
	if n := harness.Replicas(t, cp, ns, "web"); n != 2 {
		t.Errorf("%d replicas", n)
	}
}

// TestFault_21_AnswersWithoutABody: what stands in the status line alone decides.
func TestFault_21_AnswersWithoutABody(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]plan.Outcome{500: plan.Unknown, 502: plan.Unknown, 422: plan.Failed} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			_, scale := harness.WebScale(t, cp)
			s := start(t)
			args := s.Plan("scale", scale)
			s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
				if isScale(*r) {
					w.WriteHeader(code)
					return false
				}
				return true
			})
			wantOutcome(t, s.Must("scale", args), want)
			if w := s.Proxy.Writes(); len(w) != 1 {
				t.Errorf("%d writes, want 1: %+v", len(w), w)
			}
		})
	}
}

// account makes an account in a namespace that may do everything the program needs, and
// gives the name of its role and binding.
func account(t *testing.T, ns string) (cfg *rest.Config, role string) {
	t.Helper()
	cfg, err := cp.ServiceAccount(t.Context(), ns, "writer", engine.Rules(actions.All(), read.Rules()...))
	if err != nil {
		t.Fatal(err)
	}
	return cfg, ns + ":writer"
}

// grant sets the rules of an account's role, and waits until they decide about the writing
// of a scale.
func grant(t *testing.T, ns, role string, scales bool) {
	t.Helper()
	var rules []rbacv1.PolicyRule
	for _, r := range engine.Rules(actions.All(), read.Rules()...) {
		if scales || !strings.Contains(strings.Join(r.Resources, " "), "/scale") {
			rules = append(rules, r)
		}
	}
	roles := cp.Client.RbacV1().ClusterRoles()
	live, err := roles.Get(t.Context(), role, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	live.Rules = rules
	if _, err := roles.Update(t.Context(), live, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	mayScale(t, ns, scales)
}

// mayScale waits until the account of a namespace may scale, or may not.
func mayScale(t *testing.T, ns string, want bool) {
	t.Helper()
	lab.Eventually(t, "the permissions to be in force", func() (bool, error) {
		got, err := cp.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + ns + ":writer",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "update", Group: "apps", Resource: "deployments", Subresource: "scale", Namespace: ns},
		}}, metav1.CreateOptions{})
		return err == nil && got.Status.Allowed == want, err
	})
}

// TestFault_37_PermissionRevoked takes what the account may do, or the account, between
// plan and execution: nothing is written, and what was executed before is still replayed.
func TestFault_37_PermissionRevoked(t *testing.T) {
	t.Parallel()
	unbind := func(t *testing.T, ns, role string) {
		if err := cp.Client.RbacV1().ClusterRoleBindings().Delete(t.Context(), role, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		mayScale(t, ns, false)
	}
	for _, tc := range []struct {
		name   string
		revoke func(t *testing.T, ns, role string, cfg *rest.Config)
		want   string
		back   func(t *testing.T, ns, role string) // nil where it cannot be undone
	}{
		{"all of it", func(t *testing.T, ns, role string, _ *rest.Config) { unbind(t, ns, role) }, "forbidden", nil},
		{
			"the write alone", func(t *testing.T, ns, role string, _ *rest.Config) { grant(t, ns, role, false) }, "dry_run_failed",
			func(t *testing.T, ns, role string) { grant(t, ns, role, true) },
		},
		{"the token", func(t *testing.T, ns, _ string, cfg *rest.Config) {
			if err := cp.Client.CoreV1().ServiceAccounts(ns).Delete(t.Context(), "writer", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			c, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				t.Fatal(err)
			}
			lab.Eventually(t, "the token to be good no more", func() (bool, error) {
				_, err := c.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
				return apierrors.IsUnauthorized(err), err
			})
		}, "forbidden", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns, scale := harness.WebScale(t, cp)
			harness.Create(t, cp, ns, harness.Deployment("api").Replicas(2).Ready(2))
			cfg, role := account(t, ns)
			s := harness.Start(t, cp, harness.Options{Config: cfg, Args: quick})
			done := s.Plan("scale", harness.Of(ns, "deployment", "api").With("replicas", 3))
			first := wantOutcome(t, s.Must("scale", done), plan.Executed)
			args := s.Plan("scale", scale)
			tc.revoke(t, ns, role, cfg)
			s.Proxy.Reset()
			got := s.Must("scale", args)
			wantCode(t, got, tc.want)
			wantNoWrites(t, s)
			wantReplay(t, s, "scale", done, first)
			if tc.back != nil {
				tc.back(t, ns, role)
				wantOutcome(t, s.Must("scale", args), plan.Executed) // it consumed nothing
				return
			}
			if n := harness.Replicas(t, cp, ns, "web"); n != 2 {
				t.Errorf("%d replicas", n)
			}
		})
	}
}

// TestFault_37_RevokedUnderTheWrite takes the permission when the dry run has passed: a
// definite no, which is the result.
func TestFault_37_RevokedUnderTheWrite(t *testing.T) {
	t.Parallel()
	ns, scale := harness.WebScale(t, cp)
	cfg, role := account(t, ns)
	s := harness.Start(t, cp, harness.Options{Config: cfg, Args: quick})
	args := s.Plan("scale", scale)
	arrived, release := s.Proxy.Hold(isScale)
	go func() {
		defer release()
		<-arrived
		grant(t, ns, role, false)
	}()
	got := s.Must("scale", args)
	x := wantOutcome(t, got, plan.Failed)
	if !strings.Contains(got.Text, "403") {
		t.Errorf("it does not say 403: %s", got.Text)
	}
	wantReplay(t, s, "scale", args, x)
	if n := harness.Replicas(t, cp, ns, "web"); n != 2 {
		t.Errorf("%d replicas", n)
	}
}

// TestFault_39_RefusedByNow: what the API server would refuse by now is refused by the
// fresh dry run. Nothing is written, and once it is allowed again the plan still holds.
func TestFault_39_RefusedByNow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, action string
		args         func(t *testing.T, ns string) harness.Args
		forbid       func(t *testing.T, ns string)
		allow        func(t *testing.T, ns string)
	}{
		{
			"a quota", "cronjob_trigger",
			func(t *testing.T, ns string) harness.Args {
				tpl := harness.Template("mail")
				tpl.Spec.RestartPolicy = corev1.RestartPolicyNever
				if _, err := cp.Client.BatchV1().CronJobs(ns).Create(t.Context(), &batchv1.CronJob{
					ObjectMeta: metav1.ObjectMeta{Name: "mail"},
					Spec:       batchv1.CronJobSpec{Schedule: "0 0 31 2 *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: tpl}}},
				}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				return harness.Of(ns, "cronjob", "mail")
			},
			func(t *testing.T, ns string) {
				none := corev1.ResourceList{"count/jobs.batch": resource.MustParse("0")}
				q, err := cp.Client.CoreV1().ResourceQuotas(ns).Create(t.Context(), &corev1.ResourceQuota{
					ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				q.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
				if _, err := cp.Client.CoreV1().ResourceQuotas(ns).UpdateStatus(t.Context(), q, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				lab.Eventually(t, "the quota to be in force", func() (bool, error) { err := probeJob(t, ns); return apierrors.IsForbidden(err), err })
			},
			func(t *testing.T, ns string) {
				if err := cp.Client.CoreV1().ResourceQuotas(ns).Delete(t.Context(), "none", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				lab.Eventually(t, "the quota to be gone", func() (bool, error) { err := probeJob(t, ns); return err == nil, err })
			},
		},
		{
			"an admission policy", "scale",
			func(_ *testing.T, ns string) harness.Args {
				return harness.Of(ns, "deployment", "web").With("replicas", 3)
			},
			func(t *testing.T, ns string) {
				harness.Bind(t, cp, ns, &admissionv1.ValidatingAdmissionPolicy{
					ObjectMeta: metav1.ObjectMeta{Name: ns},
					Spec: admissionv1.ValidatingAdmissionPolicySpec{
						MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
							Operations: []admissionv1.OperationType{admissionv1.Update},
							Rule:       admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments", "deployments/scale"}},
						}}}},
						Validations: []admissionv1.Validation{{Expression: "false", Message: "frozen"}},
					},
				})
				lab.Eventually(t, "the policy to be in force", func() (bool, error) {
					err := probeUpdate(t, ns)
					return err != nil && strings.Contains(err.Error(), "frozen"), err
				})
			},
			func(t *testing.T, ns string) {
				if err := cp.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				lab.Eventually(t, "the policy to be gone", func() (bool, error) { err := probeUpdate(t, ns); return err == nil, err })
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns, _ := harness.WebScale(t, cp)
			s := start(t)
			args := s.Plan(tc.action, tc.args(t, ns))
			tc.forbid(t, ns)
			got := s.Must(tc.action, args)
			wantCode(t, got, "dry_run_failed")
			wantNoWrites(t, s)
			tc.allow(t, ns)
			wantOutcome(t, s.Must(tc.action, args), plan.Executed)
		})
	}
}

var dry = []string{metav1.DryRunAll}

// probeJob says whether a Job could be made.
func probeJob(t *testing.T, ns string) error {
	tpl := harness.Template("probe")
	tpl.Spec.RestartPolicy = corev1.RestartPolicyNever
	_, err := cp.Client.BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: batchv1.JobSpec{Template: tpl}}, metav1.CreateOptions{DryRun: dry})
	return err
}

// probeUpdate says whether the Deployment web could be updated.
func probeUpdate(t *testing.T, ns string) error {
	d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	d.Spec.MinReadySeconds++
	_, err = cp.Client.AppsV1().Deployments(ns).Update(t.Context(), d, metav1.UpdateOptions{DryRun: dry})
	return err
}

// budgets gives how many disruptions each budget of a namespace allows.
func budgets(t *testing.T, ns string) map[string]int32 {
	t.Helper()
	list, err := cp.Client.PolicyV1().PodDisruptionBudgets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int32{}
	for _, b := range list.Items {
		out[b.Name] = b.Status.DisruptionsAllowed
	}
	return out
}

// TestFault_40_BudgetSaysNo: an eviction that a budget refuses is one request, which
// nobody hides and repeats, and the answer says why.
func TestFault_40_BudgetSaysNo(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		budgets []harness.Object
		want    []string
	}{
		{"none allowed", []harness.Object{harness.Budget("web").Allows(0, 2)}, []string{"dry run failed (429)"}},
		{"not observed yet", []harness.Object{harness.Budget("web")}, []string{"dry run failed (429)"}},
		{"two of one pod", []harness.Object{harness.Budget("web").Allows(1, 2), also("web", harness.Budget("other")).Allows(1, 2)}, []string{"dry run failed (500)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns, _ := harness.WebScale(t, cp)
			harness.Create(t, cp, ns, tc.budgets...)
			was := budgets(t, ns)
			s := start(t)
			got := s.Must("plan_evict_pod", harness.Of(ns, "pod", harness.PodName("web", 0)))
			wantCode(t, got, "dry_run_failed")
			for _, want := range append(tc.want, "no confirm phrase was issued") {
				if !strings.Contains(got.Text, want) {
					t.Errorf("the refusal lacks %q: %s", want, got.Text)
				}
			}
			evictions := s.Proxy.Requests(func(r harness.Request) bool { return strings.HasSuffix(r.Path, "/eviction") })
			if len(evictions) != 1 {
				t.Errorf("%d requests, want 1: %+v", len(evictions), evictions)
			}
			if diff := cmp.Diff(was, budgets(t, ns)); diff != "" {
				t.Errorf("the budgets (-before +after):\n%s", diff)
			}
		})
	}
}

// also makes a budget about the pods of another label.
func also(app string, b *harness.BudgetBuilder) *harness.BudgetBuilder {
	b.Object.Spec.Selector = harness.Selector(app)
	return b
}

// TestFault_40_AnotherPodOfTheName replaces a pod between the intent and the last look: an
// eviction with the uid of before would burn the budget of the new one, so none is sent.
func TestFault_40_AnotherPodOfTheName(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.StatefulSet("db").Replicas(2).Ready(2), harness.Budget("db").Allows(1, 2))
	s := start(t)
	args := s.Plan("evict_pod", harness.Of(ns, "pod", "db-0"))
	var replaced atomic.Bool
	s.Proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.Path, "/pods/db-0") && journalHas(s.State, `"execute_intent"`) && !replaced.Swap(true) {
			replace(t, ns, "db-0")
		}
		return true
	})
	x := wantOutcome(t, s.Must("evict_pod", args), plan.Failed)
	if !replaced.Load() {
		t.Fatal("there was no last look")
	}
	wantNoWrites(t, s)
	if got := budgets(t, ns)["db"]; got != 1 {
		t.Errorf("the budget allows %d disruptions, want 1", got)
	}
	wantReplay(t, s, "evict_pod", args, x)
}

// replace puts another pod in the place of one.
func replace(t *testing.T, ns, name string) {
	pods := cp.Client.CoreV1().Pods(ns)
	p, err := pods.Get(t.Context(), name, metav1.GetOptions{})
	if err == nil {
		err = pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	}
	if err != nil {
		t.Error(err)
		return
	}
	harness.Create(t, cp, ns, harness.Pod(name).With(func(n *corev1.Pod) { n.Labels, n.OwnerReferences = p.Labels, p.OwnerReferences }))
}

// TestFault_41_NoWatch cuts every watch: the siblings are listed, the plan says so, and the
// target is read live all the same.
func TestFault_41_NoWatch(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(4).Ready(4))
	s := start(t)
	var cut atomic.Int32
	s.Proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
		if strings.Contains(r.Query, "watch=") {
			cut.Add(1)
			panic(http.ErrAbortHandler)
		}
		return true
	})
	type radius struct {
		Blast plan.Blast `json:"blast"`
	}
	down := func(n int) plan.Blast {
		t.Helper()
		got := s.Must("plan_scale", harness.Of(ns, "deployment", "web").With("replicas", n))
		if got.Field("confirm") == "" {
			t.Fatalf("no phrase: %s", got.Text)
		}
		return harness.Into[radius](t, got).Blast
	}
	if b := down(3); b.Pods != 1 || b.AtRisk.Ready != 4 || !strings.HasPrefix(b.Source, "live list") {
		t.Errorf("radius %+v, want 1 pod of 4 by a live list", b)
	}
	if cut.Load() == 0 {
		t.Error("no watch was asked for")
	}
	patchWeb(t, ns, `{"spec":{"replicas":6}}`)
	if got := s.Must("plan_scale", harness.Of(ns, "deployment", "web").With("replicas", 7)); !strings.Contains(got.Text, "from 6 to 7") {
		t.Errorf("the target is not live: %s", got.Text)
	}
}

// TestFault_41_TextNamesTheSource: a person reads where the pods are from, and how old
// that is.
func TestFault_41_TextNamesTheSource(t *testing.T) {
	t.Parallel()
	_, scale := harness.WebScale(t, cp)
	got := start(t).Must("plan_scale", scale.With("replicas", 1))
	b := harness.Into[struct {
		Blast plan.Blast `json:"blast"`
	}](t, got).Blast
	if b.Source == "" || !strings.Contains(got.Text, b.Source) {
		t.Errorf("the source %q is not in the text: %s", b.Source, got.Text)
	}
}

// TestFault_42_OtherManagers lets others write to the object between a write and the look
// at what became of it: so many that its mark is gone, or over its very field. The versions
// in between tell; where they may not be watched, nobody can.
func TestFault_42_OtherManagers(t *testing.T) {
	t.Parallel()
	many := func(change func(d *appsv1.Deployment, who string)) func(*testing.T, string) {
		return func(t *testing.T, ns string) {
			for i := range 12 {
				who := fmt.Sprint("manager-", i)
				d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
				if err == nil {
					change(d, who)
					_, err = cp.Client.AppsV1().Deployments(ns).Update(t.Context(), d, metav1.UpdateOptions{FieldManager: who})
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
	}
	labels := many(func(d *appsv1.Deployment, who string) { metav1.SetMetaDataLabel(&d.ObjectMeta, who, "x") })
	annotations := many(func(d *appsv1.Deployment, who string) { metav1.SetMetaDataAnnotation(&d.ObjectMeta, who, "x") })
	scaleTo := func(n int32) func(*testing.T, string) {
		return func(t *testing.T, ns string) {
			if _, err := cp.Client.AppsV1().Deployments(ns).UpdateScale(t.Context(), "web", &autoscalingv1.Scale{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: ns}, Spec: autoscalingv1.ScaleSpec{Replicas: n},
			}, metav1.UpdateOptions{FieldManager: "autoscaler"}); err != nil {
				t.Error(err)
			}
		}
	}
	both := func(f ...func(*testing.T, string)) func(*testing.T, string) {
		return func(t *testing.T, ns string) {
			for _, f := range f {
				f(t, ns)
			}
		}
	}
	for _, tc := range []struct {
		name   string
		commit bool
		others func(t *testing.T, ns string)
		watch  int // the code that a watch of the object is answered with; 0 is the API server's
		want   plan.Outcome
	}{
		{"twelve labels after the commit", true, labels, 0, plan.Executed},
		{"twelve labels instead of it", false, labels, 0, plan.Failed},
		{"twelve annotations after the commit", true, annotations, 0, plan.Executed},
		{"twelve annotations instead of it", false, annotations, 0, plan.Failed},
		{"overwritten after the commit", true, scaleTo(9), 0, plan.Executed},
		{"taken back after the commit", true, scaleTo(2), 0, plan.Executed},
		{"taken back after the commit, and twelve labels", true, both(scaleTo(2), labels), 0, plan.Executed},
		{"another value instead of it", false, scaleTo(9), 0, plan.Failed},
		{"another value and back instead of it", false, both(scaleTo(9), scaleTo(2)), 0, plan.Failed},
		{"taken back after the commit, and the versions are forgotten", true, scaleTo(2), http.StatusGone, plan.Indeterminate},
		{"another value and back instead of it, and they may not be seen", false, both(scaleTo(9), scaleTo(2)), http.StatusForbidden, plan.Indeterminate},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns, scale := harness.WebScale(t, cp)
			s := start(t)
			args := s.Plan("scale", scale)
			var hit atomic.Bool
			interfere := func(r *harness.Request) {
				if isScale(*r) && !hit.Swap(true) {
					tc.others(t, ns)
					panic(http.ErrAbortHandler)
				}
			}
			s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
				if tc.watch != 0 && strings.Contains(r.Query, "watch=true") && strings.HasSuffix(r.Path, "/deployments") {
					w.WriteHeader(tc.watch)
					return false
				}
				if !tc.commit {
					interfere(r)
				}
				return true
			})
			if tc.commit {
				s.Proxy.After(func(r *harness.Request, _ *http.Response) { interfere(r) })
			}
			wantOutcome(t, s.Must("scale", args), plan.Unknown)
			x := wantOutcome(t, s.Must("scale", args), tc.want)
			wantReplay(t, s, "scale", args, x)
			if w := s.Proxy.Writes(); len(w) != 1 {
				t.Errorf("%d writes, want 1: %+v", len(w), w)
			}
		})
	}
}

// TestFault_43_PolicyFileChanged takes a namespace out of the policy file and starts the
// program again: the phrase of before does nothing, and nothing is read for it.
func TestFault_43_PolicyFileChanged(t *testing.T) {
	t.Parallel()
	ns, scale := harness.WebScale(t, cp)
	state, policy := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "policy.yaml")
	serve := func(text string) *harness.Server {
		if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return harness.Start(t, cp, harness.Options{State: state, Args: append([]string{"--policy", policy}, quick...)})
	}
	args := serve("allow_namespaces: ["+ns+"]\n").Plan("scale", scale)
	for _, tc := range []struct{ name, text string }{
		{"not allowed any more", "allow_namespaces: [elsewhere]\n"},
		{"protected by now", "protect_namespaces: [" + ns + "]\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(tc.text)
			wantCode(t, s.Must("scale", args), "out_of_scope")
			if n := len(s.Proxy.Requests(nil)); n != 0 {
				t.Errorf("it sent %d requests", n)
			}
		})
	}
	wantOutcome(t, serve("allow_namespaces: ["+ns+"]\n").Must("scale", args), plan.Executed)
}
