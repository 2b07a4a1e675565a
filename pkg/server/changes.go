package server

import (
	"context"
	"fmt"
	"strings"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// changes is the pair of tools for plans of several calls.
func (t tools) changes() (pair, error) {
	in, err := t.engine.ChangesSchema()
	if err != nil {
		return pair{}, err
	}
	confirmed := action.Confirmed(in.CloneSchemas())
	confirmed.Properties["steps"].Items.Properties["action"].Enum = nil // can only be repeated
	return pair{
		name: plan.ChangesTool, title: "Plan: several changes as one", doing: "Make several changes",
		planDoc: "Changes nothing. Plans up to 20 calls, each an action on an object of its own, as one, gated on the sum. Gives radius, undo and one confirm phrase.",
		doc:     "Makes several calls, each an action on an object of its own, in order, up to the first that differs. Only as plan_changes described it.",
		in:      in, confirmed: confirmed, planned: changesOutput,
		hints: hints{destructive: true, user: true},
		plan: func(ctx context.Context, c engine.Call) (*engine.Planned, error) {
			return t.engine.PlanChanges(ctx, c, in)
		},
		execute: func(ctx context.Context, c engine.Call) (*engine.Execution, error) {
			return t.engine.ExecuteChanges(ctx, c, confirmed)
		},
	}, nil
}

// changesAnswer is what a plan tool returns for several calls: the whole, and each.
type changesAnswer struct {
	planAnswer
	Calls []callAnswer `json:"calls,omitempty" jsonschema:"each call by itself, in order"`
}

// maxShort is how many characters there are for the radius of each call where there are many.
const maxShort = 50

// callAnswer is what one of several calls would do.
type callAnswer struct {
	Call    string     `json:"call"`
	Radius  []string   `json:"blast_radius"`
	Changes []string   `json:"changes,omitempty"`
	Before  plan.State `json:"before,omitempty"`
	Version string     `json:"version,omitempty"`
	Request []string   `json:"request,omitempty"`
	Undo    *plan.Undo `json:"undo,omitempty"` // where the whole has none
}

var changesOutput = outputSchema[changesAnswer]()

func plannedChanges(got *engine.Planned, writes bool, most int) changesAnswer {
	p := got.Plan
	a := changesAnswer{planAnswer: plannedWith(got, writes, most)}
	a.Changes, a.Request, a.Before = []string{}, []string{}, plan.State{} // of each call
	var noted []string
	for i, part := range p.Parts {
		if part.Steps == 0 {
			continue // said among the warnings
		}
		alone := p.Alone(i)
		own := plannedWith(&engine.Planned{Plan: alone, Phrase: got.Phrase}, false, most)
		call := callAnswer{Call: fmt.Sprintf("%d %s", i+1, part.Sentence), Radius: own.Radius}
		switch most { // what there is no room for goes in this order
		case items[0]:
			call.Request = own.Request
			fallthrough
		case items[1]:
			call.Before = part.Before
			fallthrough
		case items[2]:
			call.Changes, call.Version = own.Changes, part.Version
			if p.Undo.Tool == "" && part.Undo.Tool != "" {
				call.Undo = &p.Parts[i].Undo
			}
		default:
			call.Radius = []string{}
			if len(own.Radius) > 0 {
				call.Radius = []string{clip(own.Radius[0], maxShort)}
			}
		}
		a.Calls = append(a.Calls, call)
		for _, s := range alone.Steps {
			if s.Optional {
				noted = append(noted, s.Target.String())
			}
		}
	}
	if noted != nil { // one note for all of them
		a.Notes = append([]string{"your reason will be written to the annotation " + action.ChangeCause + " of " + strings.Join(few(noted, most), ", ")}, a.Notes[len(noted):]...)
	}
	if most < items[1] {
		a.Undo.Kubectl = ""
	}
	if most < items[2] {
		a.Undo.Note = clip(a.Undo.Note, maxItem)
		if a.Undo.Tool != "" {
			a.Undo = plan.Undo{Note: "plan_undo, when it is executed"}
		}
		if a.Next != nil {
			a.Next, a.Notes = nil, append(a.Notes, "next: call changes with the planned steps, the phrase as confirm and a reason")
		}
	}
	return a
}

func (a changesAnswer) text() string { return a.whole(a.plan) }

// plan adds what the plan is, without what confirms it.
func (a changesAnswer) plan(t *page) {
	t.line("PLAN %s", a.Summary)
	t.each("  in sum: ", a.Radius)
	t.each("  LOST: ", a.Losses)
	t.line("  at risk: %s", risk(a.Blast))
	t.each("  warning: ", a.Warnings)
	t.each("  downstream: ", a.Downstream)
	for _, c := range a.Calls {
		t.line("  %s", c.Call)
		t.each("    radius: ", c.Radius)
		t.each("    change: ", c.Changes)
		if c.Before != nil {
			t.line("    before: %s; version %s", state(c.Before), c.Version)
		}
		t.each("    request: ", c.Request)
		if c.Undo != nil {
			t.line("    undo: %s", undo(*c.Undo))
		}
	}
	t.each("  stays: ", a.Stays)
	t.each("  note: ", a.Notes)
	t.line("  dry run: %s", a.DryRun)
	t.line("  undo: %s", undo(a.Undo))
	t.line("  by hand: %s", strings.Join(a.Kubectl, " && "))
	t.line("  plan %s, %s, expires in %d s (%s)", a.Plan, a.Class, a.seconds, a.Expires)
}
