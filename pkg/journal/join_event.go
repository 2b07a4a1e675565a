package journal

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// ownName begins our user agent, field manager and Audit-IDs.
const ownName = "kube-write-mcp"

// apiEvent is what a join needs of one event of the API server's audit log, in the words
// of audit.k8s.io/v1.
type apiEvent struct {
	AuditID    string    `json:"auditID"`
	Stage      string    `json:"stage"`
	Verb       string    `json:"verb"`
	RequestURI string    `json:"requestURI"`
	UserAgent  string    `json:"userAgent"`
	Received   time.Time `json:"requestReceivedTimestamp"`
	User       struct {
		Name string `json:"username"`
	} `json:"user"`
	Impersonated struct {
		Name string `json:"username"`
	} `json:"impersonatedUser"`
	Object struct {
		Group       string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	Response struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Body json.RawMessage `json:"requestObject"` // from the level Request on
}

// readEvents shows each finished request of an audit log. A last line that is no JSON and
// has no end is being written, and is left out.
func readEvents(r io.Reader, see func(*apiEvent)) error {
	b := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := b.ReadBytes('\n')
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return fmt.Errorf("the API server's audit log: %w", err)
		}
		var e apiEvent
		switch err := json.Unmarshal(line, &e); {
		case err != nil && last:
			return nil
		case err != nil:
			return fmt.Errorf("the API server's audit log, line %d: %w", n, err)
		case e.Stage == "ResponseComplete" || e.Stage == "Panic":
			see(&e)
		}
		if last {
			return nil
		}
	}
}

// String is the request as an untrusted text on one line.
func (e *apiEvent) String() string {
	return plan.Untrusted(fmt.Sprintf("%s %s %d by %s", e.Verb, e.RequestURI, e.Response.Code, e.user()))
}

// user is who the request counted as.
func (e *apiEvent) user() string {
	if e.Impersonated.Name != "" {
		return e.Impersonated.Name
	}
	return e.User.Name
}

// ref is what a request is about.
type ref struct{ verb, resource, namespace, name string }

func (e *apiEvent) ref() ref {
	return ref{e.Verb, resourceOf(e.Object.Group, e.Object.Resource, e.Object.Subresource), e.Object.Namespace, e.Object.Name}
}

// refOf reads what a Step is about from its key: scale deployment default/web (note).
func refOf(key string) (r ref) {
	verb, rest, _ := strings.Cut(key, " ")
	kind, name, _ := strings.Cut(rest, " ")
	r.name, _, _ = strings.Cut(name, " ")
	if ns, name, ok := strings.Cut(r.name, "/"); ok {
		r.namespace, r.name = ns, name
	}
	subresource := ""
	switch r.verb = verb; plan.Verb(verb) {
	case plan.Scale:
		r.verb, subresource = "update", "scale"
	case plan.Evict:
		r.verb, subresource = "create", "eviction"
	}
	for _, k := range plan.Kinds {
		if k.Argument == kind {
			r.resource = resourceOf(k.GVK.Group, k.Resource, subresource)
		}
	}
	return r
}

// resourceOf is a resource as RBAC names it: apps/deployments/scale.
func resourceOf(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "/")
}

// dryRun looks where the API server looks: in the body of a delete or an eviction, in the
// query of everything else. Where the log has no body, the query is a hint and not sure:
// a delete with dryRun in it alone deletes for real.
func (e *apiEvent) dryRun() (dry, sure bool) {
	dry = e.query().Get("dryRun") == "All"
	if e.Verb != "delete" && e.Object.Subresource != "eviction" {
		return dry, true
	}
	var body struct {
		DryRun        []string `json:"dryRun"`
		DeleteOptions struct {
			DryRun []string `json:"dryRun"`
		} `json:"deleteOptions"`
	}
	if len(e.Body) == 0 || json.Unmarshal(e.Body, &body) != nil {
		return dry, false
	}
	return slices.Contains(body.DryRun, "All") || slices.Contains(body.DeleteOptions.DryRun, "All"), true
}

func (e *apiEvent) query() url.Values {
	u, err := url.ParseRequestURI(e.RequestURI)
	if err != nil {
		return nil
	}
	return u.Query()
}

// ours reports whether a request bears our name in one of three places.
func (e *apiEvent) ours() bool {
	return strings.HasPrefix(e.UserAgent, ownName+"/") || strings.HasPrefix(e.query().Get("fieldManager"), ownName) ||
		strings.HasPrefix(e.AuditID, ownName+"-")
}

// unrecorded judges a request without a line; "" is one that is not ours or changes
// nothing.
func (e *apiEvent) unrecorded() (Kind, string) {
	mutates := !slices.Contains([]string{"get", "list", "watch"}, e.Verb)
	reviews := e.Object.Group == "authentication.k8s.io" || e.Object.Group == "authorization.k8s.io" // nothing else is in them
	if !mutates || reviews || !e.ours() {
		return "", ""
	}
	switch dry, sure := e.dryRun(); {
	case dry && sure:
		return Noted, "a dry run that no line has"
	case dry:
		return Alarm, "a write that bears our name and no line has; whether it was a dry run cannot be told, for their log has no bodies"
	}
	return Alarm, "a write that bears our name and no line has"
}
