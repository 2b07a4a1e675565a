// Package app is the command line: flags and policy file, wiring, subcommands. A third
// party's main calls Main with actions of its own.
package app

import (
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/manifests"
)

// Version is set by the release build; a build from source says its commit.
var Version = "dev"

// Main runs the program with arguments and streams, and gives its exit code: 0 for
// success, 1 for any error, which is printed on stderr in one line.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer, actions ...*action.Action) int {
	cmd := newCommand(stdin, actions)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	if err := cmd.Execute(); err != nil {
		fmt.Fprintln(stderr, "kube-write-mcp: "+strings.ReplaceAll(err.Error(), "\n", "; "))
		return 1
	}
	return 0
}

func newCommand(stdin io.Reader, actions []*action.Action) *cobra.Command {
	o := &options{actions: actions, stdin: stdin}
	root := &cobra.Command{
		Use:   "kube-write-mcp",
		Short: "Safe Kubernetes writes for AI agents, two calls apart",
		Long: `kube-write-mcp is an MCP server for safe Kubernetes writes. plan_<action> changes
nothing and tells everything; <action> can do only what that plan described, once,
in time, in scope, on record. Without --allow-write the write tools do not exist.

Without a subcommand it serves MCP on stdin and stdout.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          o.serve,
		Version:       version(),
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.Flags().Bool("version", false, "print the version and exit")
	o.addState(root.PersistentFlags())
	serve := &cobra.Command{Use: "serve", Short: "Serve MCP on stdin and stdout (the default), or with --http to callers of the cluster", Args: cobra.NoArgs, RunE: o.serve}
	tools := &cobra.Command{Use: "tools", Short: "Print the tools with their arguments", Args: cobra.NoArgs, RunE: o.tools}
	for _, cmd := range []*cobra.Command{root, serve, tools} {
		o.addServe(cmd.Flags())
	}
	for _, cmd := range []*cobra.Command{root, serve} {
		cmd.Flags().BoolVar(&o.listTools, "list-tools", false, "print the tools and exit, as the tools command does")
	}
	root.AddCommand(
		serve,
		tools,
		o.plans(),
		o.approve(),
		o.printer("rbac", "Print the ServiceAccount and the rights that the server needs, and no more", manifests.RBAC),
		o.admission(),
		o.manifests(),
		o.doctor(),
		o.auditCommands(),
		o.keysCommands(),
		&cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs, Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), version())
		}},
	)
	return root
}

// version is the release's, with the commit where the build knows it.
func version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(Version, info)
}

// versionOf is the release's version, or that of the module which go install fetched, and
// the commit from which the program was built, marked where its tree held more than that.
func versionOf(release string, info *debug.BuildInfo) string {
	if info == nil {
		return release
	}
	var commit, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			commit = "+" + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	switch {
	case commit != "":
		return release + commit + dirty
	case release == "dev" && strings.HasPrefix(info.Main.Version, "v"):
		return info.Main.Version
	}
	return release
}
