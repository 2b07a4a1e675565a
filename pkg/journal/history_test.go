package journal

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestNewest asks for the newest lines over several closed files and the one in use.
func TestNewest(t *testing.T) {
	f := newFixture(t)
	j := f.rotating(3000)
	const plans = 20
	for n := range plans {
		f.clock.at = epoch.Add(time.Duration(n) * time.Minute)
		f.append(j, planLine(planID(n), f.clock.at.Add(time.Hour)), &Line{Event: EventRead, Tool: "list_pods"})
	}
	numbers, err := segments(f.path)
	if err != nil || len(numbers) < 4 {
		t.Fatalf("%v, %v: want many files", numbers, err)
	}
	var all []string
	for n := plans - 1; n >= 0; n-- {
		all = append(all, planID(n))
	}
	seq := map[string]int64{}
	for _, l := range f.scan() {
		if l.Event == EventPlan {
			seq[l.Plan] = l.Seq
		}
	}
	for name, tc := range map[string]struct {
		query    Query
		want     []string
		wantMore bool
	}{
		"all":         {Query{Limit: 50}, all, false},
		"exactly all": {Query{Limit: plans}, all, false},
		"the first":   {Query{Limit: 3}, all[:3], true},
		"most":        {Query{Limit: plans - 1}, all[:plans-1], true},
		"before one":  {Query{Limit: 2, Before: seq[all[4]]}, all[5:7], true},
		"since":       {Query{Limit: 50, Since: epoch.Add(15 * time.Minute)}, all[:5], false},
		"by a want":   {Query{Limit: 50, Want: func(l *Line) bool { return l.Plan == all[17] }}, all[17:18], false},
		"none":        {Query{Limit: 50, Since: epoch.Add(time.Hour)}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.query.Events = []string{EventPlan}
			lines, more, err := j.Newest(tc.query)
			if err != nil || more != tc.wantMore {
				t.Fatalf("more %t, error %v", more, err)
			}
			var got []string
			for _, l := range lines {
				got = append(got, l.Plan)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("plans (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("of several events", func(t *testing.T) {
		lines, _, err := j.Newest(Query{Limit: 2, Events: []string{EventPlan, EventRead}})
		if err != nil || len(lines) != 2 || lines[0].Event != EventRead || lines[1].Event != EventPlan {
			t.Errorf("%v, %v", lines, err)
		}
	})
	t.Run("a changed line", func(t *testing.T) {
		b := f.read()
		f.write(slices.Concat(b[:len(b)-20], []byte{b[len(b)-20] ^ 1}, b[len(b)-19:]))
		defer f.write(b)
		if _, _, err := j.Newest(Query{Limit: 1, Events: []string{EventPlan}}); err == nil {
			t.Error("it was believed")
		} else if _, ok := errors.AsType[*BadLine](err); !ok {
			t.Errorf("the error is %v", err)
		}
	})
}

// TestReadsDoNotWaitForTheDisk: a line of a read is written and not synced; any other line
// is, with what stands before it, and so is what a checkpoint signs.
func TestReadsDoNotWaitForTheDisk(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	f.append(j, &Line{Event: EventRefused})
	var calls []string
	open := j.open
	j.open = func(path string, create bool) (file, error) {
		under, err := open(path, create)
		return &faults{file: under, write: -1, calls: &calls}, err
	}
	read, refused := func() *Line { return &Line{Event: EventRead} }, func() *Line { return &Line{Event: EventRefused} }
	for name, tc := range map[string]struct {
		lines []*Line
		want  []string
	}{
		"a read":             {[]*Line{read()}, []string{"write"}},
		"two":                {[]*Line{read(), read()}, []string{"write"}},
		"a refusal":          {[]*Line{refused()}, []string{"write", "datasync"}},
		"a read and another": {[]*Line{read(), refused()}, []string{"write", "datasync"}},
	} {
		calls = nil
		f.append(j, tc.lines...)
		if diff := cmp.Diff(tc.want, calls); diff != "" {
			t.Errorf("%s: calls (-want +got):\n%s", name, diff)
		}
	}
	calls = nil
	for range checkpointLines {
		f.append(j, read())
	}
	if n := len(f.checkpoints()); n != 1 || !slices.Contains(calls, "datasync") {
		t.Errorf("%d checkpoints, calls %v", n, calls)
	}
	f.append(j, read())
	calls = nil
	if err := j.Close(); err != nil || !slices.Contains(calls, "datasync") {
		t.Errorf("Close: %v, calls %v", err, calls)
	}
}
