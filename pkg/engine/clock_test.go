package engine

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// TestClock: a plan of two minutes ends after two minutes, on whichever clock is first.
func TestClock(t *testing.T) {
	for name, tc := range map[string]struct {
		set  []time.Duration // what is added to the wall clock before each minute
		want []time.Duration // since the start, after each minute
	}{
		"a sound clock":            {[]time.Duration{0, 0}, []time.Duration{time.Minute, 2 * time.Minute}},
		"set back":                 {[]time.Duration{-time.Hour, 0}, []time.Duration{time.Minute, 2 * time.Minute}},
		"forward, as a sleep is":   {[]time.Duration{time.Hour, 0}, []time.Duration{61 * time.Minute, 62 * time.Minute}},
		"forward and back again":   {[]time.Duration{time.Hour, -time.Hour}, []time.Duration{61 * time.Minute, 62 * time.Minute}},
		"back and forward again":   {[]time.Duration{-time.Hour, time.Hour}, []time.Duration{time.Minute, 2 * time.Minute}},
		"back, then too far":       {[]time.Duration{-time.Hour, 2 * time.Hour}, []time.Duration{time.Minute, 62 * time.Minute}},
		"a wall that stands still": {[]time.Duration{-time.Minute, -time.Minute}, []time.Duration{time.Minute, 2 * time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var offset time.Duration
				c := &clock{wall: func() time.Time { return time.Now().Add(offset) }}
				start := c.now()
				var got []time.Duration
				for _, set := range tc.set {
					offset += set
					if set != 0 {
						c.now() // somebody looks at the moment the clock is set
					}
					time.Sleep(time.Minute)
					got = append(got, c.now().Sub(start))
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestPlanFromAnotherClock: a plan is good for as long as it was made for, by this process's
// clock, whatever the clock of the one that planned said.
func TestPlanFromAnotherClock(t *testing.T) {
	const ttl = 2 * time.Minute
	for name, tc := range map[string]struct {
		created time.Duration // the other clock, as it planned, from this one
		wait    time.Duration // until it is confirmed
		want    string        // "" goes on
	}{
		"the same clock":         {0, time.Minute, ""},
		"the same clock, late":   {0, ttl, "the plan expired at 2000-01-01T00:02:00Z"},
		"a little ahead":         {time.Minute, 0, ""},
		"a little ahead, late":   {time.Minute, 3 * time.Minute, "the plan expired at 2000-01-01T00:03:00Z"},
		"too far ahead":          {time.Minute + time.Second, 0, "the plan counts as expired: it was made at 2000-01-01T00:01:01Z by the clock of the process that planned it, which is 1m1s ahead of the clock of this one"},
		"an hour ahead":          {time.Hour, 0, "the plan counts as expired: it was made at 2000-01-01T01:00:00Z by the clock of the process that planned it, which is 1h0m0s ahead of the clock of this one"},
		"an hour ahead, later":   {time.Hour, 58 * time.Minute, "the plan counts as expired: it was made at 2000-01-01T01:00:00Z by the clock of the process that planned it, which is 2m0s ahead of the clock of this one"},
		"behind, with time left": {-time.Minute, 0, ""},
		"behind":                 {-ttl, 0, "the plan expired at 2000-01-01T00:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := onDisk(t, time.Now)
				e.cfg.Policy.WritesPerMinute = 1
				made := time.Now().Add(tc.created)
				p := &plan.Plan{ID: "mf3q7x2ad5", Action: "scale", Args: json.RawMessage("{}"), Principal: "os:alice", Created: made, Expires: made.Add(ttl),
					Steps: []plan.Step{{Verb: plan.Evict}}}
				if err := e.append(&journal.Line{Event: journal.EventPlan, Plan: p.ID, Record: p}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(tc.wait)
				err := e.j.View(func(l *journal.Ledger) error { return e.open(l, p, e.now()) })
				if tc.want == "" {
					if err != nil {
						t.Errorf("it is refused: %v", err)
					}
				} else if !refusal.Is(err, refusal.Expired) || err.Error() != tc.want {
					t.Errorf("%v, want %s: %s", err, refusal.Expired, tc.want)
				}
			})
		})
	}
}
