package app

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"}
	dirty := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	info := func(module string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: module}, Settings: settings}
	}
	for name, tc := range map[string]struct {
		release string
		info    *debug.BuildInfo
		want    string
	}{
		"release":                    {"v1.2.3", info("v1.2.3", commit), "v1.2.3+0123456789ab"},
		"release without its commit": {"v1.2.3", info("(devel)"), "v1.2.3"},
		"from source":                {"dev", info("v0.0.0-20261130000000-0123456789ab", commit), "dev+0123456789ab"},
		"changed source":             {"dev", info("v0.0.0-20261130000000-0123456789ab+dirty", commit, dirty), "dev+0123456789ab-dirty"},
		"source without a commit":    {"dev", info("(devel)"), "dev"},
		"go install of a version":    {"dev", info("v1.2.3"), "v1.2.3"},
		"no build information":       {"dev", nil, "dev"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := versionOf(tc.release, tc.info); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// TestVersionIsOne: the flag says what the command says, on stdout.
func TestVersionIsOne(t *testing.T) {
	_, flag, stderr := run("--version")
	_, command, _ := run("version")
	if flag != command || stderr != "" {
		t.Errorf("--version says %q and version says %q; stderr %q", flag, command, stderr)
	}
}

// TestCompletion: each shell's script goes to stdout, whole and alone, and asks the program
// in a way that it answers.
func TestCompletion(t *testing.T) {
	for shell, want := range map[string]string{
		"bash":       "complete -o default -F __start_kube-write-mcp kube-write-mcp",
		"zsh":        "#compdef kube-write-mcp",
		"fish":       "complete -c kube-write-mcp",
		"powershell": "Register-ArgumentCompleter -CommandName 'kube-write-mcp'",
	} {
		t.Run(shell, func(t *testing.T) {
			code, script, stderr := run("completion", shell)
			if code != 0 || stderr != "" || !strings.Contains(script, want) {
				t.Errorf("code %d, stderr %q, %d bytes without %q", code, stderr, len(script), want)
			}
			if !strings.Contains(script, " __complete ") {
				t.Error("the script does not ask the program")
			}
		})
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"command": {[]string{"__complete", "au"}, "audit\t"},
		"flag":    {[]string{"__complete", "serve", "--allow-w"}, "--allow-write\t"},
	} {
		t.Run(name, func(t *testing.T) {
			if code, stdout, _ := run(tc.args...); code != 0 || !strings.HasPrefix(stdout, tc.want) {
				t.Errorf("code %d, want %q first in:\n%s", code, tc.want, stdout)
			}
		})
	}
}
