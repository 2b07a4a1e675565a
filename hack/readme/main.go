// Command readme writes the permissions for Claude Code and the generated sections of
// README.md: the tables, the files under hack/packaging and, from a captured run, the
// demo. hack/update-readme.sh runs it.
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/kubewrite/kube-write-mcp/hack/readme/sections"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "readme: "+err.Error())
		os.Exit(1)
	}
}

func run() error {
	f := pflag.NewFlagSet("readme", pflag.ContinueOnError) // an own set: cobra adds the global one to the program's --help
	demo := f.String("demo", "", "output of hack/demo.sh to paste; without it the demo stays as it is")
	root := f.String("root", ".", "folder of the module")
	if err := f.Parse(os.Args[1:]); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return errors.New("usage: readme [--demo FILE] README.md")
	}
	path := f.Arg(0)
	readme, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for name, content := range map[string]func() ([]byte, error){
		sections.PermissionsFile:       sections.Permissions,
		sections.PluginPermissionsFile: sections.PluginPermissions,
	} {
		permissions, err := content()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(*root, name), permissions, 0o644); err != nil {
			return err
		}
	}
	all, err := sections.Static(*root)
	if err != nil {
		return err
	}
	if *demo != "" {
		output, err := os.ReadFile(*demo)
		if err != nil {
			return err
		}
		told, err := sections.Demo(string(output))
		if err != nil {
			return err
		}
		maps.Copy(all, told)
	}
	out, err := sections.Set(string(readme), all)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(out), 0o644)
}
