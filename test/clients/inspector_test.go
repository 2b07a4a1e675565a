//go:build clients

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// The eras that the inspector is told to use, and the protocol versions that these are.
var inspectorEras = map[string]string{"legacy": "2025-11-25", "modern": "2026-07-28"}

// inspect runs the inspector's command line on the shipped program. Its version and era go
// into the table with the check.
func inspect(t *testing.T, era string, args ...string) (stdout, stderr string, passed func(check string)) {
	t.Helper()
	dir, version := installed(t, "@modelcontextprotocol/inspector")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	_, server := harness.Prepare(t, cp, harness.Options{Args: []string{"--quiet"}})
	w := wire{t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, "node", slices.Concat([]string{filepath.Join(dir, "clients", "launcher", "build", "index.js"), "--cli", "-e", teeEnv + "=" + w.dir, self, harness.Program(t, cp)}, server, args, []string{"--protocol-era", era})...)
	run.Env = append(os.Environ(), "HOME="+t.TempDir(), "MCP_INSPECTOR_SECRET_STORE=memory")
	var out, said bytes.Buffer
	run.Stdout, run.Stderr = &out, &said
	if err := run.Run(); err != nil {
		t.Errorf("%v: %s", err, said.String())
	}
	w.ended(t)
	return out.String(), said.String(), func(check string) {
		t.Helper()
		if t.Failed() {
			return
		}
		if got := w.era(t); got != inspectorEras[era] {
			t.Errorf("era %s, want %s", got, inspectorEras[era])
		}
		record(t, "MCP Inspector", version, inspectorEras[era], "stdio: "+check)
	}
}

// TestInspectorLint: the inspector finds no schema that some client would not take.
func TestInspectorLint(t *testing.T) {
	for era := range inspectorEras {
		t.Run(era, func(t *testing.T) {
			out, said, passed := inspect(t, era, "--method", "tools/list", "--strict")
			var list struct{ Tools []struct{ Name string } }
			if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Tools) == 0 {
				t.Fatalf("%v: %s", err, out)
			}
			if said != "" {
				t.Errorf("it says: %s", said)
			}
			passed("the strict lint of the schemas of all tools says nothing")
		})
	}
}

// TestInspectorLoad: a thousand reads, sixteen at a time, are all answered.
func TestInspectorLoad(t *testing.T) {
	type load struct {
		Concurrency, Requests, OK, ToolErrors, Errors int
		ErrorMessages                                 []any
	}
	for era := range inspectorEras {
		t.Run(era, func(t *testing.T) {
			out, _, passed := inspect(t, era, "--method", "tools/call", "--tool-name", "list_namespaces", "--load", "--load-requests", "1000", "--load-concurrency", "16")
			var got load
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if d := cmp.Diff(load{Concurrency: 16, Requests: 1000, OK: 1000, ErrorMessages: []any{}}, got); d != "" {
				t.Errorf("load (-want +got):\n%s", d)
			}
			passed("1000 calls of list_namespaces, 16 at a time, without an error")
		})
	}
}
