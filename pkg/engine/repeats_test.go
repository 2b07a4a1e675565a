package engine

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// TestRepeats: the third identical refused call in a row says so and names another next
// step; any other call between starts anew, and what others call does not count.
func TestRepeats(t *testing.T) {
	var r repeats
	no := refusal.New(refusal.OutOfScope, "ask the operator", "namespace x is protected")
	other := refusal.New(refusal.RateLimited, "wait", "too many")
	theirs := Call{Tool: "plan_scale", Principal: Principal{Kind: "http", Name: "bob"}, Raw: json.RawMessage("theirs")}
	for i, tc := range []struct {
		raw      string
		refused  *refusal.Refusal // nil: it passes
		wantSaid bool
	}{
		{"1", no, false}, {"1", no, false}, {"1", no, true}, {"1", no, true},
		{"2", no, false}, {"1", no, false}, {"1", no, false}, {"1", no, true},
		{"2", nil, false}, {"1", no, false}, {"1", no, false},
		{"1", other, false}, {"1", other, false}, {"1", other, true}, {"1", no, false},
	} {
		c := Call{Tool: "plan_scale", Raw: json.RawMessage(tc.raw)}
		r.begins(c)
		if tc.refused == nil {
			continue
		}
		r.begins(theirs) // another caller's calls do not come between
		r.mark(theirs, no)
		got := r.mark(c, tc.refused)
		if said := strings.Contains(got.Error(), "times in a row"); said != tc.wantSaid || said == (got.Hint == tc.refused.Hint) {
			t.Errorf("call %d: said %t, want %t; hint %q", i, said, tc.wantSaid, got.Hint)
		}
	}
	if no.Message != "namespace x is protected" {
		t.Errorf("the refusal itself was changed: %q", no.Message)
	}
}
