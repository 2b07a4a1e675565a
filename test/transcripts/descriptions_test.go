package transcripts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// symptoms are words of what a person complains about, or hopes for. A model that looks for
// a remedy by them must find a read and not a write: a write is found by what it does.
var symptoms = []string{
	`slow\w*`, `sluggish`, `latenc\w+`, `lag\w*`, `brok\w+`, `breaks?`, `crash\w*`, `fix\w*`, `problem\w*`, `issues?`, `stuck`, `hang(s|ing)?`, `hung`, `frozen`,
	`unhealthy`, `healthy`, `health`, `heal\w*`, `down`, `downtime`, `outages?`, `incidents?`, `error\w*`, `fail\w*`, `faults?`, `faulty`, `bugs?`, `buggy`,
	`recover\w*`, `repair\w*`, `restor\w+`, `rescue\w*`, `remed\w+`, `mitigat\w+`, `resolv\w+`, `troubleshoot\w*`, `debug\w*`, `diagnos\w+`, `investigat\w+`,
	`flak\w+`, `flapping`, `degrad\w+`, `unavailable`, `unreachable`, `unresponsive`, `not (working|responding)`, `overload\w*`, `spik\w+`, `bottleneck\w*`,
	`perform\w*`, `optimi[sz]\w+`, `improv\w+`, `faster`, `speed\w*`, `leak\w*`, `oom\w*`, `out of memory`, `time[sd]? ?out`, `timeouts?`, `back-?off`, `pending`,
	`wrong`, `bad`, `corrupt\w*`, `misbehav\w+`, `clean ?up`, `emergenc\w+`, `alert\w*`, `alarm\w*`, `trouble\w*`, `help\w*`,
}

var symptomRE = regexp.MustCompile(`(?i)\b(` + strings.Join(symptoms, "|") + `)\b`)

// symptom finds one in a text or a name.
func symptom(text string) string { return symptomRE.FindString(strings.ReplaceAll(text, "_", " ")) }

// TestSymptoms: the list finds what people write, and not the words of operations.
func TestSymptoms(t *testing.T) {
	for text, want := range map[string]string{
		"Fix a slow Deployment":                    "Fix",
		"Restart pods that are stuck":              "stuck",
		"Heals one unhealthy Node":                 "Heals",
		"Brings a service that is down back":       "down",
		"Lower the latency of a service":           "latency",
		"For pods in CrashLoopBackOff":             "CrashLoopBackOff",
		"fix_pod":                                  "fix",
		"Recovers from an outage":                  "Recovers",
		"When requests time out":                   "time out",
		"Set the number of replicas":               "",
		"Cordon one Node and evict its pods":       "",
		"Put the pod template of a revision back":  "",
		"Suspend one Job: completed ones are kept": "",
	} {
		if got := symptom(text); got != want {
			t.Errorf("%q: found %q, want %q", text, got, want)
		}
	}
}

// targets are the arguments that name what a tool acts on, and the word that its
// description must have for each.
var targets = map[string]string{"plan": "plan", "steps": "action"}

func init() {
	for _, k := range plan.Kinds {
		targets[k.Argument] = k.GVK.Kind
	}
}

// scopes are the arguments of which every plan and write tool requires one: where it acts
// is never inherited.
var scopes = []string{"namespace", "node", "plan", "steps"}

// inner gives a schema and those of all that is in it, by argument.
func inner(name string, s *jsonschema.Schema) map[string][]*jsonschema.Schema {
	all := map[string][]*jsonschema.Schema{name: {s}}
	add := func(name string, s *jsonschema.Schema) {
		if s != nil {
			for k, v := range inner(name, s) {
				all[k] = append(all[k], v...)
			}
		}
	}
	for name, p := range s.Properties {
		add(name, p)
	}
	add(name, s.Items)
	for _, some := range [][]*jsonschema.Schema{s.AnyOf, s.OneOf, s.AllOf} {
		for _, p := range some {
			add(name, p)
		}
	}
	return all
}

// lint names what is wrong with what a model chooses a plan or write tool by.
func lint(tool listedTool) (faults []string) {
	wrong := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if len(tool.Name) >= 40 {
		wrong("the name has %d characters, 40 are too many", len(tool.Name))
	}
	arguments := inner("", tool.InputSchema)
	texts := map[string]string{"name": tool.Name, "title": tool.Title, "description": tool.Description}
	for name, all := range arguments {
		for _, p := range all {
			texts["argument "+name] += p.Title + " " + p.Description + " "
			switch {
			case p.Default != nil || len(p.Examples) > 0:
				wrong("argument %s has a default or an example: a caller writes what it means", name)
			case p.Pattern != "" && (regexp.MustCompile(p.Pattern).MatchString("*") || regexp.MustCompile(p.Pattern).MatchString("web*")):
				wrong("argument %s has a pattern that takes a wildcard: %s", name, p.Pattern)
			case targets[name] != "" && name != "steps" && p.Type != "string":
				wrong("argument %s names one target, and is no %s", name, cmp.Or(p.Type, strings.Join(p.Types, " or ")))
			}
		}
	}
	for where, text := range texts {
		if w := symptom(text); w != "" {
			wrong("the %s names a symptom, %q: %s", where, w, text)
		}
	}
	named := 0
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		if tool.InputSchema.Properties[name] == nil {
			continue
		}
		named++
		if !regexp.MustCompile(`(?i)\b` + targets[name] + `s?\b`).MatchString(tool.Description) {
			wrong("the description lacks the kind of its target, %s: %s", targets[name], tool.Description)
		}
	}
	if named == 0 {
		wrong("no argument names a target")
	}
	if !slices.ContainsFunc(scopes, func(name string) bool { return slices.Contains(tool.InputSchema.Required, name) }) {
		wrong("none of %s is required", strings.Join(scopes, ", "))
	}
	for _, name := range scopes {
		if tool.InputSchema.Properties[name] != nil && !slices.Contains(tool.InputSchema.Required, name) {
			wrong("%s may be left out", name)
		}
	}
	slices.Sort(faults)
	return faults
}

// plansOrWrites reports whether a tool is held to lint: reads are found by symptoms.
func plansOrWrites(tool listedTool) bool {
	return strings.HasPrefix(tool.Name, "plan_") || tool.InputSchema.Properties["confirm"] != nil
}

// TestDescriptions lints every plan and write tool.
func TestDescriptions(t *testing.T) {
	linted := 0
	for _, tool := range tools(t, list(t, serve(t, stdio.Modern, harness.Account(t, cp), false))) {
		if !plansOrWrites(tool) {
			continue
		}
		linted++
		for _, fault := range lint(tool) {
			t.Errorf("%s: %s", tool.Name, fault)
		}
	}
	if want := 2 * (len(actions.All()) + 1); linted < want {
		t.Errorf("%d tools were linted, want at least %d", linted, want)
	}
}

// TestLint breaks a sound tool in one place each.
func TestLint(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*listedTool)
		want   string
	}{
		"sound":                  {func(*listedTool) {}, ""},
		"a symptom in the name":  {func(l *listedTool) { l.Name = "fix_pod" }, `the name names a symptom, "fix"`},
		"one in the title":       {func(l *listedTool) { l.Title = "Heal a pod" }, `the title names a symptom, "Heal"`},
		"one in the description": {func(l *listedTool) { l.Description += " For an outage." }, `the description names a symptom, "outage"`},
		"one of an argument":     {func(l *listedTool) { l.InputSchema.Properties["pod"].Description = "the stuck pod" }, `the argument pod names a symptom, "stuck"`},
		"a long name":            {func(l *listedTool) { l.Name = "delete_" + strings.Repeat("a", 33) }, "40 are too many"},
		"no kind":                {func(l *listedTool) { l.Description = "Delete one." }, "lacks the kind of its target, Pod"},
		"a default":              {func(l *listedTool) { l.InputSchema.Properties["namespace"].Default = json.RawMessage(`"default"`) }, "argument namespace has a default"},
		"an example":             {func(l *listedTool) { l.InputSchema.Properties["pod"].Examples = []any{"web-0"} }, "argument pod has a default or an example"},
		"an inherited namespace": {func(l *listedTool) { l.InputSchema.Required = []string{"pod"} }, "namespace may be left out"},
		"no scope": {func(l *listedTool) {
			delete(l.InputSchema.Properties, "namespace")
			l.InputSchema.Required = []string{"pod"}
		}, "none of namespace, node, plan, steps is required"},
		"a pattern":       {func(l *listedTool) { l.InputSchema.Properties["pod"].Pattern = `^[a-z0-9.*-]+$` }, "takes a wildcard"},
		"a sound pattern": {func(l *listedTool) { l.InputSchema.Properties["pod"].Pattern = `^[a-z0-9.-]+$` }, ""},
		"many targets":    {func(l *listedTool) { l.InputSchema.Properties["pod"].Type = "array" }, "names one target, and is no array"},
		"no target":       {func(l *listedTool) { delete(l.InputSchema.Properties, "pod") }, "no argument names a target"},
		"a default deeper in": {func(l *listedTool) {
			l.InputSchema.Properties["more"] = &jsonschema.Schema{Type: "array", Items: &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"x": {Default: json.RawMessage("1")}}}}
		}, "argument x has a default"},
	} {
		t.Run(name, func(t *testing.T) {
			tool := listedTool{Name: "delete_pod", Title: "Delete a pod", Description: "Delete one Pod.", InputSchema: &jsonschema.Schema{
				Type: "object", Required: []string{"namespace", "pod"},
				Properties: map[string]*jsonschema.Schema{"namespace": {Type: "string"}, "pod": {Type: "string"}},
			}}
			tc.change(&tool)
			got := strings.Join(lint(tool), "; ")
			if (got != "") != (tc.want != "") || !strings.Contains(got, tc.want) {
				t.Errorf("faults are %q, want %q", got, tc.want)
			}
		})
	}
}

// TestNoWildcards: no target is a pattern, all of them, or the one of the call before:
// every plan tool refuses such arguments before anything is read.
func TestNoWildcards(t *testing.T) {
	s := serve(t, stdio.Modern, harness.Account(t, cp), false, "--plans-per-minute", "10000")
	client := &harness.Server{Client: s.Client, T: t, State: s.state}
	sound := map[string]any{"replicas": 1, "container": "main", "image": "main:2"}
	for _, tool := range tools(t, list(t, s)) {
		if !strings.HasPrefix(tool.Name, "plan_") || tool.InputSchema.Properties["namespace"] == nil && tool.InputSchema.Properties["node"] == nil {
			continue
		}
		for name := range tool.InputSchema.Properties {
			if name != "namespace" && targets[name] == "" {
				continue
			}
			for _, value := range []any{"*", "web*", "web,db", "web db", "all/web", "", ".", nil, []string{"web"}, missing} {
				args := harness.Args{}
				for _, required := range tool.InputSchema.Required {
					args[required] = cmp.Or(sound[required], any("web"))
				}
				if args[name] = value; value == missing {
					delete(args, name)
				}
				if name != "namespace" && name != "node" && value == missing && !slices.Contains(tool.InputSchema.Required, name) {
					continue
				}
				got := client.Must(tool.Name, args)
				if harness.Code(got) != "invalid_arguments" || !strings.Contains(got.Text, name) {
					t.Errorf("%s of %v: %s", tool.Name, args, got.Text)
				}
			}
		}
	}
}

// missing stands for an argument that is not there.
const missing = "(missing)"

// TestListOfProcesses: two processes list the same bytes, however often they are asked.
func TestListOfProcesses(t *testing.T) {
	var first json.RawMessage
	for range 2 {
		s := harness.Spawn(t, cp, harness.Program(t, cp), harness.Options{})
		for range 3 {
			raw := list(t, &server{Client: s.Client})
			if first == nil {
				first = raw
			}
			if string(raw) != string(first) {
				t.Errorf("the list differs:\n%s\n%s", first, raw)
			}
		}
	}
}
