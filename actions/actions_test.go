package actions

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// samples is one valid call of every action.
var samples = map[string]string{
	"cordon":          `{"node":"n1"}`,
	"cronjob_resume":  `{"namespace":"default","cronjob":"mail"}`,
	"cronjob_suspend": `{"namespace":"default","cronjob":"mail"}`,
	"cronjob_trigger": `{"namespace":"default","cronjob":"mail"}`,
	"delete_pod":      `{"namespace":"default","pod":"web-1"}`,
	"drain":           `{"node":"n1"}`,
	"evict_pod":       `{"namespace":"default","pod":"web-1"}`,
	"job_resume":      `{"namespace":"default","job":"mail"}`,
	"job_suspend":     `{"namespace":"default","job":"mail"}`,
	"rollout_pause":   `{"namespace":"default","deployment":"web"}`,
	"rollout_restart": `{"namespace":"default","deployment":"web"}`,
	"rollout_resume":  `{"namespace":"default","deployment":"web"}`,
	"rollout_undo":    `{"namespace":"default","deployment":"web"}`,
	"scale":           `{"namespace":"default","deployment":"web","replicas":3}`,
	"set_image":       `{"namespace":"default","deployment":"web","container":"app","image":"nginx:2"}`,
	"uncordon":        `{"node":"n1"}`,
}

// TestAll: by name, each once, and nobody can change the list.
func TestAll(t *testing.T) {
	var names []string
	for _, a := range All() {
		names = append(names, a.Name)
		if strings.HasPrefix(a.Name, "plan_") {
			t.Errorf("%s: its plan tool would look like another's", a.Name)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(samples)), names); diff != "" {
		t.Errorf("actions (-in this test +All):\n%s", diff)
	}
	All()[0] = nil
	if All()[0] == nil {
		t.Error("a caller can change the list")
	}
}

// TestDestroys: whether an action can remove or replace a pod is a decision, and Go cannot
// tell false from forgotten.
func TestDestroys(t *testing.T) {
	want := map[string]bool{
		"cordon": false, "delete_pod": true, "drain": true, "rollout_restart": true, "scale": true, "uncordon": false,
		"rollout_pause": false, "rollout_resume": true, "rollout_undo": true, "set_image": true, "evict_pod": true,
		"cronjob_suspend": false, "cronjob_resume": false, "cronjob_trigger": false, "job_suspend": true, "job_resume": false,
	}
	got := map[string]bool{}
	for _, a := range All() {
		got[a.Name] = a.Destroys
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("destroys (-want +got):\n%s", diff)
	}
}

// TestRequiresUser: a prompt that no rule can skip is spent where the effect may be for good,
// and nowhere else.
func TestRequiresUser(t *testing.T) {
	wantThose(t, []string{"delete_pod", "drain"}, func(a *action.Action) bool { return a.RequiresUser })
}

// TestRolls: what changes a pod template, or lets a change of it take effect, and so needs
// to read the pods.
func TestRolls(t *testing.T) {
	wantThose(t, []string{"rollout_restart", "rollout_resume", "rollout_undo", "set_image"}, func(a *action.Action) bool { return a.Rolls })
}

func wantThose(t *testing.T, want []string, is func(*action.Action) bool) {
	t.Helper()
	var got []string
	for _, a := range All() {
		if is(a) {
			got = append(got, a.Name)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

var (
	titleRE = regexp.MustCompile(`^[A-Z][A-Za-z ]{3,40}[a-z]$`)
	docRE   = regexp.MustCompile(`^[A-Z][ -~]{20,300}\.$`)
)

// TestSpecs: what a person and a model read of an action.
func TestSpecs(t *testing.T) {
	for _, a := range All() {
		t.Run(a.Name, func(t *testing.T) {
			if !titleRE.MatchString(a.Title) {
				t.Errorf("the title %q is no few words without a full stop", a.Title)
			}
			if !docRE.MatchString(a.Doc) || strings.Count(a.Doc, ". ") > 2 {
				t.Errorf("the doc %q is no one to three sentences", a.Doc)
			}
		})
	}
}

// granted is every right that an action may ask for. A right beside these is a decision:
// reading secrets, creating pods or reaching into one is none that a planner needs.
var granted = regexp.MustCompile(`^(` +
	`(deployments|statefulsets|daemonsets|replicasets)\.apps (get|list|patch)|` +
	`(deployments|statefulsets|replicasets)/scale\.apps update|` +
	`controllerrevisions\.apps list|` +
	`cronjobs\.batch (get|list|patch)|jobs\.batch (get|list|patch|create)|` +
	`pods (get|list|watch|delete)|pods/eviction create|` +
	`nodes (get|list|watch|patch)|persistentvolumes list` +
	`)$`)

// rights are an action's Needs as "resource.group verb".
func rights(t *testing.T, a *action.Action) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, rule := range a.Needs {
		if len(rule.ResourceNames)+len(rule.NonResourceURLs) > 0 || len(rule.APIGroups) != 1 {
			t.Errorf("a rule that is no plain one: %v", rule)
			continue
		}
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				right := strings.TrimSuffix(resource+"."+rule.APIGroups[0], ".") + " " + verb
				if out[right] {
					t.Errorf("%s stands there twice", right)
				}
				out[right] = true
			}
		}
	}
	return out
}

func TestNeeds(t *testing.T) {
	for _, a := range All() {
		t.Run(a.Name, func(t *testing.T) {
			for right := range rights(t, a) {
				if !granted.MatchString(right) {
					t.Errorf("it asks for %q", right)
				}
			}
		})
	}
}

var forbiddenProperty = regexp.MustCompile(`(?i)dry|force.?all|^all$|^yes$|approve|selector|server|context|kubeconfig|token|cluster`)

func TestSchemas(t *testing.T) {
	for _, a := range All() {
		for what, s := range map[string]any{"plan": a.Schema(), "write": action.Confirmed(a.Schema())} {
			t.Run(a.Name+" "+what, func(t *testing.T) {
				raw, err := json.Marshal(s)
				if err != nil {
					t.Fatal(err)
				}
				var got struct {
					AdditionalProperties *bool
					Properties           map[string]struct {
						Type             any
						Description      string
						Minimum, Maximum *float64
					}
				}
				if err := json.Unmarshal(raw, &got); err != nil {
					t.Fatal(err)
				}
				if got.AdditionalProperties == nil || *got.AdditionalProperties {
					t.Error("further properties are allowed")
				}
				for name, p := range got.Properties {
					if forbiddenProperty.MatchString(name) {
						t.Errorf("property %s", name)
					}
					if planned := a.Schema().Properties[name] != nil; p.Description == "" && (what == "plan" || !planned) {
						t.Errorf("%s has no description", name)
					}
					if !slices.Contains([]any{"string", "boolean", "integer"}, p.Type) {
						t.Errorf("%s is of type %v", name, p.Type)
					}
					if p.Type == "integer" && (p.Minimum == nil || p.Maximum == nil || *p.Minimum < 0) {
						t.Errorf("%s is from %v to %v", name, p.Minimum, p.Maximum)
					}
				}
			})
		}
	}
}

// TestDecodeOfEveryAction: strictness is no business of an action's author. Whatever its
// arguments are, they cannot be smuggled, misspelt, doubled or left to a default.
func TestDecodeOfEveryAction(t *testing.T) {
	for _, a := range All() {
		t.Run(a.Name, func(t *testing.T) {
			sample := samples[a.Name]
			with := func(more string) string { return strings.TrimSuffix(sample, "}") + "," + more + "}" }
			d, err := a.Decode(a.Schema(), json.RawMessage(sample))
			if err != nil {
				t.Fatalf("%s: %v", sample, err)
			}
			again, err := a.Decode(a.Schema(), d.Canonical)
			if err != nil || string(again.Canonical) != string(d.Canonical) {
				t.Errorf("canonical %s, decoded again %s, %v", d.Canonical, again.Canonical, err)
			}
			write, err := a.Decode(action.Confirmed(a.Schema()), json.RawMessage(with(`"confirm":"c","reason":"r"`)))
			if err != nil || string(write.Canonical) != string(d.Canonical) || write.Confirm != "c" || write.Reason != "r" {
				t.Errorf("a write decodes to %+v, %v; want the canonical form %s", write, err, d.Canonical)
			}
			var sent map[string]any
			if err := json.Unmarshal([]byte(sample), &sent); err != nil {
				t.Fatal(err)
			}
			bad := map[string]string{
				"nothing": `{}`, "null": `null`, "a list": `[` + sample + `]`, "text": `"{}"`,
				"a dry run":   with(`"dry_run":true`),
				"a phrase":    with(`"confirm":"c"`),
				"a namespace": with(`"Namespace":"kube-system"`),
			}
			for name := range a.Schema().Properties {
				value, err := json.Marshal(sent[name])
				if err != nil {
					t.Fatal(err)
				}
				bad[name+" in another case"] = with(fmt.Sprintf("%q:%s", strings.ToUpper(name), value))
				bad[name+" with a long s"] = with(fmt.Sprintf("%q:%s", strings.Replace(name, "s", "ſ", 1)+"_", value))
				bad[name+" as a list"] = with(fmt.Sprintf("%q:[1]", name))
				bad[name+" as an object"] = with(fmt.Sprintf(`%q:{}`, name))
				bad[name+" empty"] = with(fmt.Sprintf(`%q:""`, name))
				if _, ok := sent[name]; ok {
					bad[name+" twice"] = with(fmt.Sprintf("%q:%s", name, value))
				}
			}
			for _, name := range a.Schema().Required {
				less := maps.Clone(sent)
				delete(less, name)
				raw, err := json.Marshal(less)
				if err != nil {
					t.Fatal(err)
				}
				bad["without "+name] = string(raw)
				less[name] = nil
				if raw, err = json.Marshal(less); err != nil {
					t.Fatal(err)
				}
				bad["with null for "+name] = string(raw)
			}
			for what, raw := range bad {
				if d, err := a.Decode(a.Schema(), json.RawMessage(raw)); !refusal.Is(err, refusal.InvalidArguments) {
					t.Errorf("%s: %s decodes to %s, %v", what, raw, d.Canonical, err)
				}
			}
		})
	}
}

// TestDrainTimeout: the phrase of a drain is the same with the default and without.
func TestDrainTimeout(t *testing.T) {
	var canonical []string
	for _, raw := range []string{`{"node":"n1"}`, `{"node":"n1","timeout_seconds":300}`, `{"node":"n1","timeout_seconds":null,"force":false}`} {
		d, err := Drain.Decode(Drain.Schema(), json.RawMessage(raw))
		if err != nil {
			t.Fatal(err)
		}
		canonical = append(canonical, string(d.Canonical))
	}
	if want := `{"node":"n1","timeout_seconds":300}`; canonical[0] != want || len(slices.Compact(canonical)) != 1 {
		t.Errorf("canonical forms %q, want %q alone", canonical, want)
	}
}
