package plan

import "strings"

// Direction is what a plan does to pods.
type Direction string

// The directions of a plan.
const (
	Adds     Direction = "adds"
	Removes  Direction = "removes"
	Replaces Direction = "replaces"
	Evicts   Direction = "evicts"
	None     Direction = "none"
)

// Blast is the blast radius: the share of current capacity that a plan touches, and
// beside it the capacity at risk, which --max-blast-percent gates.
type Blast struct {
	Direction Direction `json:"direction"`
	Pods      int       `json:"pods"`              // pods touched
	Of        int       `json:"of"`                // pods that there are
	Percent   int       `json:"percent"`           // Pods of Of, rounded up
	AtRisk    Risk      `json:"at_risk"`           // the worst owner's, for a plan over several
	Then      string    `json:"then,omitempty"`    // recreated, gone, rolling ...
	Lines     []string  `json:"lines,omitempty"`   // what a person must read, worst first
	Losses    []string  `json:"losses,omitempty"`  // data or pods that do not come back; a new one makes a plan stale
	Reverts   []string  `json:"reverts,omitempty"` // who is expected to take the change back: verification watches for longer
	Source    string    `json:"source,omitempty"`  // "cache, 3s old" or "live list"
	Largest   *int32    `json:"largest,omitempty"` // the largest step that passes --max-blast-percent, where there is one
}

// Risk is the share of ready pods that may be missing at the worst moment.
type Risk struct {
	Owner    string `json:"owner,omitempty"`    // kind/namespace/name
	UID      string `json:"uid,omitempty"`      // of the owner, the key of the ten-minute memory
	Ready    int    `json:"ready"`              // ready pods now
	Peak     int    `json:"peak"`               // the highest number of ready pods in the last 10 minutes, at least Ready
	Missing  int    `json:"missing"`            // of Ready, at the worst moment
	Percent  int    `json:"percent"`            // (Peak - (Ready - Missing)) of Peak, rounded up; 0 when nothing is missing
	Replaced bool   `json:"replaced,omitempty"` // a controller replaces what is missing
}

// Namespace is the owner's namespace, "" where the risk has no owner.
func (r Risk) Namespace() string {
	namespace, _ := r.owner()
	return namespace
}

// Name is the owner's name, "" where the risk has no owner.
func (r Risk) Name() string {
	_, name := r.owner()
	return name
}

// Single reports whether all that is at risk is one pod that its controller replaces, and
// nothing is missing already: that is said in plain words and passes (DESIGN 3). One pod
// after the other, while no replacement gets ready, is not single.
func (r Risk) Single() bool { return r.Missing == 1 && r.Replaced && r.Peak <= r.Ready }

func (r Risk) owner() (namespace, name string) {
	_, rest, _ := strings.Cut(r.Owner, "/")
	namespace, name, _ = strings.Cut(rest, "/")
	return namespace, name
}
