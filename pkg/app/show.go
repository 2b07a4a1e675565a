package app

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/server"
)

// tools prints the tools as this policy makes them; it needs no cluster.
func (o *options) tools(cmd *cobra.Command, _ []string) error {
	policy, err := o.policy(cmd.Flags())
	if err != nil {
		return err
	}
	e := engine.New(engine.Config{Policy: policy}, nil, nil, nil, time.Now, nil)
	all, err := server.Tools(e, o.actions, server.Options{Version: version(), AllowWrite: o.allowWrite, ReadOnly: o.readOnly})
	if err != nil {
		return err
	}
	t := newTable(cmd.OutOrStdout(), "TOOL", "ARGUMENTS", "WHAT IT DOES")
	for _, tool := range all {
		var schema struct {
			Properties map[string]any `json:"properties"`
			Required   []string       `json:"required"`
		}
		if err := json.Unmarshal(tool.RawInputSchema, &schema); err != nil {
			return err
		}
		t.AppendRow(table.Row{tool.Name, strings.Join(arguments(schema.Properties, schema.Required), " "), tool.Description})
	}
	t.Render()
	return nil
}

// rbac prints the permissions that the enabled actions need, and no more.
func (o *options) rbac(cmd *cobra.Command, _ []string) error {
	policy, err := o.policy(cmd.Flags())
	if err != nil {
		return err
	}
	enabled := slices.DeleteFunc(slices.Clone(o.actions), func(a *action.Action) bool { return policy.Action(a.Name) != nil })
	rules := engine.Rules(enabled)
	if o.http != "" {
		rules = append(rules, kube.ReviewRules...)
	}
	out, err := yaml.Marshal(rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: "kube-write-mcp"},
		Rules:      rules,
	})
	if err != nil {
		return err
	}
	_, err = cmd.OutOrStdout().Write(out)
	return err
}

// plans prints the plans that could still be executed.
func (o *options) plans() *cobra.Command {
	return &cobra.Command{
		Use: "plans", Short: "Print the open plans with their arguments and expiry", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, keys, err := o.keys(false)
			if err != nil {
				return err
			}
			inst, err := instance()
			if err != nil {
				return err
			}
			j, err := journal.Open(journal.Options{Dir: dir, Path: o.audit, Keys: keys, Now: time.Now, Inst: inst})
			if err != nil {
				return err
			}
			var open []string
			if err := j.View(func(l *journal.Ledger) error { open = l.Open(time.Now()); return nil }); err != nil {
				return err
			}
			if len(open) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no open plans")
				return nil
			}
			t := newTable(cmd.OutOrStdout(), "PLAN", "WHAT", "ARGUMENTS", "EXPIRES IN")
			for _, id := range open {
				p, err := j.Record(id)
				if err != nil {
					return err
				}
				t.AppendRow(table.Row{p.ID, p.Sentence, string(p.Args), time.Until(p.Expires).Round(time.Second)})
			}
			t.Render()
			return nil
		},
	}
}

func arguments(properties map[string]any, required []string) (out []string) {
	for _, r := range required {
		out = append(out, r)
		delete(properties, r)
	}
	var optional []string
	for name := range properties {
		optional = append(optional, "["+name+"]")
	}
	return append(out, slices.Sorted(slices.Values(optional))...)
}

func newTable(w io.Writer, head ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Options = table.OptionsNoBordersAndSeparators
	t.AppendHeader(head)
	columns := make([]table.ColumnConfig, len(head))
	for i := range columns {
		columns[i] = table.ColumnConfig{Number: i + 1, WidthMax: 60, WidthMaxEnforcer: text.WrapSoft}
	}
	t.SetColumnConfigs(columns)
	return t
}
