package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

func (o *options) auditCommands() *cobra.Command {
	audit := &cobra.Command{Use: "audit", Short: "Read the audit log", Args: cobra.NoArgs}
	audit.AddCommand(o.auditShow(), o.auditVerify(), o.auditReport(), o.auditJoin(), o.auditRecover())
	return audit
}

// auditLog gives the path of the audit log and the keys that verify it.
func (o *options) auditLog() (path string, keys *journal.Keyring, err error) {
	dir, keys, err := o.keys(false)
	if err != nil {
		return "", nil, err
	}
	path = o.path(dir)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", nil, fmt.Errorf("there is no audit log at %s yet", path)
	}
	return path, keys, nil
}

// ago is the time from which on lines are wanted; 0 is the beginning.
func ago(d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return time.Now().Add(-d)
}

const sinceUsage = "only what is not older than this `duration`, such as 24h"

// filter says which lines are wanted; an empty field wants all.
type filter struct {
	plan, tool, event, code, namespace, principal string
}

func (f filter) wants(l *journal.Line) bool {
	is := func(want string, got ...string) bool { return want == "" || slices.Contains(got, want) }
	var who []string
	if p := l.Principal; p != nil {
		who = []string{p.String(), p.Name, p.K8s}
	}
	var namespace string
	var args struct {
		Namespace string `json:"namespace"`
	}
	if l.Target != nil {
		namespace = l.Target.Namespace
	}
	_ = json.Unmarshal(l.Args, &args) // a line without arguments is about no namespace
	return is(f.plan, l.Plan) && is(f.tool, l.Tool) && is(f.event, l.Event) && is(f.code, l.Code) &&
		is(f.namespace, namespace, args.Namespace) && is(f.principal, who...)
}

// auditShow prints the audit log, verified line by line.
func (o *options) auditShow() *cobra.Command {
	var f filter
	var since time.Duration
	var asJSON bool
	var limit int
	cmd := &cobra.Command{
		Use: "show", Short: "Print the audit log, verified line by line", Args: cobra.NoArgs,
		Long: `Prints the lines of the audit log that fit every filter, oldest first. Each line is
verified as it is read; the command fails at the first one that cannot be trusted.`,
		Example: `  kube-write-mcp audit show --since 24h --event execute
  kube-write-mcp audit show --plan mf3q7x2ad5 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, keys, err := o.auditLog()
			if err != nil {
				return err
			}
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetEscapeHTML(false) // as they stand in the file
			t := newTable(cmd.OutOrStdout(), "TIME", "EVENT", "WHAT", "CODE", "REASON / OUTPUT")
			show := func(l *journal.Line) error {
				if asJSON {
					return enc.Encode(l)
				}
				t.AppendRow(row(l))
				return nil
			}
			from := ago(since)
			var last []*journal.Line // the newest ones, where there is a limit
			err = journal.Scan(path, keys, func(l *journal.Line) error {
				switch {
				case l.Time.Before(from), !f.wants(l):
					return nil
				case limit <= 0:
					return show(l)
				case len(last) == limit:
					last = last[1:]
				}
				last = append(last, l)
				return nil
			})
			for _, l := range last {
				if err := show(l); err != nil {
					return err
				}
			}
			if !asJSON {
				t.Render()
			}
			return err
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.plan, "plan", "", "only lines of this `plan`")
	fl.StringVar(&f.tool, "tool", "", "only lines of this `tool`, such as plan_scale")
	fl.StringVar(&f.event, "event", "", "only lines of this `event`, such as execute")
	fl.StringVar(&f.code, "code", "", "only lines with this `code` of a refusal, or outcome, such as blast_limit or FAILED")
	fl.StringVar(&f.namespace, "namespace", "", "only lines about this `namespace`")
	fl.StringVar(&f.principal, "principal", "", "only lines of this `caller`: os:alice, or the username that the API server sees")
	fl.DurationVar(&since, "since", 0, sinceUsage)
	fl.IntVar(&limit, "limit", 0, "only the newest so many `lines`; 0 is all")
	fl.BoolVar(&asJSON, "json", false, "the lines as they stand instead of a table")
	return cmd
}

// row is a line for a person, with text from the cluster last.
func row(l *journal.Line) table.Row {
	said := strings.TrimSpace(l.Reason + " " + l.Output)
	if l.Untrusted != "" {
		said = strings.TrimSpace(said + "\nuntrusted: " + plan.Untrusted(l.Untrusted))
	}
	return table.Row{l.Time.Local().Format("01-02 15:04:05"), l.Event, what(l), l.Code, said}
}

func what(l *journal.Line) string {
	switch {
	case l.StepKey != "":
		return l.StepKey
	case l.Phrase != "":
		return l.Phrase
	}
	return l.Tool
}
