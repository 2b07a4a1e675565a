// Package rules tests what the tree must and must not contain.
package rules

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/kubewrite/kube-write-mcp"

// pkg is what go list says of a package.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
}

func packages(t *testing.T) (out []pkg) {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports", module+"/...")
	raw, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	for dec.More() {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// inside is what each package may import of this module, and why.
var inside = map[string]struct {
	may []string
	why string
}{
	"pkg/refusal": {nil, "a leaf: everybody refuses"},
	"pkg/plan":    {nil, "a leaf: pure data"},
	"pkg/action":  {[]string{"pkg/plan", "pkg/refusal"}, "third parties import it: it drags nothing else in"},
	"actions":     {[]string{"pkg/action", "pkg/plan", "pkg/refusal"}, "an action only plans: it must reach no writer"},
	"pkg/gate":    {[]string{"pkg/plan", "pkg/refusal"}, "a gate decides and does nothing"},
	"pkg/blast":   {[]string{"pkg/plan", "pkg/refusal"}, "arithmetic over a snapshot"},
	"pkg/journal": {[]string{"pkg/plan", "pkg/refusal"}, "the record knows no clients"},
	"pkg/kube":    {[]string{"pkg/plan", "pkg/refusal"}, "clients know no actions"},
	"pkg/engine":  {[]string{"pkg/action", "pkg/gate", "pkg/blast", "pkg/journal", "pkg/kube", "pkg/plan", "pkg/refusal"}, "the one place where all come together"},
	"pkg/read":    {[]string{"pkg/plan", "pkg/refusal", "pkg/journal"}, "it reads and decides nothing: scope and record are the engine's"},
	"pkg/server":  {[]string{"pkg/engine", "pkg/action", "pkg/read", "pkg/plan", "pkg/refusal"}, "the protocol reaches no client and no record"},
	"pkg/memory":  {nil, "a leaf, and without dependencies: it must initialise before what allocates"},
	"pkg/manifests": {
		[]string{"pkg/gate"},
		"objects made from a policy and from rules: it needs no client",
	},
	"pkg/app": {
		[]string{"pkg/action", "pkg/engine", "pkg/gate", "pkg/journal", "pkg/journal/cluster", "pkg/kube", "pkg/manifests", "pkg/memory", "pkg/plan", "pkg/read", "pkg/refusal", "pkg/server"},
		"it wires all of pkg, and takes the actions from main, so that a third party's main can bring more",
	},
	"pkg/journal/cluster": {
		[]string{"pkg/journal", "pkg/kube", "pkg/plan", "pkg/refusal"},
		"the ledger of several replicas: the fold is the journal's, the client is kube's",
	},
	"cmd/kube-write-mcp": {[]string{"pkg/app", "actions"}, "ten lines"},
}

// outside is who alone may import a module, and why.
var outside = []struct {
	prefix string
	may    []string
	why    string
}{
	{"github.com/mark3labs/mcp-go", []string{"pkg/server"}, "only the server speaks MCP"},
	{"k8s.io/client-go/rest", []string{"pkg/kube", "pkg/app"}, "only kube builds clients; app loads the kubeconfig"},
	{"k8s.io/client-go/dynamic", nil, "dry run and execution are the same typed call"},
	{"github.com/prometheus", []string{"pkg/app"}, "what is counted is wiring; nothing below knows a registry"},
	{"go.opentelemetry.io", []string{"pkg/app"}, "what is traced is wiring; nothing below knows a provider"},
	{"golang.org/x/net", []string{"pkg/server"}, "one listener"},
	{"os/exec", nil, "no subprocess in the product"},
	{"k8s.io/client-go", []string{"pkg/action", "actions", "pkg/blast", "pkg/kube", "pkg/read", "pkg/journal", "pkg/journal/cluster", "pkg/engine", "pkg/app"}, "plan, refusal and gate are data and decisions"},
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if strings.HasPrefix(name, "test") || strings.HasPrefix(name, "hack") {
			continue
		}
		rule, ruled := inside[name]
		if !ruled {
			t.Errorf("%s has no rule: say what it may import, and why", name)
		}
		for _, i := range p.Imports {
			if own, ok := strings.CutPrefix(i, module+"/"); ok && !slices.Contains(rule.may, own) {
				t.Errorf("%s imports %s, which it may not: %s", name, own, rule.why)
			}
			for _, o := range outside {
				if (i == o.prefix || strings.HasPrefix(i, o.prefix+"/")) && !slices.Contains(o.may, name) {
					t.Errorf("%s imports %s, which it may not: %s", name, i, o.why)
				}
			}
			if strings.HasPrefix(i, module+"/test") || strings.HasPrefix(i, module+"/hack") {
				t.Errorf("%s imports %s: the product does not rest on its tests", name, i)
			}
		}
	}
}

// forbidden is text that the product's sources must not hold.
var forbidden = []struct {
	text *regexp.Regexp
	why  string
}{
	{regexp.MustCompile(`\.RESTClient\(\)`), "a raw client goes around the typed calls"},
	{regexp.MustCompile(`// *TODO`), "what is open stands in an issue"},
	{regexp.MustCompile(`Idempotency-Key`), "net/http would then send a write again"},
}

func TestSources(t *testing.T) {
	for _, p := range packages(t) {
		for _, f := range p.GoFiles {
			raw, err := os.ReadFile(filepath.Join(p.Dir, f))
			if err != nil {
				t.Fatal(err)
			}
			for _, no := range forbidden {
				if no.text.Match(raw) && !strings.Contains(p.Dir, "/test/") {
					t.Errorf("%s/%s has %s: %s", p.ImportPath, f, no.text, no.why)
				}
			}
		}
	}
}

// TestTopLevel: the top level is fixed; dotfiles and LICENSE may stand beside it.
func TestTopLevel(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{"cmd", "pkg", "actions", "test", "hack", "go.mod", "go.sum", "Dockerfile", "README.md", "LICENSE"}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); !strings.HasPrefix(name, ".") && !slices.Contains(allowed, name) && name != "bin" && name != "dist" {
			t.Errorf("%s does not belong at the top level", name)
		}
	}
}
