package http

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// TestTwoCallers: one may plan and one may write, both at once and in both eras. Neither
// ever sees or uses what is the other's.
func TestTwoCallers(t *testing.T) {
	p := start(t, options{cfg: account(t), flags: append([]string{"--requests-per-second", "1000"}, harness.Wide...)})
	_, planner := caller(t, may("plan", "scale"))
	_, writer := caller(t, may("plan,write", "scale"))
	var all sync.WaitGroup
	for _, era := range eras {
		for token, want := range map[string][]string{planner: {"plan_scale"}, writer: {"plan_scale", "scale"}} {
			_, args := harness.Web(t, cp)
			c, other := p.connect(era, token), p.connect(era, writer)
			theirs := other.plan("scale", args.With("replicas", 3))
			all.Go(func() {
				for i := range 20 {
					got, err := c.tools()
					if d := cmp.Diff(want, got); d != "" || err != nil {
						t.Errorf("%s: the tools (%v) (-want +got):\n%s", era, err, d)
						return
					}
					planned, err := c.try("plan_scale", args.With("replicas", 3+i))
					if err != nil || planned.Field("confirm") == "" {
						t.Errorf("%s: %v: no phrase in %s", era, err, planned.Text)
						return
					}
					if token == writer {
						continue
					}
					for _, a := range []harness.Args{args.With("replicas", 3+i).With("confirm", planned.Field("confirm")).With("reason", "mine"), theirs} {
						if done, err := c.try("scale", a); err != nil || done.Code != -32602 {
							t.Errorf("%s: a caller that may plan executed: %v %s", era, err, done.Text)
						}
					}
				}
			})
		}
	}
	all.Wait()
	for _, l := range harness.Lines(t, p.state) {
		if l.Tool == "scale" {
			t.Errorf("a line of a write: %s %s", l.Event, l.Output)
		}
		if l.Event == "plan" && (l.Principal == nil || l.Principal.Kind != "http" || !strings.HasPrefix(l.Principal.Name, "system:serviceaccount:t-") || l.Record.Principal != l.Principal.String()) {
			t.Errorf("plan %s is of %+v, its record of %s", l.Plan, l.Principal, l.Record.Principal)
		}
	}
}

// TestNamespaces: a right in one namespace makes a tool exist where that namespace is
// named, and is good there and nowhere else.
func TestNamespaces(t *testing.T) {
	ns, args := harness.Web(t, cp)
	other, elsewhere := harness.Web(t, cp)
	p := start(t, options{cfg: account(t), flags: []string{"--allow-namespaces", ns + "," + other, "--requests-per-second", "1000", "--plans-per-minute", "10000"}})
	user, token := caller(t)
	account, _, _ := strings.Cut(strings.TrimPrefix(user, "system:serviceaccount:"), ":")
	grant := func(ns, name, verbs string) {
		bind(t, ns, name, may(verbs, "scale"), rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: account, Name: "caller"})
	}
	grant(ns, "scalers", "plan,write")
	c := p.connect(stdio.Modern, token)
	lab.Eventually(t, "the role", func() (bool, error) {
		got, err := c.tools()
		return slices.Equal(got, []string{"plan_scale", "scale"}), err
	})
	if got := c.call("scale", c.plan("scale", args.With("replicas", 3))); got.Field("outcome") != "EXECUTED" {
		t.Errorf("in its namespace: %s", got.Text)
	}
	got := c.call("plan_scale", elsewhere.With("replicas", 3))
	if harness.Code(got) != "forbidden" {
		t.Errorf("in another namespace: %s", got.Text)
	}
	harness.Tells(t, got, "you may not plan scale in namespace "+other, "verb plan on actions.kubewrite.dev, name scale")
	// What is not there is refused in the same words: nothing of the namespace was read.
	absent := c.call("plan_scale", harness.Of(other, "deployment", "no-such").With("replicas", 3))
	if d := cmp.Diff(got.Text, absent.Text); d != "" {
		t.Errorf("there and absent are told apart:\n%s", d)
	}
	grant(other, "planners", "plan")
	var confirmed harness.Args
	lab.Eventually(t, "the other role", func() (bool, error) {
		got, err := c.try("plan_scale", elsewhere.With("replicas", 3))
		confirmed = elsewhere.With("replicas", 3).With("confirm", got.Field("confirm")).With("reason", "a test")
		return got.Field("confirm") != "", err
	})
	got = c.call("scale", confirmed)
	if harness.Code(got) != "forbidden" {
		t.Errorf("a write where it may plan: %s", got.Text)
	}
	harness.Tells(t, got, "you may not write scale in namespace "+other)
}

// TestRightsAreTakenBack: who may write no more when the phrase comes, does not write.
func TestRightsAreTakenBack(t *testing.T) {
	p := start(t, options{cfg: account(t), flags: []string{"--requests-per-second", "1000"}})
	user, token := caller(t, may("plan,write"))
	_, args := harness.Web(t, cp)
	c := p.connect(stdio.Modern, token)
	confirmed := c.plan("scale", args.With("replicas", 3))
	name := strings.TrimPrefix(user, "system:serviceaccount:")
	if err := cp.Client.RbacV1().ClusterRoleBindings().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the tools to be gone", func() (bool, error) {
		got, err := c.tools()
		return len(got) == 0, err
	})
	if got := c.call("scale", confirmed); got.Code != -32602 {
		t.Errorf("executed: %s", got.Text)
	}
}

// TestTwoReaders: two callers read at once, each in its own namespace and in both eras. What
// is the other's, and what is nobody's, is refused in the same words for what is there and
// for what is not; a list over all holds nothing of the other's.
func TestTwoReaders(t *testing.T) {
	t.Parallel()
	ours, _ := harness.Web(t, cp)
	theirs, _ := harness.Web(t, cp)
	nobodys, _ := harness.Web(t, cp)
	p := start(t, options{cfg: account(t), flags: []string{"--allow-namespaces", strings.Join([]string{ours, theirs, nobodys}, ","), "--requests-per-second", "1000", "--plans-per-minute", "10000"}})
	read := rbacv1.PolicyRule{APIGroups: []string{"kubewrite.dev"}, Resources: []string{"actions"}, Verbs: []string{"read"}}
	reader := func(ns string) string {
		user, token := caller(t)
		of, _, _ := strings.Cut(strings.TrimPrefix(user, "system:serviceaccount:"), ":")
		bind(t, ns, "readers", read, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: of, Name: "caller"})
		c := p.connect(stdio.Modern, token)
		lab.Eventually(t, "the right to read", func() (bool, error) {
			tools, err := c.tools()
			return slices.Contains(tools, "list_workloads") && !slices.Contains(tools, "plan_scale"), err
		})
		return token
	}
	var all sync.WaitGroup
	for own, token := range map[string]string{ours: reader(ours), theirs: reader(theirs)} {
		for _, era := range eras {
			c := p.connect(era, token)
			all.Go(func() {
				for range 10 {
					got, err := c.try("list_workloads", harness.Args{"namespace": own})
					if err != nil || got.IsError || !strings.Contains(got.Text, "web") {
						t.Errorf("%s: in its own namespace: %v %s", era, err, got.Text)
					}
					got, err = c.try("list_workloads", harness.Args{})
					if err != nil || got.IsError || !strings.Contains(got.Text, own) {
						t.Errorf("%s: over all: %v %s", era, err, got.Text)
					}
					for _, other := range []string{ours, theirs, nobodys} {
						if other == own {
							continue
						}
						if strings.Contains(got.Text, other) {
							t.Errorf("%s: a list over all holds something of %s: %s", era, other, got.Text)
						}
						there, err := c.try("get_workload", harness.Of(other, "deployment", "web"))
						absent, err2 := c.try("get_workload", harness.Of(other, "deployment", "no-such"))
						if err != nil || err2 != nil || harness.Code(there) != "forbidden" || there.Text != absent.Text {
							t.Errorf("%s: in another's namespace: %v %v %s %s", era, err, err2, there.Text, absent.Text)
						}
					}
				}
			})
		}
	}
	all.Wait()
}
