package transcripts

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// The bounds of what a client takes.
const (
	maxTool = 760 // bytes of a tool on average, without its output schema
	maxName = 64  // characters of a tool's name with the prefix of its server
	prefix  = "mcp__kube-write__"
)

// readTools are the names of the tools that are always there.
func readTools() (names []string) {
	for _, t := range read.All() {
		names = append(names, t.Name)
	}
	return append(names, "write_status")
}

type listedTool struct {
	Name         string             `json:"name"`
	Title        string             `json:"title"`
	Description  string             `json:"description"`
	InputSchema  *jsonschema.Schema `json:"inputSchema"`
	OutputSchema *jsonschema.Schema `json:"outputSchema"`
	Meta         map[string]any     `json:"_meta"`
	Annotations  struct {
		ReadOnly    *bool `json:"readOnlyHint"`
		Destructive *bool `json:"destructiveHint"`
		Idempotent  *bool `json:"idempotentHint"`
		OpenWorld   *bool `json:"openWorldHint"`
	} `json:"annotations"`
}

// list gives the tools of a running server as they came.
func list(t *testing.T, s *server) (raw json.RawMessage) {
	t.Helper()
	m, err := s.Request("tools/list", nil)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Tools  json.RawMessage `json:"tools"`
		Cursor string          `json:"nextCursor"`
	}
	if err := json.Unmarshal(m.Result, &r); err != nil || r.Cursor != "" {
		t.Fatalf("not the whole list (%v): %s", err, m.Line)
	}
	return r.Tools
}

func tools(t *testing.T, raw json.RawMessage) (out []listedTool) {
	t.Helper()
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRequiresUser: the tools whose effect may be for good ask the client for its user, those
// that plan it do not.
func TestRequiresUser(t *testing.T) {
	var got []string
	for _, tool := range tools(t, list(t, serve(t, stdio.Modern, harness.Account(t, cp), false))) {
		if tool.Meta["anthropic/requiresUserInteraction"] == true {
			got = append(got, tool.Name)
		}
	}
	if !slices.Equal(got, []string{"changes", "delete_pod", "drain"}) {
		t.Errorf("tools that require the user are %v", got)
	}
}

func TestCase_MC_14(t *testing.T) {
	account := harness.Account(t, cp)
	s := serve(t, stdio.Modern, account, false)
	raw := list(t, s)
	all := tools(t, raw)

	t.Run("the same bytes always", func(t *testing.T) {
		for name, again := range map[string]json.RawMessage{
			"twice": list(t, s), "another server": list(t, serve(t, stdio.Modern, account, false)),
			"the other era": list(t, serve(t, stdio.Legacy, account, false)),
		} {
			if string(again) != string(raw) {
				t.Errorf("%s: the list differs:\n%s\n%s", name, raw, again)
			}
		}
	})
	t.Run("sorted and complete", func(t *testing.T) {
		got, want := []string(nil), append(readTools(), "plan_undo", "undo", "plan_changes", "changes")
		for _, tool := range all {
			got = append(got, tool.Name)
		}
		for _, a := range actions.All() {
			want = append(want, a.Name, "plan_"+a.Name)
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("tools are %v, want %v", got, want)
		}
		var plans []string
		for _, tool := range tools(t, list(t, serve(t, stdio.Modern, account, true))) {
			plans = append(plans, tool.Name)
		}
		want = slices.DeleteFunc(want, func(n string) bool { return !slices.Contains(readTools(), n) && !strings.HasPrefix(n, "plan_") })
		if !slices.Equal(plans, want) {
			t.Errorf("without --allow-write tools are %v, want %v", plans, want)
		}
	})
	t.Run("size", func(t *testing.T) {
		var loose []map[string]json.RawMessage
		if err := json.Unmarshal(raw, &loose); err != nil {
			t.Fatal(err)
		}
		for _, tool := range loose {
			delete(tool, "outputSchema")
		}
		b, err := json.Marshal(loose)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d tools: %d bytes, %d without output schemas", len(loose), len(raw), len(b))
		if len(b) >= maxTool*len(loose) {
			t.Errorf("%d tools are %d bytes without output schemas, the limit is %d for each", len(loose), len(b), maxTool)
		}
	})
	for _, tool := range all {
		t.Run(tool.Name, func(t *testing.T) { checkTool(t, tool) })
	}
}

func checkTool(t *testing.T, tool listedTool) {
	if n := len(prefix + tool.Name); n > maxName {
		t.Errorf("with its prefix the name is %d characters, the limit is %d", n, maxName)
	}
	if tool.Title == "" || tool.Description == "" {
		t.Error("no title or no description")
	}

	action, isPlan := strings.CutPrefix(tool.Name, "plan_")
	isRead := slices.Contains(readTools(), tool.Name)
	destroys := !isPlan && !isRead && !slices.Contains([]string{
		"cordon", "uncordon", "rollout_pause", "cronjob_suspend", "cronjob_resume", "cronjob_trigger", "job_resume",
	}, action)
	for name, hint := range map[string]struct {
		got  *bool
		want bool
	}{
		"readOnlyHint":    {tool.Annotations.ReadOnly, isPlan || isRead},
		"destructiveHint": {tool.Annotations.Destructive, destroys},
		"idempotentHint":  {tool.Annotations.Idempotent, true},
		"openWorldHint":   {tool.Annotations.OpenWorld, false},
	} {
		switch {
		case hint.got == nil:
			t.Errorf("%s is left to its default", name)
		case *hint.got != hint.want:
			t.Errorf("%s is %t, want %t", name, *hint.got, hint.want)
		}
	}

	in := tool.InputSchema
	if in == nil || in.Type != "object" {
		t.Fatalf("the input schema is no object: %v", in)
	}
	if in.AdditionalProperties == nil || in.AdditionalProperties.Not == nil {
		t.Error("further properties are allowed")
	}
	for _, name := range []string{"dry_run", "force_all", "yes", "approve"} {
		if in.Properties[name] != nil {
			t.Errorf("there is an argument %s", name)
		}
	}
	for _, name := range []string{"confirm", "reason"} {
		if write := !isPlan && !isRead; (in.Properties[name] != nil) != write || slices.Contains(in.Required, name) != write {
			t.Errorf("%s must be an argument, and required, of write tools only", name)
		}
	}
	for name, p := range in.Properties {
		planned := !slices.Contains([]string{"confirm", "reason"}, name) // of a write tool, the plan tool describes it
		if p.Description == "" && p.Comment == "" && (isPlan || !planned) {
			t.Errorf("argument %s has no description", name)
		}
	}
	if _, err := in.Resolve(nil); err != nil {
		t.Errorf("the input schema does not compile: %v", err)
	}
	if tool.OutputSchema == nil || tool.OutputSchema.Type != "object" {
		t.Fatal("the output schema is no object")
	}
	if _, err := tool.OutputSchema.Resolve(nil); err != nil {
		t.Errorf("the output schema does not compile: %v", err)
	}
	single(t, "", in)
	single(t, "", tool.OutputSchema)
}

// single fails a schema in which a field may have one of several types: clients that know one
// per field refuse the tool, or drop the field.
func single(t *testing.T, path string, s *jsonschema.Schema) {
	t.Helper()
	if len(s.Types) > 0 {
		t.Errorf("%s is of type %v", path, s.Types)
	}
	for name, p := range s.Properties {
		single(t, path+"."+name, p)
	}
	if s.Items != nil {
		single(t, path+"[]", s.Items)
	}
}

// TestOutputSchemas validates what the scenarios' calls returned against the schemas that
// the tools announce.
func TestOutputSchemas(t *testing.T) {
	schemas := map[string]*jsonschema.Resolved{}
	for _, tool := range tools(t, list(t, serve(t, stdio.Modern, harness.Account(t, cp), false))) {
		r, err := tool.OutputSchema.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		schemas[tool.Name] = r
	}
	valid := 0
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			for i, c := range play(t, sc, stdio.Modern).tools {
				if c.result.IsError {
					continue
				}
				var v any
				if err := json.Unmarshal(c.result.Structured, &v); err != nil {
					t.Fatal(err)
				}
				if err := schemas[c.name].Validate(v); err != nil {
					t.Errorf("call %d of %s: %v in %s", i, c.name, err, c.result.Structured)
				}
				valid++
			}
		})
	}
	if valid < 6 {
		t.Errorf("only %d answers were successes", valid)
	}
}
