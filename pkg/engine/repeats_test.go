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
	call := func(raw string) string {
		other := Principal{Kind: "http", Name: "bob"}
		for _, theirs := range []string{raw, "theirs"} {
			r.mark(Call{Tool: "plan_scale", Principal: other, Raw: json.RawMessage(theirs)}, no)
		}
		return r.mark(Call{Tool: "plan_scale", Raw: json.RawMessage(raw)}, no).Error()
	}
	for i, tc := range []struct {
		raw      string
		wantSaid bool
	}{{"1", false}, {"1", false}, {"1", true}, {"1", true}, {"2", false}, {"1", false}, {"1", false}, {"1", true}} {
		if said := strings.Contains(call(tc.raw), "times in a row"); said != tc.wantSaid {
			t.Errorf("call %d: said %t, want %t", i, said, tc.wantSaid)
		}
	}
	if no.Message != "namespace x is protected" {
		t.Errorf("the refusal itself was changed: %q", no.Message)
	}
}
