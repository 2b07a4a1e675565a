// Package sections makes the generated parts of README.md and of the guides under
// hack/docs: what stands between "<!-- begin: NAME -->" and "<!-- end: NAME -->". Tables come from the program itself, the
// demo from a captured run of it.
package sections

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// Update is the fix for a document that is out of step.
const Update = "hack/update-readme.sh"

func begin(name string) string { return "<!-- begin: " + name + " -->\n" }
func end(name string) string   { return "<!-- end: " + name + " -->" }

// Docs are README.md and the guides of a folder, by their names from there.
func Docs(root string) (map[string]string, error) {
	guides, err := filepath.Glob(filepath.Join(root, "hack", "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	docs := map[string]string{}
	for _, path := range append(guides, filepath.Join(root, "README.md")) {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		docs[filepath.ToSlash(name)] = string(raw)
	}
	return docs, nil
}

// Get gives a section as it stands in the one document that has it.
func Get(docs map[string]string, name string) (section string, err error) {
	err = fmt.Errorf("no document has the section %s", name)
	for _, doc := range slices.Sorted(maps.Keys(docs)) {
		_, rest, ok := strings.Cut(docs[doc], begin(name))
		if !ok {
			continue
		}
		if err == nil {
			return "", fmt.Errorf("%s has the section %s as well", doc, name)
		}
		var closed bool
		if section, _, closed = strings.Cut(rest, end(name)); !closed {
			return "", fmt.Errorf("%s does not end the section %s", doc, name)
		}
		err = nil
	}
	return section, err
}

// Set puts sections into the documents; each must have its markers in one of them.
func Set(docs map[string]string, sections map[string]string) error {
	for name, section := range sections {
		old, err := Get(docs, name)
		if err != nil {
			return err
		}
		for doc, text := range docs {
			docs[doc] = strings.Replace(text, begin(name)+old+end(name), begin(name)+section+end(name), 1)
		}
	}
	return nil
}

// Static makes every section that needs no cluster. root is the module's folder.
func Static(root string) (map[string]string, error) {
	flags, err := flagTable()
	if err != nil {
		return nil, err
	}
	verdicts, err := verdictTable(filepath.Join(root, "pkg", "plan", "plan.go"))
	if err != nil {
		return nil, err
	}
	reads, err := readTable()
	if err != nil {
		return nil, err
	}
	misroutes, executed, err := misrouteTables(root)
	if err != nil {
		return nil, err
	}
	bench, err := benchTable(root)
	if err != nil {
		return nil, err
	}
	out := map[string]string{
		"flags": flags, "verdicts": verdicts, "tools": toolTable(), "refusals": refusalTable(), "rbac": rbacTable(),
		"reads": reads, "misroutes": misroutes, "misroutes-executed": executed, "bench": bench,
	}
	example, err := os.ReadFile(filepath.Join(root, "test", "example", "set_owner.go"))
	if err != nil {
		return nil, err
	}
	out["example"] = fence("go", string(example))
	for name, file := range map[string]string{"mcp": "mcp.json", "permissions": "claude-settings.json", "policy": "policy.yaml"} {
		raw, err := os.ReadFile(filepath.Join(root, "hack", "packaging", file))
		if err != nil {
			return nil, err
		}
		out[name] = fence(strings.TrimPrefix(filepath.Ext(file), "."), string(raw))
	}
	return out, nil
}

func fence(language, text string) string {
	return "```" + language + "\n" + strings.TrimRight(text, "\n") + "\n```\n"
}

func table(head []string, rows [][]string) string {
	var b strings.Builder
	write := func(cells []string) {
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	write(head)
	b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
	for _, r := range rows {
		write(r)
	}
	return b.String()
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// run is the program itself, without a cluster.
func run(args ...string) (stdout, stderr string, ok bool) {
	var o, e bytes.Buffer
	ok = app.Main(args, strings.NewReader(""), &o, &e, actions.All()...) == 0
	return o.String(), e.String(), ok
}

// flagRE is one flag as --help prints it: name, type, meaning, default.
var flagRE = regexp.MustCompile(`^ +(?:-\w, )? *--([a-z-]+)(?: (\S+))? {2,}(.*?)(?: \(default "?(.*?)"?\))?$`)

func flagTable() (string, error) {
	help, _, ok := run("--help")
	_, flags, found := strings.Cut(help, "\nFlags:\n")
	if !ok || !found {
		return "", errors.New("--help prints no flags")
	}
	flags, _, _ = strings.Cut(flags, "\n\n")
	var rows [][]string
	for line := range strings.Lines(flags) {
		m := flagRE.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			return "", fmt.Errorf("--help prints a flag that cannot be read: %q", line)
		}
		name, kind, meaning, byDefault := m[1], m[2], m[3], m[4]
		if name == "help" || name == "version" {
			continue
		}
		inPolicy, err := policyField(name, byDefault)
		if err != nil {
			return "", err
		}
		if kind == "" {
			byDefault = "off"
		}
		if strings.HasSuffix(byDefault, "m0s") {
			byDefault = strings.TrimSuffix(byDefault, "0s")
		}
		where := ""
		if inPolicy {
			where = "yes"
		}
		rows = append(rows, []string{code("--" + name), code(strings.Trim(byDefault, "[]")), where, meaning})
	}
	return table([]string{"flag", "default", "in the policy file", "meaning"}, rows), nil
}

// policyField asks the program whether a flag may stand in the policy file.
func policyField(name, value string) (bool, error) {
	f, err := os.CreateTemp("", "policy-*.yaml")
	if err != nil {
		return false, err
	}
	defer os.Remove(f.Name())
	if value == "" {
		value = `""`
	}
	_, err = fmt.Fprintf(f, "%s: %s\n", strings.ReplaceAll(name, "-", "_"), value)
	if err := errors.Join(err, f.Close()); err != nil {
		return false, err
	}
	_, said, ok := run("tools", "--policy", f.Name())
	switch {
	case ok:
		return true, nil
	case strings.Contains(said, "is a flag only"), strings.Contains(said, "unknown field"):
		return false, nil
	}
	return false, fmt.Errorf("the default of --%s in a policy file: %s", name, said)
}

// workloads are the arguments of which an action takes exactly one.
var workloads = []string{"deployment", "statefulset", "daemonset", "replicaset"}

func toolTable() string {
	all := actions.All()
	slices.SortFunc(all, func(a, b *action.Action) int { return strings.Compare(a.Name, b.Name) })
	var rows [][]string
	for _, a := range all {
		arguments := argumentsOf(a.Schema(), workloads)
		removes := "no"
		if a.Destroys {
			removes = "yes"
		}
		rows = append(rows, []string{code("plan_" + a.Name), code(a.Name), arguments, removes, a.Doc})
	}
	rows = append(rows,
		[]string{code("plan_" + plan.ChangesTool), code(plan.ChangesTool), "`steps`: 1 to 20 of `action`, `arguments`", "yes", "Make several of the changes above, each on an object of its own, as one plan with one phrase: gated on the sum, made in order, ended at the first that differs or fails."},
		[]string{code("plan_" + plan.UndoTool), code(plan.UndoTool), "`plan`", "yes", "Take an executed plan back to what was on record before it, exempt from the blast limit and the cap and held to everything else."},
	)
	return table([]string{"plan", "write", "arguments", "can remove or replace pods", "what it does"}, rows)
}

// argumentsOf lists the arguments of a tool, those of which it takes one apart.
func argumentsOf(schema *jsonschema.Schema, oneOf []string) string {
	var required, one, optional, out []string
	for _, name := range schema.PropertyOrder {
		switch {
		case slices.Contains(schema.Required, name):
			required = append(required, code(name))
		case slices.Contains(oneOf, name):
			one = append(one, code(name))
		default:
			optional = append(optional, code(name))
		}
	}
	for _, part := range []struct {
		head  string
		names []string
	}{{"", required}, {"one of ", one}, {"optional ", optional}} {
		if part.names != nil {
			out = append(out, part.head+strings.Join(part.names, ", "))
		}
	}
	return strings.Join(out, "; ")
}

func readTable() (string, error) {
	var rows [][]string
	for _, t := range read.All() {
		schema, err := action.SchemaOfType(reflect.TypeOf(t.NewArgs()).Elem())
		if err != nil {
			return "", err
		}
		rows = append(rows, []string{code(t.Name), argumentsOf(schema, nil), t.Doc})
	}
	return table([]string{"read", "arguments", "what it does"}, rows), nil
}

func refusalTable() string {
	var rows [][]string
	for _, e := range refusal.Table {
		rows = append(rows, []string{code(string(e.Code)), e.Meaning, code(e.Event)})
	}
	return table([]string{"code", "meaning", "event in the journal"}, rows)
}

// rbacTable joins what "kube-write-mcp rbac" prints: each resource once, with all its
// verbs.
func rbacTable() string {
	type resource struct{ group, name string }
	var order []resource
	verbs := map[resource][]string{}
	for _, r := range engine.Rules(actions.All(), read.Rules()...) {
		for _, name := range r.Resources {
			k := resource{r.APIGroups[0], name}
			if verbs[k] == nil {
				order = append(order, k)
			}
			for _, v := range r.Verbs {
				if !slices.Contains(verbs[k], v) {
					verbs[k] = append(verbs[k], v)
				}
			}
		}
	}
	var rows [][]string
	for _, k := range order {
		name := k.name
		if k.group != "" {
			name = k.group + "/" + name
		}
		rows = append(rows, []string{code(name), strings.Join(verbs[k], ", ")})
	}
	return table([]string{"resource", "verbs"}, rows)
}

// verdictTable reads the verdicts and what they mean from the constants themselves.
func verdictTable(file string) (string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return "", err
	}
	var rows [][]string
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || v.Comment == nil || len(v.Values) != 1 {
			return true
		}
		kind, isIdent := v.Type.(*ast.Ident)
		value, isLit := v.Values[0].(*ast.BasicLit)
		if isIdent && isLit && kind.Name == "Verdict" {
			rows = append(rows, []string{code(strings.Trim(value.Value, `"`)), strings.TrimSpace(v.Comment.Text())})
		}
		return true
	})
	if rows == nil {
		return "", fmt.Errorf("%s has no verdicts", file)
	}
	return table([]string{"verdict", "meaning"}, rows), nil
}
