package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// TestDrift is the drift table: what moves between the plan and its execution, and what
// becomes of the plan. What a plan rests on is the uid and the old sides of its changes,
// never the bare generation or resourceVersion.
func TestDrift(t *testing.T) {
	patch := func(body string, sub ...string) func(*testing.T, string) {
		return func(t *testing.T, ns string) {
			if _, err := cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(body), metav1.PatchOptions{}, sub...); err != nil {
				t.Fatal(err)
			}
		}
	}
	replicas := func(all ...int) func(*testing.T, string) {
		return func(t *testing.T, ns string) {
			for _, n := range all {
				patch(fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))(t, ns)
			}
		}
	}
	recreate := func(t *testing.T, ns string) {
		if err := cp.Client.AppsV1().Deployments(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, "the old object's end", func() (bool, error) {
			_, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
			return err != nil, nil
		})
		deployment(t, ns, "web", 3)
	}
	terminating := func(t *testing.T, ns string) {
		patch(`{"metadata":{"finalizers":["example.com/held"]}}`)(t, ns)
		if err := cp.Client.AppsV1().Deployments(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, _ = cp.Client.AppsV1().Deployments(ns).Patch(context.Background(), "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		})
	}
	namespace := func(t *testing.T, ns string) {
		patch(`{"metadata":{"finalizers":["example.com/held"]}}`)(t, ns)
		if err := cp.Client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name     string
		action   string
		move     func(*testing.T, string)
		wantCode string // "" is executed
		wantText string
	}{
		{"replicas", "scale", replicas(5), "stale", "spec.replicas"},
		{"already so", "scale", replicas(4), "stale", "it is so already"},
		{"recreated", "scale", recreate, "stale", "another object"},
		{"labels only", "scale", patch(`{"metadata":{"labels":{"team":"a"}}}`), "", ""},
		{"annotations only", "scale", patch(`{"metadata":{"annotations":{"note":"a"}}}`), "", ""},
		{"status only", "scale", patch(`{"status":{"collisionCount":1}}`, "status"), "", ""},
		{"changed back", "scale", replicas(5, 3), "", ""},
		{"template, of no matter to a scale", "scale", patch(`{"spec":{"minReadySeconds":0,"template":{"metadata":{"annotations":{"x":"y"}}}}}`), "", ""},
		{"terminating", "scale", terminating, "terminating", "terminating"},
		{"terminating namespace", "scale", namespace, "terminating", "terminating"},
		{"template", "rollout_restart", patch(`{"spec":{"template":{"metadata":{"annotations":{"x":"y"}}}}}`), "stale", "spec.template"},
		{"paused", "rollout_restart", patch(`{"spec":{"paused":true}}`), "paused", "paused"},
		{"replicas, of no matter to a restart", "rollout_restart", replicas(4), "", ""},
		{"annotations only, restart", "rollout_restart", patch(`{"metadata":{"annotations":{"note":"a"}}}`), "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns := cp.Namespace(t)
			deployment(t, ns, "web", 3)
			s := start(t, wide...)
			args := of(ns, "deployment", "web")
			if tc.action == "scale" {
				args = args.With("replicas", 4)
			}
			confirmed := s.Plan(tc.action, args)
			s.Proxy.Reset()
			tc.move(t, ns)
			got := s.Must(tc.action, confirmed)
			if tc.wantCode == "" {
				if x := harness.Into[execution](t, got); x.Outcome != plan.Executed {
					t.Errorf("outcome %q, want EXECUTED: %s", x.Outcome, got.Text)
				}
				return
			}
			if harness.Code(got) != tc.wantCode || !strings.Contains(got.Text, tc.wantText) {
				t.Errorf("code %q, want %q and %q in: %s", harness.Code(got), tc.wantCode, tc.wantText, got.Text)
			}
			if w := s.Proxy.Writes(); len(w) > 0 {
				t.Errorf("a refused call wrote: %+v", w)
			}
		})
	}
}
