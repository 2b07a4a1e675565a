// Package actions holds the built-in actions, one file each. A third party imports
// pkg/action, writes more of them, and passes them to app.Main.
package actions

import "github.com/kubewrite/kube-write-mcp/pkg/action"

// All lists every built-in action by name. A new action's own file adds it here through
// add; nothing else changes.
func All() []*action.Action { return append([]*action.Action(nil), all...) }

var all []*action.Action

func add(a *action.Action) *action.Action {
	all = append(all, a)
	return a
}
