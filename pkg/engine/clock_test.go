package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
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
