package integration

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestUndo takes executed plans back: planned and confirmed as everything is, exempt from
// blast limit and cap, and bound to the plan that it undoes.
func TestUndo(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(8).Ready(8), harness.Pod("loner"))
	harness.Converge(t, cp, ns)
	s := start(t, "--max-replicas", "6", "--writes-per-minute", "100", "--verify-timeout", "1s")
	replicas := func(want int32) {
		t.Helper()
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil || *d.Spec.Replicas != want {
			t.Errorf("replicas %d (%v), want %d", *d.Spec.Replicas, err, want)
		}
	}
	web := of(ns, "deployment", "web")
	open := s.Plan("scale", web.With("replicas", 5))
	down := s.Plan("scale", web.With("replicas", 6))
	done := harness.Into[execution](t, s.Must("scale", down))
	replicas(6)
	args := harness.Args{"plan": done.Plan}

	p := s.Must("plan_undo", args) // to 8, which is over the cap
	got := harness.Into[struct {
		planned
		Summary string
		Next    struct{ Tool string }
	}](t, p)
	if !strings.HasPrefix(got.Summary, "undo "+done.Plan+": scale deployment "+ns+"/web from 6 to 8 on ") || got.Next.Tool != "undo" {
		t.Fatalf("%s", p.Text)
	}
	confirmed := args.With("confirm", got.Confirm).With("reason", "a test")
	for _, tc := range []struct {
		name, tool string
		args       harness.Args
		want       string
	}{
		{"the phrase of an undo in its action", "scale", web.With("replicas", 8).With("confirm", got.Confirm).With("reason", "a test"), "invalid_arguments"}, // over the maximum
		{"the phrase of an undo in its action, within the maximum", "scale", web.With("replicas", 6).With("confirm", got.Confirm).With("reason", "a test"), "wrong_arguments"},
		{"the phrase of a scale in undo", "undo", confirmed.With("confirm", open["confirm"]), "wrong_arguments"},
		{"of another plan", "undo", confirmed.With("plan", got.Plan), "wrong_arguments"},
		{"a guess", "undo", confirmed.With("confirm", got.Confirm+"x"), "unknown_phrase"},
		{"without a reason", "undo", args.With("confirm", got.Confirm), "invalid_arguments"},
		{"of a plan that was not executed", "plan_undo", harness.Args{"plan": got.Plan}, "precondition_failed"},
		{"of no plan", "plan_undo", harness.Args{"plan": "aaaaaaaaaa"}, "not_found"},
	} {
		if no := s.Must(tc.tool, tc.args); harness.Code(no) != tc.want {
			t.Errorf("%s: want %s: %s", tc.name, tc.want, no.Text)
		}
	}
	replicas(6)
	back := harness.Into[execution](t, s.Must("undo", confirmed))
	if back.Outcome != plan.Executed {
		t.Fatalf("%+v", back)
	}
	replicas(8)
	if again := harness.Into[execution](t, s.Must("undo", confirmed)); !again.Replayed || string(again.Result) != string(back.Result) {
		t.Errorf("the second call: %+v", again)
	}

	t.Run("of an undo", func(t *testing.T) {
		forth := s.Must("plan_undo", harness.Args{"plan": back.Plan})
		if !strings.Contains(forth.Text, "from 8 to 6") {
			t.Errorf("%s", forth.Text)
		}
	})
	t.Run("changed since", func(t *testing.T) {
		setReplicas(t, ns, "web", 3)
		if no := s.Must("plan_undo", args); harness.Code(no) != "cap_exceeded" || !strings.Contains(no.Text, "not exempt") { // to 8, which was right from 6 alone
			t.Errorf("%s", no.Text)
		}
		moved := s.Must("plan_undo", harness.Args{"plan": back.Plan}) // to 6
		if moved.Field("confirm") == "" || !strings.Contains(moved.Text, "changed again since: spec.replicas is 3 now, not 8") {
			t.Errorf("%s", moved.Text)
		}
	})
	t.Run("recreated", func(t *testing.T) {
		if err := cp.Client.AppsV1().Deployments(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		harness.Create(t, cp, ns, harness.Deployment("web").Replicas(6))
		if no := s.Must("plan_undo", args); harness.Code(no) != "precondition_failed" || !strings.Contains(no.Text, "another object") {
			t.Errorf("%s", no.Text)
		}
	})
}

// TestUndoOverTheLimit: a scale-up that would be too much to take back by a plan of its
// own is taken back all the same; what has no undo says so in words.
func TestUndoOverTheLimit(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2), harness.Deployment("api").Replicas(3).Ready(3))
	harness.Converge(t, cp, ns)
	s := start(t, "--writes-per-minute", "100", "--verify-timeout", "1s")
	up := harness.Into[execution](t, s.Do("scale", of(ns, "deployment", "web").With("replicas", 9)))
	patchAs(t, "deployments", ns, "web", `{"status":{"observedGeneration":1000,"replicas":9,"updatedReplicas":9,"readyReplicas":9,"availableReplicas":9,"conditions":[{"type":"Progressing","status":"True","reason":"NewReplicaSetAvailable"}]}}`, "status")
	if no := s.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 2)); harness.Code(no) != "blast_limit" {
		t.Errorf("a plan of its own: %s", no.Text)
	}
	if back := s.Must("plan_undo", harness.Args{"plan": up.Plan}); back.Field("confirm") == "" {
		t.Errorf("the undo: %s", back.Text)
	}
	setReplicas(t, ns, "web", 40) // somebody else's
	patchAs(t, "deployments", ns, "web", `{"status":{"observedGeneration":1000,"replicas":40,"updatedReplicas":40,"readyReplicas":40,"availableReplicas":40,"conditions":[{"type":"Progressing","status":"True","reason":"NewReplicaSetAvailable"}]}}`, "status")
	if no := s.Must("plan_undo", harness.Args{"plan": up.Plan}); harness.Code(no) != "blast_limit" || !strings.Contains(no.Text, "not exempt") {
		t.Errorf("the undo, from 40 that others made of it: %s", no.Text)
	}
	deleted := harness.Into[execution](t, s.Do("delete_pod", of(ns, "pod", harness.PodName("api", 0))))
	if no := s.Must("plan_undo", harness.Args{"plan": deleted.Plan}); harness.Code(no) != "precondition_failed" || !strings.Contains(no.Text, "no call that takes plan") {
		t.Errorf("of a deletion: %s", no.Text)
	}
}
