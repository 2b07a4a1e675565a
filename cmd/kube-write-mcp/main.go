// Command kube-write-mcp is an MCP server for safe Kubernetes writes.
package main

import (
	"os"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
)

func main() { os.Exit(app.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, actions.All()...)) }
