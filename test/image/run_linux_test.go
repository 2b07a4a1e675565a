package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

const uid = 65532

// rootFS is the root of the last stage, with the program in it.
func rootFS(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	for _, d := range []string{"etc/ssl/certs", "state"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	passwd := "nonroot:x:65532:65532:nonroot:/state:/nologin"
	if !strings.Contains(dockerfile(t), "echo '"+passwd+"' >/root-fs/etc/passwd") {
		t.Error("the image's passwd file is another one")
	}
	if err := os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte(passwd+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(build(t, root), filepath.Join(dir, "kube-write-mcp")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// inside is a command that runs as uid 65532 with a folder for its root: by the rights of
// root, or else in a user namespace, where that uid is ours outside.
func inside(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/kube-write-mcp", args...)
	cmd.Dir, cmd.Env = "/", []string{"HOME=/state", "XDG_STATE_HOME=/state"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if os.Getuid() == 0 {
		if err := os.Chown(filepath.Join(dir, "state"), uid, uid); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Getuid(), Size: 1}}
	cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Getgid(), Size: 1}}
	cmd.SysProcAttr.Credential.NoSetGroups = true
	return cmd
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters:
- {name: a, cluster: {server: "https://127.0.0.1:1"}}
contexts:
- {name: one, context: {cluster: a}}
current-context: one
`

// TestRunsInAnEmptyRoot: the program serves as uid 65532 where nothing else is, and keeps
// its journal to itself.
func TestRunsInAnEmptyRoot(t *testing.T) {
	runsInAnEmptyRoot(t, rootFS(t), "v9.9.9-test")
}

func runsInAnEmptyRoot(t *testing.T, dir, version string) {
	t.Helper()
	out, err := inside(t, dir, "version").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != version {
		t.Errorf("version: %s %v, want %s", out, err, version)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte(kubeconfig), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := inside(t, dir, "serve", "--kubeconfig", "/kubeconfig", "--allow-write", "--quiet")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	from, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("it cannot be started as uid %d in its root: %v", uid, err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	c, err := stdio.Connect(stdio.Modern, in, from, nil)
	if err != nil {
		t.Fatal(err, stderr.String())
	}
	got, err := c.Call("plan_scale", map[string]any{"namespace": "default", "deployment": "web", "replicas": 2})
	if err != nil || got.Field("code") != "unreachable" {
		t.Errorf("%v: %s %s", err, got.Text, stderr.String())
	}
	c.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v: %s", err, stderr.String())
	}
	info, err := os.Stat(filepath.Join(dir, "state/kube-write-mcp/audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	want := uint32(uid)
	if os.Getuid() != 0 {
		want = uint32(os.Getuid()) // seen from outside the namespace
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != want || info.Mode().Perm() != 0o600 {
		t.Errorf("the journal is of user %d and mode %04o", owner, info.Mode().Perm())
	}
}
