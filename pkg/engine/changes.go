package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/blast"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// maxCalls is how many calls one plan has at most.
const maxCalls = 20

// PlanChanges plans several calls of actions as one: one phrase, gates on the sum. The
// error is as that of Plan.
func (e *Engine) PlanChanges(ctx context.Context, c Call, schema *jsonschema.Schema) (*Planned, error) {
	return e.planning(c, func(c Call) (*Planned, *plan.Plan, error) {
		args, _, err := action.Decode[changesArgs](schema, c.Raw)
		if err != nil {
			return nil, nil, err
		}
		r, err := e.several(args, e.PlanSchema)
		if err != nil {
			return nil, nil, err
		}
		return e.plan(ctx, c, r, nil)
	})
}

// ExecuteChanges does what a plan of PlanChanges described, call by call, and stops at the
// first one that differs or fails. All that holds for Execute holds for it.
func (e *Engine) ExecuteChanges(ctx context.Context, c Call, schema *jsonschema.Schema) (*Execution, error) {
	began := e.now()
	c = e.begin(c)
	args, d, err := action.Decode[changesArgs](schema, c.Raw)
	var r request
	if err == nil {
		r, err = e.several(args, e.PlanSchema)
	}
	p, err := e.unlessGuessed(c, d.Confirm, err)
	if err != nil {
		return nil, e.refuse(c, nil, err)
	}
	if p.Action != plan.ChangesTool || p.Undoes != "" || !bytes.Equal(r.canonical, p.Args) {
		tool, planned := p.Call()
		return nil, e.refuse(c, p, refusal.New(refusal.WrongArguments, "call "+tool+" with exactly the planned arguments, or plan again",
			"the phrase belongs to %s %s, called was %s %s", tool, planned, plan.ChangesTool, r.canonical))
	}
	return e.carryOut(ctx, c, p, r, d.Reason, began)
}

// ChangesSchema is the input schema of plan_changes: its actions are those that the policy
// enables.
func (e *Engine) ChangesSchema() (*jsonschema.Schema, error) {
	s, err := action.SchemaOf[changesArgs]()
	if err != nil {
		return nil, err
	}
	one, err := changeSchema()
	if err != nil {
		return nil, err
	}
	for _, a := range e.cfg.Actions {
		if e.cfg.Policy.Action(a.Name) == nil {
			one.Properties["action"].Enum = append(one.Properties["action"].Enum, a.Name)
		}
	}
	steps := s.Properties["steps"]
	steps.MinItems, steps.MaxItems, steps.Items = new(1), new(maxCalls), one
	return s, nil
}

func changeSchema() (*jsonschema.Schema, error) {
	s, err := action.SchemaOf[change]()
	if err == nil {
		s.Properties["arguments"] = &jsonschema.Schema{Type: "object"}
	}
	return s, err
}

// changesArgs are the arguments of plan_changes, each of its steps a change.
type changesArgs struct {
	Steps []json.RawMessage `json:"steps" jsonschema:"calls on distinct objects, in order"`
}

// change is one call as it stands in the arguments.
type change struct {
	Action    string          `json:"action"`
	Arguments json.RawMessage `json:"arguments"` // as those of its plan tool
}

// request is what a plan is made of: one call, or several.
type request struct {
	name      string
	canonical json.RawMessage
	calls     []actionCall
	first     int // the number of the first of the calls, from 0
}

// actionCall is one call of an action.
type actionCall struct {
	*action.Action
	args action.Args
}

// one is the request of a single call.
func one(a *action.Action, d action.Decoded) request {
	return request{name: a.Name, canonical: d.Canonical, calls: []actionCall{{a, d.Args}}}
}

func (r request) several() bool { return r.name == plan.ChangesTool }

// alone is a request for one of the calls.
func (r request) alone(i int) request {
	r.calls, r.first = r.calls[i:i+1], r.first+i
	return r
}

// several decodes each call by the schema of its own action. All faults are named.
func (e *Engine) several(args changesArgs, schemaOf func(*action.Action) *jsonschema.Schema) (request, error) {
	schema, err := changeSchema()
	if err != nil {
		return request{}, err
	}
	r := request{name: plan.ChangesTool}
	var canonical struct {
		Steps []change `json:"steps"`
	}
	var no *refusal.Refusal
	fault := func(where string, i int, err error) {
		no = refusal.Join(no, within(fmt.Sprintf(where, i), kube.Refuse(err)))
	}
	for i, raw := range args.Steps {
		one, _, err := action.Decode[change](schema, raw)
		if err != nil {
			fault("steps[%d]", i, err)
			continue
		}
		a, err := e.actionOf(one.Action)
		if err != nil {
			fault("steps[%d].action", i, refusal.New(refusal.InvalidArguments, "actions are "+strings.Join(e.enabled(), ", "), "there is no such action"))
			continue
		}
		d, err := a.Decode(schemaOf(a), one.Arguments)
		if err != nil {
			fault("steps[%d].arguments", i, err)
			continue
		}
		r.calls = append(r.calls, actionCall{a, d.Args})
		canonical.Steps = append(canonical.Steps, change{a.Name, d.Canonical})
	}
	if no != nil {
		return r, no
	}
	r.canonical = plan.JSON(canonical)
	return r, nil
}

// enabled are the names of the actions that the policy enables.
func (e *Engine) enabled() (names []string) {
	for _, a := range e.cfg.Actions {
		if e.cfg.Policy.Action(a.Name) == nil {
			names = append(names, a.Name)
		}
	}
	return names
}

// requestOf makes the request of a recorded call again.
func (e *Engine) requestOf(name string, args json.RawMessage) (request, error) {
	if name == plan.ChangesTool {
		var all changesArgs
		if err := json.Unmarshal(args, &all); err != nil {
			return request{}, err
		}
		return e.several(all, (*action.Action).Schema)
	}
	a, err := e.actionOf(name)
	if err != nil {
		return request{}, err
	}
	d, err := a.Decode(a.Schema(), args)
	return one(a, d), err
}

// within says of which call a refusal is.
func within(where string, r *refusal.Refusal) *refusal.Refusal {
	r = refusal.Join(r) // a copy
	r.Message = where + ": " + r.Message
	for i, also := range r.Also {
		c := *also
		c.Message = where + ": " + c.Message
		r.Also[i] = &c
	}
	return r
}

// callError is what one of the calls of a request failed with.
type callError struct {
	call int
	err  error
}

func (e *callError) Error() string { return e.err.Error() }

// callErrors are those of all calls.
type callErrors []*callError

func (e callErrors) Error() string {
	var out []string
	for _, one := range e {
		out = append(out, one.Error())
	}
	return strings.Join(out, "; ")
}

// any gives them as an error, nil where there are none.
func (e callErrors) any() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// explainAll words the error of gates or of a planning pass. Where there are several calls
// it says which one it is about.
func (e *Engine) explainAll(ctx context.Context, r request, err error) error {
	all, ok := errors.AsType[callErrors](err)
	if !ok {
		return kube.Refuse(err)
	}
	var no *refusal.Refusal
	for _, one := range all {
		said := kube.Refuse(e.explain(ctx, r.calls[one.call].args, one.err))
		if r.several() {
			said = within(fmt.Sprintf("steps[%d]", r.first+one.call), said)
		}
		no = refusal.Join(no, said)
	}
	return no
}

// admit decides about the arguments of every call, and gives the strictest of their
// limits. What needs a read of a node comes last, and only where all else passed.
func (e *Engine) admit(ctx context.Context, r request, undo bool) (limits gate.Limits, err error) {
	limits = e.cfg.Policy.Limits
	for _, reads := range []bool{false, true} {
		var failed callErrors
		for i, c := range r.calls {
			if e.cfg.Policy.NeedsNode(c.args.Scope()) != reads {
				continue
			}
			own, err := e.gates(ctx, c.Action, c.args, undo)
			if err != nil {
				failed = append(failed, &callError{i, err})
			}
			limits = limits.Stricter(own)
		}
		if failed != nil {
			return limits, failed.any()
		}
	}
	return limits, nil
}

// limitsOf are the strictest of the namespaces that a plan reaches into.
func (e *Engine) limitsOf(steps []plan.Step) gate.Limits {
	limits := e.cfg.Policy.Limits
	for _, s := range steps {
		limits = limits.Stricter(e.cfg.Policy.For(s.Target.Namespace))
	}
	return limits
}

// maxPercent is the strictest blast limit of what several calls are about.
func (e *Engine) maxPercent(parts []part) int {
	limits := e.cfg.Policy.Limits
	for _, p := range parts {
		limits = limits.Stricter(e.cfg.Policy.For(p.Target.Namespace))
	}
	return limits.MaxBlastPercent
}

// caps holds every scale to the cap of its own namespace.
func (e *Engine) caps(steps []plan.Step) (no *refusal.Refusal) {
	for i, s := range steps {
		no = refusal.Join(no, e.cfg.Policy.For(s.Target.Namespace).Cap(steps[i:i+1]))
	}
	return no
}

// sumGates decides about what several calls come to together and no one of them alone.
func (e *Engine) sumGates(got *passed, p *plan.Plan) (no *refusal.Refusal) {
	no = e.tooMany(p)
	for _, over := range got.effect.OverBudget {
		no = refusal.Join(no, refusal.New(refusal.BlastLimit, "plan fewer of these evictions at once, and the others when replacements are ready", "%s", over))
	}
	return no
}

// tooMany refuses a plan of more calls than the rate of writes ever lets through.
func (e *Engine) tooMany(p *plan.Plan) *refusal.Refusal {
	limit := e.limitsOf(p.Steps).WritesPerMinute
	if p.Writes() <= max(limit, 1) {
		return nil
	}
	return refusal.New(refusal.CapExceeded, fmt.Sprintf("plan at most %d calls at once", limit),
		"%d calls in one plan are more than --writes-per-minute %d ever lets through", p.Writes(), limit)
}

// writeRate refuses the plan for which there is no room in the last minute: one of several
// calls needs as much as all of them.
func (e *Engine) writeRate(l *journal.Ledger, p *plan.Plan) *refusal.Refusal {
	if r := e.tooMany(p); r != nil {
		return r
	}
	now, limit, n := e.wall(), e.limitsOf(p.Steps).WritesPerMinute, p.Writes()
	past := l.Writes(p.Cluster, now.Add(-time.Minute))
	r := gate.Rate("write", past, limit-n+1, now)
	if r != nil && n > 1 {
		r.Message = fmt.Sprintf("%d writes in the last minute and %d calls in this plan: %d in a minute are allowed", len(past), n, limit)
	}
	return r
}

// conflict refuses calls that touch the same object, or of which one touches what owns
// the other's: a server dry run cannot see what the first one would do.
func (g *passed) conflict(first int) error {
	for j := range g.parts {
		for i := range j {
			what, ok := g.parts[i].meets(g.parts[j])
			if !ok {
				what, ok = g.parts[j].meets(g.parts[i])
			}
			if ok {
				return refusal.New(refusal.PreconditionFailed, fmt.Sprintf("plan steps[%d] by itself, after steps[%d] was executed", first+j, first+i),
					"steps[%d] and steps[%d] both touch %s: the dry run of the second cannot see what the first would do", first+i, first+j, what)
			}
		}
	}
	return nil
}

// part is what one call of a pass came to.
type part struct {
	action.Outcome
	blast plan.Blast // of it alone, where there are several
}

// objects are what a call is about, live, its target first.
func (o part) objects() []action.Proposal {
	return append([]action.Proposal{{Step: plan.Step{Target: o.Target}, Object: o.Object}}, o.Proposals...)
}

// meets names an object of a call that is also one of the other's, or that owns one.
func (o part) meets(other part) (plan.Target, bool) {
	for _, theirs := range other.objects() {
		uid, top := theirs.Step.Target.UID, topOwner(theirs.Step.Target, theirs.Object)
		for _, mine := range o.objects() {
			t := mine.Step.Target
			if t.UID == uid || t.UID == theirs.Object.Value(plan.OwnerField) ||
				t.Resource == top.Resource && t.Namespace == top.Namespace && t.Name == top.Name {
				return t, true
			}
		}
	}
	return plan.Target{}, false
}

// topOwner is the Deployment above the ReplicaSet of a pod, which its pods know by name
// alone; the zero Target for everything else.
func topOwner(t plan.Target, o plan.Object) plan.Target {
	var pod corev1.Pod
	if t.Resource != "pods" || runtime.DefaultUnstructuredConverter.FromUnstructured(o, &pod) != nil {
		return plan.Target{}
	}
	if top := kube.PodFacts(&pod).Top(); top.Kind == "Deployment" {
		return plan.Target{Resource: "deployments", Namespace: t.Namespace, Name: top.Name}
	}
	return plan.Target{}
}

// join makes of the outcomes of all calls that of the whole.
func (g *passed) join(r request) error {
	if !r.several() {
		g.Outcome = g.parts[0].Outcome
		return nil
	}
	var sentences []string
	for i, p := range g.parts {
		n := r.first + i + 1
		g.Proposals = append(g.Proposals, p.Proposals...)
		g.Kubectl = append(g.Kubectl, p.Kubectl...)
		for _, w := range p.Warnings {
			g.Warnings = append(g.Warnings, fmt.Sprintf("%d: %s", n, w))
		}
		for _, s := range p.Stays {
			g.Stays = append(g.Stays, fmt.Sprintf("%d: %s", n, s))
		}
		if p.Sentence == "" {
			g.Warnings = append(g.Warnings, fmt.Sprintf("%d: no change, it is so already: %s", n, p.Target))
		}
		sentences = append(sentences, p.Sentence)
	}
	var err error
	if g.Sentence, err = plan.Sentences(sentences); err != nil {
		return refusal.New(refusal.PreconditionFailed, "plan fewer calls at once", "these are too many for one plan: %v", err)
	}
	return g.conflict(r.first)
}

// of is the pass as if one call were the whole of it.
func (g *passed) of(i int) *passed {
	own := *g
	own.Outcome, own.parts, own.moved, own.redo, own.warnings = g.parts[i].Outcome, g.parts[i:i+1], false, false, nil
	return &own
}

// takeBack holds every call of a pass to the plan that it takes back.
func (g *passed) takeBack(old *plan.Plan) error {
	for i := range g.parts {
		own := g.of(i)
		if err := own.takesBack(old); err != nil {
			return err
		}
		g.moved, g.redo = g.moved || own.moved, g.redo || own.redo
		g.warnings = append(g.warnings, own.warnings...)
	}
	return nil
}

// radii computes the radius of each call alone, for its own lines, and leaves to the sum
// what only the sum says.
func (e *Engine) radii(got *passed, in blast.Input) {
	known := map[string]bool{}
	for i := range got.parts {
		own := got.of(i)
		namespace := own.Target.Namespace
		in.Steps, in.Labels, in.MaxPercent = own.steps(), got.labels[namespace], e.cfg.Policy.For(namespace).MaxBlastPercent
		if len(in.Steps) == 0 {
			continue
		}
		effect, no := blast.Compute(in)
		if no != nil {
			continue // no more than the sum, which had the same facts, could be without them
		}
		got.parts[i].blast = effect.Blast
		for _, l := range effect.Blast.Lines {
			known[l] = true
		}
	}
	got.effect.Blast.Lines = slices.DeleteFunc(got.effect.Blast.Lines, func(line string) bool {
		_, said, _ := strings.Cut(line, ": ") // the sum says of whom it speaks
		return known[line] || known[said]
	})
}

// describeParts fills a plan of several calls with what each of them came to.
func (g *passed) describeParts(p *plan.Plan, r request) {
	for i, part := range g.parts {
		own := plan.Part{
			Action: r.calls[i].Name, Sentence: part.Sentence, Steps: len(part.Proposals), Target: part.Target, Blast: part.blast, Undo: part.Undo,
			Before: plan.BeforeOf(part.Target.Resource, part.Object), Version: plan.VersionOf(part.Object),
		}
		p.Parts = append(p.Parts, own)
	}
	p.Before, p.Version = g.before(p), ""
	p.Undo = undoOf(p.Parts, func(int) bool { return true })
}

// undoOf is what takes back those of several calls that are done: their inverses, the last
// one first.
func undoOf(parts []plan.Part, done func(int) bool) (u plan.Undo) {
	var calls struct {
		Steps []change `json:"steps"`
	}
	var kubectl, notes, none []string
	for i, part := range slices.Backward(parts) {
		what := fmt.Sprintf("%d %s", i+1, part.Sentence)
		switch {
		case part.Steps == 0 || !done(i):
			continue
		case part.Undo.Tool == "":
			none = append(none, what)
		default:
			calls.Steps = append(calls.Steps, change{strings.TrimPrefix(part.Undo.Tool, "plan_"), part.Undo.Arguments})
		}
		if part.Undo.Kubectl != "" {
			kubectl = append(kubectl, part.Undo.Kubectl)
		}
		if part.Undo.Note != "" {
			notes = append(notes, fmt.Sprintf("%d: %s", i+1, part.Undo.Note))
		}
	}
	u.Kubectl = strings.Join(kubectl, " && ")
	switch {
	case none != nil:
		notes = append([]string{"no call takes back " + strings.Join(none, ", nor ")}, notes...)
	case calls.Steps != nil:
		u.Tool, u.Arguments = "plan_"+plan.ChangesTool, plan.JSON(calls)
	}
	u.Note = strings.Join(notes, "; ")
	return u
}

// settleParts fills a result of several calls with what is left of them, and how those that are
// done are taken back.
func settleParts(res *plan.Result, p *plan.Plan, became []*plan.StepResult) {
	var rest struct {
		Steps []json.RawMessage `json:"steps"`
	}
	var args changesArgs
	if err := json.Unmarshal(p.Args, &args); err != nil || len(args.Steps) != len(p.Parts) {
		return // the record was made by us: it is so never
	}
	begun, done, total, stopped := map[int]bool{}, 0, 0, ""
	for i := range p.Parts {
		from, to := p.Span(i)
		if from == to {
			continue
		}
		total++
		open := true
		whole := !slices.ContainsFunc(res.LeftOver, func(s string) bool { return strings.HasPrefix(s, leftOverOf(i)) })
		for n, s := range p.Steps[from:to] {
			outcome := stepNotSent
			if r := became[from+n]; r != nil {
				outcome = r.Outcome
			}
			begun[i] = begun[i] || outcome == stepApplied
			switch {
			case s.Optional || outcome == stepApplied || outcome == stepGone || slices.Contains(res.Skipped, s.Key()):
			case outcome == stepIndeterminate:
				whole, open = false, false
			default:
				whole = false
			}
		}
		switch {
		case whole:
			done++
			continue
		case stopped == "":
			stopped = fmt.Sprintf("%d %s", i+1, p.Parts[i].Sentence)
		}
		if open {
			rest.Steps = append(rest.Steps, args.Steps[i])
		}
	}
	res.Undo = undoOf(p.Parts, func(i int) bool { return begun[i] })
	if stopped == "" {
		return
	}
	res.Detail = fmt.Sprintf("%d of %d calls are done; it stopped at %s: %s", done, total, stopped, res.Detail)
	if rest.Steps != nil {
		res.Rest = plan.JSON(rest)
	}
}

// leftOverOf begins what one of several calls has left over.
func leftOverOf(call int) string { return fmt.Sprintf("%d: ", call+1) }

// inTurn sends several calls one after the other. Right before its turn each is looked at
// again, by a pass and by gates of its own: what came before it may have taken an hour.
func (x *execution) inTurn(ctx context.Context, got *passed) (*Execution, error) {
	outcome, all, notes := plan.Executed, drifted{}, []string(nil)
	for i := range x.p.Parts {
		from, to := x.p.Span(i)
		if from == to {
			continue
		}
		own, now := got.of(i), x.drift(got.of(i), from, to)
		if x.claimed() {
			var err error
			if own, now, err = x.turn(ctx, i); err != nil {
				r := kube.Refuse(err)
				x.keep(&work{n: from + 1, step: x.p.Steps[from]}, plan.StepResult{Outcome: stepNotSent, Detail: r.Error(), Untrusted: r.Untrusted})
				outcome = plan.Failed
				break
			}
			got.parts[i] = own.parts[0]
		}
		all.add(now, i)
		of, said, answer, err := x.sendAll(ctx, own, now)
		if answer != nil || err != nil {
			return answer, err
		}
		notes = append(notes, said...)
		if outcome = of; outcome != plan.Executed || now.leftOver != nil && to < len(x.p.Steps) {
			outcome = plan.Failed
			break
		}
	}
	return x.conclude(ctx, got, all, outcome, notes)
}

// turn looks again at one call before its first Step is sent.
func (x *execution) turn(ctx context.Context, i int) (*passed, drifted, error) {
	if x.stop.Err() != nil {
		return nil, drifted{}, refusal.New(refusal.PreconditionFailed, "", "the server was stopped")
	}
	if err := x.flush(); err != nil { // the outcomes before it do not wait for it
		return nil, drifted{}, unavailable(err)
	}
	r := x.request.alone(i)
	if _, err := x.admit(ctx, r, x.p.Undoes != ""); err != nil {
		return nil, drifted{}, x.explainAll(ctx, r, err)
	}
	return x.again(ctx, r)
}

// before is the state of what a pass is about: of several calls by the names of their
// objects.
func (g *passed) before(p *plan.Plan) plan.State {
	if p.Parts == nil {
		return plan.BeforeOf(g.Target.Resource, g.Object)
	}
	all := plan.State{}
	for _, one := range g.parts {
		all[one.Target.String()] = plan.BeforeOf(one.Target.Resource, one.Object)
	}
	return all
}

// names are what a person types who approves: of several calls the names of all targets.
func (g *passed) names() string {
	var all []string
	for _, one := range g.parts {
		all = append(all, one.Target.Name)
	}
	return strings.Join(all, ", ")
}

// observeAll reads what a plan is about after the write.
func (e *Engine) observeAll(ctx context.Context, p *plan.Plan, t plan.Target) plan.State {
	if p.Parts == nil {
		return e.observe(ctx, t)
	}
	all := plan.State{}
	for _, one := range p.Parts {
		all[one.Target.String()] = e.observe(ctx, one.Target)
	}
	return all
}

// gravity orders verdicts, the worst first.
var gravity = []plan.Verdict{
	plan.Reverted, plan.Overridden, plan.QuotaExceeded, plan.Blocked, plan.Unschedulable, plan.NotStarted, plan.TimedOut, plan.Verifying, plan.Verified,
}

// convergeAll verifies a plan, of several calls each by its own rules: the worst verdict
// leads.
func (e *Engine) convergeAll(ctx context.Context, tell func(string), p *plan.Plan) plan.Verification {
	if p.Parts == nil {
		return e.converge(ctx, tell, p)
	}
	var mu sync.Mutex // one message at a time
	var waits []func() (plan.Verification, error)
	var named []plan.Part
	for i, part := range p.Parts {
		if part.Steps == 0 {
			continue
		}
		part.Sentence = fmt.Sprintf("%d %s", i+1, part.Sentence)
		named = append(named, part)
		waits = append(waits, async(e.cfg.Log, func() (plan.Verification, error) {
			return e.converge(ctx, func(message string) {
				mu.Lock()
				defer mu.Unlock()
				tell(part.Sentence + ": " + message)
			}, p.Alone(i)), nil
		}))
	}
	said := map[plan.Verdict][]string{}
	out := plan.Verification{State: plan.State{}}
	for i, wait := range waits {
		v, err := wait()
		if err != nil {
			v.Verdict, v.Reason = plan.TimedOut, "it could not be looked at"
		}
		said[v.Verdict] = append(said[v.Verdict], fmt.Sprintf("%s: %s, %s", named[i].Sentence, v.Verdict, v.Reason))
		out.State[named[i].Target.String()] = v.State
	}
	var reasons []string
	for _, verdict := range gravity {
		if said[verdict] != nil {
			out.Verdict = cmp.Or(out.Verdict, verdict)
			reasons = append(reasons, said[verdict]...)
		}
	}
	out.Reason, out.Time = strings.Join(reasons, "; "), e.now().UTC().Truncate(time.Millisecond)
	return out
}
