package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/gentype"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// decideFor bounds one decision, with all its looks and its write.
const decideFor = 10 * time.Second

// Options say what a Cluster consists of.
type Options struct {
	File   *journal.Journal // this replica's own
	Client *kube.LedgerClient
	Keys   *journal.Keyring // the same for all replicas
	Inst   string           // as that of File
	Now    func() time.Time
	Log    *slog.Logger
}

// Cluster is a replica's handle on the ledger. It decides as a Journal does, by what all
// replicas wrote, and writes every line to its own file as well.
type Cluster struct {
	file   *journal.Journal
	client *kube.LedgerClient
	keys   *journal.Keyring
	inst   string
	now    func() time.Time
	log    *slog.Logger

	writes    *gentype.ClientWithList[*Write, *WriteList]
	budgets   *gentype.ClientWithList[*RateBudget, *RateBudgetList]
	approvals *gentype.ClientWithList[*Approval, *ApprovalList]

	turn  sync.Mutex
	mu    sync.Mutex
	ended map[*journal.Line]bool // in the file, and not yet in their Write
	peers map[string]beat
}

// New makes a Cluster; it sends nothing.
func New(o Options) *Cluster {
	return &Cluster{
		file: o.File, client: o.Client, keys: o.Keys, inst: o.Inst, now: o.Now, log: o.Log,
		writes:    kube.LedgerObjects(o.Client, writes, func() *Write { return &Write{} }, func() *WriteList { return &WriteList{} }),
		budgets:   kube.LedgerObjects(o.Client, budgets, func() *RateBudget { return &RateBudget{} }, func() *RateBudgetList { return &RateBudgetList{} }),
		approvals: kube.LedgerObjects(o.Client, approvals, func() *Approval { return &Approval{} }, func() *ApprovalList { return &ApprovalList{} }),
		ended:     map[*journal.Line]bool{}, peers: map[string]beat{},
	}
}

// view is what one decision sees, read live as far as it asks. The API server refuses what
// was decided by it where it is not so any more.
type view struct {
	c      *Cluster
	ctx    context.Context
	writes map[string]*Write // nil is one that is not there
	budget *RateBudget
	own    string // a plan that has its share of the rate already, if only it gets its claim
	err    error
}

func (c *Cluster) look(ctx context.Context) *view {
	return &view{c: c, ctx: ctx, writes: map[string]*Write{}}
}

// Failed keeps why a view cannot be trusted.
func (v *view) Failed(err error) {
	if v.err == nil {
		v.err = err
	}
}

func (v *view) write(id string) *Write {
	w, ok := v.writes[id]
	if !ok && v.err == nil {
		var err error
		if w, err = v.c.get(v.ctx, id); err != nil {
			v.Failed(err)
			return nil
		}
		v.writes[id] = w
	}
	return w
}

// Kept gives a plan and its lines.
func (v *view) Kept(id string) (record []byte, lines [][]byte) {
	w := v.write(id)
	if w == nil {
		return nil, nil
	}
	for _, l := range append(w.Status.Lines, w.Status.Verification) {
		if l != "" {
			lines = append(lines, []byte(l))
		}
	}
	return []byte(w.Spec.Record), lines
}

// Unsettled are the plans with a claim and no result.
func (v *view) Unsettled() (ids []string) {
	for _, s := range []State{Claimed, Unknown} {
		err := v.c.each(v.ctx, "status.state="+string(s), func(w *Write) error {
			ids = append(ids, w.Name)
			return nil
		})
		if err != nil {
			v.Failed(err)
		}
	}
	return ids
}

// used gives the budget; an empty one where it cannot be read.
func (v *view) used() *RateBudgetStatus {
	if v.budget == nil && v.err == nil {
		b, err := v.c.budget(v.ctx)
		if err != nil {
			v.Failed(err)
		}
		v.budget = b
	}
	if v.budget == nil {
		return &RateBudgetStatus{}
	}
	return v.budget.Status
}

// Writes are those of the budget.
func (v *view) Writes(cluster string, since time.Time) []time.Time {
	return times(v.used().Writes, cluster, since, v.own)
}

// Plans are those of the budget.
func (v *view) Plans(cluster string, since time.Time) []time.Time {
	return times(v.used().Calls, cluster, since, "")
}

// Peak is that of the budget.
func (v *view) Peak(uid string, since time.Time) (int, time.Time) { return v.used().peak(uid, since) }

// View shows the ledger as it is now.
func (c *Cluster) View(see func(*journal.Ledger) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), decideFor)
	defer cancel()
	v := c.look(ctx)
	err := see(journal.NewLedger(v))
	if v.err != nil {
		return v.err
	}
	return err
}

// kind is how much the other replicas must know of lines, and when.
type kind int

const (
	private kind = iota // nothing
	counted             // that they were: nothing rests on it where the ledger cannot be reached
	ended               // what became of what was sent: it is in the file first, since it is true whatever others say
	begun               // it may only be done once they know
)

func kindOf(l *journal.Line) kind {
	switch l.Event {
	case journal.EventReplayed, journal.EventInProgress, journal.EventRead, journal.EventRateLimited, "waiting_for_person":
		return private
	case journal.EventRefused, journal.EventDryRunFailed, journal.EventExpired, journal.EventStale:
		return counted
	case journal.EventStep, journal.EventExecute, journal.EventUnknown, journal.EventVerify:
		return ended
	}
	return begun
}

// Append decides by what all replicas wrote, and writes what it comes to: to the plan's
// Write and the budget, and to this replica's file. Where another replica changes what was
// seen, decide is asked again, so that it must come to the same lines for the same ledger.
// What begins something is in the ledger before it is in the file, what ended in the file
// before it is in the ledger; the call returns without an error when both have it.
func (c *Cluster) Append(decide func(*journal.Ledger) ([]*journal.Line, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), decideFor)
	defer cancel()
	if err := c.file.Sealed(); err != nil {
		return err // before anything is claimed
	}
	own, again := "", false
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		v := c.look(ctx)
		v.own = own
		lines, err := decide(journal.NewLedger(v))
		switch {
		case v.err != nil:
			return v.err
		case err != nil || len(lines) == 0:
			return err
		}
		switch slices.Max(kinds(lines)) {
		case private:
			return c.write(lines)
		case counted:
			if err := c.share(v, lines); !errors.Is(err, errMoved) || ctx.Err() != nil {
				if err != nil {
					c.log.Warn("a refusal could not be counted for all replicas", "err", err)
				}
				return c.write(lines)
			}
		case ended:
			if err := c.write(lines); err != nil {
				return err
			}
			if err := c.share(v, lines); !errors.Is(err, errMoved) {
				return c.through(lines, err)
			}
		case begun:
			err := c.share(v, lines)
			if err == nil {
				return c.write(lines)
			}
			if !errors.Is(err, errMoved) {
				return err
			}
		}
		if i := slices.IndexFunc(lines, func(l *journal.Line) bool { return l.Event == journal.EventIntent }); i >= 0 {
			own = lines[i].Plan
		}
		if !again { // who tries again has the turn in this process: one of them gets through
			again = true
			c.turn.Lock()
			defer c.turn.Unlock()
		}
		select {
		case <-ctx.Done():
			return &failed{"it changes all the time", errMoved}
		case <-time.After(wait.Jitter(pause, 1)):
		}
	}
}

func kinds(lines []*journal.Line) (out []kind) {
	for _, l := range lines {
		out = append(out, kindOf(l))
	}
	return out
}

// write puts lines into this replica's file, each of them once, and an adopted line before
// the first that rests on what another replica planned or claimed.
func (c *Cluster) write(lines []*journal.Line) error {
	records := map[string]*plan.Plan{}
	var here []*journal.Line
	c.mu.Lock()
	for _, l := range lines {
		if !c.ended[l] {
			here = append(here, l)
		}
	}
	c.mu.Unlock()
	if slices.ContainsFunc(here, rests) {
		err := c.file.View(func(led *journal.Ledger) error {
			for _, l := range here {
				if rests(l) && !led.Plan(l.Plan).Planned {
					records[l.Plan] = nil
				}
			}
			return nil
		})
		for id := range records {
			if err == nil {
				records[id], err = c.Record(id)
			}
		}
		if err != nil {
			return err
		}
	}
	err := c.file.Append(func(led *journal.Ledger) (out []*journal.Line, _ error) {
		for _, l := range here {
			st := led.Plan(l.Plan)
			p := records[l.Plan]
			delete(records, l.Plan)
			if p != nil && !st.Planned || l.Event == journal.EventReconciled && !st.Claimed {
				out = append(out, &journal.Line{Event: journal.EventAdopted, Plan: l.Plan, Cluster: l.Cluster, Label: l.Label, Record: p})
			}
			if l.Result != nil && st.Done {
				continue // this file has its result already, and that is what it gave the others
			}
			out = append(out, l)
		}
		return out, nil
	})
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, l := range here {
			if kindOf(l) == ended {
				c.ended[l] = true
			}
		}
	}
	return err
}

// rests reports whether a line can stand only behind its plan's record.
func rests(l *journal.Line) bool {
	switch l.Event {
	case journal.EventApproved, journal.EventIntent, journal.EventStep, journal.EventExecute, journal.EventUnknown, journal.EventReconciled, journal.EventVerify:
		return true
	}
	return false
}

// through forgets lines that both have.
func (c *Cluster) through(lines []*journal.Line, err error) error {
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, l := range lines {
			delete(c.ended, l)
		}
	}
	return err
}

// share puts lines into the ledger: first what they use up of the budget, then what they
// mean for their plans.
func (c *Cluster) share(v *view, lines []*journal.Line) error {
	now := c.now()
	if (&RateBudgetStatus{}).used(lines, now) {
		if v.used(); v.err != nil {
			return v.err
		}
		if next := v.budget.copy(); next.Status.used(lines, now) {
			next.Status.forget(now)
			if _, err := c.spend(v.ctx, next); err != nil {
				return err
			}
		}
	}
	of := map[string][]*journal.Line{}
	var ids []string
	for _, l := range lines {
		if l.Plan != "" && kindOf(l) != private && l.Event != journal.EventRefused && l.Event != journal.EventDryRunFailed {
			if of[l.Plan] == nil {
				ids = append(ids, l.Plan)
			}
			of[l.Plan] = append(of[l.Plan], l)
		}
	}
	for _, id := range ids {
		if err := c.shareOf(v, id, of[id], now); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) shareOf(v *view, id string, lines []*journal.Line, now time.Time) error {
	if p := lines[0].Record; p != nil && lines[0].Event == journal.EventPlan {
		record, err := journal.Encode(p)
		if err != nil {
			return err
		}
		line, err := journal.Keep(lines[0], c.inst, now)
		if err != nil {
			return err
		}
		return c.create(v.ctx, newWrite(p, string(record), []string{string(line)}))
	}
	w := v.write(id)
	switch {
	case v.err != nil:
		return v.err
	case w == nil && slices.Max(kinds(lines)) == counted:
		return nil // a plan that failed before it was on record
	case w == nil:
		return changed("the record of plan "+id, errors.New("it is not there"))
	}
	next, changes := w.copy(), false
	for _, l := range lines {
		ok, err := c.advance(next, l, now)
		if err != nil {
			return err
		}
		changes = changes || ok
	}
	if !changes {
		return nil
	}
	_, err := c.update(v.ctx, next)
	return err
}

// advance puts one line into a Write. It reports whether that changes it: what comes too
// late does not.
func (c *Cluster) advance(w *Write, l *journal.Line, now time.Time) (bool, error) {
	st := w.Status
	raw, err := journal.Keep(l, c.inst, now)
	if err != nil {
		return false, err
	}
	line := string(raw)
	if st.State.final() {
		if l.Event != journal.EventVerify || st.State == Expired || st.State == Stale {
			return false, nil
		}
		st.Verification, st.Verdict = line, l.Code
		return true, nil
	}
	switch l.Event {
	case journal.EventIntent:
		if st.Claim == nil {
			st.State, st.Claim = Claimed, &Claim{ID: l.Claim, Instance: c.inst, Time: stamp(now)}
		}
	case journal.EventStep:
	case journal.EventUnknown:
		st.State = Unknown
	case journal.EventExecute, journal.EventReconciled:
		return true, c.conclude(w, l, line)
	case journal.EventExpired, journal.EventStale:
		if st.State != Planned {
			return false, nil
		}
		st.State = Expired
		if l.Event == journal.EventStale {
			st.State = Stale
		}
	case journal.EventVerify:
		return false, nil // there is no result that it could be of
	}
	return true, keepLine(st, l, line)
}

// conclude gives a Write its result: the one that this replica has on disk, where it has
// one that it could not share before, else that of the line.
func (c *Cluster) conclude(w *Write, l *journal.Line, line string) error {
	st := w.Status
	raw, err := c.file.Result(w.Name)
	if err == nil && raw == nil {
		raw, err = journal.Encode(l.Result)
	}
	var res plan.Result
	if err == nil {
		err = json.Unmarshal(raw, &res)
	}
	if err != nil {
		return err
	}
	st.State, st.Result = stateOf(res.Outcome), string(raw)
	var kept []string
	for _, old := range st.Lines { // of what was before, who claimed it is what counts
		k, err := heading(old)
		if err != nil {
			return err
		}
		if k.Event == journal.EventStep || k.Event == journal.EventUnknown || k.Event == journal.EventIntent && slices.ContainsFunc(kept, isIntent) {
			continue
		}
		kept = append(kept, old)
	}
	st.Lines = append(kept, line)
	return nil
}

// keepLine adds a line, and takes off one that it makes good for nothing: of the intents
// and of the outcomes of a Step the last counts, beside the first intent of all, which is
// the claim.
func keepLine(st *WriteStatus, l *journal.Line, line string) error {
	claim := true
	var kept []string
	for _, old := range st.Lines {
		k, err := heading(old)
		if err != nil {
			return err
		}
		first := k.Event == journal.EventIntent && claim
		claim = claim && !first
		if !first && k.Event == l.Event && k.Step == l.Step && (k.Event == journal.EventIntent || k.Event == journal.EventStep) {
			continue
		}
		kept = append(kept, old)
	}
	st.Lines = append(kept, line)
	return nil
}

// head is what tells kept lines apart.
type head struct {
	Event string `json:"event"`
	Step  int    `json:"step"`
}

func heading(line string) (h head, err error) {
	err = json.Unmarshal([]byte(line), &h)
	return h, err
}

func isIntent(line string) bool {
	h, err := heading(line)
	return err == nil && h.Event == journal.EventIntent
}

// Record gives a plan as it was recorded, verified; nil when there is none.
func (c *Cluster) Record(id string) (*plan.Plan, error) {
	ctx, cancel := context.WithTimeout(context.Background(), decideFor)
	defer cancel()
	w, err := c.get(ctx, id)
	if err != nil || w == nil {
		return nil, err
	}
	var p plan.Plan
	if err := json.Unmarshal([]byte(w.Spec.Record), &p); err != nil {
		return nil, err
	}
	if p.ID != id {
		return nil, changed("the record of plan "+id, fmt.Errorf("it is that of plan %s", p.ID))
	}
	return &p, nil
}

// Result gives a plan's first result, byte for byte, nil when there is none.
func (c *Cluster) Result(id string) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(context.Background(), decideFor)
	defer cancel()
	w, err := c.get(ctx, id)
	if err != nil || w == nil || w.Status.Result == "" {
		return nil, err
	}
	return json.RawMessage(w.Status.Result), nil
}

// each shows every Write that a field selector picks, in pages.
func (c *Cluster) each(ctx context.Context, selector string, see func(*Write) error) error {
	o := metav1.ListOptions{FieldSelector: selector, Limit: 50}
	for {
		page, err := read(ctx, func() (*WriteList, error) { return c.writes.List(ctx, o) })
		if err != nil {
			return &failed{"the plans cannot be listed", err}
		}
		for i := range page.Items {
			if err := see(&page.Items[i]); err != nil {
				return err
			}
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return nil
		}
	}
}
