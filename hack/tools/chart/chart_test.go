// Package chart tests the Helm chart with Helm's own code.
package chart

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

const path = "../../deploy/kube-write-mcp"

// objects takes YAML documents apart, by kind, namespace and name.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatalf("%v in %s", err, doc)
		}
		if o == nil {
			continue
		}
		m := o["metadata"].(map[string]any)
		ns, _ := m["namespace"].(string)
		key := strings.Join([]string{o["kind"].(string), ns, m["name"].(string)}, " ")
		if out[key] != nil {
			t.Errorf("%s stands there twice", key)
		}
		out[key] = o
	}
	return out
}

func render(t *testing.T, name, namespace string, values map[string]any) map[string]any {
	t.Helper()
	c, err := loader.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: name, Namespace: namespace, IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, all)
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, files["kube-write-mcp/templates/objects.yaml"])
}

func printed(t *testing.T, args ...string) map[string]any {
	t.Helper()
	cmd := exec.Command("go", append([]string{"run", "./cmd/kube-write-mcp", "manifests"}, args...)...)
	cmd.Dir = "../../.."
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	return objects(t, stdout.String())
}

func TestLint(t *testing.T) {
	for _, m := range lint.RunAll(path, nil, "kube-write-mcp").Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// TestDefaultRendering: the chart as it is installed without a value is what the program
// prints without a flag, object by object.
func TestDefaultRendering(t *testing.T) {
	if diff := cmp.Diff(printed(t), render(t, "kube-write-mcp", "kube-write-mcp", nil)); diff != "" {
		t.Errorf("run hack/update-chart.sh (-printed +rendered):\n%s", diff)
	}
}

// TestRenderingElsewhere: another name and namespace come out as if they had been printed.
func TestRenderingElsewhere(t *testing.T) {
	got := render(t, "writer", "tools", map[string]any{"image": "example.com/kube-write-mcp:v1"})
	want := printed(t, "--namespace", "tools", "--service-account", "writer", "--image", "example.com/kube-write-mcp:v1")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-printed +rendered):\n%s", diff)
	}
}

// TestValues: each value has the one effect that it is for.
func TestValues(t *testing.T) {
	whole := render(t, "a", "b", nil)
	for _, tc := range []struct {
		value  string
		to     any
		object string
	}{
		{"image", "example.com/x:1", "Deployment b a"},
		{"resources", map[string]any{"limits": map[string]any{"memory": "1Gi"}}, "Deployment b a"},
		{"storage", "2Gi", "PersistentVolumeClaim b a-state"},
		{"createNamespace", false, "Namespace  b"},
	} {
		t.Run(tc.value, func(t *testing.T) {
			got := render(t, "a", "b", map[string]any{tc.value: tc.to})
			if cmp.Equal(whole[tc.object], got[tc.object]) {
				t.Errorf("%s is as before", tc.object)
			}
			delete(got, tc.object)
			for key, o := range got {
				if !cmp.Equal(whole[key], o) {
					t.Errorf("%s is changed too", key)
				}
			}
			if len(got) != len(whole)-1 {
				t.Errorf("%d objects, want %d", len(got), len(whole)-1)
			}
		})
	}
}
