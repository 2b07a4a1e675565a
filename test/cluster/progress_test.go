package cluster

import (
	"encoding/json"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// TestProgress: a call that asked for it is told how far the rollout is, before its
// answer and with its own token.
func TestProgress(t *testing.T) {
	for _, era := range []stdio.Era{stdio.Legacy, stdio.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ns := cp.Namespace(t)
			deployment(t, ns, "web", 1, func(d *appsv1.Deployment) { neverReady(&d.Spec.Template) })
			s := harness.Start(t, cp, harness.Options{Era: era, Args: append(slices.Clone(wide), "--verify-timeout", "2s")})
			args := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 2))
			if _, err := s.Request("tools/call", map[string]any{"name": "scale", "arguments": args, "_meta": map[string]any{"progressToken": "mine"}}); err != nil {
				t.Fatal(err)
			}
			var last float64
			for _, n := range s.Notifications() {
				var p struct {
					Token    string  `json:"progressToken"`
					Progress float64 `json:"progress"`
					Message  string  `json:"message"`
				}
				if n.Method != "notifications/progress" {
					continue
				}
				if err := json.Unmarshal(n.Params, &p); err != nil || p.Token != "mine" || p.Progress <= last || p.Message == "" {
					t.Errorf("progress %s, want the call's token, a rising number and words (%v)", n.Params, err)
				}
				last = p.Progress
			}
			if last == 0 {
				t.Error("there was no progress notification")
			}
		})
	}
}
