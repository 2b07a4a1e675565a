// Package report is the arithmetic and the table of the benchmark: samples of two sides
// that took turns, what one is in terms of the other, and the bar that it is held to.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Row is one line of the table.
type Row struct {
	What     string  `json:"what"`
	Baseline string  `json:"baseline"`        // of the same run
	Ours     float64 `json:"ours"`            // in Unit
	Base     float64 `json:"base"`            // in Unit; 0 where the bar is absolute
	Unit     string  `json:"unit"`            // of Ours and Base: ms, MiB, B, 1/s ...
	Value    float64 `json:"value"`           // what the bar is held against, in the bar's unit
	Bar      Bar     `json:"bar"`             // what is asked of Value
	Verdict  Verdict `json:"verdict"`         // see Judge
	Note     string  `json:"note,omitempty"`  // what else the run found
	Why      string  `json:"why,omitempty"`   // of NotMeasured and NotReached
	Runs     int     `json:"runs,omitempty"`  // samples of each side
	Exact    bool    `json:"exact,omitempty"` // counted, not timed: it is the same in every run
}

// Bar is what a value must not pass.
type Bar struct {
	AtLeast bool    `json:"at_least,omitempty"` // else it is the most
	Limit   float64 `json:"limit"`
	Unit    string  `json:"unit"` // × for a ratio
}

// AtMost is a bar from above.
func AtMost(limit float64, unit string) Bar { return Bar{Limit: limit, Unit: unit} }

// AtLeast is a bar from below.
func AtLeast(limit float64, unit string) Bar { return Bar{AtLeast: true, Limit: limit, Unit: unit} }

// Holds reports whether a value keeps to the bar. What is no number never does.
func (b Bar) Holds(v float64) bool {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return false
	}
	if b.AtLeast {
		return v >= b.Limit
	}
	return v <= b.Limit
}

func (b Bar) String() string {
	if b.AtLeast {
		return "at least " + Amount(b.Limit, b.Unit)
	}
	return "at most " + Amount(b.Limit, b.Unit)
}

// Verdict is what became of a row.
type Verdict string

// The verdicts. Missed alone fails the run.
const (
	Reached     Verdict = "reached"
	Missed      Verdict = "MISSED"
	NotReached  Verdict = "not reached"  // known, with the reason in the design note
	NotMeasured Verdict = "not measured" // what it needs was not there
)

// Judge gives a row its verdict. known says of a bar that is not reached why, "" where
// that is not known.
func (r *Row) Judge(known string) {
	switch {
	case r.Verdict == NotMeasured:
	case r.Bar.Holds(r.Value):
		r.Verdict = Reached
	case known != "":
		r.Verdict, r.Why = NotReached, known
	default:
		r.Verdict = Missed
	}
}

// Report is one run.
type Report struct {
	Date    time.Time `json:"date"`
	Machine string    `json:"machine"`
	Load    string    `json:"load"` // of the machine, before and after
	Rows    []Row     `json:"rows"`
}

// Missed are the rows that fail the run.
func (r Report) Missed() (out []string) {
	for _, row := range r.Rows {
		if row.Verdict == Missed {
			out = append(out, row.What)
		}
	}
	return out
}

// Print writes the table.
func (r Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range slices.Concat([][]string{Head}, r.Cells()) {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, row := range r.Rows {
		for _, more := range []string{row.Note, row.Why} {
			if more != "" {
				fmt.Fprintf(w, "  %s: %s\n", row.What, more)
			}
		}
	}
	_, err := fmt.Fprintf(w, "%s; load %s\n", r.Machine, r.Load)
	return err
}

// Head heads the columns of Cells.
var Head = []string{"what", "measured", "baseline of the same run", "measured", "comes to", "bar", ""}

// Cells are the rows as text.
func (r Report) Cells() (out [][]string) {
	for _, row := range r.Rows {
		ours, base, value := Amount(row.Ours, row.Unit), "", Amount(row.Value, row.Bar.Unit)
		if row.Base != 0 {
			base = Amount(row.Base, row.Unit)
		}
		if row.Verdict == NotMeasured {
			ours, base, value = "", "", ""
		}
		out = append(out, []string{row.What, ours, row.Baseline, base, value, row.Bar.String(), string(row.Verdict)})
	}
	return out
}

// JSON is the report as a file.
func (r Report) JSON() ([]byte, error) {
	raw, err := json.MarshalIndent(r, "", "  ")
	return append(raw, '\n'), err
}

// Amount writes a number with three significant digits and its unit.
func Amount(v float64, unit string) string {
	digits := 0
	switch a := math.Abs(v); {
	case a == 0 || a >= 100 || v == math.Trunc(v):
	case a >= 10:
		digits = 1
	default:
		digits = 2
	}
	s := fmt.Sprintf("%.*f", digits, v)
	if unit == "×" || unit == "" {
		return s + unit
	}
	return s + " " + unit
}

// Quantile is the value that a share q of the samples does not exceed, 0 of none.
func Quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(samples))
	return s[min(len(s)-1, max(0, int(math.Ceil(q*float64(len(s))))-1))]
}

// Flat is how much the highest of the values after the first exceeds the first.
func Flat(values []float64) float64 {
	if len(values) == 0 || values[0] == 0 {
		return math.NaN()
	}
	return slices.Max(values) / values[0]
}

// Span is a request from its arrival to its end.
type Span struct {
	Name       string
	Begin, End time.Time
}

// CriticalPath is the longest chain of requests of which each began after the one before
// it had ended: what was not done at the same time.
func CriticalPath(spans []Span) (names []string) {
	s := slices.Clone(spans)
	slices.SortFunc(s, func(a, b Span) int { return a.End.Compare(b.End) })
	best := make([][]string, len(s))
	for i := range s {
		for k := range i {
			if !s[i].Begin.Before(s[k].End) && len(best[k]) > len(best[i]) {
				best[i] = best[k]
			}
		}
		best[i] = append(slices.Clone(best[i]), s[i].Name)
		if len(best[i]) > len(names) {
			names = best[i]
		}
	}
	return names
}
