package engine

import (
	"context"
	"fmt"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// The virtual verbs on actions.kubewrite.dev, by which the cluster's own RBAC says who may
// do what. The name of the resource is the action's, of VerbRead the tool's.
const (
	VerbRead    = "read"
	VerbPlan    = "plan"
	VerbWrite   = "write"
	VerbApprove = "approve"
)

// Caller is one who is known by more than a name, and is not alone: the callers over HTTP.
type Caller struct {
	// May says whether it may do verb with an action or a read in a namespace; "" is all
	// namespaces, and what is in none.
	May func(ctx context.Context, verb, name, namespace string) (bool, error)

	// As is whom its dry runs and writes impersonate; nil: nobody.
	As *plan.Caller
}

// Permitted refuses what the caller may not do in a namespace. Over stdio all is permitted:
// the credentials are the caller's own.
func (c Call) Permitted(ctx context.Context, verb, name, namespace string) error {
	if c.Caller == nil {
		return nil
	}
	ok, err := c.Caller.May(ctx, verb, name, namespace)
	if err != nil {
		return fmt.Errorf("whether you may %s %s: %w", verb, name, err)
	}
	if ok {
		return nil
	}
	where := "in namespace " + namespace
	if namespace == "" {
		where = "in the whole cluster"
	}
	return refusal.New(refusal.Forbidden, fmt.Sprintf("ask the operator for the verb %s on actions.kubewrite.dev, name %s, %s", verb, name, where),
		"you may not %s %s %s", verb, name, where)
}

// as is whom a call's dry runs and writes impersonate.
func (c Call) as() *plan.Caller {
	if c.Caller == nil {
		return nil
	}
	return c.Caller.As
}
