package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyapps "k8s.io/client-go/applyconfigurations/apps/v1"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"

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
			if n := harness.Replicas(t, cp, ns, tc.name); n != tc.wantReplicas {
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
	if got.Current == nil || got.Current.Verdict != plan.Overridden || harness.Replicas(t, cp, ns, "web") != 3 {
		t.Errorf("to two: %+v with %d replicas, want overridden with 3", got.Current, harness.Replicas(t, cp, ns, "web"))
	}
}

// applied makes a Deployment of three by server-side apply.
func applied(t *testing.T, ns, name, manager string, edit func(*applyapps.DeploymentApplyConfiguration)) *applyapps.DeploymentApplyConfiguration {
	t.Helper()
	d := applyapps.Deployment(name, ns).WithSpec(applyapps.DeploymentSpec().WithReplicas(3).
		WithSelector(applymeta.LabelSelector().WithMatchLabels(map[string]string{"app": name})).
		WithTemplate(applycore.PodTemplateSpec().WithLabels(map[string]string{"app": name}).
			WithSpec(applycore.PodSpec().WithNodeSelector(map[string]string{corev1.LabelHostname: "node-1"}).WithContainers(applycore.Container().WithName("main").WithImage("main")))))
	edit(d)
	if _, err := cp.Client.AppsV1().Deployments(ns).Apply(t.Context(), d, metav1.ApplyOptions{FieldManager: manager}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "deployment "+name, func() (bool, error) {
		got, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && got.Status.ObservedGeneration == got.Generation && got.Status.AvailableReplicas == 3, err
	})
	return d
}

// TestCase_SC_14: who applies the field is named, with both outcomes of its next apply.
func TestCase_SC_14(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, append(slices.Clone(wide), "--verify-timeout", "15s")...) // less than a verdict is held for
	web := applied(t, ns, "web", "kustomize-controller", func(*applyapps.DeploymentApplyConfiguration) {})
	wantPlanned(t, s, "scale", of(ns, "deployment", "web").With("replicas", 5),
		"kustomize-controller applies spec.replicas: its next apply sets it again, or without force meets a conflict")
	got := harness.Into[execution](t, s.Do("scale", of(ns, "deployment", "web").With("replicas", 5)))
	if got.Current == nil || got.Current.Verdict != plan.Verified || !strings.Contains(got.Current.Reason, "because of kustomize-controller") {
		t.Errorf("verification %+v, want verified, watched because of kustomize-controller", got.Current)
	}
	apply := func(force bool) error {
		_, err := cp.Client.AppsV1().Deployments(ns).Apply(t.Context(), web, metav1.ApplyOptions{FieldManager: "kustomize-controller", Force: force})
		return err
	}
	if err := apply(false); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "kube-write-mcp:") {
		t.Errorf("an apply without force: %v, want a conflict with the server", err)
	}
	if err := apply(true); err != nil || harness.Replicas(t, cp, ns, "web") != 3 {
		t.Errorf("an apply with force: %v, %d replicas, want 3", err, harness.Replicas(t, cp, ns, "web"))
	}
}

// TestCase_SC_15: each tool's marks are read from the metadata alone.
func TestCase_SC_15(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, wide...)
	for _, tc := range []struct {
		name                string
		labels, annotations map[string]string
		want                []string
	}{
		{"argo", nil, map[string]string{"argocd.argoproj.io/tracking-id": "shop:apps/Deployment:" + ns + "/argo"}, []string{"kept by Argo CD application shop: its next sync may take this back"}},
		{"flux", map[string]string{"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}, nil,
			[]string{"kept by Flux Kustomization flux-system/apps: its next reconcile may take this back"}},
		{"helm", map[string]string{"app.kubernetes.io/managed-by": "Helm"}, map[string]string{"meta.helm.sh/release-name": "web", "meta.helm.sh/release-namespace": "shop"},
			[]string{"kept by Helm release shop/web: its next upgrade may take this back"}},
		{"plain", nil, nil, nil},
	} {
		deployment(t, ns, tc.name, 1, func(d *appsv1.Deployment) { d.Labels, d.Annotations = tc.labels, tc.annotations })
		p := wantPlanned(t, s, "scale", of(ns, "deployment", tc.name).With("replicas", 2), tc.want...)
		if n := len(slices.DeleteFunc(p.Radius, func(l string) bool { return !strings.Contains(l, "kept by") })); n != len(tc.want) {
			t.Errorf("%s: %d keepers, want %d", tc.name, n, len(tc.want))
		}
	}
}

// TestCase_SC_08: quota acts on pods, so a scale that it stops is accepted.
func TestCase_SC_08(t *testing.T) {
	ns := cp.Namespace(t)
	s := start(t, append(slices.Clone(wide), "--verify-timeout", "3s")...)
	deployment(t, ns, "web", 3)
	if _, err := cp.Client.CoreV1().ResourceQuotas(ns).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "team"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("3")}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "a counted quota", func() (bool, error) {
		q, err := cp.Client.CoreV1().ResourceQuotas(ns).Get(t.Context(), "team", metav1.GetOptions{})
		return err == nil && q.Status.Used.Pods().Value() == 3, err
	})
	wantPlanned(t, s, "rollout_restart", of(ns, "deployment", "web"), "quota team: pods 3 of 3 used: 1 of 1 surge pod cannot be created")
	wantPlanned(t, s, "scale", of(ns, "deployment", "web").With("replicas", 5), "quota team: pods 3 of 3 used: 2 of 2 new pods cannot be created")
	got := harness.Into[execution](t, s.Do("scale", of(ns, "deployment", "web").With("replicas", 5)))
	if got.Outcome != plan.Executed || got.Current == nil || got.Current.Verdict == plan.Verified {
		t.Errorf("outcome %s, verification %+v; want executed, and not verified", got.Outcome, got.Current)
	}
	d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 5 || d.Status.Replicas != 3 {
		t.Errorf("%d replicas wanted, %d there (%v), want 5 and 3", *d.Spec.Replicas, d.Status.Replicas, err)
	}
}

// TestCase_AD_05: pod security acts on pods, so the dry run of a workload says yes.
func TestCase_AD_05(t *testing.T) {
	s := start(t, wide...)
	for _, labels := range []map[string]string{
		{"pod-security.kubernetes.io/enforce": "baseline"},
		{"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "privileged"},
	} {
		ns := cp.Namespace(t)
		deployment(t, ns, "web", 2, func(d *appsv1.Deployment) { d.Spec.Template.Spec.HostNetwork = true })
		lab.Eventually(t, "labels", func() (bool, error) {
			n, err := cp.Client.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			n.Labels = labels
			_, err = cp.Client.CoreV1().Namespaces().Update(t.Context(), n, metav1.UpdateOptions{})
			return err == nil, err
		})
		want := "pod security baseline of namespace " + ns + " refuses new pods, unless exempt: host namespaces"
		wantPlanned(t, s, "rollout_restart", of(ns, "deployment", "web"), want)
		wantPlanned(t, s, "scale", of(ns, "deployment", "web").With("replicas", 3), want)
	}
}

// TestEvictedPodsFit: the scheduler agrees with what the plan says of the pods that leave.
func TestEvictedPodsFit(t *testing.T) {
	ns, from, to := cp.Namespace(t), node(t, "fit-from"), node(t, "fit-to")
	cordonForNow(t, to)
	deployment(t, ns, "web", 2, func(d *appsv1.Deployment) {
		onNodes(from, to)(&d.Spec.Template)
		d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("12")}
	})
	bareOn := func(tpl *corev1.PodTemplateSpec) {
		tpl.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10")}
	}
	bare(t, ns, "there", to, bareOn)
	uncordonNow(t, to)
	s := start(t, wide...)
	args := harness.Args{"node": from}
	p := wantPlanned(t, s, "drain", args)
	line := slices.IndexFunc(p.Radius, func(l string) bool {
		return strings.HasPrefix(l, "1 of 2 evicted pods fits on other nodes; "+ns+"/web-") && strings.HasSuffix(l, " needs 12 CPU, the most free is 10")
	})
	if line < 0 {
		t.Errorf("the plan does not say what fits: %q", p.Radius)
	}
	s.Do("drain", args)
	lab.Eventually(t, "one pod on the other node, one on none", func() (bool, error) {
		on := map[string]int{}
		for _, p := range pods(t, ns, "web") {
			if p.DeletionTimestamp == nil {
				on[p.Spec.NodeName]++
			}
		}
		return on[to] == 1 && on[""] == 1, fmt.Errorf("%v", on)
	})
}
