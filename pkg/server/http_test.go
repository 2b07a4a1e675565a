package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// gate knows the tokens alice and bob; who may is decided by the test.
type gate struct {
	may func(who, verb, name, namespace string) bool
	err error
}

func (g gate) Caller(_ context.Context, token string) (*plan.Caller, error) {
	if g.err != nil {
		return nil, g.err
	}
	switch token {
	case "alice", "bob":
		return &plan.Caller{Name: token}, nil
	case "odd":
		return &plan.Caller{Name: "bob\u202e"}, nil
	}
	return nil, nil
}

func (g gate) May(_ context.Context, who *plan.Caller, verb, name, namespace string) (bool, error) {
	return g.may == nil || g.may(who.Name, verb, name, namespace), nil
}

func (g gate) MayGet(_ context.Context, who *plan.Caller, path string) (bool, error) {
	return who.Name == "alice" && path == "/metrics", nil
}

// pipes is a listener in memory: its time is the test's.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// httpRun is a ServeHTTP under way.
type httpRun struct {
	*pipes
	t        *testing.T
	mcp      *mcpserver.MCPServer
	signals  chan os.Signal
	finished bool
	exit     int
	ended    chan error
}

// startHTTP serves the tools work and wait: wait answers when hold is closed.
func startHTTP(t *testing.T, g gate, hold chan struct{}) *httpRun {
	r := &httpRun{
		pipes: &pipes{conns: make(chan net.Conn), done: make(chan struct{})}, t: t,
		signals: make(chan os.Signal, 2), ended: make(chan error, 1),
		mcp: mcpserver.NewMCPServer("test", "1", append(overHTTP(), mcpserver.WithToolCapabilities(false))...),
	}
	r.mcp.AddTool(mcp.NewTool("work"), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText("done"), nil
	})
	r.mcp.AddTool(mcp.NewTool("wait"), func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		select {
		case <-hold:
			return mcp.NewToolResultText("held"), nil
		case <-ctx.Done():
			return mcp.NewToolResultText(fmt.Sprint(context.Cause(ctx))), nil
		}
	})
	go func() {
		r.ended <- ServeHTTP(t.Context(), r.mcp, r.pipes, HTTPOptions{
			GuardOptions: GuardOptions{
				Signals: r.signals, Log: slog.New(slog.DiscardHandler), Exit: func(code int) { r.exit = code },
				Finish: func(context.Context) { r.finished = true },
			},
			Gate: g, Host: func(name string) bool { return name == "kube" }, Rate: 10,
			Ready:   func(context.Context) error { return nil },
			Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metrics") }),
		})
	}()
	synctest.Wait()
	t.Cleanup(func() { r.Close() })
	return r
}

// stop ends serving and waits for it.
func (r *httpRun) stop() {
	r.signals <- syscall.SIGTERM
	if err := <-r.ended; err != nil {
		r.t.Error(err)
	}
}

// send makes a request on a connection of its own and gives status, session and body. A
// header is "Name: value".
func (r *httpRun) send(token, body string, headers ...string) (status int, session, answer string) {
	conn, err := r.dial(r.t.Context())
	if err != nil {
		return 0, "", err.Error()
	}
	defer conn.Close()
	go func() {
		fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: kube\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s",
			token, len(body), strings.Join(append(headers, ""), "\r\n"), body)
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", err.Error()
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Error(err)
	}
	return resp.StatusCode, resp.Header.Get("Mcp-Session-Id"), string(raw)
}

func (r *httpRun) session(token string) string {
	_, session, answer := r.send(token, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	if session == "" {
		r.t.Errorf("no session: %s", answer)
	}
	return "Mcp-Session-Id: " + session
}

func callBody(id, tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":{}}}`, id, tool)
}

// TestHTTPRate: each caller has a rate of its own, and a bound on what is in flight.
func TestHTTPRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		r := startHTTP(t, gate{}, hold)
		session := r.session("alice")
		count := func(token string, n int, headers ...string) map[int]int {
			got := map[int]int{}
			for i := range n {
				status, _, _ := r.send(token, callBody(fmt.Sprint(i), "work"), headers...)
				got[status]++
			}
			return got
		}
		if got := count("alice", 45, session); got[200] != 39 || got[429] != 6 { // initialize was one of 40
			t.Errorf("alice at once: %v", got)
		}
		if got := count("bob", 1, r.session("bob")); got[200] != 1 {
			t.Errorf("bob pays for alice: %v", got)
		}
		time.Sleep(time.Second)
		if got := count("alice", 12, session); got[200] != 10 || got[429] != 2 {
			t.Errorf("alice a second later: %v", got)
		}
		time.Sleep(time.Minute)
		var all sync.WaitGroup
		statuses := make(chan int, 40)
		for i := range 34 {
			all.Go(func() {
				status, _, _ := r.send("alice", callBody(fmt.Sprint(i), "wait"), session)
				statuses <- status
			})
		}
		synctest.Wait()
		close(hold)
		all.Wait()
		close(statuses)
		got := map[int]int{}
		for s := range statuses {
			got[s]++
		}
		if got[200] != httpMaxInFlight || got[429] != 2 {
			t.Errorf("in flight: %v", got)
		}
		r.stop()
	})
}

// TestHTTPListen: a subscription is acknowledged before it ends, also one to nothing that this
// server tells, which ends at once.
func TestHTTPListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startHTTP(t, gate{}, nil)
		for range 200 {
			_, _, answer := r.send("alice", `{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":`+modernMetaJSON+`}}`,
				"Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: subscriptions/listen", "Accept: application/json, text/event-stream")
			acknowledged, result := strings.Index(answer, `"notifications/subscriptions/acknowledged"`), strings.Index(answer, `"result"`)
			if acknowledged < 0 || result < acknowledged {
				t.Fatalf("it is not acknowledged first: %s", answer)
			}
			time.Sleep(time.Second)
		}
		r.stop()
	})
}

// TestHTTPGuesses: who guesses tokens is slowed down, and keeps nobody out who was in.
func TestHTTPGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startHTTP(t, gate{}, nil)
		session := r.session("alice")
		got := map[int]int{}
		for i := range guessesBurst + 5 {
			status, _, _ := r.send(fmt.Sprint("guess", i), callBody("1", "work"))
			got[status]++
		}
		if got[401] != guessesBurst || got[429] != 5 {
			t.Errorf("guesses: %v", got)
		}
		if status, _, answer := r.send("alice", callBody("1", "work"), session); status != 200 {
			t.Errorf("alice: %d %s", status, answer)
		}
		if status, _, answer := r.send("bob", callBody("1", "work")); status != 429 {
			t.Errorf("a new token meanwhile: %d %s", status, answer)
		}
		time.Sleep(time.Second)
		if status, _, answer := r.send("odd", callBody("1", "work")); status != 403 {
			t.Errorf("a name that cannot stand in the record: %d %s", status, answer)
		}
		r.stop()
	})
}

// TestHTTPIDs: an id is in flight once per session, and only its session cancels it.
func TestHTTPIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		r := startHTTP(t, gate{}, hold)
		one, two := r.session("alice"), r.session("alice")
		bob := r.session("bob")
		answers := make(chan string, 1)
		go func() {
			_, _, answer := r.send("alice", callBody("7", "wait"), one)
			answers <- answer
		}()
		synctest.Wait()
		if status, _, answer := r.send("alice", callBody("7", "work"), one); status != 400 || !strings.Contains(answer, "still in flight") || !strings.Contains(answer, `"id":null`) {
			t.Errorf("the id again: %d %s", status, answer)
		}
		for token, session := range map[string]string{"alice": two, "bob": bob} {
			if status, _, answer := r.send(token, callBody("7", "work"), session); status != 200 {
				t.Errorf("the id in another session: %d %s", status, answer)
			}
			r.send(token, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`, session)
		}
		synctest.Wait()
		select {
		case answer := <-answers:
			t.Errorf("another session cancelled it: %s", answer)
		default:
		}
		modern := func(token, body, name string) {
			r.send(token, strings.Replace(body, `"params":{`, `"params":{"_meta":`+modernMetaJSON+`,`, 1), "Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: "+name, "Mcp-Name: wait")
		}
		stateless := make(chan bool)
		go func() { modern("bob", callBody("7", "wait"), "tools/call"); close(stateless) }()
		synctest.Wait()
		modern("alice", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`, "notifications/cancelled")
		synctest.Wait()
		select {
		case <-stateless:
			t.Error("another caller cancelled a call without a session")
		default:
		}
		r.send("alice", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`, one)
		if answer := <-answers; strings.Contains(answer, "held") {
			t.Errorf("it was not cancelled: %s", answer)
		}
		close(hold)
		<-stateless
		r.stop()
	})
}

// TestHTTPTools: the filter guards the list and the calls, and asks in the namespaces that
// are named.
func TestHTTPTools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startHTTP(t, gate{may: func(who, verb, name, _ string) bool {
			return who == "alice" && verb == "write" && name == "work"
		}}, nil)
		for token, want := range map[string]bool{"alice": true, "bob": false} {
			session := r.session(token)
			_, _, list := r.send(token, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, session)
			_, _, call := r.send(token, callBody("2", "work"), session)
			_, _, other := r.send(token, callBody("2", "wait"), session)
			_, _, none := r.send(token, callBody("2", "none"), session)
			if strings.Contains(list, `"work"`) != want || strings.Contains(list, `"wait"`) || strings.Contains(call, "done") != want {
				t.Errorf("%s: list %s, call %s", token, list, call)
			}
			if other != strings.Replace(none, "'none'", "'wait'", 1) {
				t.Errorf("%s tells a hidden tool from none: %s %s", token, other, none)
			}
		}
		r.stop()
	})
}

// TestHTTPSlow: a header, a body or a reader that does not come along is left, in time.
func TestHTTPSlow(t *testing.T) {
	for name, tc := range map[string]struct {
		send string
		want time.Duration
	}{
		"nothing":    {"", httpHeaderTimeout},
		"a header":   {"POST /mcp HTTP/1.1\r\nHost: kube\r\nX: ", httpHeaderTimeout},
		"a body":     {"POST /mcp HTTP/1.1\r\nHost: kube\r\nAuthorization: Bearer alice\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", httpBodyTimeout},
		"no token":   {"POST /mcp HTTP/1.1\r\nHost: kube\r\nContent-Length: 100\r\n\r\n{", httpBodyTimeout},
		"not there":  {"POST /none HTTP/1.1\r\nHost: kube\r\nContent-Length: 100\r\n\r\n{", httpBodyTimeout},
		"after that": {"GET /healthz HTTP/1.1\r\nHost: kube\r\n\r\n", httpIdleTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startHTTP(t, gate{}, nil)
				conn, err := r.dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				go func() { _, _ = io.WriteString(conn, tc.send) }()
				_, _ = io.Copy(io.Discard, conn)
				if took := time.Since(began); took > tc.want+time.Second {
					t.Errorf("left after %s, want %s", took, tc.want)
				}
				r.stop()
			})
		})
	}
	t.Run("a reader", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := startHTTP(t, gate{}, nil)
			conn, err := r.dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			began := time.Now()
			_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: kube\r\n\r\n") // its answer is never read
			synctest.Wait()
			r.stop() // waits for the answer to be taken, or given up
			if took := time.Since(began); took > httpWriteTimeout+time.Second {
				t.Errorf("left after %s, want %s", took, httpWriteTimeout)
			}
		})
	})
}

// TestHTTPLongCall: no timeout of the connection ends a call that takes its time.
func TestHTTPLongCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		r := startHTTP(t, gate{}, hold)
		session := r.session("alice")
		time.AfterFunc(10*time.Minute, func() { close(hold) })
		if status, _, answer := r.send("alice", callBody("1", "wait"), session); status != 200 || !strings.Contains(answer, "held") {
			t.Errorf("got %d %s", status, answer)
		}
		r.stop()
	})
}

// TestHTTPStop: the first signal lets what is in flight finish and nothing begin, the second
// one ends the process.
func TestHTTPStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		r := startHTTP(t, gate{}, hold)
		session := r.session("alice")
		answers := make(chan string, 2)
		go func() {
			_, _, answer := r.send("alice", callBody("1", "wait"), session)
			answers <- answer
		}()
		synctest.Wait()
		r.signals <- syscall.SIGTERM
		synctest.Wait()
		if status, _, answer := r.send("alice", callBody("2", "work"), session); status == 200 {
			t.Errorf("a call after the signal: %s", answer)
		}
		if r.finished {
			t.Error("finished with a call in flight")
		}
		close(hold)
		if answer := <-answers; !strings.Contains(answer, "held") {
			t.Errorf("what was in flight: %s", answer)
		}
		if err := <-r.ended; err != nil || !r.finished {
			t.Errorf("ended with %v, finished %t", err, r.finished)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		r := startHTTP(t, gate{}, hold)
		session := r.session("alice")
		go r.send("alice", callBody("1", "wait"), session)
		synctest.Wait()
		r.signals <- syscall.SIGTERM
		r.signals <- syscall.SIGTERM
		synctest.Wait()
		if r.exit != guardExitCode {
			t.Errorf("exit %d", r.exit)
		}
		<-r.ended // after Grace, the call's context ends
		close(hold)
	})
}

// TestHTTPUnavailable: while nobody can say who calls, nobody is served, and told so.
func TestHTTPUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startHTTP(t, gate{err: errors.New("no route to 10.0.0.1")}, nil)
		if status, _, answer := r.send("alice", callBody("1", "work")); status != 503 || strings.Contains(answer, "10.0.0.1") {
			t.Errorf("got %d %s", status, answer)
		}
		r.stop()
	})
}
