package app

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

const unreachable = `apiVersion: v1
kind: Config
clusters:
- {name: a, cluster: {server: "http://127.0.0.1:1"}}
contexts:
- {name: one, context: {cluster: a}}
current-context: one
`

func doctored(t *testing.T, args ...string) (code int, report map[string]finding) {
	t.Helper()
	code, stdout, stderr := run(append([]string{"doctor", "--output", "json", "--kubeconfig", write(t, "config", unreachable)}, args...)...)
	var all []finding
	if err := json.Unmarshal([]byte(stdout), &all); err != nil {
		t.Fatalf("%v: %s %s", err, stdout, stderr)
	}
	report = map[string]finding{}
	for _, f := range all {
		report[f.Check] = f
		if f.State == broken && f.Fix == "" {
			t.Errorf("no fix stands beside %+v", f)
		}
	}
	return code, report
}

// TestDoctorUnreachable: without an API server what can be said is said.
func TestDoctorUnreachable(t *testing.T) {
	code, report := doctored(t, "--state-dir", filepath.Join(t.TempDir(), "none"))
	if code != 1 || report["API server"].State != broken || report["state folder"].State != good {
		t.Errorf("code %d, %+v", code, report)
	}
	code, stdout, stderr := run("doctor", "--kubeconfig", write(t, "config", unreachable), "--state-dir", filepath.Join(t.TempDir(), "none"))
	if code != 1 || !strings.Contains(stderr, "something is broken") {
		t.Errorf("code %d, stderr %s", code, stderr)
	}
	for _, want := range []string{"CHECK", "STATE", "FIX", "API server", "broken"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the table lacks %q: %s", want, stdout)
		}
	}
	if strings.Contains(stdout, "\x1b") {
		t.Errorf("colours, and this is no terminal: %q", stdout)
	}
	if code, _, stderr := run("doctor", "--output", "yaml"); code != 1 || !strings.Contains(stderr, `"yaml"`) {
		t.Errorf("code %d: %s", code, stderr)
	}
	if code, report := doctored(t, "--context", "two"); code != 1 || report["kubeconfig"].State != broken {
		t.Errorf("code %d: %+v", code, report)
	}
}

// TestDoctorState: what is wrong with a state folder, each told apart.
func TestDoctorState(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, dir string)
		check string
		want  state
	}{
		{"sound", func(*testing.T, string) {}, "audit log", good},
		{"its folder", func(*testing.T, string) {}, "state folder", good},
		{"its lock", func(*testing.T, string) {}, "lock", good},
		{"its space", func(*testing.T, string) {}, "free space", good},
		{"open to others", func(t *testing.T, dir string) {
			if runtime.GOOS == "windows" {
				t.Fatal("this test is for systems with modes")
			}
			must(t, os.Chmod(dir, 0o755)) //nolint:gosec // what is to be found
		}, "state folder", broken},
		{"a changed line", func(t *testing.T, dir string) {
			path := filepath.Join(dir, "audit.jsonl")
			raw, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, []byte(strings.Replace(string(raw), "default", "defaulT", 1)), 0o600))
		}, "audit log", broken},
		{"no keys", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "keys.json"))) }, "audit log", broken},
		{"a file in its place", func(t *testing.T, dir string) {
			must(t, os.RemoveAll(dir))
			must(t, os.WriteFile(dir, nil, 0o600))
		}, "state folder", broken},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := record(t, story()[0])
			tc.spoil(t, dir)
			if _, report := doctored(t, "--state-dir", dir); report[tc.check].State != tc.want {
				t.Errorf("%s is %+v, want %s", tc.check, report[tc.check], tc.want)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestClocks: the Date of an answer is in whole seconds, and was written somewhen between
// request and answer.
func TestClocks(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name          string
		before, after time.Duration
		want          time.Duration
	}{
		{"the same second", 100 * time.Millisecond, 900 * time.Millisecond, 0},
		{"around it", -time.Second, 3 * time.Second, 0},
		{"ours is ahead", 61 * time.Second, 62 * time.Second, time.Minute},
		{"ours is behind", -63 * time.Second, -62 * time.Second, -62 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := dates{}
			d.see(at.Add(tc.before), at.Add(tc.after), at)
			if d.skew != tc.want {
				t.Errorf("skew %s, want %s", d.skew, tc.want)
			}
		})
	}
}
