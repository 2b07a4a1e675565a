package image

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestRelease makes a release for this machine's processor, and wants each of its files to
// hold the same program and what the others say of it.
func TestRelease(t *testing.T) {
	npm := decode[npmPackage](t, read(t, root, "hack/packaging/npm/package.json"))
	dir := released(t, npm.Version)
	node := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	name := func(ext string) string {
		return fmt.Sprintf("kube-write-mcp_%s_linux_%s.%s", npm.Version, runtime.GOARCH, ext)
	}
	image := fmt.Sprintf("kube-write-mcp_%s_oci.tar", npm.Version)
	sbom := fmt.Sprintf("kube-write-mcp_%s.cdx.json", npm.Version)
	launcher := fmt.Sprintf("kube-write-mcp-npm-%s.tgz", npm.Version)
	platform := fmt.Sprintf("kube-write-mcp-npm-linux-%s-%s.tgz", node, npm.Version)

	archive := untar(t, gunzip(t, read(t, dir, name("tar.gz"))))
	program := archive["kube-write-mcp"].content
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}

	t.Run("checksums", func(t *testing.T) {
		var want strings.Builder
		for _, f := range []string{launcher, platform, sbom, name("mcpb"), name("tar.gz"), image, "server.json"} {
			fmt.Fprintf(&want, "%x  %s\n", sha256.Sum256(read(t, dir, f)), f)
		}
		if diff := cmp.Diff(want.String(), string(read(t, dir, "SHA256SUMS"))); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})

	t.Run("archive", func(t *testing.T) {
		wantEntries(t, archive, map[string]entry{"kube-write-mcp": {mode: 0o755}, "LICENSE": {mode: 0o644}})
	})

	t.Run("bundle", func(t *testing.T) {
		z, err := zip.OpenReader(filepath.Join(dir, name("mcpb")))
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		var manifest struct {
			Version string
			Server  struct {
				EntryPoint string                   `json:"entry_point"`
				Config     struct{ Command string } `json:"mcp_config"`
			}
			Compatibility struct{ Platforms []string }
		}
		raw, err := fs.ReadFile(z, "manifest.json")
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &manifest); err != nil {
			t.Fatal(err)
		}
		entry := manifest.Server.EntryPoint
		if manifest.Version != npm.Version || manifest.Server.Config.Command != "${__dirname}/"+entry || !slices.Equal(manifest.Compatibility.Platforms, []string{"linux"}) {
			t.Errorf("%+v", manifest)
		}
		got, err := fs.ReadFile(z, entry)
		if err != nil || !bytes.Equal(got, program) {
			t.Errorf("%s is not the program of the archive: %v", entry, err)
		}
		if info, err := fs.Stat(z, entry); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v %v", entry, info.Mode(), err)
		}
		for _, f := range z.File {
			if !f.Modified.Equal(time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)) {
				t.Errorf("%s is of %s", f.Name, f.Modified)
			}
		}
	})

	t.Run("npm", func(t *testing.T) {
		main := untar(t, gunzip(t, read(t, dir, launcher)))
		wantEntries(t, main, map[string]entry{
			"package/package.json": {mode: 0o644}, "package/bin/kube-write-mcp.js": {mode: 0o755}, "package/LICENSE": {mode: 0o644},
		})
		p := untar(t, gunzip(t, read(t, dir, platform)))
		wantEntries(t, p, map[string]entry{
			"package/package.json": {mode: 0o644}, "package/bin/kube-write-mcp": {mode: 0o755}, "package/LICENSE": {mode: 0o644},
		})
		if !bytes.Equal(p["package/bin/kube-write-mcp"].content, program) {
			t.Error("its program is not that of the archive")
		}
		got := decode[npmPackage](t, p["package/package.json"].content)
		if v := npm.OptionalDependencies[got.Name]; v != got.Version || v != npm.Version {
			t.Errorf("the launcher asks for %q of %s, which is at %s", v, got.Name, got.Version)
		}
		if !slices.Equal(got.OS, []string{"linux"}) || !slices.Equal(got.CPU, []string{node}) {
			t.Errorf("it is for %v %v", got.OS, got.CPU)
		}
		// What the launcher looks for, as Node names this system.
		want := fmt.Sprintf("`%s-${system}/bin/kube-write-mcp${", strings.TrimSuffix(got.Name, "-linux-"+node))
		if js := string(main["package/bin/kube-write-mcp.js"].content); !strings.Contains(js, want) {
			t.Errorf("the launcher does not look for %s", want)
		}
		for _, raw := range [][]byte{main["package/package.json"].content, p["package/package.json"].content} {
			if bytes.Contains(raw, []byte(`"scripts"`)) {
				t.Error("it runs something when it is installed")
			}
		}
	})

	t.Run("registry", func(t *testing.T) {
		var entry struct {
			Packages []struct{ RegistryType, Identifier, Version, FileSha256 string }
		}
		if err := json.Unmarshal(read(t, dir, "server.json"), &entry); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range entry.Packages {
			got = append(got, strings.Join([]string{p.RegistryType, p.Identifier, p.Version, p.FileSha256}, " "))
		}
		want := []string{
			"npm " + npm.Name + " " + npm.Version + " ",
			fmt.Sprintf("mcpb https://github.com/kubewrite/kube-write-mcp/releases/download/v%s/%s %s %x", npm.Version, name("mcpb"), npm.Version, sha256.Sum256(read(t, dir, name("mcpb")))),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})

	t.Run("bill of materials", func(t *testing.T) {
		var bom struct {
			Components []struct{ Name, Version string }
		}
		if err := json.Unmarshal(read(t, dir, sbom), &bom); err != nil {
			t.Fatal(err)
		}
		want := []string{"std " + strings.TrimPrefix(info.GoVersion, "go")}
		for _, m := range info.Deps {
			want = append(want, m.Path+" "+m.Version)
		}
		slices.Sort(want)
		var got []string
		for _, c := range bom.Components {
			if c.Name == "golang.org/x/crypto/x509roots/fallback" {
				continue // the image's certificates: in no program
			}
			got = append(got, c.Name+" "+c.Version)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-linked +listed:\n%s", diff)
		}
		if len(got) == len(bom.Components) {
			t.Error("the image's certificates are not listed")
		}
	})

	t.Run("image", func(t *testing.T) {
		config, files := unpackImage(t, untar(t, read(t, dir, image)))
		version, revision := "v"+npm.Version, ""
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = s.Value
				version += "+" + revision[:12]
			case s.Key == "vcs.modified" && s.Value == "true":
				version += "-dirty"
			}
		}
		_, last, _ := strings.Cut(dockerfile(t), "\nFROM scratch\n")
		for _, line := range []string{
			"USER " + config.Config.User,
			"ENV " + strings.Join(config.Config.Env, " "),
			"STOPSIGNAL " + config.Config.StopSignal,
			`ENTRYPOINT ["` + strings.Join(config.Config.Entrypoint, `", "`) + `"]`,
		} {
			if !strings.Contains(last, line+"\n") {
				t.Errorf("it says %s, the Dockerfile does not", line)
			}
		}
		if config.OS != "linux" || config.Architecture != runtime.GOARCH || config.Created != "1970-01-01T00:00:00Z" {
			t.Errorf("%+v", config)
		}
		for label, want := range map[string]string{"version": npm.Version, "revision": revision, "licenses": "Apache-2.0", "source": "https://github.com/kubewrite/kube-write-mcp"} {
			if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
				t.Errorf("label %s: %s, want %s", label, got, want)
			}
		}
		wantEntries(t, files, map[string]entry{
			"LICENSE": {mode: 0o644}, "etc/": {mode: 0o755}, "etc/passwd": {mode: 0o644}, "etc/ssl/": {mode: 0o755}, "etc/ssl/certs/": {mode: 0o755},
			"etc/ssl/certs/ca-certificates.crt": {mode: 0o644}, "kube-write-mcp": {mode: 0o755}, "state/": {mode: 0o755, owner: uid},
		})
		for _, made := range []string{
			"echo '" + strings.TrimSuffix(string(files["etc/passwd"].content), "\n") + "' >/root-fs/etc/passwd", "/root-fs/etc/ssl/certs/", "/root-fs/LICENSE", "/root-fs/state", "/root-fs/kube-write-mcp",
		} {
			if !strings.Contains(dockerfile(t), made) {
				t.Errorf("the Dockerfile does not have %s", made)
			}
		}
		if !bytes.Equal(files["kube-write-mcp"].content, program) {
			t.Error("its program is not that of the archive")
		}
		roots := 0
		for block, rest := pem.Decode(files["etc/ssl/certs/ca-certificates.crt"].content); block != nil; block, rest = pem.Decode(rest) {
			if c, err := x509.ParseCertificate(block.Bytes); err != nil || !c.IsCA {
				t.Errorf("a certificate that is none of an authority: %v", err)
			}
			roots++
		}
		if roots < 50 {
			t.Errorf("only %d certificates", roots)
		}

		dir := filepath.Join(t.TempDir(), "root")
		for name, e := range files {
			path := filepath.Join(dir, name)
			if strings.HasSuffix(name, "/") {
				if err := os.MkdirAll(path, 0o755); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, e.content, e.mode); err != nil {
				t.Fatal(err)
			}
		}
		runsInAnEmptyRoot(t, dir, version)
	})
}

type npmPackage struct {
	Name, Version        string
	OS, CPU              []string
	OptionalDependencies map[string]string
}

// released runs what hack/release.sh runs, for one platform.
func released(t *testing.T, version string) (dir string) {
	t.Helper()
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "dist")
	cmd := exec.Command("go", "run", "./release", "--root", top, "--out", dir, "--only", "linux/"+runtime.GOARCH, version)
	cmd.Dir = filepath.Join(top, "hack/tools")
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func decode[T any](t *testing.T, raw []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func gunzip(t *testing.T, raw []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	raw, err = io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// entry is a file or a folder of a tar.
type entry struct {
	mode    fs.FileMode
	owner   int
	content []byte
}

// untar reads a tar, whose times must all be zero.
func untar(t *testing.T, raw []byte) map[string]entry {
	t.Helper()
	out := map[string]entry{}
	for r := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 0 || h.Uid != h.Gid {
			t.Errorf("%s is of %s and %d:%d", h.Name, h.ModTime, h.Uid, h.Gid)
		}
		out[h.Name] = entry{fs.FileMode(h.Mode), h.Uid, content}
	}
}

// wantEntries wants these entries and no others, whatever they hold.
func wantEntries(t *testing.T, got, want map[string]entry) {
	t.Helper()
	bare := map[string]entry{}
	for name, e := range got {
		bare[name] = entry{mode: e.mode, owner: e.owner}
	}
	if diff := cmp.Diff(want, bare, cmp.AllowUnexported(entry{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

type imageConfig struct {
	OS, Architecture, Created string
	Config                    struct {
		User, StopSignal string
		Env, Entrypoint  []string
		Labels           map[string]string
	}
}

type descriptor struct {
	MediaType, Digest string
	Platform          struct{ OS, Architecture string }
}

// unpackImage follows an OCI layout from its index to the one image in it, and wants every
// blob to be what it is called.
func unpackImage(t *testing.T, archive map[string]entry) (imageConfig, map[string]entry) {
	t.Helper()
	blob := func(d descriptor) []byte {
		t.Helper()
		algorithm, digest, _ := strings.Cut(d.Digest, ":")
		e, ok := archive["blobs/"+algorithm+"/"+digest]
		if !ok || fmt.Sprintf("%x", sha256.Sum256(e.content)) != digest {
			t.Fatalf("blob %s is not there, or another one", d.Digest)
		}
		return e.content
	}
	if got := string(archive["oci-layout"].content); !strings.Contains(got, `"1.0.0"`) {
		t.Errorf("oci-layout is %q", got)
	}
	type index struct{ Manifests []descriptor }
	top := decode[index](t, archive["index.json"].content)
	if len(top.Manifests) != 1 {
		t.Fatalf("%d entries", len(top.Manifests))
	}
	images := decode[index](t, blob(top.Manifests[0]))
	if len(images.Manifests) != 1 || images.Manifests[0].Platform.Architecture != runtime.GOARCH || images.Manifests[0].Platform.OS != "linux" {
		t.Fatalf("images: %+v", images)
	}
	manifest := decode[struct {
		MediaType string
		Config    descriptor
		Layers    []descriptor
	}](t, blob(images.Manifests[0]))
	if manifest.MediaType != "application/vnd.oci.image.manifest.v1+json" || len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != "application/vnd.oci.image.layer.v1.tar+gzip" {
		t.Fatalf("%+v", manifest)
	}
	return decode[imageConfig](t, blob(manifest.Config)), untar(t, gunzip(t, blob(manifest.Layers[0])))
}
