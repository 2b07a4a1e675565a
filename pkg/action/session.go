package action

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// ChangeCause is the annotation that carries the reason of a write.
const ChangeCause = "kubernetes.io/change-cause"

// Observed is a live object as a typed GET or LIST gave it. What was not read cannot be
// written: every verb of a Session takes one.
type Observed interface {
	metav1.Object
	runtime.Object
}

// Proposal is a Step with the slots that this pass observed and the object it is about.
type Proposal struct {
	Step   plan.Step
	Slots  plan.Slots
	Object plan.Object
}

// Options are what the engine gives to one planning pass.
type Options struct {
	ID        string                                        // of the plan
	Time      time.Time                                     // of the plan: on a second pass the original one
	Expected  string                                        // expected_version
	Read      kubernetes.Interface                          // its transport lets only reads through
	Excluded  func(context.Context, string) (string, error) // why a namespace is left alone, or ""
	PodFacts  func(*corev1.Pod) plan.Pod
	NoNotes   bool                // Note proposes nothing
	OnPropose func(int, Proposal) // called at once with each proposal, numbered from 1; may be nil
}

// Session is one planning pass of one action: it reads, proposes and remembers.
type Session struct {
	kubernetes.Interface

	// ID and Time are the plan's. A planner that needs an unique name or a timestamp
	// takes them from here.
	ID   string
	Time time.Time

	opts      Options
	target    plan.Target
	object    plan.Object
	sentence  string
	kubectl   []string
	undo      plan.Undo
	proposals []Proposal
	warnings  []string
	stays     []string
	err       error
	seen      map[Observed]seen // what was observed before: a planner names its object several times
}

// seen is what the engine needs of an observed object.
type seen struct {
	target plan.Target
	object plan.Object
}

// NewSession is for the engine.
func NewSession(o Options) *Session {
	return &Session{Interface: o.Read, ID: o.ID, Time: o.Time, opts: o}
}

// Target names the object that the action is about. It must come before any proposal:
// it refuses an object that is terminating or not at the expected version, and its state
// is what the plan shows as before.
func (s *Session) Target(o Observed) error {
	t, obj, err := s.observe(o)
	if err != nil {
		return s.fail(err)
	}
	s.target, s.object = t, obj
	if s.opts.Expected != "" {
		if version := plan.VersionOf(obj); s.opts.Expected != version {
			return s.Refuse(refusal.PreconditionFailed, "read it again and decide anew",
				"%s is at %s, not %s", t, version, s.opts.Expected)
		}
	}
	if o.GetDeletionTimestamp() != nil {
		return s.Refuse(refusal.Terminating, "wait until it is gone", "%s is terminating", t)
	}
	return nil
}

// Say sets the sentence of the phrase, without the cluster, from tokens that must be
// names or numbers.
func (s *Session) Say(tokens ...any) error {
	var err error
	if s.sentence, err = plan.Sentence(tokens...); err != nil {
		return s.fail(err)
	}
	return nil
}

// Kubectl adds a line that does the same by hand.
func (s *Session) Kubectl(format string, args ...any) {
	s.kubectl = append(s.kubectl, fmt.Sprintf(format, args...))
}

// Undo says how the effect is taken back.
func (s *Session) Undo(u plan.Undo) { s.undo = u }

// UndoCall is an Undo that is a tool call: args must encode as the tool's arguments.
func (s *Session) UndoCall(tool string, args any, kubectl, note string) {
	raw, err := json.Marshal(args)
	if err != nil {
		_ = s.fail(err)
		return
	}
	s.undo = plan.Undo{Tool: tool, Arguments: raw, Kubectl: kubectl, Note: note}
}

// Warn adds a sentence for the reader of the plan. Nothing that comes from the cluster
// may stand in it but validated names.
func (s *Session) Warn(format string, args ...any) {
	s.warnings = append(s.warnings, fmt.Sprintf(format, args...))
}

// Stays names something that the action leaves alone, and why.
func (s *Session) Stays(format string, args ...any) {
	s.stays = append(s.stays, fmt.Sprintf(format, args...))
}

// Refuse ends the pass with a refusal, which it returns.
func (s *Session) Refuse(code refusal.Code, hint, format string, args ...any) error {
	return s.fail(refusal.New(code, hint, format, args...))
}

// Edit is one part of a patch.
type Edit struct {
	field string
	value any
	from  string
	verb  string // set, remove, hold, follow
}

// Set writes a value to a field; parents that are maps are made where they are absent.
func Set(field string, value any) Edit { return Edit{verb: "set", field: field, value: value} }

// Remove takes a field away.
func Remove(field string) Edit { return Edit{verb: "remove", field: field} }

// Hold names a value that the change rests on: when it moves, the plan is stale.
func Hold(field string) Edit { return Edit{verb: "hold", field: field} }

// Follows shows a field that another Edit of the patch changes with it: the dry run must
// give it this value, as plan.Show writes it.
func Follows(field, value string) Edit { return Edit{verb: "follow", field: field, value: value} }

// SetReason writes the caller's reason as change-cause, in the Step's declared slot.
func SetReason() Edit {
	return Edit{verb: "set", field: "metadata.annotations[" + ChangeCause + "]", from: plan.FromReason}
}

// Patch proposes a JSON patch of an observed object. The guards for its uid and version
// are added to every patch and are not the author's business.
func (s *Session) Patch(o Observed, edits ...Edit) error { return s.patch(o, false, edits) }

func (s *Session) patch(o Observed, optional bool, edits []Edit) error {
	_, obj, err := s.observe(o)
	if err != nil {
		return s.fail(err)
	}
	step := plan.Step{Verb: plan.Patch, Optional: optional}
	for _, e := range edits {
		old, pointer := obj.Value(e.field), plan.Pointer(e.field)
		switch e.verb {
		case "hold":
			step.Changes = append(step.Changes, plan.Change{Field: e.field, Old: old, New: old})
			continue
		case "follow":
			step.Changes = append(step.Changes, plan.Change{Field: e.field, Old: old, New: e.value.(string)})
			continue
		case "remove":
			gone := ""
			if old == "true" {
				gone = "false"
			}
			step.Changes = append(step.Changes, plan.Change{Field: e.field, Old: old, New: gone})
			step.Patch = append(step.Patch, plan.Op{Op: "remove", Path: pointer})
			continue
		}
		ensure := plan.Op{Op: "ensure", Path: parentMap(pointer)}
		if ensure.Path != "" && !slices.ContainsFunc(step.Patch, func(o plan.Op) bool { return o.Op == ensure.Op && o.Path == ensure.Path }) {
			step.Patch = append(step.Patch, ensure) // once: a second empty map would take away what stands in the first
		}
		op := plan.Op{Op: "add", Path: pointer, From: e.from}
		if e.from == "" {
			op.Value = plan.JSON(e.value)
			step.Changes = append(step.Changes, plan.Change{Field: e.field, Old: zeroLike(old, e.value), New: plan.Show(e.value)})
		}
		step.Patch = append(step.Patch, op)
	}
	return s.propose(o, step)
}

// parentMap is the path of the annotations or labels map that a field stands in; other
// parents are always there.
func parentMap(pointer string) string {
	i := strings.LastIndex(pointer, "/")
	parent := pointer[:i]
	if strings.HasSuffix(parent, "/annotations") || strings.HasSuffix(parent, "/labels") {
		return parent
	}
	return ""
}

// zeroLike shows an absent old value as the API means it: false for a boolean, 0 for a
// number.
func zeroLike(old string, value any) string {
	if old != "" {
		return old
	}
	switch value.(type) {
	case bool:
		return "false"
	case int, int32, int64:
		return "0"
	}
	return ""
}

// Scale proposes PUT /scale of an observed workload.
func (s *Session) Scale(o Observed, to int32) error {
	_, obj, err := s.observe(o)
	if err != nil {
		return s.fail(err)
	}
	return s.propose(o, plan.Step{
		Verb:     plan.Scale,
		Changes:  []plan.Change{{Field: "spec.replicas", Old: zeroLike(obj.Value("spec.replicas"), to), New: fmt.Sprint(to)}},
		Replicas: &to,
	})
}

// Note proposes, as an Optional Step of its own, to write the caller's reason as
// change-cause: only where the annotation is absent or was written by this product, since
// the Deployment controller copies it into the history of the current revision.
func (s *Session) Note(o Observed) error {
	if s.opts.NoNotes {
		return nil
	}
	field := "metadata.annotations[" + ChangeCause + "]"
	if _, ok := o.GetAnnotations()[ChangeCause]; ok && !ownedByUs(o) {
		s.Warn("the reason is not noted on the object: %s is kept by another manager", ChangeCause)
		return nil
	}
	return s.patch(o, true, []Edit{Hold(field), SetReason()})
}

func ownedByUs(o metav1.Object) bool {
	for _, m := range o.GetManagedFields() {
		if strings.HasPrefix(m.Manager, "kube-write-mcp:") && m.FieldsV1 != nil &&
			strings.Contains(m.FieldsV1.GetRawString(), `"f:`+ChangeCause+`"`) {
			return true
		}
	}
	return false
}

// Delete proposes to delete an observed pod, with an optional grace period in seconds.
func (s *Session) Delete(pod *corev1.Pod, grace *int64) error {
	return s.remove(pod, plan.Step{Verb: plan.Delete, Grace: grace})
}

// Evict proposes to evict an observed pod. With plan.Wait it waits, for at most deadline
// seconds from the start of the execution, while a disruption budget says no.
func (s *Session) Evict(pod *corev1.Pod, grace *int64, onBudget plan.OnBudget, deadline int64) error {
	return s.remove(pod, plan.Step{Verb: plan.Evict, Grace: grace, OnBudget: onBudget, Deadline: deadline})
}

// remove makes a Step rest on the pod's node and owner; see Step.Moved for the uid.
func (s *Session) remove(pod *corev1.Pod, step plan.Step) error {
	_, obj, err := s.observe(pod)
	if err != nil {
		return s.fail(err)
	}
	for _, field := range []string{"spec.nodeName", plan.OwnerField} {
		v := obj.Value(field)
		step.Changes = append(step.Changes, plan.Change{Field: field, Old: v, New: v})
	}
	return s.propose(pod, step)
}

// Create proposes to make an object from an observed one: its name must hold the ID of the
// Session, so that one of that name is this plan's or a stranger's, and it stands in the
// namespace of the observed one. The plan's annotation is added. The fields that are held
// are those of the observed object.
func (s *Session) Create(from, made Observed, hold ...string) error {
	gvks, _, err := scheme.Scheme.ObjectKinds(made)
	if err != nil {
		return s.fail(err)
	}
	_, obj, err := s.observe(from)
	if err != nil {
		return s.fail(err)
	}
	if made.GetGenerateName() != "" || !strings.Contains(made.GetName(), s.ID) || made.GetNamespace() != from.GetNamespace() {
		return s.fail(fmt.Errorf("%s/%s is not named by the plan or stands elsewhere", made.GetNamespace(), made.GetName()))
	}
	made.GetObjectKind().SetGroupVersionKind(gvks[0])
	notes := maps.Clone(made.GetAnnotations())
	if notes == nil {
		notes = map[string]string{}
	}
	notes[plan.PlanAnnotation] = s.ID
	made.SetAnnotations(notes)
	step := plan.Step{Verb: plan.Create, Object: plan.JSON(made)}
	if step.Subject() == (plan.Target{}) {
		return s.fail(fmt.Errorf("no write verb for %T", made))
	}
	for _, field := range hold {
		v := obj.Value(field)
		step.Changes = append(step.Changes, plan.Change{Field: field, Old: v, New: v})
	}
	return s.propose(from, step)
}

// observe gives the JSON form of an object, which is made once: it is most of the work of a
// plan. The object stays as it was read.
func (s *Session) observe(o Observed) (plan.Target, plan.Object, error) {
	if known, ok := s.seen[o]; ok {
		return known.target, known.object, nil
	}
	gvks, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return plan.Target{}, nil, err
	}
	for _, k := range plan.Kinds {
		if k.GVK == gvks[0] {
			obj, err := plan.ObjectOf(o)
			if err != nil {
				return plan.Target{}, nil, err
			}
			if s.seen == nil {
				s.seen = map[Observed]seen{}
			}
			t := plan.Target{Resource: k.Resource, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID())}
			s.seen[o] = seen{t, obj}
			return t, obj, nil
		}
	}
	return plan.Target{}, nil, fmt.Errorf("no write verb for %T", o)
}

func (s *Session) propose(o Observed, step plan.Step) error {
	if s.err != nil {
		return s.err
	}
	t, obj, err := s.observe(o)
	switch {
	case err != nil:
		return s.fail(err)
	case s.object == nil:
		return s.fail(fmt.Errorf("an action must name its Target before it proposes"))
	case o.GetDeletionTimestamp() != nil:
		return s.Refuse(refusal.Terminating, "wait until it is gone", "%s is terminating", t)
	}
	step.Target = t
	if slices.ContainsFunc(s.proposals, func(p Proposal) bool { return p.Step.Key() == step.Key() }) {
		return s.fail(fmt.Errorf("two proposals to %s: planning passes are matched by that", step.Key()))
	}
	p := Proposal{Step: step, Slots: step.Fill(obj), Object: obj}
	s.proposals = append(s.proposals, p)
	if s.opts.OnPropose != nil {
		s.opts.OnPropose(len(s.proposals), p)
	}
	return nil
}

func (s *Session) fail(err error) error {
	if s.err == nil {
		s.err = err
	}
	return err
}

// Outcome is what a pass came to, for the engine.
type Outcome struct {
	Target    plan.Target
	Object    plan.Object // of the target
	Sentence  string
	Kubectl   []string
	Undo      plan.Undo
	Proposals []Proposal
	Warnings  []string
	Stays     []string
}

// Outcome gives what the pass came to.
func (s *Session) Outcome() Outcome {
	return Outcome{s.target, s.object, s.sentence, s.kubectl, s.undo, s.proposals, s.warnings, s.stays}
}
