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

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
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
	return e.carryOut(ctx, c, p, d, began)
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
func (e *Engine) carryOut(ctx context.Context, c Call, p *plan.Plan, d action.Decoded, began time.Time) (*Execution, error) {
	for {
		f, mine := e.flights.enter(p.ID)
		if mine {
			e.work.Go(func() {
				run := &execution{Engine: e, call: c, args: d.Args, reason: d.Reason, p: p, flight: f}
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

// open decides steps 3, 4, 5 and 8: executed already, in flight elsewhere, expired, over
// the rate. It runs once to save work and once under the append lock.
func (e *Engine) open(l *journal.Ledger, p *plan.Plan, now time.Time) error {
	limits := e.cfg.Policy.For(namespaceOf(p))
	switch st := l.Plan(p.ID); {
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
	case !now.Before(p.Expires):
		return refusal.New(refusal.Expired, "plan again", "the plan expired at %s", p.Expires.UTC().Format(time.RFC3339))
	}
	wall := e.wall()
	if r := gate.Rate("write", l.Writes(p.Cluster, wall.Add(-time.Minute)), limits.WritesPerMinute, wall); r != nil {
		return r
	}
	return nil
}

func namespaceOf(p *plan.Plan) string {
	if len(p.Steps) == 0 {
		return ""
	}
	return p.Steps[0].Target.Namespace
}

// execution is one run of a plan.
type execution struct {
	*Engine
	call   Call
	args   action.Args
	reason string
	p      *plan.Plan
	flight *flight

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
	if err := x.awaitOpen(ctx); err != nil { // 3, 4, 5, 8
		return nil, err
	}
	limits, err := x.gates(ctx, x.call.Action, x.args, x.p.Undoes != "") // 6; 7: a plan that needs a person has no phrase
	if err != nil {
		return nil, err
	}
	got, d, err := x.again(ctx, limits) // 9
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
	return x.execute(ctx, got, d)
}

// again plans once more from live state and decides whether the plan still holds.
func (x *execution) again(ctx context.Context, limits gate.Limits) (*passed, drifted, error) {
	got, err := x.pass(ctx, x.call, x.args, x.p, true)
	if err != nil {
		return nil, drifted{}, x.explain(ctx, x.args, err)
	}
	if got.cluster != x.p.Cluster {
		return nil, drifted{}, refusal.New(refusal.Stale, "plan again", "this is another cluster (%s, planned on %s)", got.cluster, x.p.Cluster)
	}
	d := x.drift(got)
	if d.stale != nil {
		return nil, d, refusal.New(refusal.Stale, "plan again", "%s", strings.Join(d.stale, "; "))
	}
	if x.p.Undoes != "" {
		old, err := x.undoable(x.call, x.p.Undoes)
		if err == nil {
			err = got.takesBack(old)
		}
		if err != nil {
			return nil, d, err
		}
	}
	if r := limits.Cap(got.steps()); r != nil && !got.exempt(x.p) {
		return nil, d, r
	}
	if err := x.planGates(got, x.p); err != nil {
		r := err.(*refusal.Refusal)
		return nil, d, refusal.New(refusal.Stale, "plan again", "the blast radius has grown since the plan: %s", r.Error())
	}
	return got, d, nil
}

// drifted is what the second pass found, matched with what was planned.
type drifted struct {
	send              []int // indexes into the plan's Steps
	skipped, leftOver []string
	stale, notes      []string
}

// drift compares the plan with the plan as it would be made now. A Step that comes out
// equal is good; one that differs makes the plan stale, unless it is Optional; one no
// longer needed is skipped; one that was not planned is never sent.
func (x *execution) drift(got *passed) (d drifted) {
	live := map[string]plan.Step{}
	for _, s := range got.steps() {
		live[s.Key()] = s
	}
	needed := false
	for i, want := range x.p.Steps {
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
	for _, loss := range newLosses(x.p.Blast.Losses, got.effect.Blast.Losses) {
		d.stale = append(d.stale, "a loss that was not planned: "+loss)
	}
	if d.stale == nil && !needed {
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
