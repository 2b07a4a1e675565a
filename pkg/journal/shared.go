package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Source is what a Ledger is a fold over where its lines are kept plan by plan, by a
// backend that several replicas share, and not in one file. A Source that cannot answer
// gives nothing and remembers why: what was decided by it then does not count.
type Source interface {
	// Kept gives a plan's record as JSON, and its lines as Keep made them, oldest first; nil
	// where there is no such plan.
	Kept(id string) (record []byte, lines [][]byte)
	// Unsettled are the plans that were claimed and have no result, oldest first.
	Unsettled() []string
	// Writes, Plans and Peak are as those of the Ledger.
	Writes(cluster string, since time.Time) []time.Time
	Plans(cluster string, since time.Time) []time.Time
	Peak(ownerUID string, since time.Time) (ready int, at time.Time)
	// Failed is told what Kept gave and the fold could not take.
	Failed(error)
}

// NewLedger is a fold over what a Source keeps, as far as it is asked for. It is good for
// one decision.
func NewLedger(s Source) *Ledger { return &Ledger{source: s} }

// fetch folds a plan's lines from the source.
func (l *Ledger) fetch(id string) *record {
	raw, kept := l.source.Kept(id)
	if raw == nil {
		return nil
	}
	var one Ledger
	if err := one.foldKept(id, raw, kept); err != nil {
		l.source.Failed(fmt.Errorf("plan %s: %w", id, err))
		return nil
	}
	if l.plans == nil {
		l.plans = map[string]*record{}
	}
	l.plans[id] = one.plans[id]
	return l.plans[id]
}

func (l *Ledger) foldKept(id string, raw []byte, kept [][]byte) error {
	for _, b := range kept {
		var e entry
		if err := json.Unmarshal(b, &e); err != nil {
			return err
		}
		if e.V != version || e.Plan != id {
			return fmt.Errorf("a line of format %d and plan %q is kept with it", e.V, e.Plan)
		}
		if e.Event == EventPlan {
			if err := json.Unmarshal(raw, &e.Record); err != nil {
				return err
			}
		}
		l.add(&e, span{})
	}
	if l.plans[id] == nil {
		return errors.New("no plan line is kept with it")
	}
	return nil
}

// Keep gives what the fold needs of a line, for a backend that keeps it: the record and
// the result of a plan are kept beside it. The line is not one of a file yet, so that time
// and instance are given.
func Keep(l *Line, inst string, at time.Time) ([]byte, error) {
	return Encode(&Line{
		V: version, Time: at.UTC().Truncate(time.Millisecond), Inst: inst, Event: l.Event, Plan: l.Plan, Cluster: l.Cluster,
		Claim: l.Claim, Step: l.Step, Attempt: l.Attempt, StepKey: l.StepKey, AuditID: l.AuditID, RV: l.RV, Gen: l.Gen,
		Reason: l.Reason, HTTP: l.HTTP, Code: l.Code, Output: l.Output, Untrusted: l.Untrusted, Ready: l.Ready, Verification: l.Verification, Channel: l.Channel,
	})
}

// Encode gives the JSON of a value as it stands in a line.
func Encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
