// Package stdio drives the shipped binary as an MCP client does: JSON-RPC lines on its
// stdin and stdout. It is used by tests and by the demo.
package stdio

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"sync"
	"time"
)

// Era is a protocol era.
type Era string

// The two eras: the stateless one carries its version and client in every request, the
// older one begins with a handshake.
const (
	Legacy Era = "2025-06-18"
	Modern Era = "2026-07-28"
)

// Client talks to one server: a process of its own, or one in this process.
type Client struct {
	Era    Era
	Stderr *bytes.Buffer // of the process; read it after Close

	cmd   *exec.Cmd // nil for a server in this process
	stdin io.WriteCloser

	answer func(form json.RawMessage) any // of the person; nil is a client that cannot ask

	mu      sync.Mutex
	next    int
	waiting map[int]chan Message
	notes   []Message
	raw     []string // every line that came
	done    chan struct{}
}

// Message is one JSON-RPC message as it came.
type Message struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error,omitempty"`
	Line string `json:"-"`
}

// Tool is the result of a tool call.
type Tool struct {
	Text       string          // the first text content
	Structured json.RawMessage // structuredContent
	IsError    bool
	Code       int // of a JSON-RPC error, else 0
}

// Start runs the binary and, in the older era, shakes hands.
func Start(era Era, binary string, env []string, args ...string) (*Client, error) {
	c := newClient(era)
	c.cmd = exec.Command(binary, args...)
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stderr = c.Stderr
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go c.read(stdout)
	return c, c.hello()
}

// Connect talks to a server in this process over its streams. Close ends its input and
// waits until its output ends. With answer it is a client that can ask its person: answer
// gives the result for the parameters of each question.
func Connect(era Era, stdin io.WriteCloser, stdout io.Reader, answer func(form json.RawMessage) any) (*Client, error) {
	c := newClient(era)
	c.stdin, c.answer = stdin, answer
	go c.read(stdout)
	return c, c.hello()
}

func newClient(era Era) *Client {
	return &Client{Era: era, Stderr: &bytes.Buffer{}, waiting: map[int]chan Message{}, done: make(chan struct{})}
}

// hello shakes hands in the older era; the stateless one has no handshake.
func (c *Client) hello() error {
	if c.Era != Legacy {
		return nil
	}
	if _, err := c.Request("initialize", map[string]any{
		"protocolVersion": string(c.Era), "capabilities": c.capabilities(), "clientInfo": clientInfo,
	}); err != nil {
		return err
	}
	return c.Notify("notifications/initialized", nil)
}

func (c *Client) capabilities() map[string]any {
	if c.answer == nil {
		return map[string]any{}
	}
	return map[string]any{"elicitation": map[string]any{}}
}

var clientInfo = map[string]any{"name": "test-client", "version": "1"}

func (c *Client) read(r io.Reader) {
	defer close(c.done)
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var m Message
		_ = json.Unmarshal(line, &m)
		m.Line = string(bytes.TrimSpace(line))
		var id int
		_ = json.Unmarshal(m.ID, &id)
		c.mu.Lock()
		c.raw = append(c.raw, m.Line)
		if ch := c.waiting[id]; ch != nil && m.Method == "" {
			ch <- m
			delete(c.waiting, id)
		} else {
			c.notes = append(c.notes, m)
		}
		if m.Method == "elicitation/create" && c.answer != nil {
			go func() { _ = c.write(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": c.answer(m.Params)}) }()
		}
		c.mu.Unlock()
	}
}

// Request sends a request and waits for its answer. It fails when the process ends, or
// after two minutes. An answer that is a question, in the stateless era, is taken to the
// person, and the request sent again with what that one says.
func (c *Client) Request(method string, params map[string]any) (Message, error) {
	m, err := c.Once(method, params)
	var asks struct {
		InputRequests map[string]struct {
			Params json.RawMessage `json:"params"`
		} `json:"inputRequests"`
		RequestState string `json:"requestState"`
	}
	if err != nil || c.answer == nil || json.Unmarshal(m.Result, &asks) != nil || asks.InputRequests == nil {
		return m, err
	}
	answers := map[string]any{}
	for id, r := range asks.InputRequests {
		answers[id] = c.answer(r.Params)
	}
	again := maps.Clone(params)
	again["inputResponses"], again["requestState"] = answers, asks.RequestState
	return c.Once(method, again)
}

// Once is Request without a person.
func (c *Client) Once(method string, params map[string]any) (Message, error) {
	id, ch, err := c.Send(method, params)
	if err != nil {
		return Message{}, err
	}
	return c.await(id, method, ch)
}

func (c *Client) await(id int, method string, ch chan Message) (Message, error) {
	select {
	case m := <-ch:
		return m, nil
	case <-c.done:
		select {
		case m := <-ch:
			return m, nil
		default:
		}
		return Message{}, fmt.Errorf("the server ended before it answered %s: %s", method, c.Stderr)
	case <-time.After(2 * time.Minute):
		return Message{}, fmt.Errorf("no answer to %s (id %d)", method, id)
	}
}

// Send sends a request and gives its id and the channel of its answer.
func (c *Client) Send(method string, params map[string]any) (int, chan Message, error) {
	if params == nil {
		params = map[string]any{}
	}
	if c.Era == Modern {
		meta, _ := params["_meta"].(map[string]any)
		if meta == nil {
			meta = map[string]any{}
		}
		meta["io.modelcontextprotocol/protocolVersion"] = string(Modern)
		meta["io.modelcontextprotocol/clientInfo"] = clientInfo
		meta["io.modelcontextprotocol/clientCapabilities"] = c.capabilities()
		params["_meta"] = meta
	}
	c.mu.Lock()
	c.next++
	id, ch := c.next, make(chan Message, 1)
	c.waiting[id] = ch
	c.mu.Unlock()
	return id, ch, c.write(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

// Notify sends a notification.
func (c *Client) Notify(method string, params map[string]any) error {
	m := map[string]any{"jsonrpc": "2.0", "method": method}
	if params != nil {
		m["params"] = params
	}
	return c.write(m)
}

func (c *Client) write(m map[string]any) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err = c.stdin.Write(append(line, '\n'))
	return err
}

// Call calls a tool. args is anything that encodes as the arguments, json.RawMessage
// among it.
func (c *Client) Call(tool string, args any) (Tool, error) {
	m, err := c.Request("tools/call", map[string]any{"name": tool, "arguments": args})
	if err != nil {
		return Tool{}, err
	}
	return Parse(m)
}

// Parse reads a tool result out of an answer.
func Parse(m Message) (t Tool, err error) {
	if m.Error != nil {
		return Tool{Text: m.Error.Message, Code: m.Error.Code, IsError: true}, nil
	}
	var r struct {
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
		StructuredContent json.RawMessage `json:"structuredContent"`
		IsError           bool            `json:"isError"`
	}
	if err := json.Unmarshal(m.Result, &r); err != nil || len(r.Content) == 0 {
		return t, fmt.Errorf("not a tool result: %s", m.Line)
	}
	return Tool{Text: r.Content[0].Text, Structured: r.StructuredContent, IsError: r.IsError}, nil
}

// Field gives a top-level string field of the structured content, "" where there is none.
func (t Tool) Field(name string) string {
	var m map[string]any
	_ = json.Unmarshal(t.Structured, &m)
	s, _ := m[name].(string)
	return s
}

// Lines are all lines that came so far.
func (c *Client) Lines() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.raw...)
}

// Notifications are the messages that were no answers.
func (c *Client) Notifications() []Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Message(nil), c.notes...)
}

// Process is the running process.
func (c *Client) Process() *os.Process { return c.cmd.Process }

// CloseInput ends the server's input and leaves the rest to it.
func (c *Client) CloseInput() error { return c.stdin.Close() }

// Close ends the input and waits for the process; its exit error, if any, is returned.
func (c *Client) Close() error {
	_ = c.stdin.Close()
	<-c.done
	if c.cmd == nil {
		return nil
	}
	return c.cmd.Wait()
}

// Kill ends the process at once, as kill -9 does.
func (c *Client) Kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
	_ = c.cmd.Wait()
}
