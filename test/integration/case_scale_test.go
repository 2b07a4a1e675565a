package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestCase_SC_12: a scale to the number of now changes nothing and gives no phrase.
func TestCase_SC_12(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(3).Ready(3))
	s := start(t, wide...)
	version := func() string {
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(d.ResourceVersion, " ", d.Generation)
	}
	before := version()
	args := of(ns, "deployment", "web").With("replicas", 3)
	got := s.Must("plan_scale", args)
	if p := harness.Into[planned](t, got); p.Status != "no change" || p.Confirm != "" || p.Blast.Pods != 0 {
		t.Errorf("three to three: %s", got.Text)
	}
	if diff := cmp.Diff([]string{"plan"}, harness.Events(t, s.State)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if no := s.Must("scale", args.With("confirm", "").With("reason", "a test")); !no.IsError {
		t.Errorf("without a phrase: %s", no.Text)
	}
	if w := s.Proxy.Writes(); len(w) > 0 || version() != before {
		t.Errorf("it wrote %+v; version and generation %s, were %s", w, version(), before)
	}
}

// TestCase_SC_19: a number that is missing is zero to the API server. It is refused before
// any request, what is sent has the planned one, and the answer must give it back.
func TestCase_SC_19(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	apps := cp.Client.AppsV1().Deployments(ns)
	web := of(ns, "deployment", "web")
	replicas := func(name string) int32 {
		d, err := apps.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return *d.Spec.Replicas
	}
	isScale := func(r harness.Request) bool { return strings.HasSuffix(r.Path, "/deployments/web/scale") }

	t.Run("what the API server makes of it", func(t *testing.T) {
		null := []byte(`{"spec":{"replicas":null}}`)
		for name, tc := range map[string]struct {
			write func(name string) error
			want  int32
		}{
			"patched-scale": {func(name string) error {
				_, err := apps.Patch(t.Context(), name, types.MergePatchType, null, metav1.PatchOptions{}, "scale")
				return err
			}, 0},
			"put-scale": {func(name string) error {
				_, err := apps.UpdateScale(t.Context(), name, &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}}, metav1.UpdateOptions{})
				return err
			}, 0},
			"patched-object": {func(name string) error {
				_, err := apps.Patch(t.Context(), name, types.MergePatchType, null, metav1.PatchOptions{})
				return err
			}, 1},
		} {
			harness.Create(t, cp, ns, harness.Deployment(name).Replicas(3))
			if err := tc.write(name); err != nil || replicas(name) != tc.want {
				t.Errorf("%s: %d replicas (%v), want %d", name, replicas(name), err, tc.want)
			}
		}
	})

	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(3).Ready(3))
	harness.Converge(t, cp, ns)
	s := start(t, wide...)
	for name, args := range map[string]harness.Args{"null": web.With("replicas", nil), "missing": web, "empty": web.With("replicas", "")} {
		t.Run(name, func(t *testing.T) {
			got := s.Must("plan_scale", args)
			if harness.Code(got) != "invalid_arguments" || !strings.Contains(got.Text, "replicas") {
				t.Errorf("it is not refused: %s", got.Text)
			}
			if sent := s.Proxy.Requests(func(r harness.Request) bool { return strings.Contains(r.Path, ns) }); len(sent) > 0 {
				t.Errorf("it asked the API server: %+v", sent)
			}
		})
	}
	for _, to := range []int32{5, 0} {
		t.Run(fmt.Sprint("to ", to), func(t *testing.T) {
			s.Proxy.Reset()
			if got := harness.Into[execution](t, s.Do("scale", web.With("replicas", to))); got.Outcome != plan.Executed || replicas("web") != to {
				t.Errorf("outcome %s, %d replicas", got.Outcome, replicas("web"))
			}
			sent := s.Proxy.Requests(isScale)
			if !slices.ContainsFunc(sent, harness.Request.Mutates) {
				t.Error("no scale was sent")
			}
			for _, r := range sent {
				var body struct{ Spec struct{ Replicas *int32 } }
				if err := json.Unmarshal([]byte(r.Body), &body); err != nil || body.Spec.Replicas == nil || *body.Spec.Replicas != to {
					t.Errorf("%s %s: %s (%v), want %d", r.Method, r.Query, r.Body, err, to)
				}
			}
		})
	}
	t.Run("another number comes back", func(t *testing.T) {
		s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
			if !isScale(*r) || r.Method != http.MethodPut {
				return true
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"web","namespace":%q},"spec":{}}`, ns)
			return false
		})
		got := s.Must("plan_scale", web.With("replicas", 4))
		if harness.Code(got) != "dry_run_failed" || got.Field("confirm") != "" {
			t.Errorf("a dry run that came to zero: %s", got.Text)
		}
	})
}
