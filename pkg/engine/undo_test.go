package engine

import (
	"strings"
	"testing"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// TestTakesBack: only what a plan changed is taken back, and only from the state that it
// wrote without the limits.
func TestTakesBack(t *testing.T) {
	node := plan.Target{Resource: "nodes", Name: "n1", UID: "u"}
	cordon := plan.Step{Verb: plan.Patch, Target: node, Changes: []plan.Change{{Field: "spec.unschedulable", Old: "false", New: "true"}}}
	evict := plan.Step{Verb: plan.Evict, Target: plan.Target{Resource: "pods", Namespace: "default", Name: "n1", UID: "p"}}
	recreated := node
	recreated.UID = "v"
	for name, tc := range map[string]struct {
		steps         []plan.Step
		target        plan.Target
		cluster       string
		unschedulable any
		wantRefused   string // "" passes
		wantExempt    bool
	}{
		"as it was written":           {[]plan.Step{cordon, evict}, node, "c", true, "", true},
		"changed again since":         {[]plan.Step{cordon, evict}, node, "c", nil, "", false},
		"it was so before":            {[]plan.Step{evict}, node, "c", true, "plan mf3q7x2ad5 did not change node n1", false},
		"another object of that name": {[]plan.Step{cordon}, recreated, "c", true, "is another object now", false},
		"on another cluster":          {[]plan.Step{cordon}, node, "d", true, "was executed on another cluster", false},
	} {
		t.Run(name, func(t *testing.T) {
			g := &passed{cluster: tc.cluster, Outcome: action.Outcome{Target: tc.target, Object: plan.Object{"spec": map[string]any{"unschedulable": tc.unschedulable}}}}
			err := g.takesBack(&plan.Plan{ID: "mf3q7x2ad5", Cluster: "c", Steps: tc.steps})
			switch {
			case tc.wantRefused != "":
				if !refusal.Is(err, refusal.PreconditionFailed) || !strings.Contains(err.Error(), tc.wantRefused) {
					t.Errorf("%v, want a refusal with %q", err, tc.wantRefused)
				}
			case err != nil:
				t.Error(err)
			case g.exempt(&plan.Plan{Undoes: "mf3q7x2ad5"}) != tc.wantExempt:
				t.Errorf("exempt %t, want %t", !tc.wantExempt, tc.wantExempt)
			case g.exempt(&plan.Plan{}):
				t.Error("a plan that takes nothing back is exempt")
			}
			again := &passed{cluster: tc.cluster, Outcome: g.Outcome}
			if err := again.takesBack(&plan.Plan{ID: "mf3q7x2ad5", Undoes: "bbbbbbbbbb", Cluster: "c", Steps: tc.steps}); err == nil && again.exempt(&plan.Plan{Undoes: "mf3q7x2ad5"}) {
				t.Error("what takes an undo back is exempt")
			}
		})
	}
}

// TestTakesBackARestart: an undo that puts the whole template back is exempt only as long as
// the restart is all that happened to it; one that goes elsewhere is refused.
func TestTakesBackARestart(t *testing.T) {
	const at = "spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]"
	web := plan.Target{Resource: "deployments", Namespace: "default", Name: "web", UID: "u"}
	live := func(image string, annotations map[string]any) plan.Object {
		template := map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}}, "spec": map[string]any{"image": image}}
		if annotations != nil {
			template["metadata"].(map[string]any)["annotations"] = annotations
		}
		return plan.Object{"spec": map[string]any{"template": template}}
	}
	restarted := map[string]any{"kubectl.kubernetes.io/restartedAt": "2026-11-30T12:00:00Z"}
	before := live("main:1", nil).Value("spec.template")
	for name, tc := range map[string]struct {
		live        plan.Object
		to          string // the template that the undo sets
		wantRefused bool
		wantExempt  bool
	}{
		"as the restart left it":      {live("main:1", restarted), before, false, true},
		"another image since":         {live("main:2", restarted), before, false, false},
		"another annotation since":    {live("main:1", map[string]any{"kubectl.kubernetes.io/restartedAt": "2026-11-30T12:00:00Z", "a": "b"}), before, false, false},
		"restarted again since":       {live("main:1", map[string]any{"kubectl.kubernetes.io/restartedAt": "2026-11-30T13:00:00Z"}), before, false, false},
		"the annotation is gone":      {live("main:1", nil), before, false, false},
		"it goes to another revision": {live("main:2", restarted), live("main:1", restarted).Value("spec.template"), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			old := plan.Step{Verb: plan.Patch, Target: web, Changes: []plan.Change{{Field: "spec.template", Old: before, New: before}, {Field: at, New: "2026-11-30T12:00:00Z"}}}
			back := plan.Step{Verb: plan.Patch, Target: web, Changes: []plan.Change{{Field: "spec.template", Old: tc.live.Value("spec.template"), New: tc.to}}}
			g := &passed{cluster: "c", Outcome: action.Outcome{Target: web, Object: tc.live, Proposals: []action.Proposal{{Step: back}}}}
			err := g.takesBack(&plan.Plan{ID: "mf3q7x2ad5", Cluster: "c", Steps: []plan.Step{old}})
			if (err != nil) != tc.wantRefused {
				t.Fatalf("refused: %v, want %t", err, tc.wantRefused)
			}
			if exempt := g.exempt(&plan.Plan{Undoes: "mf3q7x2ad5"}); err == nil && exempt != tc.wantExempt {
				t.Errorf("exempt %t, want %t: %q", exempt, tc.wantExempt, g.warnings)
			}
		})
	}
}
