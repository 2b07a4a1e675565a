//go:build clients

package clients

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// teeEnv makes this test binary stand between a client and the server that it is given: it
// writes both directions to files of a new folder in the one that the variable names.
const teeEnv = "KUBE_WRITE_TEE"

const (
	fromClient, fromServer = "client.jsonl", "server.jsonl"
	whole                  = "ended" // a file that is there once the server has ended
)

// tee runs the server, and gives its exit code. When the client closes its end or sends a
// signal, the server's input ends, and it is waited for.
func tee(root string, command []string) (code int) {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "tee:", err)
		return 1
	}
	dir, err := os.MkdirTemp(root, "server-")
	if err != nil {
		return fail(err)
	}
	in, err := os.Create(filepath.Join(dir, fromClient))
	if err != nil {
		return fail(err)
	}
	out, err := os.Create(filepath.Join(dir, fromServer))
	if err != nil {
		return fail(err)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal to the client's group does not reach it
	cmd.Stdout, cmd.Stderr = io.MultiWriter(out, os.Stdout), os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fail(err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	signal.Ignore(syscall.SIGPIPE) // of a client that is gone: the server still ends in order
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	go func() {
		<-signals
		stdin.Close()
	}()
	go func() {
		_, _ = io.Copy(io.MultiWriter(in, stdin), os.Stdin)
		stdin.Close()
	}()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		return fail(err)
	}
	if err := os.WriteFile(filepath.Join(dir, whole), nil, 0o600); err != nil {
		return fail(err)
	}
	return code
}

// wire is what went over the stdio of the servers that a client started.
type wire struct{ dir string }

// sent are the messages in one direction, of all servers.
func (w wire) sent(t *testing.T, direction string) (out []stdio.Message) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(w.dir, "server-*", direction))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			var m stdio.Message
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Errorf("%s: %v: %s", direction, err, line)
			}
			m.Line = line
			out = append(out, m)
		}
	}
	return out
}

// requests are the client's requests of one method.
func (w wire) requests(t *testing.T, method string) (out []stdio.Message) {
	t.Helper()
	for _, m := range w.sent(t, fromClient) {
		if m.Method == method {
			out = append(out, m)
		}
	}
	return out
}

// ended waits until every server that was started has ended.
func (w wire) ended(t *testing.T) {
	t.Helper()
	lab.Eventually(t, "the end of the servers", func() (bool, error) {
		servers, err := filepath.Glob(filepath.Join(w.dir, "server-*"))
		if err != nil {
			return false, err
		}
		ended, err := filepath.Glob(filepath.Join(w.dir, "server-*", whole))
		return len(servers) == len(ended), err
	})
}

// era is the protocol version that the client and the server agreed on: in the stateless
// era every request names it, before that the answer to the handshake does.
func (w wire) era(t *testing.T) string {
	t.Helper()
	for _, m := range w.requests(t, "tools/list") {
		var p struct {
			Meta struct {
				Version string `json:"io.modelcontextprotocol/protocolVersion"`
			} `json:"_meta"`
		}
		if json.Unmarshal(m.Params, &p) == nil && p.Meta.Version != "" {
			return p.Meta.Version
		}
	}
	for _, m := range w.sent(t, fromServer) {
		var r struct {
			Version string `json:"protocolVersion"`
		}
		if json.Unmarshal(m.Result, &r) == nil && r.Version != "" {
			return r.Version
		}
	}
	t.Fatal("the client agreed on no protocol version")
	return ""
}

// calls are the client's calls of one tool.
func (w wire) calls(t *testing.T, tool string) (out []stdio.Message) {
	t.Helper()
	for _, m := range w.requests(t, "tools/call") {
		var p struct {
			Name string `json:"name"`
		}
		if json.Unmarshal(m.Params, &p) == nil && p.Name == tool {
			out = append(out, m)
		}
	}
	return out
}

// results are the results of the calls of one tool that were answered, in their order.
func (w wire) results(t *testing.T, tool string) (out []stdio.Tool) {
	t.Helper()
	answers := map[string]stdio.Message{}
	for _, m := range w.sent(t, fromServer) {
		if m.Method == "" {
			answers[string(m.ID)] = m
		}
	}
	for _, m := range w.calls(t, tool) {
		// A question is no result, and has no content.
		if got, err := stdio.Parse(answers[string(m.ID)]); err == nil {
			out = append(out, got)
		}
	}
	return out
}

// listed are the tools that the server listed, by name, as they came.
func (w wire) listed(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, m := range w.sent(t, fromServer) {
		var r struct {
			Tools []json.RawMessage `json:"tools"`
		}
		_ = json.Unmarshal(m.Result, &r)
		for _, raw := range r.Tools {
			var tool struct {
				Name string `json:"name"`
			}
			if err := json.Unmarshal(raw, &tool); err != nil {
				t.Fatal(err)
			}
			out[tool.Name] = string(raw)
		}
	}
	return out
}
