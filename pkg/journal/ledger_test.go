package journal

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// The state of a plan after its lines, as the process that wrote them and one that reads
// them see it.
func TestState(t *testing.T) {
	expires := epoch.Add(2 * time.Minute)
	planned := State{Planned: true, Action: "scale", Expires: expires}
	first := Intent{Step: 1, Attempt: 1, AuditID: "a1", Time: epoch}
	claimed := State{
		Planned: true, Claimed: true, Action: "scale", Expires: expires, Claim: "c1", ClaimInst: "test", ClaimedAt: epoch,
		Intents: []Intent{first}, LastIntent: first,
	}
	done := State{Planned: true, Claimed: true, Done: true, Action: "scale", Expires: expires, Claim: "c1", ClaimInst: "test", ClaimedAt: epoch}
	verdict := &plan.Verification{Verdict: plan.Verified, Reason: "3 of 3 available", State: plan.State{"ready": 3.0}, Time: epoch}

	noop := planLine("p1", expires)
	noop.Record.Steps = nil
	note := planLine("p1", expires)
	note.Record.Steps[0].Optional = true
	intent := func(step, attempt int) *Line {
		l := intentLine("p1", "c1")
		l.Step, l.Attempt, l.AuditID = step, attempt, fmt.Sprint("a", step)
		return l
	}
	step := func(n int, outcome string) *Line {
		return &Line{Event: EventStep, Plan: "p1", Claim: "c1", Step: n, Attempt: 1, StepKey: fmt.Sprint("step ", n), Code: outcome,
			HTTP: 200, AuditID: "a", RV: "7", Output: "detail", Untrusted: "said"}
	}
	result := func(n int, outcome string) plan.StepResult {
		return plan.StepResult{Step: fmt.Sprint("step ", n), Outcome: outcome, Code: 200, AuditID: "a", RV: "7", Detail: "detail", Untrusted: "said"}
	}
	event := func(e string) *Line { return &Line{Event: e, Plan: "p1"} }
	verify := func(v *plan.Verification) *Line { return &Line{Event: EventVerify, Plan: "p1", Verification: v} }
	reconciled := executeLine("p1")
	reconciled.Event = EventReconciled
	attempted := func(i Intent, attempt int, rv, outcome string) Intent {
		i.Attempt, i.RV, i.Since, i.Outcome = attempt, rv, rv, outcome
		return i
	}
	second := Intent{Step: 2, Attempt: 1, AuditID: "a2", Time: epoch}
	with := func(s State, change func(*State)) State { change(&s); return s }

	for name, tc := range map[string]struct {
		lines []*Line
		want  State
	}{
		"nothing":                            {[]*Line{event(EventReplayed)}, State{}},
		"refused, never planned":             {[]*Line{event(EventRefused), event(EventExpired), event(EventStale)}, State{}},
		"planned":                            {[]*Line{planLine("p1", expires)}, planned},
		"no change":                          {[]*Line{noop}, with(planned, func(s *State) { s.Empty = true })},
		"only a note":                        {[]*Line{note}, with(planned, func(s *State) { s.Empty = true })},
		"refused, rate-limited, asked":       {[]*Line{planLine("p1", expires), event(EventRefused), event(EventRateLimited), event(EventDryRunFailed), event(EventInProgress)}, planned},
		"expired":                            {[]*Line{planLine("p1", expires), event(EventExpired), event(EventStale)}, with(planned, func(s *State) { s.Ended = "expired" })},
		"stale":                              {[]*Line{planLine("p1", expires), event(EventStale)}, with(planned, func(s *State) { s.Ended = "stale" })},
		"approved":                           {[]*Line{planLine("p1", expires), event(EventWaiting), event(EventApproved)}, with(planned, func(s *State) { s.Approved = true })},
		"approved, and executed once":        {[]*Line{planLine("p1", expires), event(EventApproved), intentLine("p1", "c1")}, with(claimed, func(s *State) { s.Approved = true })},
		"approved by a second person":        {[]*Line{planLine("p1", expires), {Event: EventApproved, Plan: "p1", Channel: ChannelApproval}}, with(planned, func(s *State) { s.Approved, s.Second = true, true })},
		"another plan is approved":           {[]*Line{planLine("p1", expires), planLine("p2", expires), {Event: EventApproved, Plan: "p2"}}, planned},
		"approved as it expires":             {[]*Line{planLine("p1", epoch), event(EventApproved)}, with(planned, func(s *State) { s.Expires = epoch })},
		"approved when it is stale":          {[]*Line{planLine("p1", expires), event(EventStale), event(EventApproved)}, with(planned, func(s *State) { s.Ended = "stale" })},
		"approved after the claim":           {[]*Line{planLine("p1", expires), intentLine("p1", "c1"), event(EventApproved)}, claimed},
		"no change, approved":                {[]*Line{noop, event(EventApproved)}, with(planned, func(s *State) { s.Empty = true })},
		"claimed":                            {[]*Line{planLine("p1", expires), intentLine("p1", "c1")}, claimed},
		"a stale that lost against a claim":  {[]*Line{planLine("p1", expires), intentLine("p1", "c1"), event(EventStale)}, claimed},
		"a second claim changes nothing":     {[]*Line{planLine("p1", expires), intentLine("p1", "c1"), intentLine("p1", "c2")}, claimed},
		"a second plan line changes nothing": {[]*Line{planLine("p1", expires), intentLine("p1", "c1"), planLine("p1", expires.Add(time.Hour))}, claimed},
		"steps, in their order, the last outcome of each": {
			[]*Line{planLine("p1", expires), intent(2, 1), intent(1, 1), step(2, "not_applied"), step(1, "applied"), step(2, "applied")},
			with(claimed, func(s *State) {
				s.Steps = []plan.StepResult{result(1, "applied"), result(2, "applied")}
				s.Intents = []Intent{attempted(first, 1, "7", "applied"), attempted(second, 1, "7", "applied")}
				s.LastIntent = s.Intents[0]
			}),
		},
		"a new attempt has no outcome yet": {
			[]*Line{planLine("p1", expires), intent(1, 1), intent(2, 1), step(1, "blocked"), step(2, "applied"), intent(1, 2)},
			with(claimed, func(s *State) {
				s.Steps = []plan.StepResult{result(1, "blocked"), result(2, "applied")}
				s.Intents = []Intent{attempted(first, 2, "", ""), attempted(second, 1, "7", "applied")}
				s.LastIntent = s.Intents[0]
			}),
		},
		"the outcome of another attempt": {
			[]*Line{planLine("p1", expires), intent(1, 1), intent(1, 2), step(1, "blocked")},
			with(claimed, func(s *State) {
				s.Steps = []plan.StepResult{result(1, "blocked")}
				s.Intents = []Intent{attempted(first, 2, "", "")}
				s.LastIntent = s.Intents[0]
			}),
		},
		"an outcome without its intent is a claim": {
			[]*Line{planLine("p1", expires), step(1, "applied")},
			with(done, func(s *State) { s.Done, s.Steps = false, []plan.StepResult{result(1, "applied")} }),
		},
		"unknown without its intent is a claim": {
			[]*Line{planLine("p1", expires), event(EventUnknown)},
			with(done, func(s *State) { s.Done, s.Unknown, s.Claim = false, true, "" }),
		},
		"unknown": {
			[]*Line{planLine("p1", expires), intentLine("p1", "c1"), step(1, "unknown"), event(EventUnknown)},
			with(claimed, func(s *State) {
				s.Unknown, s.Steps = true, []plan.StepResult{result(1, "unknown")}
				s.LastIntent = attempted(first, 1, "7", "unknown")
				s.Intents = []Intent{s.LastIntent}
			}),
		},
		"done": {
			[]*Line{planLine("p1", expires), intentLine("p1", "c1"), step(1, "applied"), executeLine("p1"), event(EventReplayed)},
			done,
		},
		"found out after all": {
			[]*Line{planLine("p1", expires), intentLine("p1", "c1"), event(EventUnknown), executeLine("p1"), event(EventUnknown), step(1, "late")},
			done,
		},
		"reconciled": {
			[]*Line{planLine("p1", expires), intentLine("p1", "c1"), event(EventUnknown), reconciled, event(EventUnknown), executeLine("p1")},
			done,
		},
		"reconciled, the process died": {
			[]*Line{planLine("p1", expires), intentLine("p1", "c1"), reconciled, intentLine("p1", "c1")},
			done,
		},
		"verified, the last word counts": {
			[]*Line{planLine("p1", expires), intentLine("p1", "c1"), executeLine("p1"), verify(&plan.Verification{Verdict: plan.Verifying}), verify(verdict)},
			with(done, func(s *State) { s.Verification = verdict }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			j := f.open()
			f.append(j, tc.lines...)
			if diff := cmp.Diff(tc.want, stateOf(t, j, "p1")); diff != "" {
				t.Errorf("the process that wrote it (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.want, f.state("p1")); diff != "" {
				t.Errorf("a process that read it (-want +got):\n%s", diff)
			}
		})
	}
}

// What the budgets count, in seconds after epoch.
func TestWindows(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	at := func(seconds int, lines ...*Line) {
		f.clock.at = epoch.Add(time.Duration(seconds) * time.Second)
		f.append(j, lines...)
	}
	expires := epoch.Add(time.Hour)
	event := func(e string) *Line { return &Line{Event: e, Cluster: "uid-1"} }
	other := planLine("p3", expires)
	other.Cluster = "uid-2"
	at(0, planLine("p1", expires))
	at(1, event(EventRefused))
	at(2, event(EventDryRunFailed), event(EventRateLimited), event(EventReplayed), event(EventInProgress), event(EventUnknown))
	at(3, event(EventExpired), event(EventStale))
	at(4, planLine("p2", expires), other)
	at(5, intentLine("p1", "c1"))
	at(6, intentLine("p1", "c1"), &Line{Event: EventStep, Plan: "p1", Cluster: "uid-1", Step: 1})
	at(7, intentLine("p2", "c2"))
	at(8, executeLine("p1"), executeLine("p2"), &Line{Event: EventVerify, Plan: "p1", Cluster: "uid-1"})
	several := planLine("p4", expires)
	several.Record.Parts = []plan.Part{{Steps: 1}, {}, {Steps: 2}}
	at(9, several, intentLine("p4", "c4"))

	for name, tc := range map[string]struct {
		cluster    string
		since      int
		wantPlans  []int
		wantWrites []int
	}{
		"all":                           {"uid-1", -1, []int{0, 1, 2, 3, 3, 4, 9}, []int{5, 7, 9, 9}},
		"what is at since is not after": {"uid-1", 3, []int{4, 9}, []int{5, 7, 9, 9}},
		"the last one":                  {"uid-1", 5, []int{9}, []int{7, 9, 9}},
		"none":                          {"uid-1", 9, nil, nil},
		"another cluster":               {"uid-2", -1, []int{4}, nil},
		"no cluster":                    {"", -1, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, j := range []*Journal{j, f.open()} {
				err := j.View(func(l *Ledger) error {
					since := epoch.Add(time.Duration(tc.since) * time.Second)
					if diff := cmp.Diff(tc.wantPlans, seconds(l.Plans(tc.cluster, since))); diff != "" {
						t.Errorf("plans (-want +got):\n%s", diff)
					}
					if diff := cmp.Diff(tc.wantWrites, seconds(l.Writes(tc.cluster, since))); diff != "" {
						t.Errorf("writes (-want +got):\n%s", diff)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func seconds(times []time.Time) (s []int) {
	for _, at := range times {
		s = append(s, int(at.Sub(epoch)/time.Second))
	}
	return s
}

// The memory of capacity, in minutes after epoch.
func TestPeak(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	for _, s := range []struct {
		minute int
		ready  []Capacity
	}{
		{0, []Capacity{{"a", 8}}},
		{1, []Capacity{{"a", 4}, {"b", 1}}},
		{2, []Capacity{{"a", 6}}},
		{3, []Capacity{{"a", 6}}},
		{4, []Capacity{{"a", 2}}},
		{6, []Capacity{{"a", 3}}},
		{9, nil},
	} {
		f.clock.at = epoch.Add(time.Duration(s.minute) * time.Minute)
		f.append(j, &Line{Event: EventPlan, Ready: s.ready})
	}
	type peak struct{ Ready, Minute int }
	none := peak{0, -1}
	look := func(t *testing.T, j *Journal, owner string, since int) (p peak) {
		t.Helper()
		err := j.View(func(l *Ledger) error {
			ready, at := l.Peak(owner, epoch.Add(time.Duration(since)*time.Minute))
			if p = (peak{ready, int(at.Sub(epoch) / time.Minute)}); at.IsZero() {
				p.Minute = -1
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, tc := range map[string]struct {
		owner string
		since int
		want  peak
	}{
		"the highest of all":              {"a", -1, peak{8, 0}},
		"at since is not after":           {"a", 0, peak{6, 3}},
		"the last time it was that high":  {"a", 1, peak{6, 3}},
		"between two":                     {"a", 2, peak{6, 3}},
		"a lower one that rose again":     {"a", 3, peak{3, 6}},
		"the same, from the lower one on": {"a", 4, peak{3, 6}},
		"nothing since":                   {"a", 6, none},
		"another owner":                   {"b", 0, peak{1, 1}},
		"nobody":                          {"c", -1, none},
	} {
		t.Run(name, func(t *testing.T) {
			for _, j := range []*Journal{j, f.open()} {
				if diff := cmp.Diff(tc.want, look(t, j, tc.owner, tc.since)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}

	f.clock.at = epoch.Add(12*time.Minute + time.Second)
	f.append(j, &Line{Event: EventReplayed})
	if diff := cmp.Diff(peak{6, 3}, look(t, j, "a", -1)); diff != "" {
		t.Errorf("ten minutes later (-want +got):\n%s", diff)
	}
	if n := len(j.ledger.peaks); n != 1 {
		t.Errorf("%d owners are remembered, want 1", n)
	}
	f.clock.at = epoch.Add(time.Hour)
	f.append(j, &Line{Event: EventReplayed})
	if n := len(j.ledger.peaks) + len(j.ledger.seen); n != 0 {
		t.Errorf("%d samples are remembered after an hour, want 0", n)
	}
}

// What was claimed and has no result: somebody is at work, or has to find out.
func TestUnsettled(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	soon := epoch.Add(time.Minute)
	reconciled := executeLine("e")
	reconciled.Event = EventReconciled
	for _, id := range []string{"d", "b", "a", "c", "e"} {
		f.append(j, planLine(id, soon))
	}
	f.append(j, intentLine("a", "c1"), intentLine("b", "c2"), intentLine("c", "c3"), executeLine("c"),
		&Line{Event: EventUnknown, Plan: "b"}, intentLine("e", "c5"), reconciled)
	for _, j := range []*Journal{j, f.open()} {
		var got []string
		if err := j.View(func(l *Ledger) error { got = l.Unsettled(); return nil }); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"b", "a"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// A result is replayed for 24 h from when it was on record, however old its plan was.
func TestResultIsRemembered(t *testing.T) {
	for _, event := range []string{EventExecute, EventReconciled} {
		f := newFixture(t)
		j := f.open()
		f.append(j, planLine("p1", epoch.Add(time.Hour)), planLine("p2", epoch.Add(time.Hour)))
		f.clock.at = epoch.Add(50 * time.Minute)
		f.append(j, intentLine("p1", "c1"))
		f.clock.at = epoch.Add(20 * time.Hour)
		l := executeLine("p1")
		l.Event = event
		f.append(j, l)
		f.clock.at = epoch.Add(44 * time.Hour)
		f.append(j, &Line{Event: EventReplayed})
		for _, j := range []*Journal{j, f.open()} {
			if r, err := j.Result("p1"); r == nil || err != nil || !stateOf(t, j, "p1").Done {
				t.Errorf("%s: 24 h after its result it is %s, %v", event, r, err)
			}
			if s := stateOf(t, j, "p2"); s.Planned {
				t.Errorf("%s: a plan of 44 h ago is remembered", event)
			}
		}
		f.clock.at = epoch.Add(45*time.Hour + time.Second)
		f.append(j, &Line{Event: EventReplayed})
		if n := len(j.ledger.plans) + len(j.ledger.order); n != 0 {
			t.Errorf("%s: %d are remembered after 25 h", event, n)
		}
	}
}

func TestOpenPlans(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	soon, late := epoch.Add(time.Minute), epoch.Add(time.Hour)
	noop := planLine("noop", late)
	noop.Record.Steps = nil
	f.append(j, planLine("zz", late), planLine("aa", late), planLine("short", soon), noop,
		planLine("claimed", late), intentLine("claimed", "c1"),
		planLine("done", late), intentLine("done", "c1"), executeLine("done"),
		planLine("stale", late), &Line{Event: EventStale, Plan: "stale"})
	for name, tc := range map[string]struct {
		now  time.Time
		want []string
	}{
		"oldest first": {epoch, []string{"zz", "aa", "short"}},
		"at expiry":    {soon, []string{"zz", "aa"}},
		"later":        {late, nil},
	} {
		t.Run(name, func(t *testing.T) {
			err := j.View(func(l *Ledger) error {
				if diff := cmp.Diff(tc.want, l.Open(tc.now)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// However long the file is, the fold holds what is younger than its windows.
func TestForget(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	const hours = 60
	for n := range hours * 4 { // four plans an hour
		f.clock.at = epoch.Add(time.Duration(n) * 15 * time.Minute)
		id := planID(n)
		p := planLine(id, f.clock.at.Add(time.Minute))
		p.Ready = []Capacity{{UID: id, Ready: n}}
		f.append(j, p, intentLine(id, "c1"), executeLine(id))
	}
	for _, j := range []*Journal{j, f.open()} {
		l := &j.ledger
		got := map[string]int{
			"plans": len(l.plans), "order": len(l.order), "writes": len(l.writes), "calls": len(l.calls),
			"peaks": len(l.peaks), "seen": len(l.seen), "names": len(l.names),
		}
		want := map[string]int{"plans": 101, "order": 202, "writes": 1, "calls": 1, "peaks": 1, "seen": 1, "names": 2}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		oldest := hours*4 - 101
		if s := stateOf(t, j, planID(oldest)); !s.Done {
			t.Errorf("a plan of 25 h ago is %+v, want it done", s)
		}
		if s := stateOf(t, j, planID(oldest-1)); s.Planned || s.Done {
			t.Errorf("an older plan is %+v, want it unknown", s)
		}
		if p, err := j.Record(planID(oldest - 1)); p != nil || err != nil {
			t.Errorf("an older plan has the record %v, %v", p, err)
		}
		if r, err := j.Result(planID(oldest)); r == nil || err != nil {
			t.Errorf("a plan of 25 h ago has the result %s, %v", r, err)
		}
	}
}
