package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// source is one Go file of the tree, whatever system it is built for.
type source struct {
	path string // from the root
	*ast.File
}

func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s source) folder() string { return filepath.ToSlash(filepath.Dir(s.path)) }

// product reports whether the file is built into the binary, on any system.
func (s source) product() bool {
	return !s.test() && !strings.HasPrefix(s.path, "test/") && !strings.HasPrefix(s.path, "hack/")
}

// sources parses every Go file. go list, by which the import rules go, leaves out the files
// of other systems.
func sources(t *testing.T) (out []source) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "testdata"):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		out = append(out, source{filepath.ToSlash(rel), f})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 50 {
		t.Fatalf("only %d files", len(out))
	}
	return out
}

// packagesOf names, for the file, the import path behind each local name.
func (s source) packagesOf() map[string]string {
	names := map[string]string{}
	for _, i := range s.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			continue
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		names[name] = path
	}
	return names
}

// uses gives what a file refers to, with the function it stands in: package selectors as
// "time.Now", others as ".Send" with one more name before it, built-ins as "panic".
func (s source) uses() map[string][]string {
	out := map[string][]string{}
	packages := s.packagesOf()
	for _, d := range s.Decls {
		in := "a declaration"
		if f, ok := d.(*ast.FuncDecl); ok {
			in = f.Name.Name
		}
		add := func(what string) { out[what] = append(out[what], in) }
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if id, ok := n.Fun.(*ast.Ident); ok {
					add(id.Name)
				}
			case *ast.SelectorExpr:
				switch x := n.X.(type) {
				case *ast.Ident:
					if path, ok := packages[x.Name]; ok {
						add(path + "." + n.Sel.Name)
					}
				case *ast.SelectorExpr:
					add("." + x.Sel.Name + "." + n.Sel.Name)
				}
				add("." + n.Sel.Name)
			}
			return true
		})
	}
	return out
}

// refused is what sources may not refer to, where they may after all, and why.
var refused = []struct {
	what *regexp.Regexp
	may  []string // folders, or folder/file.go:function
	why  string
}{
	{
		regexp.MustCompile(`^panic$`),
		[]string{
			"pkg/action/action.go:New",           // a Spec that is not whole, found when the program starts
			"pkg/server/answers.go:outputSchema", // a type without a schema, found when the program starts
			"pkg/plan/object.go:Show",            // an Object is JSON by construction
			"pkg/plan/object.go:VersionOf",
			"pkg/plan/step.go:Canonical", // a Step's values were encoded by JSON
			"pkg/plan/step.go:JSON",
		},
		"a fault is an error: the caller must learn whether anything was sent",
	},
	{
		regexp.MustCompile(`^time\.(Now|Since|Until|After|Sleep|NewTimer|NewTicker|Tick)$`),
		[]string{"pkg/app", "pkg/engine", "pkg/journal", "pkg/journal/cluster", "pkg/kube", "pkg/memory", "pkg/server"},
		"plans, gates and the radius are made of data: made again, they must come out the same",
	},
	{
		regexp.MustCompile(`^k8s\.io/client-go/kubernetes\.New|^k8s\.io/client-go/rest\.(HTTPClientFor|TransportFor|RESTClientFor|UnversionedRESTClientFor)$`),
		[]string{"pkg/kube"},
		"every client has a fence, and only kube builds one",
	},
	{regexp.MustCompile(`^\.RESTClient$`), nil, "a raw client goes around the typed calls, which the dry run is the same as"},
	{regexp.MustCompile(`\.(ProxyGet|GetEphemeralContainers|UpdateEphemeralContainers|Bind)$`), nil, "it reaches into a pod, or changes one around every gate"},
	{regexp.MustCompile(`^\.Live\.Send$`), []string{"pkg/engine/steps.go:send"}, "one place sends, behind the claim and the last look"},
	{regexp.MustCompile(`^\.Dry\.Send$`), []string{"pkg/engine/planning.go:start", "pkg/app/doctor_rights.go:dryRun"}, "one place sends the dry runs of plans, one looks whether they are any"},
	{regexp.MustCompile(`^os\.Exit$`), []string{"cmd/kube-write-mcp", "pkg/server/guard.go:withDefaults"}, "what is in flight would have no outcome line"},
	{regexp.MustCompile(`^log\.`), nil, "log.Fatal ends the process; what is logged goes by slog"},
	{regexp.MustCompile(`^fmt\.Print|^os\.Stdout$|^println$|^print$`), []string{"cmd/kube-write-mcp"}, "standard output is the protocol's"},
	{regexp.MustCompile(`^net/http\.(Get|Post|PostForm|Head|DefaultClient|DefaultTransport)$`), nil, "nothing is sent but to the API server, through a fence"},
	{regexp.MustCompile(`^os\.StartProcess$|^syscall\.(Exec|ForkExec|StartProcess)$`), nil, "no subprocess in the product"},
}

// refusedImports are those that no file of the product has, on any system.
var refusedImports = map[string]string{
	"os/exec":                          "no subprocess in the product",
	"plugin":                           "no code that was not reviewed",
	"unsafe":                           "nothing here needs it",
	"C":                                "one static binary",
	"math/rand":                        "ids and keys are not to be guessed",
	"math/rand/v2":                     "ids and keys are not to be guessed",
	"net/http/pprof":                   "no listener beside the protocol's",
	"expvar":                           "no listener beside the protocol's",
	"encoding/gob":                     "the record is JSON lines",
	"k8s.io/client-go/dynamic":         "dry run and execution are the same typed call",
	"k8s.io/client-go/kubernetes/fake": "it stores what is dry-run",
}

func TestSourcesOfTheProduct(t *testing.T) {
	used := map[string]bool{}
	for _, s := range sources(t) {
		if !s.product() {
			continue
		}
		for what, in := range s.uses() {
			for _, r := range refused {
				if !r.what.MatchString(what) {
					continue
				}
				for _, f := range in {
					place := s.path + ":" + f
					switch {
					case slices.Contains(r.may, s.folder()):
						used[s.folder()] = true
					case slices.Contains(r.may, place):
						used[place] = true
					default:
						t.Errorf("%s: %s refers to %s: %s", s.path, f, what, r.why)
					}
				}
			}
		}
		for _, path := range s.packagesOf() {
			if why, ok := refusedImports[path]; ok {
				t.Errorf("%s imports %s: %s", s.path, path, why)
			}
		}
	}
	for _, r := range refused {
		for _, place := range r.may {
			if strings.Contains(place, ":") && !used[place] {
				t.Errorf("%s is allowed to refer to %s, and does not: take it off the list", place, r.what)
			}
		}
	}
}

// TestLeaves: what a third party's action drags in is small, and the vocabulary of
// refusals needs nothing at all.
func TestLeaves(t *testing.T) {
	own := regexp.MustCompile(`^` + regexp.QuoteMeta(module) + `/pkg/(plan|refusal)$`)
	standard := regexp.MustCompile(`^[a-z0-9]+(/[a-z0-9]+)*$`) // no dot in it
	for folder, may := range map[string]*regexp.Regexp{
		"pkg/refusal": nil,
		"pkg/memory":  nil,
		"pkg/plan":    regexp.MustCompile(`^k8s\.io/apimachinery/pkg/(runtime|runtime/schema|labels)$`),
		"pkg/gate":    regexp.MustCompile(own.String() + `|^k8s\.io/apimachinery/pkg/labels$|^github\.com/robfig/cron/v3$`),
		"pkg/blast":   regexp.MustCompile(own.String() + `|^k8s\.io/(api|apimachinery|component-helpers|pod-security-admission)/`),
		"pkg/action":  regexp.MustCompile(own.String() + `|^k8s\.io/(api|apimachinery|client-go/kubernetes|utils)/?|^github\.com/google/jsonschema-go/|^sigs\.k8s\.io/json$`),
	} {
		seen := false
		for _, s := range sources(t) {
			if s.folder() != folder || s.test() {
				continue
			}
			seen = true
			for _, path := range s.packagesOf() {
				if !standard.MatchString(path) && (may == nil || !may.MatchString(path)) {
					t.Errorf("%s imports %s, which is no part of what %s may rest on", s.path, path, folder)
				}
			}
		}
		if !seen {
			t.Errorf("%s has no source", folder)
		}
	}
}

// TestNothingIsLeftOpen: no test passes by not running, and what is to be done stands in
// an issue.
func TestNothingIsLeftOpen(t *testing.T) {
	open := regexp.MustCompile(`\b(` + "TO" + `DO|FIX` + "ME" + `|XX` + `X|HA` + `CK)\b`)
	for _, s := range sources(t) {
		for what, in := range s.uses() {
			if slices.Contains([]string{".Skip", ".Skipf", ".SkipNow"}, what) {
				t.Errorf("%s: %s skips a test: it must run, or be built for the systems on which it can", s.path, in)
			}
		}
		for _, group := range s.Comments {
			if m := open.FindString(group.Text()); m != "" {
				t.Errorf("%s: a comment says %s", s.path, m)
			}
		}
	}
}

// TestModule: go install of a version works only without them.
func TestModule(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(raw), "\n") {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); slices.Contains([]string{"replace", "exclude", "toolchain"}, word) {
			t.Errorf("go.mod:%d: %s", i+1, line)
		}
	}
	if !strings.HasPrefix(string(raw), fmt.Sprintf("module %s\n", module)) {
		t.Errorf("go.mod begins with %.60q", raw)
	}
}
