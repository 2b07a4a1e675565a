// Package refusal is the closed list of reasons for which a call is refused. A refusal is
// an expected answer, not a fault: it says what was wrong, what to do instead, and
// whether the same call may pass later. Anything that is not a Refusal is a fault.
package refusal

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Code is the machine-readable reason, one of the constants below and no other.
type Code string

// The closed list of codes. Table documents them; every one is provoked by a test.
const (
	InvalidArguments   Code = "invalid_arguments"
	OutOfScope         Code = "out_of_scope"
	NodeNotAllowed     Code = "node_not_allowed"
	NotFound           Code = "not_found"
	Terminating        Code = "terminating"
	OwnedByController  Code = "owned_by_controller"
	Paused             Code = "paused"
	NoHistory          Code = "no_history"
	PreconditionFailed Code = "precondition_failed"
	FactsMissing       Code = "facts_missing"
	DryRunFailed       Code = "dry_run_failed"
	Forbidden          Code = "forbidden"
	BlastLimit         Code = "blast_limit"
	CapExceeded        Code = "cap_exceeded"
	WindowClosed       Code = "window_closed"
	NeedsPerson        Code = "needs_person"
	RateLimited        Code = "rate_limited"
	UnknownPhrase      Code = "unknown_phrase"
	WrongArguments     Code = "wrong_arguments"
	Expired            Code = "expired"
	Stale              Code = "stale"
	RecordMissing      Code = "record_missing"
	KeyUnknown         Code = "key_unknown"
	AuditUnavailable   Code = "audit_unavailable"
	Unreachable        Code = "unreachable"
)

// Entry is one row of Table.
type Entry struct {
	Code    Code
	Meaning string // one line, for the README
	Event   string // the journal's event for it
}

// Table lists every Code once, in the order of the README.
var Table = []Entry{
	{InvalidArguments, "an argument is unknown, missing, duplicated, mistyped or out of range; every fault is named at once", "refused"},
	{OutOfScope, "the namespace is protected or not allowed; nothing was read", "refused"},
	{NodeNotAllowed, "the node is not covered by --allow-nodes or --allow-node-selector", "refused"},
	{NotFound, "the target does not exist; near names are listed", "refused"},
	{Terminating, "the target or its namespace is being deleted", "refused"},
	{OwnedByController, "a controller owns the target and would undo the change; the owner is named", "refused"},
	{Paused, "the rollout is paused: resume it first", "refused"},
	{NoHistory, "there is no such revision to go back to", "refused"},
	{PreconditionFailed, "the object is not at expected_version, or a precondition of the action does not hold", "refused"},
	{FactsMissing, "a fact that a gate needs cannot be had; it is named", "refused"},
	{DryRunFailed, "the API server refused the dry run; no confirm phrase was issued", "dry_run_failed"},
	{Forbidden, "the server's credentials may not read what the plan needs, or the caller may not do this there", "refused"},
	{BlastLimit, "too much capacity at risk; the largest step that passes, or the time at which it would, is named", "refused"},
	{CapExceeded, "more replicas than --max-replicas", "refused"},
	{WindowClosed, "a change window forbids it, or none is open that allows it; the time at which it would pass is named", "refused"},
	{NeedsPerson, "a person must approve the plan first, its phrase alone does not execute it; refused where one was asked and did not", "waiting_for_person"},
	{RateLimited, "too many plans or writes in the last minute; the time at which the next one passes is named", "rate_limited"},
	{UnknownPhrase, "the phrase confirms no plan of this caller", "refused"},
	{WrongArguments, "the phrase belongs to other arguments; both sides are named and nothing is consumed", "refused"},
	{Expired, "the plan is too old: plan again", "expired"},
	{Stale, "the world moved since the plan was made; the fields that moved are named", "stale"},
	{RecordMissing, "the plan's record is gone or unreadable", "refused"},
	{KeyUnknown, "the plan was signed with a key that this server does not have: plan again", "refused"},
	{AuditUnavailable, "the journal cannot be written, so nothing is sent", "refused"},
	{Unreachable, "the API server does not answer", "refused"},
}

// Refusal says no, why, and what to do instead. It is an error.
type Refusal struct {
	Code      Code
	Message   string    // what was wrong, without text from the cluster
	Hint      string    // what to do instead, with the values that would pass
	Retryable bool      // the same call may pass later, unchanged
	RetryAt   time.Time // when it would pass, where that is known
	Untrusted string    // text from the cluster, sanitised; empty where there is none
	Also      []*Refusal
}

// New makes a Refusal; hint may be empty.
func New(code Code, hint, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

// Error gives all messages on one line, the first one first.
func (r *Refusal) Error() string {
	out := []string{r.Message}
	for _, a := range r.Also {
		out = append(out, a.Message)
	}
	return strings.Join(out, "; ")
}

// Later marks r as one that passes unchanged at the time at.
func (r *Refusal) Later(at time.Time) *Refusal {
	r.Retryable, r.RetryAt = true, at
	return r
}

// Event is the journal's event for r.
func (r *Refusal) Event() string {
	for _, e := range Table {
		if e.Code == r.Code {
			return e.Event
		}
	}
	return "refused"
}

// Join makes one Refusal of several: the first one leads, no reason is lost, also of those
// that were joined before. Nil ones are left out; with none left it returns nil.
func Join(all ...*Refusal) *Refusal {
	var lead *Refusal
	for _, r := range all {
		switch {
		case r == nil:
		case lead == nil:
			c := *r
			c.Also = slices.Clone(r.Also)
			lead = &c
		default:
			c := *r
			c.Also = nil
			lead.Also = append(append(lead.Also, &c), r.Also...)
		}
	}
	return lead
}

// Is reports whether err is a Refusal with this code.
func Is(err error, code Code) bool {
	r, ok := errors.AsType[*Refusal](err)
	return ok && r.Code == code
}
