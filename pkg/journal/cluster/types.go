// Package cluster is the ledger that several replicas share: one Write object per plan in
// the server's own namespace, claimed by a status update with its resourceVersion, and one
// RateBudget object. Every replica keeps its own file journal beside it, which is the
// audit. The API server orders what replicas decide, and holds everybody, the replicas
// among them, to the states that a plan may go through.
package cluster

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewrite/kube-write-mcp/pkg/kube"
)

// State is where a plan stands.
type State string

// The states of a Write. The last five are final; Executed, Failed and Indeterminate are
// the outcome of its result.
const (
	Planned       State = "Planned"
	Claimed       State = "Claimed" // a request may have been sent: only one replica ever comes here
	Unknown       State = "Unknown" // it was, and nobody knows what became of it
	Executed      State = "Executed"
	Failed        State = "Failed"
	Indeterminate State = "Indeterminate"
	Expired       State = "Expired"
	Stale         State = "Stale"
)

// Write is one plan; its name is the plan's id. What stands in Spec and Status is signed,
// and is for people, but for Record, Lines, Verification and Result, which the server goes
// by.
type Write struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WriteSpec    `json:"spec"`
	Status *WriteStatus `json:"status,omitempty"` // nil until the plan is on record
}

// WriteSpec is what was planned. It never changes.
type WriteSpec struct {
	Action    string `json:"action"`
	Target    string `json:"target,omitempty"`
	Sentence  string `json:"sentence,omitempty"` // "" where there is nothing to change
	Principal string `json:"principal"`
	Expires   string `json:"expires"` // RFC 3339
	Record    string `json:"record"`  // the plan, as JSON
	KeyID     string `json:"kid"`
	MAC       string `json:"mac"` // over the name and all of the above
}

// WriteStatus is what became of it.
type WriteStatus struct {
	State        State    `json:"state"`
	Serial       int64    `json:"serial"`                 // one more with each update, so that no older status can come back
	Claim        *Claim   `json:"claim,omitempty"`        // from Claimed on
	Verdict      string   `json:"verdict,omitempty"`      // of the verification
	Lines        []string `json:"lines"`                  // of the journal, what the fold needs of them
	Verification string   `json:"verification,omitempty"` // the last such line
	Result       string   `json:"result,omitempty"`       // the first result, byte for byte
	KeyID        string   `json:"kid"`
	MAC          string   `json:"mac"` // over the object's UID and all of the above
}

// Claim is who executes a plan, once and for all.
type Claim struct {
	ID       string `json:"id"`       // random
	Instance string `json:"instance"` // of the replica
	Time     string `json:"time"`     // RFC 3339
}

// WriteList is a list of them.
type WriteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Write `json:"items"`
}

// RateBudget is what all replicas have used up of the rates, and the capacity that they
// saw lately. There is one, named BudgetName.
type RateBudget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status *RateBudgetStatus `json:"status,omitempty"`
}

// RateBudgetStatus holds what the windows of the gates look back on.
type RateBudgetStatus struct {
	Serial int64  `json:"serial"`
	Writes []Used `json:"writes"` // claims, one per plan, of the last five minutes
	Calls  []Used `json:"calls"`  // what counts as a plan, likewise
	Seen   []Seen `json:"seen"`   // of the last ten minutes
	KeyID  string `json:"kid"`
	MAC    string `json:"mac"`
}

// Used is one write or call.
type Used struct {
	Plan    string `json:"plan,omitempty"` // of a write
	Cluster string `json:"cluster"`
	At      int64  `json:"at"` // milliseconds since 1970
}

// Seen is how many ready pods an owner had.
type Seen struct {
	UID   string `json:"uid"`
	Ready int    `json:"ready"`
	At    int64  `json:"at"`
}

// RateBudgetList is a list of them.
type RateBudgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RateBudget `json:"items"`
}

// Approval is a second person's word on a plan; its name is the plan's id. The server's
// account may read it and nothing else.
type Approval struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ApprovalSpec `json:"spec"`
}

// ApprovalSpec never changes.
type ApprovalSpec struct {
	Plan     string `json:"plan"`
	Approver string `json:"approver"` // who created it: ApprovalPolicy lets nobody write another name

	// What of the approver may approve, which ApprovalPolicy asks: the plan's action, and
	// the namespace in which it writes; none where that is several, or nodes.
	Action    string `json:"action"`
	Namespace string `json:"namespace,omitempty"`

	Reason string `json:"reason,omitempty"`
}

// ApprovalList is a list of them.
type ApprovalList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Approval `json:"items"`
}

// Register adds the types to a scheme.
func Register(s *runtime.Scheme) {
	s.AddKnownTypes(kube.LedgerGroup, &Write{}, &WriteList{}, &RateBudget{}, &RateBudgetList{}, &Approval{}, &ApprovalList{})
}

// DeepCopyObject is a copy that shares nothing.
func (w *Write) DeepCopyObject() runtime.Object { return w.copy() }

func (w *Write) copy() *Write {
	c := *w
	c.ObjectMeta = *w.ObjectMeta.DeepCopy()
	if w.Status != nil {
		st := *w.Status
		st.Lines = append([]string{}, st.Lines...)
		if st.Claim != nil {
			claim := *st.Claim
			st.Claim = &claim
		}
		c.Status = &st
	}
	return &c
}

// DeepCopyObject is a copy that shares nothing.
func (l *WriteList) DeepCopyObject() runtime.Object {
	c := WriteList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].copy())
	}
	return &c
}

// DeepCopyObject is a copy that shares nothing.
func (b *RateBudget) DeepCopyObject() runtime.Object { return b.copy() }

func (b *RateBudget) copy() *RateBudget {
	c := *b
	c.ObjectMeta = *b.ObjectMeta.DeepCopy()
	if b.Status != nil {
		st := *b.Status
		st.Writes, st.Calls, st.Seen = append([]Used{}, st.Writes...), append([]Used{}, st.Calls...), append([]Seen{}, st.Seen...)
		c.Status = &st
	}
	return &c
}

// DeepCopyObject is a copy that shares nothing.
func (l *RateBudgetList) DeepCopyObject() runtime.Object {
	c := RateBudgetList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].copy())
	}
	return &c
}

// DeepCopyObject is a copy that shares nothing.
func (a *Approval) DeepCopyObject() runtime.Object {
	c := *a
	c.ObjectMeta = *a.ObjectMeta.DeepCopy()
	return &c
}

// DeepCopyObject is a copy that shares nothing.
func (l *ApprovalList) DeepCopyObject() runtime.Object {
	c := ApprovalList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopyObject().(*Approval))
	}
	return &c
}
