// Package packaging tests the files by which clients, registries and package managers find
// and start the program: that they are whole, of one version, and ask for nothing that the
// program does not have.
package packaging

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/hack/readme/sections"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
)

const root = "../.."

const (
	planPlugin  = "hack/packaging/claude/kube-plan"
	writePlugin = "hack/packaging/claude/kube-write"
	skills      = "hack/packaging/skills"
)

type (
	author struct {
		Name string `json:"name"`
		URL  string `json:"url"`
	}

	stdioServer struct {
		Type    string            `json:"type"`
		Command string            `json:"command"`
		Args    []string          `json:"args"`
		Env     map[string]string `json:"env"`
		Timeout int               `json:"timeout"`
	}

	option struct {
		Type        string `json:"type"`
		Title       string `json:"title"`
		Description string `json:"description"`
		Required    bool   `json:"required"`
		Default     any    `json:"default"`
	}

	plugin struct {
		Name        string                 `json:"name"`
		Version     string                 `json:"version"`
		Description string                 `json:"description"`
		Homepage    string                 `json:"homepage"`
		Repository  string                 `json:"repository"`
		License     string                 `json:"license"`
		Author      author                 `json:"author"`
		Keywords    []string               `json:"keywords"`
		UserConfig  map[string]option      `json:"userConfig"`
		MCPServers  map[string]stdioServer `json:"mcpServers"`
	}

	marketplace struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		Owner       author `json:"owner"`
		Plugins     []struct {
			Name        string   `json:"name"`
			Version     string   `json:"version"`
			Source      string   `json:"source"`
			Description string   `json:"description"`
			Strict      *bool    `json:"strict"`
			Skills      []string `json:"skills"`
			Author      author   `json:"author"`
		} `json:"plugins"`
	}

	bundle struct {
		ManifestVersion string `json:"manifest_version"`
		DisplayName     string `json:"display_name"`
		Name            string `json:"name"`
		Version         string `json:"version"`
		Description     string `json:"description"`
		Author          author `json:"author"`
		Repository      struct {
			Type string `json:"type"`
			URL  string `json:"url"`
		} `json:"repository"`
		Homepage string   `json:"homepage"`
		License  string   `json:"license"`
		Keywords []string `json:"keywords"`
		Server   struct {
			Type       string `json:"type"`
			EntryPoint string `json:"entry_point"`
			Config     struct {
				Command string            `json:"command"`
				Args    []string          `json:"args"`
				Env     map[string]string `json:"env"`
			} `json:"mcp_config"`
		} `json:"server"`
		ToolsGenerated bool              `json:"tools_generated"`
		UserConfig     map[string]option `json:"user_config"`
		Compatibility  struct {
			Platforms []string `json:"platforms"`
		} `json:"compatibility"`
	}

	npmPackage struct {
		Name        string `json:"name"`
		Version     string `json:"version"`
		MCPName     string `json:"mcpName"`
		Description string `json:"description"`
		License     string `json:"license"`
		Homepage    string `json:"homepage"`
		Repository  struct {
			Type string `json:"type"`
			URL  string `json:"url"`
		} `json:"repository"`
		Keywords             []string          `json:"keywords"`
		Files                []string          `json:"files"`
		Bin                  map[string]string `json:"bin"`
		Engines              map[string]string `json:"engines"`
		OptionalDependencies map[string]string `json:"optionalDependencies"`
	}

	registryEntry struct {
		Schema      string `json:"$schema"`
		Name        string `json:"name"`
		Title       string `json:"title"`
		Description string `json:"description"`
		Version     string `json:"version"`
		Repository  struct {
			URL    string `json:"url"`
			Source string `json:"source"`
		} `json:"repository"`
		Packages []struct {
			RegistryType string `json:"registryType"`
			Identifier   string `json:"identifier"`
			Version      string `json:"version"`
			Transport    struct {
				Type string `json:"type"`
			} `json:"transport"`
			PackageArguments []struct {
				Type        string `json:"type"`
				Name        string `json:"name"`
				Value       string `json:"value"`
				Description string `json:"description"`
				IsRequired  bool   `json:"isRequired"`
			} `json:"packageArguments"`
		} `json:"packages"`
	}
)

func read(t *testing.T, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// decode reads a JSON file that may have no field twice, none that its type does not, and
// none in another case.
func decode[T any](t *testing.T, name string) (v T) {
	t.Helper()
	if strict, err := strictjson.UnmarshalStrict(read(t, name), &v); err != nil || len(strict) > 0 {
		t.Fatalf("%s: %v %v", name, err, strict)
	}
	return v
}

func manifestOf(dir string) string { return dir + "/.claude-plugin/plugin.json" }

// tools are those that the program lists when it is started with these arguments.
func tools(t *testing.T, args ...string) (names []string) {
	t.Helper()
	var out, errs bytes.Buffer
	if code := app.Main(append(args, "--list-tools"), strings.NewReader(""), &out, &errs, actions.All()...); code != 0 {
		t.Fatalf("%v: exit %d: %s", args, code, errs.String())
	}
	for _, m := range regexp.MustCompile(`(?m)^ ([a-z_]+) `).FindAllStringSubmatch(out.String(), -1) {
		names = append(names, m[1])
	}
	if !slices.Contains(names, "plan_scale") {
		t.Fatalf("%v lists %v", args, names)
	}
	return names
}

// wantWrites wants every write tool among the names, or none.
func wantWrites(t *testing.T, names []string, want bool) {
	t.Helper()
	for _, a := range actions.All() {
		if !slices.Contains(names, "plan_"+a.Name) {
			t.Errorf("there is no plan_%s", a.Name)
		}
		if got := slices.Contains(names, a.Name); got != want {
			t.Errorf("it has %s: %t, want %t", a.Name, got, want)
		}
	}
}

// filled are arguments with the user's settings in the place of ${user_config.x}; each
// setting must be asked for, and each that is asked for be used.
func filled(t *testing.T, args []string, asked map[string]option, given map[string]string) []string {
	t.Helper()
	used := map[string]bool{}
	out := slices.Clone(args)
	for i, a := range out {
		out[i] = regexp.MustCompile(`\$\{user_config\.(\w+)\}`).ReplaceAllStringFunc(a, func(s string) string {
			name := strings.TrimSuffix(strings.TrimPrefix(s, "${user_config."), "}")
			used[name] = true
			if o, ok := asked[name]; !ok || !o.Required && o.Default == nil {
				t.Errorf("%s is not asked for, or may be left without a value", name)
			}
			return given[name]
		})
	}
	for name := range asked {
		if !used[name] {
			t.Errorf("%s is asked for and not used", name)
		}
	}
	return out
}

func TestVersions(t *testing.T) {
	var chart struct{ Version string }
	if err := yaml.Unmarshal(read(t, "hack/deploy/kube-write-mcp/Chart.yaml"), &chart); err != nil {
		t.Fatal(err)
	}
	npm := decode[npmPackage](t, "hack/packaging/npm/package.json")
	entry := decode[registryEntry](t, "hack/packaging/server.json")
	got := map[string]string{
		"plugin kube-plan":  decode[plugin](t, manifestOf(planPlugin)).Version,
		"plugin kube-write": decode[plugin](t, manifestOf(writePlugin)).Version,
		"bundle":            decode[bundle](t, "hack/packaging/mcpb/manifest.json").Version,
		"registry":          entry.Version,
		"chart":             chart.Version,
	}
	for _, p := range decode[marketplace](t, ".claude-plugin/marketplace.json").Plugins {
		if p.Strict != nil && !*p.Strict { // it has no manifest of its own
			got[p.Name] = p.Version
		}
	}
	for _, p := range entry.Packages {
		got["registry's "+p.RegistryType] = p.Version
	}
	for name, version := range npm.OptionalDependencies {
		got[name] = version
	}
	for what, version := range got {
		if version != npm.Version {
			t.Errorf("%s is of version %q, the npm package of %q", what, version, npm.Version)
		}
	}
	if len(got) < 13 {
		t.Errorf("only %d versions", len(got))
	}
}

// TestMarketplace: what it offers is there, under the name that it is offered by.
func TestMarketplace(t *testing.T) {
	m := decode[marketplace](t, ".claude-plugin/marketplace.json")
	var got []string
	for _, p := range m.Plugins {
		dir, ok := strings.CutPrefix(p.Source, "./")
		if !ok {
			t.Errorf("%s: the source %q does not begin with ./", p.Name, p.Source)
		}
		got = append(got, p.Name+" "+dir)
		if p.Strict == nil || *p.Strict {
			own := decode[plugin](t, manifestOf(dir))
			if own.Name != p.Name || own.Description != p.Description {
				t.Errorf("%s calls itself %s: %q, the marketplace says %q", dir, own.Name, own.Description, p.Description)
			}
			continue
		}
		for _, skill := range p.Skills {
			name := strings.TrimPrefix(skill, "./")
			head := regexp.MustCompile(`(?s)^---\n(.*?)\n---\n`).FindSubmatch(read(t, dir+"/"+name+"/SKILL.md"))
			if head == nil {
				t.Fatalf("%s has no front matter", skill)
			}
			var front struct{ Name, Description string }
			if err := yaml.Unmarshal(head[1], &front); err != nil || front.Name != name || front.Description == "" {
				t.Errorf("%s: %+v %v", skill, front, err)
			}
		}
		if len(p.Skills) == 0 {
			t.Errorf("%s has nothing in it", p.Name)
		}
	}
	if diff := cmp.Diff([]string{"kube-plan " + planPlugin, "kube-write " + writePlugin, "write-tool-design-review " + skills}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestPlugins: each brings one server of its name, and only the one that says so can write.
func TestPlugins(t *testing.T) {
	for dir, writes := range map[string]bool{planPlugin: false, writePlugin: true} {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			p := decode[plugin](t, manifestOf(dir))
			s, ok := p.MCPServers[p.Name]
			if !ok || len(p.MCPServers) != 1 || s.Type != "stdio" || s.Command != "kube-write-mcp" {
				t.Fatalf("servers: %+v", p.MCPServers)
			}
			wantWrites(t, tools(t, filled(t, s.Args, p.UserConfig, map[string]string{"context": "one"})...), writes)
			var plain struct {
				Servers map[string]stdioServer `json:"mcpServers"`
			}
			if err := json.Unmarshal(read(t, "hack/packaging/mcp.json"), &plain); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(plain.Servers[p.Name].Env, s.Env); diff != "" || s.Timeout != plain.Servers[p.Name].Timeout {
				t.Errorf("environment (-mcp.json +plugin), timeout %d:\n%s", s.Timeout, diff)
			}
		})
	}
}

// TestPluginPermissions: they are those of claude-settings.json, under the names that a
// plugin's tools have, and every tool is in one of them.
func TestPluginPermissions(t *testing.T) {
	want, err := sections.PluginPermissions()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(read(t, sections.PluginPermissionsFile))); diff != "" {
		t.Errorf("%s is out of step; run %s (-generated +file):\n%s", sections.PluginPermissionsFile, sections.Update, diff)
	}
	settings := decode[struct {
		EnabledPlugins map[string]bool `json:"enabledPlugins"`
		Permissions    struct {
			Allow []string `json:"allow"`
			Ask   []string `json:"ask"`
		} `json:"permissions"`
	}](t, sections.PluginPermissionsFile)
	market := decode[marketplace](t, ".claude-plugin/marketplace.json")
	if diff := cmp.Diff(map[string]bool{"kube-plan@" + market.Name: true, "kube-write@" + market.Name: false}, settings.EnabledPlugins); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	matches := func(rules []string, tool string) bool {
		return slices.ContainsFunc(rules, func(rule string) bool {
			prefix, ok := strings.CutSuffix(rule, "*")
			return rule == tool || ok && strings.HasPrefix(tool, prefix)
		})
	}
	for dir, args := range map[string][]string{planPlugin: {"serve"}, writePlugin: {"serve", "--allow-write"}} {
		name := decode[plugin](t, manifestOf(dir)).Name
		for _, tool := range tools(t, args...) {
			full := "mcp__plugin_" + name + "_" + name + "__" + tool
			if len(full) > 64 {
				t.Errorf("%s has %d characters: some models take no more than 64", full, len(full))
			}
			allowed, asks := matches(settings.Permissions.Allow, full), matches(settings.Permissions.Ask, full)
			if allowed == asks || strings.HasPrefix(tool, "plan_") && asks {
				t.Errorf("%s: allowed %t, asks %t", full, allowed, asks)
			}
		}
	}
	known := map[string]bool{}
	for _, tool := range tools(t, "serve", "--allow-write") {
		known[tool] = true
	}
	for _, rule := range slices.Concat(settings.Permissions.Allow, settings.Permissions.Ask) {
		tool := rule[strings.LastIndex(rule, "__")+2:]
		if !known[tool] && tool != "plan_*" {
			t.Errorf("there is no tool for %s", rule)
		}
	}
}

// TestBundle: it can write only where the user says so.
func TestBundle(t *testing.T) {
	b := decode[bundle](t, "hack/packaging/mcpb/manifest.json")
	if b.UserConfig["allow_write"].Default != false {
		t.Errorf("allow_write is %v by default", b.UserConfig["allow_write"].Default)
	}
	for _, write := range []string{"false", "true"} {
		t.Run("allow_write "+write, func(t *testing.T) {
			args := filled(t, b.Server.Config.Args, b.UserConfig, map[string]string{"context": "one", "allow_write": write})
			wantWrites(t, tools(t, args...), write == "true")
		})
	}
}

// TestNPM: its one command is the program's, and the launcher is there.
func TestNPM(t *testing.T) {
	p := decode[npmPackage](t, "hack/packaging/npm/package.json")
	if diff := cmp.Diff(map[string]string{"kube-write-mcp": "bin/kube-write-mcp.js"}, p.Bin); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	js := read(t, "hack/packaging/npm/"+p.Bin["kube-write-mcp"])
	if !bytes.HasPrefix(js, []byte("#!/usr/bin/env node\n")) || !bytes.Contains(js, []byte("`"+p.Name+"-${system}/bin/kube-write-mcp${")) {
		t.Error("the launcher does not look for the packages of this one")
	}
	for name := range p.OptionalDependencies {
		if !regexp.MustCompile(`^` + p.Name + `-(darwin|linux|win32)-(arm64|x64)$`).MatchString(name) {
			t.Errorf("%s is not named for a system of Node", name)
		}
	}
}

// TestRegistry: the entry starts what npm installs, by arguments that the program has.
func TestRegistry(t *testing.T) {
	e := decode[registryEntry](t, "hack/packaging/server.json")
	npm := decode[npmPackage](t, "hack/packaging/npm/package.json")
	if e.Name != npm.MCPName {
		t.Errorf("it is called %s, the npm package says %s", e.Name, npm.MCPName)
	}
	if n := len(e.Description); n == 0 || n > 100 {
		t.Errorf("the description has %d characters; the registry takes 1 to 100", n)
	}
	if len(e.Packages) != 1 || e.Packages[0].RegistryType != "npm" || e.Packages[0].Identifier != npm.Name || e.Packages[0].Transport.Type != "stdio" {
		t.Fatalf("packages: %+v", e.Packages)
	}
	var args []string
	for _, a := range e.Packages[0].PackageArguments {
		switch {
		case a.Type == "positional" && a.Value != "" && a.Name == "":
			args = append(args, a.Value)
		case a.Type == "named" && a.Value == "" && a.IsRequired && a.Description != "":
			args = append(args, a.Name+"=one")
		default:
			t.Errorf("argument %+v", a)
		}
	}
	wantWrites(t, tools(t, args...), false)
}
