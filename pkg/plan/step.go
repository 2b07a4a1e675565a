package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// MaxSteps is how many Steps a plan has at most.
const MaxSteps = 200

// Verb is one of the writes that a Session can propose.
type Verb string

// The verbs of a Step.
const (
	Patch  Verb = "patch"  // a JSON patch
	Scale  Verb = "scale"  // PUT of the scale subresource
	Evict  Verb = "evict"  // POST of the eviction subresource
	Delete Verb = "delete" // DELETE with preconditions
	Create Verb = "create" // POST of an object that rests on the Target
)

// Target is one live object. The UID makes it this object and not its successor of the
// same name.
type Target struct {
	Resource  string `json:"resource"` // plural, as in Kinds
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// String is the target as a person names it: deployment default/web, node n1.
func (t Target) String() string {
	name := t.Resource
	if k, ok := KindOf(t.Resource); ok {
		name = k.Argument
	}
	if t.Namespace == "" {
		return name + " " + t.Name
	}
	return name + " " + t.Namespace + "/" + t.Name
}

// OnBudget is what a Step does while a disruption budget says no.
type OnBudget string

// An eviction of a drain waits; every other Step fails.
const (
	Fail OnBudget = ""
	Wait OnBudget = "wait"
)

// Step is one write as a canonical value: two Steps are equal when their encodings are.
// What fills its Slots for one request is no part of it. Steps are proposed, dry-run,
// recorded, shown, compared and sent; what is sent is never a recorded one.
type Step struct {
	Verb     Verb     `json:"verb"`
	Target   Target   `json:"target"`
	Changes  []Change `json:"changes,omitempty"`
	Patch    []Op     `json:"patch,omitempty"`    // of a patch
	Replicas *int32   `json:"replicas,omitempty"` // of a scale
	Grace    *int64   `json:"grace,omitempty"`    // seconds, of an eviction or delete

	// Object is what a create makes, whole: its name holds the plan's id. The Target is the
	// object that it was made from. Of a recorded Step it is what names the object, and
	// ObjectHash stands for the rest.
	Object     json.RawMessage `json:"object,omitempty"`
	ObjectHash string          `json:"object_hash,omitempty"`

	OnBudget OnBudget `json:"on_budget,omitempty"`
	Deadline int64    `json:"deadline,omitempty"` // seconds from the start of the execution, for a Step that waits
	Optional bool     `json:"optional,omitempty"` // its failure changes no verdict; never sent after an unknown outcome
}

// Slots are the four declared values that fill a Step for one request.
type Slots struct {
	DryRun          bool
	ResourceVersion string
	Reason          string
	Absent          []string // the paths of "ensure" that the live object lacks
}

// Op is one operation of a JSON patch. Two things in it are not RFC 6902: the operation
// "ensure" (an empty map at Path where the live object has none) and From, which names
// the slot that fills the value.
type Op struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
	From  string          `json:"from,omitempty"`
	Hash  string          `json:"hash,omitempty"` // of a recorded Step: SHA-256 of the Value, hex
}

// FromReason fills an Op with the caller's reason.
const FromReason = "reason"

// Key says which write of a plan this is, whatever its values: two planning passes are
// matched by it.
func (s Step) Key() string {
	key := fmt.Sprintf("%s %s", s.Verb, s.Target)
	if s.Verb == Create {
		key = fmt.Sprintf("%s %s from %s", s.Verb, s.Subject(), s.Target)
	}
	if s.Optional {
		key += " (note)"
	}
	return key
}

// Subresource is what a Step writes to, "" for the object itself.
func (s Step) Subresource() string {
	switch s.Verb {
	case Scale:
		return "scale"
	case Evict:
		return "eviction"
	}
	return ""
}

// Recorded is the Step as it stands on record and in its canonical form: objects and lists
// by their hash, for they hold what the cluster's users wrote, secrets among it. It is
// never sent.
func (s Step) Recorded() Step {
	s.Patch = slices.Clone(s.Patch)
	for i, op := range s.Patch {
		if len(op.Value) > 0 && (op.Value[0] == '{' || op.Value[0] == '[') {
			s.Patch[i].Value, s.Patch[i].Hash = nil, hashOf(op.Value)
		}
	}
	if s.Object != nil && s.ObjectHash == "" {
		s.Object, s.ObjectHash = JSON(named(s.Object)), hashOf(s.Object)
	}
	return s
}

// Sealed is the Recorded Step with its hashes keyed, for the journal: who has the journal
// alone cannot guess what they stand for.
func (s Step) Sealed(redact func(string) string) Step {
	s = s.Recorded()
	key := func(hash *string) {
		if *hash != "" && !strings.HasPrefix(*hash, keyedPrefix) {
			*hash = redact(*hash)
		}
	}
	for i := range s.Patch {
		key(&s.Patch[i].Hash)
	}
	key(&s.ObjectHash)
	return s
}

// keyedPrefix tells a keyed hash from a bare one.
const keyedPrefix = "hmac-"

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// objectName is what names an object.
type objectName struct {
	runtime.TypeMeta
	Metadata struct {
		Namespace string `json:"namespace,omitempty"`
		Name      string `json:"name"`
	} `json:"metadata"`
}

func named(object json.RawMessage) (o objectName) {
	if json.Unmarshal(object, &o) != nil {
		return objectName{}
	}
	return o
}

// Canonical is the one encoding of a Step: fixed field order, compact, no slot in it, as
// Recorded.
func (s Step) Canonical() []byte {
	b, err := json.Marshal(s.Recorded())
	if err != nil {
		panic(err) // only an Op.Value that is not JSON could, and the Session made it
	}
	return b
}

// Equal reports whether both would send the same request and were shown with the same
// values.
func (s Step) Equal(o Step) bool { return bytes.Equal(s.Canonical(), o.Canonical()) }

// Digest covers the Steps in order, each with its length before it.
func Digest(steps []Step) []byte {
	h := sha256.New()
	for _, s := range steps {
		b := s.Canonical()
		fmt.Fprintf(h, "%d:%s", len(b), b)
	}
	return h.Sum(nil)
}

// JSONPatch renders the operations for one request: first the guard (this object, at
// this version), then the Step's own. The guard replaces and never tests: any stale
// version is then a 409 and another object a readable 422, where one failed test would
// be a 422 without a reason (RELIABILITY 2.5).
func (s Step) JSONPatch(sl Slots) ([]byte, error) {
	ops := []Op{{Op: "replace", Path: "/metadata/uid", Value: JSON(s.Target.UID)}}
	if sl.ResourceVersion != "" {
		ops = append(ops, Op{Op: "replace", Path: "/metadata/resourceVersion", Value: JSON(sl.ResourceVersion)})
	}
	absent := map[string]bool{}
	for _, p := range sl.Absent {
		absent[p] = true
	}
	for _, op := range s.Patch {
		switch {
		case op.Hash != "":
			return nil, fmt.Errorf("%s is a record: it does not have what would be sent", s.Key())
		case op.Op == "ensure" && !absent[op.Path]:
			continue
		case op.Op == "ensure":
			op = Op{Op: "add", Path: op.Path, Value: JSON(struct{}{})}
		case op.From == FromReason:
			op = Op{Op: op.Op, Path: op.Path, Value: JSON(sl.Reason)}
		}
		ops = append(ops, op)
	}
	return json.Marshal(ops)
}

// PlanAnnotation names on an object that a plan made which one it was.
const PlanAnnotation = "kubewrite.dev/plan"

// Subject is the object that the request names: the Target, or what a create makes, which
// has no UID yet; the zero Target for one of a kind that is not in Kinds.
func (s Step) Subject() Target {
	if s.Verb != Create {
		return s.Target
	}
	o := named(s.Object)
	for _, k := range Kinds {
		if k.GVK == o.GroupVersionKind() {
			return Target{Resource: k.Resource, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
		}
	}
	return Target{}
}

// Request is the request line of a Step, for a person: PUT deployments/web/scale {...}.
func (s Step) Request() string {
	s = s.Recorded()
	t := s.Subject()
	k, _ := KindOf(t.Resource)
	api := "/api/v1"
	if k.GVK.Group != "" {
		api = "/apis/" + k.GVK.Group + "/" + k.GVK.Version
	}
	if t.Namespace != "" {
		api += "/namespaces/" + t.Namespace
	}
	path := api + "/" + t.Resource + "/" + t.Name
	switch s.Verb {
	case Create:
		return fmt.Sprintf("POST %s/%s %s %s", api, t.Resource, t.Name, short(s.ObjectHash))
	case Scale:
		return fmt.Sprintf("PUT %s/%s spec.replicas=%d", path, s.Subresource(), *s.Replicas)
	case Evict:
		return "POST " + path + "/" + s.Subresource()
	case Delete:
		return "DELETE " + path
	}
	var ops []string
	for _, op := range s.Patch {
		if op.Op == "ensure" {
			continue
		}
		v := string(op.Value)
		switch {
		case op.Hash != "":
			v = short(op.Hash)
		case op.From != "":
			v = "<" + op.From + ">"
		}
		ops = append(ops, strings.TrimSpace(op.Op+" "+op.Path+" "+v))
	}
	return "PATCH " + path + " [" + strings.Join(ops, ", ") + "]"
}

// Rolls reports whether a controller brings pods to what the Step writes: to another
// number of them, or to another template.
func (s Step) Rolls() bool {
	return s.Verb == Scale || slices.ContainsFunc(s.Patch, func(o Op) bool {
		return o.Path == "/spec/template" || strings.HasPrefix(o.Path, "/spec/template/")
	})
}

// Marks reports whether what a patch leaves behind has an owner: who takes a field away
// owns nothing of it.
func (s Step) Marks() bool {
	return s.Verb != Patch || slices.ContainsFunc(s.Patch, func(o Op) bool { return o.Op != "remove" && o.Op != "ensure" })
}

// Timeout is how long a Step that waits may do so, from the start of the execution.
func (s Step) Timeout() time.Duration { return time.Duration(s.Deadline) * time.Second }

// JSON encodes the value of an Op.
func JSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // values come from action authors: strings, numbers, booleans, maps of them
	}
	return b
}
