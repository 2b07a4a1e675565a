package journal

import (
	"encoding/json"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// The events of a line. Every call writes exactly one of the outcome events; the others
// stand within or beside an execution.
const (
	EventPlan         = "plan" // a no-op is one without a phrase
	EventDryRunFailed = "dry_run_failed"
	EventRefused      = "refused"
	EventExpired      = "expired"
	EventStale        = "stale"
	EventRateLimited  = "rate_limited"
	EventReplayed     = "replayed"
	EventInProgress   = "in_progress"
	EventExecute      = "execute" // before and after: the first result stands in it
	EventUnknown      = "unknown"
	EventRead         = "read"
	EventWaiting      = "waiting_for_person" // a person was asked and has not answered, or cannot be asked

	// EventReconciled ends what was unknown, or a claim whose process died: it holds the
	// result, as execute does.
	EventReconciled = "reconciled"

	// EventApproved lets one plan be executed, once, until it expires.
	EventApproved = "approved"

	EventIntent    = "execute_intent" // before each request; the first one is the claim
	EventStep      = "step"           // the outcome of one request
	EventVerify    = "verify"
	EventAdopted   = "adopted"   // another replica planned or claimed it: before the first line here that rests on that; with the record, where it is not here
	EventRotated   = "rotated"   // the last line of a file that is closed, and the first of the next
	EventRecovered = "recovered" // what could not be trusted was taken off; with a Code it was the operator who asked
)

// Line is one event. On disk it is its compact JSON, in this key order, and a newline;
// MAC is the last key and covers all bytes before ,"mac":. Sequence, time, process,
// chain, key and mac are the Journal's to fill.
type Line struct {
	V     int       `json:"v"`
	Seq   int64     `json:"seq"`
	Time  time.Time `json:"ts"`
	Inst  string    `json:"inst"` // 4 characters, new for every process
	PID   int       `json:"pid"`
	Call  int64     `json:"call,omitempty"` // which tool call of that process, from 1: all its lines carry it
	Event string    `json:"event"`

	Plan      string          `json:"plan,omitempty"`
	Phrase    string          `json:"phrase,omitempty"` // sentence and plan id, never the mac
	Tool      string          `json:"tool,omitempty"`
	Args      json.RawMessage `json:"args,omitempty"`
	Principal *Principal      `json:"principal,omitempty"`
	Cluster   string          `json:"cluster,omitempty"`
	Label     string          `json:"label,omitempty"`
	Target    *plan.Target    `json:"target,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	Client    *Client         `json:"client,omitempty"`

	Channel    string    `json:"channel,omitempty"`    // over which a person was asked or approved: elicitation, terminal or approval
	ShownAt    time.Time `json:"shown_at,omitzero"`    // when the question was shown
	AnsweredAt time.Time `json:"answered_at,omitzero"` // when a person answered it; a question that was closed has none

	Claim        string    `json:"claim,omitempty"`
	Step         int       `json:"step,omitempty"`    // from 1
	Attempt      int       `json:"attempt,omitempty"` // from 1
	StepKey      string    `json:"step_key,omitempty"`
	StepDigest   string    `json:"step_digest,omitempty"`
	AuditID      string    `json:"audit_id,omitempty"`
	SendNotAfter time.Time `json:"send_not_after,omitzero"`
	Gen          int64     `json:"gen,omitempty"`  // the target's generation before the request: of a step exactly, of an intent at an earlier read
	RV           string    `json:"rv,omitempty"`   // likewise, its resourceVersion
	HTTP         int       `json:"http,omitempty"` // the status code of the request

	DryRuns []plan.StepResult `json:"dry_runs,omitempty"` // what the call has dry-run since its last line

	Request   []string     `json:"request,omitempty"`
	Kubectl   []string     `json:"kubectl,omitempty"`
	Code      string       `json:"code,omitempty"` // a refusal's code, or an outcome
	Output    string       `json:"output,omitempty"`
	Late      bool         `json:"late,omitempty"`      // an outcome that could only be written after the journal was recovered
	Untrusted string       `json:"untrusted,omitempty"` // text from the cluster, sanitised
	Ready     []Capacity   `json:"ready,omitempty"`     // what the ten-minute memory remembers
	Before    plan.State   `json:"before,omitempty"`
	After     plan.State   `json:"after,omitempty"`
	Undo      *plan.Undo   `json:"undo,omitempty"`
	Record    *plan.Plan   `json:"record,omitempty"`
	Result    *plan.Result `json:"result,omitempty"`

	Verification *plan.Verification `json:"verification,omitempty"`

	Segment *Segment `json:"segment,omitempty"` // in a last line its own file, in a first line the one that it carries on

	Prev string `json:"prev"` // SHA-256 of the line before, without its newline, hex; "" in the first
	KID  string `json:"kid"`  // whose audit key the mac is made with
	MAC  string `json:"mac"`  // HMAC-SHA256, hex
}

// Segment is a file of the journal that is closed. The next file begins with a line that
// names it and carries on its chain.
type Segment struct {
	File string `json:"file"`           // its name in the same folder
	Seq  int64  `json:"seq,omitempty"`  // of the last line of it that counts; not in that line itself
	Hash string `json:"hash,omitempty"` // SHA-256 of that line
}

// ChannelApproval is that of an approval by a second person: an object in the cluster.
const ChannelApproval = "approval"

// Principal is who called: over stdio the operating system's user, over HTTP the
// authenticated caller.
type Principal struct {
	Kind string `json:"kind"` // os | http | kubernetes, who approved
	Name string `json:"name"`
	K8s  string `json:"k8s_user,omitempty"` // the username that the API server sees
}

// String is the principal as plans and phrases are bound to it: os:alice.
func (p Principal) String() string { return p.Kind + ":" + p.Name }

// Client is what the MCP client says about itself: untrusted text, sanitised.
type Client struct {
	Name    string `json:"untrusted_name,omitempty"`
	Version string `json:"untrusted_version,omitempty"`
	Call    string `json:"untrusted_tool_call_id,omitempty"`
}

// Capacity is how many ready pods an owner had when it was planned for.
type Capacity struct {
	UID   string `json:"uid"`
	Ready int    `json:"ready"`
}
