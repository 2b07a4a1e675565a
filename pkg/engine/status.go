package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// Status says from the journal what became of a plan: not executed, under way, or its
// first result with the last verdict beside it. It makes no API call. The error is always
// a *refusal.Refusal.
func (e *Engine) Status(c Call, schema *jsonschema.Schema) (*Execution, error) {
	c = e.begin(c)
	x, err := e.status(c, schema)
	if err != nil {
		return nil, e.refuse(c, nil, err)
	}
	if err := e.append(about(e.line(c, journal.EventRead), x.Plan)); err != nil {
		x.NotOnRecord = true
	}
	return x, nil
}

func (e *Engine) status(c Call, schema *jsonschema.Schema) (*Execution, error) {
	args, _, err := action.Decode[planArgs](schema, c.Raw)
	if err != nil {
		return nil, err
	}
	p, err := e.own(c, args.Plan)
	if err != nil {
		return nil, err
	}
	st, err := e.state(p.ID)
	if err != nil {
		return nil, unavailable(err)
	}
	if e.orphaned(p, st, false) {
		e.findOut(p) // for whoever asks next
	}
	x := &Execution{Plan: p, Steps: st.Steps, Outcome: plan.NotExecuted}
	over := lapsed(p, e.now())
	switch {
	case st.Done:
		return e.recorded(p)
	case st.Unknown:
		x.Outcome, x.Detail = plan.Unknown, unknownDetail
	case st.Claimed:
		x.Outcome, x.Detail = plan.InProgress, itGoesOn
	case st.Empty:
		x.Detail = "the plan found nothing to change"
	case st.Ended != "":
		x.Detail = "the plan has ended: it is " + st.Ended
	case over != "":
		x.Detail = over
	case e.approved(p, st) != nil:
		why := []string{"it was planned before two persons were required: plan again"}
		if p.Person != nil {
			why = p.Person.Why()
		}
		x.Detail = fmt.Sprintf("it waits for a person until %s: %s", p.Expires.UTC().Format(time.RFC3339), strings.Join(why, "; "))
	default:
		x.Detail = fmt.Sprintf("its phrase is good until %s", p.Expires.UTC().Format(time.RFC3339))
	}
	return x, nil
}
