// Package action is the kit for authors of actions. An action is data and one function
// that plans: it reads with ordinary typed client-go and proposes writes through its
// Session. The engine dry-runs, records, shows and later sends what was proposed; an
// author has no code that writes.
package action

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"

	"github.com/google/jsonschema-go/jsonschema"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// Spec is what an action says about itself. Tools, schemas, the README's row and the
// RBAC rules are derived from it.
type Spec struct {
	// Name is the write tool's name; the plan tool's is plan_<Name>. Lower-case
	// letters and underscores, at most maxName.
	Name string

	// Title is a few words for a person, no full stop.
	Title string

	// Doc names the operation and its target, never a symptom that it might cure: a
	// model finds it by what it does. One or two sentences.
	Doc string

	// Destroys says that the action can remove or replace a pod.
	Destroys bool

	// RequiresUser says that the effect may be one which nothing takes back, so that
	// clients which can are told to have their user decide on each call of the write tool,
	// whatever was allowed once and for all.
	RequiresUser bool

	// Rolls says that the action changes a pod template, or lets a change of it take
	// effect: its radius is computed from the pods, and the account needs to read them.
	Rolls bool

	// Needs is exactly what the action needs beyond reading what the radius is
	// computed from: its reads and its writes.
	Needs []rbacv1.PolicyRule

	// Schema adds limits that a Go type cannot say; nil adds none.
	Schema func(*jsonschema.Schema)
}

// Args are the typed arguments of an action. Embedding Namespaced or OnNode gives both
// methods; a type without them does not compile.
type Args interface {
	Scope() plan.Scope // known before anything is read
	Expected() string  // expected_version, or ""
}

// Checker is what Args have that can be wrong as a whole, such as naming two targets.
// Where a required argument is missing, its field is the zero value.
type Checker interface {
	Check() []string // every fault, in words
}

// Defaulter is what Args have whose defaults are no zero values: with it, a call that
// leaves an argument out and one that writes the default bind to the same phrase.
type Defaulter interface{ SetDefaults() }

// Namespaced is embedded by the arguments of actions on namespaced objects.
type Namespaced struct {
	Namespace       string `json:"namespace" jsonschema:"exact name; no default"`
	ExpectedVersion string `json:"expected_version,omitempty" jsonschema:"refuse unless the target is at this version"`
}

// Scope is the namespace.
func (n Namespaced) Scope() plan.Scope { return plan.Scope{Namespace: n.Namespace} }

// Expected is the version that the target must have.
func (n Namespaced) Expected() string { return n.ExpectedVersion }

// OnNode is embedded by the arguments of actions on one node.
type OnNode struct {
	Node            string `json:"node" jsonschema:"exact name of one node"`
	ExpectedVersion string `json:"expected_version,omitempty" jsonschema:"refuse unless the node is at this version"`
}

// Scope is the node.
func (n OnNode) Scope() plan.Scope { return plan.Scope{Node: n.Node} }

// Expected is the version that the node must have.
func (n OnNode) Expected() string { return n.ExpectedVersion }

// Action is a Spec with its planner, its argument type erased.
type Action struct {
	Spec
	schema *jsonschema.Schema
	decode func(*jsonschema.Schema, json.RawMessage) (Decoded, error)
	plan   func(context.Context, *Session, Args) error
}

var nameRE = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

// maxName leaves a client's name for the plan tool, mcp__kube-write__plan_<Name>, below 40
// characters.
const maxName = 17

// New makes an Action. The planner MUST be deterministic: what it proposes may depend on
// its arguments, on what it reads and on the Session's id and time, and on nothing else;
// lists are sorted, the wall clock is never read. It runs again at execution, and a Step
// that comes out different makes the plan stale. New panics on a Spec that is not whole:
// that is a fault of the program, found when it starts.
func New[A Args](spec Spec, planner func(context.Context, *Session, A) error) *Action {
	fail := func(format string, args ...any) {
		panic(fmt.Sprintf("action %q: %s", spec.Name, fmt.Sprintf(format, args...)))
	}
	switch {
	case !nameRE.MatchString(spec.Name) || len(spec.Name) > maxName:
		fail("name must be lower-case words joined by _, at most %d letters", maxName)
	case spec.Title == "" || spec.Doc == "":
		fail("title and doc are mandatory")
	case len(spec.Needs) == 0:
		fail("needs are mandatory")
	}
	schema, err := SchemaOf[A]()
	if err != nil {
		fail("%v", err)
	}
	if spec.Schema != nil {
		spec.Schema(schema)
	}
	if _, err := schema.Resolve(nil); err != nil {
		fail("schema: %v", err)
	}
	for name, p := range schema.Properties {
		if why := unenforced(p); why != "" {
			fail("argument %s: %s", name, why)
		}
	}
	return &Action{
		Spec:   spec,
		schema: schema,
		decode: func(schema *jsonschema.Schema, raw json.RawMessage) (Decoded, error) {
			a, d, err := Decode[A](schema, raw)
			d.Args = a
			return d, err
		},
		plan: func(ctx context.Context, s *Session, a Args) error { return planner(ctx, s, a.(A)) },
	}
}

// SchemaOf derives the input schema of an argument type, as strict as Decode is.
func SchemaOf[A any]() (*jsonschema.Schema, error) { return SchemaOfType(reflect.TypeFor[A]()) }

// SchemaOfType is SchemaOf for a type that is known only when the program runs.
func SchemaOfType(t reflect.Type) (*jsonschema.Schema, error) {
	s, err := jsonschema.ForType(t, nil)
	if err == nil {
		restrict(s)
	}
	return s, err
}

// Schema is the input schema of the plan tool, a copy that the caller may change.
func (a *Action) Schema() *jsonschema.Schema { return a.schema.CloneSchemas() }

// Decode gives the arguments by the given schema (the action's own with limits added, or
// that of its write tool), or a refusal that names every fault at once.
func (a *Action) Decode(schema *jsonschema.Schema, raw json.RawMessage) (Decoded, error) {
	return a.decode(schema, raw)
}

// Decoded are the arguments of one call.
type Decoded struct {
	Args      Args
	Canonical json.RawMessage // the typed value, encoded again; Confirm and Reason are no part of it
	Confirm   string          // of a write tool
	Reason    string          // of a write tool
}

// Confirmed makes the schema of a write tool from that of its plan tool: the same
// arguments, the phrase and the reason. What the arguments mean stands at the plan tool:
// here they can only be repeated.
func Confirmed(s *jsonschema.Schema) *jsonschema.Schema {
	for _, p := range s.Properties {
		p.Description = ""
	}
	s.Properties["confirm"] = &jsonschema.Schema{Type: "string", MaxLength: new(plan.MaxPhrase), Description: "the plan's confirm phrase, whole"}
	s.Properties["reason"] = &jsonschema.Schema{Type: "string", MaxLength: new(maxReason), Description: "why, for the audit log"}
	s.Required = append(s.Required, "confirm", "reason")
	s.PropertyOrder = append(s.PropertyOrder, "confirm", "reason")
	return s
}

// maxReason is how many characters a reason has at most.
const maxReason = 256

// Run plans once. A planner cannot hide a refusal of its Session by not returning it.
func (a *Action) Run(ctx context.Context, s *Session, args Args) error {
	if err := a.plan(ctx, s, args); err != nil {
		return err
	}
	return s.err
}
