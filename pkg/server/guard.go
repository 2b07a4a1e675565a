package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"
)

const (
	guardMaxLine     = 4 << 20          // bytes
	guardGrace       = 35 * time.Second // what a verification wait of a call may still take
	guardMaxRunning  = 64               // tool calls that run at a time; further ones queue
	guardMaxInFlight = 1024             // requests that are queued, running, or answered and not read
	guardMaxHeld     = 16               // longest lines that these may hold together
	guardMaxError    = 1000             // characters of an error's message
	guardMaxTell     = time.Second      // wait for a log that is not read
	guardExitCode    = 130              // exit code after the second signal
)

// ErrCancelledByClient is the context.Cause of a call that the client
// cancelled. A handler's context that ends for any other cause means that the
// process is about to exit.
var ErrCancelledByClient = errors.New("cancelled by the client")

// GuardOptions tunes ServeStdio. The zero value is ready to use.
type GuardOptions struct {
	// MaxLine is the longest accepted line in bytes, without its line feed;
	// 0 means 4 MiB.
	MaxLine int

	// Grace bounds the wait for calls in flight once serving has stopped;
	// 0 means 35 s.
	Grace time.Duration

	// OnStop is called once when serving stops, before the wait for the calls
	// in flight. It must not block. Optional.
	OnStop func()

	// Finish is called once before the return, when the calls in flight have been
	// answered or Grace is over, and waits for what goes on beyond its answer. Its
	// context ends with Grace. Optional.
	Finish func(context.Context)

	// Log receives what a person at the terminal should know. It must not
	// write to the output that is served. Nil discards.
	Log *slog.Logger

	// Signals delivers the signals that stop serving. Nil means SIGINT and
	// SIGTERM of this process, and that SIGPIPE no longer ends it.
	Signals <-chan os.Signal

	// Exit ends the process when a second signal comes. Nil means os.Exit.
	Exit func(code int)
}

func (o GuardOptions) withDefaults() GuardOptions {
	if o.MaxLine == 0 {
		o.MaxLine = guardMaxLine
	}
	if o.Grace == 0 {
		o.Grace = guardGrace
	}
	if o.OnStop == nil {
		o.OnStop = func() {}
	}
	if o.Finish == nil {
		o.Finish = func(context.Context) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Exit == nil {
		o.Exit = os.Exit
	}
	return o
}

// ServeStdio serves s on in and out, one JSON-RPC message per line, until EOF,
// a first SIGTERM or SIGINT, or the end of ctx, and then returns nil. If in
// cannot be read or out cannot be written any more it stops likewise and
// returns that error.
//
// Once stopped it accepts no further line, calls OnStop, lets the requests in
// flight finish, writes their answers and calls Finish. It returns when that is done or
// after GuardOptions.Grace; the contexts of handlers that still run end then
// and not before: neither EOF nor the end of ctx cancels a call. A second
// signal ends the process at once with exit code 130. A Read of in that is
// under way at the return stays blocked until in is closed.
//
// It stands in for mcp-go's StdioServer, calls MCPServer.HandleMessage itself
// and promises, beyond what mcp-go does:
//
//   - A line is accepted whole or refused: no duplicate or differently cased
//     keys in the envelope and in params, no batches, no text that decoding
//     would change, bounded length and nesting. The bytes of arguments reach
//     CallToolParams.RawArguments unchanged.
//   - Every request is answered at most once, under the exact bytes of its id.
//     An id of a request in flight cannot be used for a second one.
//   - A call that is cancelled in the queue never runs. One that runs sees its
//     context end with the cause ErrCancelledByClient. Neither is answered.
//   - What a handler sends to the client before it returns is written before
//     its answer.
func ServeStdio(ctx context.Context, s *mcpserver.MCPServer, in io.Reader, out io.Writer, opts GuardOptions) error {
	opts = opts.withDefaults()
	if opts.Signals == nil {
		signals := make(chan os.Signal, 2)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(signals)
		opts.Signals = signals
		// Caught and not ignored, since programs started by this one (exec
		// credential plugins) would inherit an ignored SIGPIPE.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}

	g := &stdioGuard{
		GuardOptions: opts,
		mcp:          s,
		slots:        make(chan struct{}, guardMaxRunning),
		lines:        make(chan rpcLine),
		calls:        map[string]*guardCall{},
		stopping:     make(chan struct{}),
		idle:         make(chan struct{}),
		done:         make(chan struct{}),
		written:      make(chan struct{}),
	}
	g.session = &stdioSession{
		notifications: make(chan mcp.JSONRPCNotification, 100),
		send:          func(v any) { g.send(v, nil) },
		ended:         g.stopping,
		questions:     map[string]chan<- *rpcMessage{},
	}
	if err := s.RegisterSession(ctx, g.session); err != nil {
		return fmt.Errorf("serve stdio: %w", err)
	}
	defer s.UnregisterSession(ctx, g.session.SessionID())
	calls, cancel := context.WithCancel(s.WithContext(context.WithoutCancel(ctx), g.session))
	defer cancel()
	g.ctx = calls

	go g.writeLines(out)
	go g.readLines(in)
	go g.watchSignals()

	select {
	case <-g.stopping:
	case <-ctx.Done():
		g.stop(nil)
	}
	opts.OnStop()
	grace, cancelGrace := context.WithTimeout(context.Background(), opts.Grace)
	defer cancelGrace()
	select {
	case <-g.idle:
	case <-grace.Done():
		g.tell(slog.LevelError, "calls in flight did not finish in time", "calls", g.inFlight(), "grace", opts.Grace)
	}
	opts.Finish(grace) // before the signals have their old meaning again: clients send one soon after EOF
	close(g.done)
	select {
	case <-g.written:
	case <-grace.Done():
	}
	return g.err
}

// stdioGuard is one run of ServeStdio. Four kinds of goroutine work on it: one
// reads, one writes, one waits for signals, and one per request runs it.
type stdioGuard struct {
	GuardOptions
	mcp     *mcpserver.MCPServer
	session *stdioSession
	ctx     context.Context // of every handler
	slots   chan struct{}   // one token per running tool call
	lines   chan rpcLine    // to writeLines; unbuffered, so what was sent is being written

	stopping chan struct{} // closed by stop
	idle     chan struct{} // closed when stopped and nothing is pending
	done     chan struct{} // closed when nothing more shall be written
	written  chan struct{} // closed when writeLines has returned

	mu      sync.Mutex
	calls   map[string]*guardCall // requests in flight by rpcMessage.key
	held    int                   // bytes of the lines of calls
	pending int                   // accepted lines and requests whose answer is not yet handed over
	stopped bool
	err     error // why it stopped, nil if in good order
}

// guardCall is a request in flight.
type guardCall struct {
	*rpcMessage
	ctx       context.Context
	cancel    context.CancelCauseFunc
	cancelled bool // by the client; guarded by stdioGuard.mu
}

// rpcLine is a line to the client.
type rpcLine struct {
	bytes  json.RawMessage
	answer *guardCall // the request that it answers; nil for all else
}

// rpcOutgoing is a message to the client.
type rpcOutgoing struct {
	JSONRPC rpcVersion               `json:"jsonrpc"`
	ID      json.RawMessage          `json:"id,omitempty"`
	Method  mcp.MCPMethod            `json:"method,omitempty"`
	Params  any                      `json:"params,omitempty"`
	Result  any                      `json:"result,omitempty"`
	Error   *mcp.JSONRPCErrorDetails `json:"error,omitempty"`
}

// rpcVersion writes itself as the one JSON-RPC version.
type rpcVersion struct{}

// MarshalJSON implements json.Marshaler.
func (rpcVersion) MarshalJSON() ([]byte, error) { return []byte(`"` + mcp.JSONRPC_VERSION + `"`), nil }

// stop ends serving, once. Subscriptions end with the input that could have
// cancelled them; all else may finish.
func (g *stdioGuard) stop(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return
	}
	g.stopped, g.err = true, err
	for _, c := range g.calls {
		if c.method == mcp.MethodSubscriptionsListen {
			c.cancel(errGuardInputEnded)
		}
	}
	close(g.stopping)
	if g.pending == 0 {
		close(g.idle)
	}
}

// begin counts one more pending line, unless serving has stopped.
func (g *stdioGuard) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		g.pending++
	}
	return !g.stopped
}

// end is the counterpart of begin and admit.
func (g *stdioGuard) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pending--; g.stopped && g.pending == 0 {
		close(g.idle)
	}
}

func (g *stdioGuard) inFlight() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.calls)
}

// watchSignals stops serving at the first signal and the process at the second.
// A stop for another reason does not count as a signal: clients close the input
// first and send SIGTERM after it.
func (g *stdioGuard) watchSignals() {
	for first := true; ; first = false {
		select {
		case sig := <-g.Signals:
			if !first {
				g.tell(slog.LevelError, "second signal: exiting at once", "signal", sig, "calls", g.inFlight())
				g.Exit(guardExitCode)
				return
			}
			calls := g.inFlight()
			g.stop(nil)
			g.tell(slog.LevelInfo, "stopping", "signal", sig, "calls", calls)
		case <-g.done:
			return
		}
	}
}

// tell logs what comes with the end of serving. It waits only a moment for it: many
// clients never read the log, and a full pipe must not keep the process alive.
func (g *stdioGuard) tell(level slog.Level, message string, args ...any) {
	told := make(chan struct{})
	go func() {
		defer close(told)
		g.Log.Log(context.Background(), level, message, args...)
	}()
	select {
	case <-told:
	case <-time.After(guardMaxTell):
	}
}

// readLines accepts lines until in ends or serving stops.
func (g *stdioGuard) readLines(in io.Reader) {
	r := bufio.NewReaderSize(in, 64<<10)
	for first := true; ; first = false {
		line, tooLong, err := readBoundedLine(r, g.MaxLine)
		if !g.begin() {
			return // what came after the stop counts as not read
		}
		if first {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if line = bytes.Trim(line, " \t\r"); tooLong {
			g.refuse(&rpcMessage{}, newRPCError(mcp.INVALID_REQUEST, fmt.Errorf("line longer than %d bytes", g.MaxLine)))
		} else if len(line) > 0 {
			g.accept(line)
		}
		g.end()
		switch {
		case errors.Is(err, io.EOF):
			g.stop(nil)
			return
		case err != nil:
			g.stop(fmt.Errorf("serve stdio: read: %w", err))
			return
		}
	}
}

// readBoundedLine reads up to the next line feed or the end of r. Of a line
// longer than limit it keeps nothing.
func readBoundedLine(r *bufio.Reader, limit int) (line []byte, tooLong bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		part = bytes.TrimSuffix(part, []byte("\n"))
		if tooLong = tooLong || len(line)+len(part) > limit; tooLong {
			line = nil
		} else {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, tooLong, err
		}
	}
}

func (g *stdioGuard) accept(line []byte) {
	m, rpcErr := parseRPC(line)
	switch {
	case rpcErr != nil:
		g.refuse(m, rpcErr)
	case m.method == "":
		g.session.answer(m)
	case m.id != nil:
		g.request(m)
	case m.method == mcp.MethodNotificationCancelled:
		g.cancelCall(rpcIDKey(m.params["requestId"]))
	default:
		g.handle(g.ctx, m) // mcp-go runs no request without an id
	}
}

// refuse answers a message that is not run, unless it is a notification. An id
// that is in flight is not named: that answer would be taken for the one of the
// request that runs.
func (g *stdioGuard) refuse(m *rpcMessage, rpcErr *mcp.JSONRPCErrorDetails) {
	g.Log.Warn("refused a message", "code", rpcErr.Code, "reason", rpcErr.Message)
	if m.id == nil && rpcErr.Code == mcp.INVALID_PARAMS {
		return
	}
	id := m.id
	g.mu.Lock()
	if id == nil || g.calls[m.key] != nil {
		id = json.RawMessage("null")
	}
	g.mu.Unlock()
	g.send(rpcOutgoing{ID: id, Error: rpcErr}, nil)
}

func (g *stdioGuard) request(m *rpcMessage) {
	c := &guardCall{rpcMessage: m}
	if rpcErr := g.admit(c); rpcErr != nil {
		g.refuse(m, rpcErr)
		return
	}
	if m.method == mcp.MethodInitialize {
		g.run(c) // later requests depend on it
		return
	}
	go g.run(c)
}

// admit puts a request in flight. Its end is settle and then end.
func (g *stdioGuard) admit(c *guardCall) *mcp.JSONRPCErrorDetails {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.calls[c.key] != nil:
		return newRPCError(mcp.INVALID_REQUEST, errors.New("a request with this id is still in flight"))
	case g.stopped:
		return newRPCError(mcp.INTERNAL_ERROR, errors.New("the server is stopping"))
	case len(g.calls) >= guardMaxInFlight || g.held+c.size > guardMaxHeld*g.MaxLine:
		return newRPCError(mcp.INTERNAL_ERROR, fmt.Errorf("%d requests (%d bytes) are in flight: wait for answers, then send this one again", len(g.calls), g.held))
	}
	g.held += c.size
	c.ctx, c.cancel = context.WithCancelCause(g.ctx)
	g.calls[c.key] = c
	g.pending++
	return nil
}

// settle takes a request out of flight and tells whether to answer it. It comes right
// before the answer is written, since the client may use the id again then, and not
// earlier: of two answers under one id the client could take either for the other, and
// requests whose answers nobody reads would count no more.
func (g *stdioGuard) settle(c *guardCall) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.calls, c.key)
	g.held -= c.size
	return !c.cancelled
}

func (g *stdioGuard) cancelCall(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.calls[key]; c != nil {
		c.cancelled = true
		c.cancel(ErrCancelledByClient)
	}
}

// run serves a request that was admitted. Tool calls wait for a slot first,
// and one that is cancelled while it waits is never begun.
func (g *stdioGuard) run(c *guardCall) {
	defer g.end()
	defer c.cancel(nil)
	if c.method == mcp.MethodToolsCall {
		select {
		case g.slots <- struct{}{}:
			defer func() { <-g.slots }()
		case <-c.ctx.Done():
		}
	}
	var answer any
	if c.ctx.Err() != nil {
		answer = rpcOutgoing{ID: c.id, Error: newRPCError(mcp.INTERNAL_ERROR, context.Cause(c.ctx))}
	} else {
		answer = g.handle(c.ctx, c.rpcMessage)
	}
	g.send(answer, c)
}

// handle has mcp-go serve a request or notification. The answer comes encoded,
// since encoding runs code of handlers too, and what they do not recover from
// shall end neither the process nor the session; the client learns no more of
// it than that it happened.
func (g *stdioGuard) handle(ctx context.Context, m *rpcMessage) (answer any) {
	failed := rpcOutgoing{ID: m.id, Error: newRPCError(mcp.INTERNAL_ERROR, errors.New("internal error"))}
	defer func() {
		if p := recover(); p != nil {
			g.Log.Error("a handler panicked", "method", m.method, "panic", p, "stack", string(debug.Stack()))
			answer = failed
		}
	}()
	result := failed
	switch response := g.mcp.HandleMessage(ctx, m.forMCP()).(type) {
	case mcp.JSONRPCResponse:
		result = rpcOutgoing{ID: m.id, Result: response.Result}
	case mcp.JSONRPCError:
		result = rpcOutgoing{ID: m.id, Error: g.explain(m, response.Error)}
	}
	line, err := encodeLine(result)
	if err != nil {
		g.Log.Error("a result cannot be encoded", "method", m.method, "error", err)
		return failed
	}
	return line
}

// explain words an error of mcp-go for a person: which tool is unknown and why, and where
// the number stands that is too large to be decoded. What is quoted in it has an end.
func (g *stdioGuard) explain(m *rpcMessage, e mcp.JSONRPCErrorDetails) *mcp.JSONRPCErrorDetails {
	if m.method == mcp.MethodToolsCall && e.Code == mcp.INVALID_PARAMS {
		name := nameIn(m)
		if g.mcp.GetTool(name) == nil {
			e.Message = unknownTool(g.mcp, name)
		}
	}
	if at := outOfRange("params", m.envelope["params"], 2); at != "" {
		e.Code, e.Message = mcp.INVALID_PARAMS, at+" has a number that is out of range"
	}
	e.Message = clip(e.Message, guardMaxError)
	if data, err := json.Marshal(e.Data); err != nil || len(data) > 4*guardMaxError {
		e.Data = nil
	}
	return &e
}

// send hands one message, the answer to c where that is not nil, to writeLines. It blocks
// while the client does not read, and drops the message once serving is over.
func (g *stdioGuard) send(v any, c *guardCall) {
	line, err := encodeLine(v)
	if err != nil {
		g.Log.Error("a message cannot be encoded", "error", err)
		return
	}
	select {
	case g.lines <- rpcLine{line, c}:
	case <-g.done:
	}
}

// writeLines writes one line per message. A handler's notifications are in
// their queue before its answer is sent, so emptying the queue before every
// answer keeps them in order. After a failed write nothing more is written,
// but messages are still taken, so that no handler hangs.
func (g *stdioGuard) writeLines(out io.Writer) {
	defer close(g.written)
	failed := false
	write := func(line []byte) {
		if failed {
			return
		}
		if _, err := out.Write(line); err != nil {
			failed = true
			calls := g.inFlight()
			g.stop(fmt.Errorf("serve stdio: write: %w", err))
			g.tell(slog.LevelError, "the client is gone", "error", err, "calls", calls)
		}
	}
	notify := func(n mcp.JSONRPCNotification) {
		line, err := encodeLine(n)
		if err != nil {
			g.Log.Error("a notification cannot be encoded", "method", n.Method, "error", err)
			return
		}
		write(line)
	}
	for {
		select {
		case n := <-g.session.notifications:
			notify(n)
		case line := <-g.lines:
			for queued := true; queued; {
				select {
				case n := <-g.session.notifications:
					notify(n)
				default:
					queued = false
				}
			}
			if line.answer == nil || g.settle(line.answer) {
				write(line.bytes)
			}
		case <-g.done:
			return
		}
	}
}

// encodeLine renders v as one line, line feed included. Unlike json.Marshal it
// keeps the bytes of an id that has <, > or & in it.
func encodeLine(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
