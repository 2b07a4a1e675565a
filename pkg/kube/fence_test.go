package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sink is the other side of a fence: it keeps what leaves and answers each request alike.
type sink struct {
	code   int
	header http.Header

	mu   sync.Mutex
	left []*http.Request
	body []string
}

func (w *sink) RoundTrip(req *http.Request) (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	body := ""
	if req.Body != nil {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		body = string(b)
	}
	w.left, w.body = append(w.left, req), append(w.body, body)
	code := w.code
	if code == 0 {
		code = http.StatusOK
	}
	header := w.header.Clone()
	if header == nil {
		header = http.Header{}
	}
	if header.Get("Content-Type") == "" {
		header.Set("Content-Type", "application/json")
	}
	return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(strings.NewReader("{}")), Request: req}, nil
}

const (
	deploymentPath = "/apis/apps/v1/namespaces/default/deployments/web"
	podPath        = "/api/v1/namespaces/default/pods/web-1"
	reviewPath     = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
)

func request(t *testing.T, ctx context.Context, method, path, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "https://api.example"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

var modes = map[string]Mode{"read-only": ReadOnly, "planning": Planning, "live": Live}

// TestScaleSaysItsNumber: a scale leaves with the number of its Step in it, a zero too, and
// not at all with another one or without one (SC-19).
func TestScaleSaysItsNumber(t *testing.T) {
	for name, tc := range map[string]struct {
		body     string
		replicas int32
		want     string // what leaves, "" for nothing
	}{
		"zero, left out":         {`{"kind":"Scale","spec":{},"status":{"replicas":3}}`, 0, `{"kind":"Scale","spec":{"replicas":0},"status":{"replicas":3}}`},
		"zero":                   {`{"spec":{"replicas":0}}`, 0, `{"spec":{"replicas":0}}`},
		"a number":               {`{"spec":{"replicas":3}}`, 3, `{"spec":{"replicas":3}}`},
		"a number, left out":     {`{"spec":{}}`, 3, ""},
		"a number, null":         {`{"spec":{"replicas":null}}`, 3, ""},
		"zero, null":             {`{"spec":{"replicas":null}}`, 0, ""},
		"another number":         {`{"spec":{"replicas":4}}`, 3, ""},
		"another, for zero":      {`{"spec":{"replicas":4}}`, 0, ""},
		"no spec":                {`{}`, 0, ""},
		"no body":                {``, 0, ""},
		"in other letters":       {`{"spec":{"Replicas":3}}`, 3, ""},
		"another kind of number": {`{"spec":{"replicas":"3"}}`, 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			to := &sink{}
			ctx := withPermit(t.Context(), &permit{mode: Live, replicas: &tc.replicas})
			resp, err := Fence(Live, "")(to).RoundTrip(request(t, ctx, "PUT", deploymentPath+"/scale", tc.body))
			got := strings.Join(to.body, "")
			if err == nil {
				resp.Body.Close()
				if n := to.left[0].ContentLength; n != int64(len(got)) {
					t.Errorf("%d bytes are announced, %d are sent", n, len(got))
				}
			}
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("%q left (%v), want %q", got, err, tc.want)
			}
		})
	}
}

// TestFence: where dryRun stands decides, by verb and mode, what leaves. Each request has
// the permit of its mode; without one nothing would leave at all, see below.
func TestFence(t *testing.T) {
	const (
		none  = "nothing may be written here"
		blank = "planning, and its body has no dryRun"
		half  = "live, and it carries a dryRun"
		reach = "nothing may reach into a pod"
		all   = "?dryRun=All"
	)
	type want struct{ readOnly, planning, live string } // what leaves of the query ("?…"; "-" for none), or why nothing does
	for name, tc := range map[string]struct {
		method, path, body string
		want               want
	}{
		"get":                   {"GET", deploymentPath, "", want{"-", "-", "-"}},
		"head":                  {"HEAD", deploymentPath, "", want{"-", "-", "-"}},
		"options":               {"OPTIONS", deploymentPath, "", want{"-", "-", "-"}},
		"list":                  {"GET", "/api/v1/pods?limit=5", "", want{"?limit=5", "?limit=5", "?limit=5"}},
		"get with a dryRun":     {"GET", deploymentPath + all, "", want{all, all, all}},
		"unknown method":        {"MOVE", deploymentPath, "", want{none, all, "-"}},
		"method in lower case":  {"delete", podPath, "", want{none, all, "-"}},
		"update":                {"PUT", deploymentPath + "/scale", `{}`, want{none, all, "-"}},
		"update, in the query":  {"PUT", deploymentPath + "/scale" + all, `{}`, want{none, all, half}},
		"update, in the body":   {"PUT", deploymentPath, `{"dryRun":["All"]}`, want{none, all, "-"}},
		"patch":                 {"PATCH", deploymentPath, `[]`, want{none, all, "-"}},
		"patch, in the query":   {"PATCH", deploymentPath + all, `[]`, want{none, all, half}},
		"patch, in the body":    {"PATCH", deploymentPath, `{"dryRun":["All"]}`, want{none, all, "-"}},
		"patch, empty in query": {"PATCH", deploymentPath + "?dryRun=", `[]`, want{none, all, half}},
		"patch, other in query": {"PATCH", deploymentPath + "?dryRun=None&dryRun=x", `[]`, want{none, all, half}},
		"create":                {"POST", "/api/v1/namespaces/default/pods", `{}`, want{none, all, "-"}},
		"create, in the query":  {"POST", "/apis/batch/v1/namespaces/default/jobs" + all, `{}`, want{none, all, half}},
		"create, in the body":   {"POST", "/apis/batch/v1/namespaces/default/jobs", `{"dryRun":["All"]}`, want{none, all, "-"}},
		"create, of a name":     {"POST", "/apis/batch/v1/namespaces/default/jobs", `{"metadata":{"name":"eviction"}}`, want{none, all, "-"}},
		"create, protobuf":      {"POST", "/api/v1/namespaces/default/pods", "k8s\x00\x0a", want{none, all, "-"}},

		"delete":                          {"DELETE", podPath, `{}`, want{none, blank, "-"}},
		"delete, in the query":            {"DELETE", podPath + all, `{}`, want{none, blank, half}},
		"delete, in the body":             {"DELETE", podPath, `{"dryRun":["All"]}`, want{none, all, half}},
		"delete, in both":                 {"DELETE", podPath + all, `{"dryRun":["All"]}`, want{none, all, half}},
		"delete, empty in the body":       {"DELETE", podPath, `{"dryRun":[]}`, want{none, blank, "-"}},
		"delete, null in the body":        {"DELETE", podPath, `{"dryRun":null}`, want{none, blank, "-"}},
		"delete, other in the body":       {"DELETE", podPath, `{"dryRun":["None"]}`, want{none, `its dryRun is ["None"]`, `its dryRun is ["None"]`}},
		"delete, two in the body":         {"DELETE", podPath, `{"dryRun":["All","All"]}`, want{none, `its dryRun is ["All" "All"]`, `its dryRun is ["All" "All"]`}},
		"delete, key in upper case":       {"DELETE", podPath, `{"DRYRUN":["All"]}`, want{none, blank, "-"}},
		"delete, key in Go's case":        {"DELETE", podPath, `{"DryRun":["All"]}`, want{none, blank, "-"}},
		"evict, key in Go's case":         {"POST", podPath + "/eviction", `{"DeleteOptions":{"dryRun":["All"]}}`, want{none, blank, "-"}},
		"delete, twice, the last is none": {"DELETE", podPath, `{"dryRun":["All"],"dryRun":[]}`, want{none, blank, "-"}},
		"exec, which is a get":            {"GET", podPath + "/exec?command=id", "", want{reach, reach, reach}},
		"attach":                          {"POST", podPath + "/attach", "", want{reach, reach, reach}},
		"port-forward":                    {"GET", podPath + "/portforward", "", want{reach, reach, reach}},
		"proxy of a pod":                  {"GET", podPath + "/proxy/shutdown", "", want{reach, reach, reach}},
		"proxy of a service":              {"GET", "/api/v1/namespaces/default/services/http:web:80/proxy/", "", want{reach, reach, reach}},
		"proxy of a node":                 {"GET", "/prefix/api/v1/nodes/n1/proxy/run", "", want{reach, reach, reach}},
		"the log of a pod":                {"GET", podPath + "/log", "", want{"-", "-", "-"}},
		"a pod named exec":                {"GET", "/api/v1/namespaces/default/pods/exec", "", want{"-", "-", "-"}},
		"a namespace named proxy":         {"GET", "/api/v1/namespaces/proxy/pods/proxy", "", want{"-", "-", "-"}},
		"delete, in another case":         {"DELETE", podPath, `{"dryRun":["all"]}`, want{none, `its dryRun is ["all"]`, `its dryRun is ["all"]`}},
		"delete, text in the body":        {"DELETE", podPath, `{"dryRun":"All"}`, want{none, "its body is not JSON", "its body is not JSON"}},
		"delete, as of an eviction":       {"DELETE", podPath, `{"deleteOptions":{"dryRun":["All"]}}`, want{none, blank, "-"}},
		"delete, without a body":          {"DELETE", podPath, "", want{none, "its body is not JSON", "its body is not JSON"}},
		"delete, protobuf":                {"DELETE", podPath, "k8s\x00\x0a", want{none, "its body is not JSON", "its body is not JSON"}},
		"delete, two bodies":              {"DELETE", podPath, `{"dryRun":["All"]}{}`, want{none, "its body is not JSON", "its body is not JSON"}},
		"evict":                           {"POST", podPath + "/eviction", `{}`, want{none, blank, "-"}},
		"evict, in the query":             {"POST", podPath + "/eviction" + all, `{}`, want{none, blank, half}},
		"evict, in the body":              {"POST", podPath + "/eviction", `{"deleteOptions":{"dryRun":["All"]}}`, want{none, all, half}},
		"evict, in both":                  {"POST", podPath + "/eviction" + all, `{"deleteOptions":{"dryRun":["All"]}}`, want{none, all, half}},
		"evict, as of a delete":           {"POST", podPath + "/eviction", `{"dryRun":["All"]}`, want{none, blank, "-"}},
		"evict, protobuf":                 {"POST", podPath + "/eviction", "k8s\x00\x0a", want{none, "its body is not JSON", "its body is not JSON"}},
		"review, as a dry run":            {"POST", reviewPath + all, `{}`, want{all, all, all}},
		"review of a right":               {"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" + all, `{}`, want{all, all, all}},
		"review of all rights":            {"POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews" + all, `{}`, want{all, all, all}},
		"review of a right, for real":     {"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{}`, want{none, all, "-"}},
		"review":                          {"POST", reviewPath, `{}`, want{none, all, "-"}},
		"review, empty dryRun":            {"POST", reviewPath + "?dryRun=", `{}`, want{none, all, half}},
		"review, dryRun in the body":      {"POST", reviewPath, `{"dryRun":["All"]}`, want{none, all, "-"}},
		"review of a token":               {"POST", "/apis/authentication.k8s.io/v1/tokenreviews" + all, `{}`, want{all, all, all}},
		"review of a caller's right":      {"POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews" + all, `{}`, want{all, all, all}},
		"review of a caller, for real":    {"POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", `{}`, want{none, all, "-"}},
		"review of another kind":          {"POST", "/apis/authorization.k8s.io/v1/localsubjectaccessreviews" + all, `{}`, want{none, all, half}},
		"a path that ends in a review":    {"POST", podPath + "/x" + reviewPath + all, `{}`, want{none, all, half}},
		"a review by another method":      {"DELETE", reviewPath + all, `{}`, want{none, blank, half}},
	} {
		t.Run(name, func(t *testing.T) {
			for mode, want := range map[string]string{"read-only": tc.want.readOnly, "planning": tc.want.planning, "live": tc.want.live} {
				w := &sink{}
				ctx := withPermit(t.Context(), &permit{mode: modes[mode], auditID: "id-1"})
				resp, err := Fence(modes[mode], "")(w).RoundTrip(request(t, ctx, tc.method, tc.path, tc.body))
				if !strings.HasPrefix(want, "?") && want != "-" {
					if err == nil || !strings.Contains(err.Error(), want) || len(w.left) != 0 {
						t.Errorf("%s: %d requests left, error %v; want none and %q", mode, len(w.left), err, want)
					}
					continue
				}
				if err != nil || len(w.left) != 1 {
					t.Errorf("%s: %d requests left, error %v", mode, len(w.left), err)
					continue
				}
				resp.Body.Close()
				if got := w.left[0].URL.RawQuery; got != strings.TrimPrefix(strings.TrimPrefix(want, "-"), "?") {
					t.Errorf("%s: the query that left is %q, want %q", mode, got, want)
				}
				if w.body[0] != tc.body || w.left[0].Method != tc.method {
					t.Errorf("%s: %s with the body %q left", mode, w.left[0].Method, w.body[0])
				}
			}
		})
	}
}

// TestFenceWithoutPermit: nothing that mutates leaves for the asking, whatever it carries.
func TestFenceWithoutPermit(t *testing.T) {
	permits := map[string]func() *permit{
		"none":      func() *permit { return nil },
		"read-only": func() *permit { return &permit{mode: ReadOnly} },
		"planning":  func() *permit { return &permit{mode: Planning} },
		"live":      func() *permit { return &permit{mode: Live} },
	}
	for name, mode := range modes {
		for held, permit := range permits {
			if held == name && mode != ReadOnly {
				continue
			}
			t.Run(name+" with the permit "+held, func(t *testing.T) {
				w := &sink{}
				for method, path := range map[string]string{
					"PUT": deploymentPath + "/scale", "PATCH": deploymentPath, "POST": podPath + "/eviction", "post": "/apis/batch/v1/namespaces/default/jobs", "DELETE": podPath, "CONNECT": podPath, "": deploymentPath,
				} {
					for _, query := range []string{"", "?dryRun=All"} {
						for _, body := range []string{`{}`, `{"dryRun":["All"],"deleteOptions":{"dryRun":["All"]}}`} {
							ctx := t.Context()
							if p := permit(); p != nil {
								ctx = withPermit(ctx, p)
							}
							req := request(t, ctx, "POST", path+query, body)
							req.Method = method
							if _, err := Fence(mode, "")(w).RoundTrip(req); err == nil || !strings.Contains(err.Error(), "nothing may be written here") {
								t.Errorf("%s %s%s: error %v", method, path, query, err)
							}
						}
					}
				}
				if len(w.left) != 0 {
					t.Errorf("%d requests left", len(w.left))
				}
			})
		}
	}
}

// TestPermitIsForOneRequest: also when the first one failed, and when two race.
func TestPermitIsForOneRequest(t *testing.T) {
	const used = "a write is never sent again"
	for name, mode := range map[string]Mode{"planning": Planning, "live": Live} {
		t.Run(name, func(t *testing.T) {
			w := &sink{}
			f := Fence(mode, "")(w)
			ctx := withPermit(t.Context(), &permit{mode: mode})
			for i := range 3 {
				_, err := f.RoundTrip(request(t, ctx, "PATCH", deploymentPath, `[]`))
				if i == 0 && err != nil || i > 0 && (err == nil || !strings.Contains(err.Error(), used)) {
					t.Errorf("request %d: error %v", i, err)
				}
			}
			if _, err := f.RoundTrip(request(t, ctx, "GET", deploymentPath, "")); err != nil {
				t.Errorf("a read needs no permit: %v", err)
			}
			if len(w.left) != 2 {
				t.Errorf("%d requests left, want one write and one read", len(w.left))
			}
		})
	}
	t.Run("after a refusal", func(t *testing.T) {
		w := &sink{}
		ctx := withPermit(t.Context(), &permit{mode: Planning})
		for _, body := range []string{`{}`, `{"dryRun":["All"]}`} {
			if _, err := Fence(Planning, "")(w).RoundTrip(request(t, ctx, "DELETE", podPath, body)); err == nil {
				t.Errorf("%s leaves", body)
			}
		}
		if len(w.left) != 0 {
			t.Errorf("%d requests left", len(w.left))
		}
	})
	t.Run("at once", func(t *testing.T) {
		w := &sink{}
		f := Fence(Live, "")(w)
		ctx := withPermit(t.Context(), &permit{mode: Live})
		var all sync.WaitGroup
		for range 50 {
			req := request(t, ctx, "PATCH", deploymentPath, `[]`)
			all.Go(func() {
				if resp, err := f.RoundTrip(req); err == nil {
					resp.Body.Close()
				}
			})
		}
		all.Wait()
		if len(w.left) != 1 {
			t.Errorf("%d requests left, want 1", len(w.left))
		}
	})
}

// TestFenceWhatLeaves: the request is marked, cannot be replayed by net/http, and the
// caller's own is unchanged.
func TestFenceWhatLeaves(t *testing.T) {
	w := &sink{}
	ctx := withPermit(t.Context(), &permit{mode: Planning, auditID: "kube-write-mcp-mf3q7x2ad5-s1-dabcd1"})
	req := request(t, ctx, "PATCH", deploymentPath+"?fieldManager=m", `[1]`)
	if req.GetBody == nil {
		t.Fatal("the request could not be replayed in the first place")
	}
	closed := &closing{Reader: strings.NewReader(`[1]`)}
	req.Body = closed
	if _, err := Fence(Planning, "")(w).RoundTrip(req); err != nil {
		t.Fatal(err)
	}
	out := w.left[0]
	if out.GetBody != nil {
		t.Error("net/http may send it again")
	}
	if got := out.Header.Get("Audit-ID"); got != "kube-write-mcp-mf3q7x2ad5-s1-dabcd1" {
		t.Errorf("Audit-ID %q", got)
	}
	if diff := cmp.Diff(url.Values{"dryRun": {"All"}, "fieldManager": {"m"}}, out.URL.Query()); diff != "" {
		t.Errorf("query (-want +got):\n%s", diff)
	}
	if out.ContentLength != 3 || w.body[0] != "[1]" {
		t.Errorf("a body of %d bytes: %q", out.ContentLength, w.body[0])
	}
	if req.URL.RawQuery != "fieldManager=m" || req.Header.Get("Audit-ID") != "" {
		t.Errorf("the caller's request has the query %q and the headers %v", req.URL.RawQuery, req.Header)
	}
	if !closed.closed {
		t.Error("the caller's body is not closed")
	}
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

func TestFenceUnreadableBody(t *testing.T) {
	w := &sink{}
	req := request(t, withPermit(t.Context(), &permit{mode: Live}), "PATCH", deploymentPath, "")
	req.Body = io.NopCloser(io.MultiReader(bytes.NewReader([]byte("[")), &failing{}))
	if _, err := Fence(Live, "")(w).RoundTrip(req); err == nil || len(w.left) != 0 {
		t.Errorf("%d requests left, error %v", len(w.left), err)
	}
}

type failing struct{}

func (*failing) Read([]byte) (int, error) { return 0, fmt.Errorf("broken") }

// TestRetryAfter: client-go re-sends what is answered with one; reads may be.
func TestRetryAfter(t *testing.T) {
	for _, code := range []int{200, 429, 500, 503, 504} {
		for name, tc := range map[string]struct {
			mode         Mode
			method, path string
			want         string
		}{
			"read":    {ReadOnly, "GET", deploymentPath, "10"},
			"review":  {ReadOnly, "POST", reviewPath + "?dryRun=All", "10"},
			"dry run": {Planning, "PATCH", deploymentPath, ""},
			"write":   {Live, "PATCH", deploymentPath, ""},
		} {
			t.Run(fmt.Sprint(name, " ", code), func(t *testing.T) {
				w := &sink{code: code, header: http.Header{"Retry-After": {"10"}, "Warning": {`299 - "w"`}}}
				ctx := withPermit(t.Context(), &permit{mode: tc.mode})
				resp, err := Fence(tc.mode, "")(w).RoundTrip(request(t, ctx, tc.method, tc.path, `[]`))
				if err != nil {
					t.Fatal(err)
				}
				if got := resp.Header.Get("Retry-After"); got != tc.want {
					t.Errorf("Retry-After %q, want %q", got, tc.want)
				}
				if resp.Header.Get("Warning") == "" || resp.StatusCode != code {
					t.Errorf("the answer is %d with %v", resp.StatusCode, resp.Header)
				}
			})
		}
	}
}

// TestFenceRedirect: a server that answers with another address gets the write once, and
// what stands at the other address is no answer to it.
func TestFenceRedirect(t *testing.T) {
	for _, code := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			var mu sync.Mutex
			var seen []string
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if seen = append(seen, r.Method+" "+r.URL.Path); r.URL.Path != "/elsewhere" {
					http.Redirect(w, r, "/elsewhere", code)
				}
			}))
			defer srv.Close()
			client := &http.Client{Transport: Fence(Live, "")(http.DefaultTransport)}
			req, err := http.NewRequestWithContext(withPermit(t.Context(), &permit{mode: Live}), "PUT", srv.URL+deploymentPath, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err == nil {
				resp.Body.Close()
				t.Errorf("answered with %d", resp.StatusCode)
			}
			if diff := cmp.Diff([]string{"PUT " + deploymentPath}, seen); diff != "" {
				t.Errorf("what arrived (-want +got):\n%s", diff)
			}
		})
	}
}

// TestForeignAnswer: a page of whatever stands between is no answer to a write, whatever
// its code says; its outcome is not known.
func TestForeignAnswer(t *testing.T) {
	for kind, wantErr := range map[string]bool{
		"application/json": false, "application/json; charset=utf-8": false, "application/vnd.kubernetes.protobuf": false,
		"text/html": true, "text/plain; charset=utf-8": true, "application/json, text/html": true,
	} {
		w := &sink{code: 200, header: http.Header{"Content-Type": {kind}}}
		ctx := withPermit(t.Context(), &permit{mode: Live})
		if _, err := Fence(Live, "")(w).RoundTrip(request(t, ctx, "PATCH", deploymentPath, `[]`)); (err != nil) != wantErr {
			t.Errorf("%s: %v, want an error %t", kind, err, wantErr)
		}
	}
}
