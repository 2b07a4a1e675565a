package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"
)

// VerifyOptions say against what a journal is verified beside itself.
type VerifyOptions struct {
	Checkpoints []string // files of checkpoints kept elsewhere; that beside the journal is always read
	Partial     bool     // the oldest files may have been taken away
}

// Report is what a journal was found to hold up to its end, or to its first bad line.
type Report struct {
	Files       int
	Lines       int64
	FirstSeq    int64
	LastSeq     int64
	LastHash    string // SHA-256 of the last line, hex
	From, To    time.Time
	Events      map[string]int
	Checkpoints int      // that a line was held against
	Void        int      // checkpoints of lines that the operator's recovery took off
	Recovered   []string // what the recovered lines say
	Unsettled   []string // plans with a claim and no result: at work, or to be found out
	Keys        []string // the key ids that lines and checkpoints name
}

// Verify reads all files of a journal and verifies every line: its mac, its place, its
// time and that its key was in use then; every outcome has its intent and every intent at
// most one outcome; there is one intent per Step and attempt, one claim and one result per
// plan; an approval is of a plan on record, one at most, and before its claim; and every checkpoint is of the line that it names. The error is a *BadLine for the
// first line that is wrong; where lines are missing it is the first of those.
func Verify(path string, keys *Keyring, o VerifyOptions) (*Report, error) {
	v := &verifier{
		chain: newChain(path, keys), report: &Report{Events: map[string]int{}}, plans: map[string]*history{}, partial: o.Partial,
	}
	for _, file := range append([]string{checkpointsPath(path)}, o.Checkpoints...) {
		list, err := ReadCheckpoints(file, keys)
		if err != nil && !(file == checkpointsPath(path) && errors.Is(err, fs.ErrNotExist)) {
			return v.report, err
		}
		v.heads.list = append(v.heads.list, list...)
		for _, c := range list {
			v.key(c.KID)
		}
	}
	slices.SortStableFunc(v.heads.list, func(a, b Checkpoint) int { return int(a.Seq - b.Seq) })
	err := v.chain.walk(v.line)
	if err == nil {
		err = v.heads.end(&v.chain)
	}
	v.report.Checkpoints, v.report.Void = v.heads.checked, v.heads.void
	v.report.LastSeq, v.report.LastHash, v.report.To = v.chain.seq, v.chain.prev, v.chain.last
	for id, h := range v.plans {
		if h.claim != "" && !h.done {
			v.report.Unsettled = append(v.report.Unsettled, id)
		}
	}
	slices.Sort(v.report.Unsettled)
	slices.Sort(v.report.Keys)
	return v.report, err
}

// verifier is where Verify stands.
type verifier struct {
	chain   chain
	heads   heads
	report  *Report
	plans   map[string]*history
	partial bool
	lossy   bool // lines before may be missing, so that what rests on them cannot be held against them
}

// history is what was seen of one plan.
type history struct {
	claim    string
	attempts map[[2]int]bool // by Step and attempt: whether it has an outcome
	approved bool
	done     bool
	lossy    bool
	adopted  bool // another replica planned it
}

func (v *verifier) line(_ []byte, e *entry, at span) error {
	if err := v.check(e, at); err != nil {
		// The chain stands behind the line already.
		return &BadLine{Path: filepath.Clean(v.chain.file), Line: v.chain.line, Offset: at.offset, Why: err}
	}
	return nil
}

func (v *verifier) key(kid string) {
	if !slices.Contains(v.report.Keys, kid) {
		v.report.Keys = append(v.report.Keys, kid)
	}
}

func (v *verifier) check(e *entry, at span) error {
	r := v.report
	if v.chain.line == 1 {
		r.Files++
	}
	if r.Lines == 0 {
		r.FirstSeq, r.From = e.Seq, e.Time
		if e.Seq > 1 || e.Segment != nil {
			if !v.partial {
				return fmt.Errorf("it carries on %s, which is missing", e.Segment.File)
			}
			v.lossy = true
		}
	}
	r.Lines++
	r.Events[e.Event]++
	v.key(e.KID)
	if err := v.heads.line(e, &v.chain); err != nil {
		return err
	}
	if err := v.chain.keys.inUse(e.KID, e.Time); err != nil {
		return err
	}
	if e.Event == EventRecovered {
		r.Recovered = append(r.Recovered, e.Output)
		if e.Code == recoveredTail || e.Code == recoveredNewFile {
			v.lossy = true
			for _, h := range v.plans {
				h.lossy = true
			}
		}
	}
	return v.order(e)
}

// order checks what a plan's lines may follow.
func (v *verifier) order(e *entry) error {
	h := v.plans[e.Plan]
	switch e.Event {
	case EventPlan:
		if h != nil && !h.lossy {
			return fmt.Errorf("plan %s was on record before", e.Plan)
		}
		v.plans[e.Plan] = &history{attempts: map[[2]int]bool{}}
		return nil
	case EventAdopted: // what another replica claimed may be settled by this one
		if h == nil {
			h = &history{attempts: map[[2]int]bool{}}
			v.plans[e.Plan] = h
		}
		h.adopted = true
		return nil
	case EventApproved, EventIntent, EventStep, EventExecute, EventUnknown, EventReconciled:
	default:
		return nil
	}
	if h == nil {
		if !v.lossy {
			return fmt.Errorf("plan %s has no plan line before it", e.Plan)
		}
		h = &history{attempts: map[[2]int]bool{}, lossy: true}
		v.plans[e.Plan] = h
	}
	if e.Event == EventApproved {
		switch {
		case h.claim != "":
			return fmt.Errorf("plan %s was executed before it was approved", e.Plan)
		case h.approved:
			return fmt.Errorf("plan %s was approved already", e.Plan)
		}
		h.approved = true
		return nil
	}
	attempt := [2]int{e.Step, e.Attempt}
	outcome, intended := h.attempts[attempt]
	if e.Event == EventIntent {
		switch {
		case h.done:
			return fmt.Errorf("plan %s has its result already, nothing may be sent for it", e.Plan)
		case h.claim != "" && h.claim != e.Claim:
			return fmt.Errorf("plan %s was claimed by %s already", e.Plan, h.claim)
		case intended:
			return fmt.Errorf("step %d of plan %s has an intent for attempt %d already", e.Step, e.Plan, e.Attempt)
		}
		h.claim = e.Claim
		h.attempts[attempt] = false
		return nil
	}
	if h.claim == "" && !h.lossy && !(h.adopted && e.Event == EventReconciled) {
		return fmt.Errorf("plan %s has an outcome and no intent before it", e.Plan)
	}
	switch e.Event {
	case EventStep:
		switch {
		case !intended && !h.lossy:
			return fmt.Errorf("step %d of plan %s has an outcome of attempt %d and no intent for it", e.Step, e.Plan, e.Attempt)
		case outcome:
			return fmt.Errorf("step %d of plan %s has an outcome of attempt %d already", e.Step, e.Plan, e.Attempt)
		}
		h.attempts[attempt] = true
	case EventExecute, EventReconciled:
		if h.done {
			return fmt.Errorf("plan %s has its result already", e.Plan)
		}
		h.done = true
	}
	return nil
}
