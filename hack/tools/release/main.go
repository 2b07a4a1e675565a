// Command release builds everything that a release consists of into one folder: archives of
// the program, MCPB bundles, npm packages, a registry entry, an OCI image, the bill of
// materials and the checksums. From one commit and one version of Go it makes the same
// bytes anywhere. hack/release.sh runs it.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// platform is a system that the program is released for, by its names in Go and in Node.
type platform struct{ os, arch, nodeOS, nodeArch string }

func (p platform) String() string { return p.os + "/" + p.arch }

var platforms = []platform{
	{"darwin", "amd64", "darwin", "x64"},
	{"darwin", "arm64", "darwin", "arm64"},
	{"linux", "amd64", "linux", "x64"},
	{"linux", "arm64", "linux", "arm64"},
	{"windows", "amd64", "win32", "x64"},
	{"windows", "arm64", "win32", "arm64"},
}

const (
	product = "kube-write-mcp"
	source  = "https://github.com/kubewrite/kube-write-mcp"
)

// release is what is built: the version without its v, from the tree at root, into out.
type release struct {
	version, root, out string
	license            []byte
}

// program is the built program of one platform, and what its packages call it.
type program struct {
	platform
	name  string
	bytes []byte
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release: "+err.Error())
		os.Exit(1)
	}
}

func run(args []string) error {
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	root := f.String("root", "../..", "folder of the module")
	out := f.String("out", "", "folder to fill; it must be empty or absent")
	only := f.String("only", "", "build for this one platform, as os/arch")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 1 || *out == "" {
		return fmt.Errorf("usage: release --out FOLDER VERSION")
	}
	r := release{version: strings.TrimPrefix(f.Arg(0), "v"), root: *root, out: *out}
	if err := r.agree(); err != nil {
		return err
	}
	if there, err := os.ReadDir(r.out); err == nil && len(there) > 0 {
		return fmt.Errorf("%s is not empty", r.out)
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	var err error
	r.license, err = os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	var built []program
	for _, p := range platforms {
		if *only != "" && *only != p.String() {
			continue
		}
		fmt.Fprintln(os.Stderr, "release: "+p.String())
		b, err := r.build(p)
		if err != nil {
			return err
		}
		built = append(built, b)
	}
	if len(built) == 0 {
		return fmt.Errorf("it is not released for %s", *only)
	}
	for _, part := range []func([]program) error{r.archives, r.bundles, r.npm, r.image, r.registry, r.materials, r.checksums} {
		if err := part(built); err != nil {
			return err
		}
	}
	return nil
}

// agree wants every committed file that names a version to name this one: some of them are
// used from the repository as they are.
func (r release) agree() error {
	for _, name := range []string{
		"hack/packaging/claude/kube-plan/.claude-plugin/plugin.json", "hack/packaging/claude/kube-write/.claude-plugin/plugin.json",
		"hack/packaging/mcpb/manifest.json", "hack/packaging/npm/package.json", "hack/packaging/server.json",
	} {
		o, err := r.object(name)
		if err != nil {
			return err
		}
		if o["version"] != r.version {
			return fmt.Errorf("%s is of version %v, not %s: set it, and commit that first", name, o["version"], r.version)
		}
	}
	return nil
}

// object reads a JSON file of the tree.
func (r release) object(name string) (map[string]any, error) {
	raw, err := os.ReadFile(filepath.Join(r.root, name))
	if err != nil {
		return nil, err
	}
	var o map[string]any
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return o, nil
}

// build is the Dockerfile's, with the commit in it. What of the caller's environment would
// change the program is set.
func (r release) build(p platform) (program, error) {
	b := program{platform: p, name: product}
	if p.os == "windows" {
		b.name += ".exe"
	}
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return b, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, b.name)
	cmd := exec.Command("go", "build", "-trimpath",
		"-ldflags", "-s -w -X github.com/kubewrite/kube-write-mcp/pkg/app.Version=v"+r.version,
		"-o", path, "./cmd/kube-write-mcp")
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return b, fmt.Errorf("go build for %s: %w: %s", p, err, out)
	}
	b.bytes, err = os.ReadFile(path)
	return b, err
}

// write makes one file of the release.
func (r release) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(r.out, name), content, 0o644)
}

// fileName is that of a file for one platform.
func (r release) fileName(p platform, ext string) string {
	return fmt.Sprintf("%s_%s_%s_%s.%s", product, r.version, p.os, p.arch, ext)
}

// checksums are for sha256sum -c.
func (r release) checksums([]program) error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, e := range entries { // ReadDir sorts them
		raw, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(raw), e.Name())
	}
	return r.write("SHA256SUMS", sums.Bytes())
}

// registry is the entry for the registry of MCP servers: the committed one, and the bundles
// with their checksums.
func (r release) registry(built []program) error {
	o, err := r.object("hack/packaging/server.json")
	if err != nil {
		return err
	}
	packages, _ := o["packages"].([]any)
	for _, p := range built {
		name := r.fileName(p.platform, "mcpb")
		raw, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		packages = append(packages, map[string]any{
			"registryType": "mcpb",
			"identifier":   source + "/releases/download/v" + r.version + "/" + name,
			"version":      r.version,
			"fileSha256":   fmt.Sprintf("%x", sha256.Sum256(raw)),
			"transport":    map[string]any{"type": "stdio"},
		})
	}
	o["packages"] = packages
	raw, err := encode(o)
	if err != nil {
		return err
	}
	return r.write("server.json", raw)
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}

// sorted gives a set's members in one order.
func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
