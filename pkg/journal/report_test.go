package journal

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestCount: every call is counted by its number and has one outcome; what has none, or
// two, is named.
func TestCount(t *testing.T) {
	type m = map[string]map[string]int
	of := func(call int64, event string) *Line {
		return &Line{Call: call, Event: event, Tool: "scale", Plan: "aaaaaaaaaa"}
	}
	plan := func(call int64) *Line {
		return &Line{Call: call, Event: EventPlan, Tool: "plan_scale", Plan: "aaaaaaaaaa"}
	}
	free := func(event string) *Line { return &Line{Event: event, Plan: "aaaaaaaaaa"} }
	const died = "its process died, or is still at work"
	for name, tc := range map[string]struct {
		lines []*Line
		want  CallReport
	}{
		"nothing": {nil, CallReport{ByTool: m{}}},
		"one of each": {
			[]*Line{plan(1), of(2, EventRefused), of(3, EventIntent), of(3, EventStep), of(3, EventExecute), of(3, EventVerify), of(4, EventReplayed), {Call: 5, Event: EventRead, Tool: "get"}},
			CallReport{Calls: 5, Outcomes: 5, ByTool: m{"plan_scale": {"plan": 1}, "scale": {"refused": 1, "execute": 1, "replayed": 1}, "get": {"read": 1}}},
		},
		"calls that overlap": {
			[]*Line{of(2, EventRefused), plan(1)},
			CallReport{Calls: 2, Outcomes: 2, ByTool: m{"plan_scale": {"plan": 1}, "scale": {"refused": 1}}},
		},
		"an execution that outlasts its call": {
			[]*Line{of(1, EventIntent), of(1, EventInProgress), of(1, EventStep), of(1, EventExecute), of(2, EventReplayed)},
			CallReport{Calls: 2, Outcomes: 2, ByTool: m{"scale": {"in_progress": 1, "replayed": 1}}},
		},
		"one that ends as its call is answered": {
			[]*Line{of(1, EventIntent), of(1, EventUnknown), of(1, EventInProgress)},
			CallReport{Calls: 1, Outcomes: 1, ByTool: m{"scale": {"in_progress": 1}}},
		},
		"a call without a line": {
			[]*Line{plan(1), plan(3)},
			CallReport{Calls: 3, Outcomes: 2, ByTool: m{"plan_scale": {"plan": 2}, "?": {"no_line": 1}}, Faults: []string{
				"call 2 of process test left no outcome: the journal could not be written, its process died, or it is still at work; nothing was sent by it",
			}},
		},
		"two outcomes": {
			[]*Line{plan(1), of(1, EventRefused)},
			CallReport{Calls: 1, Outcomes: 1, ByTool: m{"plan_scale": {"plan": 1}}, Faults: []string{"line 2: call 1 of process test has two outcomes, plan and refused"}},
		},
		"an outcome of no call": {
			[]*Line{of(0, EventRefused)},
			CallReport{ByTool: m{}, Faults: []string{"line 1: the outcome refused is of no call"}},
		},
		"cut off": {
			[]*Line{of(1, EventIntent), of(1, EventStep), of(2, EventInProgress)},
			CallReport{Calls: 2, Outcomes: 1, ByTool: m{"scale": {"unfinished": 1, "in_progress": 1}}, Faults: []string{"line 1: call 1 of process test began scale of plan aaaaaaaaaa, which has no outcome: " + died}},
		},
		"cut off after its call was answered": {
			[]*Line{of(1, EventIntent), of(1, EventInProgress)},
			CallReport{Calls: 1, Outcomes: 1, ByTool: m{"scale": {"in_progress": 1}}, Faults: []string{"line 1: call 1 of process test began scale of plan aaaaaaaaaa, which has no outcome: " + died}},
		},
		"cut off, and settled": {
			[]*Line{of(1, EventIntent), free(EventReconciled), of(2, EventReplayed)},
			CallReport{Calls: 2, Outcomes: 2, ByTool: m{"scale": {"reconciled": 1, "replayed": 1}}},
		},
		"cut off, and settled by a later call": {
			[]*Line{of(1, EventIntent), of(2, EventExecute)},
			CallReport{Calls: 2, Outcomes: 2, ByTool: m{"scale": {"reconciled": 1, "execute": 1}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.append(f.open(), tc.lines...)
			got, err := Count(f.path, f.keys, time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestCountSince: a call belongs to the time after since when its process had put none of
// its number or a higher one on record before. The numbers of two processes are their own.
func TestCountSince(t *testing.T) {
	c := newCounter(epoch)
	for i, l := range []Line{
		{Time: epoch.Add(-2), Inst: "aaaa", Call: 1, Event: EventPlan, Tool: "plan_scale"},
		{Time: epoch.Add(-1), Inst: "aaaa", Call: 3, Event: EventIntent, Tool: "scale", Plan: "aaaaaaaaaa"},
		{Time: epoch, Inst: "aaaa", Call: 2, Event: EventRefused, Tool: "scale"},
		{Time: epoch, Inst: "aaaa", Call: 3, Event: EventExecute, Tool: "scale", Plan: "aaaaaaaaaa"},
		{Time: epoch, Inst: "bbbb", Call: 1, Event: EventPlan, Tool: "plan_scale"},
		{Time: epoch, Inst: "aaaa", Call: 4, Event: EventPlan, Tool: "plan_scale"},
		{Time: epoch, Inst: "aaaa", PID: 7, Call: 1, Event: EventPlan, Tool: "plan_drain"},
	} {
		l.Seq = int64(i + 1)
		c.add(&l)
	}
	want := &CallReport{Calls: 3, Outcomes: 3, ByTool: map[string]map[string]int{"plan_scale": {"plan": 2}, "plan_drain": {"plan": 1}}}
	if diff := cmp.Diff(want, c.report()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestPrompts: how long a principal took for the first three answers of a day, and for those
// from the tenth on, and how often less than a second. What nobody answered does not count, and a new day begins anew.
func TestPrompts(t *testing.T) {
	noon := time.Date(2026, 11, 30, 11, 0, 0, 0, time.Local)
	alice, bob := &Principal{Kind: "os", Name: "alice"}, &Principal{Kind: "os", Name: "bob"}
	c := newCounter(epoch)
	ask := func(who *Principal, day, n int, took time.Duration, event string) {
		shown := noon.AddDate(0, 0, day).Add(time.Duration(n) * time.Minute)
		l := &Line{Time: epoch, Event: event, Principal: who, ShownAt: shown}
		if took > 0 {
			l.AnsweredAt = shown.Add(took)
		}
		c.add(l)
	}
	for n := 1; n <= 11; n++ { // 1, 2, 3 and then 10, 11 seconds
		ask(alice, 0, n, time.Duration(n)*time.Second, EventApproved)
	}
	ask(alice, 1, 2, 20*time.Second, EventApproved) // on record before the one that was shown before it
	ask(alice, 1, 1, 30*time.Second, EventApproved)
	ask(bob, 0, 1, 0, EventRefused) // closed
	ask(bob, 0, 2, 4*time.Second, EventRefused)
	ask(bob, 0, 3, 14*time.Millisecond, EventApproved) // by a hook
	ask(bob, 0, 4, time.Second, EventApproved)
	old := &Line{Time: epoch.Add(-time.Second), Event: EventApproved, Principal: bob, ShownAt: noon, AnsweredAt: noon.Add(time.Hour)}
	c.add(old)
	seconds := func(s float64) *float64 { return &s }
	want := []PromptReport{
		{Principal: "os:alice", Prompts: 13, First: seconds(3), Late: seconds(10.5)}, // of 1, 2, 3, 20, 30 and of 10, 11
		{Principal: "os:bob", Prompts: 3, AtOnce: 1, First: seconds(1)},
	}
	if diff := cmp.Diff(want, c.report().Prompts); diff != "" {
		t.Errorf("prompts (-want +got):\n%s", diff)
	}
}
