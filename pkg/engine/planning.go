package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/blast"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// Planned is the answer of a plan tool.
type Planned struct {
	Plan   *plan.Plan
	Phrase string   // "" for no change
	Stays  []string // what the action leaves alone, and why
}

// Plan changes nothing and tells everything. The error is always a *refusal.Refusal,
// and it is on record unless its code is audit_unavailable.
func (e *Engine) Plan(ctx context.Context, c Call) (*Planned, error) {
	return e.planning(c, func(c Call) (*Planned, *plan.Plan, error) {
		d, err := c.Action.Decode(e.PlanSchema(c.Action), c.Raw)
		if err != nil {
			return nil, nil, err
		}
		return e.plan(ctx, c, one(c.Action, d), nil)
	})
}

// planning is what every plan tool does around its planning: one call, one outcome.
func (e *Engine) planning(c Call, do func(Call) (*Planned, *plan.Plan, error)) (*Planned, error) {
	c = e.begin(c)
	var p *plan.Plan
	planned, err := guarded(e.cfg.Log, func() (answer *Planned, err error) {
		if err := e.j.View(e.withinPlanRate); err != nil {
			return nil, unavailable(err)
		}
		answer, p, err = do(c)
		return answer, err
	})
	if err != nil {
		return nil, e.refuse(c, p, err)
	}
	return planned, nil
}

// plan makes a plan of an action or of several calls, or with undoes one that takes an
// executed plan back.
func (e *Engine) plan(ctx context.Context, c Call, r request, undoes *plan.Plan) (*Planned, *plan.Plan, error) {
	limits, err := e.admit(ctx, r, undoes != nil)
	if err != nil {
		return nil, nil, e.explainAll(ctx, r, err)
	}
	id, err := e.newID()
	if err != nil {
		return nil, nil, err
	}
	p := &plan.Plan{
		ID: id, Action: r.name, Args: r.canonical, Principal: c.Principal.String(),
		Label: e.cfg.Label, KeyID: e.keys.Current(), Created: e.now().UTC().Truncate(time.Second),
	}
	p.Expires = p.Created.Add(limits.TTL)
	if undoes != nil {
		p.Undoes = undoes.ID
	}
	got, err := e.pass(ctx, c, r, p, false)
	if err != nil {
		return nil, p, e.explainAll(ctx, r, err)
	}
	if undoes != nil {
		if err := got.takeBack(undoes); err != nil {
			return nil, p, err
		}
	}
	got.describe(p, e.keys.Redact)
	if r.several() {
		got.describeParts(p, r)
	}
	p.Downstream = e.cfg.Policy.Notes(p.Steps, got.effect.Risks)
	answer := &Planned{Plan: p, Stays: got.Stays}
	if p.Empty() {
		p.Steps, p.Sentence, p.Undo, p.Kubectl, p.Parts = nil, "", plan.Undo{}, nil, nil
	} else if no := e.withinWindows(got, r, true, false); no != nil {
		return nil, p, no
	} else if reasons, err := e.planGates(got, p); err != nil {
		r := err.(*refusal.Refusal)
		if got.moved {
			r.Message += fmt.Sprintf("; the undo is not exempt, since what plan %s wrote was changed again", p.Undoes)
		}
		return nil, p, r
	} else {
		if second := e.twoPersons(p.Steps); reasons != nil || second != "" {
			p.Person = &plan.Person{Reasons: reasons, Name: got.names(), Second: second}
			p.Expires = p.Created.Add(limits.ApprovalTTL)
		}
		if answer.Phrase, err = e.sign(p); err != nil {
			return nil, p, err
		}
	}
	line := about(e.line(c, journal.EventPlan), p)
	line.Record, line.Ready = p, capacity(got.effect.Risks...)
	err = e.j.Append(func(l *journal.Ledger) ([]*journal.Line, error) {
		if l.Plan(p.ID).Planned {
			return nil, fmt.Errorf("plan id %s is taken", p.ID)
		}
		return []*journal.Line{line}, e.withinPlanRate(l)
	})
	if err != nil {
		return nil, p, unavailable(err)
	}
	return answer, p, nil
}

func (e *Engine) sign(p *plan.Plan) (string, error) {
	key, err := e.keys.Derive(p.KeyID, "confirm")
	if err != nil {
		return "", err
	}
	return p.Sign(key), nil
}

// planGates decides about what a pass came to, and gives the reasons for which it waits for
// a person. Every owner is held to the limits of its
// own namespace: a drain reaches into many. What goes back to a recorded state, from the
// one that was written then, is exempt from blast limit and cap: else a scale of long ago
// would be leave to take down what others built since.
func (e *Engine) planGates(got *passed, p *plan.Plan) (person []string, err error) {
	reasons := append(got.closed, got.effect.NeedsPerson...)
	sum := e.sumGates(got, p)
	if got.exempt(p) {
		return e.persons(got, sum, reasons)
	}
	no := refusal.Join(sum, e.caps(got.steps()))
	for _, r := range got.effect.Risks {
		b := got.effect.Blast
		if r.UID != b.AtRisk.UID {
			b.Largest = nil // is the worst owner's
		}
		b.AtRisk = r
		refused, person := e.cfg.Policy.For(r.Namespace()).Blast(b, got.peakSeen[r.UID])
		if refused != nil && p.Parts != nil {
			refused = within(r.Owner, refused)
		}
		if person != "" && p.Parts != nil {
			person = r.Owner + ": " + person
		}
		no = refusal.Join(no, refused)
		if person != "" {
			reasons = append(reasons, person)
		}
	}
	return e.persons(got, no, reasons)
}

// persons ends planGates: with a refusal where there is one, else with the reasons where the
// plan waits for a person.
func (e *Engine) persons(got *passed, no *refusal.Refusal, reasons []string) ([]string, error) {
	waits, refused := e.needsPerson(got.steps(), reasons)
	if r := refusal.Join(no, refused); r != nil {
		return nil, r
	}
	if !waits {
		return nil, nil
	}
	return reasons, nil
}

// withinWindows refuses what the change windows hold back in any namespace that a call
// reaches into: a drain reaches into many. For a plan that is made, windows that a person's
// approval opens are a reason for which it is a person's instead.
func (e *Engine) withinWindows(got *passed, r request, planning, approved bool) *refusal.Refusal {
	var no *refusal.Refusal
	for i, part := range got.parts {
		namespaces := []string{part.Target.Namespace}
		for _, pr := range part.Proposals {
			if ns := pr.Step.Target.Namespace; !slices.Contains(namespaces, ns) {
				namespaces = append(namespaces, ns)
			}
		}
		for _, ns := range namespaces {
			closed, unless := e.cfg.Policy.Window(r.calls[i].Name, ns, e.now(), approved)
			if planning && unless && e.cfg.Policy.For(ns).Irreversible == gate.Human { // else nobody is asked
				got.closed = append(got.closed, fmt.Sprintf("outside the change windows: %s (%s)", closed.Message, closed.Hint))
				continue
			}
			no = refusal.Join(no, closed)
		}
	}
	return no
}

// needsPerson goes by the strictest of the namespaces that the Steps reach into.
func (e *Engine) needsPerson(steps []plan.Step, reasons []string) (waits bool, no *refusal.Refusal) {
	for _, s := range steps {
		w, r := e.cfg.Policy.For(s.Target.Namespace).NeedsPerson(reasons)
		waits = waits || w
		if no == nil {
			no = r
		}
	}
	return waits && no == nil, no
}

// passed is what one planning pass came to.
type passed struct {
	action.Outcome        // of all calls together
	parts          []part // one for each call
	effect         blast.Effect
	cluster        string
	peakSeen       map[string]time.Time         // by the risk's UID: when its peak was last seen
	after          map[string]plan.Object       // what the dry runs of patches made of the targets, by UID
	labels         map[string]map[string]string // of the namespaces
	warnings       []string
	untrusted      string
	closed         []string // why change windows make it a person's
	moved          bool     // of an undo: not all is as the plan that it takes back wrote it
	redo           bool     // it takes an undo back, which is a change like any other
}

// exempt reports whether a pass of a plan goes back to the state on record before another.
func (g *passed) exempt(p *plan.Plan) bool { return p.Undoes != "" && !g.moved && !g.redo }

func (g *passed) steps() []plan.Step {
	steps := make([]plan.Step, len(g.Proposals))
	for i, pr := range g.Proposals {
		steps[i] = pr.Step
	}
	return steps
}

// describe fills a plan with what the pass came to.
func (g *passed) describe(p *plan.Plan, redact func(string) string) {
	for _, s := range g.steps() {
		p.Steps = append(p.Steps, s.Sealed(redact))
	}
	p.Kubectl, p.Undo, p.Cluster = g.Kubectl, g.Undo, g.cluster
	p.Before, p.Version = plan.BeforeOf(g.Target.Resource, g.Object), plan.VersionOf(g.Object)
	p.Blast, p.Class = g.effect.Blast, g.effect.Class
	p.Warnings, p.Untrusted = g.warnings, g.untrusted
	if p.Label == "" {
		p.Label = g.cluster[:min(8, len(g.cluster))]
	}
	p.Sentence = g.Sentence + " on " + p.Label
	if p.Undoes != "" {
		p.Sentence = "undo " + p.Undoes + ": " + p.Sentence
	}
}

// pass runs the planner of each call once. Beside them the namespaces are read (a
// terminating one accepts patches and must be refused) and the cluster's identity; each
// proposal is dry-run as soon as it is made.
func (e *Engine) pass(ctx context.Context, c Call, r request, p *plan.Plan, fresh bool) (*passed, error) {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	verb := VerbPlan
	if fresh {
		verb = VerbWrite
	}
	for i, call := range r.calls {
		if err := c.Permitted(ctx, verb, call.Name, call.args.Scope().Namespace); err != nil {
			return nil, callErrors{{i, err}}
		}
	}
	alive := async(e.cfg.Log, func() (map[string]namespace, error) { return e.namespaces(ctx, r) })
	introduced := async(e.cfg.Log, func() (struct{}, error) { e.k.Read.Introduce(ctx); return struct{}{}, nil })
	identity := async(e.cfg.Log, func() (string, error) { return e.k.Read.Identity(ctx, fresh) })
	dry := dryRunner{e: e, ctx: kube.As(ctx, c.as()), plan: p.ID, slots: make(chan struct{}, maxDryRuns)}
	got, proposed := &passed{labels: map[string]map[string]string{}}, 0
	var failed callErrors
	for i, call := range r.calls {
		before := proposed
		s := action.NewSession(action.Options{
			ID: p.ID, Time: p.Created, Expected: call.args.Expected(), Read: e.k.Read,
			Excluded:  e.excluded(),
			PodFacts:  kube.PodFacts,
			NoNotes:   !e.cfg.Policy.ChangeCauseOnScale,
			OnPropose: func(n int, pr action.Proposal) { proposed = before + n; dry.start(i, proposed, pr); e.warm(pr) },
		})
		if err := call.Run(ctx, s, call.args); err != nil {
			failed = append(failed, &callError{i, err})
		}
		got.parts = append(got.parts, part{Outcome: s.Outcome()})
	}
	dry.wait.Wait()
	c.record.dryRan(dry.answers)
	namespaces, err := alive()
	for name, ns := range namespaces {
		got.labels[name] = ns.labels
	}
	_, _ = introduced()
	var idErr error
	got.cluster, idErr = identity()
	if err := firstOf(err, failed.any(), idErr); err != nil {
		return nil, err
	}
	if err := got.join(r); err != nil {
		return nil, err
	}
	if n := len(got.Proposals); n > plan.MaxSteps {
		return nil, refusal.New(refusal.PreconditionFailed, "make the target smaller first",
			"this needs %d steps, a plan has at most %d", n, plan.MaxSteps)
	}
	if err := dry.collect(got); err != nil {
		return nil, err
	}
	if p := (plan.Plan{Steps: got.steps()}); p.Empty() {
		return got, nil
	}
	return got, e.radius(ctx, got, r)
}

// The bounds of one planning pass.
const (
	passTimeout = 30 * time.Second
	maxDryRuns  = 16 // at once
)

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// guarded makes a panic an error: it is one call's, and the process has writes in flight.
func guarded[T any](log *slog.Logger, f func() (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic", "panic", p, "stack", string(debug.Stack()))
			err = errors.New("internal fault")
		}
	}()
	return f()
}

// async starts f and gives a function that waits for it.
func async[T any](log *slog.Logger, f func() (T, error)) func() (T, error) {
	type result struct {
		v   T
		err error
	}
	ch := make(chan result, 1)
	go func() {
		v, err := guarded(log, f)
		ch <- result{v, err}
	}()
	return func() (T, error) {
		r := <-ch
		return r.v, r.err
	}
}

// namespace is what a plan needs of one.
type namespace struct {
	state  string // terminating; "" is alive
	labels map[string]string
}

// namespaces reads those of all calls. One that is terminating is the error of its call.
func (e *Engine) namespaces(ctx context.Context, r request) (map[string]namespace, error) {
	all := map[string]namespace{}
	var failed callErrors
	for i, c := range r.calls {
		name := c.args.Scope().Namespace
		if _, known := all[name]; known {
			continue
		}
		ns, err := e.namespace(ctx, name)
		if err == nil && ns.state != "" {
			err = refusal.New(refusal.Terminating, "wait until it is gone", "namespace %s is %s", name, ns.state)
		}
		if err != nil {
			failed = append(failed, &callError{i, err})
		}
		all[name] = ns
	}
	return all, failed.any()
}

// namespace reads one; the zero value where there is none.
func (e *Engine) namespace(ctx context.Context, name string) (namespace, error) {
	if name == "" {
		return namespace{}, nil
	}
	ns, err := e.k.Read.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return namespace{}, err
	}
	state := ""
	if ns.DeletionTimestamp != nil {
		state = "terminating"
	}
	return namespace{state, ns.Labels}, nil
}

// excluded gives the function of one pass that says why a namespace beside the target's
// is left alone.
func (e *Engine) excluded() func(context.Context, string) (string, error) {
	known := map[string]string{}
	return func(ctx context.Context, name string) (string, error) {
		why := e.cfg.Policy.Excluded(name)
		if why == "protected" && e.cfg.Policy.DrainProtected {
			why = ""
		}
		if why != "" {
			return why, nil
		}
		if state, ok := known[name]; ok {
			return state, nil
		}
		ns, err := e.namespace(ctx, name)
		known[name] = ns.state
		return ns.state, err
	}
}

// radius computes the effect of a pass from its Steps and the cached siblings.
func (e *Engine) radius(ctx context.Context, got *passed, r request) error {
	targets, versions := map[string]plan.Object{}, []string(nil)
	about := slices.DeleteFunc(slices.Clone(got.parts), func(p part) bool { return len(p.Proposals) == 0 })
	for _, p := range about {
		versions = append(versions, p.Object.Value("metadata.resourceVersion"))
	}
	for _, pr := range got.Proposals {
		targets[pr.Step.Target.UID] = pr.Object
		versions = append(versions, pr.Object.Value("metadata.resourceVersion"))
	}
	steps := got.steps()
	want := wanted(steps, targets)
	want.NotBefore = kube.Newest(versions...)
	want.Agrees = func(f plan.Facts) bool {
		return !slices.ContainsFunc(about, func(p part) bool { return !blast.Agrees(p.Target, p.Object, f) })
	}
	facts := e.k.Cache.Facts(ctx, want)
	var no *refusal.Refusal
	err := e.j.View(func(l *journal.Ledger) error {
		in := blast.Input{
			Steps: steps, Targets: targets, After: got.after, Labels: got.labels[got.Target.Namespace], Facts: facts,
			MaxPercent: e.maxPercent(about),
			Peak: func(uid string) int {
				n, _ := l.Peak(uid, e.wall().Add(-gate.Memory))
				return n
			},
		}
		if got.effect, no = blast.Compute(in); no == nil && r.several() {
			e.radii(got, in)
		}
		got.peakSeen = map[string]time.Time{}
		for _, r := range got.effect.Risks {
			_, got.peakSeen[r.UID] = l.Peak(r.UID, e.wall().Add(-gate.Memory))
		}
		return nil
	})
	switch {
	case err != nil:
		return unavailable(err)
	case no != nil:
		return no
	}
	got.warnings = append(got.warnings, got.effect.Warnings...)
	return nil
}

// wanted is what the radius needs of the caches.
func wanted(steps []plan.Step, targets map[string]plan.Object) kube.Want {
	n := blast.Needs(steps, targets)
	w := kube.Want{
		Namespace: n.Namespace, Pods: n.Pods, Budgets: n.Budgets, Nodes: n.Nodes,
		Services: n.Services, Autoscalers: n.Autoscalers, Quotas: n.Quotas,
	}
	for _, s := range steps {
		if ns := s.Target.Namespace; ns != "" && !slices.Contains(w.Namespaces, ns) {
			w.Namespaces = append(w.Namespaces, ns)
		}
	}
	return w
}

// warm lets the caches sync while the dry run is under way.
func (e *Engine) warm(pr action.Proposal) {
	e.k.Cache.Warm(wanted([]plan.Step{pr.Step}, map[string]plan.Object{pr.Step.Target.UID: pr.Object}))
}

// dryRunner sends the dry runs of one pass as they are proposed, a bounded number at
// once.
type dryRunner struct {
	e     *Engine
	ctx   context.Context
	plan  string
	slots chan struct{}
	wait  sync.WaitGroup

	mu      sync.Mutex
	answers []dryRun
}

type dryRun struct {
	n   int
	of  int    // the call, from 0
	id  string // its Audit-ID
	pr  action.Proposal
	ans kube.Answer
	err error
}

func (d *dryRunner) start(of, n int, pr action.Proposal) {
	if n > plan.MaxSteps {
		return // refused with the count when the planner is done
	}
	d.wait.Go(func() {
		d.slots <- struct{}{}
		defer func() { <-d.slots }()
		id := fmt.Sprintf("kube-write-mcp-%s-s%d-d%s%d", d.plan, n, d.e.cfg.Inst, d.e.dryRuns.Add(1))
		sl := plan.Slots{Absent: pr.Slots.Absent, Reason: "kube-write-mcp plan " + d.plan} // no resourceVersion: a plan never meets a 409
		ans, err := guarded(d.e.cfg.Log, func() (kube.Answer, error) { return d.e.k.Dry.Send(d.ctx, d.plan, id, pr.Step, sl, time.Time{}) })
		d.mu.Lock()
		defer d.mu.Unlock()
		d.answers = append(d.answers, dryRun{n, of, id, pr, ans, err})
	})
}

// collect takes what the dry runs said into the pass. The first Step's failure leads; a
// note that is refused is left out with a warning.
func (d *dryRunner) collect(got *passed) error {
	slices.SortFunc(d.answers, func(a, b dryRun) int { return a.n - b.n })
	got.warnings, got.after = slices.Clone(got.Warnings), map[string]plan.Object{}
	var said []string
	var no *refusal.Refusal
	blocked := 0
	kept := make([][]action.Proposal, len(got.parts))
	for _, a := range d.answers {
		said = append(said, a.ans.Warnings...)
		err := a.err
		if err == nil {
			err = asAsked(a.pr.Step, a.ans)
		}
		switch {
		case err == nil:
		case a.ans.Class == kube.Throttled && a.pr.Step.OnBudget == plan.Wait && kube.BlockedByBudget(err):
			blocked++
		case a.pr.Step.Optional:
			got.warnings = append(got.warnings, fmt.Sprintf("the reason cannot be noted on the object (%d)", a.ans.Code))
			continue
		default:
			r := dryRunFailed(a.pr.Step, a.ans, err)
			if a.pr.Step.Verb == plan.Evict && a.ans.Code == 500 {
				d.e.nameBudgets(d.ctx, a.pr, r)
			}
			no = refusal.Join(no, r)
		}
		kept[a.of] = append(kept[a.of], a.pr)
		if a.pr.Step.Verb == plan.Patch && !a.pr.Step.Optional {
			got.after[a.pr.Step.Target.UID] = a.ans.Object
		}
	}
	if no != nil {
		no.Also = no.Also[:min(len(no.Also), 9)]
		return no
	}
	got.Proposals = slices.Concat(kept...)
	for i := range got.parts {
		got.parts[i].Proposals = kept[i]
	}
	if blocked > 0 {
		got.warnings = append(got.warnings, fmt.Sprintf("a disruption budget blocks %d of the evictions right now, which will be waited for", blocked))
	}
	got.untrusted = plan.Untrusted(strings.Join(said, "; "))
	return nil
}

func dryRunFailed(s plan.Step, ans kube.Answer, err error) *refusal.Refusal {
	text := fmt.Sprintf("dry run failed (%d): the API server refuses to %s; no confirm phrase was issued", ans.Code, s.Key())
	hint := "the reason is on the line that begins untrusted: below; change that, and plan again"
	switch ans.Code {
	case 0:
		return refusal.New(refusal.Unreachable, "check that the API server runs", "%s", text)
	case 403:
		hint = fmt.Sprintf("the server's account needs the verb %s on %s, unless a policy in the cluster refuses", rbacVerb(s), rbacResource(s))
	case 429:
		hint = "a disruption budget allows no eviction now; wait, or make more pods ready"
	}
	r := refusal.New(refusal.DryRunFailed, hint, "%s", text)
	if wrong, ok := errors.AsType[*answerError](err); ok {
		r.Message = "dry run failed: " + wrong.text + "; no confirm phrase was issued"
		return r
	}
	r.Untrusted = kube.Text(err)
	return r
}

// nameBudgets tells of a pod that two budgets cover, for which the eviction API has but a
// 500, which they are. Where they cannot be had the refusal stays as it is.
func (e *Engine) nameBudgets(ctx context.Context, pr action.Proposal, r *refusal.Refusal) {
	want := wanted([]plan.Step{pr.Step}, map[string]plan.Object{pr.Step.Target.UID: pr.Object})
	want.NotBefore = kube.Newest(pr.Object.Value("metadata.resourceVersion"))
	pod := plan.Pod{Namespace: pr.Step.Target.Namespace, Labels: pr.Object.Labels()}
	var names []string
	for _, b := range e.k.Cache.Facts(ctx, want).Budgets {
		if b.Covers(pod) {
			names = append(names, b.Name)
		}
	}
	if len(names) < 2 {
		return
	}
	slices.Sort(names)
	r.Hint = fmt.Sprintf("the disruption budgets %s all cover it, and such a pod can never be evicted: let only one of them select it, then plan again", strings.Join(names, ", "))
}

func rbacVerb(s plan.Step) string {
	switch s.Verb {
	case plan.Scale:
		return "update"
	case plan.Evict:
		return "create"
	}
	return string(s.Verb)
}

func rbacResource(s plan.Step) string {
	k, _ := plan.KindOf(s.Subject().Resource)
	gr := k.GroupResource()
	if sub := s.Subresource(); sub != "" {
		gr.Resource += "/" + sub
	}
	return gr.String()
}

// answerError is an answer that does not hold what was asked for.
type answerError struct{ text string }

func (e *answerError) Error() string { return e.text }

// asAsked checks that the object that came back holds the new side of every Change: an
// omitted replicas is a zero, and a webhook may have written something else.
func asAsked(s plan.Step, ans kube.Answer) error {
	if ans.Object == nil {
		return nil
	}
	for _, c := range s.Changes {
		v := ans.Object.Value(c.Field)
		if c.Old == c.New || v == c.New || (v == "" && plan.IsZero(c.New)) {
			continue
		}
		return &answerError{fmt.Sprintf("%s came back as %s, not %s", c.Field, plan.Untrusted(v), c.New)}
	}
	return nil
}
