package journal

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
	"unique"
)

// Outcomes are the events of which every call leaves exactly one, in the order in which a
// report shows them.
var Outcomes = []string{
	EventPlan, EventDryRunFailed, EventRefused, EventExpired, EventStale, EventRateLimited, EventWaiting,
	EventReplayed, EventInProgress, EventExecute, EventUnknown, EventRead,
}

// What a report counts beside the Outcomes: the calls that have none.
const (
	Reconciled = EventReconciled // begun, cut off, and settled later
	Unfinished = "unfinished"    // begun, and nobody knows
	NoLine     = "no_line"       // the call's number is missing
)

// CallReport counts calls. A call is counted by its number, which its process gave it when it
// came in; what it left on record is counted beside that.
type CallReport struct {
	Calls    int                       `json:"calls"`
	Outcomes int                       `json:"outcomes"` // calls that left one, settled later or not
	ByTool   map[string]map[string]int `json:"by_tool"`  // calls per tool and outcome, or what stands for one
	Faults   []string                  `json:"faults,omitempty"`
	Prompts  []PromptReport            `json:"prompts,omitempty"` // by principal
}

// Count reads an audit file and counts the calls that began at since or later; the zero
// time counts all. It fails as Scan does; that a call has no outcome, or two, is no error
// but a Fault. A call that a dying process had just begun, with nothing on record behind
// it, cannot be seen: nothing was sent by it.
func Count(path string, keys *Keyring, since time.Time) (*CallReport, error) {
	c := newCounter(since)
	if err := Scan(path, keys, func(l *Line) error { c.add(l); return nil }); err != nil {
		return nil, err
	}
	return c.report(), nil
}

// counter is the fold behind a CallReport. It keeps two words for every call.
type counter struct {
	since  time.Time
	order  []process
	calls  map[process]*numbered
	begun  map[string]execution // by plan, until its outcome
	faults []string

	prompts map[string][]prompt // by principal
}

type process struct {
	inst string
	pid  int
}

// numbered are the calls of one process.
type numbered struct {
	skip  int64 // numbers up to here are of the time before since
	ended []ended
}

// ended is what a call left: the zero ended is a number that no outcome has been seen for.
type ended struct{ tool, outcome string }

// execution is one whose first intent has been seen.
type execution struct {
	process
	call int64
	tool string
	plan string
	seq  int64 // of its first intent
}

func newCounter(since time.Time) *counter {
	return &counter{since: since, calls: map[process]*numbered{}, begun: map[string]execution{}, prompts: map[string][]prompt{}}
}

func (c *counter) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// add counts one line.
func (c *counter) add(l *Line) {
	p := process{l.Inst, l.PID}
	n := c.calls[p]
	if n == nil {
		n = &numbered{}
		c.calls[p] = n
		c.order = append(c.order, p)
	}
	if l.Time.Before(c.since) {
		n.skip = max(n.skip, l.Call)
	}
	if l.Event == EventReconciled {
		c.settle(l.Plan)
	}
	if l.Call == 0 && !l.Time.Before(c.since) && isOutcome(l.Event) {
		c.fault("line %d: the outcome %s is of no call", l.Seq, l.Event)
	}
	if !l.Time.Before(c.since) && l.Principal != nil && !l.ShownAt.IsZero() && !l.AnsweredAt.IsZero() {
		who := l.Principal.String()
		c.prompts[who] = append(c.prompts[who], prompt{l.ShownAt, l.AnsweredAt.Sub(l.ShownAt)})
	}
	if l.Call <= n.skip {
		return
	}
	for int64(len(n.ended)) < l.Call-n.skip {
		n.ended = append(n.ended, ended{})
	}
	switch l.Event {
	case EventIntent:
		if _, ok := c.begun[l.Plan]; !ok {
			c.begun[l.Plan] = execution{p, l.Call, l.Tool, l.Plan, l.Seq}
		}
	case EventExecute, EventUnknown:
		if x := c.begun[l.Plan]; x.process == p && x.call == l.Call {
			delete(c.begun, l.Plan)
		}
		c.settle(l.Plan) // by another call
	}
	if isOutcome(l.Event) {
		c.end(l, &n.ended[l.Call-n.skip-1])
	}
}

// end takes the outcome of a call. An execution may outlast the answer in_progress of its
// call: its own outcome then comes behind, or just before, and the answer counts.
func (c *counter) end(l *Line, e *ended) {
	now := ended{unique.Make(l.Tool).Value(), unique.Make(l.Event).Value()}
	switch {
	case e.outcome == "", goesOn(e.outcome) && l.Event == EventInProgress:
		*e = now
	case e.outcome == EventInProgress && goesOn(l.Event):
	default:
		c.fault("line %d: call %d of process %s has two outcomes, %s and %s", l.Seq, l.Call, l.Inst, e.outcome, l.Event)
	}
}

// goesOn knows the outcomes of an execution, which goes on whoever waits for it.
func goesOn(event string) bool { return event == EventExecute || event == EventUnknown }

func isOutcome(event string) bool { return slices.Contains(Outcomes, event) }

// settle takes that an execution was cut off and is settled. Where its call was answered
// in_progress, that stays what the call ended in.
func (c *counter) settle(plan string) {
	x, ok := c.begun[plan]
	if !ok {
		return
	}
	delete(c.begun, plan)
	c.stand(x, Reconciled)
}

// stand puts what stands for an outcome where a call has none.
func (c *counter) stand(x execution, outcome string) {
	n := c.calls[x.process]
	if e := &n.ended[x.call-n.skip-1]; e.outcome == "" {
		*e = ended{x.tool, outcome}
	}
}

// report adds up what was counted.
func (c *counter) report() *CallReport {
	for _, x := range slices.SortedFunc(maps.Values(c.begun), func(a, b execution) int { return cmp.Compare(a.seq, b.seq) }) {
		c.fault("line %d: call %d of process %s began %s of plan %s, which has no outcome: its process died, or is still at work", x.seq, x.call, x.inst, x.tool, x.plan)
		c.stand(x, Unfinished)
	}
	r := &CallReport{ByTool: map[string]map[string]int{}}
	for _, p := range c.order {
		n := c.calls[p]
		r.Calls += len(n.ended)
		for i, e := range n.ended {
			number := n.skip + int64(i) + 1
			if e.outcome == "" {
				e = ended{"?", NoLine}
				c.fault("call %d of process %s left no outcome: the journal could not be written, its process died, or it is still at work; nothing was sent by it", number, p.inst)
			}
			if e.outcome != NoLine && e.outcome != Unfinished {
				r.Outcomes++
			}
			if r.ByTool[e.tool] == nil {
				r.ByTool[e.tool] = map[string]int{}
			}
			r.ByTool[e.tool][e.outcome]++
		}
	}
	r.Faults, r.Prompts = c.faults, promptReports(c.prompts)
	return r
}
