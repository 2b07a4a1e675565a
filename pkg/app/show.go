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

	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
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

// openPlan is one row of plans.
type openPlan struct {
	Plan      string          `json:"plan"`
	Action    string          `json:"action"`
	Target    string          `json:"target"`
	Arguments json.RawMessage `json:"arguments"`
	Summary   string          `json:"summary"`
	Principal string          `json:"principal"`
	Expires   time.Time       `json:"expires"`
	Person    []string        `json:"needs_person,omitempty"` // why
	Approved  bool            `json:"approved"`
}

// waits says whether a person is waited for.
func (p openPlan) waits() string {
	switch {
	case p.Person == nil:
		return "no"
	case p.Approved:
		return "approved"
	}
	return "for a person"
}

// plans prints the plans that could still be executed.
func (o *options) plans() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "plans", Short: "Print the open plans: what, whose, until when, and whether a person is waited for", Args: cobra.NoArgs,
		Long: `Prints the plans of the state folder's audit log that could still be executed. Where
servers share a ledger in the cluster that is one replica's: kubectl get writes tells all.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			j, err := o.journal()
			if err != nil {
				return err
			}
			open, err := openPlans(j)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				for _, p := range open {
					if err := enc.Encode(p); err != nil {
						return err
					}
				}
				return nil
			}
			if len(open) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no open plans")
				return nil
			}
			t := newTable(cmd.OutOrStdout(), "PLAN", "ACTION", "TARGET", "ARGUMENTS", "WHO", "EXPIRES IN", "WAITS")
			for _, p := range open {
				t.AppendRow(table.Row{p.Plan, p.Action, p.Target, string(p.Arguments), p.Principal, time.Until(p.Expires).Round(time.Second), p.waits()})
			}
			t.Render()
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line instead of a table")
	return cmd
}

func openPlans(j *journal.Journal) (out []openPlan, err error) {
	var ids []string
	approved := map[string]bool{}
	err = j.View(func(l *journal.Ledger) error {
		ids = l.Open(time.Now())
		for _, id := range ids {
			approved[id] = l.Plan(id).Approved
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		p, err := j.Record(id)
		if err != nil {
			return nil, err
		}
		tool, args := p.Call()
		row := openPlan{
			Plan: p.ID, Action: tool, Target: p.Steps[0].Target.String(), Arguments: args, Summary: p.Sentence,
			Principal: p.Principal, Expires: p.Expires, Approved: approved[id],
		}
		if p.Person != nil {
			row.Person = p.Person.Why()
		}
		out = append(out, row)
	}
	return out, nil
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
