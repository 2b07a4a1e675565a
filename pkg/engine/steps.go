package engine

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// The bounds of an execution's requests.
const (
	sendWindow   = 5 * time.Second // a claim that is older when its request would go out sends nothing
	retryWindow  = 5 * time.Second // how long a Step that meets 409s is tried again
	retryPause   = 20 * time.Millisecond
	budgetPause  = 2 * time.Second // before an eviction is tried again, growing to budgetMost
	budgetMost   = 5 * time.Second
	observeAfter = 2 * time.Second
	readTimeout  = 10 * time.Second
)

// The outcomes of one Step, as its StepResult names them.
const (
	stepApplied    = "applied"
	stepGone       = "gone" // the pod left before its turn
	stepNotApplied = "not applied"
	stepNotSent    = "not sent"
	stepBlocked    = "blocked"
	stepUnknown    = "unknown"

	stepIndeterminate = "indeterminate" // nobody can find out
)

// work is one Step on its way.
type work struct {
	n        int // from 1, in the plan's order
	step     plan.Step
	gen      int64  // the target's generation at the last read
	rv       string // and its version
	attempt  int
	pause    time.Duration
	notUntil time.Time
}

// saw keeps what the evidence about a lost answer rests on.
func (w *work) saw(o plan.Object) {
	w.gen, w.rv = generation(o), o.Value("metadata.resourceVersion")
}

// execute sends the Steps: one claim, then for each attempt an intent on disk, one last
// read, one request, its outcome. Of several calls each is looked at again before its turn,
// and the first one that differs or fails is the last.
func (x *execution) execute(ctx context.Context, got *passed, d drifted) (*Execution, error) {
	id, err := x.newID()
	if err != nil {
		return nil, err
	}
	x.claim, x.results = id, map[int]*plan.StepResult{}
	if x.request.several() {
		return x.inTurn(ctx, got)
	}
	outcome, notes, answer, err := x.sendAll(ctx, got, d)
	if answer != nil || err != nil {
		return answer, err
	}
	return x.conclude(ctx, got, d, outcome, notes)
}

// sendAll sends what a pass and its comparison came to. An answer is that of an outcome that
// is unknown, and an error says that nothing was sent. Steps that wait for a disruption
// budget let the others pass.
func (x *execution) sendAll(ctx context.Context, got *passed, d drifted) (outcome plan.Outcome, notes []string, answer *Execution, err error) {
	x.began = x.now()
	again := map[string]action.Proposal{} // equal to what is on record, and whole
	for _, pr := range got.Proposals {
		again[pr.Step.Key()] = pr
	}
	var queue []*work
	for _, i := range d.send {
		pr := again[x.p.Steps[i].Key()]
		w := &work{n: i + 1, step: pr.Step, pause: budgetPause}
		w.saw(pr.Object)
		queue = append(queue, w)
	}
	outcome, notes = plan.Executed, d.notes
	fail := func() {
		if outcome == plan.Executed {
			outcome = plan.Failed
		}
	}
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		if w.step.Optional && (outcome != plan.Executed || x.stop.Err() != nil) {
			continue
		}
		if wait := w.notUntil.Sub(x.now()); wait > 0 {
			if !x.sleep(ctx, wait) {
				fail()
				break
			}
		}
		if x.claimed() && x.stop.Err() != nil {
			fail()
			x.keep(w, plan.StepResult{Outcome: stepNotSent, Detail: "the server was stopped"})
			continue
		}
		r, err := x.attempt(ctx, w)
		switch {
		case err != nil && !x.claimed():
			return outcome, nil, nil, err // nothing was sent
		case err != nil:
			if w.step.Optional {
				notes = append(notes, "the reason was not noted on the object: the journal cannot be written")
			} else {
				fail()
			}
			queue, r = nil, plan.StepResult{Outcome: stepNotSent, Detail: "the journal cannot be written"}
		case r.Outcome == stepUnknown && !w.step.Optional:
			x.keep(w, r)
			answer, err = x.leaveUnknown(r)
			return outcome, nil, answer, err
		case r.Outcome == stepBlocked && x.now().Sub(x.began)+w.pause < w.step.Timeout():
			w.notUntil = x.now().Add(w.pause)
			w.pause = min(w.pause*2, budgetMost)
			queue = append(queue, w)
			continue
		case w.step.Optional && r.Outcome != stepApplied:
			notes = append(notes, fmt.Sprintf("the reason was not noted on the object (%d)", r.Code))
		case r.Outcome != stepApplied && r.Outcome != stepGone:
			fail()
			if w.step.OnBudget != plan.Wait {
				queue = nil // the Steps behind rest on this one
			}
		}
		x.keep(w, r)
	}
	return outcome, notes, nil, nil
}

func (x *execution) claimed() bool { return len(x.results) > 0 || x.pending != nil }

// keep keeps the last word on a Step.
func (x *execution) keep(w *work, r plan.StepResult) {
	r.Step = w.step.Key()
	x.results[w.n] = &r
	x.flight.add(r)
}

// sleep waits unless the server stops; outcome lines do not wait with it.
func (x *execution) sleep(ctx context.Context, d time.Duration) bool {
	if err := x.flush(); err != nil {
		return false
	}
	select {
	case <-time.After(d):
		return true
	case <-x.stop.Done():
		return true // the caller sees it and sends nothing more
	case <-ctx.Done():
		return false
	}
}

func (x *execution) flush() error {
	if x.pending == nil {
		return nil
	}
	if err := x.append(x.pending...); err != nil {
		return err
	}
	x.pending = []*journal.Line{}
	return nil
}

// attempt makes the attempts of one Step until there is something to say: a 409 with
// unchanged values is tried again for retryWindow, since status writes alone cause it.
func (x *execution) attempt(ctx context.Context, w *work) (plan.StepResult, error) {
	first := x.now()
	for {
		w.attempt++
		sendBefore := time.Now().Add(sendWindow) // monotonic: a paused process sends nothing late
		id := fmt.Sprintf("kube-write-mcp-%s-s%d-x%d", x.p.ID, w.n, w.attempt)
		if err := x.intend(w, id); err != nil {
			return plan.StepResult{}, err
		}
		r := plan.StepResult{AuditID: id}
		slots, why, gone := x.lastLook(ctx, w)
		switch {
		case gone:
			r.Outcome, r.Detail = stepGone, why
		case why != "":
			r.Outcome, r.Detail = stepNotApplied, why
		case time.Now().After(sendBefore):
			r.Outcome, r.Detail = stepNotApplied, "claim too old: this process was paused"
		default:
			x.send(ctx, w, slots, sendBefore, &r)
		}
		x.outcome(w, r)
		if r.Code != 409 || !retried[w.step.Verb] || x.now().Sub(first) > retryWindow {
			return r, nil
		}
		time.Sleep(retryPause)
	}
}

// retried are the verbs whose 409 says that the version was stale. That of an eviction or
// a delete says that the pod is another one, that of a create that the name is taken.
var retried = map[plan.Verb]bool{plan.Patch: true, plan.Scale: true}

// made looks for what a create makes: whether there is an object of that name, and whether
// it bears the mark of this plan.
func (x *execution) made(ctx context.Context, s plan.Step) (there, ours bool, err error) {
	o, err := x.k.Read.Get(ctx, s.Subject())
	if apierrors.IsNotFound(err) {
		return false, false, nil
	}
	return err == nil, err == nil && bearsMark(o, x.p.ID), err
}

// intend puts the intent of one request on disk, with the outcomes before it. The first
// intent is the claim: steps 3, 4, 5, 7 and 8 are decided again under the lock.
func (x *execution) intend(w *work, auditID string) error {
	l := about(x.line(x.call, journal.EventIntent), x.p)
	l.Claim, l.Step, l.Attempt, l.StepKey, l.AuditID = x.claim, w.n, w.attempt, w.step.Key(), auditID
	l.StepDigest = hex.EncodeToString(plan.Digest([]plan.Step{x.p.Steps[w.n-1]}))[:16]
	l.Target, l.Reason, l.Gen, l.RV = &w.step.Target, x.reason, w.gen, w.rv
	l.SendNotAfter = x.now().Add(sendWindow).UTC()
	first := !x.claimed()
	err := x.j.Append(func(led *journal.Ledger) ([]*journal.Line, error) {
		if first {
			if err := x.open(led, x.p, x.now()); err != nil {
				return nil, err
			}
		} else if led.Plan(x.p.ID).Done {
			return nil, errDone // settled by a process that took this one for dead: nothing more is sent
		}
		return append(slices.Clone(x.pending), l), nil
	})
	if err == nil {
		x.pending = []*journal.Line{}
		x.call.record.written()
	}
	return err
}

// lastLook reads the target once more, after the intent is on disk: the version that the
// request will carry is the one at which the shown values were seen to hold.
func (x *execution) lastLook(ctx context.Context, w *work) (sl plan.Slots, why string, gone bool) {
	s := w.step
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	o, err := x.k.Read.Get(ctx, s.Target)
	removal := s.Verb == plan.Evict || s.Verb == plan.Delete
	switch {
	case apierrors.IsNotFound(err):
		return sl, s.Target.String() + " is gone", removal
	case err != nil:
		return sl, kube.Refuse(err).Error(), false
	}
	if moved := s.Moved(o); moved != nil {
		return sl, moved[0], removal && s.OnBudget == plan.Wait
	}
	w.saw(o)
	if s.Verb == plan.Create {
		if there, _, err := x.made(ctx, s); err != nil {
			return sl, kube.Refuse(err).Error(), false
		} else if there {
			return sl, s.Subject().String() + " exists already", false
		}
	}
	sl = s.Fill(o)
	sl.Reason = x.reason
	return sl, "", false
}

// send makes the one request of an attempt.
func (x *execution) send(ctx context.Context, w *work, sl plan.Slots, notAfter time.Time, r *plan.StepResult) {
	ctx, cancel := context.WithTimeout(ctx, kube.WriteTimeout)
	defer cancel()
	ans, err := x.k.Live.Send(kube.As(ctx, x.call.as()), x.p.ID, r.AuditID, w.step, sl, notAfter)
	r.Code, r.RV = ans.Code, sl.ResourceVersion
	if err != nil {
		r.Untrusted = kube.Text(err)
	}
	switch ans.Class {
	case kube.Applied:
		r.Outcome = stepApplied
		if err := asAsked(w.step, ans); err != nil {
			r.Detail = err.Error()
		}
	case kube.Unknown:
		r.Outcome = stepUnknown
	default:
		r.Outcome = stepNotApplied
		if ans.Class == kube.Throttled && w.step.OnBudget == plan.Wait {
			r.Outcome = stepBlocked
		}
		if ans.Code == 404 && w.step.Verb == plan.Evict {
			r.Outcome = stepGone
		}
		if ans.Code == 409 && w.step.Verb == plan.Create { // AlreadyExists: ours has the plan's mark
			if _, ours, err := x.made(ctx, w.step); err == nil && ours {
				r.Outcome, r.Untrusted = stepApplied, ""
			}
		}
	}
}

// outcome keeps the outcome line of an attempt; it goes to disk with the next intent, the
// result, or before a pause.
func (x *execution) outcome(w *work, r plan.StepResult) {
	l := about(x.line(x.call, journal.EventStep), x.p)
	l.Claim, l.Step, l.Attempt, l.StepKey, l.AuditID = x.claim, w.n, w.attempt, w.step.Key(), r.AuditID
	l.Target, l.Code, l.HTTP, l.RV, l.Gen, l.Output, l.Untrusted = &w.step.Target, r.Outcome, r.Code, r.RV, w.gen, r.Detail, r.Untrusted
	x.pending = append(x.pending, l)
}

// leaveUnknown records that nobody knows what became of a request. It is never sent
// again; from here on it is found out.
func (x *execution) leaveUnknown(r plan.StepResult) (*Execution, error) {
	l := about(x.line(x.call, journal.EventUnknown), x.p)
	l.Claim, l.AuditID, l.Output, l.Untrusted, l.Reason = x.claim, r.AuditID, r.Detail, r.Untrusted, x.reason
	if err := x.finish(l); err != nil {
		return nil, err
	}
	x.findOut(x.p) // its answer may be ready when the client asks again
	return &Execution{Plan: x.p, Outcome: plan.Unknown, Steps: x.flight.steps(), Detail: unknownDetail}, nil
}

// conclude observes what came of it and writes the one execute line that holds before
// and after.
func (x *execution) conclude(ctx context.Context, got *passed, d drifted, outcome plan.Outcome, notes []string) (*Execution, error) {
	p := x.p
	res := &plan.Result{
		Outcome: outcome, Skipped: d.skipped, LeftOver: d.leftOver, Notes: notes,
		Before: got.before(p), After: x.observeAll(ctx, p, got.Target),
	}
	if outcome == plan.Executed && d.leftOver != nil { // a node that is not empty is not drained
		res.Outcome, res.Detail = plan.Failed, "what was planned is done; what came since is left over: plan again for it"
	}
	x.fill(res, p, func(i int) *plan.StepResult { return x.results[i+1] })
	l := resultLine(x.line(x.call, journal.EventExecute), p, res)
	l.Claim, l.Reason = x.claim, x.reason
	if err := x.finish(l); err != nil {
		return nil, err
	}
	return x.recorded(p)
}

// fill gives a Result what it says of the plan and of each Step: of is what became of the
// one at an index, nil where it was never sent.
func (e *Engine) fill(res *plan.Result, p *plan.Plan, of func(int) *plan.StepResult) {
	res.Plan, res.Sentence, res.Undo, res.Time = p.ID, p.Sentence, p.Undo, e.now().UTC().Truncate(time.Millisecond)
	became := make([]*plan.StepResult, len(p.Steps))
	for i, s := range p.Steps {
		r := of(i)
		became[i] = r
		switch {
		case r != nil:
		case slices.Contains(res.Skipped, s.Key()) || s.Optional:
			continue
		default:
			r = &plan.StepResult{Step: s.Key(), Outcome: stepNotSent}
		}
		res.Steps = append(res.Steps, *r)
		if res.Detail == "" && r.Outcome != stepApplied && r.Outcome != stepGone && !s.Optional {
			res.Detail = r.Step + ": " + r.Outcome
			if r.Detail != "" {
				res.Detail += ": " + r.Detail
			}
		}
	}
	if p.Parts != nil {
		settleParts(res, p, became)
	}
}

// resultLine puts a result into the line that keeps it, with all that answers what was
// asked and what was before.
func resultLine(l *journal.Line, p *plan.Plan, res *plan.Result) *journal.Line {
	about(l, p)
	l.Code, l.Output = string(res.Outcome), res.Detail
	l.Before, l.After, l.Undo, l.Kubectl, l.Result = res.Before, res.After, &res.Undo, p.Kubectl, res
	for _, s := range p.Steps {
		l.Request = append(l.Request, s.Request())
	}
	if len(l.Request) > 10 {
		l.Request = append(l.Request[:10], fmt.Sprintf("and %d more, in the plan line", len(l.Request)-10))
	}
	for _, r := range res.Steps {
		l.AuditID = cmp.Or(l.AuditID, r.AuditID)
	}
	return l
}

// finish writes the line that ends an execution, with the outcomes before it. Where the
// journal does not take them they are kept, and written late.
func (x *execution) finish(l *journal.Line) error {
	lines := append(x.pending, l)
	if err := x.end(x.p, lines); err != nil {
		x.late.keep(x.Engine, x.p, lines)
		return unrecorded(err)
	}
	return nil
}

// end appends the lines that end an execution, the last of them only where its plan has no
// result by then: the first one holds.
func (e *Engine) end(p *plan.Plan, lines []*journal.Line) error {
	return e.j.Append(func(l *journal.Ledger) ([]*journal.Line, error) {
		if l.Plan(p.ID).Done {
			return lines[:len(lines)-1], nil
		}
		return lines, nil
	})
}

// observe reads the target after the write; what cannot be read is said.
func (e *Engine) observe(ctx context.Context, t plan.Target) plan.State {
	ctx, cancel := context.WithTimeout(ctx, observeAfter)
	defer cancel()
	o, err := e.k.Read.Get(ctx, t)
	switch {
	case apierrors.IsNotFound(err):
		return plan.State{"gone": true}
	case err != nil:
		return plan.State{"error": kube.Refuse(err).Error()}
	}
	return plan.StateOf(t.Resource, o)
}
