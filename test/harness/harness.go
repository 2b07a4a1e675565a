// Package harness runs the server under test: the real program, as a ServiceAccount with
// exactly the generated RBAC, against a real API server, with a recording proxy between
// them that is the independent witness of what was sent.
package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// Options change what a server is started with.
type Options struct {
	Era      stdio.Era    // Modern when empty
	State    string       // an own temporary folder when empty
	Config   *rest.Config // of the server's account; the generated RBAC's when nil
	Proxy    *Proxy       // an own one when nil
	ReadOnly bool         // without --allow-write
	Args     []string     // more flags

	Actions []*action.Action // beside the built-in ones

	Answer func(form json.RawMessage) any // of the person at the client; nil is a client that cannot ask
}

// Server is one server under test with a client connected to it.
type Server struct {
	*stdio.Client
	T     testing.TB
	Proxy *Proxy
	State string

	stderr Buffer
}

// Account makes (once per lab) the ServiceAccount with exactly the generated RBAC.
func Account(t testing.TB, l *lab.Lab) *rest.Config {
	t.Helper()
	accounts.Lock()
	defer accounts.Unlock()
	if cfg := accounts.of[l]; cfg != nil {
		return cfg
	}
	cfg, err := l.ServiceAccount(context.Background(), "kube-write-mcp", "server", engine.Rules(actions.All(), read.Rules()...))
	if err != nil {
		t.Fatal(err)
	}
	if accounts.of == nil {
		accounts.of = map[*lab.Lab]*rest.Config{}
	}
	accounts.of[l] = cfg
	return cfg
}

var accounts struct {
	sync.Mutex
	of map[*lab.Lab]*rest.Config
}

// Start runs a server in this process, so that the race detector sees it. It is closed,
// and its journal verified from the first line, when the test ends.
func Start(t testing.TB, l *lab.Lab, o Options) *Server {
	t.Helper()
	s, args := prepare(t, l, &o)
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if code := app.Main(args, inR, outW, &s.stderr, append(actions.All(), o.Actions...)...); code != 0 {
			t.Errorf("the server ended with %d: %s", code, s.stderr.String())
		}
		outW.Close()
		inR.CloseWithError(io.ErrClosedPipe) // a server that could not start reads nothing
	}()
	c, err := stdio.Connect(o.Era, inW, outR, o.Answer)
	if err != nil {
		t.Fatal(err, s.stderr.String())
	}
	s.Client = c
	t.Cleanup(func() {
		c.Close()
		<-ended // it signs its journal in a folder that is removed next
	})
	return s
}

// Spawn runs the given binary as a process of its own, for what only a process can show.
func Spawn(t testing.TB, l *lab.Lab, binary string, o Options) *Server {
	t.Helper()
	s, args := prepare(t, l, &o)
	c, err := stdio.Start(o.Era, binary, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	s.Client = c
	t.Cleanup(func() { c.Kill() })
	return s
}

// Prepare gives a server that is not started, and the arguments that start it, for a test
// that brings its own client.
func Prepare(t testing.TB, l *lab.Lab, o Options) (*Server, []string) {
	t.Helper()
	return prepare(t, l, &o)
}

func prepare(t testing.TB, l *lab.Lab, o *Options) (*Server, []string) {
	t.Helper()
	if o.Era == "" {
		o.Era = stdio.Modern
	}
	if o.State == "" {
		o.State = filepath.Join(t.TempDir(), "state")
	}
	if o.Config == nil {
		o.Config = Account(t, l)
	}
	if o.Proxy == nil {
		o.Proxy = NewProxy(t, o.Config)
	}
	s := &Server{T: t, Proxy: o.Proxy, State: o.State}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := l.Kubeconfig(kubeconfig, "kind-lab", o.Proxy.Config()); err != nil {
		t.Fatal(err)
	}
	args := []string{"serve", "--kubeconfig", kubeconfig, "--state-dir", o.State, "--allow-node-selector", "pool=lab"}
	if !o.ReadOnly {
		args = append(args, "--allow-write")
	}
	t.Cleanup(func() { Lines(t, o.State) }) // runs after the server has ended
	return s, append(args, o.Args...)
}

// Lines reads a journal whole and fails the test where it does not verify.
func Lines(t testing.TB, state string) (lines []*journal.Line) {
	t.Helper()
	keys, err := journal.ReadKeys(filepath.Join(state, "keys.json"), time.Now)
	if err != nil {
		t.Error(err)
		return nil
	}
	err = journal.Scan(filepath.Join(state, "audit.jsonl"), keys, func(l *journal.Line) error {
		lines = append(lines, l)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return lines
}

// Events are the events of a journal in order.
func Events(t testing.TB, state string) (events []string) {
	t.Helper()
	for _, l := range Lines(t, state) {
		events = append(events, l.Event)
	}
	return events
}

// Args are the arguments of a call.
type Args map[string]any

// With copies the arguments and adds to them.
func (a Args) With(key string, value any) Args {
	out := Args{key: value}
	for k, v := range a {
		if k != key {
			out[k] = v
		}
	}
	return out
}

// Must calls a tool and fails the test where there is no answer at all.
func (s *Server) Must(tool string, args any) stdio.Tool {
	s.T.Helper()
	got, err := s.Call(tool, args)
	if err != nil {
		s.T.Fatalf("%s: %v; stderr: %s", tool, err, s.stderr.String())
	}
	return got
}

// Plan plans an action and gives the arguments that execute it. It fails the test where
// there is no phrase.
func (s *Server) Plan(action string, args Args) Args {
	s.T.Helper()
	got := s.Must("plan_"+action, args)
	phrase := got.Field("confirm")
	if phrase == "" {
		s.T.Fatalf("plan_%s gave no phrase: %s", action, got.Text)
	}
	return args.With("confirm", phrase).With("reason", "a test")
}

// Do plans and executes.
func (s *Server) Do(action string, args Args) stdio.Tool {
	s.T.Helper()
	return s.Must(action, s.Plan(action, args))
}

// Code is the code of a refusal, else "".
func Code(t stdio.Tool) string { return t.Field("code") }

// Into decodes the structured part of an answer.
func Into[T any](t testing.TB, got stdio.Tool) (v T) {
	t.Helper()
	if err := json.Unmarshal(got.Structured, &v); err != nil {
		t.Fatalf("%v in %s", err, got.Structured)
	}
	return v
}

// Buffer is what a server writes to while a test reads it.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Logged is what the server wrote to stderr so far.
func (s *Server) Logged() string { return s.stderr.String() }
