package server

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"
	"golang.org/x/time/rate"
	"k8s.io/utils/lru"

	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

const (
	httpMaxInFlight = 32 // requests of one caller
	httpMaxSessions = 64 // of one caller; with one more, the one unused for longest ends
	httpBurst       = 4  // seconds' worth of requests that may come at once
	guessesPerSec   = 5  // tokens that are nobody's, per address
	guessesBurst    = 50
	maxVisible      = 8 // questions at a time about what a caller may do
)

// httpCaller is what is known of one principal.
type httpCaller struct {
	*plan.Caller
	*httpBook
	options *HTTPOptions
}

// httpBook is what a principal has going on, whatever token it comes with.
type httpBook struct {
	rate     *rate.Limiter
	slots    chan struct{}
	sessions sessions

	mu    sync.Mutex
	calls map[string]bool // requests in flight by session and id
}

// callerOf finds or opens the book of a caller. One that was pushed out has no sessions and
// a full rate again.
func (h *httpServer) callerOf(who *plan.Caller) *httpCaller {
	fresh := &httpBook{
		rate:     rate.NewLimiter(rate.Limit(h.Rate), httpBurst*h.Rate),
		slots:    make(chan struct{}, httpMaxInFlight),
		sessions: sessions{lru.New(httpMaxSessions)},
		calls:    map[string]bool{},
	}
	return &httpCaller{who, remembered(h, h.callers, who.Name, fresh), &h.HTTPOptions}
}

// guessesFrom is how many more tokens that are nobody's may come from an address.
func (h *httpServer) guessesFrom(addr string) *rate.Limiter {
	host, _, _ := net.SplitHostPort(addr)
	return remembered(h, h.guesses, host, rate.NewLimiter(guessesPerSec, guessesBurst))
}

// remembered is the entry of a key, which is fresh for a new one.
func remembered[T any](h *httpServer, all *lru.Cache, key string, fresh T) T {
	h.mu.Lock()
	defer h.mu.Unlock()
	if was, ok := all.Get(key); ok {
		return was.(T)
	}
	all.Add(key, fresh)
	return fresh
}

// begin puts a request in flight; done is nil where its id is in flight already.
func (b *httpBook) begin(key string) (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls[key] {
		return nil
	}
	b.calls[key] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.calls, key)
	}
}

// sessions are those of the older protocol era that a principal has opened here: nobody
// else's token goes with them. They are mcp-go's manager of session ids.
type sessions struct{ open *lru.Cache }

var errNoSession = errors.New("there is no such session")

func (s sessions) has(id string) bool {
	_, ok := s.open.Get(id)
	return ok
}

// Generate opens a session.
func (s sessions) Generate() string {
	id := rand.Text()
	s.open.Add(id, struct{}{})
	return id
}

// Validate knows the sessions that are open.
func (s sessions) Validate(id string) (isTerminated bool, err error) {
	if !s.has(id) {
		return false, errNoSession
	}
	return false, nil
}

// Terminate closes a session.
func (s sessions) Terminate(id string) (isNotAllowed bool, err error) {
	s.open.Remove(id)
	return false, nil
}

// sessionsByCaller gives mcp-go the sessions of the caller of a request. The sweeper, which
// has no request, forgets mcp-go's own state; then that of a session that is still open is
// made anew.
type sessionsByCaller struct{}

// ResolveSessionIdManager implements mcpserver.SessionIdManagerResolver.
func (sessionsByCaller) ResolveSessionIdManager(r *http.Request) mcpserver.SessionIdManager {
	if r != nil {
		if c, ok := r.Context().Value(httpCallKey{}).(*httpCall); ok {
			return c.sessions
		}
	}
	return sessions{lru.New(1)}
}

type httpCallKey struct{}

// httpCall rides in the context of a message from its authentication to the tool.
type httpCall struct {
	*httpCaller
	visible map[string]bool // tools that exist for the caller, of those that the message is about
}

func (c *httpCaller) in(ctx context.Context, visible map[string]bool) context.Context {
	return context.WithValue(ctx, httpCallKey{}, &httpCall{c, visible})
}

// principal and rights of the call that ctx belongs to.
func (t tools) caller(ctx context.Context) (engine.Principal, *engine.Caller) {
	c, ok := ctx.Value(httpCallKey{}).(*httpCall)
	if !ok {
		return t.options.Principal, nil
	}
	rights := &engine.Caller{May: func(ctx context.Context, verb, name, namespace string) (bool, error) {
		return c.options.Gate.May(ctx, c.Caller, verb, name, namespace)
	}}
	if c.options.Impersonate {
		rights.As = c.Caller
	}
	return engine.Principal{Kind: "http", Name: c.Name}, rights
}

// overHTTP are the options of a server over HTTP.
func overHTTP() []mcpserver.ServerOption {
	hooks := &mcpserver.Hooks{}
	hooks.AddAfterSubscriptionsListen(acknowledge)
	return []mcpserver.ServerOption{mcpserver.WithToolFilter(onlyVisible), mcpserver.WithHooks(hooks)}
}

// onlyVisible is the tool filter over HTTP, of the list and of every call.
func onlyVisible(ctx context.Context, all []mcp.Tool) (out []mcp.Tool) {
	c, ok := ctx.Value(httpCallKey{}).(*httpCall)
	for _, t := range all {
		if ok && c.visible[t.Name] {
			out = append(out, t)
		}
	}
	return out
}

// rightTo is the virtual verb and name that a tool needs.
func rightTo(t mcp.Tool) (verb, name string) {
	if name, ok := strings.CutPrefix(t.Name, "plan_"); ok {
		return engine.VerbPlan, name
	}
	if t.Annotations.ReadOnlyHint != nil && *t.Annotations.ReadOnlyHint {
		return engine.VerbRead, t.Name
	}
	return engine.VerbWrite, t.Name
}

// visible says which of the tools that a message is about exist for a caller: those that it
// may use in all namespaces, or in one that is named in the options.
func (h *httpServer) visible(ctx context.Context, who *plan.Caller, m *rpcMessage) (map[string]bool, error) {
	var about []mcp.Tool
	switch m.method {
	case mcp.MethodToolsList:
		for _, t := range h.mcp.ListTools() {
			about = append(about, t.Tool)
		}
	case mcp.MethodToolsCall:
		if t := h.mcp.GetTool(nameIn(m)); t != nil {
			about = append(about, t.Tool)
		}
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	var failed error
	visible := map[string]bool{}
	slots := make(chan struct{}, maxVisible)
	for _, t := range about {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			verb, name := rightTo(t)
			may, err := h.mayAnywhere(ctx, who, verb, name)
			mu.Lock()
			defer mu.Unlock()
			if visible[t.Name] = may; err != nil {
				failed = err
			}
		})
	}
	all.Wait()
	return visible, failed
}

func (h *httpServer) mayAnywhere(ctx context.Context, who *plan.Caller, verb, name string) (bool, error) {
	for _, namespace := range append([]string{""}, h.Namespaces...) {
		for _, of := range []string{"", name} { // the first question is the same for all tools
			if may, err := h.Gate.May(ctx, who, verb, of, namespace); err != nil || may {
				return may, err
			}
		}
	}
	return false, nil
}
