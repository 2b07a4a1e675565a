package cluster

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

func service(t *testing.T, ns, name, app string) {
	t.Helper()
	if _, err := cp.Client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": app}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// endpoints is how many ready endpoints the API itself counts for a service.
func endpoints(t *testing.T, ns, name string) (n int) {
	t.Helper()
	slices, err := cp.Client.DiscoveryV1().EndpointSlices(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				n++
			}
		}
	}
	return n
}

// wantPlanned plans and gives the plan, which must have each line in its radius.
func wantPlanned(t *testing.T, s *harness.Server, action string, args harness.Args, wantLines ...string) planned {
	t.Helper()
	got := s.Must("plan_"+action, args)
	p := harness.Into[planned](t, got)
	for _, want := range wantLines {
		if !slices.Contains(p.Radius, want) {
			t.Errorf("no line %q in:\n%s", want, got.Text)
		}
	}
	return p
}

func TestServicesKeepEndpoints(t *testing.T) {
	ns := cp.Namespace(t)
	deployment(t, ns, "web", 3)
	service(t, ns, "api", "web")
	service(t, ns, "db", "db")
	lab.Eventually(t, "endpoints", func() (bool, error) { return endpoints(t, ns, "api") == 3, nil })
	s := start(t, wide...)
	wantPlanned(t, s, "scale", of(ns, "deployment", "web").With("replicas", 2), "service api keeps 2 of 3 ready endpoints")
	wantPlanned(t, s, "delete_pod", of(ns, "pod", pods(t, ns, "web")[0].Name), "service api keeps 2 of 3 ready endpoints")
	p := wantPlanned(t, s, "scale", of(ns, "deployment", "web").With("replicas", 0), "service api keeps none of 3 ready endpoints: an outage")
	if i := slices.Index(p.Radius, "service api keeps none of 3 ready endpoints: an outage"); i > 1 {
		t.Errorf("the outage is line %d of %q", i, p.Radius)
	}
	s.Do("scale", of(ns, "deployment", "web").With("replicas", 2))
	lab.Eventually(t, "two endpoints", func() (bool, error) { return endpoints(t, ns, "api") == 2, nil })
}

// TestCase_CL_03: a kind that cannot be had is told of, and nothing else suffers.
func TestCase_CL_03(t *testing.T) {
	ns := cp.Namespace(t)
	deployment(t, ns, "web", 3)
	s := harness.Start(t, cp, harness.Options{Config: accountWithout(t, "services", "list", "watch"), Args: wide})
	var p planned
	lab.Eventually(t, "the role", func() (bool, error) {
		p = harness.Into[planned](t, s.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 2)))
		return p.Confirm != "", nil
	})
	want := "not known: which services lose ready endpoints; cannot list services (403)"
	if !slices.Contains(p.Warnings, want) {
		t.Errorf("warnings %q, want %q", p.Warnings, want)
	}
	if strings.Contains(strings.Join(p.Radius, "\n"), "service") {
		t.Errorf("it speaks of services: %q", p.Radius)
	}
}
