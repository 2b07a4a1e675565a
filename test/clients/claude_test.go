//go:build clients

package clients

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// object is a JSON object.
type object = map[string]any

const claudePackage, claudeCode = "@anthropic-ai/claude-code", "Claude Code"

// claude is one run of Claude Code, headless, with a scripted model and one server,
// kube-write.
type claude struct {
	*harness.Server // with the proxy between the server and the API server
	*model
	wire
	version string
	output  string
}

// setting is how Claude Code is set up.
type setting struct {
	server      harness.Options
	negotiation string        // auto (when empty: the newest era that both know) or legacy
	timeout     time.Duration // of a call, in .mcp.json; 0 is none
	permissions object
	hooks       object
	flags       []string
	env         []string
}

// runClaude lets the model play its turns, and waits for the end of Claude Code and of the
// server.
func runClaude(t *testing.T, s setting, turns ...turn) *claude {
	t.Helper()
	dir, version := installed(t, claudePackage+"-"+platform())
	server, args := harness.Prepare(t, cp, s.server)
	c := &claude{Server: server, model: newModel(t, turns...), wire: wire{t.TempDir()}, version: version}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	home, project := t.TempDir(), t.TempDir()
	stdioServer := object{
		"type": "stdio", "command": self, "args": append([]string{harness.Program(t, cp)}, args...),
		"env": map[string]string{teeEnv: c.wire.dir},
	}
	if s.timeout > 0 {
		stdioServer["timeout"] = s.timeout.Milliseconds()
	}
	mcp := writeJSON(t, project, "mcp.json", object{"mcpServers": object{"kube-write": stdioServer}})
	set := object{}
	for name, v := range map[string]object{"permissions": s.permissions, "hooks": s.hooks} {
		if v != nil { // with permissions null, Claude Code takes no hooks either
			set[name] = v
		}
	}
	settings := writeJSON(t, project, "settings.json", set)

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "claude"), append([]string{
		"-p", "go on", "--mcp-config", mcp, "--strict-mcp-config", "--settings", settings, "--output-format", "json",
	}, s.flags...)...)
	cmd.Dir = project
	cmd.Env = append([]string{
		"HOME=" + home, "PATH=/usr/bin:/bin", "TERM=dumb", "ANTHROPIC_BASE_URL=" + c.model.url, "ANTHROPIC_API_KEY=not-a-key",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1",
		"MCP_PROTOCOL_NEGOTIATION=" + cmp.Or(s.negotiation, "auto"),
	}, s.env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	c.output = out.String()
	if err != nil {
		t.Fatalf("Claude Code: %v: %s", err, c.output)
	}
	c.wire.ended(t)
	return c
}

// eras runs a test in each era that Claude Code speaks.
func eras(t *testing.T, test func(t *testing.T, negotiation string)) {
	for _, negotiation := range []string{"auto", "legacy"} {
		t.Run(negotiation, func(t *testing.T) { test(t, negotiation) })
	}
}

// record puts checks of this run into the table.
func (c *claude) record(t *testing.T, checks ...string) {
	t.Helper()
	for _, check := range checks {
		record(t, claudeCode, c.version, c.wire.era(t), check)
	}
}

// tool is a tool of the server, as Claude Code calls it.
func tool(name string) string { return "mcp__kube-write__" + name }

// allow lets tools run without a question.
func allow(names ...string) object {
	var tools []string
	for _, n := range names {
		tools = append(tools, tool(n))
	}
	return object{"allow": tools}
}

// calls is a turn of one call.
func calls(name string, args harness.Args) turn {
	return func([]told) []use { return []use{{tool(name), args}} }
}

// loads is the turn that makes the client show a tool's schema.
func loads(name string) turn {
	return func([]told) []use { return []use{{"ToolSearch", object{"query": "select:" + tool(name)}}} }
}

// confirms is the turn after a plan: what was planned is called, with the phrase.
func confirms(name string, args harness.Args) turn {
	return func(seen []told) []use {
		return []use{{tool(name), args.With("confirm", seen[0].asTool().Field("confirm")).With("reason", "a test")}}
	}
}

// asTool is what the model was told, as the tool result that it is of: Claude Code shows
// the structured part of a success, and the text of an error.
func (r told) asTool() stdio.Tool {
	if r.isError {
		return stdio.Tool{Text: r.text, IsError: true}
	}
	return stdio.Tool{Text: r.text, Structured: json.RawMessage(r.text)}
}

// only is what the model was told in turns of one call each.
func (c *claude) only(t *testing.T, turns int) (out []stdio.Tool) {
	t.Helper()
	for _, turn := range c.told() {
		for _, r := range turn {
			out = append(out, r.asTool())
		}
	}
	if len(out) != turns {
		t.Fatalf("the model was told of %d calls, want %d: %v", len(out), turns, c.told())
	}
	return out
}

// writeJSON writes a file and gives its path.
func writeJSON(t *testing.T, dir, name string, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
