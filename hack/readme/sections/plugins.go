package sections

import (
	"encoding/json"
	"strings"
)

// PluginPermissionsFile is what a user of the plugins merges into the settings of Claude
// Code.
const PluginPermissionsFile = "hack/packaging/claude-plugin-settings.json"

// PluginPermissions are Permissions for the servers that the plugins of the marketplace
// bring, whose tools have longer names.
func PluginPermissions() ([]byte, error) {
	permissions, err := Permissions()
	if err != nil {
		return nil, err
	}
	var s struct {
		Plugins     map[string]bool     `json:"enabledPlugins"`
		Permissions map[string][]string `json:"permissions"`
	}
	if err := json.Unmarshal(permissions, &s); err != nil {
		return nil, err
	}
	s.Plugins = map[string]bool{"kube-plan@kube-write-mcp": true, "kube-write@kube-write-mcp": false}
	for _, rules := range s.Permissions {
		for i, rule := range rules {
			_, tool, _ := strings.Cut(rule, "mcp__")
			server, tool, _ := strings.Cut(tool, "__")
			rules[i] = "mcp__plugin_" + server + "_" + server + "__" + tool
		}
	}
	b, err := json.MarshalIndent(s, "", "  ")
	return append(b, '\n'), err
}
