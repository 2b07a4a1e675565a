package replicas

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// TestRatesShared confirms many plans at once on three replicas: together they execute as
// many as one may.
func TestRatesShared(t *testing.T) {
	l := newLedger(t)
	const limit, plans = 4, 12
	var servers []*harness.Server
	for range 3 {
		servers = append(servers, l.start("--writes-per-minute", fmt.Sprint(limit)))
	}
	ns := cp.Namespace(t)
	calls := make([]harness.Args, plans)
	for i := range calls {
		name := fmt.Sprintf("web-%d", i)
		harness.Create(t, cp, ns, harness.Deployment(name).Replicas(2).Ready(2))
		calls[i] = servers[i%3].Plan("scale", harness.Of(ns, "deployment", name).With("replicas", 3))
	}
	var mu sync.Mutex
	count := map[string]int{}
	var wg sync.WaitGroup
	for i, args := range calls {
		wg.Go(func() {
			got := servers[(i+1)%3].Must("scale", args)
			mu.Lock()
			defer mu.Unlock()
			count[harness.Code(got)+got.Field("outcome")]++
		})
	}
	wg.Wait()
	if count["EXECUTED"] != limit || count["rate_limited"] != plans-limit {
		t.Errorf("%v, want %d executed and the rest rate_limited", count, limit)
	}
	if n := scales(servers...); n != limit {
		t.Errorf("%d scales were sent", n)
	}
}

// TestPlanRateShared plans on one replica what another one has used up.
func TestPlanRateShared(t *testing.T) {
	l := newLedger(t)
	_, scale := harness.WebScale(t, cp)
	a, b := l.start("--plans-per-minute", "2"), l.start("--plans-per-minute", "2")
	a.Plan("scale", scale)
	if got := a.Must("plan_scale", scale.With("deployment", "db")); harness.Code(got) != "not_found" {
		t.Fatalf("planned: %s", got.Text)
	}
	if got := b.Must("plan_scale", scale); harness.Code(got) != "rate_limited" {
		t.Errorf("code %q: %s", harness.Code(got), got.Text)
	}
}

// TestCapacityShared halves a Deployment on one replica, and again on another: the second
// goes by the capacity that the first one saw.
func TestCapacityShared(t *testing.T) {
	l := newLedger(t)
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(4).Ready(4))
	harness.Converge(t, cp, ns)
	flags := []string{"--max-blast-percent", "50", "--irreversible", "human"}
	a, b := l.start(flags...), l.start(flags...)
	web := harness.Of(ns, "deployment", "web")
	if x := harness.Into[harness.Execution](t, a.Do("scale", web.With("replicas", 2))); x.Outcome != plan.Executed {
		t.Fatalf("outcome %q", x.Outcome)
	}
	lab.Eventually(t, "two ready pods", func() (bool, error) {
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && d.Status.ReadyReplicas == 2, err
	})
	if got := b.Must("plan_scale", web.With("replicas", 1)); harness.Code(got) != "blast_limit" {
		t.Errorf("code %q: %s", harness.Code(got), got.Text)
	}
}

// TestClean: what nobody will ask for any more goes, and what has no result stays.
func TestClean(t *testing.T) {
	for _, tc := range []struct {
		name  string
		later time.Duration
		stay  []cluster.State
	}{
		{"now", 0, []cluster.State{cluster.Planned, cluster.Claimed, cluster.Unknown, cluster.Executed, cluster.Failed, cluster.Indeterminate, cluster.Expired, cluster.Stale}},
		{"after a day", 25 * time.Hour, []cluster.State{cluster.Claimed, cluster.Unknown, cluster.Executed, cluster.Failed, cluster.Indeterminate}},
		{"after two days", 49 * time.Hour, []cluster.State{cluster.Claimed, cluster.Unknown}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLedger(t)
			n := 0
			for s := range follows {
				n++
				l.raw(fmt.Sprintf("c%d", n), s)
			}
			c := cluster.New(cluster.Options{
				Client: l.client(serverAccount(t)), Inst: "aaaa", Now: func() time.Time { return time.Now().Add(tc.later) }, Log: slog.New(slog.DiscardHandler),
			})
			if err := c.Clean(t.Context()); err != nil {
				t.Fatal(err)
			}
			list, err := objects(l.admin).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			left := map[cluster.State]bool{}
			for _, w := range list.Items {
				left[w.Status.State] = true
			}
			for s := range follows {
				want := false
				for _, stays := range tc.stay {
					want = want || s == stays
				}
				if left[s] != want {
					t.Errorf("%s: there is %t, want %t", s, left[s], want)
				}
			}
		})
	}
}

// TestApproval: an approval counts that its approver made himself, who may approve and did
// not plan.
func TestApproval(t *testing.T) {
	l := newLedger(t)
	policy, binding := cluster.ApprovalPolicy()
	admission := cp.Client.AdmissionregistrationV1()
	if _, err := admission.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admission.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := l.start()
	ns, scale := harness.WebScale(t, cp)
	s.Plan("scale", scale)
	id := l.one().Name
	p, err := cluster.Recorded(t.Context(), l.client(cp.Config), id)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.New(cluster.Options{Client: l.client(serverAccount(t)), Keys: l.ring(), Inst: "aaaa", Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	if who, err := c.Approver(t.Context(), p, "alice"); err == nil {
		t.Errorf("approved by %q, and there is no approval", who)
	}
	creates := rbacv1.PolicyRule{APIGroups: []string{"kubewrite.dev"}, Resources: []string{"approvals"}, Verbs: []string{"create", "delete"}}
	as := func(name string, rules ...rbacv1.PolicyRule) (*rest.Config, string) {
		cfg, err := cp.ServiceAccount(t.Context(), l.namespace, name, rules)
		if err != nil {
			t.Fatal(err)
		}
		return cfg, "system:serviceaccount:" + l.namespace + ":" + name
	}
	alice, aliceName := as("alice", creates)
	bob, bobName := as("bob", creates)
	if _, err := cp.Client.RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "approve"}, Rules: []rbacv1.PolicyRule{kube.ActionRule("approve")},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cp.Client.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "approve"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "approve"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: l.namespace, Name: "alice"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create := func(cfg *rest.Config, spec cluster.ApprovalSpec) error {
		spec.Plan = id
		_, err := approvals(l.client(cfg)).Create(t.Context(), &cluster.Approval{
			TypeMeta: metav1.TypeMeta{APIVersion: "kubewrite.dev/v1alpha1", Kind: "Approval"}, ObjectMeta: metav1.ObjectMeta{Name: id}, Spec: spec,
		}, metav1.CreateOptions{})
		return err
	}
	approve := func(cfg *rest.Config, named string) error {
		return create(cfg, cluster.ApprovalSpec{Approver: named, Action: "scale", Namespace: ns})
	}
	lab.Eventually(t, "the policy to hold", func() (bool, error) {
		err := approve(bob, bobName)
		if err == nil {
			err = approvals(l.client(bob)).Delete(t.Context(), id, metav1.DeleteOptions{})
			return false, err
		}
		return apierrors.IsInvalid(err) || apierrors.IsForbidden(err), err
	})
	if err := approve(bob, aliceName); err == nil {
		t.Error("bob approves in the name of alice")
	}
	if err := approve(alice, bobName); err == nil {
		t.Error("alice approves in the name of bob")
	}
	for _, elsewhere := range []string{"", "default"} {
		if err := create(alice, cluster.ApprovalSpec{Approver: aliceName, Action: "scale", Namespace: elsewhere}); err == nil {
			t.Errorf("alice approves in namespace %q", elsewhere)
		}
	}
	// What she may, and is not what was planned.
	if err := create(alice, cluster.ApprovalSpec{Approver: aliceName, Action: "drain", Namespace: ns}); err != nil {
		t.Fatal(err)
	}
	if who, err := c.Approver(t.Context(), p); err == nil {
		t.Errorf("approved by %q for another action", who)
	}
	if err := approvals(l.client(alice)).Delete(t.Context(), id, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Approve(t.Context(), l.client(alice), p, aliceName); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		planned string
		want    string
	}{{"os:somebody", aliceName}, {aliceName, ""}} {
		who, err := c.Approver(t.Context(), p, "os", tc.planned)
		if who != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("planned by %s: approved by %q, %v; want %q", tc.planned, who, err, tc.want)
		}
	}
}
