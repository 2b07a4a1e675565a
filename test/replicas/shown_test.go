package replicas

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestShown: kubectl get writes tells who changed what, and what came of it. kubectl shows
// the table that the API server makes; a column with a priority is for -o wide.
func TestShown(t *testing.T) {
	l := newLedger(t)
	ns, scale := harness.WebScale(t, cp)
	harness.Converge(t, cp, ns)
	s := l.start("--verify-timeout", "60s")
	s.Do("scale", scale)
	raw, err := cp.Client.Discovery().RESTClient().Get().AbsPath("/apis/kubewrite.dev/v1alpha1/namespaces/"+l.namespace+"/writes").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	var names []string
	for i, c := range table.ColumnDefinitions {
		name := c.Name
		if c.Priority > 0 {
			name = "(" + name + ")"
		}
		names = append(names, name)
		got[c.Name] = table.Rows[0].Cells[i]
	}
	if diff := cmp.Diff("Name State Action Target Principal Verdict Age (Expires) (Replica) (Sentence)", strings.Join(names, " ")); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	w := l.one()
	for name, want := range map[string]string{
		"Name": w.Name, "State": "Executed", "Action": "scale", "Target": "deployment " + ns + "/web", "Principal": w.Spec.Principal, "Verdict": "verified",
		"Sentence": "scale deployment " + ns + "/web from 2 to 3 on kind-lab", "Replica": w.Status.Claim.Instance, "Expires": w.Spec.Expires,
	} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
}
