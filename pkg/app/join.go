package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
)

// auditJoin compares the audit log with the API server's own.
func (o *options) auditJoin() *cobra.Command {
	var file, cluster string
	var since time.Duration
	cmd := &cobra.Command{
		Use: "join --apiserver-audit FILE", Short: "Compare the audit log with the API server's own; fail where they contradict each other", Args: cobra.NoArgs,
		Long: `Joins every dry run and every executed request with the API server's own audit log by
Audit-ID, and compares user, verb, object, time (within 60 s) and status code. It
prints a line for each request, and what that comes to:

  same      both logs say the same; "dry run ok, real 409" is how admission or a
            conflict may decide at last
  legal     one side saw no answer, or the API server stopped waiting (504) for a
            write that went through
  noted     a dry run of ours that no line has: its process died, or its caller
            went away
  missing   their log does not have it: its policy is None there, or it was rotated
  differs   a field differs
  alarm     a write that bears our name (user agent, field manager, Audit-ID) and no
            line has, or one that was sent twice

The command fails where anything differs or alarms. A server with an audit log of its
own alarms here. Where the audit log is about several clusters, name theirs.`,
		Example: `  kube-write-mcp audit join --apiserver-audit /var/log/kubernetes/audit.log --since 24h
  cat audit-*.log audit.log | kube-write-mcp audit join --apiserver-audit -`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, keys, err := o.auditLog()
			if err != nil {
				return err
			}
			theirs := o.stdin
			if file != "-" {
				f, err := os.Open(file)
				if err != nil {
					return err
				}
				defer f.Close()
				theirs = f
			}
			return printJoin(cmd.OutOrStdout(), path, keys, theirs, journal.JoinOptions{Label: cluster, Since: ago(since)})
		},
	}
	cmd.Flags().StringVar(&file, "apiserver-audit", "", "the API server's audit log, a `file` of JSON lines; - is standard input")
	cmd.Flags().StringVar(&cluster, "cluster-name", "", "only requests to the cluster of this `name`, as it stands in every phrase")
	cmd.Flags().DurationVar(&since, "since", 0, sinceUsage)
	_ = cmd.MarkFlagRequired("apiserver-audit") // the flag is there: it was made above
	return cmd
}

// printJoin prints each request as it is joined: both logs may be of any size.
func printJoin(out io.Writer, path string, keys *journal.Keyring, theirs io.Reader, o journal.JoinOptions) error {
	var failed error
	sums, err := journal.JoinWith(path, keys, theirs, o, func(r journal.Joined) {
		if _, err := fmt.Fprintf(out, "%s  %-7s  %-40s  %s: %s\n", r.Time.Local().Format("01-02 15:04:05"), r.Kind, r.AuditID, r.Step, r.Result); err != nil {
			failed = err
		}
	})
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	for _, k := range []journal.Kind{journal.Legal, journal.Noted, journal.Missing, journal.Differs, journal.Alarm} {
		if n := sums.By[k]; n > 0 {
			fmt.Fprintf(out, "%d %s\n", n, k)
		}
	}
	matched := fmt.Sprintf("%d of %d match exactly", sums.By[journal.Same], sums.Requests)
	fmt.Fprintln(out, matched)
	if differs, alarms := sums.By[journal.Differs], sums.By[journal.Alarm]; differs+alarms > 0 {
		return fmt.Errorf("%d alarms, %d requests that differ; %s", alarms, differs, matched)
	}
	return nil
}
