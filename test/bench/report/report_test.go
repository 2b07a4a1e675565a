package report

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuantile(t *testing.T) {
	ten := []float64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}
	for _, tc := range []struct {
		name    string
		samples []float64
		q, want float64
	}{
		{"the half", ten, 0.5, 5},
		{"nine tenths", ten, 0.9, 9},
		{"all", ten, 1, 10},
		{"the least", ten, 0, 1},
		{"one sample", []float64{7}, 0.9, 7},
		{"none", nil, 0.5, 0},
	} {
		if got := Quantile(tc.samples, tc.q); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	if ten[0] != 10 {
		t.Error("the samples were sorted in place")
	}
}

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		name    string
		row     Row
		known   string
		want    Verdict
		wantWhy string
	}{
		{"at the bar", Row{Value: 1.15, Bar: AtMost(1.15, "×")}, "", Reached, ""},
		{"over it", Row{Value: 1.16, Bar: AtMost(1.15, "×")}, "", Missed, ""},
		{"under a bar from below", Row{Value: 24.9, Bar: AtLeast(25, "×")}, "", Missed, ""},
		{"over a bar from below", Row{Value: 25, Bar: AtLeast(25, "×")}, "", Reached, ""},
		{"known", Row{Value: 2, Bar: AtMost(1, "×")}, "because", NotReached, "because"},
		{"known, and reached all the same", Row{Value: 1, Bar: AtMost(1, "×")}, "because", Reached, ""},
		{"not measured is not reached", Row{Verdict: NotMeasured, Why: "no npm", Bar: AtMost(1, "×")}, "because", NotMeasured, "no npm"},
		{"no baseline", Row{Value: math.NaN(), Bar: AtMost(1, "×")}, "", Missed, ""},
		{"a baseline of nothing", Row{Value: math.Inf(1), Bar: AtLeast(1, "×")}, "", Missed, ""},
	} {
		r := tc.row
		r.Judge(tc.known)
		if r.Verdict != tc.want || r.Why != tc.wantWhy {
			t.Errorf("%s: %q (%q), want %q (%q)", tc.name, r.Verdict, r.Why, tc.want, tc.wantWhy)
		}
	}
}

func TestReport(t *testing.T) {
	r := Report{Machine: "a machine", Load: "1", Rows: []Row{
		{What: "plan", Ours: 5.678, Base: 5, Unit: "ms", Value: 1.1356, Bar: AtMost(1.15, "×"), Verdict: Reached, Note: "two calls"},
		{What: "peer", Baseline: "a peer", Bar: AtMost(0.5, "×"), Verdict: NotMeasured, Why: "no npm"},
		{What: "start", Ours: 2500, Unit: "ms", Value: 2500, Bar: AtMost(2000, "ms"), Verdict: Missed},
	}}
	want := [][]string{
		{"plan", "5.68 ms", "", "5 ms", "1.14×", "at most 1.15×", "reached"},
		{"peer", "", "a peer", "", "", "at most 0.50×", "not measured"},
		{"start", "2500 ms", "", "", "2500 ms", "at most 2000 ms", "MISSED"},
	}
	if diff := cmp.Diff(want, r.Cells()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"start"}, r.Missed()); diff != "" {
		t.Errorf("missed, -want +got:\n%s", diff)
	}
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"plan: two calls", "peer: no npm", "a machine; load 1"} {
		if !strings.Contains(b.String(), text) {
			t.Errorf("the table lacks %q:\n%s", text, b.String())
		}
	}
}

func TestFlat(t *testing.T) {
	if got := Flat([]float64{10, 12, 11}); got != 1.2 {
		t.Errorf("%v, want 1.2", got)
	}
	if got := Flat([]float64{10, 8}); got != 1 {
		t.Errorf("%v, want 1", got)
	}
	if !math.IsNaN(Flat(nil)) {
		t.Error("of nothing it is a number")
	}
}

func TestCriticalPath(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	for _, tc := range []struct {
		name  string
		spans []Span
		want  []string
	}{
		{"none", nil, nil},
		{"all at once", []Span{{"a", at(0), at(9)}, {"b", at(1), at(5)}}, []string{"b"}},
		{"one after another", []Span{{"b", at(5), at(8)}, {"a", at(0), at(5)}}, []string{"a", "b"}},
		{"beside a long one", []Span{{"get", at(0), at(2)}, {"namespace", at(0), at(9)}, {"scale", at(3), at(6)}, {"note", at(3), at(7)}}, []string{"get", "scale"}},
	} {
		if diff := cmp.Diff(tc.want, CriticalPath(tc.spans)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tc.name, diff)
		}
	}
}
