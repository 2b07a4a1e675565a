package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// ErrNotApproved is in the error of Approver where there is no approval that counts.
var ErrNotApproved = errors.New("not approved")

// Approver gives the second person who approved a plan. principals are the names of the
// first one, who planned it: as the server knows him, and as the API server does. That the
// name is the creator's own, and may approve, is what ApprovalPolicy holds.
func (c *Cluster) Approver(ctx context.Context, p *plan.Plan, principals ...string) (string, error) {
	id := p.ID
	action, namespace := about(p)
	w, err := c.get(ctx, id)
	if err != nil {
		return "", err
	}
	if w == nil {
		return "", fmt.Errorf("plan %s: %w: it is not on record", id, ErrNotApproved)
	}
	a, err := c.approvals.Get(ctx, id, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("plan %s: %w", id, ErrNotApproved)
	case err != nil:
		return "", &failed{"the approval of plan " + id + " cannot be read", err}
	case a.Spec.Plan != id, a.Spec.Approver == "":
		return "", fmt.Errorf("plan %s: %w: the approval is of plan %s by %q", id, ErrNotApproved, a.Spec.Plan, a.Spec.Approver)
	case a.Spec.Action != action || a.Spec.Namespace != namespace:
		return "", fmt.Errorf("plan %s: %w: the approval is of %s in %q, the plan of %s in %q", id, ErrNotApproved, a.Spec.Action, a.Spec.Namespace, action, namespace)
	case a.CreationTimestamp.Time.Before(w.CreationTimestamp.Time):
		return "", fmt.Errorf("plan %s: %w: the approval is older than the plan", id, ErrNotApproved)
	}
	for _, one := range principals {
		if a.Spec.Approver == one {
			return "", fmt.Errorf("plan %s: %w: who planned it cannot approve it", id, ErrNotApproved)
		}
	}
	return a.Spec.Approver, nil
}

// about is what of an approver may approve a plan: its action, and the namespace that all of
// it is written in; "" where that is several, or nodes.
func about(p *plan.Plan) (action, namespace string) {
	for i, s := range p.Steps {
		if i > 0 && s.Target.Namespace != namespace {
			return p.Action, ""
		}
		namespace = s.Target.Namespace
	}
	return p.Action, namespace
}

// Ready says why the ledger cannot be reached, or be trusted.
func (c *Cluster) Ready(ctx context.Context) error {
	_, err := c.budget(ctx)
	return err
}

// Recorded gives an open plan to who approves. Without the keys nobody can tell that it is
// as a server wrote it: the server does, before it executes what was approved.
func Recorded(ctx context.Context, client *kube.LedgerClient, id string) (*plan.Plan, error) {
	if !plan.ValidID(id) {
		return nil, fmt.Errorf("%q is no id of a plan", id)
	}
	w, err := New(Options{Client: client}).writes.Get(ctx, id, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no plan %s in namespace %s", id, client.Namespace)
	case err != nil:
		return nil, &failed{"plan " + id + " cannot be read", err}
	case w.Status == nil || w.Status.State != Planned:
		return nil, fmt.Errorf("plan %s is open no more", id)
	}
	var p plan.Plan
	if err := json.Unmarshal([]byte(w.Spec.Record), &p); err != nil || p.ID != id {
		return nil, fmt.Errorf("the record of plan %s cannot be read", id)
	}
	return &p, nil
}

// Approve makes the Approval of a plan in the name of who makes it.
func Approve(ctx context.Context, client *kube.LedgerClient, p *plan.Plan, approver string) error {
	action, namespace := about(p)
	_, err := New(Options{Client: client}).approvals.Create(ctx, &Approval{
		TypeMeta:   metav1.TypeMeta{APIVersion: kube.LedgerGroup.String(), Kind: "Approval"},
		ObjectMeta: metav1.ObjectMeta{Name: p.ID},
		Spec:       ApprovalSpec{Plan: p.ID, Approver: approver, Action: action, Namespace: namespace},
	}, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("plan %s has an approval already", p.ID)
	case err != nil:
		return &failed{"plan " + p.ID + " cannot be approved", err}
	}
	return nil
}
