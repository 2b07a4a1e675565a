// Package engine plans and executes: the state machine of a write, and the only caller of
// the live writer. It has no state of its own but the calls in flight; the journal is the
// truth.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// Config is fixed when the server starts.
type Config struct {
	Policy        gate.Policy
	Actions       []*action.Action // that an undo may be one of
	Label         string           // the cluster's name in every phrase and answer
	Inst          string           // 4 characters, new for every process
	VerifyWait    time.Duration    // how long a call waits before it answers verifying or in progress
	VerifyTimeout time.Duration    // how long verification goes on
	Log           *slog.Logger

	// Second gives who approved a plan and is none of the given names, or why there is
	// nobody; nil where the policy requires no two persons.
	Second func(ctx context.Context, p *plan.Plan, but ...string) (who string, err error)
}

// Journal is the record that an Engine writes and decides by: a file, or the ledger that
// replicas share. All of it is as *journal.Journal says.
type Journal interface {
	Append(decide func(*journal.Ledger) ([]*journal.Line, error)) error
	View(see func(*journal.Ledger) error) error
	Record(id string) (*plan.Plan, error)
	Result(id string) (json.RawMessage, error)
	Alive(inst string) bool
	Quiet(plan, auditID string) time.Duration
}

// Engine plans and executes for one cluster.
type Engine struct {
	cfg     Config
	k       *kube.Clients
	j       Journal
	keys    *journal.Keyring
	now     func() time.Time
	wall    func() time.Time // what the journal's lines are stamped with: its windows are measured by it
	random  io.Reader
	dryRuns atomic.Int64
	calls   atomic.Int64

	flights   flights
	settlings settlings
	late      lates
	questions questions
	repeats   repeats
	work      sync.WaitGroup // executions that have begun
	stop      context.Context
	stopped   context.CancelFunc
}

// New makes an Engine; it sends nothing.
func New(cfg Config, k *kube.Clients, j Journal, keys *journal.Keyring, now func() time.Time, random io.Reader) *Engine {
	e := &Engine{cfg: cfg, k: k, j: j, keys: keys, now: (&clock{wall: now}).now, wall: now, random: random}
	e.stop, e.stopped = context.WithCancel(context.Background())
	return e
}

// Stop ends what may be ended: no further Step is sent and no verification is waited
// for. A request in flight is waited for by Wait.
func (e *Engine) Stop() { e.stopped() }

// Wait returns when no execution is in flight, or when ctx ends.
func (e *Engine) Wait(ctx context.Context) {
	done := make(chan struct{})
	go func() { e.work.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Client is what an MCP client says about itself.
type Client = journal.Client

// Principal is who calls.
type Principal = journal.Principal

// Call is one tool call, as the server decoded it.
type Call struct {
	Action    *action.Action
	Tool      string // as it was called
	Raw       json.RawMessage
	Principal Principal // whose plans it may see and execute
	Caller    *Caller   // nil over stdio
	Client    Client
	Progress  func(message string) // may be nil
	Asking    *Asking              // nil where the client cannot ask a person

	record *record // of Plan and Execute
}

// PlanSchema is the input schema of an action's plan tool under this policy.
func (e *Engine) PlanSchema(a *action.Action) *jsonschema.Schema {
	s := a.Schema()
	if p, ok := s.Properties["replicas"]; ok {
		p.Maximum = new(float64)
		*p.Maximum = float64(min(e.cfg.Policy.MaxReplicas, math.MaxInt32))
		p.Comment = " (--max-replicas)"
	}
	return s
}

// ExecuteSchema is the input schema of an action's write tool: the plan's arguments, the
// phrase and the reason.
func (e *Engine) ExecuteSchema(a *action.Action) *jsonschema.Schema {
	return action.Confirmed(e.PlanSchema(a))
}

// line begins the journal line of a call.
func (e *Engine) line(c Call, event string) *journal.Line {
	who := c.Principal
	who.K8s = e.k.Read.KnownUser()
	l := &journal.Line{Event: event, Call: c.record.n, DryRuns: c.record.unwritten(), Tool: c.Tool, Principal: &who, Cluster: e.k.Read.Known(), Label: e.cfg.Label}
	if c.Client != (Client{}) {
		l.Client = &c.Client
	}
	return l
}

// about adds to a line what a plan says of itself.
func about(l *journal.Line, p *plan.Plan) *journal.Line {
	l.Plan, l.Args = p.ID, p.Args
	if p.Cluster != "" { // else the plan failed before it was known
		l.Cluster = p.Cluster
	}
	if p.Sentence != "" {
		l.Phrase = p.PhraseName()
	}
	if len(p.Steps) > 0 {
		l.Target = &p.Steps[0].Target
	}
	return l
}

// refuse puts a refusal on record and gives it back. A fault that is no refusal becomes
// one: the caller must always learn that nothing was sent.
func (e *Engine) refuse(c Call, p *plan.Plan, err error) *refusal.Refusal {
	return e.refuseWith(c, p, err, func(*journal.Line) {})
}

// refuseWith is refuse with a line that add changes.
func (e *Engine) refuseWith(c Call, p *plan.Plan, err error, add func(*journal.Line)) *refusal.Refusal {
	r := kube.Refuse(err)
	if r.Code == refusal.AuditUnavailable {
		return r // its words say what may have been sent; a line would fail as well
	}
	r = e.repeats.mark(c, r)
	l := e.line(c, r.Event())
	l.Code, l.Output, l.Untrusted = string(r.Code), r.Error(), r.Untrusted
	if p != nil {
		about(l, p)
		l.Ready = capacity(p.Blast.AtRisk)
	}
	add(l)
	if err := e.append(l); err != nil {
		return unavailable(err)
	}
	return r
}

func (e *Engine) append(lines ...*journal.Line) error {
	return e.j.Append(func(*journal.Ledger) ([]*journal.Line, error) { return lines, nil })
}

// unavailable is the refusal for a journal that cannot be written: the one answer that
// leaves no line.
func unavailable(err error) *refusal.Refusal {
	if r, ok := errors.AsType[*refusal.Refusal](err); ok {
		return r
	}
	return refusal.New(refusal.AuditUnavailable, "ask the operator to look at the journal", "the journal cannot be written, nothing was sent: %v", err)
}

// unrecorded is the refusal for an outcome that cannot be put on record: the request
// went out before.
func unrecorded(err error) *refusal.Refusal {
	r := refusal.New(refusal.AuditUnavailable, "look at the object, have the operator look at the journal, and call again with the same phrase: nothing is sent twice",
		"the change may have been applied, but its outcome cannot be put on record: %v", err)
	r.Retryable = true
	return r
}

// capacity is what the ten-minute memory keeps of the owners that a plan puts at risk.
func capacity(risks ...plan.Risk) (out []journal.Capacity) {
	for _, r := range risks {
		if r.UID == "" {
			continue
		}
		out = append(out, journal.Capacity{UID: r.UID, Ready: r.Ready})
		if r.Owner != r.UID { // a pod's plan knows its Deployment by name only
			out = append(out, journal.Capacity{UID: r.Owner, Ready: r.Ready})
		}
	}
	return out
}

// newID gives a plan id: 50 bits, 10 characters.
func (e *Engine) newID() (string, error) {
	b := make([]byte, 7)
	if _, err := io.ReadFull(e.random, b); err != nil {
		return "", fmt.Errorf("randomness: %w", err)
	}
	return plan.NewID(b), nil
}

// gates decides about arguments alone. Every gate runs; the node is read only where its
// labels decide.
func (e *Engine) gates(ctx context.Context, a *action.Action, args action.Args, undo bool) (gate.Limits, error) {
	scope, pol := args.Scope(), e.cfg.Policy
	limits := pol.For(scope.Namespace)
	no := refusal.Join(pol.Action(a.Name), pol.Scope(scope))
	if !undo { // which is bound to what its plan found, and takes no version
		no = refusal.Join(no, limits.Version(args.Expected()))
	}
	if closed, unless := pol.Window(a.Name, scope.Namespace, e.now(), false); !unless { // else a person may decide, once there is a plan
		no = refusal.Join(no, closed)
	}
	if no != nil || !pol.NeedsNode(scope) {
		if r := refusal.Join(no, pol.Node(scope, nil)); r != nil {
			return limits, r
		}
		return limits, nil
	}
	node, err := e.k.Read.Get(ctx, plan.Target{Resource: "nodes", Name: scope.Node})
	if err != nil {
		return limits, err
	}
	if r := pol.Node(scope, node.Labels()); r != nil {
		return limits, r
	}
	return limits, nil
}

// withinPlanRate refuses the plan that is one too many, or the guess at a phrase.
func (e *Engine) withinPlanRate(l *journal.Ledger) error {
	if r := e.planRate(l); r != nil {
		return r
	}
	return nil
}

// planRate refuses the plan that is one too many. Calls that were refused before the
// cluster was known by its UID stand under its address.
func (e *Engine) planRate(l *journal.Ledger) *refusal.Refusal {
	now := e.wall()
	since := now.Add(-time.Minute)
	past := l.Plans(e.k.Read.Known(), since)
	if e.k.Read.Known() != e.k.Read.Server() {
		if before := l.Plans(e.k.Read.Server(), since); len(before) > 0 {
			past = append(past, before...)
			slices.SortFunc(past, time.Time.Compare)
		}
	}
	return gate.Rate("plan", past, e.cfg.Policy.PlansPerMinute, now)
}

// explain words the error of a planning pass; an absent target comes with near names.
func (e *Engine) explain(ctx context.Context, args action.Args, err error) error {
	r := kube.Refuse(err)
	if t, ok := kube.Absent(err, args.Scope().Namespace); ok && r.Code == refusal.NotFound {
		r.Message, r.Untrusted = t.String()+" not found; nothing to plan", ""
		r.Hint = "check the name and the namespace"
		if near := e.k.Read.Near(ctx, t); len(near) > 0 {
			slices.Sort(near)
			r.Hint = "near names are " + strings.Join(near, ", ")
		}
	}
	return r
}

// repeats notices a caller that sends the same refused call again and again.
type repeats struct {
	mu sync.Mutex
	of map[string]*repeated // by principal
}

// repeated is the last call of one caller, and how often it was refused in a row.
type repeated struct {
	call string
	code refusal.Code
	n    int
}

// maxRepeats bounds the callers that are remembered: with one more, all start anew.
const maxRepeats = 1024

// begins counts anew where a call is another one than the caller's last, whatever became of
// that.
func (s *repeats) begins(c Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	who, call := c.Principal.String(), c.Tool+string(c.Raw)
	last, known := s.of[who]
	if s.of == nil || !known && len(s.of) >= maxRepeats {
		s.of = map[string]*repeated{}
	}
	if !known || last.call != call {
		s.of[who] = &repeated{call: call}
	}
}

// mark gives the refusal, or from the third identical one in a row on one that says so
// and names another next step.
func (s *repeats) mark(c Call, r *refusal.Refusal) *refusal.Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.of[c.Principal.String()]
	if was == nil || c.Tool+string(c.Raw) != was.call {
		return r // another call has begun meanwhile
	}
	if was.n++; r.Code != was.code {
		was.code, was.n = r.Code, 1
	}
	if was.n < 3 {
		return r
	}
	again := *r
	again.Message = fmt.Sprintf("%s (the same refused call, %d times in a row)", r.Message, was.n)
	again.Hint = "do not send it again: tell the person what was refused and why; " + r.Hint
	return &again
}
