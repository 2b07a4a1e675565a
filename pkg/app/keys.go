package app

import (
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
)

func (o *options) keysCommands() *cobra.Command {
	keys := &cobra.Command{Use: "keys", Short: "Make and rotate the keys that sign phrases and the audit log", Args: cobra.NoArgs}
	keys.AddCommand(o.keysMake(), o.keysRotate(), o.keysPrune())
	return keys
}

// ownKeys is the key ring in the state folder, the only one that this program writes.
func (o *options) ownKeys() (dir string, keys *journal.Keyring, err error) {
	if o.keyFile != "" {
		return "", nil, errors.New("a file that is named with --key-file is changed by whoever made it")
	}
	return o.keys(false)
}

func (o *options) keysMake() *cobra.Command {
	return &cobra.Command{
		Use: "make", Short: "Make the key file in the state folder, for a Secret that several servers share", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.keyFile != "" {
				return errors.New("a key file is made in the folder of --state-dir, not at --key-file")
			}
			dir, _, err := o.keys(true)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "the keys are in %s\n", filepath.Join(dir, "keys.json"))
			return nil
		},
	}
}

func (o *options) keysRotate() *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use: "rotate", Short: "Add a key, which signs from now on, and retire those before it", Args: cobra.NoArgs,
		Long: `Adds a key to the key file. Servers that run see it at their next line in the audit log.
A key that is retired signs nothing and still verifies what it signed, so phrases that
were given out before stay good.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, keys, err := o.ownKeys()
			if err != nil {
				return err
			}
			kid, err := keys.Rotate(rand.Reader, grace)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "key %s in %s signs from now on\n", kid, filepath.Join(dir, "keys.json"))
			return nil
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", time.Minute, "how long the keys before it may still sign")
	return cmd
}

func (o *options) keysPrune() *cobra.Command {
	return &cobra.Command{
		Use: "prune", Short: "Take away retired keys with which no line of the audit log was written", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, keys, err := o.ownKeys()
			if err != nil {
				return err
			}
			r, err := journal.Verify(o.path(dir), keys, journal.VerifyOptions{Partial: true})
			if err != nil {
				return err
			}
			dropped, err := keys.Prune(r.Keys)
			if err != nil {
				return err
			}
			if len(dropped) == 0 {
				dropped = []string{"none"}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "taken away: %s\n", strings.Join(dropped, ", "))
			return nil
		},
	}
}
