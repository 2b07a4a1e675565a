package app

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
)

// mostFaults is how many faults are printed.
const mostFaults = 20

// auditReport counts the calls and their outcomes.
func (o *options) auditReport() *cobra.Command {
	var since time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use: "report", Short: "Count the calls by tool and outcome; fail where a call has none, or two", Args: cobra.NoArgs,
		Long: `Counts the calls in the audit log by tool and outcome. Every call has a number of its
own and ends in exactly one outcome, so the columns add up to the number of calls. The
command fails, and says which call it is, where they do not: a number is missing, a
call has two outcomes, or an execution was begun and has no outcome and was not settled
(reconciled) since. An execution that is still at work looks the same until it ends.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, keys, err := o.auditLog()
			if err != nil {
				return err
			}
			r, err := journal.Count(path, keys, ago(since))
			if err != nil {
				return err
			}
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			} else {
				printReport(cmd, r)
			}
			if err == nil && len(r.Faults) > 0 {
				err = fmt.Errorf("%d calls, %d with an outcome, %d faults: %s", r.Calls, r.Outcomes, len(r.Faults), strings.Join(some(r.Faults), "; "))
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&since, "since", 0, sinceUsage)
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object instead of a table")
	return cmd
}

// printReport has a row for each tool and a column for each outcome that occurs.
func printReport(cmd *cobra.Command, r *journal.CallReport) {
	var columns []string
	for _, o := range append(slices.Clone(journal.Outcomes), journal.Reconciled, journal.Unfinished, journal.NoLine) {
		if sum(r, o) > 0 {
			columns = append(columns, o)
		}
	}
	head, foot := []any{"TOOL"}, table.Row{"all"}
	for _, o := range columns {
		head = append(head, o)
		foot = append(foot, sum(r, o))
	}
	t := newTable(cmd.OutOrStdout(), append(head, "calls")...)
	var tools []string
	for tool := range r.ByTool {
		tools = append(tools, tool)
	}
	slices.Sort(tools)
	for _, tool := range tools {
		row, calls := table.Row{tool}, 0
		for _, o := range columns {
			row = append(row, r.ByTool[tool][o])
			calls += r.ByTool[tool][o]
		}
		t.AppendRow(append(row, calls))
	}
	t.AppendFooter(append(foot, r.Calls))
	t.Render()
	fmt.Fprintf(cmd.OutOrStdout(), "%d calls, %d with an outcome\n", r.Calls, r.Outcomes)
	printPrompts(cmd, r.Prompts)
}

// printPrompts has a row for each person who was asked.
func printPrompts(cmd *cobra.Command, all []journal.PromptReport) {
	if len(all) == 0 {
		return
	}
	seconds := func(s *float64) string {
		if s == nil {
			return "-"
		}
		return fmt.Sprintf("%.1f s", *s)
	}
	t := newTable(cmd.OutOrStdout(), "ASKED", "ANSWERS", "WITHIN A SECOND", "MEDIAN OF A DAY'S FIRST 3", "FROM ITS 10TH ON")
	for _, p := range all {
		t.AppendRow(table.Row{p.Principal, p.Prompts, p.AtOnce, seconds(p.First), seconds(p.Late)})
	}
	t.Render()
}

func sum(r *journal.CallReport, outcome string) (n int) {
	for _, outcomes := range r.ByTool {
		n += outcomes[outcome]
	}
	return n
}

// some are the first faults, and how many there are beside them.
func some(faults []string) []string {
	if len(faults) <= mostFaults {
		return faults
	}
	return append(slices.Clone(faults[:mostFaults]), fmt.Sprintf("and %d more", len(faults)-mostFaults))
}
