package cluster

import (
	"slices"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
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

func autoscaler(t *testing.T, ns, name string, least, most int32) {
	t.Helper()
	if _, err := cp.Client.AutoscalingV2().HorizontalPodAutoscalers(ns).Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MinReplicas:    &least, MaxReplicas: most,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To(int32(50))},
			}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func replicasOf(t *testing.T, ns, name string) int32 {
	t.Helper()
	d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return *d.Spec.Replicas
}

// TestCase_SC_01: an autoscaler takes back what lies outside its bounds, and the plan says
// so before it does.
func TestCase_SC_01(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, append(slices.Clone(wide), "--verify-timeout", "40s")...)
	for _, tc := range []struct {
		name         string
		to           int
		wantLine     string
		wantReplicas int32
	}{
		{"low", 1, "HPA low keeps 3 to 5: 1 is below, it will set 3", 3},
		{"high", 9, "HPA high keeps 3 to 5: 9 is above, it will set 5", 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			deployment(t, ns, tc.name, 3)
			autoscaler(t, ns, tc.name, 3, 5)
			wantPlanned(t, s, "scale", of(ns, "deployment", tc.name).With("replicas", tc.to), tc.wantLine)
			got := harness.Into[execution](t, s.Do("scale", of(ns, "deployment", tc.name).With("replicas", tc.to)))
			if got.Outcome != plan.Executed || got.Current == nil || got.Current.Verdict != plan.Overridden {
				t.Errorf("outcome %s, verification %+v, want overridden", got.Outcome, got.Current)
			}
			if n := replicasOf(t, ns, tc.name); n != tc.wantReplicas {
				t.Errorf("%d replicas, want %d", n, tc.wantReplicas)
			}
		})
	}
}

// TestCase_SC_02: at zero the autoscaler stops, and above zero it goes on.
func TestCase_SC_02(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, append(slices.Clone(wide), "--verify-timeout", "40s")...)
	deployment(t, ns, "web", 3)
	autoscaler(t, ns, "web", 3, 5)
	p := wantPlanned(t, s, "scale", of(ns, "deployment", "web").With("replicas", 0),
		"HPA web keeps 3 to 5, but stops at 0: it will not bring pods back until someone scales up")
	if p.Blast.Pods != 3 || p.Blast.AtRisk.Missing != 3 {
		t.Errorf("radius %+v, want 3 pods, 3 missing", p.Blast)
	}
	got := harness.Into[execution](t, s.Do("scale", of(ns, "deployment", "web").With("replicas", 0)))
	if got.Current == nil || got.Current.Verdict != plan.Verified {
		t.Errorf("to zero: %+v, want verified", got.Current)
	}
	lab.Eventually(t, "a stopped HPA", func() (bool, error) {
		h, err := cp.Client.AutoscalingV2().HorizontalPodAutoscalers(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(h.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
			return c.Type == autoscalingv2.ScalingActive && c.Status == corev1.ConditionFalse && c.Reason == "ScalingDisabled"
		}), nil
	})
	wantPlanned(t, s, "scale", of(ns, "deployment", "web").With("replicas", 2), "HPA web starts again and keeps 3 to 5: 2 is below, it will set 3")
	got = harness.Into[execution](t, s.Do("scale", of(ns, "deployment", "web").With("replicas", 2)))
	if got.Current == nil || got.Current.Verdict != plan.Overridden || replicasOf(t, ns, "web") != 3 {
		t.Errorf("to two: %+v with %d replicas, want overridden with 3", got.Current, replicasOf(t, ns, "web"))
	}
}
