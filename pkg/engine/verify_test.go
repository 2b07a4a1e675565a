package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

func TestHold(t *testing.T) {
	good := plan.Verification{Verdict: plan.Verified, Reason: "all there"}
	watched := plan.Verification{Verdict: plan.Verifying, Reason: "all there, watched for 20s because of HPA web"}
	waits := plan.Verification{Verdict: plan.Verifying, Reason: "2 of 3"}
	lost := plan.Verification{Verdict: plan.Overridden, Reason: "3 now"}
	type at struct {
		after time.Duration
		now   plan.Verification
		want  plan.Verification
	}
	for name, tc := range map[string]struct {
		from     []string
		looks    []at
		wantHeld bool
	}{
		"nobody is expected": {nil, []at{{0, good, good}}, false},
		"it stands": {[]string{"HPA web"}, []at{
			{0, good, watched}, {19 * time.Second, good, watched},
			{time.Second, good, plan.Verification{Verdict: plan.Verified, Reason: "all there, held for 20s"}},
		}, true},
		"it does not": {[]string{"HPA web"}, []at{
			{0, good, watched},
			{15 * time.Second, lost, plan.Verification{Verdict: plan.Overridden, Reason: "3 now; the plan foresaw it, by HPA web"}},
		}, false},
		"a pod that falls over begins it again": {[]string{"HPA web"}, []at{
			{0, good, watched}, {15 * time.Second, waits, waits}, {time.Second, good, watched}, {19 * time.Second, good, watched},
		}, true},
		"never there": {[]string{"HPA web"}, []at{{0, waits, waits}, {time.Minute, waits, waits}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := hold{from: tc.from}
				for i, a := range tc.looks {
					time.Sleep(a.after)
					if diff := cmp.Diff(a.want, h.keep(a.now)); diff != "" {
						t.Errorf("look %d (-want +got):\n%s", i, diff)
					}
				}
				if h.held() != tc.wantHeld {
					t.Errorf("held is %t, want %t", h.held(), tc.wantHeld)
				}
			})
		})
	}
}
