//go:build clients

package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// codex is Codex's app server, which nobody is logged in to, with the server kube-write.
type codex struct {
	*harness.Server
	wire
	app     *stdio.Client
	version string
	t       *testing.T
}

// startCodex starts it. It is ended with the test.
func startCodex(t *testing.T, o harness.Options) *codex {
	t.Helper()
	_, version := installed(t, "@openai/codex")
	dir, _ := installed(t, "@openai/codex-"+platform())
	found, err := filepath.Glob(filepath.Join(dir, "vendor", "*", "bin", "codex"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the program of Codex: %q (%v)", found, err)
	}
	server, args := harness.Prepare(t, cp, o)
	c := &codex{Server: server, wire: wire{t.TempDir()}, version: version, t: t}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	config := fmt.Sprintf("[mcp_servers.kube-write]\ncommand = %s\nargs = %s\nenv = { %s = %s }\n",
		encode(t, self), encode(t, append([]string{harness.Program(t, cp)}, args...)), teeEnv, encode(t, c.wire.dir)) // JSON texts and lists are TOML, too
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	// It speaks JSON-RPC lines of its own protocol: no era of MCP.
	c.app, err = stdio.Start("", found[0], []string{"HOME=" + home, "CODEX_HOME=" + home, "OPENAI_API_KEY="}, "app-server")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.app.Kill()
		c.wire.ended(t)
	})
	c.request("initialize", object{"clientInfo": object{"name": "test", "version": "1"}})
	if err := c.app.Notify("initialized", nil); err != nil {
		t.Fatal(err)
	}
	return c
}

// request asks the app server, and fails the test where it answers with an error.
func (c *codex) request(method string, params object) json.RawMessage {
	c.t.Helper()
	m, err := c.app.Request(method, params)
	if err != nil || m.Error != nil {
		c.t.Fatalf("%s: %s (%v): %s", method, m.Line, err, c.app.Stderr)
	}
	return m.Result
}

// TestCodex_Lists: Codex connects, and lists the tools that the server lists, under names
// that it does not have to shorten.
func TestCodex_Lists(t *testing.T) {
	c := startCodex(t, harness.Options{})
	var status struct {
		Data []struct {
			Name       string                     `json:"name"`
			Tools      map[string]json.RawMessage `json:"tools"`
			ToolsError string                     `json:"toolsError"`
		} `json:"data"`
	}
	raw := c.request("mcpServerStatus/list", object{"serverName": "kube-write"})
	if err := json.Unmarshal(raw, &status); err != nil || len(status.Data) != 1 || status.Data[0].ToolsError != "" {
		t.Fatalf("status: %s (%v)", raw, err)
	}
	var got, want []string
	for name := range status.Data[0].Tools {
		got = append(got, name)
		if full := "mcp__kube-write__" + name; len(full) >= 40 {
			t.Errorf("%s has %d characters", full, len(full))
		}
	}
	for name := range c.listed(t) {
		want = append(want, name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := gocmp.Diff(want, got); diff != "" || len(want) < 40 {
		t.Errorf("tools of Codex (-want +got):\n%s", diff)
	}
	record(t, "Codex", c.version, c.wire.era(t), "connects, and lists every tool under its name")
}

// thread begins a thread, and gives a function that calls a tool in it, which needs no model.
func (c *codex) thread() func(tool string, args harness.Args) stdio.Tool {
	c.t.Helper()
	var started struct {
		Thread struct {
			ID string `json:"id"`
		} `json:"thread"`
	}
	if raw := c.request("thread/start", object{"cwd": c.t.TempDir()}); json.Unmarshal(raw, &started) != nil || started.Thread.ID == "" {
		c.t.Fatalf("no thread: %s", raw)
	}
	return func(tool string, args harness.Args) stdio.Tool {
		c.t.Helper()
		raw := c.request("mcpServer/tool/call", object{"threadId": started.Thread.ID, "server": "kube-write", "tool": tool, "arguments": args})
		got, err := stdio.Parse(stdio.Message{Result: raw, Line: string(raw)})
		if err != nil {
			c.t.Fatal(err)
		}
		if sent := c.results(c.t, tool); len(sent) != 1 || sent[0].Text != got.Text || !sameJSON(c.t, sent[0].Structured, got.Structured) {
			c.t.Errorf("%s: Codex gives %s %s\nof %+v", tool, got.Text, got.Structured, sent)
		}
		return got
	}
}

// TestCodex_Calls plans and writes through Codex's own call of a tool: both answers come
// through with both their parts.
func TestCodex_Calls(t *testing.T) {
	ns, scale := web(t)
	c := startCodex(t, harness.Options{})
	call := c.thread()
	planned := call("plan_scale", scale)
	done := call("scale", scale.With("confirm", planned.Field("confirm")).With("reason", "a test"))
	if e := harness.Into[harness.Execution](t, done); e.Outcome != plan.Executed || e.Replayed {
		t.Errorf("the execution: %s", done.Text)
	}
	if diff := gocmp.Diff(scaled, written(t, ns)); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	record(t, "Codex", c.version, c.wire.era(t), "a plan and its write, called by the app server: both parts of each answer, written once")
}

// TestCodex_Person: a question reaches the application around Codex, and one that nobody
// answers there is a refusal.
func TestCodex_Person(t *testing.T) {
	ns := cp.Namespace(t)
	loners(t, ns, "node-1", "loner")
	c := startCodex(t, harness.Options{Args: []string{"--verify-wait", "1s"}})
	call := c.thread()
	evict := harness.Of(ns, "pod", "loner")
	got := call("evict_pod", evict.With("confirm", call("plan_evict_pod", evict).Field("confirm")).With("reason", "a test"))
	if !got.IsError || harness.Code(got) != "needs_person" || !exists(t, ns, "loner") {
		t.Errorf("the eviction: %s", got.Text)
	}
	if !slices.ContainsFunc(c.app.Notifications(), func(m stdio.Message) bool { return m.Method == "mcpServer/elicitation/request" }) {
		t.Error("the application was asked nothing")
	}
	record(t, "Codex", c.version, c.wire.era(t), "a question reaches the application; unanswered: nothing written")
}
