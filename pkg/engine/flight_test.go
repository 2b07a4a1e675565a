package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// TestCase_MC_10_Progress: who waits for a long execution hears of it at least every ten
// seconds, and gets its answer before a client gives up at 60 s.
func TestCase_MC_10_Progress(t *testing.T) {
	for name, tc := range map[string]struct {
		ends       time.Duration
		wantEnded  bool
		wantWaited time.Duration
		wantTold   []string
	}{
		"for three minutes": {180 * time.Second, false, 45 * time.Second, []string{"0 of 3 steps are through", "0 of 3 steps are through", "1 of 3 steps are through", "1 of 3 steps are through"}},
		"for 25 s":          {25 * time.Second, true, 25 * time.Second, []string{"0 of 3 steps are through", "0 of 3 steps are through"}},
		"for a moment":      {time.Second, true, time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &flight{done: make(chan struct{})}
				time.AfterFunc(25*time.Second, func() { f.add(plan.StepResult{}) })
				time.AfterFunc(tc.ends, func() { close(f.done) })
				began, told := time.Now(), []string(nil)
				ended := f.await(t.Context(), 45*time.Second, func(s string) { told = append(told, s) }, 3)
				if waited := time.Since(began); ended != tc.wantEnded || waited != tc.wantWaited {
					t.Errorf("ended %t after %s, want %t after %s", ended, waited, tc.wantEnded, tc.wantWaited)
				}
				if diff := cmp.Diff(tc.wantTold, told); diff != "" {
					t.Errorf("told (-want +got):\n%s", diff)
				}
				if again := f.await(t.Context(), 200*time.Second, nil, 3); !again {
					t.Error("it has not ended")
				}
			})
		})
	}
}
