// Package readme keeps README.md and the files under hack/packaging in step with the
// program.
package readme

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/hack/readme/sections"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
)

const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func documents(t *testing.T) map[string]string {
	t.Helper()
	docs, err := sections.Docs(root)
	if err != nil {
		t.Fatal(err)
	}
	return docs
}

func compare(t *testing.T, want map[string]string) {
	t.Helper()
	docs := documents(t)
	for name, section := range want {
		got, err := sections.Get(docs, name)
		if err != nil {
			t.Error(err)
		} else if diff := cmp.Diff(section, got); diff != "" {
			t.Errorf("section %s is out of step; run %s (-generated +document):\n%s", name, sections.Update, diff)
		}
	}
}

// TestReadmeGenerated compares the tables and the included files; it needs no cluster.
func TestReadmeGenerated(t *testing.T) {
	want, err := sections.Static(root)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, want)
}

// TestReadmeDemo runs the demo as hack/demo.sh does and compares what it prints.
func TestReadmeDemo(t *testing.T) {
	dir := t.TempDir()
	binary, demo := build(t, dir, "cmd/kube-write-mcp"), build(t, dir, "hack/demo")
	cmd := exec.CommandContext(t.Context(), demo, "--binary", binary)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its control plane
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if strings.Contains(string(out), "!! expected") {
			t.Logf("%s", out)
		}
		t.Fatal(strings.TrimSpace(stderr.String())) // in one line; without the control plane it names hack/controlplane/build.sh
	}
	want, err := sections.Demo(string(out))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	compare(t, want)
}

func build(t *testing.T, dir, path string) string {
	t.Helper()
	out := filepath.Join(dir, filepath.Base(path))
	if runtime.GOOS == "windows" {
		out += ".exe"
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", out, "./"+path)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", path, err, said)
	}
	return out
}

// run is the program without a cluster.
func run(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	var out, errs bytes.Buffer
	if code := app.Main(args, strings.NewReader(""), &out, &errs, actions.All()...); code != 0 {
		t.Fatalf("%v: exit %d: %s", args, code, errs.String())
	}
	return out.String()
}

// TestPackagingPolicy wants the sample policy to be accepted, and to change nothing where
// it says that it shows the defaults.
func TestPackagingPolicy(t *testing.T) {
	file := filepath.Join(root, "hack", "packaging", "policy.yaml")
	if diff := cmp.Diff(run(t, "tools", "--allow-write"), run(t, "tools", "--allow-write", "--policy", file)); diff != "" {
		t.Errorf("the sample policy changes the tools (-defaults +sample):\n%s", diff)
	}
	sample := read(t, "hack/packaging/policy.yaml")
	flags, err := sections.Get(documents(t), "flags")
	if err != nil {
		t.Fatal(err)
	}
	for row := range strings.Lines(flags) {
		cells := strings.Split(row, " | ")
		if len(cells) < 4 || cells[2] != "yes" {
			continue
		}
		name := strings.Trim(cells[0], "| `-")
		if field := "\n" + strings.ReplaceAll(name, "-", "_") + ":"; !strings.Contains(sample, field) {
			t.Errorf("hack/packaging/policy.yaml lacks the field of --%s", name)
		}
	}
}

// TestPackagingMCP wants the default entry to have no write tool, the other one all of
// them, and both to start with flags that exist.
func TestPackagingMCP(t *testing.T) {
	var config struct {
		Servers map[string]struct {
			Type, Command string
			Args          []string
		} `json:"mcpServers"`
	}
	if err := json.Unmarshal([]byte(read(t, "hack/packaging/mcp.json")), &config); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"kube-plan": false, "kube-write": true} {
		s, ok := config.Servers[name]
		if !ok || s.Type != "stdio" || s.Command != "kube-write-mcp" {
			t.Fatalf("there is no stdio server %s that runs kube-write-mcp", name)
		}
		if slices.Contains(s.Args, "--allow-write") != want {
			t.Errorf("%s has --allow-write: %t, want %t", name, !want, want)
		}
		listed := run(t, append(s.Args, "--list-tools")...)
		for _, a := range actions.All() {
			if !strings.Contains(listed, "\n plan_"+a.Name+" ") {
				t.Errorf("%s does not list plan_%s", name, a.Name)
			}
			if got := strings.Contains(listed, "\n "+a.Name+" "); got != want {
				t.Errorf("%s lists %s: %t, want %t", name, a.Name, got, want)
			}
		}
	}
}

// TestPackagingPermissions wants plans to be allowed, every write to ask, and the write
// server to be off.
func TestPackagingPermissions(t *testing.T) {
	var settings struct {
		Enabled     []string `json:"enabledMcpjsonServers"`
		Disabled    []string `json:"disabledMcpjsonServers"`
		Permissions struct{ Allow, Ask []string }
	}
	if err := json.Unmarshal([]byte(read(t, "hack/packaging/claude-settings.json")), &settings); err != nil {
		t.Fatal(err)
	}
	writes := []string{"mcp__kube-write__undo", "mcp__kube-write__changes"}
	for _, a := range actions.All() {
		writes = append(writes, "mcp__kube-write__"+a.Name)
	}
	slices.Sort(writes)
	var allowed []string
	for _, server := range []string{"kube-plan", "kube-write"} {
		for _, name := range []string{
			"plan_*", "write_status", "get_logs", "get_workload", "list_events", "list_namespaces", "list_nodes", "list_pods", "list_workloads", "write_history",
		} {
			allowed = append(allowed, "mcp__"+server+"__"+name)
		}
	}
	for _, c := range []struct {
		name      string
		got, want []string
	}{
		{"enabled", settings.Enabled, []string{"kube-plan"}},
		{"disabled", settings.Disabled, []string{"kube-write"}},
		{"allow", settings.Permissions.Allow, allowed},
		{"ask", settings.Permissions.Ask, writes},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s in hack/packaging/claude-settings.json (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestRetriesAreShownOnce has the output of a demo in which two requests met a conflict.
func TestRetriesAreShownOnce(t *testing.T) {
	const once = `The story.

1. A plan.

2. A guess.

4. The phrase.

5. Again.

What is on record (kube-write-mcp audit show):

     TIME            EVENT           WHAT
     01-02 03:04:05  execute_intent  scale deployment default/web
     01-02 03:04:05  step            scale deployment default/web                  applied
     01-02 03:04:05  execute         scale deployment default/web                  EXECUTED
                                     [abcdefghij]
`
	twice := strings.Replace(once, "     01-02 03:04:05  step            scale", `     01-02 03:04:05  step            scale deployment default/web                  not applied     the object has been modified; please apply
                                                                                                   your changes to the latest version
     01-02 03:04:05  execute_intent  scale deployment default/web
     01-02 03:04:05  step            scale`, 1)
	const line = "\nThe execute line answers what it was before, in full:\n\n    {\"event\":\"execute\", \"plan\":\"abcdefghij\"}\n"
	want, err := sections.Demo(once + line)
	if err != nil {
		t.Fatal(err)
	}
	got, err := sections.Demo(twice + line)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-once +twice:\n%s", diff)
	}
}
