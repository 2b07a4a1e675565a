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
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"
)

// modernMetaJSON is the _meta of a stateless client, legacyMetaJSON that of one which
// has sent initialize.
const (
	modernMetaJSON = `{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	legacyMetaJSON = `{}`
	initializeLine = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"test","version":"1"}}}`
)

// guardTools are the tools of the server under test.
//
//   - echo returns its raw arguments as text
//   - slow waits for its gate or the end of its context
//   - stubborn waits for its gate only
//   - progress sends three notifications and returns
//   - ask puts a question to the client
//   - plan_deploy stands for a plan tool without its write tool
//   - panic and nan do what handlers should not
type guardTools struct {
	mcp *mcpserver.MCPServer

	mu    sync.Mutex
	ran   []string // raw arguments of slow and stubborn, in the order of their start
	ended []error  // causes for which slow ended early
	gate  chan struct{}
}

func newGuardTools() *guardTools {
	tools := &guardTools{
		mcp:  mcpserver.NewMCPServer("test", "1", mcpserver.WithToolCapabilities(true)),
		gate: make(chan struct{}),
	}
	for name, handler := range map[string]mcpserver.ToolHandlerFunc{
		"echo": func(_ context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText(string(req.Params.RawArguments)), nil
		},
		"slow": func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			tools.start(req)
			select {
			case <-tools.gate:
				return mcp.NewToolResultText("slow done"), nil
			case <-ctx.Done():
				tools.mu.Lock()
				defer tools.mu.Unlock()
				tools.ended = append(tools.ended, context.Cause(ctx))
				return nil, ctx.Err()
			}
		},
		"stubborn": func(_ context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			tools.start(req)
			<-tools.gate
			return mcp.NewToolResultText("stubborn done"), nil
		},
		"progress": func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for i := range 3 {
				err := tools.mcp.SendNotificationToClient(ctx, "notifications/progress", map[string]any{
					"progressToken": req.Params.Meta.ProgressToken, "progress": i,
				})
				if err != nil {
					return nil, err
				}
			}
			return mcp.NewToolResultText("progress done"), nil
		},
		"ask": func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			result, err := tools.mcp.RequestElicitation(ctx, mcp.ElicitationRequest{Params: mcp.ElicitationParams{
				Message:         "sure?",
				RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}},
			}})
			if err != nil {
				return mcp.NewToolResultError(err.Error()), nil
			}
			return mcp.NewToolResultText(string(result.Action)), nil
		},
		"plan_deploy": func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText("planned"), nil
		},
		"panic": func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			panic("secret")
		},
		"nan": func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{StructuredContent: math.NaN()}, nil
		},
	} {
		tools.mcp.AddTool(mcp.NewTool(name), handler)
	}
	return tools
}

func (tools *guardTools) start(req mcp.CallToolRequest) {
	tools.mu.Lock()
	defer tools.mu.Unlock()
	tools.ran = append(tools.ran, string(req.Params.RawArguments))
}

// guardRun is a client and the server it talks to. Inside a synctest bubble
// sync waits until the server has nothing left to do, so that what has not
// been written by then will not be.
type guardRun struct {
	*guardTools
	t       *testing.T
	in      *io.PipeWriter
	out     guardSink
	log     guardSink
	cancel  context.CancelFunc
	maxLine int // 0: the default
	finish  func(context.Context)
	logTo   slog.Handler // log, unless prepare says otherwise
	signals chan os.Signal
	exits   chan int
	stops   int
	err     error         // valid after returned
	done    chan struct{} // closed when ServeStdio has returned
}

// guardSink keeps what is written to it; with a fail it refuses it, with a
// block it waits.
type guardSink struct {
	mu    sync.Mutex
	b     bytes.Buffer
	fail  error
	block chan struct{}
}

func (s *guardSink) Write(p []byte) (int, error) {
	if s.block != nil {
		<-s.block
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return 0, s.fail
	}
	return s.b.Write(p)
}

// take returns the lines written since the last take, without their line feed.
func (s *guardSink) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := slices.Collect(strings.Lines(s.b.String()))
	s.b.Reset()
	for i, line := range lines {
		lines[i] = strings.TrimSuffix(line, "\n")
	}
	return lines
}

// startGuard serves until the test ends; prepare may change the run before.
func startGuard(t *testing.T, prepare func(*guardRun)) *guardRun {
	t.Helper()
	r := &guardRun{guardTools: newGuardTools(), t: t, signals: make(chan os.Signal, 2), exits: make(chan int, 1), done: make(chan struct{})}
	in, w := io.Pipe()
	r.in = w
	r.logTo = slog.NewTextHandler(&r.log, nil)
	if prepare != nil {
		prepare(r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.err = ServeStdio(ctx, r.mcp, in, &r.out, GuardOptions{
			MaxLine: r.maxLine,
			Finish:  r.finish,
			OnStop:  func() { r.stops++ },
			Log:     slog.New(r.logTo),
			Signals: r.signals,
			Exit:    func(code int) { r.exits <- code },
		})
	}()
	t.Cleanup(func() {
		cancel()
		r.in.Close()
		r.open()
		<-r.done
	})
	return r
}

// send writes lines as the client does and waits until all is quiet.
func (r *guardRun) send(lines ...string) {
	r.t.Helper()
	if _, err := io.WriteString(r.in, strings.Join(lines, "\n")+"\n"); err != nil {
		r.t.Fatalf("server does not read: %v", err)
	}
	synctest.Wait()
}

// open lets all that waits at the gate go on.
func (r *guardRun) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.gate:
	default:
		close(r.gate)
	}
}

// want compares the lines written since the last want.
func (r *guardRun) want(lines ...string) {
	r.t.Helper()
	wantGuardLines(r.t, r.out.take(), lines)
}

// wantAnyOrder is want for the answers of requests that run side by side.
func (r *guardRun) wantAnyOrder(lines ...string) {
	r.t.Helper()
	wantGuardLines(r.t, slices.Sorted(slices.Values(r.out.take())), slices.Sorted(slices.Values(lines)))
}

func wantGuardLines(t *testing.T, got, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// wantEnded compares the causes for which slow calls have ended early so far.
func (r *guardRun) wantEnded(causes ...error) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(causes, r.ended, cmpopts.EquateErrors()); diff != "" {
		r.t.Errorf("calls that ended early (-want +got):\n%s", diff)
	}
}

// wantRan compares the arguments of all slow and stubborn calls so far.
func (r *guardRun) wantRan(arguments ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(arguments, r.ran); diff != "" {
		r.t.Errorf("calls that ran (-want +got):\n%s", diff)
	}
}

// wantReturned tells whether ServeStdio has returned, and nil if so.
func (r *guardRun) wantReturned(want bool) {
	r.t.Helper()
	select {
	case <-r.done:
		if !want {
			r.t.Errorf("ServeStdio returned too early: %v", r.err)
		} else if r.err != nil {
			r.t.Errorf("ServeStdio: %v", r.err)
		}
	default:
		if want {
			r.t.Error("ServeStdio has not returned")
		}
	}
}

func callLine(id, name, arguments string) string {
	return metaCallLine(id, name, arguments, legacyMetaJSON)
}

func metaCallLine(id, name, arguments, meta string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":%s}}`, id, name, arguments, meta)
}

func cancelLine(id string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id)
}

func pingLine(id string) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"ping"}`, id) }
func pongLine(id string) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id) }

func textLine(id, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}]}}`, id, guardJSONString(text))
}

func errorLine(id string, code int, message string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}`, id, code, guardJSONString(message))
}

func guardJSONString(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// startInitializedGuard starts a run whose client has sent initialize.
func startInitializedGuard(t *testing.T, prepare func(*guardRun)) *guardRun {
	t.Helper()
	r := startGuard(t, prepare)
	r.send(initializeLine, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if got := r.out.take(); len(got) != 1 || !strings.HasPrefix(got[0], `{"jsonrpc":"2.0","id":"init","result":{`) {
		t.Fatalf("initialize: got %q", got)
	}
	return r
}

func TestGuardLines(t *testing.T) {
	const after = `"after"`
	deep := func(n int) string {
		return callLine("1", "echo", `{"a":`+strings.Repeat("[", n)+strings.Repeat("]", n)+"}")
	}
	tests := map[string]struct {
		in   string
		want []string
	}{
		"line feed":                 {in: pingLine("1") + "\n", want: []string{pongLine("1")}},
		"CRLF":                      {in: pingLine("1") + "\r\n", want: []string{pongLine("1")}},
		"byte order mark":           {in: "\ufeff" + pingLine("1") + "\n", want: []string{pongLine("1")}},
		"byte order mark later":     {in: pingLine("1") + "\n\ufeff" + pingLine("2") + "\n", want: []string{pongLine("1"), errorLine("null", -32700, "not one valid JSON value")}},
		"blank lines":               {in: "\n\r\n \t\n" + pingLine("1") + "\n\n", want: []string{pongLine("1")}},
		"spaces around":             {in: " " + pingLine("1") + " \t \r\n", want: []string{pongLine("1")}},
		"garbage":                   {in: "hello\n", want: []string{errorLine("null", -32700, "not one valid JSON value")}},
		"truncated":                 {in: `{"jsonrpc":"2.0","id":1,"method":"pi` + "\n", want: []string{errorLine("null", -32700, "not one valid JSON value")}},
		"two messages on a line":    {in: pingLine("1") + pingLine("2") + "\n", want: []string{errorLine("null", -32700, "not one valid JSON value")}},
		"a string":                  {in: `"ping"` + "\n", want: []string{errorLine("null", -32600, "a message must be a JSON object")}},
		"null":                      {in: "null\n", want: []string{errorLine("null", -32600, "a message must be a JSON object")}},
		"empty object":              {in: "{}\n", want: []string{errorLine("null", -32600, `jsonrpc must be "2.0"`)}},
		"batch":                     {in: "[" + callLine("1", "slow", "{}") + "," + pingLine("2") + "]\n", want: []string{errorLine("null", -32600, "batches are not supported: send one message per line")}},
		"modern batch":              {in: "[" + metaCallLine("1", "slow", "{}", modernMetaJSON) + "]\n", want: []string{errorLine("null", -32600, "batches are not supported: send one message per line")}},
		"batch of notifications":    {in: `[{"jsonrpc":"2.0","method":"notifications/initialized"}]` + "\n", want: []string{errorLine("null", -32600, "batches are not supported: send one message per line")}},
		"empty batch":               {in: "[]\n", want: []string{errorLine("null", -32600, "batches are not supported: send one message per line")}},
		"invalid UTF-8 in string":   {in: callLine("1", "slow", "{\"a\":\"\xff\xfe\"}") + "\n", want: []string{errorLine("null", -32700, "not valid UTF-8")}},
		"invalid UTF-8 outside":     {in: "\xff\xfe" + pingLine("1") + "\n", want: []string{errorLine("null", -32700, "not valid UTF-8")}},
		"high surrogate":            {in: callLine("1", "slow", `{"a":"\ud800"}`) + "\n", want: []string{errorLine("null", -32700, `lone surrogate \ud800`)}},
		"low surrogate":             {in: callLine("1", "slow", `{"a":"x\uDFFFy"}`) + "\n", want: []string{errorLine("null", -32700, `lone surrogate \udfff`)}},
		"high surrogate, letter":    {in: callLine("1", "slow", `{"a":"\ud800\u0041"}`) + "\n", want: []string{errorLine("null", -32700, `lone surrogate \ud800`)}},
		"two high surrogates":       {in: callLine("1", "slow", `{"a":"\ud83d\ud83d\ude00"}`) + "\n", want: []string{errorLine("null", -32700, `lone surrogate \ud83d`)}},
		"lone surrogate in a key":   {in: callLine("1", "slow", `{"\udead":1}`) + "\n", want: []string{errorLine("null", -32700, `lone surrogate \udead`)}},
		"lone surrogate in an id":   {in: pingLine(`"\ud800"`) + "\n", want: []string{errorLine("null", -32700, `lone surrogate \ud800`)}},
		"surrogate pairs":           {in: callLine("1", "echo", `{"a":"\ud83d\ude00\uD83D\uDE00"}`) + "\n", want: []string{textLine("1", `{"a":"\ud83d\ude00\uD83D\uDE00"}`)}},
		"escaped backslash":         {in: callLine("1", "echo", `{"a":"\\ud800\"\\"}`) + "\n", want: []string{textLine("1", `{"a":"\\ud800\"\\"}`)}},
		"escaped NUL":               {in: callLine("1", "echo", `{"a":"\u0000"}`) + "\n", want: []string{textLine("1", `{"a":"\u0000"}`)}},
		"brackets in a string":      {in: callLine("1", "echo", `{"a":"`+strings.Repeat("[", 200)+`"}`) + "\n", want: []string{textLine("1", `{"a":"`+strings.Repeat("[", 200)+`"}`)}},
		"nested as deep as may be":  {in: deep(97) + "\n", want: []string{textLine("1", `{"a":`+strings.Repeat("[", 97)+strings.Repeat("]", 97)+"}")}},
		"nested too deep":           {in: deep(98) + "\n", want: []string{errorLine("null", -32700, "nested deeper than 100 levels")}},
		"nested far too deep":       {in: deep(100_000) + "\n", want: []string{errorLine("null", -32700, "nested deeper than 100 levels")}},
		"version missing":           {in: `{"id":1,"method":"ping"}` + "\n", want: []string{errorLine("1", -32600, `jsonrpc must be "2.0"`)}},
		"version 1.0":               {in: `{"jsonrpc":"1.0","id":1,"method":"ping"}` + "\n", want: []string{errorLine("1", -32600, `jsonrpc must be "2.0"`)}},
		"method not a string":       {in: `{"jsonrpc":"2.0","id":1,"method":7}` + "\n", want: []string{errorLine("null", -32600, "method must be a string that is not empty")}},
		"method empty":              {in: `{"jsonrpc":"2.0","id":1,"method":""}` + "\n", want: []string{errorLine("null", -32600, "method must be a string that is not empty")}},
		"method and result":         {in: `{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}` + "\n", want: []string{errorLine("1", -32600, "a message with a method cannot have a result or an error")}},
		"neither":                   {in: `{"jsonrpc":"2.0","id":1}` + "\n", want: []string{errorLine("null", -32600, "neither a request nor a notification nor a response")}},
		"result and error":          {in: `{"jsonrpc":"2.0","id":1,"result":{},"error":{}}` + "\n", want: []string{errorLine("null", -32600, "neither a request nor a notification nor a response")}},
		"response nobody asked":     {in: `{"jsonrpc":"2.0","id":1,"result":{}}` + "\n"},
		"Method":                    {in: `{"jsonrpc":"2.0","id":1,"Method":"ping"}` + "\n", want: []string{errorLine("null", -32600, `key "Method" must be written "method"`)}},
		"method and METHOD":         {in: `{"jsonrpc":"2.0","id":1,"method":"ping","METHOD":"tools/list"}` + "\n", want: []string{errorLine("1", -32600, `key "METHOD" must be written "method"`)}},
		"param\u017f":               {in: `{"jsonrpc":"2.0","id":1,"method":"ping","param\u017f":{}}` + "\n", want: []string{errorLine("1", -32600, `key "paramſ" must be written "params"`)}},
		"params twice":              {in: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"},"params":{"name":"slow"}}` + "\n", want: []string{errorLine("1", -32600, `key "params" stands twice`)}},
		"escaped duplicate":         {in: `{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"x"}` + "\n", want: []string{errorLine("null", -32600, `key "method" stands twice`)}},
		"id twice":                  {in: `{"jsonrpc":"2.0","id":1,"id":2,"id":3,"method":"ping"}` + "\n", want: []string{errorLine("null", -32600, `key "id" stands twice`)}},
		"unknown key":               {in: `{"jsonrpc":"2.0","id":1,"method":"ping","more":1}` + "\n", want: []string{pongLine("1")}},
		"unknown key twice":         {in: `{"jsonrpc":"2.0","id":1,"method":"ping","more":1,"more":2}` + "\n", want: []string{errorLine("1", -32600, `key "more" stands twice`)}},
		"long key":                  {in: `{"jsonrpc":"2.0","id":1,"method":"ping","` + strings.Repeat("k", 1000) + `":1,"` + strings.Repeat("k", 1000) + `":2}` + "\n", want: []string{errorLine("1", -32600, `key "`+strings.Repeat("k", 64)+`" stands twice`)}},
		"Arguments":                 {in: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","Arguments":{}}}` + "\n", want: []string{errorLine("1", -32602, `key "Arguments" must be written "arguments"`)}},
		"arguments twice":           {in: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","arguments":{},"arguments":{}}}` + "\n", want: []string{errorLine("1", -32602, `key "arguments" stands twice`)}},
		"NAME":                      {in: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"NAME":"slow"}}` + "\n", want: []string{errorLine("1", -32602, `key "NAME" must be written "name"`)}},
		"name twice":                {in: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"slow"}}` + "\n", want: []string{errorLine("1", -32602, `key "name" stands twice`)}},
		"_meta twice":               {in: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","_meta":{},"_meta":{}}}` + "\n", want: []string{errorLine("1", -32602, `key "_meta" stands twice`)}},
		"_Meta":                     {in: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","_Meta":{}}}` + "\n", want: []string{errorLine("1", -32602, `key "_Meta" must be written "_meta"`)}},
		"_meta with a key twice":    {in: metaCallLine("1", "slow", "{}", `{"progressToken":1,"progressToken":2}`) + "\n", want: []string{errorLine("1", -32602, `key "progressToken" stands twice`)}},
		"huge argument":             {in: callLine("1", "slow", `{"namespace":"a","replicas":1e400}`) + "\n", want: []string{errorLine("1", -32602, "params.arguments.replicas has a number that is out of range")}},
		"huge argument, nested":     {in: callLine("1", "slow", `{"a":[{"b":-1e400}]}`) + "\n", want: []string{errorLine("1", -32602, "params.arguments.a has a number that is out of range")}},
		"huge number in _meta":      {in: metaCallLine("1", "slow", "{}", `{"progressToken":1e400}`) + "\n", want: []string{errorLine("1", -32602, "params._meta.progressToken has a number that is out of range")}},
		"unknown tool":              {in: callLine("1", "nope\u202e", "{}") + "\n", want: []string{errorLine("1", -32602, `unknown tool "nope\u202e": tools/list names those that exist`)}},
		"write tool of a plan tool": {in: callLine("1", "deploy", "{}") + "\n", want: []string{errorLine("1", -32602, `unknown tool "deploy": write tools exist only where the server was started with --allow-write; plan_deploy is here`)}},
		"long unknown tool":         {in: callLine("1", strings.Repeat("n", 10_000), "{}") + "\n", want: []string{errorLine("1", -32602, `unknown tool "`+strings.Repeat("n", 64)+`": tools/list names those that exist`)}},
		"no tool":                   {in: `{"jsonrpc":"2.0","id":1,"method":"tools/call"}` + "\n", want: []string{errorLine("1", -32602, `unknown tool "": tools/list names those that exist`)}},
		"tool's name a number":      {in: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}` + "\n", want: []string{errorLine("1", -32600, "unparsable tools/call request: json: cannot unmarshal number into Go struct field CallToolRequest.params.name of type string")}},
		"long unknown method":       {in: `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("m", 10_000) + `"}` + "\n", want: []string{errorLine("1", -32601, "Method "+strings.Repeat("m", 993)+"…")}},
		"long protocol version":     {in: metaCallLine("1", "slow", "{}", strings.Replace(modernMetaJSON, "2026-07-28", strings.Repeat("v", 10_000), 1)) + "\n", want: []string{errorLine("1", -32022, `unsupported protocol version: "`+strings.Repeat("v", 969)+"…")}},
		"params an array":           {in: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["slow"]}` + "\n", want: []string{errorLine("1", -32602, "params must be an object")}},
		"params null":               {in: `{"jsonrpc":"2.0","id":1,"method":"ping","params":null}` + "\n", want: []string{pongLine("1")}},
		"arguments byte for byte":   {in: callLine("1", "echo", `{ "b":1,  "a":9007199254740993,"a":1e-2, "Ä":"\u00c4<&>" }`) + "\n", want: []string{textLine("1", `{ "b":1,  "a":9007199254740993,"a":1e-2, "Ä":"\u00c4<&>" }`)}},
		"call as a notification":    {in: `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"slow","arguments":{}}}` + "\n"},
		"unknown notification":      {in: `{"jsonrpc":"2.0","method":"notifications/nope"}` + "\n"},
		"malformed notification":    {in: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}` + "\n"},
		"Id":                        {in: `{"jsonrpc":"2.0","Id":1,"method":"tools/call","params":{"name":"slow"}}` + "\n", want: []string{errorLine("null", -32600, `key "Id" must be written "id"`)}},
		"cancelling with an id":     {in: `{"jsonrpc":"2.0","id":1,"method":"notifications/cancelled","params":{"requestId":9}}` + "\n", want: []string{errorLine("1", -32601, "Method notifications/cancelled not found")}},
		"cancelling nothing":        {in: cancelLine("7") + "\n" + cancelLine("null") + "\n" + `{"jsonrpc":"2.0","method":"notifications/cancelled"}` + "\n"},
		"panic":                     {in: callLine("1", "panic", "{}") + "\n", want: []string{errorLine("1", -32603, "internal error")}},
		"result that is no JSON":    {in: callLine("1", "nan", "{}") + "\n", want: []string{errorLine("1", -32603, "internal error")}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startGuard(t, nil)
				// The next message is answered, and so is one without a line feed.
				r.send(strings.TrimSuffix(tc.in, "\n"), pingLine(after))
				io.WriteString(r.in, pingLine(`"last"`))
				r.in.Close()
				synctest.Wait()
				r.wantReturned(true)
				r.wantAnyOrder(append(tc.want, pongLine(after), pongLine(`"last"`))...)
				r.wantRan()
				if log := strings.Join(r.log.take(), ""); name == "panic" && !strings.Contains(log, "secret") {
					t.Errorf("log does not tell of the panic: %s", log)
				}
			})
		})
	}
}

func TestGuardLineLimit(t *testing.T) {
	const limit = 4 << 20
	padded := func(size int) string {
		line := pingLine("1")
		return line[:1] + strings.Repeat(" ", size-len(line)) + line[1:]
	}
	tooLong := errorLine("null", -32600, "line longer than 4194304 bytes")
	tests := map[string]struct {
		in   string
		want []string
	}{
		"at the limit":              {in: padded(limit) + "\n" + pingLine("2") + "\n", want: []string{pongLine("1"), pongLine("2")}},
		"one byte more":             {in: padded(limit+1) + "\n" + pingLine("2") + "\n", want: []string{pongLine("2"), tooLong}},
		"without line feed":         {in: padded(limit + 1), want: []string{tooLong}},
		"a multiple of the buffer":  {in: strings.Repeat("x", 2*limit) + "\n" + pingLine("2") + "\n", want: []string{pongLine("2"), tooLong}},
		"twice":                     {in: padded(limit+1) + "\n" + padded(limit+1) + "\n" + pingLine("2") + "\n", want: []string{pongLine("2"), tooLong, tooLong}},
		"blank, longer than limit":  {in: strings.Repeat(" ", limit+1) + "\n" + pingLine("2") + "\n", want: []string{pongLine("2"), tooLong}},
		"as long as the read chunk": {in: padded(64<<10) + "\n" + pingLine("2") + "\n", want: []string{pongLine("1"), pongLine("2")}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out guardSink
			if err := ServeStdio(t.Context(), newGuardTools().mcp, strings.NewReader(tc.in), &out, GuardOptions{Signals: make(chan os.Signal)}); err != nil {
				t.Fatal(err)
			}
			wantGuardLines(t, slices.Sorted(slices.Values(out.take())), tc.want)
		})
	}
}

func TestGuardLineMemory(t *testing.T) {
	const size, most = 256 << 20, 24 << 20 // bytes; it is 15, and all of the process counts
	var before, after runtime.MemStats
	in := io.LimitReader(repeatReader('x'), size)
	runtime.ReadMemStats(&before)
	err := ServeStdio(t.Context(), newGuardTools().mcp, in, io.Discard, GuardOptions{Signals: make(chan os.Signal)})
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > most+guardMaxLine {
		t.Errorf("allocated %d bytes for a line of %d, want at most %d", got, size, most)
	}
}

// repeatReader reads as one byte, for ever.
type repeatReader byte

func (r repeatReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

func TestGuardIDs(t *testing.T) {
	tests := map[string]struct {
		id     string
		wantID string // "null": refused
	}{
		"zero":               {id: `0`, wantID: `0`},
		"negative":           {id: `-7`, wantID: `-7`},
		"2^53 + 1":           {id: `9007199254740993`, wantID: `9007199254740993`},
		"above 64 bits":      {id: `123456789012345678901234567890`, wantID: `123456789012345678901234567890`},
		"above a float64":    {id: strings.Repeat("9", 400), wantID: strings.Repeat("9", 400)},
		"string":             {id: `"abc"`, wantID: `"abc"`},
		"digits in a string": {id: `"1"`, wantID: `"1"`},
		"empty string":       {id: `""`, wantID: `""`},
		"HTML in a string":   {id: `"<&>"`, wantID: `"<&>"`},
		"escapes":            {id: `"\u003c\/\n"`, wantID: `"\u003c\/\n"`},
		"line separators":    {id: "\"\u2028\u2029\"", wantID: "\"\u2028\u2029\""},
		"null":               {id: `null`, wantID: `null`},
		"fraction":           {id: `1.5`, wantID: `null`},
		"integral fraction":  {id: `1.0`, wantID: `null`},
		"exponent":           {id: `1e3`, wantID: `null`},
		"bool":               {id: `true`, wantID: `null`},
		"object":             {id: `{"a":1}`, wantID: `null`},
		"array":              {id: `[1]`, wantID: `null`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startGuard(t, nil)
				wantResult, wantError := textLine(tc.wantID, "{}"), errorLine(tc.wantID, -32602, "params must be an object")
				if tc.wantID == "null" {
					wantResult = errorLine("null", -32600, "id must be a string or an integer")
					wantError = wantResult
				}
				r.send(callLine(tc.id, "echo", "{}"))
				r.want(wantResult)
				r.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"ping","params":1}`, tc.id))
				r.want(wantError)
			})
		})
	}
}

func TestGuardIDsInFlight(t *testing.T) {
	t.Run("different ids do not meet", func(t *testing.T) {
		ids := []string{`1`, `"1"`, `9007199254740992`, `9007199254740993`, `"9007199254740993"`, `"<"`}
		for _, id := range ids {
			t.Run(id, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := startGuard(t, nil)
					var want []string
					for _, other := range ids {
						r.send(callLine(other, "slow", "{}"))
						if other != id {
							want = append(want, textLine(other, "slow done"))
						}
					}
					r.send(cancelLine(id))
					r.wantEnded(ErrCancelledByClient)
					r.open()
					synctest.Wait()
					r.wantAnyOrder(want...)
				})
			})
		}
	})
	t.Run("equal ids do", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := startGuard(t, nil)
			r.send(callLine(`"a"`, "slow", `{"n":1}`), callLine(`"\u0061"`, "slow", `{"n":2}`), pingLine(`"a"`))
			inFlight := errorLine("null", -32600, "a request with this id is still in flight")
			r.want(inFlight, inFlight)
			r.wantRan(`{"n":1}`)

			// A refusal may not name it either.
			r.send(`{"jsonrpc":"2.0","id":"a","method":"ping","params":1}`)
			r.want(errorLine("null", -32602, "params must be an object"))

			r.open()
			synctest.Wait()
			r.want(textLine(`"a"`, "slow done"))
			r.send(pingLine(`"a"`))
			r.want(pongLine(`"a"`))
		})
	})
}

func TestGuardCancelRunning(t *testing.T) {
	for era, meta := range map[string]string{"legacy": legacyMetaJSON, "modern": modernMetaJSON} {
		t.Run(era, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startGuard(t, nil)
				r.send(metaCallLine("1", "slow", "{}", meta), metaCallLine("2", "stubborn", "{}", meta))
				r.send(cancelLine("1"), cancelLine("2"), cancelLine("1"))
				r.wantEnded(ErrCancelledByClient)
				// A handler that goes on keeps its id, and the server its word.
				r.send(pingLine("1"), pingLine("2"))
				r.wantAnyOrder(pongLine("1"), errorLine("null", -32600, "a request with this id is still in flight"))
				r.in.Close()
				synctest.Wait()
				r.wantReturned(false)
				r.open()
				synctest.Wait()
				r.wantReturned(true)
				r.want()
			})
		})
	}
}

func TestGuardCancelQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startGuard(t, nil)
		var wantRan []string
		for i := range guardMaxRunning {
			args := fmt.Sprintf(`{"n":%d}`, i)
			r.send(callLine(fmt.Sprint(i), "stubborn", args))
			wantRan = append(wantRan, args)
		}
		r.send(callLine(`"queued"`, "slow", `"queued"`), callLine(`"cancelled"`, "slow", `"cancelled"`), cancelLine(`"cancelled"`), pingLine(`"other"`))
		r.want(pongLine(`"other"`)) // only tool calls queue
		r.send(pingLine(`"cancelled"`))
		r.want(pongLine(`"cancelled"`)) // it has left the queue, its id is free
		r.wantRan(wantRan...)

		r.open()
		synctest.Wait()
		if got := r.out.take(); len(got) != guardMaxRunning+1 {
			t.Errorf("got %d answers, want %d", len(got), guardMaxRunning+1)
		}
		r.wantRan(append(wantRan, `"queued"`)...)
	})
}

// A cancellation in the same read as its call finds it queued or running; the
// call is answered in neither case.
func TestGuardCancelAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startGuard(t, nil)
		for range 100 {
			r.send(callLine("1", "slow", "{}"), cancelLine("1"))
			r.want()
		}
	})
}

func TestGuardQuickCallsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startGuard(t, nil)
		for i := range guardMaxRunning - 1 {
			r.send(callLine(fmt.Sprint(i), "slow", "{}"))
		}
		r.send(callLine(`"quick"`, "echo", "{}"))
		r.want(textLine(`"quick"`, "{}"))
	})
}

func TestGuardTooManyInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startGuard(t, nil)
		var calls []string
		for i := range guardMaxInFlight {
			calls = append(calls, callLine(fmt.Sprint(i), "slow", "{}"))
		}
		r.send(calls...)
		r.want()
		r.send(pingLine(`"more"`))
		held := len(strings.Join(calls, ""))
		r.want(errorLine(`"more"`, -32603, fmt.Sprintf("1024 requests (%d bytes) are in flight: wait for answers, then send this one again", held)))
		r.open()
		synctest.Wait()
		if got := len(r.out.take()); got != guardMaxInFlight {
			t.Errorf("got %d answers, want %d", got, guardMaxInFlight)
		}
	})
}

// Few calls may be large, or many small.
func TestGuardTooManyBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startGuard(t, func(r *guardRun) { r.maxLine = 1000 })
		long := func(id string) string {
			line := callLine(id, "slow", `"`+strings.Repeat("x", 1000)+`"`)
			return strings.Replace(line, strings.Repeat("x", len(line)-1000), "", 1)
		}
		var calls []string
		for i := range guardMaxHeld {
			calls = append(calls, long(fmt.Sprint(i)))
		}
		r.send(calls...)
		r.want()
		r.send(pingLine(`"more"`))
		r.want(errorLine(`"more"`, -32603, "16 requests (16000 bytes) are in flight: wait for answers, then send this one again"))
		r.send(cancelLine("0"))
		r.send(pingLine(`"more"`))
		r.want(pongLine(`"more"`))
	})
}

func TestGuardStop(t *testing.T) {
	errGone := errors.New("gone")
	tests := map[string]struct {
		stop    func(*guardRun)
		wantErr error
	}{
		"EOF":        {stop: func(r *guardRun) { r.in.Close() }},
		"signal":     {stop: func(r *guardRun) { r.signals <- syscall.SIGTERM }},
		"context":    {stop: func(r *guardRun) { r.cancel() }},
		"read error": {stop: func(r *guardRun) { r.in.CloseWithError(errGone) }, wantErr: errGone},
		"EOF and the signal that follows it": {stop: func(r *guardRun) {
			r.in.Close()
			synctest.Wait()
			r.signals <- os.Interrupt
		}},
	}
	for name, tc := range tests {
		for era, meta := range map[string]string{"legacy": legacyMetaJSON, "modern": modernMetaJSON} {
			t.Run(name+"/"+era, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := startGuard(t, nil)
					r.send(metaCallLine("1", "slow", `"running"`, meta))
					tc.stop(r)
					synctest.Wait()
					r.wantReturned(false)
					if r.stops != 1 {
						t.Errorf("OnStop was called %d times, want 1", r.stops)
					}
					r.wantEnded()

					// What comes later is not run.
					go io.WriteString(r.in, metaCallLine("2", "slow", `"late"`, meta)+"\n")
					synctest.Wait()
					r.wantRan(`"running"`)

					time.Sleep(guardGrace - 1)
					r.open()
					synctest.Wait()
					<-r.done
					if !errors.Is(r.err, tc.wantErr) {
						t.Errorf("got error %v, want %v", r.err, tc.wantErr)
					}
					if got := r.out.take(); len(got) != 1 || !strings.Contains(got[0], "slow done") {
						t.Errorf("got %q, want the answer of the running call", got)
					}
					if r.stops != 1 {
						t.Errorf("OnStop was called %d times, want 1", r.stops)
					}
					select {
					case code := <-r.exits:
						t.Errorf("the process exited with code %d", code)
					default:
					}
				})
			})
		}
	}
}

// Everything that stands before EOF is answered, however fast EOF follows.
func TestGuardEOFAtOnce(t *testing.T) {
	in := initializeLine + "\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"
	var want []string
	for i := range 100 {
		id := fmt.Sprint(i)
		in += callLine(id, "echo", "{}") + "\n"
		want = append(want, textLine(id, "{}"))
	}
	in += "garbage"
	want = append(want, errorLine("null", -32700, "not one valid JSON value"))
	for range 20 {
		var out guardSink
		if err := ServeStdio(t.Context(), newGuardTools().mcp, strings.NewReader(in), &out, GuardOptions{Signals: make(chan os.Signal)}); err != nil {
			t.Fatal(err)
		}
		got := slices.DeleteFunc(out.take(), func(line string) bool { return strings.Contains(line, `"init"`) })
		wantGuardLines(t, slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
	}
}

// A line that was read when the stop came may still be at work: its request is
// answered, but not begun.
func TestGuardStopBeforeAdmission(t *testing.T) {
	g := &stdioGuard{calls: map[string]*guardCall{}, stopping: make(chan struct{}), idle: make(chan struct{})}
	g.begin()
	g.stop(nil)
	want := &mcp.JSONRPCErrorDetails{Code: mcp.INTERNAL_ERROR, Message: "the server is stopping"}
	if diff := cmp.Diff(want, g.admit(&guardCall{rpcMessage: &rpcMessage{key: "1"}})); diff != "" {
		t.Errorf("admit (-want +got):\n%s", diff)
	}
	g.end()
	<-g.idle
}

func TestGuardSecondSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startGuard(t, nil)
		r.send(callLine("1", "stubborn", "{}"))
		r.signals <- os.Interrupt
		synctest.Wait()
		select {
		case code := <-r.exits:
			t.Errorf("the first signal ended the process with code %d", code)
		default:
		}
		r.signals <- os.Interrupt
		if code := <-r.exits; code != 130 {
			t.Errorf("got exit code %d, want 130", code)
		}
	})
}

func TestGuardGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startGuard(t, nil)
		r.send(callLine("1", "slow", "{}"), callLine("2", "stubborn", "{}"))
		r.in.Close()
		time.Sleep(guardGrace - 1)
		synctest.Wait()
		r.wantReturned(false)
		time.Sleep(1)
		synctest.Wait()
		r.wantReturned(true)
		r.want()
		r.wantEnded(context.Canceled)
		if log := strings.Join(r.log.take(), "\n"); !strings.Contains(log, "calls=2 grace=35s") {
			t.Errorf("log does not tell of the two calls: %s", log)
		}
	})
}

// What goes on beyond its answer is waited for, within the grace; a signal that comes
// meanwhile is the first.
func TestGuardFinish(t *testing.T) {
	for name, tc := range map[string]struct {
		call      string
		signals   int
		wantAfter time.Duration // when it returns, with a Finish that takes as long as it may
		wantExit  bool
	}{
		"nothing in flight": {wantAfter: guardGrace},
		"a call in flight":  {call: callLine("1", "slow", "{}"), wantAfter: guardGrace},
		"a signal":          {signals: 1, wantAfter: guardGrace},
		"two signals":       {signals: 2, wantAfter: guardGrace, wantExit: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var finishing atomic.Bool
				r := startGuard(t, func(r *guardRun) {
					r.finish = func(ctx context.Context) {
						finishing.Store(true)
						<-ctx.Done()
					}
				})
				r.send(tc.call)
				began := time.Now()
				r.in.Close()
				synctest.Wait()
				if want := tc.call == ""; finishing.Load() != want {
					t.Errorf("finishing beside the calls: %t, want %t", !want, want)
				}
				for range tc.signals {
					r.signals <- syscall.SIGTERM
					synctest.Wait()
				}
				select {
				case code := <-r.exits:
					if !tc.wantExit {
						t.Errorf("the process exited with code %d", code)
					}
				default:
					if tc.wantExit {
						t.Error("the second signal did not end the process")
					}
				}
				<-r.done
				if got := time.Since(began); got != tc.wantAfter || !finishing.Load() {
					t.Errorf("returned after %s, want %s; finished: %t", got, tc.wantAfter, finishing.Load())
				}
			})
		})
	}
}

func TestGuardBrokenOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startGuard(t, func(r *guardRun) { r.out.fail = syscall.EPIPE })
		r.send(callLine("1", "slow", `"running"`), pingLine("2"))
		r.wantEnded()
		go io.WriteString(r.in, callLine("3", "slow", `"late"`)+"\n")
		synctest.Wait()
		r.wantRan(`"running"`)
		r.wantReturned(false)
		r.open()
		synctest.Wait()
		<-r.done
		if !errors.Is(r.err, syscall.EPIPE) || r.stops != 1 {
			t.Errorf("got error %v after %d calls of OnStop, want %v after one", r.err, r.stops, syscall.EPIPE)
		}
	})
}

func TestGuardStuckOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startGuard(t, func(r *guardRun) { r.out.block = make(chan struct{}) })
		r.send(pingLine("1"), pingLine("2"), "garbage")
		r.signals <- os.Interrupt
		time.Sleep(guardGrace)
		synctest.Wait()
		r.wantReturned(true)
		close(r.out.block)
	})
}

// An answer that nobody has read yet keeps its id and its place.
func TestGuardUnreadAnswers(t *testing.T) {
	t.Run("id", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := startGuard(t, func(r *guardRun) { r.out.block = make(chan struct{}) })
			r.send(pingLine("0")) // is being written
			r.send(pingLine("1"))
			r.send(callLine("1", "slow", "{}"))
			close(r.out.block)
			synctest.Wait()
			r.wantAnyOrder(pongLine("0"), pongLine("1"), errorLine("null", -32600, "a request with this id is still in flight"))
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := startGuard(t, func(r *guardRun) { r.out.block = make(chan struct{}) })
			r.send(pingLine("0"))
			r.send(callLine("1", "echo", "{}"))
			r.send(cancelLine("1"))
			close(r.out.block)
			synctest.Wait()
			r.want(pongLine("0"))
		})
	})
	t.Run("number", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := startGuard(t, func(r *guardRun) { r.out.block = make(chan struct{}) })
			r.send(pingLine(`"written"`))
			var pings, want []string
			for i := range guardMaxInFlight {
				pings, want = append(pings, pingLine(fmt.Sprint(i))), append(want, pongLine(fmt.Sprint(i)))
			}
			r.send(pings...)
			r.send(pingLine(`"more"`))
			close(r.out.block)
			synctest.Wait()
			held := len(strings.Join(pings, ""))
			r.wantAnyOrder(append(want, pongLine(`"written"`), errorLine(`"more"`, -32603, fmt.Sprintf("1024 requests (%d bytes) are in flight: wait for answers, then send this one again", held)))...)
		})
	})
}

// stuckLog is a log that nobody reads.
type stuckLog struct {
	slog.Handler
	block chan struct{}
}

func (stuckLog) Enabled(context.Context, slog.Level) bool { return true }

func (l stuckLog) Handle(context.Context, slog.Record) error {
	<-l.block
	return nil
}

// A log that nobody reads keeps nothing alive.
func TestGuardStuckLog(t *testing.T) {
	for name, tc := range map[string]struct {
		stop     func(*guardRun)
		wantExit bool
	}{
		"a signal":    {stop: func(r *guardRun) { r.signals <- syscall.SIGTERM }},
		"two signals": {stop: func(r *guardRun) { r.signals <- syscall.SIGTERM; r.signals <- syscall.SIGTERM }, wantExit: true},
		"broken output": {stop: func(r *guardRun) {
			r.out.fail = syscall.EPIPE
			r.send(pingLine("2"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := stuckLog{slog.DiscardHandler, make(chan struct{})}
				defer close(log.block)
				r := startGuard(t, func(r *guardRun) { r.logTo = log })
				r.send(callLine("1", "stubborn", "{}"))
				tc.stop(r)
				time.Sleep(2 * guardMaxTell)
				synctest.Wait()
				if exited := len(r.exits) == 1; exited != tc.wantExit {
					t.Errorf("exited at once: %t, want %t", exited, tc.wantExit)
				}
				if r.stops != 1 {
					t.Errorf("OnStop was called %d times, want 1", r.stops)
				}
				r.open()
				time.Sleep(2 * guardMaxTell)
				synctest.Wait()
				select {
				case <-r.done:
				default:
					t.Error("ServeStdio has not returned")
				}
			})
		})
	}
}

func TestGuardNotificationsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInitializedGuard(t, nil)
		for range 100 {
			r.send(callLine("1", "echo", "{}"), metaCallLine("2", "progress", "{}", `{"progressToken":"t"}`))
			wantGuardLines(t, slices.DeleteFunc(r.out.take(), func(line string) bool { return line == textLine("1", "{}") }), []string{
				`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":0,"progressToken":"t"}}`,
				`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":"t"}}`,
				`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":2,"progressToken":"t"}}`,
				textLine("2", "progress done"),
			})
		}
	})
}

// A client need not wait for the answer to initialize.
func TestGuardInitializeFirst(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			r := startGuard(t, nil)
			r.send(initializeLine, metaCallLine("1", "progress", "{}", `{"progressToken":"t"}`))
			if got := r.out.take(); len(got) != 5 || got[4] != textLine("1", "progress done") {
				t.Errorf("got %q, want five lines, the result last", got)
			}
		})
	}
}

func TestGuardElicitation(t *testing.T) {
	const question = `{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"sure?","requestedSchema":{"properties":{},"type":"object"}}}`
	tests := map[string]struct {
		then []string // what the client sends after the question
		eof  bool
		want []string
	}{
		"accept":         {then: []string{`{"jsonrpc":"2.0","id":1,"result":{"action":"accept","content":{}}}`}, want: []string{textLine("1", "accept")}},
		"decline":        {then: []string{`{"jsonrpc":"2.0","id":1,"result":{"action":"decline"}}`}, want: []string{textLine("1", "decline")}},
		"answered often": {then: []string{`{"jsonrpc":"2.0","id":1,"result":{"action":"decline"}}`, `{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`, `{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`}, want: []string{textLine("1", "decline")}},
		"other ids":      {then: []string{`{"jsonrpc":"2.0","id":"1","result":{"action":"accept"}}`, `{"jsonrpc":"2.0","id":2,"result":{"action":"accept"}}`, pingLine("3")}, want: []string{pongLine("3")}},
		"error":          {then: []string{`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"cannot"}}`}, want: []string{`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"the client could not ask: cannot (-32601)"}],"isError":true}}`}},
		"call cancelled": {then: []string{cancelLine("1")}, want: []string{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`}},
		"EOF":            {eof: true, want: []string{`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"the client can no longer answer: input has ended"}],"isError":true}}`}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startInitializedGuard(t, nil)
				// The id of the call is the one of the question: they are not the same.
				r.send(callLine("1", "ask", "{}"))
				r.want(question)
				if tc.eof {
					r.in.Close()
					synctest.Wait()
					r.wantReturned(true)
				} else {
					r.send(tc.then...)
				}
				r.want(tc.want...)
			})
		})
	}
}

// A client that never cancels its subscription does not hold up the exit.
func TestGuardSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startGuard(t, nil)
		r.send(`{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":` + modernMetaJSON + `}}`)
		r.want(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"notifications":{"toolsListChanged":true}}}`)
		r.in.Close()
		synctest.Wait()
		r.wantReturned(true)
		if got := r.out.take(); len(got) != 1 || !strings.HasPrefix(got[0], `{"jsonrpc":"2.0","id":7,"result":{`) {
			t.Errorf("got %q, want the end of the subscription", got)
		}
	})
}

func TestGuardEras(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInitializedGuard(t, nil)
		if got, want := mcpserver.RequestProtocolVersion(r.mcp.WithContext(t.Context(), r.session())), "2025-11-25"; got != want {
			t.Errorf("session's protocol version is %q, want %q", got, want)
		}
		r.send(`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":` + modernMetaJSON + `}}`)
		if got := r.out.take(); len(got) != 1 || !strings.Contains(got[0], `"2026-07-28"`) {
			t.Errorf("server/discover: got %q", got)
		}
		r.send(metaCallLine("2", "echo", `{ }`, modernMetaJSON), metaCallLine("3", "ask", `{}`, modernMetaJSON))
		got := r.out.take()
		slices.Sort(got)
		if len(got) != 2 || !strings.Contains(got[0], `"text":"{ }"`) || !strings.Contains(got[1], "not supported in protocol version") {
			t.Errorf("modern calls: got %q", got)
		}
	})
}

// session returns the session that the run has registered.
func (r *guardRun) session() mcpserver.ClientSession {
	var found mcpserver.ClientSession
	r.mcp.AddTool(mcp.NewTool("session"), func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		found = mcpserver.ClientSessionFromContext(ctx)
		return mcp.NewToolResultText(""), nil
	})
	r.send(callLine(`"session"`, "session", "{}"))
	r.out.take()
	return found
}

// Not in a bubble, so that the race detector sees real parallelism.
func TestGuardConcurrent(t *testing.T) {
	const calls = 200
	r := startGuard(t, nil)
	want := map[string]int{}
	for i := range calls {
		id := fmt.Sprint(i)
		name := []string{"echo", "slow", "stubborn"}[i%3]
		if _, err := io.WriteString(r.in, callLine(id, name, "{}")+"\n"+pingLine(`"p`+id+`"`)+"\n"); err != nil {
			t.Fatal(err)
		}
		want[id], want[`"p`+id+`"`] = 1, 1
	}
	r.open()
	r.in.Close()
	<-r.done
	got := map[string]int{}
	for _, line := range r.out.take() {
		var answer struct{ ID json.RawMessage }
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			t.Errorf("output line %q: %v", line, err)
		}
		got[string(answer.ID)]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers by id (-want +got):\n%s", diff)
	}
}

// TestGuardProcess runs a server as a process of its own: signals and a
// standard output that nobody reads end processes, not calls.
func TestGuardProcess(t *testing.T) {
	if os.Getenv("GUARD_TEST_PROCESS") != "" {
		guardProcess()
	}
	tests := map[string]struct {
		act      func(t *testing.T, p *guardTestProcess)
		finish   bool // until act closes p.last
		wantCode int
		wantOut  bool // the answer of the call
	}{
		"signal": {
			act: func(t *testing.T, p *guardTestProcess) {
				p.signal(t, syscall.SIGTERM)
				p.expect(t, "level=INFO")
				p.gate.Close()
			},
			wantOut: true,
		},
		"second signal": {
			act: func(t *testing.T, p *guardTestProcess) {
				p.signal(t, syscall.SIGTERM)
				p.expect(t, "level=INFO")
				p.signal(t, syscall.SIGINT)
			},
			wantCode: 130,
		},
		"signal after the answers": {
			finish: true,
			act: func(t *testing.T, p *guardTestProcess) {
				p.stdin.Close()
				p.gate.Close()
				p.expect(t, "finishing")
				p.signal(t, syscall.SIGTERM)
				p.expect(t, "level=INFO")
				p.last.Close()
				p.expect(t, "finished all")
			},
			wantOut: true,
		},
		"nobody reads": {
			act: func(t *testing.T, p *guardTestProcess) {
				p.stdout.Close()
				io.WriteString(p.stdin, pingLine("2")+"\n")
				p.expect(t, "level=ERROR")
				p.gate.Close()
				p.expect(t, "tool finished")
			},
			wantCode: 1,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := startGuardProcess(t)
			io.WriteString(p.stdin, callLine("1", "wait", "{}")+"\n")
			p.expect(t, "tool started")
			if !tc.finish {
				p.last.Close()
			}
			tc.act(t, p)
			out, _ := io.ReadAll(p.stdout)
			_ = p.cmd.Wait()
			if got := p.cmd.ProcessState.ExitCode(); got != tc.wantCode {
				t.Errorf("got exit code %d (%v), want %d", got, p.cmd.ProcessState, tc.wantCode)
			}
			want := ""
			if tc.wantOut {
				want = textLine("1", "waited") + "\n"
			}
			if diff := cmp.Diff(want, string(out)); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

type guardTestProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *os.File
	stderr *bufio.Scanner
	gate   *os.File // the tool returns when it is closed
	last   *os.File // Finish returns when it is closed
}

func startGuardProcess(t *testing.T) *guardTestProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &guardTestProcess{cmd: exec.CommandContext(t.Context(), self, "-test.run=^TestGuardProcess$")}
	p.cmd.Env = append(os.Environ(), "GUARD_TEST_PROCESS=1")
	gate, gateWriter, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	last, lastWriter, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, stdoutWriter, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.gate, p.last, p.stdout, p.cmd.Stdout, p.cmd.ExtraFiles = gateWriter, lastWriter, stdout, stdoutWriter, []*os.File{gate, last}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stderr = bufio.NewScanner(stderr)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gate.Close()
	last.Close()
	stdoutWriter.Close()
	t.Cleanup(func() {
		gateWriter.Close()
		lastWriter.Close()
		stdout.Close()
	})
	return p
}

func (p *guardTestProcess) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// expect reads standard error up to a line that contains text.
func (p *guardTestProcess) expect(t *testing.T, text string) {
	t.Helper()
	for p.stderr.Scan() {
		if strings.Contains(p.stderr.Text(), text) {
			return
		}
	}
	t.Fatalf("standard error ended without %q", text)
}

// guardProcess is the program that startGuardProcess runs.
func guardProcess() {
	s := mcpserver.NewMCPServer("test", "1")
	s.AddTool(mcp.NewTool("wait"), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		fmt.Fprintln(os.Stderr, "tool started")
		io.Copy(io.Discard, os.NewFile(3, "gate"))
		fmt.Fprintln(os.Stderr, "tool finished")
		return mcp.NewToolResultText("waited"), nil
	})
	err := ServeStdio(context.Background(), s, os.Stdin, os.Stdout, GuardOptions{
		Finish: func(context.Context) {
			fmt.Fprintln(os.Stderr, "finishing")
			io.Copy(io.Discard, os.NewFile(4, "last"))
			fmt.Fprintln(os.Stderr, "finished all")
		},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// FuzzGuardLine sends anything and then a ping: the process lives, every line
// of output is one JSON object, and the ping is answered.
func FuzzGuardLine(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "\ufeff", "\xff", "{", "[]", "null", `"\ud83d\ude00"`, `"\ud800"`, `{"\ud800":1}`, strings.Repeat("[", 200), strings.Repeat("x", 3000),
		initializeLine, pingLine("1"), pingLine("1.5"), pingLine(`"\u0000"`), pingLine(strings.Repeat("9", 400)), "[" + pingLine("1") + "]", pingLine("1") + pingLine("2"), pingLine("1") + "\r\n\n" + pingLine("1"),
		callLine("1", "echo", `{"a":"<\ud83d\ude00>"}`), callLine("1", "echo", "1e400"), callLine("1", "nope", "null"), callLine("1", "panic", "{}"), callLine("1", "nan", "{}"),
		metaCallLine("1", "progress", "{}", `{"progressToken":1}`), metaCallLine("1", "ask", "{}", modernMetaJSON), callLine("1", "ask", "{}") + "\n" + `{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`,
		callLine("1", "echo", "{}") + "\n" + cancelLine("1"), `{"jsonrpc":"2.0","id":1,"error":{"code":1}}`, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":` + modernMetaJSON + `}}`,
		`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":` + modernMetaJSON + `}}`,
		`{"jsonrpc":"2.0","id":1,"Method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"name":1,"name":2}}`,
	} {
		f.Add([]byte(seed))
	}
	const id = `"the ping of the fuzz target"`
	f.Fuzz(func(t *testing.T, line []byte) {
		tools := newGuardTools()
		close(tools.gate)
		var out guardSink
		in := io.MultiReader(bytes.NewReader(line), strings.NewReader("\n"+pingLine(id)+"\n"))
		began := time.Now()
		opts := GuardOptions{MaxLine: 2048, Signals: make(chan os.Signal)}
		if err := ServeStdio(t.Context(), tools.mcp, in, &out, opts); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) >= guardGrace {
			t.Error("a request did not end")
		}
		if b := out.b.Bytes(); len(b) > 0 && b[len(b)-1] != '\n' {
			t.Errorf("output does not end with a line feed: %q", b)
		}
		answered := 0
		for _, line := range out.take() {
			var object map[string]json.RawMessage
			if err := json.Unmarshal([]byte(line), &object); err != nil {
				t.Errorf("output line %q: %v", line, err)
			}
			if line == pongLine(id) {
				answered++
			}
		}
		if answered != 1 {
			t.Errorf("the ping was answered %d times, want once", answered)
		}
	})
}
