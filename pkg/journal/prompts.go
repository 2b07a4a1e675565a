package journal

import (
	"maps"
	"slices"
	"time"
)

// PromptReport says how long one principal took to answer, over all days: who decides with
// care takes as long for the tenth question of a day as for the first. A question that was
// closed without an answer does not count; one that was declined does.
type PromptReport struct {
	Principal string   `json:"principal"`
	Prompts   int      `json:"prompts"`
	AtOnce    int      `json:"within_a_second,omitempty"`           // which no person who reads does: a hook of the client
	First     *float64 `json:"median_of_first_3_seconds,omitempty"` // of each day
	Late      *float64 `json:"median_from_10th_seconds,omitempty"`  // of each day; nil where no day had ten
}

// prompt is a question that was answered.
type prompt struct {
	shown time.Time
	took  time.Duration
}

func promptReports(all map[string][]prompt) (out []PromptReport) {
	for _, who := range slices.Sorted(maps.Keys(all)) {
		prompts := all[who]
		slices.SortStableFunc(prompts, func(a, b prompt) int { return a.shown.Compare(b.shown) })
		var first, late []time.Duration
		n, atOnce, day := 0, 0, "" // of the day, which is that of this machine
		for _, p := range prompts {
			if d := p.shown.Local().Format(time.DateOnly); d != day {
				n, day = 0, d
			}
			if p.took < time.Second {
				atOnce++
			}
			switch n++; {
			case n <= 3:
				first = append(first, p.took)
			case n >= 10:
				late = append(late, p.took)
			}
		}
		out = append(out, PromptReport{who, len(prompts), atOnce, median(first), median(late)})
	}
	return out
}

// median is in seconds; nil of nothing.
func median(d []time.Duration) *float64 {
	if len(d) == 0 {
		return nil
	}
	slices.Sort(d)
	m := (d[(len(d)-1)/2] + d[len(d)/2]) / 2
	s := m.Seconds()
	return &s
}
