//go:build clients

package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

var cp *lab.Lab

func TestMain(m *testing.M) {
	if dir := os.Getenv(teeEnv); dir != "" {
		os.Exit(tee(dir, os.Args[1:]))
	}
	lab.Main(tabled{m}, lab.Options{Controllers: true, Nodes: 3}, func(l *lab.Lab) {
		cp = l
		if _, err := envtest.InstallCRDs(l.Config, envtest.CRDInstallOptions{CRDs: cluster.CRDs()}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			_ = l.Stop()
			os.Exit(1)
		}
	})
}

// installed is the folder of an npm package among the fetched clients, and its version.
func installed(t *testing.T, name string) (dir, version string) {
	t.Helper()
	const hint = "run hack/clients.sh, which fetches the clients and runs these tests"
	root := os.Getenv("KUBE_WRITE_CLIENTS")
	if root == "" {
		t.Fatal("there are no clients: " + hint)
	}
	dir = filepath.Join(root, "node_modules", filepath.FromSlash(name))
	raw, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		t.Fatalf("%v: %s", err, hint)
	}
	var p struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(raw, &p); err != nil || p.Version == "" {
		t.Fatalf("%s/package.json has no version (%v): %s", dir, err, hint)
	}
	return dir, p.Version
}

// platform is this machine, as npm packages call it.
func platform() string {
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	return runtime.GOOS + "-" + arch
}
