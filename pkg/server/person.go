package server

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"

	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// What the one question of a call is called, and the one field of its form.
const (
	questionID = "approve"
	nameField  = "name"
)

// asking is how the person at the client of a call can be asked: nil where the client does
// not say that it can show a form. In the stateless era a request says so itself; in the
// older ones the handshake did.
func (m mcpCalls) asking(ctx context.Context, req mcp.CallToolRequest) *engine.Asking {
	if mcpserver.IsModernRequest(ctx) {
		if c := mcpserver.RequestProtocolInfoFromContext(ctx).ClientCapabilities; c == nil || !showsForms(*c) {
			return nil
		}
		if len(req.Params.InputResponses) == 0 {
			return &engine.Asking{}
		}
		a := answerOf(mcpserver.ElicitationResponse(req.Params.InputResponses, questionID))
		a.State = req.Params.RequestState
		return &engine.Asking{Answer: &a}
	}
	s, ok := mcpserver.ClientSessionFromContext(ctx).(mcpserver.SessionWithClientInfo)
	if !ok || !showsForms(s.GetClientCapabilities()) {
		return nil
	}
	return &engine.Asking{Now: func(ctx context.Context, q engine.Question) (engine.Answer, error) {
		r, err := m.server.RequestElicitation(ctx, mcp.ElicitationRequest{
			Request: mcp.Request{Method: string(mcp.MethodElicitationCreate)}, Params: form(q.Plan),
		})
		return answerOf(r), err
	}}
}

// showsForms reads an empty capability as the older revisions mean it.
func showsForms(c mcp.ClientCapabilities) bool {
	return c.Elicitation != nil && (c.Elicitation.Form != nil || c.Elicitation.URL == nil)
}

// answerOf reads what a client says that its person answered; what it cannot read is a
// question that was closed.
func answerOf(r *mcp.ElicitationResult) (a engine.Answer) {
	if r == nil {
		return a
	}
	a.Action = string(r.Action)
	if fields, ok := r.Content.(map[string]any); ok {
		a.Name, _ = fields[nameField].(string)
	}
	return a
}

// input is the result of a call whose answer is a question, in the stateless era.
func input(q *engine.Question) *mcp.CallToolResult {
	return mcpserver.NewInputRequestBuilder(q.State).Elicit(questionID, form(q.Plan)).ToolResult()
}

// form is what a person is shown, and the one field to fill in. It holds no text that is
// anybody's own: not the caller's reason, and nothing free of the cluster.
func form(p *plan.Plan) mcp.ElicitationParams {
	return mcp.ElicitationParams{
		Message: fitQuestion(p),
		RequestedSchema: json.RawMessage(`{"type":"object","properties":{"` + nameField +
			`":{"type":"string","title":"Name of the target","description":"exactly, and without its namespace; of several, all in their order, such as web, api","maxLength":4096}},"required":["` + nameField + `"]}`),
	}
}

// maxQuestion is how many characters a question has at most: one that scrolls away is not
// read.
const maxQuestion = 2000

func fitQuestion(p *plan.Plan) (text string) {
	for _, most := range items {
		if text = question(p, most); len([]rune(text)) <= maxQuestion {
			break
		}
	}
	return text
}

func question(p *plan.Plan, most int) string {
	var t page
	t.line("%s", p.Sentence)
	t.each("  needs a person: ", few(p.Person.Why(), most))
	t.each("  radius: ", few(p.Blast.Lines, most))
	t.each("  LOST: ", few(p.Blast.Losses, most))
	t.line("  pods: %s %d of %d; at risk: %s", p.Blast.Direction, p.Blast.Pods, p.Blast.Of, risk(p.Blast))
	if p.Undo.Tool == "" {
		t.line("  undo: %s", undo(p.Undo))
	}
	t.line("  plan %s, %d %s, for %s, until %s", p.ID, len(p.Steps), plan.Plural(len(p.Steps), "request"), p.Principal, p.Expires.UTC().Format(time.RFC3339))
	if p.Parts != nil {
		t.line("To approve this one plan of several calls, type the names of its targets: %s. Anything else sends nothing.", p.Person.Name)
	} else {
		t.line("To approve this one plan, type the name of its target. Anything else sends nothing.")
	}
	return t.String()
}

// PlanText is a recorded plan as its plan tool told it, for a person who decides about it.
func PlanText(p *plan.Plan) string {
	var t page
	t.each("NEEDS A PERSON: ", p.Person.Why())
	switch a := planned(&engine.Planned{Plan: p, Phrase: p.PhraseName()}, true).(type) {
	case planAnswer:
		a.Notes = nil // to the caller
		a.plan(&t)
	case changesAnswer:
		a.Notes = nil
		a.plan(&t)
	}
	t.line("  for %s, planned at %s", p.Principal, p.Created.UTC().Format(time.RFC3339))
	t.untrusted(p.Untrusted)
	return t.String()
}

// asked is the answer of a call that is a question.
type asked struct {
	answer
	*engine.Question
}
