package integration

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/example"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestExample: the action of the guide plans, executes, is taken back, and refuses a value
// that may not stand in a phrase, with no other place changed.
func TestExample(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(1).Ready(1))
	s := harness.Start(t, cp, harness.Options{Actions: []*action.Action{example.SetOwner}, Args: []string{"--verify-timeout", "1s"}})
	web := of(ns, "deployment", "web")
	owner := func() string {
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return d.Annotations["example.com/owner"]
	}
	for _, team := range []string{"shop", "search"} {
		if got := s.Do("set_owner", web.With("team", team)); harness.Into[execution](t, got).Outcome != plan.Executed || owner() != team {
			t.Fatalf("the owner is %q: %s", owner(), got.Text)
		}
	}
	last := s.Do("set_owner", web.With("team", "infra"))
	if got := s.Do("undo", harness.Args{"plan": last.Field("plan")}); owner() != "search" {
		t.Errorf("taken back, the owner is %q: %s", owner(), got.Text)
	}
	if got := s.Must("plan_set_owner", web.With("team", "search")); got.Field("status") != "no change" {
		t.Errorf("so already: %s", got.Text)
	}
	if got := s.Must("plan_set_owner", web.With("team", "shop; delete")); harness.Code(got) != "invalid_arguments" {
		t.Errorf("what may not stand in a phrase: %s", got.Text)
	}
}
