package engine

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// Asking is how the person at the client of a call can be asked.
type Asking struct {
	// Now shows a question and waits for its answer, until ctx ends. Any other error says
	// that the client could not ask. It is nil in the stateless era, where the question is
	// the answer to the call, and the client calls again with the person's answer.
	Now func(context.Context, Question) (Answer, error)

	Answer *Answer // that the call brings along, of the stateless era; nil where it brings none
}

// Question is what a person is asked: to type the name of the plan's target.
type Question struct {
	Plan  *plan.Plan
	State string // comes back with the answer, unchanged; of the stateless era
}

// Answer is what came back. All of it is the client's word: it is a gate, and no proof of a
// person.
type Answer struct {
	Action string // accept, decline or cancel
	Name   string // that was typed
	State  string // of the Question
}

// The actions of an Answer. Any other is taken for Cancelled.
const (
	Accepted  = "accept"
	Declined  = "decline"
	Cancelled = "cancel"
)

// The channels of an approval.
const (
	overElicitation = "elicitation"
	overTerminal    = "terminal"
)

// unapproved is the refusal of a plan that waits for a person.
func unapproved(p *plan.Plan, format string, args ...any) *refusal.Refusal {
	r := refusal.New(refusal.NeedsPerson, fmt.Sprintf("have a person run `kube-write-mcp approve %s` in a terminal, then call again with the same phrase", p.ID), format, args...)
	r.Retryable = true
	return r
}

// twoPersons says in which namespaces of Steps a plan takes two persons; "" where it does not.
func (e *Engine) twoPersons(steps []plan.Step) string {
	var in []string
	for _, s := range steps {
		where := "namespace " + s.Target.Namespace
		if s.Target.Namespace == "" {
			where = "nodes"
		}
		if e.cfg.Policy.For(s.Target.Namespace).TwoPersons && !slices.Contains(in, where) {
			in = append(in, where)
		}
	}
	if in == nil {
		return ""
	}
	return "two persons are required for changes to " + strings.Join(in, ", ") + " (two_persons)"
}

// waitsForSecond is the refusal of a plan that waits for a second person.
func waitsForSecond(p *plan.Plan, format string, args ...any) *refusal.Refusal {
	r := unapproved(p, format, args...)
	r.Hint = fmt.Sprintf("have a person who did not plan it, and who may approve it, run `kube-write-mcp approve %s --ledger cluster` with a kubeconfig of their own, then call again with the same phrase", p.ID)
	return r
}

// approved refuses a plan that needs a person and has no approval on record. What the
// operator wants now decides.
func (e *Engine) approved(p *plan.Plan, st journal.State) error {
	two := e.twoPersons(p.Steps)
	switch {
	case p.Person == nil && two == "":
		return nil
	case two != "" && (p.Person == nil || st.Approved && !st.Second):
		return refusal.New(refusal.PreconditionFailed, "plan again", "plan %s was made, or approved, before %s", p.ID, two)
	}
	waits, no := e.needsPerson(p.Steps, p.Person.Reasons)
	switch {
	case no != nil:
		return no
	case two != "" && !st.Second:
		return waitsForSecond(p, "plan %s waits for a second person: %s", p.ID, strings.Join(append(slices.Clone(p.Person.Reasons), two), "; "))
	case waits && !st.Approved:
		return unapproved(p, "plan %s waits for a person: %s", p.ID, strings.Join(p.Person.Why(), "; "))
	}
	return nil
}

// person is step 7: it comes back with nothing once the plan is approved, or where something
// else stands in the way, which the execution finds. In the stateless era it may come back
// with the question, which is then the answer to the call.
func (e *Engine) person(ctx context.Context, c Call, p *plan.Plan, r request, reason string, until time.Time) (*Execution, error) {
	if p.Person == nil {
		return nil, nil
	}
	err := e.j.View(func(l *journal.Ledger) error { return e.open(l, p, e.now()) })
	if !refusal.Is(err, refusal.NeedsPerson) {
		return nil, nil
	}
	if _, no := e.admit(ctx, r, p.Undoes != ""); no != nil { // 6: nobody is asked about what would be refused
		return nil, e.refuse(c, p, e.explainAll(ctx, r, no))
	}
	if over := e.j.View(e.withinPlanRate); over != nil { // nobody is asked without end
		return nil, e.refuse(c, p, over)
	}
	switch {
	case e.twoPersons(p.Steps) != "":
		return nil, e.second(ctx, c, p)
	case c.Asking == nil:
		return nil, e.refuse(c, p, err)
	case c.Asking.Now != nil:
		return nil, e.askNow(ctx, c, p, until)
	case c.Asking.Answer != nil:
		return nil, e.takeAnswer(c, p, reason)
	}
	return e.askLater(c, p, reason)
}

// second takes a second person's approval, and puts it on record. Nobody at the client of
// the call is asked: that would be the first one.
func (e *Engine) second(ctx context.Context, c Call, p *plan.Plan) error {
	_, name, _ := strings.Cut(p.Principal, ":") // as the API server knows who calls over HTTP
	who, err := e.cfg.Second(ctx, p, p.Principal, name, e.k.Read.KnownUser())
	switch {
	case err != nil:
		return e.refuse(c, p, waitsForSecond(p, "plan %s waits for a second person, and none counts: %s; nothing was sent", p.ID, plan.Untrusted(err.Error())))
	case plan.Untrusted(who) != who:
		return e.refuse(c, p, waitsForSecond(p, "plan %s is approved by one whose username cannot stand in the record; nothing was sent", p.ID))
	}
	l := e.line(c, journal.EventApproved)
	l.Principal = &journal.Principal{Kind: "kubernetes", Name: who, K8s: who}
	l.Channel, l.Output = journal.ChannelApproval, "by an Approval that "+who+" made, who did not plan it"
	if err := onRecord(e.j, p, l, e.now); err != nil {
		return e.refuse(c, p, err)
	}
	return nil
}

// askNow asks over the connection, at most until a time, since clients give calls up.
func (e *Engine) askNow(ctx context.Context, c Call, p *plan.Plan, until time.Time) error {
	nonce, err := e.questions.put(p, e.random, e.now(), true)
	if errors.Is(err, errAsked) {
		return e.refuse(c, p, unapproved(p, "plan %s waits for a person, who is being asked for another call", p.ID))
	}
	if err != nil {
		return e.refuse(c, p, err)
	}
	defer e.questions.take(p.ID, nonce)
	asking, cancel := context.WithDeadline(ctx, time.Now().Add(min(until.Sub(e.now()), p.Expires.Sub(e.now()))))
	defer cancel()
	shown := e.now()
	a, err := c.Asking.Now(asking, Question{Plan: p})
	switch {
	case err == nil:
		return e.answered(c, p, a, shown)
	case ctx.Err() != nil:
		return e.refuseWith(c, p, unapproved(p, "the call was cancelled before a person answered; nothing was sent"), asked(shown, time.Time{}))
	case asking.Err() != nil:
		return e.refuseWith(c, p, unapproved(p, "no person answered within %s; nothing was sent, and the plan stays open until %s",
			e.now().Sub(shown).Round(time.Second), p.Expires.UTC().Format(time.RFC3339)), asked(shown, time.Time{}))
	}
	return e.refuse(c, p, unapproved(p, "plan %s waits for a person, whom this client could not ask: %s", p.ID, strings.Join(p.Person.Why(), "; ")))
}

// askLater makes the question that is the answer to the call.
func (e *Engine) askLater(c Call, p *plan.Plan, reason string) (*Execution, error) {
	nonce, err := e.questions.put(p, e.random, e.now(), false)
	if err != nil {
		return nil, e.refuse(c, p, err)
	}
	shown := e.now()
	state, err := e.seal(p, c.Tool, reason, nonce, shown)
	if err != nil {
		return nil, e.refuse(c, p, err)
	}
	l := about(e.line(c, journal.EventWaiting), p)
	l.Code, l.ShownAt, l.Channel = string(refusal.NeedsPerson), shown.UTC(), overElicitation
	l.Output = "a person is asked: " + strings.Join(p.Person.Why(), "; ")
	if err := e.append(l); err != nil {
		return nil, unavailable(err)
	}
	return &Execution{Plan: p, Question: &Question{Plan: p, State: state}}, nil
}

// takeAnswer takes the answer to a question that is open, once.
func (e *Engine) takeAnswer(c Call, p *plan.Plan, reason string) error {
	shown, nonce, ok := e.unseal(p, c.Tool, reason, c.Asking.Answer.State)
	if !ok || !e.questions.take(p.ID, nonce) {
		r := unapproved(p, "this answers no question that is open about plan %s: it was answered, another one was asked since, or it was about another call", p.ID)
		r.Hint = "call again with the same phrase and without an answer, and the person is asked again; or " + r.Hint
		return e.refuse(c, p, r)
	}
	return e.answered(c, p, *c.Asking.Answer, shown)
}

// answered puts on record what became of a question.
func (e *Engine) answered(c Call, p *plan.Plan, a Answer, shown time.Time) error {
	now := e.now()
	const open = "nothing was sent, and the plan stays open"
	switch {
	case a.Action == Declined:
		return e.refuseWith(c, p, unapproved(p, "the person declined; %s", open), asked(shown, now))
	case a.Action != Accepted:
		return e.refuseWith(c, p, unapproved(p, "the question was closed without an answer; %s", open), asked(shown, time.Time{}))
	case a.Name != p.Person.Name:
		return e.refuseWith(c, p, unapproved(p, "the name that was typed is not that of the target; %s", open), asked(shown, now))
	}
	l := e.line(c, journal.EventApproved)
	if err := approve(e.j, p, l, overElicitation, shown, now, e.now); err != nil {
		return e.refuse(c, p, err)
	}
	return nil
}

// asked makes the line of a refusal that of a question which a person closed, or left.
func asked(shown, answered time.Time) func(*journal.Line) {
	return func(l *journal.Line) {
		l.Event, l.Channel, l.ShownAt = journal.EventRefused, overElicitation, shown.UTC()
		if !answered.IsZero() {
			l.AnsweredAt = answered.UTC()
		}
	}
}

// Approve puts on record that who approved a plan in a terminal by typing the name of its
// target. The error is a *refusal.Refusal where the plan is not open, or has no need of it.
func Approve(j *journal.Journal, p *plan.Plan, who journal.Principal, shown, answered time.Time, now func() time.Time) error {
	return approve(j, p, &journal.Line{Event: journal.EventApproved, Principal: &who, Label: p.Label}, overTerminal, shown, answered, now)
}

// approve appends what a person typed while its plan is open.
func approve(j Journal, p *plan.Plan, l *journal.Line, channel string, shown, answered time.Time, now func() time.Time) error {
	l.Channel, l.ShownAt, l.AnsweredAt = channel, shown.UTC(), answered.UTC()
	l.Output = fmt.Sprintf("by typing %s, %s after it was shown, over %s", p.Person.Name, answered.Sub(shown).Round(time.Second), channel)
	return onRecord(j, p, l, now)
}

// onRecord appends an approval while its plan is open. Where there is one already it is done.
func onRecord(j Journal, p *plan.Plan, l *journal.Line, now func() time.Time) error {
	about(l, p)
	err := j.Append(func(led *journal.Ledger) ([]*journal.Line, error) {
		if no := Approvable(led.Plan(p.ID), p, now()); no != nil {
			return nil, no
		}
		if led.Plan(p.ID).Approved {
			return nil, nil
		}
		return []*journal.Line{l}, nil
	})
	if err != nil {
		return unavailable(err)
	}
	return j.View(func(led *journal.Ledger) error {
		if !led.Plan(p.ID).Approved { // the line is of the very moment at which the plan expired
			return refusal.New(refusal.Expired, "plan again", "plan %s expired before its approval was on record", p.ID)
		}
		return nil
	})
}

// Approvable says in words why a plan cannot be approved at now; nil where it can.
func Approvable(st journal.State, p *plan.Plan, now time.Time) *refusal.Refusal {
	again := "plan again"
	switch {
	case p == nil || !st.Planned:
		return refusal.New(refusal.NotFound, "kube-write-mcp plans lists those that are open", "there is no such plan on record")
	case st.Claimed:
		return refusal.New(refusal.PreconditionFailed, again, "plan %s was executed, or its execution has begun: an approval is for once", p.ID)
	case st.Empty, p.Person == nil:
		return refusal.New(refusal.PreconditionFailed, "", "plan %s waits for nobody", p.ID)
	case st.Ended != "":
		return refusal.New(refusal.Code(st.Ended), again, "plan %s has ended: it is %s", p.ID, st.Ended)
	case lapsed(p, now) != "":
		return refusal.New(refusal.Expired, again, "%s", lapsed(p, now))
	}
	return nil
}

// questions are those that are open in this process, at most one for each plan. An answer
// takes its question away, so that none counts twice; a new question voids the one before.
type questions struct {
	mu   sync.Mutex
	open map[string]question // by plan
}

type question struct {
	nonce   string
	waits   bool // a call waits for the answer
	expires time.Time
}

var errAsked = errors.New("a person is being asked about this plan already")

// put opens a question. Where a call waits for the answer to another one, that stays.
func (q *questions) put(p *plan.Plan, random io.Reader, now time.Time, waits bool) (nonce string, err error) {
	b := make([]byte, 16)
	if _, err := io.ReadFull(random, b); err != nil {
		return "", fmt.Errorf("randomness: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if waits && q.open[p.ID].waits {
		return "", errAsked
	}
	if q.open == nil {
		q.open = map[string]question{}
	}
	for id, old := range q.open {
		if now.After(old.expires) {
			delete(q.open, id)
		}
	}
	nonce = base64.RawURLEncoding.EncodeToString(b)
	q.open[p.ID] = question{nonce, waits, p.Expires}
	return nonce, nil
}

// take closes a question, and reports whether it was open.
func (q *questions) take(id, nonce string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	open := q.open[id].nonce == nonce && nonce != ""
	if open {
		delete(q.open, id)
	}
	return open
}

// seal makes the state that a client brings back with an answer. It holds when the question
// was shown, and is good for one question about one plan, and for that call alone: its tool,
// its principal, its reason.
func (e *Engine) seal(p *plan.Plan, tool, reason, nonce string, shown time.Time) (string, error) {
	at := strconv.FormatInt(shown.UnixNano(), 36)
	mac, err := e.stateMAC(p, tool, reason, nonce, at)
	if err != nil {
		return "", err
	}
	return strings.Join([]string{nonce, at, mac}, "."), nil
}

func (e *Engine) unseal(p *plan.Plan, tool, reason, state string) (shown time.Time, nonce string, ok bool) {
	parts := strings.Split(state, ".")
	if len(parts) != 3 {
		return shown, "", false
	}
	mac, err := e.stateMAC(p, tool, reason, parts[0], parts[1])
	if err != nil || !hmac.Equal([]byte(mac), []byte(parts[2])) {
		return shown, "", false
	}
	ns, err := strconv.ParseInt(parts[1], 36, 64)
	return time.Unix(0, ns), parts[0], err == nil
}

// stateMAC is keyed with the key of the plan. Its fields are length-prefixed, as those of a
// phrase.
func (e *Engine) stateMAC(p *plan.Plan, fields ...string) (string, error) {
	key, err := e.keys.Derive(p.KeyID, "ask")
	if err != nil {
		return "", err
	}
	h := hmac.New(sha256.New, key)
	for _, f := range slices.Concat([]string{"kube-write-mcp/ask/v1", p.ID, p.Principal, p.Cluster}, fields) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(f)))
		h.Write(n[:])
		h.Write([]byte(f))
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)), nil
}
