package cluster

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrNotApproved is in the error of Approver where there is no approval that counts.
var ErrNotApproved = errors.New("not approved")

// Approver gives the second person who approved a plan. principals are the names of the
// first one, who planned it: as the server knows him, and as the API server does. That the
// name is the creator's own, and may approve, is what ApprovalPolicy holds.
func (c *Cluster) Approver(ctx context.Context, id string, principals ...string) (string, error) {
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
	case a.CreationTimestamp.Time.Before(w.CreationTimestamp.Time):
		return "", fmt.Errorf("plan %s: %w: the approval is older than the plan", id, ErrNotApproved)
	}
	for _, p := range principals {
		if a.Spec.Approver == p {
			return "", fmt.Errorf("plan %s: %w: who planned it cannot approve it", id, ErrNotApproved)
		}
	}
	return a.Spec.Approver, nil
}
