package kube

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// arrived is a request as a server got it.
type arrived struct {
	Line        string // METHOD path
	Query, Body string
	AuditID     string
	Type        string // of the body
}

// listener is a server that keeps what arrives. It is no API server: what is tested here
// is what we send, and how often.
type listener struct {
	*httptest.Server
	mu   sync.Mutex
	seen []arrived
}

func listen(t *testing.T, answer http.HandlerFunc) *listener {
	l := &listener{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		l.mu.Lock()
		l.seen = append(l.seen, arrived{r.Method + " " + r.URL.Path, r.URL.Query().Encode(), string(body), r.Header.Get("Audit-ID"), r.Header.Get("Content-Type")})
		l.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *listener) requests() []arrived {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

// clients are those of the product, for any address.
func clients(t *testing.T, host string) *Clients {
	t.Helper()
	k, err := New(&rest.Config{Host: host}, "test", time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func answer(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

const (
	aDeployment = `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"default","uid":"uid-1"}}`
	aScale      = `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"web"},"spec":{"replicas":3}}`
	aPod        = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-1"}}`
	aJob        = `{"kind":"Job","apiVersion":"batch/v1","metadata":{"name":"mail-mf3q7x2ad5","namespace":"default"}}`
	sentJob     = `{"kind":"Job","apiVersion":"batch/v1","metadata":{"name":"mail-mf3q7x2ad5","namespace":"default"},"spec":{"template":{"metadata":{},"spec":{"containers":null}}},"status":{}}`
	aSuccess    = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}`
)

func failure(code int, reason metav1.StatusReason) string {
	b, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "no",
	})
	if err != nil {
		panic(err)
	}
	return string(b)
}

var (
	webScale = plan.Step{
		Verb: plan.Scale, Target: plan.Target{Resource: "deployments", Namespace: "default", Name: "web", UID: "uid-1"}, Replicas: ptr.To[int32](0),
	}
	webPatch = plan.Step{
		Verb: plan.Patch, Target: plan.Target{Resource: "deployments", Namespace: "default", Name: "web", UID: "uid-1"},
		Patch: []plan.Op{{Op: "ensure", Path: "/metadata/annotations"}, {Op: "add", Path: "/metadata/annotations/a", From: plan.FromReason}},
	}
	podTarget = plan.Target{Resource: "pods", Namespace: "default", Name: "web-1", UID: "uid-2"}
)

// TestSend: the dry run and the execution are the same typed call. They differ in dryRun,
// in the version and in nothing else, and dryRun stands where the server reads it.
func TestSend(t *testing.T) {
	const (
		manager = "fieldManager=kube-write-mcp%3Amf3q7x2ad5&fieldValidation=Strict&timeout=30s"
		guard   = `{"op":"replace","path":"/metadata/uid","value":"uid-1"}`
		at      = `,{"op":"replace","path":"/metadata/resourceVersion","value":"100"}`
		rest    = `,{"op":"add","path":"/metadata/annotations","value":{}},{"op":"add","path":"/metadata/annotations/a","value":"why"}]`
	)
	for name, tc := range map[string]struct {
		step      plan.Step
		answer    string
		dry, live arrived
	}{
		"scale to zero": {
			webScale, aScale,
			arrived{
				"PUT /apis/apps/v1/namespaces/default/deployments/web/scale", "dryRun=All&" + manager,
				`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"default","uid":"uid-1"},"spec":{"replicas":0},"status":{"replicas":0}}`,
				"id", "application/json",
			},
			arrived{
				"PUT /apis/apps/v1/namespaces/default/deployments/web/scale", manager,
				`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"default","resourceVersion":"100","uid":"uid-1"},"spec":{"replicas":0},"status":{"replicas":0}}`,
				"id", "application/json",
			},
		},
		"scale to a number": {
			plan.Step{Verb: plan.Scale, Target: webScale.Target, Replicas: ptr.To[int32](3)}, aScale,
			arrived{
				"PUT /apis/apps/v1/namespaces/default/deployments/web/scale", "dryRun=All&" + manager,
				`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"default","uid":"uid-1"},"spec":{"replicas":3},"status":{"replicas":0}}`,
				"id", "application/json",
			},
			arrived{
				"PUT /apis/apps/v1/namespaces/default/deployments/web/scale", manager,
				`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"default","resourceVersion":"100","uid":"uid-1"},"spec":{"replicas":3},"status":{"replicas":0}}`,
				"id", "application/json",
			},
		},
		"patch": {
			webPatch, aDeployment,
			arrived{"PATCH " + deploymentPath, "dryRun=All&" + manager, "[" + guard + rest, "id", "application/json-patch+json"},
			arrived{"PATCH " + deploymentPath, manager, "[" + guard + at + rest, "id", "application/json-patch+json"},
		},
		"evict": {
			plan.Step{Verb: plan.Evict, Target: podTarget, Grace: ptr.To[int64](5)}, aSuccess,
			arrived{
				"POST " + podPath + "/eviction", "dryRun=All&timeout=30s",
				`{"kind":"Eviction","apiVersion":"policy/v1","metadata":{"name":"web-1","namespace":"default"},"deleteOptions":{"kind":"DeleteOptions","apiVersion":"v1",` +
					`"gracePeriodSeconds":5,"preconditions":{"uid":"uid-2"},"propagationPolicy":"Background","dryRun":["All"]}}`,
				"id", "application/json",
			},
			arrived{
				"POST " + podPath + "/eviction", "timeout=30s",
				`{"kind":"Eviction","apiVersion":"policy/v1","metadata":{"name":"web-1","namespace":"default"},"deleteOptions":{"kind":"DeleteOptions","apiVersion":"v1",` +
					`"gracePeriodSeconds":5,"preconditions":{"uid":"uid-2"},"propagationPolicy":"Background"}}`,
				"id", "application/json",
			},
		},
		"create": {
			plan.Step{
				Verb: plan.Create, Target: plan.Target{Resource: "cronjobs", Namespace: "default", Name: "mail", UID: "uid-3"},
				Object: json.RawMessage(aJob),
			}, aJob,
			arrived{
				"POST /apis/batch/v1/namespaces/default/jobs", "dryRun=All&" + manager, sentJob, "id", "application/json",
			},
			arrived{
				"POST /apis/batch/v1/namespaces/default/jobs", manager, sentJob, "id", "application/json",
			},
		},
		"delete": {
			plan.Step{Verb: plan.Delete, Target: podTarget}, aPod,
			arrived{
				"DELETE " + podPath, "dryRun=All&timeout=30s",
				`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"uid-2"},"propagationPolicy":"Background","dryRun":["All"]}`,
				"id", "application/json",
			},
			arrived{
				"DELETE " + podPath, "timeout=30s",
				`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"uid-2"},"propagationPolicy":"Background"}`,
				"id", "application/json",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, answer(200, tc.answer))
			k := clients(t, l.URL)
			sl := plan.Slots{Reason: "why", Absent: []string{"/metadata/annotations"}}
			if ans, err := k.Dry.Send(t.Context(), "mf3q7x2ad5", "id", tc.step, sl, time.Time{}); err != nil || ans.Class != Applied {
				t.Fatalf("dry run: %+v, %v", ans, err)
			}
			sl.ResourceVersion = "100"
			if ans, err := k.Live.Send(t.Context(), "mf3q7x2ad5", "id", tc.step, sl, time.Time{}); err != nil || ans.Class != Applied {
				t.Fatalf("execution: %+v, %v", ans, err)
			}
			got := l.requests()
			for i := range got {
				got[i].Body = strings.TrimSpace(got[i].Body)
			}
			if diff := cmp.Diff([]arrived{tc.dry, tc.live}, got); diff != "" {
				t.Errorf("what arrived (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSendOnce: one request for a Step, whatever is answered, and the class of each.
func TestSendOnce(t *testing.T) {
	retry := func(code int, reason metav1.StatusReason) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "0")
			answer(code, failure(code, reason))(w, r)
		}
	}
	for name, tc := range map[string]struct {
		answer    http.HandlerFunc
		wantClass Class
		wantCode  int
	}{
		"200":                  {answer(200, aScale), Applied, 200},
		"409":                  {answer(409, failure(409, metav1.StatusReasonConflict)), Conflict, 409},
		"422":                  {answer(422, failure(422, metav1.StatusReasonInvalid)), NotApplied, 422},
		"429 with Retry-After": {retry(429, metav1.StatusReasonTooManyRequests), Throttled, 429},
		"500 with Retry-After": {retry(500, metav1.StatusReasonInternalError), Unknown, 500},
		"503 with Retry-After": {retry(503, metav1.StatusReasonServiceUnavailable), Unknown, 503},
		"504 with Retry-After": {retry(504, metav1.StatusReasonTimeout), Unknown, 504},
		"500 without a body":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, Unknown, 500},
		"502 of a proxy":       {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>Bad Gateway</html>", 502) }, Unknown, 502},
		"200 with half a body": {answer(200, aScale[:40]), Unknown, 0},
		"a body shorter than said": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5000")
			answer(200, aScale)(w, r)
		}, Unknown, 0},
		"a connection that is cut": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, Unknown, 0},
		"307 to another address":   {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", 307) }, Unknown, 0},
		"301, which makes it a GET": {func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				answer(200, aScale)(w, r)
				return
			}
			http.Redirect(w, r, "/x", 301)
		}, Unknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, tc.answer)
			ans, err := clients(t, l.URL).Live.Send(t.Context(), "mf3q7x2ad5", "id", webScale, plan.Slots{ResourceVersion: "100"}, time.Time{})
			if ans.Class != tc.wantClass || ans.Code != tc.wantCode {
				t.Errorf("class %d, code %d, error %v; want class %d, code %d", ans.Class, ans.Code, err, tc.wantClass, tc.wantCode)
			}
			if (err == nil) != (tc.wantClass == Applied) {
				t.Errorf("error %v", err)
			}
			writes := 0
			for _, a := range l.requests() {
				if !strings.HasPrefix(a.Line, "GET ") {
					writes++
				}
			}
			if writes != 1 {
				t.Errorf("%d writes arrived, want 1: %v", writes, l.requests())
			}
		})
	}
}

// TestSendToNobody: where no byte reached a socket, nothing was applied.
func TestSendToNobody(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	open := listen(t, answer(200, aScale))
	noTLS := strings.Replace(open.URL, "http://", "https://", 1)
	for name, tc := range map[string]struct {
		ctx  context.Context
		host string
		step plan.Step
	}{
		"refused connection": {t.Context(), closed.URL, webScale},
		"no TLS there":       {t.Context(), noTLS, webScale},
		"cancelled before":   {cancelled, open.URL, webScale},
		"no such kind":       {t.Context(), open.URL, plan.Step{Verb: plan.Delete, Target: plan.Target{Resource: "secrets", Name: "x"}}},
		"no such verb":       {t.Context(), open.URL, plan.Step{Verb: "exec", Target: podTarget}},
		"no scale there":     {t.Context(), open.URL, plan.Step{Verb: plan.Scale, Target: podTarget, Replicas: ptr.To[int32](1)}},
		"no name":            {t.Context(), open.URL, plan.Step{Verb: plan.Delete, Target: plan.Target{Resource: "pods", Namespace: "default"}}},
	} {
		t.Run(name, func(t *testing.T) {
			ans, err := clients(t, tc.host).Live.Send(tc.ctx, "mf3q7x2ad5", "id", tc.step, plan.Slots{}, time.Time{})
			if err == nil || ans.Class != NotApplied || ans.Code != 0 {
				t.Errorf("answer %+v, error %v; want class %d", ans, err, NotApplied)
			}
		})
	}
	if got := open.requests(); len(got) != 0 {
		t.Errorf("arrived: %v", got)
	}
}

// TestReaderCannotWrite: the client that planners hold sends reads and the one review.
func TestReaderCannotWrite(t *testing.T) {
	l := listen(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			answer(201, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:serviceaccount:a:b"}}}`)(w, r)
			return
		}
		answer(200, aDeployment)(w, r)
	})
	k := clients(t, l.URL)
	read := k.Read
	for name, write := range map[string]func() error{
		"delete": func() error {
			return read.CoreV1().Pods("default").Delete(t.Context(), "web-1", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		},
		"delete all": func() error {
			return read.CoreV1().Pods("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		},
		"patch": func() error {
			_, err := read.AppsV1().Deployments("default").Patch(t.Context(), "web", "application/merge-patch+json", []byte(`{}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		},
	} {
		if err := write(); err == nil || !strings.Contains(err.Error(), "nothing may be written here") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := read.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
		t.Errorf("get: %v", err)
	}
	read.Introduce(t.Context())
	if got := read.KnownUser(); got != "system:serviceaccount:a:b" {
		t.Errorf("user %q", got)
	}
	var lines []string
	for _, a := range l.requests() {
		lines = append(lines, a.Line+"?"+a.Query)
	}
	want := []string{"GET " + deploymentPath + "?", "POST " + reviewPath + "?dryRun=All"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("what arrived (-want +got):\n%s", diff)
	}
}

// TestReviewBehindAProxy: who we are can be asked where the API server has a path.
func TestReviewBehindAProxy(t *testing.T) {
	l := listen(t, answer(201, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"ada"}}}`))
	for _, host := range []string{l.URL + "/k8s/clusters/c-1", l.URL + "/k8s/clusters/c-1/"} {
		read := clients(t, host).Read
		read.Introduce(t.Context())
		if got := read.KnownUser(); got != "ada" {
			t.Errorf("%s: user %q", host, got)
		}
	}
	for _, a := range l.requests() {
		if want := "POST /k8s/clusters/c-1" + reviewPath; a.Line != want {
			t.Errorf("%s arrived, want %s", a.Line, want)
		}
	}
}

// TestWarnings: each call gets the warnings of its own answer, also when many run.
func TestWarnings(t *testing.T) {
	l := listen(t, func(w http.ResponseWriter, r *http.Request) {
		if id := r.Header.Get("Audit-ID"); id != "quiet" {
			w.Header().Add("Warning", `299 - "of `+id+`"`)
			w.Header().Add("Warning", `199 - "another code"`)
		}
		answer(200, aScale)(w, r)
	})
	k := clients(t, l.URL)
	var all sync.WaitGroup
	for _, id := range []string{"a", "b", "quiet", "c", "d"} {
		all.Go(func() {
			ans, err := k.Dry.Send(t.Context(), "mf3q7x2ad5", id, webScale, plan.Slots{}, time.Time{})
			if err != nil {
				t.Error(err)
			}
			want := []string{"of " + id}
			if id == "quiet" {
				want = nil
			}
			if diff := cmp.Diff(want, ans.Warnings); diff != "" {
				t.Errorf("warnings of %s (-want +got):\n%s", id, diff)
			}
		})
	}
	all.Wait()
}

// TestEveryKindIsTyped: what a plan can be about can be read and written.
func TestEveryKindIsTyped(t *testing.T) {
	for _, k := range plan.Kinds {
		c, err := typedFor(k.Resource)
		if err != nil || c.get == nil || c.patch == nil || c.create == nil || c.delete == nil || c.names == nil {
			t.Errorf("%s: %+v, %v", k.Resource, c, err)
		}
	}
	if len(kinds) != len(plan.Kinds) {
		t.Errorf("%d typed clients for %d kinds", len(kinds), len(plan.Kinds))
	}
}

// TestIdentity: asked once, again where it must be fresh, and not needed where forbidden.
func TestIdentity(t *testing.T) {
	code, body := 200, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"uid-ks"}}`
	l := listen(t, func(w http.ResponseWriter, r *http.Request) { answer(code, body)(w, r) })
	read := clients(t, l.URL).Read
	ask := func(fresh bool) string {
		t.Helper()
		id, err := read.Identity(t.Context(), fresh)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if read.Known() != read.Server() {
		t.Errorf("known before it was asked: %q", read.Known())
	}
	if a, b := ask(false), ask(false); a != "uid-ks" || b != a || len(l.requests()) != 1 {
		t.Errorf("identity %q, then %q, by %d requests", a, b, len(l.requests()))
	}
	body = strings.Replace(body, "uid-ks", "uid-other", 1)
	if a := ask(true); a != "uid-other" || read.Known() != a {
		t.Errorf("fresh identity %q, known %q", a, read.Known())
	}
	code, body = 500, failure(500, metav1.StatusReasonInternalError)
	if _, err := read.Identity(t.Context(), true); !apierrors.IsInternalError(err) || read.Known() != "uid-other" {
		t.Errorf("error %v, known %q", err, read.Known())
	}
	code, body = 403, failure(403, metav1.StatusReasonForbidden)
	if a := ask(true); a != read.Server() || !strings.HasPrefix(a, "server-") {
		t.Errorf("identity %q where it is forbidden, want %q", a, read.Server())
	}
}
