package kube

import (
	"bytes"
	"context"
	stdjson "encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/json"
)

// Mode is what a transport lets through; it is fixed when the transport is built.
type Mode int

// The modes of the fence.
const (
	ReadOnly Mode = iota // nothing that mutates
	Planning             // every mutating request is a dry run in each place a server may look
	Live                 // only requests that Writer.Send permits, and none of them half a dry run
)

// Fence wraps a transport; it fits rest.Config.Wrap. It is the second lock: whatever the
// code above does, a request that could write while nothing may be written does not
// leave the process.
//
// Where dryRun must stand differs by verb (FACTS 2): the API server reads it from the
// query of an update, patch or create, and from the body of a delete or an eviction. A
// delete with it only in its query deletes for real. So a dry run carries it in the
// query always, and in the body as well where there is an option for it.
//
// base is what stands before /apis in the paths of this API server, where it is reached
// through a proxy.
func Fence(mode Mode, base string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper { return &fence{mode, base, next} }
}

type fence struct {
	mode Mode
	base string
	next http.RoundTripper
}

// RoundTrip sends a request that may leave, exactly once, or fails without sending.
func (f *fence) RoundTrip(req *http.Request) (*http.Response, error) {
	if connects.MatchString(req.URL.Path) {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, fmt.Errorf("fence: %s %s: nothing may reach into a pod or through the API server", req.Method, req.URL.Path)
	}
	if !mutates(req.Method) || f.isReview(req) {
		return f.next.RoundTrip(req)
	}
	body, err := readAll(req)
	if err != nil {
		return nil, err
	}
	out, err := f.pass(req, body)
	if err != nil {
		return nil, fmt.Errorf("fence: %s %s: %w", req.Method, req.URL.Path, err)
	}
	resp, err := f.next.RoundTrip(out)
	if err != nil {
		return resp, err
	}
	if resp.StatusCode/100 == 3 { // net/http would follow it with a GET, whose 200 is no answer to a write
		resp.Body.Close()
		return nil, fmt.Errorf("fence: %s %s: answered with a redirect (%d)", req.Method, req.URL.Path, resp.StatusCode)
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); resp.StatusCode/100 == 2 && !answers[kind] {
		resp.Body.Close() // a page of whatever stands between; what client-go cannot decode it takes for a yes
		return nil, fmt.Errorf("fence: %s %s: answered with %q, which no API server does", req.Method, req.URL.Path, kind)
	}
	resp.Header.Del("Retry-After") // client-go re-sends whatever carries one, writes too
	return resp, nil
}

// answers are the encodings of an API server's answer to a write.
var answers = map[string]bool{runtime.ContentTypeJSON: true, runtime.ContentTypeProtobuf: true}

// pass gives the request as it may leave, or says why it may not.
func (f *fence) pass(req *http.Request, body []byte) (*http.Request, error) {
	permit, _ := req.Context().Value(permitKey{}).(*permit)
	if f.mode == ReadOnly || permit == nil || permit.mode != f.mode {
		return nil, fmt.Errorf("nothing may be written here")
	}
	if permit.used.Swap(true) {
		return nil, fmt.Errorf("a write is never sent again")
	}
	inBody, err := dryRunInBody(req, body)
	if err == nil && permit.replicas != nil {
		body, err = withNumber(body, *permit.replicas)
	}
	if err != nil {
		return nil, err
	}
	out := req.Clone(req.Context())
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	out.GetBody = nil // net/http may not replay it either
	out.Header.Set("Audit-ID", permit.auditID)
	query := out.URL.Query()
	switch {
	case f.mode == Planning && inBody == missing:
		return nil, fmt.Errorf("planning, and its body has no dryRun")
	case f.mode == Planning:
		query.Set("dryRun", "All")
		out.URL.RawQuery = query.Encode()
	case query.Has("dryRun") || inBody == present:
		return nil, fmt.Errorf("live, and it carries a dryRun")
	}
	return out, nil
}

// place says whether a body carries dryRun.
type place int

const (
	unread  place = iota // the server reads no dryRun in this kind of body
	missing              // the server would read one here, and there is none
	present              // dryRun is All
)

// dryRunInBody looks where the server looks.
func dryRunInBody(req *http.Request, body []byte) (place, error) {
	evicts := req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/eviction")
	if req.Method != http.MethodDelete && !evicts {
		return unread, nil
	}
	var opts struct {
		DryRun        []string `json:"dryRun"`
		DeleteOptions struct {
			DryRun []string `json:"dryRun"`
		} `json:"deleteOptions"`
	}
	// With the API server's own decoder: encoding/json would take DRYRUN for dryRun.
	if err := json.UnmarshalCaseSensitivePreserveInts(body, &opts); err != nil {
		return missing, fmt.Errorf("its body is not JSON: %w", err)
	}
	dry := opts.DryRun
	if evicts {
		dry = opts.DeleteOptions.DryRun
	}
	switch {
	case len(dry) == 0:
		return missing, nil
	case len(dry) == 1 && dry[0] == "All":
		return present, nil
	}
	return missing, fmt.Errorf("its dryRun is %q", dry)
}

// withNumber gives a Scale that says how many replicas it wants. The typed client leaves a
// zero out, and the API server makes a zero of whatever is left out: a number that was lost
// on the way and one that is meant would be the same request.
func withNumber(body []byte, replicas int32) ([]byte, error) {
	var scale map[string]any
	if err := json.UnmarshalCaseSensitivePreserveInts(body, &scale); err != nil {
		return nil, fmt.Errorf("its body is not JSON: %w", err)
	}
	spec, _ := scale["spec"].(map[string]any)
	if n, stated := spec["replicas"]; spec == nil || stated && n != int64(replicas) || !stated && replicas != 0 {
		return nil, fmt.Errorf("its body does not have the %d replicas of the step", replicas)
	}
	spec["replicas"] = replicas
	return stdjson.Marshal(scale)
}

func mutates(method string) bool {
	return method != http.MethodGet && method != http.MethodHead && method != http.MethodOptions
}

// connects knows the subresources that run something elsewhere, by whatever method: a GET
// of a proxied path may write as well as any POST.
var connects = regexp.MustCompile(`/api/v1/(namespaces/[^/]+/(pods|services)|nodes)/[^/]+/(exec|attach|portforward|proxy)(/|$)`)

// reviews are the POSTs that change nothing: asking who we are and what we may, whose a
// token is, and who may do what.
var reviews = []string{
	"/apis/authentication.k8s.io/v1/selfsubjectreviews",
	"/apis/authentication.k8s.io/v1/tokenreviews",
	"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
	"/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
	"/apis/authorization.k8s.io/v1/subjectaccessreviews",
}

// isReview knows a review that is sent as a dry run.
func (f *fence) isReview(req *http.Request) bool {
	path, ok := strings.CutPrefix(req.URL.Path, f.base)
	return ok && req.Method == http.MethodPost && slices.Contains(reviews, path) && req.URL.Query().Get("dryRun") == "All"
}

func readAll(req *http.Request) ([]byte, error) {
	if req.Body == nil {
		return nil, nil
	}
	defer req.Body.Close()
	return io.ReadAll(req.Body)
}

// permit rides in the context from Writer.Send to the fence; nothing else can make one,
// and it is good for one request.
type permit struct {
	mode     Mode
	auditID  string
	replicas *int32 // of a scale
	used     atomic.Bool
}

type permitKey struct{}

func withPermit(ctx context.Context, p *permit) context.Context {
	return context.WithValue(ctx, permitKey{}, p)
}
