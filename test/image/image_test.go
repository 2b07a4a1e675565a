// Package image tests what the Dockerfile makes without a container engine: it builds the
// program as the Dockerfile does, from what the build context has, and runs it where the
// last stage would.
package image

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func dockerfile(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(raw), "\\\n", "")
}

// flags are what the Dockerfile's go build is called with, for a version.
func flags(t *testing.T, version string) (args []string) {
	t.Helper()
	m := regexp.MustCompile(`RUN CGO_ENABLED=0 GOOS=\$TARGETOS GOARCH=\$TARGETARCH go (build .*?)-ldflags "([^"]*)"\s+-o /root-fs/kube-write-mcp (\S+)`).FindStringSubmatch(dockerfile(t))
	if m == nil {
		t.Fatal("the Dockerfile builds in another way than this test knows")
	}
	return append(strings.Fields(m[1]), "-ldflags", strings.ReplaceAll(m[2], "$VERSION", version), m[3])
}

// context copies what .dockerignore lets into the build.
func context(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for line := range strings.Lines(string(raw)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "!")
		if !ok {
			continue
		}
		from, to := filepath.Join(root, name), filepath.Join(dir, name)
		if info, err := os.Stat(from); err == nil && !info.IsDir() {
			raw, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			err = os.WriteFile(to, raw, 0o600)
			if err != nil {
				t.Fatal(err)
			}
		} else if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// build builds the program in a folder as the Dockerfile does.
func build(t *testing.T, dir string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "kube-write-mcp")
	args := flags(t, "v9.9.9-test")
	cmd := exec.Command("go", slices.Insert(args, len(args)-1, "-o", program)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// TestBuild: the context suffices, the program is static, and two builds in two places are
// the same to the byte.
func TestBuild(t *testing.T) {
	one, two := build(t, root), build(t, context(t))
	a, err := os.ReadFile(one)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(two)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("two builds differ")
	}
	f, err := elf.NewFile(bytes.NewReader(a))
	if err != nil {
		t.Fatal(err)
	}
	if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Errorf("it is not static: %v %v", libraries, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("it wants a loader")
		}
	}
}

// TestLastStage: nothing is in the image but the program and what it reads, and it runs as
// nobody special.
func TestLastStage(t *testing.T) {
	_, last, ok := strings.Cut(dockerfile(t), "\nFROM scratch\n")
	if !ok || strings.Contains(last, "\nFROM ") {
		t.Fatal("the last stage is not made from scratch")
	}
	for _, want := range []string{"COPY --from=build /root-fs/ /", "USER 65532:65532", `ENTRYPOINT ["/kube-write-mcp"]`, "STOPSIGNAL SIGTERM"} {
		if !strings.Contains(last, want+"\n") {
			t.Errorf("the last stage lacks %s", want)
		}
	}
	if strings.Contains(last, "RUN ") || strings.Contains(last, "ADD ") {
		t.Error("the last stage runs or adds something")
	}
}
