package engine

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// ReadTimeout is how long a read may take in all.
const ReadTimeout = 30 * time.Second

// ReadArgs are the arguments of a read tool: the namespace is "" where it covers all that
// are in scope.
type ReadArgs interface{ Scope() plan.Scope }

// Reading is what one call of a read tool does.
type Reading struct {
	Schema *jsonschema.Schema
	Args   ReadArgs // a pointer: the call's arguments are decoded into it
	Live   bool     // it asks the API server
	Nodes  bool     // it reads what is in no namespace

	// Do reads. It is given the namespaces that it may cover, a single "" for all of them.
	Do func(ctx context.Context, namespaces []string) error
}

// Read does one read and puts it on record; scope is decided before anything is read.
// onRecord is false where the journal does not take the line: a read is answered all the
// same. The error is always a *refusal.Refusal.
func (e *Engine) Read(ctx context.Context, c Call, r Reading) (onRecord bool, err error) {
	c = e.begin(c)
	canonical, err := guarded(e.cfg.Log, func() (json.RawMessage, error) {
		d, err := action.DecodeInto(r.Schema, c.Raw, r.Args)
		if err != nil {
			return nil, err
		}
		namespaces, err := e.readable(r.Args.Scope().Namespace)
		if err != nil {
			return nil, err
		}
		if namespaces, err = c.mayRead(ctx, namespaces, r.Nodes); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
		defer cancel()
		if r.Live { // who asks, and which cluster, is for the record
			identified := async(e.cfg.Log, func() (string, error) {
				e.k.Read.Introduce(ctx)
				return e.k.Read.Identity(ctx, false)
			})
			defer func() { _, _ = identified() }()
		}
		if err := r.Do(ctx, namespaces); err != nil {
			return nil, e.explainRead(ctx, r.Args, err)
		}
		return d.Canonical, nil
	})
	if err != nil {
		return false, e.refuse(c, nil, err)
	}
	l := e.line(c, journal.EventRead)
	l.Args = canonical
	return e.append(l) == nil, nil
}

// readable are the namespaces that a read may cover.
func (e *Engine) readable(namespace string) ([]string, error) {
	allowed := e.cfg.Policy.AllowNamespaces
	switch {
	case namespace != "":
		if r := e.cfg.Policy.Readable(namespace); r != nil {
			return nil, r
		}
		return []string{namespace}, nil
	case len(allowed) > 0:
		return slices.Clone(allowed), nil
	}
	return []string{metav1.NamespaceAll}, nil
}

// mayRead gives those of some namespaces that the caller may read with its tool: where none
// is, the refusal. What is in no namespace needs the right in all of them.
func (c Call) mayRead(ctx context.Context, namespaces []string, nodes bool) (may []string, no error) {
	if nodes {
		return namespaces, c.Permitted(ctx, VerbRead, c.Tool, metav1.NamespaceAll)
	}
	for _, ns := range namespaces {
		if err := c.Permitted(ctx, VerbRead, c.Tool, ns); err == nil {
			may = append(may, ns)
		} else if no == nil || !refusal.Is(err, refusal.Forbidden) {
			no = err
		}
	}
	if may != nil && (no == nil || refusal.Is(no, refusal.Forbidden)) {
		return may, nil
	}
	return nil, no
}

// explainRead words the error of a read; an absent object comes with near names.
func (e *Engine) explainRead(ctx context.Context, args ReadArgs, err error) error {
	r := kube.Refuse(err)
	if _, worded := errors.AsType[*refusal.Refusal](err); worded {
		return r
	}
	if r.Message = strings.TrimSuffix(r.Message, "; nothing to plan"); r.Code == refusal.FactsMissing {
		r.Message = "the read failed"
	}
	if t, ok := kube.Absent(err, args.Scope().Namespace); ok && r.Code == refusal.NotFound {
		r.Message, r.Untrusted = t.String()+" not found", ""
		r.Hint = "check the name and the namespace"
		if near := e.k.Read.Near(ctx, t); len(near) > 0 {
			slices.Sort(near)
			r.Hint = "near names are " + strings.Join(near, ", ")
		}
	}
	return r
}
