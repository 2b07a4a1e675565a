package read

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// paging is embedded by the arguments of lists.
type paging struct {
	Limit    int32  `json:"limit,omitempty" jsonschema:"rows; 50 by default"`
	Continue string `json:"continue,omitempty" jsonschema:"of the page before, same arguments"`
}

func (p paging) rows() int {
	if p.Limit == 0 {
		return defaultRows
	}
	return int(p.Limit)
}

// selecting is embedded by the arguments of lists that a label selector may narrow.
type selecting struct {
	Selector string `json:"selector,omitempty" jsonschema:"label selector"`
}

// Check parses the selector.
func (s selecting) Check() []string {
	if _, err := labels.Parse(s.Selector); err != nil {
		return []string{"selector is wrong: " + quoted(plan.Untrusted(err.Error()))}
	}
	return nil
}

// Page is in the answer of every list.
type Page struct {
	Shown     int    `json:"shown" jsonschema:"rows here"`
	Truncated string `json:"truncated,omitempty" jsonschema:"how much is missing, and how to narrow"`
	Continue  string `json:"continue,omitempty" jsonschema:"handle of the next page"`
}

// source is one list of the API. It keeps the rows that it reads itself, and gives their
// number with what the API server says of the rest.
type source struct {
	resource, namespace string
	list                func(context.Context, metav1.ListOptions) (int, metav1.ListMeta, error)
}

// listing makes a source of a typed list; keep is called with its items.
func listing[L any](resource, namespace string, call func(context.Context, metav1.ListOptions) (L, error), keep func(L) (int, metav1.ListMeta, error)) source {
	return source{resource, namespace, func(ctx context.Context, o metav1.ListOptions) (int, metav1.ListMeta, error) {
		l, err := call(ctx, o)
		if err != nil {
			return 0, metav1.ListMeta{}, denied(err, "list", resource, namespace)
		}
		return keep(l)
	}}
}

func (s source) String() string {
	if s.namespace == "" {
		return s.resource
	}
	return s.resource + " in " + s.namespace
}

// handle is where the next page begins: a source, and the API server's own token in it. It
// is bound to the query whose it is.
type handle struct {
	Query  string `json:"q"`
	Source int    `json:"s"`
	Token  string `json:"t"`
}

// listTimeout is what the API server may take for one list, in seconds.
const listTimeout = 20

// page reads the sources in their order until the limit is reached. narrow says which
// arguments make the list shorter.
func page(ctx context.Context, p paging, selector string, field fields.Set, sources []source, narrow string) (Page, error) {
	opts := metav1.ListOptions{LabelSelector: selector, FieldSelector: field.AsSelector().String(), TimeoutSeconds: new(int64(listTimeout))}
	sum := sha256.Sum256(fmt.Append(nil, sources, opts.LabelSelector, "\x00", opts.FieldSelector))
	at := handle{Query: hex.EncodeToString(sum[:6])}
	if p.Continue != "" {
		raw, err := base64.RawURLEncoding.DecodeString(p.Continue)
		var from handle
		if err != nil || json.Unmarshal(raw, &from) != nil || from.Query != at.Query || from.Source < 0 || from.Source >= len(sources) {
			return Page{}, refusal.New(refusal.InvalidArguments, "call without continue, or with the arguments of the page before", "continue is no handle of this list")
		}
		at = from
	}
	out := Page{}
	for left := p.rows(); at.Source < len(sources); at.Source, at.Token = at.Source+1, "" {
		if left == 0 {
			out.Truncated = unread(sources[at.Source:]) + " not read yet"
			break
		}
		opts.Limit, opts.Continue = int64(left), at.Token
		n, meta, err := sources[at.Source].list(ctx, opts)
		if apierrors.IsResourceExpired(err) || apierrors.IsBadRequest(err) && at.Token != "" {
			return Page{}, refusal.New(refusal.InvalidArguments, "call without continue", "continue is too old: the API server does not keep that list any more")
		}
		if err != nil {
			return Page{}, err
		}
		out.Shown += n
		left -= n
		if at.Token = meta.Continue; at.Token == "" {
			continue
		}
		out.Truncated = "more of " + sources[at.Source].String()
		if r := meta.RemainingItemCount; r != nil {
			out.Truncated = fmt.Sprintf("%d %s", *r, out.Truncated)
		}
		if rest := sources[at.Source+1:]; len(rest) > 0 {
			out.Truncated += "; " + unread(rest) + " not read yet"
		}
		break
	}
	if out.Truncated == "" {
		return out, nil
	}
	raw, err := json.Marshal(at)
	if err != nil {
		return Page{}, err
	}
	out.Continue = base64.RawURLEncoding.EncodeToString(raw)
	out.Truncated += ". Pass continue for the next page, or narrow with " + narrow
	return out, nil
}

// unread names the first sources that were not reached.
func unread(rest []source) string {
	var names []string
	for i, s := range rest {
		if i == 6 {
			names = append(names, fmt.Sprintf("%d more lists", len(rest)-i))
			break
		}
		names = append(names, s.String())
	}
	return strings.Join(names, ", ")
}
