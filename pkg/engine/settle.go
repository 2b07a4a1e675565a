package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// commitBound is how long after it was sent a request may still take effect: the API
// server's own bound on a request (requestTimeoutUpperBound, 34 s) and 5 s on top.
const commitBound = 39 * time.Second

// skew is how far the API server's clock may be off ours.
const skew = time.Minute

// The pace of finding out.
const (
	settleFirst = 30 * time.Millisecond // a late commit was seen that much later
	settleMost  = 2 * time.Second
)

// watchPatience is how long a watch that gives no versions is asked again while the object
// itself can be read: longer than an API server takes to start, shorter than a caller waits.
const watchPatience = 30 * time.Second

// Attribution of a verdict that does not rest on the mark of the write itself.
const (
	inferred  = "inferred: it is as the plan wanted it, and only one change was made since"
	converged = "the goal is reached, by whomever"
)

// Settle finds out, in the background, what became of the plans that another process left
// without an outcome when it died.
func (e *Engine) Settle() {
	var ids []string
	err := e.j.View(func(l *journal.Ledger) error { ids = l.Unsettled(); return nil })
	if err != nil {
		e.cfg.Log.Error("the journal cannot be read", "err", err)
	}
	for _, id := range ids {
		p, err := e.j.Record(id)
		if err != nil || p == nil {
			e.cfg.Log.Error("a plan without an outcome cannot be read", "plan", id, "err", err)
			continue
		}
		e.findOut(p)
	}
}

// settlings lets one search per plan run in this process.
type settlings struct {
	mu   sync.Mutex
	busy map[string]chan struct{}
}

// findOut starts to find out what became of a plan whose outcome is unknown, or whose
// process died. The channel is closed when it is on record, or when the search ended
// without a result.
func (e *Engine) findOut(p *plan.Plan) <-chan struct{} {
	s := &e.settlings
	s.mu.Lock()
	defer s.mu.Unlock()
	if done, ok := s.busy[p.ID]; ok {
		return done
	}
	if s.busy == nil {
		s.busy = map[string]chan struct{}{}
	}
	done := make(chan struct{})
	s.busy[p.ID] = done
	go func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.busy, p.ID)
			close(done)
		}()
		if err := e.settle(e.stop, p); err != nil {
			e.cfg.Log.Error("what became of a plan could not be found out", "plan", p.ID, "err", err)
		}
	}()
	return done
}

// orphaned reports whether a claim has nobody any more who could send its request or
// record its outcome. mine says that the caller is the plan's one flight in this process.
func (e *Engine) orphaned(p *plan.Plan, st journal.State, mine bool) bool {
	switch {
	case st.Done || !st.Claimed || e.late.has(p.ID):
		return false
	case st.Unknown:
		return true
	case st.ClaimInst == e.cfg.Inst:
		return mine || !e.flights.has(p.ID)
	}
	return !e.j.Alive(st.ClaimInst)
}

// settle ends what is unknown: it looks at the object until the evidence decides, and
// writes the reconciled line with the result. Nothing is ever sent.
func (e *Engine) settle(ctx context.Context, p *plan.Plan) error {
	st, err := e.state(p.ID)
	if err != nil || !e.orphaned(p, st, false) {
		return err
	}
	if n := st.LastIntent.Step; n < 1 || n > len(p.Steps) {
		return fmt.Errorf("it has no step %d", n)
	}
	cluster, err := e.k.Read.Identity(ctx, true)
	switch {
	case err != nil:
		return err
	case cluster != p.Cluster:
		return nil // another server's to find out
	}
	found := finding{stepUnknown, "nobody knows whether the reason was noted"}
	if open := st.LastIntent; !p.Steps[open.Step-1].Optional && (open.Outcome == "" || open.Outcome == stepUnknown) {
		if found, err = e.evidence(ctx, p, open); err != nil {
			return err
		}
	}
	res := e.reconcile(p, st, found)
	res.After = e.observeAll(ctx, p, p.Steps[0].Target)
	kind, name, _ := strings.Cut(p.Principal, ":")
	nobody := Call{Tool: p.Action, Principal: Principal{Kind: kind, Name: name}, record: &record{}} // no client asked for this
	l := resultLine(e.line(nobody, journal.EventReconciled), p, res)
	l.Claim, l.Reason = st.Claim, st.LastIntent.Reason
	first := false
	err = e.j.Append(func(led *journal.Ledger) ([]*journal.Line, error) {
		now := led.Plan(p.ID)
		if first = !now.Done; !first {
			return nil, nil // its own process, or another one, was first
		}
		if last := st.LastIntent; now.LastIntent.AuditID != last.AuditID || now.LastIntent.Outcome != last.Outcome {
			return nil, errBusy // its process lives, and went on while we looked
		}
		return []*journal.Line{l}, nil
	})
	if err == nil && first && res.Outcome == plan.Executed {
		e.verify(ctx, nobody, p)
	}
	return err
}

func (e *Engine) state(id string) (st journal.State, err error) {
	err = e.j.View(func(l *journal.Ledger) error { st = l.Plan(id); return nil })
	return st, err
}

// evidence looks at the target of an attempt until it is decided what became of it.
func (e *Engine) evidence(ctx context.Context, p *plan.Plan, open journal.Intent) (finding, error) {
	s := p.Steps[open.Step-1]
	// What was sent was sent before now, and no clock on the wall says when that was.
	pause, began := settleFirst, time.Now()
	waited := e.j.Quiet(p.ID, open.AuditID) // by those before us
	past := newHistory(open)
	for {
		left := commitBound - waited - time.Since(began) // when it is over the request can come no more
		o, err := e.readFor(ctx, s)
		if err == nil {
			f := judge(s, p.ID, open, o, left <= 0)
			if (s.Verb == plan.Patch || s.Verb == plan.Scale) && o != nil && o.Value("metadata.uid") == s.Target.UID {
				f = e.follow(ctx, &past, s, p.ID, open, o, f)
			}
			if f.outcome != "" {
				return f, nil
			}
		} else if ctx.Err() == nil {
			e.cfg.Log.Warn("the object of a plan whose outcome is unknown cannot be read", "plan", p.ID, "err", kube.Text(err))
		}
		if left > 0 {
			pause = min(pause, left) // and look again when it is over
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, settleMost)
		case <-ctx.Done():
			return finding{}, ctx.Err()
		}
	}
}

// history is how far the versions of an object were followed.
type history struct {
	seen  string    // the version up to which all are known
	gone  bool      // some are not there any more, or cannot be watched
	open  bool      // one of them is as planned, and bears no mark
	since time.Time // when the watch began to fail; zero while it does not
}

func newHistory(open journal.Intent) history {
	return history{seen: open.Since, gone: open.Since == ""}
}

// follow decides by every version since the request where the present one does not.
// Nothing is decided while the API server does not answer; one that answers reads and no
// watch is taken, in the end and after watchPatience, for one that has no versions. A kind
// without a generation is followed while the search goes on, since the API server does not
// keep versions for long.
func (e *Engine) follow(ctx context.Context, h *history, s plan.Step, id string, open journal.Intent, o plan.Object, f finding) finding {
	counts := generation(o) != 0
	if f.outcome == stepApplied || counts && f.outcome != stepIndeterminate {
		return f
	}
	if now := o.Value("metadata.resourceVersion"); !h.gone && now != h.seen {
		versions, err := e.k.Read.History(ctx, s.Target, h.seen, now)
		switch {
		case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsForbidden(err):
			h.gone = true
		case err == nil:
			h.since = time.Time{}
		case h.since.IsZero():
			h.since = time.Now()
			return finding{}
		case f.outcome != stepIndeterminate || time.Since(h.since) < watchPatience:
			return finding{} // it may be asked again
		default:
			e.cfg.Log.Warn("the versions of an object cannot be watched", "object", s.Target.String(), "plan", id, "err", kube.Text(err))
			h.gone = true
		}
		for _, v := range versions {
			holds := lostFields(s, v) == ""
			switch was := judge(s, id, open, v, true); {
			case was.outcome == stepApplied:
				return finding{stepApplied, strings.TrimPrefix(was.detail+"; ", "; ") + "it was changed again since"}
			case !counts && !s.Marks() && holds:
				return finding{stepApplied, "inferred: it was seen as the plan wanted it, which leaves no mark"}
			}
			h.open = h.open || counts && holds
		}
		h.seen = now
	}
	switch {
	case f.outcome != stepIndeterminate || h.open:
		return f
	case h.gone && counts:
		return f
	case h.gone:
		return withoutHistory(s, open, o, f)
	}
	return finding{stepNotApplied, "no version since shows it"}
}

// withoutHistory decides by who owns the changed fields, and since when: a field that was
// taken away and set again has an owner of that time.
func withoutHistory(s plan.Step, open journal.Intent, o plan.Object, otherwise finding) finding {
	if lostFields(s, o) == "" {
		return finding{stepApplied, converged}
	}
	if s.Marks() {
		return otherwise
	}
	for _, c := range s.Changes {
		since := o.OwnedSince(c.Field)
		if c.Old != c.New && (since.IsZero() || since.After(open.Time.Add(-skew))) {
			return otherwise
		}
	}
	return finding{stepNotApplied, "it has been as it is since before the request"}
}

// readFor reads what a Step writes from the API server itself; nil is one that is not
// there.
func (e *Engine) readFor(ctx context.Context, s plan.Step) (plan.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	o, err := e.k.Read.Get(ctx, s.Subject())
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

// finding is what became of an attempt: applied, not applied or indeterminate; "" while
// it is not decided.
type finding struct{ outcome, detail string }

func (f finding) String() string {
	if f.detail == "" {
		return f.outcome
	}
	return f.outcome + ", " + f.detail
}

// judge decides by the mark of the write, then by its resourceVersion, then by the
// generation (RELIABILITY 2.7). rested says that the request cannot take effect any more.
func judge(s plan.Step, id string, open journal.Intent, o plan.Object, rested bool) finding {
	if s.Verb == plan.Create {
		switch {
		case o != nil && bearsMark(o, id):
			return finding{stepApplied, ""}
		case o != nil:
			return finding{stepNotApplied, s.Subject().String() + " is there, and is not of this plan"}
		case rested:
			return finding{stepNotApplied, s.Subject().String() + " is not there"}
		}
		return finding{}
	}
	other := o == nil || o.Value("metadata.uid") != s.Target.UID
	if s.Verb == plan.Evict || s.Verb == plan.Delete {
		switch {
		case other, o.Value("metadata.deletionTimestamp") != "":
			return finding{stepApplied, converged}
		case rested:
			return finding{stepNotApplied, "it is still there, and nothing deletes it"}
		}
		return finding{}
	}
	now := generation(o)
	switch holds := lostFields(s, o) == ""; {
	case other:
		return finding{stepIndeterminate, s.Target.String() + " is gone, or another object: nobody can tell what it was before"}
	case o.ManagedBy(kube.FieldManager+id, s.Subresource()):
		return finding{stepApplied, ""}
	case !rested && (open.RV == "" || o.Value("metadata.resourceVersion") == open.RV):
		return finding{} // it may still come; at another version it cannot
	case o.Value("metadata.resourceVersion") == open.Since:
		return finding{stepNotApplied, "the object is as it was"}
	case now == 0:
		return finding{stepIndeterminate, fmt.Sprintf("%s: search the API server's audit log for %s", shownNow(s, o), open.AuditID)}
	case now == open.Gen:
		return finding{stepNotApplied, "its spec is as it was"}
	case now == open.Gen+1 && holds:
		return finding{stepApplied, inferred}
	case now == open.Gen+1:
		return finding{stepNotApplied, "one change was made since, and it was another one: " + lostFields(s, o)}
	}
	return finding{stepIndeterminate, fmt.Sprintf("%s; the spec was changed %d times since (generation %d to %d): search the API server's audit log for %s",
		shownNow(s, o), now-open.Gen, open.Gen, now, open.AuditID)}
}

// shownNow names the fields of a Step as they are now beside what was planned.
func shownNow(s plan.Step, o plan.Object) string {
	var out []string
	for _, c := range s.Changes {
		if c.Old != c.New {
			out = append(out, fmt.Sprintf("%s is %s now, planned was %s", c.Field, zero(plan.Untrusted(o.Value(c.Field))), c))
		}
	}
	return strings.Join(out, ", ")
}

// generation counts the changes of an object's spec; 0 where its kind does not count.
func generation(o plan.Object) int64 { return int64(o.Int("metadata.generation")) }

// reconcile makes the result of a plan from the outcomes on record and what was found.
func (e *Engine) reconcile(p *plan.Plan, st journal.State, found finding) *plan.Result {
	known := map[string]plan.StepResult{}
	for _, r := range st.Steps {
		known[r.Step] = r
	}
	res := &plan.Result{Outcome: plan.Executed, Before: p.Before}
	e.fill(res, p, func(i int) *plan.StepResult {
		s, open := p.Steps[i], st.LastIntent
		r, ok := known[s.Key()]
		switch {
		case i+1 == open.Step && (open.Outcome == "" || open.Outcome == stepUnknown):
			r.Step, r.AuditID, r.Outcome, r.Detail = s.Key(), open.AuditID, found.outcome, found.detail
			res.Notes = append(res.Notes, fmt.Sprintf("the outcome of %s was not known and was found out: %s", s.Key(), found))
		case !ok && s.Optional:
			return nil
		case !ok:
			r = plan.StepResult{Step: s.Key(), Outcome: stepNotSent}
		}
		switch {
		case s.Optional:
		case r.Outcome == stepIndeterminate:
			res.Outcome = plan.Indeterminate
		case r.Outcome != stepApplied && r.Outcome != stepGone && res.Outcome == plan.Executed:
			res.Outcome = plan.Failed
		}
		return &r
	})
	return res
}
