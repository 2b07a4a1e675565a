package integration

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// TestRepeatedRefusals: whatever tool it is, the third identical refused call in a row
// says so and names another next step. Another caller's calls on the same journal, and
// calls between that pass, are no part of the row.
func TestRepeatedRefusals(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	state := filepath.Join(t.TempDir(), "state")
	s, other := harness.Start(t, cp, harness.Options{State: state}), harness.Start(t, cp, harness.Options{State: state})
	web := of(ns, "deployment", "web")
	confirmed := func(a harness.Args) harness.Args { return a.With("confirm", "yes").With("reason", "a test") }
	const step = "do not send it again: tell the person what was refused and why"
	told := func(got stdio.Tool) bool {
		if got.Field("code") == "" {
			t.Fatalf("not refused: %s", got.Text)
		}
		said := strings.Contains(got.Field("message"), "the same refused call, ") && strings.Contains(got.Text, "the same refused call, ")
		if hint := strings.HasPrefix(got.Field("hint"), step); hint != said {
			t.Errorf("said %t, another step %t: %s", said, hint, got.Text)
		}
		return said
	}
	for tool, args := range map[string]harness.Args{
		"plan_scale": web.With("replicas", 0), "scale": confirmed(web.With("replicas", 3)), "write_status": {"plan": "aaaaaaaaaa"},
		"plan_undo": {"plan": "aaaaaaaaaa"}, "undo": confirmed(harness.Args{"plan": "aaaaaaaaaa"}), "plan_drain": {"node": "*"},
	} {
		t.Run(tool, func(t *testing.T) {
			for i, wantTold := range []bool{false, false, true, true} {
				if got := s.Must(tool, args); told(got) != wantTold {
					t.Errorf("call %d: told %t, want %t: %s", i+1, !wantTold, wantTold, got.Text)
				}
			}
			if got := other.Must(tool, args); told(got) {
				t.Errorf("another caller's first: %s", got.Text)
			}
			s.Plan("scale", web.With("replicas", 3))
			if got := s.Must(tool, args); told(got) {
				t.Errorf("the first after one that passed: %s", got.Text)
			}
		})
	}
}
