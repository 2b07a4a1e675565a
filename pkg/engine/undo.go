package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// PlanUndo plans the inverse of an executed plan, from what was on record before it. It
// goes back to a state that was, so blast limit and cap do not hold it, as long as what
// that plan wrote still stands; scope, rate and phrase do. The error is as that of Plan.
func (e *Engine) PlanUndo(ctx context.Context, c Call, schema *jsonschema.Schema) (*Planned, error) {
	return e.planning(c, func(c Call) (*Planned, *plan.Plan, error) {
		args, _, err := action.Decode[planArgs](schema, c.Raw)
		if err != nil {
			return nil, nil, err
		}
		old, err := e.undoable(c, args.Plan)
		if err != nil {
			return nil, nil, err
		}
		r, err := e.requestOf(strings.TrimPrefix(old.Undo.Tool, "plan_"), old.Undo.Arguments)
		if err != nil {
			return nil, nil, err
		}
		return e.plan(ctx, c, r, old)
	})
}

// undoable gives an executed plan of this caller that has an undo, with the Steps that
// were sent.
func (e *Engine) undoable(c Call, id string) (*plan.Plan, error) {
	p, err := e.own(c, id)
	if err != nil {
		return nil, err
	}
	x, err := e.recorded(p)
	switch {
	case err != nil, x.Result == nil:
		return nil, refusal.New(refusal.PreconditionFailed, "write_status says what became of it", "plan %s was not executed", id)
	case x.Outcome != plan.Executed:
		return nil, refusal.New(refusal.PreconditionFailed, "look at the object, and plan what is needed", "plan %s ended as %s: what it would take back is not certain", id, x.Outcome)
	case p.Undo.Tool == "":
		return nil, refusal.New(refusal.PreconditionFailed, "tell a person: "+p.Undo.Note, "there is no call that takes plan %s back", id)
	}
	var res plan.Result
	if err := json.Unmarshal(x.Result, &res); err != nil {
		return nil, err
	}
	p.Steps = slices.DeleteFunc(p.Steps, func(s plan.Step) bool { return slices.Contains(res.Skipped, s.Key()) })
	return p, nil
}

// own gives a plan of this caller.
func (e *Engine) own(c Call, id string) (*plan.Plan, error) {
	p, err := e.j.Record(id)
	switch {
	case err != nil:
		return nil, refusal.New(refusal.RecordMissing, "look at the audit log", "the record of plan %s cannot be read: %v", id, err)
	case p == nil || p.Principal != c.Principal.String():
		return nil, refusal.New(refusal.NotFound, "the id stands in the plan's answer and in its phrase; plans are remembered for 24 h", "there is no plan %s of yours", id)
	}
	return p, nil
}

func (e *Engine) actionOf(name string) (*action.Action, error) {
	for _, a := range e.cfg.Actions {
		if a.Name == name {
			return a, nil
		}
	}
	return nil, fmt.Errorf("there is no action %q", name)
}

// takesBack makes sure that a pass is about an object that the plan which it takes back has
// changed, and goes back to what that plan found, and warns of what somebody changed since.
func (g *passed) takesBack(old *plan.Plan) error {
	if g.cluster != old.Cluster {
		return refusal.New(refusal.PreconditionFailed, "undo it where it was done", "plan %s was executed on another cluster (%s, this is %s)", old.ID, old.Cluster, g.cluster)
	}
	changed := false
	g.redo = old.Undoes != ""
	for _, s := range old.Steps {
		if s.Optional || s.Target.Resource != g.Target.Resource || s.Target.Name != g.Target.Name {
			continue
		}
		changed = true
		if s.Target.UID != g.Target.UID {
			return refusal.New(refusal.PreconditionFailed, "plan what is needed now", "%s is another object now than plan %s changed", g.Target, old.ID)
		}
		if field := g.elsewhere(s); field != "" {
			return refusal.New(refusal.PreconditionFailed, "look at the object, and plan what is needed", "%s of %s would not be as it was before plan %s, since others changed it meanwhile", field, g.Target, old.ID)
		}
		if moved := cmp.Or(lostFields(s, g.Object), g.around(s)); moved != "" {
			g.moved = true
			g.warnings = append(g.warnings, "changed again since: "+moved)
		}
	}
	if !changed {
		return refusal.New(refusal.PreconditionFailed, "look at the object, and plan what is needed", "plan %s did not change %s: it was so before", old.ID, g.Target)
	}
	return nil
}

// elsewhere names a field that a pass sets to another value than a Step found: what goes
// back to "the one before" goes elsewhere once there is a later one.
func (g *passed) elsewhere(old plan.Step) string {
	was := map[string]string{}
	for _, c := range old.Changes {
		was[c.Field] = c.Old
	}
	for _, s := range g.steps() {
		for _, c := range s.Changes {
			v, known := was[c.Field]
			if s.Target == old.Target && c.Old != c.New && known && v != c.New && !(plan.IsZero(v) && plan.IsZero(c.New)) {
				return c.Field
			}
		}
	}
	return ""
}

// around says which field that a Step rested on has another value by now, beside what the
// Step wrote in it: others changed it, such as the template of a paused rollout. To take the
// Step back lets that take effect, or takes it back as well.
func (g *passed) around(old plan.Step) string {
	for _, held := range old.Changes {
		if held.Old != held.New {
			continue
		}
		was, known := g.Object, true
		for _, c := range old.Changes {
			if known && c.Old != c.New && strings.HasPrefix(c.Field, held.Field+".") {
				was, known = was.Before(c)
			}
		}
		if v := was.Value(held.Field); !known || v != held.Old && !(plan.IsZero(v) && plan.IsZero(held.Old)) {
			return held.Field + ", by others beside what that plan wrote, which the undo touches as well"
		}
	}
	return ""
}

// ExecuteUndo does what a plan of PlanUndo described. All that holds for Execute holds
// for it.
func (e *Engine) ExecuteUndo(ctx context.Context, c Call, schema *jsonschema.Schema) (*Execution, error) {
	began := e.now()
	c = e.begin(c)
	args, d, err := action.Decode[planArgs](schema, c.Raw)
	p, err := e.unlessGuessed(c, d.Confirm, err)
	if err != nil {
		return nil, e.refuse(c, nil, err)
	}
	if p.Undoes != args.Plan {
		tool, planned := p.Call()
		return nil, e.refuse(c, p, refusal.New(refusal.WrongArguments, "call "+tool+" with exactly the planned arguments, or plan again",
			"the phrase belongs to %s %s, called was %s %s", tool, planned, plan.UndoTool, d.Canonical))
	}
	r, err := e.requestOf(p.Action, p.Args)
	if err != nil {
		return nil, e.refuse(c, p, err)
	}
	return e.carryOut(ctx, c, p, r, d.Reason, began)
}

// PlanIDSchema is the input schema of tools about one plan: write_status and plan_undo.
func PlanIDSchema() (*jsonschema.Schema, error) { return action.SchemaOf[planArgs]() }

// planArgs are the arguments of a tool about one plan.
type planArgs struct {
	Plan string `json:"plan" jsonschema:"its id, the first 10 characters of its phrase's code"`
}
