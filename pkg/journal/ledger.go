package journal

import (
	"maps"
	"slices"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// How long the fold remembers, measured from the newest line. What is older is in the
// file only.
const (
	planMemory = 25 * time.Hour   // a result is replayed for 24 h, from its own line on
	rateMemory = 5 * time.Minute  // budgets are per minute
	peakMemory = 10 * time.Minute // of capacity
)

// Ledger is the state of every plan and budget: a fold over the lines. It holds a small
// record per plan of the last 25 h, or with a result of the last 25 h, and the windows below, whatever the file's size.
type Ledger struct {
	plans  map[string]*record
	order  []stamp // of plans: when they were made, and again when they had a result
	writes []stamp // of clusters: one per claimed plan, and per call in it
	calls  []stamp // of clusters: one per line that counts as a plan
	peaks  map[string][]sample
	seen   []stamp           // of owners: one per sample, so that what is old is found
	names  map[string]string // one copy of each cluster and action

	// under is the ledger that this one lies on, nil in one that stands alone. One on
	// another holds only what lines of a batch add or change, and forgets nothing.
	under *Ledger

	// source is where a ledger has its plans and budgets that is no fold over a file.
	source Source
}

// stamp is when something happened, and to what.
type stamp struct {
	at time.Time
	of string
}

// sample is how many ready pods an owner had. In a list, each has fewer than the one
// before it: the first one after a time is the highest since, at its last time.
type sample struct {
	at    time.Time
	ready int
}

// State is what is known of one plan; the zero State is of a plan that is not known,
// which may never be executed. The record and the result themselves stay in the file.
type State struct {
	Planned bool // a plan line exists
	Empty   bool // it changes nothing, so there is nothing to execute
	Claimed bool // a request may have been sent: never claim it again
	Unknown bool // the last word on its execution is that nobody knows
	Done    bool // the first result exists

	// Approved says that a person approved this plan, and no other one, while it was open.
	// It means nothing once the plan has ended or expired.
	Approved bool

	// Second says that who approved is another one than who planned, by an approval that
	// the cluster ledger has.
	Second bool

	Ended   string // "expired" (or the journal was recovered) or "stale", "" while it may still be executed
	Action  string
	Expires time.Time
	Writes  int // how many it counts as for the rate, once it is claimed; 0 is 1

	Claim     string    // of the process that executes or executed it
	ClaimInst string    // that process's Options.Inst
	ClaimedAt time.Time // of the first intent

	// Intents are the last intent of each attempted Step, in the order of the Steps, and
	// LastIntent is the newest of them; nil and zero once it is Done.
	Intents    []Intent
	LastIntent Intent

	// Steps are the last outcomes of its Steps so far, in their order; nil once it is
	// Done, since the result has them.
	Steps []plan.StepResult

	Verification *plan.Verification // the last verdict; not to be changed
}

// Intent is what was about to be sent, and whether the outcome is on record.
type Intent struct {
	Step, Attempt int // both from 1
	AuditID       string
	RV            string // that the request carried; "" where no line says it
	Since         string // the target's version at a read before the request
	Gen           int64  // the target's generation then, or where no line says it at an earlier read; 0 where it has none
	Time          time.Time
	Outcome       string // the code of its step line, "" where there is none
	Reason        string
}

// record is the State of a plan with where its lines stand.
type record struct {
	State
	steps        map[int]plan.StepResult // by number, from 1
	intents      map[int]Intent          // likewise, the last of each
	plan, result span
	until        time.Time // the newest of its stamps in Ledger.order
}

// Plan gives the state of a plan, the zero State if there is none or if it is older than
// 25 h.
func (l *Ledger) Plan(id string) State {
	r := l.record(id)
	if r == nil {
		return State{}
	}
	s := r.State
	for _, n := range slices.Sorted(maps.Keys(r.steps)) {
		s.Steps = append(s.Steps, r.steps[n])
	}
	for _, n := range slices.Sorted(maps.Keys(r.intents)) {
		s.Intents = append(s.Intents, r.intents[n])
	}
	if !s.Done {
		s.LastIntent = r.intents[s.LastIntent.Step] // with what its step line said
	}
	return s
}

// Unsettled gives the ids of the plans that were claimed and have no result, oldest
// first: their process is at work, or somebody has to find out.
func (l *Ledger) Unsettled() (ids []string) {
	if l.source != nil {
		return l.source.Unsettled()
	}
	for _, s := range l.stamps() {
		if r := l.record(s.of); r != nil && r.Claimed && !r.Done {
			ids = append(ids, s.of)
		}
	}
	return ids
}

// Writes are the times after since at which a plan of a cluster was claimed, ascending.
// Each plan counts once, however many requests it made, and one of several calls once for
// each of them. Five minutes are remembered.
func (l *Ledger) Writes(cluster string, since time.Time) []time.Time {
	if l.source != nil {
		return l.source.Writes(cluster, since)
	}
	var times []time.Time
	if l.under != nil {
		times = l.under.Writes(cluster, since)
	}
	return after(times, l.writes, cluster, since)
}

// Plans are the times after since of the calls that count as a plan, ascending: plans,
// failed dry runs, refusals of every kind, and calls that wait for a person. Rate-limited and replayed ones do not
// count. Five minutes are remembered.
func (l *Ledger) Plans(cluster string, since time.Time) []time.Time {
	if l.source != nil {
		return l.source.Plans(cluster, since)
	}
	var times []time.Time
	if l.under != nil {
		times = l.under.Plans(cluster, since)
	}
	return after(times, l.calls, cluster, since)
}

func after(times []time.Time, q []stamp, of string, since time.Time) []time.Time {
	n := 0
	for _, s := range q {
		if s.of == of && s.at.After(since) {
			n++
		}
	}
	times = slices.Grow(times, n)
	for _, s := range q {
		if s.of == of && s.at.After(since) {
			times = append(times, s.at)
		}
	}
	return times
}

// Peak is the highest number of ready pods that was recorded for an owner after since,
// and the last time at which it was that high; zero when nothing was. Ten minutes are
// remembered.
func (l *Ledger) Peak(ownerUID string, since time.Time) (ready int, at time.Time) {
	if l.source != nil {
		return l.source.Peak(ownerUID, since)
	}
	if l.under != nil {
		ready, at = l.under.Peak(ownerUID, since)
	}
	for _, s := range l.peaks[ownerUID] {
		if s.at.After(since) && s.ready >= ready {
			return s.ready, s.at
		}
	}
	return ready, at
}

// Open gives the ids of the plans that could still be executed at now, oldest first.
func (l *Ledger) Open(now time.Time) (ids []string) {
	for _, s := range l.stamps() {
		if r := l.record(s.of); r != nil && !r.Empty && !r.Claimed && r.Ended == "" && now.Before(r.Expires) {
			ids = append(ids, s.of)
		}
	}
	return ids
}

// add folds one line, and forgets what is too old by now.
func (l *Ledger) add(e *entry, at span) {
	if l.plans == nil {
		l.plans, l.peaks, l.names = map[string]*record{}, map[string][]sample{}, map[string]string{}
	}
	if e.Event == EventRecovered && e.Code != "" {
		l.recovered(e.Time)
	}
	l.forget(e.Time)
	for _, c := range e.Ready {
		l.seen = append(l.seen, stamp{e.Time, c.UID})
		l.peaks[c.UID] = rise(l.peaks[c.UID], sample{e.Time, c.Ready})
	}
	r := l.own(e.Plan)
	switch e.Event {
	case EventPlan, EventDryRunFailed, EventRefused, EventExpired, EventStale, EventWaiting:
		l.calls = append(l.calls, stamp{e.Time, l.name(e.Cluster)})
	}
	if (e.Event == EventPlan || e.Event == EventAdopted) && r == nil && e.Record != nil {
		r = &record{plan: at, State: State{Planned: true, Empty: true, Action: l.name(e.Record.Action), Expires: e.Record.Expires}}
		for _, s := range e.Record.Steps {
			r.Empty = r.Empty && s.Optional
		}
		for _, part := range e.Record.Parts {
			if part.Steps > 0 {
				r.Writes++
			}
		}
		l.plans[e.Plan] = r
		l.remember(r, e)
	}
	if r == nil {
		return // a call that made no plan, or one that is forgotten
	}
	switch e.Event {
	case EventExpired, EventStale:
		if !r.Claimed && r.Ended == "" {
			r.Ended = e.Event
		}
	case EventApproved:
		in := !r.Empty && !r.Claimed && r.Ended == "" && e.Time.Before(r.Expires)
		r.Approved, r.Second = r.Approved || in, r.Second || in && e.Channel == ChannelApproval
	case EventIntent:
		l.claim(r, e)
		if r.Done {
			return
		}
		if r.intents == nil {
			r.intents = map[int]Intent{}
		}
		r.LastIntent = Intent{Step: e.Step, Attempt: e.Attempt, AuditID: e.AuditID, Since: e.RV, Gen: e.Gen, Time: e.Time, Reason: e.Reason}
		r.intents[e.Step] = r.LastIntent
	case EventStep:
		l.claim(r, e)
		if r.Done {
			return
		}
		if r.steps == nil {
			r.steps = map[int]plan.StepResult{}
		}
		r.steps[e.Step] = plan.StepResult{
			Step: e.StepKey, Outcome: e.Code, Code: e.HTTP, AuditID: e.AuditID, RV: e.RV, Detail: e.Output, Untrusted: e.Untrusted,
		}
		if i, ok := r.intents[e.Step]; ok && i.Attempt == e.Attempt {
			if i.Outcome = e.Code; e.RV != "" {
				i.RV, i.Since, i.Gen = e.RV, e.RV, e.Gen
			}
			r.intents[e.Step] = i
		}
	case EventUnknown:
		l.claim(r, e)
		r.Unknown = !r.Done
	case EventExecute, EventReconciled:
		l.claim(r, e)
		if !r.Done {
			r.Done, r.Unknown, r.result, r.steps, r.intents, r.LastIntent = true, false, at, nil, nil, Intent{}
			l.remember(r, e)
		}
	case EventVerify:
		r.Verification = e.Verification
	}
}

// record is what is known of a plan, nil if nothing is. It is not to be changed.
func (l *Ledger) record(id string) *record {
	r := l.plans[id]
	switch {
	case r != nil:
	case l.under != nil:
		return l.under.record(id)
	case l.source != nil:
		return l.fetch(id)
	}
	return r
}

// own is a record of this very ledger, to be changed.
func (l *Ledger) own(id string) *record {
	r := l.record(id)
	if r == nil || l.under == nil || l.plans[id] != nil {
		return r
	}
	c := *r
	c.steps, c.intents = maps.Clone(r.steps), maps.Clone(r.intents)
	l.plans[id] = &c
	return &c
}

// stamps are those of all plans.
func (l *Ledger) stamps() []stamp {
	if l.under == nil {
		return l.order
	}
	return slices.Concat(l.under.stamps(), l.order)
}

// recovered is what an operator's recovery means: lines may be missing, claims among them,
// so that no plan made before may be executed; and the clock may have been set back.
func (l *Ledger) recovered(now time.Time) {
	for _, r := range l.plans {
		if !r.Claimed && r.Ended == "" {
			r.Ended = EventExpired
		}
		if r.until.After(now) {
			r.until = now
		}
	}
	for _, q := range [][]stamp{l.order, l.writes, l.calls, l.seen} {
		for i := range q {
			if q[i].at.After(now) {
				q[i].at = now
			}
		}
	}
	for _, samples := range l.peaks {
		for i := range samples {
			if samples[i].at.After(now) {
				samples[i].at = now
			}
		}
	}
}

// claim holds a plan for ever: its lines say that something may have been sent, also where
// the intent itself is not among them.
func (l *Ledger) claim(r *record, e *entry) {
	if !r.Claimed {
		r.Claimed, r.Claim, r.ClaimInst, r.ClaimedAt = true, e.Claim, e.Inst, e.Time
		for range max(r.Writes, 1) {
			l.writes = append(l.writes, stamp{e.Time, l.name(e.Cluster)})
		}
	}
}

// remember keeps a plan from now on as long as the memory is.
func (l *Ledger) remember(r *record, e *entry) {
	r.until = e.Time
	l.order = append(l.order, stamp{e.Time, e.Plan})
}

// rise adds a sample to an owner's, and drops those that can be the highest no more.
func rise(samples []sample, s sample) []sample {
	for len(samples) > 0 && samples[len(samples)-1].ready <= s.ready {
		samples = samples[:len(samples)-1]
	}
	return append(samples, s)
}

// forget drops what is too old at now, the time of the newest line.
func (l *Ledger) forget(now time.Time) {
	if l.under != nil {
		return
	}
	l.order = drop(l.order, now.Add(-planMemory), func(s stamp) {
		if r := l.plans[s.of]; r != nil && !r.until.After(s.at) {
			delete(l.plans, s.of)
		}
	})
	l.writes = drop(l.writes, now.Add(-rateMemory), nil)
	l.calls = drop(l.calls, now.Add(-rateMemory), nil)
	l.seen = drop(l.seen, now.Add(-peakMemory), func(s stamp) {
		kept := slices.DeleteFunc(l.peaks[s.of], func(p sample) bool { return !p.at.After(s.at) })
		if l.peaks[s.of] = kept; len(kept) == 0 {
			delete(l.peaks, s.of)
		}
	})
}

// drop takes what happened before the time limit off the front.
func drop(q []stamp, limit time.Time, gone func(stamp)) []stamp {
	n := 0
	for ; n < len(q) && q[n].at.Before(limit); n++ {
		if gone != nil {
			gone(q[n])
		}
		q[n] = stamp{}
	}
	return q[n:]
}

// name gives one copy of a string that many records share.
func (l *Ledger) name(s string) string {
	if one, ok := l.names[s]; ok {
		return one
	}
	l.names[s] = s
	return s
}
