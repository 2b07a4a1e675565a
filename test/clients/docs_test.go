//go:build clients

package clients

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientrest "k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// guides are the documents whose commands run, in the order in which one is done after the
// other, in one HOME and one folder: the operator looks at what was tried before.
var guides = []string{"hack/docs/try.md", "hack/docs/operator.md", "hack/docs/clients.md", "hack/docs/in-cluster.md", "README.md"}

// notHere are the commands that do not run, by their beginning, and why.
var notHere = map[string]string{
	"kind create cluster": "the cluster is the lab",
	"docker build":        "there is no container engine: test/image runs the image's files",
	"docker run":          "likewise",
	"npx @modelcontextprotocol/inspector kube-write-": "it waits for a browser; the next block is the same without one",
	"kube-write-mcp approve PLAN":                     "it asks at a terminal: TestApprove and test/replicas",
	"hack/test.sh":                                    "it is all the other tests",
}

var bashRE = regexp.MustCompile("(?ms)^```bash\n(.*?)^```")

// statements takes a block apart where a line ends that is not continued.
func statements(block string) (out []string) {
	var open string
	for line := range strings.Lines(block) {
		open += line
		if line = strings.TrimRight(line, "\n"); strings.HasSuffix(line, `\`) || strings.HasSuffix(line, "|") {
			continue
		}
		out, open = append(out, open), ""
	}
	return out
}

// TestGuides runs what a reader is told to type, with the real kubectl, Claude Code and
// inspector. Each block must end well.
func TestGuides(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	claudeDir, _ := installed(t, claudePackage+"-"+platform())
	kubectl := os.Getenv("KUBE_WRITE_KUBECTL")
	if kubectl == "" {
		t.Fatal("there is no kubectl: run hack/clients.sh")
	}
	home, bin, work := t.TempDir(), t.TempDir(), t.TempDir()
	for name, target := range map[string]string{
		filepath.Join(bin, "kube-write-mcp"): harness.Program(t, cp), filepath.Join(bin, "kubectl"): kubectl, filepath.Join(bin, "claude"): filepath.Join(claudeDir, "claude"),
		filepath.Join(work, "node_modules"): filepath.Join(os.Getenv("KUBE_WRITE_CLIENTS"), "node_modules"),
	} {
		if err := os.Symlink(target, name); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig := filepath.Join(home, "kubeconfig")
	if err := cp.Kubeconfig(kubeconfig, "kind-lab", cp.Config); err != nil {
		t.Fatal(err)
	}
	env := []string{
		"HOME=" + home, "PATH=" + bin + ":" + os.Getenv("PATH"), "KUBECONFIG=" + kubeconfig, "USER=reader", "TERM=dumb", "MCP_INSPECTOR_SECRET_STORE=memory",
		"npm_config_offline=true", "GOFLAGS=-mod=readonly", "GOWORK=off", "KUBEBUILDER_ASSETS=" + os.Getenv("KUBEBUILDER_ASSETS"), "XDG_CACHE_HOME=" + cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(os.Getenv("HOME"), ".cache")),
	}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY"} { // else they are in HOME
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+strings.TrimSpace(string(value)))
	}
	bash := func(t *testing.T, script string) (stdout string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		run := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
		run.Dir, run.Env = work, env
		var out, errs bytes.Buffer
		run.Stdout, run.Stderr = &out, &errs
		if err := run.Run(); err != nil {
			t.Errorf("%v\n%s\n%s\n%s", err, script, errs.String(), out.String())
		}
		return out.String()
	}
	bash(t, "git -C '"+root+"' ls-files -z --cached --others --exclude-standard | tar -C '"+root+"' --null -T - -cf - | tar xf -")

	// What the reader has, or does, in between.
	before := map[string]func(t *testing.T){
		"kube-write-mcp manifests --allow-write --cluster-name": func(t *testing.T) {
			for _, ns := range []string{"web", "tools"} {
				if _, err := cp.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			harness.Create(t, cp, "web", harness.Deployment("web").Replicas(1))
			bash(t, "kubectl -n tools create serviceaccount agent && echo 'allow_namespaces: [web]' > policy.yaml")
		},
		"kube-write-mcp doctor --kubeconfig server.kubeconfig": func(t *testing.T) {
			cfg := clientrest.AnonymousClientConfig(cp.Config)
			cfg.BearerToken = strings.TrimSpace(bash(t, "kubectl -n kube-write-mcp create token kube-write-mcp"))
			if err := cp.Kubeconfig(filepath.Join(work, "server.kubeconfig"), "kind-lab", cfg); err != nil {
				t.Fatal(err)
			}
		},
	}
	skipped := map[string]bool{}
	for _, guide := range guides {
		t.Run(filepath.Base(guide), func(t *testing.T) {
			doc, err := os.ReadFile(filepath.Join(root, guide))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range bashRE.FindAllStringSubmatch(string(doc), -1) {
				var script strings.Builder
				for _, s := range statements(m[1]) {
					runs := true
					for begins := range notHere {
						if strings.HasPrefix(s, begins) {
							runs, skipped[begins] = false, true
						}
					}
					for begins, do := range before {
						if strings.HasPrefix(s, begins) {
							do(t)
						}
					}
					if runs {
						script.WriteString(s)
					}
				}
				if strings.TrimSpace(script.String()) == "" {
					continue
				}
				t.Logf("%s", bash(t, script.String()))
			}
		})
	}
	for begins := range notHere {
		if !skipped[begins] {
			t.Errorf("no guide has %q any more", begins)
		}
	}
}
