// Package plan is pure data: what was planned, shown, confirmed and done. It has no
// client and no clock. A Plan is sealed by its phrase; a Result is what came of it.
package plan

import (
	"encoding/json"
	"slices"
	"time"
)

// Scope is where an action acts. It is known from the arguments alone, so that a target
// out of scope is refused before anything is read. Exactly one field is set.
type Scope struct {
	Namespace string `json:"namespace,omitempty"`
	Node      string `json:"node,omitempty"`
}

// Class says how much of a person a plan needs.
type Class string

// The classes of a plan, computed per plan. Reads have none.
const (
	Reversible   Class = "reversible"
	Irreversible Class = "irreversible"
)

// Undo is how a plan's effect is taken back. Tool and Arguments are a literal call;
// Note says in words what it does not restore, or why there is no undo.
type Undo struct {
	Tool      string          `json:"tool,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Kubectl   string          `json:"kubectl,omitempty"`
	Note      string          `json:"note,omitempty"`
}

// State is what a plan shows and an audit line keeps of one object: named scalar values.
type State map[string]any

// Plan is the sealed record. It stands inline in the journal's plan line and the
// phrase signs it, so that what is executed is what was shown.
type Plan struct {
	ID         string          `json:"id"`
	Action     string          `json:"action"`
	Args       json.RawMessage `json:"args"` // canonical
	Principal  string          `json:"principal"`
	Cluster    string          `json:"cluster"` // identity: UID of kube-system, or CA hash and server
	Label      string          `json:"label"`   // the cluster's name in the sentence
	KeyID      string          `json:"kid"`
	Sentence   string          `json:"sentence,omitempty"`
	Undoes     string          `json:"undoes,omitempty"` // the executed plan that this one takes back
	Person     *Person         `json:"person,omitempty"` // nil where the phrase alone executes it
	Class      Class           `json:"class,omitempty"`
	Steps      []Step          `json:"steps"`
	Kubectl    []string        `json:"kubectl,omitempty"` // the same change by hand
	Before     State           `json:"before,omitempty"`
	Version    string          `json:"version,omitempty"` // the handle for expected_version
	Blast      Blast           `json:"blast"`
	Undo       Undo            `json:"undo"`
	Warnings   []string        `json:"warnings,omitempty"`
	Downstream []string        `json:"downstream,omitempty"` // the operator's notes on who depends on it
	Untrusted  string          `json:"untrusted,omitempty"`  // API warnings, sanitised
	Created    time.Time       `json:"created"`
	Expires    time.Time       `json:"expires"`

	Parts []Part `json:"parts,omitempty"` // of a plan of several calls
}

// Person is why a plan waits for a person, and what that person types to approve it. The
// phrase alone does not execute such a plan.
type Person struct {
	Reasons []string `json:"reasons"`
	Name    string   `json:"name"`             // of the target, exactly
	Second  string   `json:"second,omitempty"` // why it must be one who did not plan it, whatever the reasons; "" where any person will do
}

// Why is all that a person is waited for.
func (p *Person) Why() []string {
	if p.Second == "" {
		return p.Reasons
	}
	return append(slices.Clone(p.Reasons), p.Second)
}

// Decided is how many reasons a person was shown for the plan.
func (p *Plan) Decided() int {
	if p.Person == nil {
		return 0
	}
	return len(p.Person.Reasons)
}

// Empty reports whether the plan changes nothing: it has no Step that is not Optional.
func (p *Plan) Empty() bool {
	for _, s := range p.Steps {
		if !s.Optional {
			return false
		}
	}
	return true
}

// Call is the tool that executes the plan, and its arguments without phrase and reason.
func (p *Plan) Call() (tool string, args json.RawMessage) {
	if p.Undoes != "" {
		return UndoTool, JSON(map[string]string{"plan": p.Undoes})
	}
	return p.Action, p.Args
}

// UndoTool is the write tool that executes what takes another plan back.
const UndoTool = "undo"

// Outcome is the first word of an execution's answer.
type Outcome string

// The outcomes of an execution. InProgress and Unknown are not results: the same confirm
// gives the first result once there is one.
const (
	Executed   Outcome = "EXECUTED"
	Failed     Outcome = "FAILED"
	Unknown    Outcome = "UNKNOWN"
	InProgress Outcome = "IN PROGRESS"

	Indeterminate Outcome = "INDETERMINATE" // a result: nobody can find out what became of it

	NotExecuted Outcome = "NOT EXECUTED" // of write_status alone
)

// Verdict is what verification found. The list is closed.
type Verdict string

// The verdicts of verification.
const (
	Verified      Verdict = "verified"       // converged
	Verifying     Verdict = "verifying"      // not yet known
	TimedOut      Verdict = "timed_out"      // --verify-timeout passed
	Overridden    Verdict = "overridden"     // an autoscaler set another value
	Reverted      Verdict = "reverted"       // someone took the change back
	Blocked       Verdict = "blocked"        // something is in the way, such as a disruption budget
	Unschedulable Verdict = "unschedulable"  // pods fit on no node
	QuotaExceeded Verdict = "quota_exceeded" // pods were refused by quota or admission
	NotStarted    Verdict = "not_started"    // no controller observed the change
)

// Verification is a verdict with its reason and the live numbers behind it.
type Verification struct {
	Verdict Verdict   `json:"verdict"`
	Reason  string    `json:"reason,omitempty"`
	State   State     `json:"state,omitempty"`
	Time    time.Time `json:"time,omitzero"`
}

// StepResult is what became of one Step.
type StepResult struct {
	Step    string `json:"step"` // its Key
	Outcome string `json:"outcome"`
	Code    int    `json:"code,omitempty"`
	AuditID string `json:"audit_id,omitempty"`
	RV      string `json:"rv,omitempty"` // the resourceVersion that the request carried
	Detail  string `json:"detail,omitempty"`

	Untrusted string `json:"untrusted,omitempty"` // what the API server said, sanitised
}

// Result is the first result of a plan. A replay contains it byte for byte.
type Result struct {
	Plan     string       `json:"plan"`
	Sentence string       `json:"sentence"`
	Outcome  Outcome      `json:"outcome"`
	Detail   string       `json:"detail,omitempty"`
	Steps    []StepResult `json:"steps"`
	Skipped  []string     `json:"skipped,omitempty"`   // planned, no longer needed, not sent
	LeftOver []string     `json:"left_over,omitempty"` // needed now, not planned, not sent
	Before   State        `json:"before,omitempty"`
	After    State        `json:"after,omitempty"`
	Undo     Undo         `json:"undo"`
	Notes    []string     `json:"notes,omitempty"`
	Time     time.Time    `json:"time"`

	Rest json.RawMessage `json:"rest,omitempty"` // of several calls, the arguments of plan_changes for those that are not done
}
