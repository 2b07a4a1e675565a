package app

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
)

// auditVerify verifies the whole journal, closed files and checkpoints included.
func (o *options) auditVerify() *cobra.Command {
	var v journal.VerifyOptions
	cmd := &cobra.Command{
		Use: "verify", Short: "Verify every line, every outcome and every checkpoint; name the first that is wrong", Args: cobra.NoArgs,
		Long: `Verifies the audit log from its first file to its last line: each line's mac and place
in the chain, times that never go back, keys that were in use when a line was written,
an intent before every outcome and one outcome for every intent, one result per plan, a
plan for every approval, and
the signed checkpoints, by which lines that were cut off at the end are found. Copies of
the checkpoints that are kept on another machine prove more than those beside the log.`,
		Example: `  kube-write-mcp audit verify
  kube-write-mcp audit verify --checkpoints /backup/checkpoints`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, keys, err := o.auditLog()
			if err != nil {
				return err
			}
			r, err := journal.Verify(path, keys, v)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "%d lines in %d files are good, from %s to %s; %d checkpoints hold\n",
				r.Lines, r.Files, r.From.Format(time.RFC3339), r.To.Format(time.RFC3339), r.Checkpoints)
			fmt.Fprintf(out, "the last one is line %d, sha256 %s\n", r.LastSeq, r.LastHash)
			for _, said := range r.Recovered {
				fmt.Fprintf(out, "recovered: %s\n", said)
			}
			if len(r.Unsettled) > 0 {
				fmt.Fprintf(out, "begun and without a result yet: %s\n", strings.Join(r.Unsettled, ", "))
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&v.Checkpoints, "checkpoints", nil, "`files` of checkpoints that are kept elsewhere")
	cmd.Flags().BoolVar(&v.Partial, "partial", false, "the oldest files may have been taken away")
	return cmd
}

// auditRecover is what an operator does about a sealed journal.
func (o *options) auditRecover() *cobra.Command {
	var newFile bool
	cmd := &cobra.Command{
		Use: "recover", Short: "Unseal an audit log that a server could not rely on any more", Args: cobra.NoArgs,
		Long: `Verifies the audit log after a server has sealed it, writes it to the disk once more,
keeps aside what cannot be trusted at its end, puts a recovered line on record and ends
the seal. Plans that were open can be executed no more. Damage before the last line, a
key that is missing, lines that are missing and a last line in the future are refused;
--new-file carries on in a new file then and keeps the old one, read-only, as it is.

A server that sealed the log stays sealed until it is started again.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, keys, err := o.keys(false)
			if err != nil {
				return err
			}
			inst, err := instance()
			if err != nil {
				return err
			}
			did, err := journal.Recover(journal.Options{Dir: dir, Path: o.audit, Keys: keys, Now: time.Now, Inst: inst}, newFile)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), did)
			return nil
		},
	}
	cmd.Flags().BoolVar(&newFile, "new-file", false, "carry on in a new file, and keep the old one as it is")
	return cmd
}

// path is where the audit log is, in the given state folder if nothing else is said.
func (o *options) path(dir string) string {
	if o.audit != "" {
		return o.audit
	}
	return filepath.Join(dir, "audit.jsonl")
}
