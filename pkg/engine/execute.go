package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// Execution is the answer of a write tool.
type Execution struct {
	Plan     *plan.Plan
	Outcome  plan.Outcome
	Result   json.RawMessage    // the first result, byte for byte; nil while there is none
	Replayed bool               // nothing was run for this call
	Current  *plan.Verification // the last verdict on record
	Detail   string             // of an outcome that is no result
	Steps    []plan.StepResult  // what is done so far, of an outcome that is no result
	Question *Question          // for a person, with no outcome: the same call with the answer goes on

	NotOnRecord bool // a read that the journal could not take
}

// Execute does what a plan described, at most once. The same confirm gives the same first
// result. The error is always a *refusal.Refusal, and it is on record unless its code is
// audit_unavailable.
//
// Once a claim is written the caller's context counts no more: the write goes on, is
// recorded, and a repeated call returns its result.
func (e *Engine) Execute(ctx context.Context, c Call) (*Execution, error) {
	began := e.now()
	c = e.begin(c)
	d, err := c.Action.Decode(e.ExecuteSchema(c.Action), c.Raw)
	p, err := e.unlessGuessed(c, d.Confirm, err) // 1
	if err != nil {
		return nil, e.refuse(c, nil, err)
	}
	if p.Action != c.Action.Name || p.Undoes != "" || !bytes.Equal(d.Canonical, p.Args) { // 2
		tool, planned := p.Call()
		return nil, e.refuse(c, p, refusal.New(refusal.WrongArguments, "call "+tool+" with exactly the planned arguments, or plan again",
			"the phrase belongs to %s %s, called was %s %s", tool, planned, c.Action.Name, d.Canonical))
	}
	return e.carryOut(ctx, c, p, one(c.Action, d), d.Reason, began)
}

// unlessGuessed gives the plan that a phrase confirms, where err does not stand in the
// way. Guesses count as plans, and over their rate nothing is said about them.
func (e *Engine) unlessGuessed(c Call, confirm string, err error) (p *plan.Plan, _ error) {
	if err == nil {
		p, err = e.confirmed(c, confirm)
	}
	if err != nil {
		if over := e.j.View(e.withinPlanRate); over != nil {
			err = over
		}
	}
	return p, err
}

// carryOut executes a plan whose phrase and arguments were right, or gives what came of
// it before.
func (e *Engine) carryOut(ctx context.Context, c Call, p *plan.Plan, r request, reason string, began time.Time) (*Execution, error) {
	if ask, err := e.person(ctx, c, p, r, reason, began.Add(e.cfg.VerifyWait)); ask != nil || err != nil {
		return ask, err
	}
	for {
		f, mine := e.flights.enter(p.ID)
		if mine {
			e.work.Go(func() {
				run := &execution{Engine: e, request: r, call: c, reason: reason, p: p, flight: f}
				defer e.flights.leave(p.ID, f)
				defer run.recover()
				if f.answer, f.err = run.run(ctx); f.err == nil && f.answer.Outcome == plan.Executed {
					f.verdict = e.verify(ctx, c, p)
				}
			})
		}
		landed := f.await(ctx, e.cfg.VerifyWait-e.now().Sub(began), c.Progress, len(p.Steps))
		if !landed || ctx.Err() != nil { // where the client is not there to read it, what was begun goes on
			return e.inProgress(c, p, itGoesOn, f.steps())
		}
		switch {
		case errors.Is(f.err, errDone), !mine && f.err == nil && f.answer.Result != nil:
			return e.replay(c, p)
		case !mine && f.err == nil:
			return e.foundOut(ctx, c, p, e.cfg.VerifyWait-e.now().Sub(began))
		case errors.Is(f.err, errAbandoned):
			continue // another caller's, which went away before anything was claimed
		case errors.Is(f.err, errBusy):
			return e.inProgress(c, p, itIsElsewhere, nil)
		case errors.Is(f.err, errUnknown):
			return e.foundOut(ctx, c, p, e.cfg.VerifyWait-e.now().Sub(began))
		case f.err != nil:
			return nil, e.refuse(c, p, f.err)
		case f.verdict != nil:
			f.answer.Current = e.await(ctx, f.verdict, e.cfg.VerifyWait-e.now().Sub(began))
		}
		return f.answer, nil
	}
}

// What a run may end with beside a result or a refusal.
var (
	errDone      = errors.New("executed already")
	errBusy      = errors.New("being executed elsewhere")
	errUnknown   = errors.New("the outcome is unknown")
	errAbandoned = errors.New("the caller went away before anything was claimed")
)

// confirmed finds the plan that a phrase confirms. Nothing is said about plans of other
// principals, and the phrase is compared in whole and in constant time.
func (e *Engine) confirmed(c Call, confirm string) (*plan.Plan, error) {
	unknown := refusal.New(refusal.UnknownPhrase, "plan first, then send its whole phrase unchanged, sentence and code", "this phrase confirms no plan: it is not one that this server issued to you")
	_, id, ok := plan.SplitPhrase(confirm)
	if !ok {
		return nil, unknown
	}
	p, err := e.j.Record(id)
	switch {
	case err != nil:
		return nil, refusal.New(refusal.RecordMissing, "plan again", "the record of plan %s cannot be read: %v", id, err)
	case p == nil || p.Principal != c.Principal.String():
		return nil, unknown
	}
	key, err := e.keys.Derive(p.KeyID, "confirm")
	switch {
	case err != nil:
		return nil, refusal.New(refusal.KeyUnknown, "plan again", "plan %s was signed with a key that this server does not have", id)
	case !p.Confirms(confirm, key):
		return nil, unknown
	}
	return p, nil
}

// open decides steps 3, 4, 5, 7 and 8: executed already, in flight elsewhere, expired, not
// approved, over the rate. It runs once to save work and once under the append lock.
func (e *Engine) open(l *journal.Ledger, p *plan.Plan, now time.Time) error {
	st := l.Plan(p.ID)
	switch {
	case st.Done:
		return errDone
	case st.Unknown:
		return errUnknown
	case st.Claimed:
		return errBusy
	case !st.Planned:
		return refusal.New(refusal.RecordMissing, "plan again", "plan %s is not on record any more", p.ID)
	case st.Ended != "":
		return refusal.New(refusal.Code(st.Ended), "plan again", "plan %s has ended: it is %s", p.ID, st.Ended)
	}
	if why := lapsed(p, now); why != "" {
		return refusal.New(refusal.Expired, "plan again", "%s", why)
	}
	if err := e.approved(p, st); err != nil {
		return err
	}
	if r := e.writeRate(l, p); r != nil {
		return r
	}
	return nil
}

// maxAhead is how far the clock of the process that planned may be ahead of this one's.
const maxAhead = time.Minute

// lapsed says why a plan is good no more, "" while it is. Its times are by the clock of the
// process that planned: one that was ahead gives it more time than it was made for.
func lapsed(p *plan.Plan, now time.Time) string {
	switch ahead := p.Created.Sub(now); {
	case !now.Before(p.Expires):
		return "the plan expired at " + p.Expires.UTC().Format(time.RFC3339)
	case ahead > maxAhead:
		return fmt.Sprintf("the plan counts as expired: it was made at %s by the clock of the process that planned it, which is %s ahead of the clock of this one",
			p.Created.UTC().Format(time.RFC3339), ahead.Round(time.Second))
	}
	return ""
}

// execution is one run of a plan.
type execution struct {
	*Engine
	call    Call
	request request // what is planned again
	reason  string
	p       *plan.Plan
	flight  *flight

	claim   string
	began   time.Time
	pending []*journal.Line // outcome lines that go to disk with the next intent
	results map[int]*plan.StepResult
}

// recover turns a panic into an answer: the process has other writes in flight.
func (x *execution) recover() {
	p := recover()
	if p == nil {
		return
	}
	x.cfg.Log.Error("panic", "plan", x.p.ID, "panic", p, "stack", string(debug.Stack()))
	x.flight.answer, x.flight.err = nil, errors.New("internal fault")
	if x.claimed() {
		x.flight.err = errUnknown
	}
}

func (x *execution) run(ctx context.Context) (*Execution, error) {
	caller := ctx
	ctx = context.WithoutCancel(ctx)
	if err := x.awaitOpen(ctx); err != nil { // 3, 4, 5, 7, 8
		return nil, err
	}
	if _, err := x.admit(ctx, x.request, x.p.Undoes != ""); err != nil { // 6
		return nil, x.explainAll(ctx, x.request, err)
	}
	got, d, err := x.again(ctx, x.request) // 9
	if err != nil {
		// Another process may have executed the plan in the meantime; then that is why.
		if other := x.awaitOpen(ctx); errors.Is(other, errDone) || errors.Is(other, errBusy) || errors.Is(other, errUnknown) {
			return nil, other
		}
		return nil, err
	}
	if caller.Err() != nil {
		return nil, errAbandoned
	}
	done, err := x.execute(ctx, got, d)
	if errors.Is(err, errBusy) { // another process claimed it just now
		if other := x.awaitOpen(ctx); other != nil {
			err = other
		}
	}
	return done, err
}

// again plans once more from live state and decides whether the plan, or the part of it that
// a request is, still holds.
func (x *execution) again(ctx context.Context, r request) (*passed, drifted, error) {
	got, err := x.pass(ctx, x.call, r, x.p, true)
	if err != nil {
		return nil, drifted{}, x.explainAll(ctx, r, err)
	}
	if got.cluster != x.p.Cluster {
		return nil, drifted{}, refusal.New(refusal.Stale, "plan again", "this is another cluster (%s, planned on %s)", got.cluster, x.p.Cluster)
	}
	d := x.drifts(got, r)
	if d.stale != nil {
		return nil, d, refusal.New(refusal.Stale, "plan again", "%s", strings.Join(d.stale, "; "))
	}
	if x.p.Undoes != "" {
		old, err := x.undoable(x.call, x.p.Undoes)
		if err == nil {
			err = got.takeBack(old)
		}
		if err != nil {
			return nil, d, err
		}
	}
	if r := x.caps(got.steps()); r != nil && !got.exempt(x.p) {
		return nil, d, r
	}
	st, err := x.state(x.p.ID)
	if err != nil {
		return nil, d, unavailable(err)
	}
	if no := x.withinWindows(got, r, false, st.Approved); no != nil {
		return nil, d, no
	}
	person, err := x.planGates(got, x.p)
	if err == nil && len(person) > x.p.Decided() {
		err = errors.New(strings.Join(person, "; "))
	}
	if err != nil {
		return nil, d, refusal.New(refusal.Stale, "plan again", "the blast radius has grown since the plan: %s", err.Error())
	}
	return got, d, nil
}

// drifted is what the second pass found, matched with what was planned.
type drifted struct {
	send              []int // indexes into the plan's Steps
	skipped, leftOver []string
	stale, notes      []string
}

// drifts compares every call of a request by itself: each is held to what a plan of its
// own would be.
func (x *execution) drifts(got *passed, r request) (d drifted) {
	if !r.several() {
		d = x.drift(got, 0, len(x.p.Steps))
	}
	for i := range got.parts {
		if !r.several() {
			break
		}
		from, to := x.p.Span(r.first + i)
		d.add(x.drift(got.of(i), from, to), r.first+i)
	}
	for _, loss := range newLosses(x.p.Blast.Losses, got.effect.Blast.Losses) {
		d.stale = append(d.stale, "a loss that was not planned: "+loss)
	}
	return d
}

// add takes over what was found about one of several calls.
func (d *drifted) add(of drifted, call int) {
	d.send, d.skipped, d.notes = append(d.send, of.send...), append(d.skipped, of.skipped...), append(d.notes, of.notes...)
	for _, s := range of.leftOver {
		d.leftOver = append(d.leftOver, leftOverOf(call)+s)
	}
	for _, s := range of.stale {
		d.stale = append(d.stale, fmt.Sprintf("steps[%d]: %s", call, s))
	}
}

// drift compares the Steps of a plan, or of one call of it, with what would be planned now.
// A Step that comes out equal is good; one that differs makes the plan stale, unless it is
// Optional; one no longer needed is skipped; one that was not planned is never sent.
func (x *execution) drift(got *passed, from, to int) (d drifted) {
	live := map[string]plan.Step{}
	for _, s := range got.steps() {
		live[s.Key()] = s
	}
	needed := false
	for n, want := range x.p.Steps[from:to] {
		i := from + n
		now, ok := live[want.Key()]
		delete(live, want.Key())
		switch {
		case want.Optional && !(ok && now.Sealed(x.keys.Redact).Equal(want)):
			d.notes = append(d.notes, "the reason was not noted on the object: what was planned to be noted over has changed")
		case !ok:
			d.skipped = append(d.skipped, want.Key())
		case !now.Sealed(x.keys.Redact).Equal(want):
			d.stale = append(d.stale, differs(want, now)...)
		default:
			d.send = append(d.send, i)
			needed = needed || !want.Optional
		}
	}
	for _, s := range got.steps() {
		if _, left := live[s.Key()]; left && !s.Optional {
			d.leftOver = append(d.leftOver, s.Key())
		}
	}
	switch {
	case from == to && d.leftOver != nil:
		d.stale = []string{"it was so already, and is not any more"}
	case d.stale == nil && !needed && to > from:
		d.stale = []string{"nothing is left to do: it is so already"}
	}
	return d
}

func newLosses(planned, now []string) (fresh []string) {
	known := map[string]bool{}
	for _, l := range planned {
		known[l] = true
	}
	for _, l := range now {
		if !known[l] {
			fresh = append(fresh, l)
		}
	}
	return fresh
}

// differs names the fields in which a Step came out different.
func differs(want, now plan.Step) (out []string) {
	if want.Target.UID != now.Target.UID {
		return []string{fmt.Sprintf("%s is another object now (uid %s, planned for %s)", want.Target, now.Target.UID, want.Target.UID)}
	}
	for i, c := range want.Changes {
		if i < len(now.Changes) && c != now.Changes[i] {
			out = append(out, fmt.Sprintf("%s of %s: planned %s, now %s", c.Field, want.Target, c.Old, now.Changes[i].Old))
		}
	}
	if out == nil {
		out = []string{want.Key() + " would be another request now"}
	}
	return out
}

// awaitOpen waits, at most as long as a call may, for another process that holds the
// claim.
func (x *execution) awaitOpen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, x.cfg.VerifyWait)
	defer cancel()
	for pause := pollJournal; ; pause = min(2*pause, pollJournalMost) {
		var st journal.State
		err := x.j.View(func(l *journal.Ledger) error {
			st = l.Plan(x.p.ID)
			return x.open(l, x.p, x.now())
		})
		switch {
		case !errors.Is(err, errBusy):
			return err
		case x.late.has(x.p.ID):
			return unrecorded(errors.New("the journal has not taken it yet"))
		case x.orphaned(x.p, st, true):
			return errUnknown
		}
		select {
		case <-ctx.Done():
			return errBusy
		case <-x.stop.Done():
			return errBusy
		case <-time.After(pause):
		}
	}
}

// How often the journal is looked at for another process's outcome; each look takes the
// lock of all processes.
const (
	pollJournal     = 50 * time.Millisecond
	pollJournalMost = time.Second
)

// replay gives the first result again, unchanged, with the last verdict beside it. It
// makes no API call.
func (e *Engine) replay(c Call, p *plan.Plan) (*Execution, error) {
	if err := e.append(about(e.line(c, journal.EventReplayed), p)); err != nil {
		return nil, unavailable(err)
	}
	x, err := e.recorded(p)
	if err != nil {
		return nil, refusal.New(refusal.RecordMissing, "look at the audit log", "the result of plan %s cannot be read: %v", p.ID, err)
	}
	x.Replayed = true
	return x, nil
}

// recorded is a plan's first result as it stands on record.
func (e *Engine) recorded(p *plan.Plan) (*Execution, error) {
	raw, err := e.j.Result(p.ID)
	if err != nil {
		return nil, err
	}
	var res plan.Result
	if err := json.Unmarshal(raw, &res); err != nil {
		return nil, err
	}
	x := &Execution{Plan: p, Outcome: res.Outcome, Result: raw}
	err = e.j.View(func(l *journal.Ledger) error {
		x.Current = l.Plan(p.ID).Verification
		return nil
	})
	if x.Current == nil && x.Outcome == plan.Executed {
		x.Current = e.verifying()
		if x.Current.Time.Sub(res.Time) > e.cfg.VerifyTimeout+verdictLate {
			x.Current.Verdict, x.Current.Reason = plan.TimedOut, "no verdict came: the process that looked has ended, or could not record it; look at the object"
		}
	}
	return x, err
}

// verdictLate is how long after --verify-timeout a verdict may still come on record.
const verdictLate = 10 * time.Second

func (e *Engine) inProgress(c Call, p *plan.Plan, detail string, done []plan.StepResult) (*Execution, error) {
	if err := e.append(about(e.line(c, journal.EventInProgress), p)); err != nil {
		return nil, unavailable(err)
	}
	return &Execution{Plan: p, Outcome: plan.InProgress, Steps: done, Detail: detail}, nil
}

// What a call is told that gives no result yet.
const (
	itGoesOn      = "it goes on; call again with the same phrase for the rest, nothing is sent twice"
	itIsElsewhere = "another process is at work on it; call again with the same phrase, nothing is sent twice"
)

// foundOut waits until what was unknown is found out, at most for wait, and gives the
// result.
func (e *Engine) foundOut(ctx context.Context, c Call, p *plan.Plan, wait time.Duration) (*Execution, error) {
	select {
	case <-e.findOut(p):
	case <-time.After(wait):
	case <-ctx.Done():
	case <-e.stop.Done():
	}
	st, err := e.state(p.ID)
	switch {
	case err != nil:
		return nil, unavailable(err)
	case st.Done:
		return e.replay(c, p)
	}
	if err := e.append(about(e.line(c, journal.EventInProgress), p)); err != nil {
		return nil, unavailable(err)
	}
	return &Execution{Plan: p, Outcome: plan.Unknown, Steps: st.Steps, Detail: unknownDetail}, nil
}

const unknownDetail = "the request may have been applied, or may still be; it is never sent again. What became of it is being found out, which takes up to 45 s: call again with the same phrase for the result"

// flights lets one call per plan through in this process; the others wait for it.
type flights struct {
	mu   sync.Mutex
	busy map[string]*flight
}

type flight struct {
	done chan struct{}

	// Valid once done is closed; only the flight's own call touches the answer then.
	answer  *Execution
	err     error
	verdict <-chan plan.Verification // nil where there is nothing to verify

	mu   sync.Mutex
	seen []plan.StepResult
}

func (f *flights) enter(id string) (fl *flight, mine bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl, ok := f.busy[id]; ok {
		return fl, false
	}
	if f.busy == nil {
		f.busy = map[string]*flight{}
	}
	fl = &flight{done: make(chan struct{})}
	f.busy[id] = fl
	return fl, true
}

// has reports whether a plan is being executed in this process.
func (f *flights) has(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.busy[id]
	return ok
}

func (f *flights) leave(id string, fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.busy, id)
	close(fl.done)
}

// await waits for a flight, at most for wait, and tells a caller that asked for it how many
// of the steps are through. It reports whether the flight has ended.
func (f *flight) await(ctx context.Context, wait time.Duration, tell func(string), steps int) bool {
	over := time.After(wait)
	for {
		select {
		case <-f.done:
			return true
		case <-over:
		case <-ctx.Done():
		case <-time.After(progress):
			if tell != nil {
				tell(fmt.Sprintf("%d of %d steps are through", len(f.steps()), steps))
			}
			continue
		}
		return false
	}
}

func (f *flight) add(r plan.StepResult) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, r)
}

func (f *flight) steps() []plan.StepResult {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]plan.StepResult(nil), f.seen...)
}
