package read_test

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
)

// TestTools: each tool is whole, its arguments are of types that the decoder holds calls
// to, and what counts something has a bound.
func TestTools(t *testing.T) {
	var names []string
	for _, tool := range read.All() {
		t.Run(tool.Name, func(t *testing.T) {
			if tool.Title == "" || tool.Doc == "" || tool.Live() == (tool.Name == "write_history") {
				t.Errorf("not whole: %+v", tool)
			}
			in, err := action.SchemaOfType(reflect.TypeOf(tool.NewArgs()).Elem())
			if err != nil {
				t.Fatal(err)
			}
			read.Bound(in)
			for name, p := range in.Properties {
				switch {
				case p.Description == "":
					t.Errorf("argument %s has no description", name)
				case p.Type == "integer" && (p.Minimum == nil || p.Maximum == nil):
					t.Errorf("argument %s has no bounds", name)
				case !slices.Contains([]string{"string", "boolean", "integer"}, p.Type):
					t.Errorf("argument %s is a %q", name, p.Type)
				}
			}
			if _, err := action.DecodeInto(in, json.RawMessage(`{"namespace":"a\n","extra":1}`), tool.NewArgs()); err == nil || !strings.Contains(err.Error(), "extra") {
				t.Errorf("a call with another argument: %v", err)
			}
		})
		names = append(names, tool.Name)
	}
	if !slices.IsSorted(names) {
		t.Errorf("the tools are not in order: %v", names)
	}
}

// TestRules: the reads need no verb that writes, and never a Secret or a ConfigMap.
func TestRules(t *testing.T) {
	for _, r := range read.Rules() {
		for _, v := range r.Verbs {
			if v != "get" && v != "list" {
				t.Errorf("a rule for %v has the verb %s", r.Resources, v)
			}
		}
		for _, res := range r.Resources {
			if slices.Contains([]string{"secrets", "configmaps", "*", "pods/exec", "serviceaccounts/token"}, res) {
				t.Errorf("a rule for %s", res)
			}
		}
	}
}

// fields are the names of all fields of a schema, those of structs within it too.
func fields(s *jsonschema.Schema, in string, into map[string]bool) {
	for name, p := range s.Properties {
		into[in+name] = true
		fields(p, in+name+".", into)
	}
	if s.Items != nil {
		fields(s.Items, in, into)
	}
}

// TestFields: what is shown of an object is a fixed list. A new field is looked at by who
// adds it here: text that somebody else wrote begins with untrusted.
func TestFields(t *testing.T) {
	page := "cluster not_on_record shown truncated continue "
	workload := "kind namespace name state desired ready updated available created version untrusted_images "
	condition := "untrusted_type status since untrusted_reason untrusted_message"
	for tool, want := range map[string]string{
		"list_workloads":  page + "workloads " + under("workloads", workload),
		"list_pods":       page + "pods " + under("pods", "namespace name phase ready containers restarts node created version owner owner.untrusted_kind owner.untrusted_name untrusted_why"),
		"list_nodes":      page + "nodes " + under("nodes", "name ready schedulable allocatable max_pods created version untrusted_kubelet untrusted_labels untrusted_taints untrusted_conditions"),
		"list_namespaces": page + "namespaces " + under("namespaces", "name phase writes created"),
		"list_events":     page + "events " + under("events", "namespace last count warning untrusted_object untrusted_reason untrusted_source untrusted_message"),
		"write_history":   page + "only writes " + under("writes", "seq time event code tool plan phrase target says untrusted_reason untrusted"),
		"get_logs":        "cluster not_on_record namespace pod container containers previous bytes invisible_removed truncated untrusted_lines",
		"get_workload": "cluster not_on_record " + workload + "generation observed_generation settings owner owner.untrusted_kind owner.untrusted_name untrusted_selector truncated " +
			"conditions " + under("conditions", condition) + " history " + under("history", "revision current object replicas created untrusted_images untrusted_change_cause") +
			" autoscalers " + under("autoscalers", "name min max current desired conditions") + " " + under("autoscalers.conditions", condition) +
			" budgets " + under("budgets", "name min_available max_unavailable disruptions_allowed healthy desired_healthy") +
			" containers " + under("containers", "name init untrusted_image requests limits env command_hashes args_hashes") + " " + under("containers.env", "untrusted_name from hash") +
			" annotations " + under("annotations", "key untrusted_value hash") + " managers " + under("managers", "untrusted_name operation untrusted_subresource at owns"),
	} {
		i := slices.IndexFunc(read.All(), func(t *read.Tool) bool { return t.Name == tool })
		s, err := jsonschema.ForType(reflect.TypeOf(read.All()[i].Zero).Elem(), nil)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		fields(s, "", got)
		wanted := strings.Fields(want)
		slices.Sort(wanted)
		if all := slices.Sorted(maps.Keys(got)); !slices.Equal(all, wanted) {
			t.Errorf("%s has fields\n%v, want\n%v", tool, all, wanted)
		}
	}
}

func under(field, names string) string {
	var out []string
	for _, n := range strings.Fields(names) {
		out = append(out, field+"."+n)
	}
	return strings.Join(out, " ")
}
