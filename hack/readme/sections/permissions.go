package sections

import (
	"encoding/json"
	"slices"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
)

// PermissionsFile is what a user merges into the settings of Claude Code.
const PermissionsFile = "hack/packaging/claude-settings.json"

// Permissions lets plans and reads run without a question, has each write ask, and keeps
// the server that can write turned off.
func Permissions() ([]byte, error) {
	var s struct {
		Enabled     []string `json:"enabledMcpjsonServers"`
		Disabled    []string `json:"disabledMcpjsonServers"`
		Permissions struct {
			Allow []string `json:"allow"`
			Ask   []string `json:"ask"`
		} `json:"permissions"`
	}
	s.Enabled, s.Disabled = []string{"kube-plan"}, []string{"kube-write"}
	for _, server := range []string{"kube-plan", "kube-write"} {
		s.Permissions.Allow = append(s.Permissions.Allow, "mcp__"+server+"__plan_*", "mcp__"+server+"__write_status")
		for _, t := range read.All() {
			s.Permissions.Allow = append(s.Permissions.Allow, "mcp__"+server+"__"+t.Name)
		}
	}
	s.Permissions.Ask = []string{"mcp__kube-write__" + plan.UndoTool, "mcp__kube-write__" + plan.ChangesTool}
	for _, a := range actions.All() {
		s.Permissions.Ask = append(s.Permissions.Ask, "mcp__kube-write__"+a.Name)
	}
	slices.Sort(s.Permissions.Ask)
	b, err := json.MarshalIndent(s, "", "  ")
	return append(b, '\n'), err
}
