package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"
	"golang.org/x/net/netutil"
	"k8s.io/utils/lru"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// HTTPPath is where MCP is served; beside it there are /healthz, /readyz and MetricsPath.
const HTTPPath = "/mcp"

// MetricsPath is the non-resource URL that a caller must be allowed to get.
const MetricsPath = "/metrics"

const (
	httpMaxBody        = 1 << 20          // bytes
	httpMaxHeader      = 32 << 10         // bytes; a token is most of it
	httpMaxConnections = 1024             // further ones wait to be accepted
	httpMaxRequests    = 256              // at a time, authenticated or not
	httpMaxCallers     = 1024             // whose rate and sessions are remembered
	httpHeaderTimeout  = 5 * time.Second  // for a request's header
	httpBodyTimeout    = 10 * time.Second // for its body
	httpWriteTimeout   = 10 * time.Second // for a client to take what was written
	httpIdleTimeout    = 60 * time.Second // of a connection between requests
	httpSessionIdle    = 30 * time.Minute // after which a session of the older era is forgotten
	httpIDDigits       = 15               // mcp-go would round longer ids
)

// Gatekeeper says who calls over HTTP and what each caller may do.
type Gatekeeper interface {
	// Caller is whose token it is, nil where it is nobody's. The error is that of asking.
	Caller(ctx context.Context, token string) (*plan.Caller, error)

	// May says whether a caller may do a virtual verb with an action, or with all ("").
	May(ctx context.Context, who *plan.Caller, verb, name, namespace string) (bool, error)

	// MayGet says whether a caller may get a path that is not MCP.
	MayGet(ctx context.Context, who *plan.Caller, path string) (bool, error)
}

// HTTPOptions tunes ServeHTTP. MaxLine bounds a body, 0 means 1 MiB; Grace is that of
// ServeStdio.
type HTTPOptions struct {
	GuardOptions

	Gate Gatekeeper

	// TLS is what connections are encrypted by. Nil is plain HTTP, on a loopback listener only.
	TLS *tls.Config

	// Host reports whether a request may name this host. Whoever resolves another name to
	// our address (DNS rebinding) is not to be served.
	Host func(name string) bool

	// Rate is how many requests a second one caller may send; four seconds' worth may come
	// at once.
	Rate int

	// Namespaces are those in which a right makes a tool exist, beside a right in all.
	Namespaces []string

	// Impersonate says that dry runs and writes are sent in the caller's name.
	Impersonate bool

	// Ready is nil, or why nothing can be planned or executed.
	Ready func(context.Context) error

	// Metrics serves /metrics to callers that may get it.
	Metrics http.Handler

	// Count is told the status of every answer. Optional.
	Count func(status int)
}

// ServeHTTP serves s on l, in both protocol eras, until a first SIGTERM or SIGINT or the end of
// ctx, and then returns nil. Stopped, it accepts no further request, calls OnStop, lets the
// requests in flight finish and calls Finish; it returns when that is done or after Grace. A
// second signal ends the process at once.
//
// Every request but those of the probes is authenticated. s must have been made with the
// same Gatekeeper in its Options: without one it would show its tools to nobody.
func ServeHTTP(ctx context.Context, s *mcpserver.MCPServer, l net.Listener, o HTTPOptions) error {
	if o.MaxLine == 0 {
		o.MaxLine = httpMaxBody
	}
	o.GuardOptions = o.withDefaults()
	if o.Signals == nil {
		signals := make(chan os.Signal, 2)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(signals)
		o.Signals = signals
	}
	h := &httpServer{
		HTTPOptions: o, mcp: s, origin: http.NewCrossOriginProtection(),
		slots:   make(chan struct{}, httpMaxRequests),
		callers: lru.New(httpMaxCallers),
		guesses: lru.New(httpMaxCallers),
		known:   lru.New(httpMaxCallers),
	}
	stopped, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	h.stopped = stopped
	h.transport = mcpserver.NewStreamableHTTPServer(s,
		mcpserver.WithSessionIdManagerResolver(sessionsByCaller{}),
		mcpserver.WithSessionIdleTTL(httpSessionIdle),
		mcpserver.WithDisableStreaming(true),           // nothing is sent but in answer to a call
		mcpserver.WithDisableLocalhostProtection(true), // Host is checked, of every connection
		mcpserver.WithStreamableHTTPLogger(slog.New(slog.DiscardHandler)),
	)
	defer func() { _ = h.transport.Shutdown(context.Background()) }() // its sweeper
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	srv := &http.Server{
		Handler: h, Protocols: &protocols, TLSConfig: o.TLS,
		ReadHeaderTimeout: httpHeaderTimeout, IdleTimeout: httpIdleTimeout, MaxHeaderBytes: httpMaxHeader,
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug), // anybody can make it say something
	}
	l = netutil.LimitListener(l, httpMaxConnections)
	served := make(chan error, 1)
	go func() {
		if o.TLS == nil {
			served <- srv.Serve(l)
			return
		}
		served <- srv.ServeTLS(l, "", "")
	}()
	var failed error
	select {
	case failed = <-served:
	case <-ctx.Done():
	case sig := <-o.Signals:
		o.Log.Info("stopping", "signal", sig, "requests", len(h.slots))
	}
	h.draining.Store(true)
	stop()
	o.OnStop()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case sig := <-o.Signals:
			o.Log.Error("second signal: exiting at once", "signal", sig, "requests", len(h.slots))
			o.Exit(guardExitCode)
		case <-over:
		}
	}()
	grace, cancel := context.WithTimeout(context.Background(), o.Grace)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		o.Log.Error("requests in flight did not finish in time", "requests", len(h.slots), "grace", o.Grace)
		_ = srv.Close() // their contexts end
	}
	o.Finish(grace)
	return failed
}

// httpServer stands in front of mcp-go's transport, which authenticates nobody.
type httpServer struct {
	HTTPOptions
	mcp       *mcpserver.MCPServer
	transport *mcpserver.StreamableHTTPServer
	origin    *http.CrossOriginProtection
	slots     chan struct{} // one token per request
	callers   *lru.Cache    // by name: *httpCaller
	guesses   *lru.Cache    // by address: *rate.Limiter of tokens that were nobody's
	known     *lru.Cache    // hashes of tokens that were somebody's: who guesses keeps none of them out
	draining  atomic.Bool
	stopped   context.Context

	mu sync.Mutex // to find or make an entry of callers and guesses
}

// ServeHTTP implements http.Handler.
func (h *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &patientWriter{ResponseWriter: w, control: http.NewResponseController(w), status: http.StatusOK, flushed: make(chan struct{}, 1)}
	_ = out.control.SetReadDeadline(time.Now().Add(httpBodyTimeout)) // also of a body that nobody reads
	defer func() {
		if h.Count != nil {
			h.Count(out.status)
		}
	}()
	switch r.URL.Path {
	case "/healthz":
		fmt.Fprintln(out, "ok")
	case "/readyz":
		h.readyz(out, r)
	case MetricsPath, HTTPPath:
		if no := h.admit(out, r); no != nil {
			no.write(out)
		}
	default:
		httpRefusal{http.StatusNotFound, "there is nothing here"}.write(out)
	}
}

// httpRefusal is an answer that says no. It says the same whatever the reason is, where
// the reason would help who guesses.
type httpRefusal struct {
	status int
	why    string
}

func (n httpRefusal) write(w http.ResponseWriter) {
	switch n.status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="kube-write-mcp"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, n.why, n.status)
}

func (h *httpServer) readyz(w http.ResponseWriter, r *http.Request) {
	err := errors.New("it is stopping")
	if !h.draining.Load() {
		err = h.Ready(r.Context())
	}
	if err != nil {
		httpRefusal{http.StatusServiceUnavailable, "not ready: " + err.Error()}.write(w)
		return
	}
	fmt.Fprintln(w, "ready")
}

// admit serves a request that may come, or says why it may not.
func (h *httpServer) admit(w *patientWriter, r *http.Request) *httpRefusal {
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		return &httpRefusal{http.StatusServiceUnavailable, "too many requests at a time"}
	}
	switch {
	case h.draining.Load():
		w.Header().Set("Connection", "close")
		return &httpRefusal{http.StatusServiceUnavailable, "the server is stopping"}
	case !h.Host(hostName(r.Host)):
		return &httpRefusal{http.StatusForbidden, "this server does not go by the name in Host"}
	case !h.sameOrigin(r):
		return &httpRefusal{http.StatusForbidden, "requests from other origins are not served"}
	}
	c, no := h.authenticate(r)
	if no != nil {
		return no
	}
	if !c.rate.Allow() {
		return &httpRefusal{http.StatusTooManyRequests, fmt.Sprintf("more than %d requests a second", h.Rate)}
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		return &httpRefusal{http.StatusTooManyRequests, fmt.Sprintf("%d requests of yours are in flight", cap(c.slots))}
	}
	if r.URL.Path == HTTPPath {
		return h.serve(w, r, c)
	}
	switch may, err := h.Gate.MayGet(r.Context(), c.Caller, r.URL.Path); {
	case err != nil:
		return h.unavailable(err)
	case !may || r.Method != http.MethodGet:
		return &httpRefusal{http.StatusForbidden, "you may not get " + r.URL.Path}
	}
	h.Metrics.ServeHTTP(w, r)
	return nil
}

func (h *httpServer) unavailable(err error) *httpRefusal {
	h.Log.Warn("the API server could not be asked about a caller", "err", plan.Untrusted(err.Error()))
	return &httpRefusal{http.StatusServiceUnavailable, "the API server does not answer who you are and what you may do"}
}

// hostName is a Host without its port.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// sameOrigin refuses what a page of another site makes a browser send. Clients that are no
// browsers name no origin.
func (h *httpServer) sameOrigin(r *http.Request) bool {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	for _, origin := range r.Header.Values("Origin") {
		if u, err := url.Parse(origin); err != nil || u.Scheme != scheme || !strings.EqualFold(u.Host, r.Host) {
			return false
		}
	}
	return h.origin.Check(r) == nil
}

// authenticate gives the caller whose token a request carries. It says the same of every
// token that is not good.
func (h *httpServer) authenticate(r *http.Request) (*httpCaller, *httpRefusal) {
	nobody := &httpRefusal{http.StatusUnauthorized, "a bearer token of this server's audience is needed"}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if len(r.Header.Values("Authorization")) != 1 || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return nil, nobody
	}
	guesses, key := h.guessesFrom(r.RemoteAddr), sha256.Sum256([]byte(token))
	if _, known := h.known.Get(key); !known && guesses.Tokens() < 1 {
		return nil, &httpRefusal{http.StatusTooManyRequests, "too many tokens that are nobody's"}
	}
	who, err := h.Gate.Caller(r.Context(), token)
	switch {
	case err != nil:
		return nil, h.unavailable(err)
	case who == nil:
		h.known.Remove(key)
		guesses.Allow()
		return nil, nobody
	case plan.Untrusted(who.Name) != who.Name:
		return nil, &httpRefusal{http.StatusForbidden, "this username cannot stand in the record"}
	}
	h.known.Add(key, struct{}{})
	return h.callerOf(who), nil
}

// serve hands a message to mcp-go, checked as the guard of stdio checks it.
func (h *httpServer) serve(w *patientWriter, r *http.Request, c *httpCaller) *httpRefusal {
	session := r.Header.Get(mcpserver.HeaderKeySessionID)
	if mcp.IsModernProtocol(r.Header.Get(mcp.HeaderProtocolVersion)) {
		session = "" // that era has none
	}
	if session != "" && !c.sessions.has(session) {
		return &httpRefusal{http.StatusNotFound, "there is no such session of yours: begin one with initialize"}
	}
	switch r.Method {
	case http.MethodDelete:
		h.transport.ServeHTTP(w, r.WithContext(c.in(r.Context(), nil)))
		return nil
	case http.MethodPost:
	default:
		w.Header().Set("Allow", "POST, DELETE")
		return &httpRefusal{http.StatusMethodNotAllowed, "messages are posted"}
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &httpRefusal{http.StatusUnsupportedMediaType, "a message is application/json"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(h.MaxLine)))
	if err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return &httpRefusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("a message has at most %d bytes", h.MaxLine)}
		}
		return &httpRefusal{http.StatusRequestTimeout, "the body did not come"}
	}
	m, rpcErr := parseRPC(bytes.TrimSpace(body))
	if rpcErr == nil && len(m.id) > httpIDDigits && m.id[0] != '"' {
		rpcErr, m.id = newRPCError(mcp.INVALID_REQUEST, fmt.Errorf("id has more than %d digits", httpIDDigits)), nil
	}
	if rpcErr == nil && m.id != nil && session != "" {
		if done := c.begin(session + m.key); done == nil {
			rpcErr, m.id = newRPCError(mcp.INVALID_REQUEST, errors.New("a request with this id is still in flight")), nil
		} else {
			defer done()
		}
	}
	if rpcErr != nil {
		h.Log.Debug("refused a message", "principal", c.Name, "code", rpcErr.Code, "reason", rpcErr.Message)
		writeRPCError(w, m.id, rpcErr)
		return nil
	}
	if m.method == mcp.MethodNotificationCancelled && session == "" {
		w.WriteHeader(http.StatusAccepted) // mcp-go would look among the calls of everybody without a session
		return nil
	}
	ctx := r.Context()
	if m.method == mcp.MethodSubscriptionsListen { // nothing comes on it; it must not hold up the end
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer context.AfterFunc(h.stopped, cancel)()
		defer cancel()
		ctx = context.WithValue(ctx, flushedKey{}, w.flushed)
	}
	visible, err := h.visible(ctx, c.Caller, m)
	if err != nil {
		return h.unavailable(err)
	}
	if m.method != "" {
		body = m.forMCP()
	}
	in := r.WithContext(c.in(ctx, visible))
	in.Body, in.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	h.transport.ServeHTTP(w, in)
	return nil
}

func writeRPCError(w http.ResponseWriter, id json.RawMessage, e *mcp.JSONRPCErrorDetails) {
	if id == nil {
		id = json.RawMessage("null")
	}
	line, err := encodeLine(rpcOutgoing{ID: id, Error: e})
	if err != nil {
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_, _ = w.Write(line)
}

// patientWriter gives the client some time for each piece that is written, however long the
// call takes: a stream of progress is slow, and a client that reads nothing is to be left.
type patientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	status  int
	flushed chan struct{} // holds a token once something was flushed
}

type flushedKey struct{}

// acknowledge is for mcp-go's hook at the end of a subscription. It waits until the one that
// ends has been acknowledged: mcp-go loses a notification that it has not written when the
// request is answered, and one to nothing that this server tells is answered at once.
func acknowledge(ctx context.Context, _ any, _ *mcp.SubscriptionsListenRequest, _ *mcp.SubscriptionsListenResult) {
	if flushed, ok := ctx.Value(flushedKey{}).(chan struct{}); ok {
		select {
		case <-flushed:
		case <-ctx.Done():
		}
	}
}

// Unwrap is for http.ResponseController.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes the status.
func (w *patientWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (w *patientWriter) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(httpWriteTimeout))
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, by which mcp-go knows that it may stream.
func (w *patientWriter) Flush() {
	_ = w.control.SetWriteDeadline(time.Now().Add(httpWriteTimeout))
	_ = w.control.Flush()
	select {
	case w.flushed <- struct{}{}:
	default:
	}
}
