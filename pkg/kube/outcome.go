package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// Class says what one attempt did (RELIABILITY 2.6).
type Class int

// The classes of an attempt.
const (
	Applied    Class = iota
	NotApplied       // a definite no
	Conflict         // a definite no for this version of the object: 409
	Throttled        // a definite no for now: 429, a disruption budget's among them
	Unknown          // it may have been applied, or may still be
)

// Classify gives the class and the HTTP status code of one attempt; sent says whether
// a byte reached the socket.
func Classify(err error, sent bool) (Class, int) {
	if err == nil {
		return Applied, 200
	}
	st, ok := errors.AsType[*apierrors.StatusError](err)
	switch {
	case !ok && !sent:
		return NotApplied, 0
	case !ok:
		return Unknown, 0
	}
	switch code := int(st.Status().Code); code {
	case 409:
		return Conflict, code
	case 429:
		return Throttled, code
	case 400, 401, 403, 404, 405, 410, 413, 415, 422:
		return NotApplied, code
	default:
		return Unknown, code
	}
}

// BlockedByBudget reports whether err is an eviction's no from a disruption budget.
func BlockedByBudget(err error) bool {
	return apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) || apierrors.IsTooManyRequests(err)
}

// Text gives what an API error says, as untrusted text: sanitised, bounded, without the
// objects that some errors quote.
func Text(err error) string {
	if st, ok := errors.AsType[*apierrors.StatusError](err); ok {
		text := st.Status().Message
		if d := st.Status().Details; d != nil {
			for _, c := range d.Causes {
				if c.Type == policyv1.DisruptionBudgetCause {
					text += "; " + c.Message
				}
			}
		}
		return plan.Untrusted(text)
	}
	return plan.Untrusted(err.Error())
}

// Refuse turns the error of a read into a refusal. A Refusal among the wrapped errors
// is given back as it is.
func Refuse(err error) *refusal.Refusal {
	if r, ok := errors.AsType[*refusal.Refusal](err); ok {
		return r
	}
	code := refusal.Unreachable
	hint := "check that the API server runs and that the kubeconfig is right"
	message := "the API server does not answer"
	st, answered := errors.AsType[*apierrors.StatusError](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		message = "the API server did not answer in time"
	case !answered && !isNetwork(err):
		code, hint, message = refusal.FactsMissing, "tell the maintainers", "the plan could not be made"
	case !answered:
	case apierrors.IsNotFound(err):
		code, hint = refusal.NotFound, ""
		message = fmt.Sprintf("%s not found; nothing to plan", subject(st))
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		code = refusal.Forbidden
		hint = "grant the server's account this permission, or ask the operator to"
		message = fmt.Sprintf("the server's credentials may not read %s (%d)", subject(st), st.Status().Code)
	default:
		message = fmt.Sprintf("the API server answered %d", st.Status().Code)
	}
	r := refusal.New(code, hint, "%s", message)
	r.Retryable = code == refusal.Unreachable
	r.Untrusted = Text(err)
	return r
}

func isNetwork(err error) bool {
	_, transport := errors.AsType[*url.Error](err)
	_, network := errors.AsType[net.Error](err)
	return transport || network || errors.Is(err, context.Canceled)
}

// Absent gives the target that a not-found error is about.
func Absent(err error, namespace string) (plan.Target, bool) {
	st, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsNotFound(err) || st.Status().Details == nil {
		return plan.Target{}, false
	}
	k, ok := plan.KindOf(st.Status().Details.Kind)
	t := plan.Target{Resource: k.Resource, Name: st.Status().Details.Name}
	if k.Namespaced {
		t.Namespace = namespace
	}
	return t, ok
}

// subject names what an API error is about, from its validated parts.
func subject(st *apierrors.StatusError) string {
	d := st.Status().Details
	if d == nil || d.Kind == "" {
		return "the object"
	}
	if d.Group != "" {
		return fmt.Sprintf("%s.%s %s", d.Kind, d.Group, d.Name)
	}
	return fmt.Sprintf("%s %s", d.Kind, d.Name)
}
