package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// reviewer answers reviews as its fields say, and counts them.
type reviewer struct {
	mu      sync.Mutex
	tokens  map[string]authenticationv1.TokenReviewStatus
	allowed map[string]bool // by user
	down    bool
	asked   int
	wrong   []string // requests that should not have come
	last    http.Header
}

func (s *reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	s.last = r.Header
	if r.URL.Query().Get("dryRun") != "All" {
		s.wrong = append(s.wrong, r.Method+" "+r.URL.String())
	}
	var answer any
	switch {
	case s.down:
	case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
		var in authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&in); err == nil {
			in.Status = s.tokens[in.Spec.Token]
			in.Kind, in.APIVersion, answer = "TokenReview", "authentication.k8s.io/v1", in
		}
	case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
		var in authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&in); err == nil {
			in.Status.Allowed = s.allowed[in.Spec.User]
			in.Kind, in.APIVersion, answer = "SubjectAccessReview", "authorization.k8s.io/v1", in
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if answer == nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *reviewer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// TestCaller: a token is good for its own audience, is asked about once in ten seconds, and
// what could not be asked is not remembered.
func TestCaller(t *testing.T) {
	user := func(name string, audiences ...string) authenticationv1.TokenReviewStatus {
		return authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: name}, Audiences: audiences}
	}
	s := &reviewer{tokens: map[string]authenticationv1.TokenReviewStatus{
		"good": user("ada", "ours", "theirs"), "foreign": user("ada", "theirs"), "no audience": user("ada"), "nameless": user("", "ours"),
		"refused": {User: authenticationv1.UserInfo{Username: "ada"}, Audiences: []string{"ours"}},
	}}
	server := httptest.NewServer(s)
	defer server.Close()
	now := time.Now()
	r := clients(t, server.URL).Reviews("ours", func() time.Time { return now })
	for token, want := range map[string]string{
		"good": "ada", "foreign": "", "no audience": "", "nameless": "", "refused": "", "unknown": "",
	} {
		before := s.count()
		for range 3 {
			who, err := r.Caller(t.Context(), token)
			if err != nil || (who == nil) != (want == "") || who != nil && who.Name != want {
				t.Errorf("%s: %+v, %v; want %q", token, who, err, want)
			}
		}
		if n := s.count() - before; n != 1 {
			t.Errorf("%s: asked %d times", token, n)
		}
	}
	before := s.count()
	for _, token := range []string{"", strings.Repeat("x", maxToken+1)} {
		if who, err := r.Caller(t.Context(), token); who != nil || err != nil || s.count() != before {
			t.Errorf("a token of %d bytes: %v %v, asked %d times", len(token), who, err, s.count()-before)
		}
	}
	s.tokens["good"] = authenticationv1.TokenReviewStatus{}
	now = now.Add(reviewTTL - time.Second)
	if who, err := r.Caller(t.Context(), "good"); who == nil || err != nil {
		t.Errorf("within its time: %v %v", who, err)
	}
	now = now.Add(2 * time.Second)
	if who, err := r.Caller(t.Context(), "good"); who != nil || err != nil {
		t.Errorf("a token that was taken back: %v %v", who, err)
	}
	s.down = true
	if who, err := r.Caller(t.Context(), "new"); who != nil || err == nil {
		t.Errorf("while nobody can be asked: %v %v", who, err)
	}
	s.down, s.tokens["new"] = false, user("bob", "ours")
	if who, err := r.Caller(t.Context(), "new"); who == nil || err != nil {
		t.Errorf("afterwards: %v %v", who, err)
	}
	if s.wrong != nil {
		t.Errorf("not as a dry run: %q", s.wrong)
	}
}

// TestMay: an answer holds for one caller and one question, and for ten seconds.
func TestMay(t *testing.T) {
	s := &reviewer{allowed: map[string]bool{"ada": true}}
	server := httptest.NewServer(s)
	defer server.Close()
	now := time.Now()
	r := clients(t, server.URL).Reviews("ours", func() time.Time { return now })
	ada, bob := &plan.Caller{Name: "ada", Groups: []string{"a"}}, &plan.Caller{Name: "bob", Groups: []string{"a"}}
	ask := func(who *plan.Caller, verb, name, ns string, want bool, wantAsked int) {
		t.Helper()
		before := s.count()
		if got, err := r.May(t.Context(), who, verb, name, ns); err != nil || got != want || s.count()-before != wantAsked {
			t.Errorf("%s may %s %s in %q: %t, %v, asked %d times", who.Name, verb, name, ns, got, err, s.count()-before)
		}
	}
	ask(ada, "plan", "scale", "a", true, 1)
	ask(ada, "plan", "scale", "a", true, 0)
	ask(ada, "write", "scale", "a", true, 1)
	ask(ada, "plan", "drain", "a", true, 1)
	ask(ada, "plan", "scale", "b", true, 1)
	ask(bob, "plan", "scale", "a", false, 1)
	ask(bob, "plan", "scale", "a", false, 0)
	ask(&plan.Caller{Name: "ada", Groups: []string{"b"}}, "plan", "scale", "a", true, 1)
	s.allowed["ada"] = false
	ask(ada, "plan", "scale", "a", true, 0)
	now = now.Add(reviewTTL + time.Second)
	ask(ada, "plan", "scale", "a", false, 1)
	if got, err := r.MayGet(t.Context(), ada, "/metrics"); got || err != nil {
		t.Errorf("may get: %t %v", got, err)
	}
	s.down = true
	if got, err := r.May(t.Context(), ada, "plan", "new", ""); got || err == nil {
		t.Errorf("while nobody can be asked: %t %v", got, err)
	}
	if s.wrong != nil {
		t.Errorf("not as a dry run: %q", s.wrong)
	}
}

// TestAs: dry runs and writes carry the caller, without groups of the system; reads and
// reviews never do.
func TestAs(t *testing.T) {
	s := &reviewer{}
	server := httptest.NewServer(s)
	defer server.Close()
	c := clients(t, server.URL)
	ctx := As(t.Context(), &plan.Caller{Name: "ada", Groups: []string{"dev", "system:masters", "system:authenticated"}})
	step := plan.Step{Verb: plan.Evict, Target: plan.Target{Resource: "pods", Namespace: "default", Name: "web", UID: "u"}}
	for name, tc := range map[string]struct {
		send func()
		want string
	}{
		"dry run": {func() { _, _ = c.Dry.Send(ctx, "p", "a", step, plan.Slots{}, time.Time{}) }, "ada dev"},
		"write":   {func() { _, _ = c.Live.Send(ctx, "p", "a", step, plan.Slots{}, time.Time{}) }, "ada dev"},
		"nobody":  {func() { _, _ = c.Live.Send(As(t.Context(), nil), "p", "a", step, plan.Slots{}, time.Time{}) }, ""},
		"read":    {func() { _, _ = c.Read.Identity(ctx, true) }, ""},
		"review":  {func() { _, _ = c.Reviews("ours", time.Now).Caller(ctx, "x") }, ""},
	} {
		before := s.count()
		tc.send()
		got := strings.TrimSpace(s.last.Get("Impersonate-User") + " " + strings.Join(s.last.Values("Impersonate-Group"), ","))
		if got != tc.want || s.count() == before {
			t.Errorf("%s: %q, want %q (asked %d times)", name, got, tc.want, s.count()-before)
		}
	}
}
