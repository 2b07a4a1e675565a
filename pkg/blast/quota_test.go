package blast

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// needs makes a container that requests and is limited to cpu and memory, "" for neither.
func needs(name, cpu, memory string) corev1.Container {
	c := corev1.Container{Name: name, Image: "main"}
	for r, v := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		if v != "" {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[r] = resource.MustParse(v)
		}
	}
	return c
}

func TestQuotas(t *testing.T) {
	quota := func(used, hard int64, name string, scopes ...plan.QuotaScope) plan.Quota {
		return plan.Quota{Namespace: "default", Name: "team", Scopes: scopes, Hard: map[string]int64{name: hard}, Used: map[string]int64{name: used}}
	}
	up := func(n int32) func(*world, *appsv1.Deployment) {
		return func(w *world, d *appsv1.Deployment) { w.scale(w.live("deployments", d), n) }
	}
	restart := func(surge string) func(*world, *appsv1.Deployment) {
		return func(w *world, d *appsv1.Deployment) {
			d.Spec.Strategy = rollingUpdate(surge, "0")
			w.restart(w.live("deployments", d))
		}
	}
	containers := func(all ...corev1.Container) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { s.Containers = all }
	}
	plain := containers(needs("main", "", ""))
	exists := func(scope string) plan.QuotaScope { return plan.QuotaScope{Name: scope, Operator: "Exists"} }
	priority := func(operator string, values ...string) plan.QuotaScope {
		return plan.QuotaScope{Name: "PriorityClass", Operator: operator, Values: values}
	}
	ofClass := func(class string) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { plain(s); s.PriorityClassName = class }
	}
	takes := func(resources ...string) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{needs("main", "", "")}
			s.Containers[0].Resources.Limits = corev1.ResourceList{}
			for _, r := range resources {
				name, n, _ := strings.Cut(r, "=")
				s.Containers[0].Resources.Limits[corev1.ResourceName(name)] = resource.MustParse(n)
			}
		}
	}
	withTerm := func(term corev1.PodAffinityTerm) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			plain(s)
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}},
			}}
		}
	}
	const full = "quota team: pods 3 of 3 used: 1 of 1 new pod cannot be created"
	for name, tc := range map[string]struct {
		quotas []plan.Quota
		pod    func(*corev1.PodSpec)
		step   func(*world, *appsv1.Deployment)
		want   []string
	}{
		"full":                 {[]plan.Quota{quota(3, 3, "pods")}, plain, up(5), []string{"quota team: pods 3 of 3 used: 2 of 2 new pods cannot be created"}},
		"room for one":         {[]plan.Quota{quota(3, 4, "pods")}, plain, up(5), []string{"quota team: pods 3 of 4 used: 1 of 2 new pods cannot be created"}},
		"room for all":         {[]plan.Quota{quota(3, 5, "count/pods")}, plain, up(5), nil},
		"over it":              {[]plan.Quota{quota(9, 5, "count/pods")}, plain, up(4), []string{"quota team: count/pods 9 of 5 used: 1 of 1 new pod cannot be created"}},
		"of another namespace": {[]plan.Quota{func() plan.Quota { q := quota(3, 3, "pods"); q.Namespace = "other"; return q }()}, plain, up(5), nil},
		"cpu": {[]plan.Quota{quota(900, 1500, "requests.cpu")}, containers(needs("a", "200m", ""), needs("b", "50m", "")), up(6),
			[]string{"quota team: requests.cpu 900m of 1500m used, each needs 250m: 1 of 3 new pods cannot be created"}},
		"memory that is limited alone": {[]plan.Quota{quota(1<<30, 1<<30, "requests.memory")}, func(s *corev1.PodSpec) {
			c := needs("main", "1", "")
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")}
			s.Containers = []corev1.Container{c}
		}, up(4), []string{"quota team: requests.memory 1Gi of 1Gi used, each needs 256Mi: 1 of 1 new pod cannot be created"}},
		"an init container that needs more": {[]plan.Quota{quota(900, 1500, "requests.cpu")}, func(s *corev1.PodSpec) {
			s.InitContainers, s.Containers = []corev1.Container{needs("init", "1", "")}, []corev1.Container{needs("main", "100m", "")}
		}, up(4), []string{"quota team: requests.cpu 900m of 1500m used, each needs 1: 1 of 1 new pod cannot be created"}},
		"the tightest of several": {[]plan.Quota{{Namespace: "default", Name: "team",
			Hard: map[string]int64{"pods": 5, "requests.cpu": 1000}, Used: map[string]int64{"pods": 3, "requests.cpu": 1000}}},
			containers(needs("main", "100m", "")), up(6), []string{"quota team: requests.cpu 1 of 1 used, each needs 100m: 3 of 3 new pods cannot be created"}},
		"what the template does not state": {[]plan.Quota{quota(0, 1000, "limits.cpu")}, containers(needs("main", "100m", "")), up(4),
			[]string{"quota team counts limits.cpu, which not every container states: new pods are refused unless a LimitRange sets it"}},
		"what one of two states": {[]plan.Quota{quota(0, 9000, "requests.cpu")}, containers(needs("a", "200m", ""), needs("b", "", "1Gi")), up(4),
			[]string{"quota team counts requests.cpu, which not every container states: new pods are refused unless a LimitRange sets it"}},
		"what the pod states": {[]plan.Quota{quota(0, 9000, "requests.cpu")}, func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{needs("a", "", "")}
			s.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
		}, up(4), nil},
		"a surge":                                      {[]plan.Quota{quota(3, 3, "pods")}, plain, restart("1"), []string{"quota team: pods 3 of 3 used: 1 of 1 surge pod cannot be created"}},
		"a restart without surge":                      {[]plan.Quota{quota(3, 3, "pods")}, plain, restart("0"), nil},
		"a scale-down":                                 {[]plan.Quota{quota(3, 3, "pods")}, plain, up(2), nil},
		"best effort, and it is":                       {[]plan.Quota{quota(3, 3, "pods", exists("BestEffort"))}, plain, up(4), []string{"quota team: pods 3 of 3 used: 1 of 1 new pod cannot be created"}},
		"best effort, and it is not":                   {[]plan.Quota{quota(3, 3, "pods", exists("BestEffort"))}, containers(needs("main", "1", "")), up(4), nil},
		"not best effort, and it is":                   {[]plan.Quota{quota(3, 3, "pods", exists("NotBestEffort"))}, plain, up(4), nil},
		"not terminating":                              {[]plan.Quota{quota(3, 3, "pods", exists("NotTerminating"))}, plain, up(4), []string{"quota team: pods 3 of 3 used: 1 of 1 new pod cannot be created"}},
		"terminating, and it is":                       {[]plan.Quota{quota(3, 3, "pods", exists("Terminating"))}, func(s *corev1.PodSpec) { plain(s); s.ActiveDeadlineSeconds = ptr.To[int64](5) }, up(4), []string{full}},
		"best effort by what is no quality of service": {[]plan.Quota{quota(3, 3, "pods", exists("BestEffort"))}, takes("nvidia.com/gpu=1"), up(4), []string{full}},
		"best effort, and its limits say no":           {[]plan.Quota{quota(3, 3, "pods", exists("BestEffort"))}, takes("cpu=1"), up(4), nil},
		"best effort, and its pod says no": {[]plan.Quota{quota(3, 3, "pods", exists("BestEffort"))}, func(s *corev1.PodSpec) {
			plain(s)
			s.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
		}, up(4), nil},
		"of its priority":                      {[]plan.Quota{quota(3, 3, "pods", priority("In", "low", "high"))}, ofClass("high"), up(4), []string{full}},
		"of another priority":                  {[]plan.Quota{quota(3, 3, "pods", priority("In", "low"))}, ofClass("high"), up(4), nil},
		"of every other priority":              {[]plan.Quota{quota(3, 3, "pods", priority("NotIn", "low"))}, ofClass("high"), up(4), []string{full}},
		"not of its priority":                  {[]plan.Quota{quota(3, 3, "pods", priority("NotIn", "high"))}, ofClass("high"), up(4), nil},
		"of any priority":                      {[]plan.Quota{quota(3, 3, "pods", priority("Exists"))}, ofClass("high"), up(4), []string{full}},
		"of no priority":                       {[]plan.Quota{quota(3, 3, "pods", priority("DoesNotExist"))}, ofClass("high"), up(4), nil},
		"of a priority, of scopes that say no": {[]plan.Quota{quota(3, 3, "pods", priority("In", "low"), exists("NotBestEffort"))}, plain, up(4), nil},
		"of a priority that it may be given": {[]plan.Quota{quota(3, 3, "pods", priority("In", "low"))}, plain, up(4),
			[]string{"not evaluated: quota team counts pods by PriorityClass, which the template does not say"}},
		"of a priority, of no pods":   {[]plan.Quota{quota(3, 3, "secrets", priority("In", "low"))}, plain, up(4), nil},
		"of a scope of the future":    {[]plan.Quota{quota(3, 3, "requests.cpu", exists("Moon"))}, plain, up(4), []string{"not evaluated: quota team counts pods by Moon, which the template does not say"}},
		"of claims":                   {[]plan.Quota{quota(3, 3, "pods", plan.QuotaScope{Name: "VolumeAttributesClass", Operator: "In", Values: []string{"gold"}})}, plain, up(4), nil},
		"of an affinity elsewhere":    {[]plan.Quota{quota(3, 3, "pods", exists("CrossNamespacePodAffinity"))}, withTerm(corev1.PodAffinityTerm{Namespaces: []string{"other"}}), up(4), []string{full}},
		"of an affinity of selection": {[]plan.Quota{quota(3, 3, "pods", exists("CrossNamespacePodAffinity"))}, withTerm(corev1.PodAffinityTerm{NamespaceSelector: &metav1.LabelSelector{}}), up(4), []string{full}},
		"of an affinity at home":      {[]plan.Quota{quota(3, 3, "pods", exists("CrossNamespacePodAffinity"))}, withTerm(corev1.PodAffinityTerm{}), up(4), nil},
		"of no affinity":              {[]plan.Quota{quota(3, 3, "pods", exists("CrossNamespacePodAffinity"))}, plain, up(4), nil},
		"an extended resource": {[]plan.Quota{quota(3, 5, "requests.nvidia.com/gpu")}, takes("nvidia.com/gpu=2"), up(5),
			[]string{"quota team: requests.nvidia.com/gpu 3 of 5 used, each needs 2: 1 of 2 new pods cannot be created"}},
		"an extended resource that it does not need": {[]plan.Quota{quota(3, 3, "requests.nvidia.com/gpu")}, plain, up(5), nil},
		"ephemeral storage": {[]plan.Quota{quota(3<<30, 4<<30, "limits.ephemeral-storage")}, takes("ephemeral-storage=1Gi"), up(5),
			[]string{"quota team: limits.ephemeral-storage 3Gi of 4Gi used, each needs 1Gi: 1 of 2 new pods cannot be created"}},
		"huge pages": {[]plan.Quota{quota(4<<20, 4<<20, "requests.hugepages-2Mi")}, takes("hugepages-2Mi=2Mi"), up(4),
			[]string{"quota team: requests.hugepages-2Mi 4Mi of 4Mi used, each needs 2Mi: 1 of 1 new pod cannot be created"}},
		"storage that nobody asks for": {[]plan.Quota{quota(3, 3, "requests.ephemeral-storage")}, plain, up(4), nil},
		"stated as nothing":            {[]plan.Quota{quota(3, 3, "limits.cpu")}, takes("cpu=0"), up(4), nil},
		"of objects of other kinds":    {[]plan.Quota{quota(3, 3, "count/deployments.apps"), quota(3, 3, "services"), quota(3, 3, "persistentvolumeclaims")}, plain, up(4), nil},
		"of a rollout's revisions": {[]plan.Quota{quota(3, 3, "count/replicasets.apps"), quota(3, 3, "count/controllerrevisions.apps")}, plain, restart("1"),
			[]string{"not evaluated: quota team counts count/replicasets.apps, and more than pods is made"}},
		"of claims that pods bring": {[]plan.Quota{quota(3, 3, "requests.storage"), quota(3, 3, "gold.storageclass.storage.k8s.io/persistentvolumeclaims")}, func(s *corev1.PodSpec) {
			plain(s)
			s.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		}, up(4), []string{
			"not evaluated: quota team counts requests.storage, and more than pods is made",
			"not evaluated: quota team counts gold.storageclass.storage.k8s.io/persistentvolumeclaims, and more than pods is made",
		}},
		"of devices": {[]plan.Quota{quota(3, 3, "gpu.deviceclass.resource.k8s.io/devices")}, func(s *corev1.PodSpec) {
			plain(s)
			s.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}}
		}, up(4), []string{"not evaluated: quota team counts gpu.deviceclass.resource.k8s.io/devices, and more than pods is made"}},
		"terminating": {[]plan.Quota{quota(3, 3, "pods", exists("Terminating"))}, plain, up(4), nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.in.Facts.Quotas = tc.quotas
			d := deployment(3, rollingUpdate("0", "1"))
			tc.pod(&d.Spec.Template.Spec)
			tc.step(w.pods(webSet, 3, 3), d)
			e := w.compute()
			if diff := cmp.Diff(tc.want, append(linesWith(e, "quota"), e.Warnings...), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("lines and warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestQuotaOfADaemonSet: its surge is one more pod on each of so many nodes.
func TestQuotaOfADaemonSet(t *testing.T) {
	w := newWorld(t)
	w.in.Facts.Quotas = []plan.Quota{{Namespace: "default", Name: "team", Hard: map[string]int64{"pods": 5}, Used: map[string]int64{"pods": 4}}}
	d := &appsv1.DaemonSet{ObjectMeta: meta("agent"), Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 4}}
	d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: ptr.To(intstr.FromString("50%"))}
	w.pods(agent, 4, 4).restart(w.live("daemonsets", d))
	wantLine(t, w.compute(), "quota team: pods 4 of 5 used: 1 of 2 surge pods cannot be created")
}

// TestQuotaOfClaims: a StatefulSet that grows makes a claim for each new pod.
func TestQuotaOfClaims(t *testing.T) {
	for to, want := range map[int32][]string{3: {"not evaluated: quota team counts persistentvolumeclaims, and more than pods is made"}, 1: nil} {
		w := newWorld(t)
		w.in.Facts.Quotas = []plan.Quota{{Namespace: "default", Name: "team", Hard: map[string]int64{"persistentvolumeclaims": 5}, Used: map[string]int64{}}}
		w.pods(db, 2, 2).scale(w.live("statefulsets", statefulSet(2, func(s *appsv1.StatefulSet) {
			s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
		})), to)
		if diff := cmp.Diff(want, w.compute().Warnings, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("to %d (-want +got):\n%s", to, diff)
		}
	}
}

// TestQuotaThatStopsARollout: without room for the surge only what may be unavailable moves
// it on.
func TestQuotaThatStopsARollout(t *testing.T) {
	for name, tc := range map[string]struct {
		surge, unavailable string
		hard               int64
		want               int
	}{
		"no old pod may go":  {"1", "0", 3, 1},
		"one may":            {"1", "1", 3, 0},
		"there is some room": {"2", "0", 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.in.Facts.Quotas = []plan.Quota{{Namespace: "default", Name: "team", Hard: map[string]int64{"pods": tc.hard}, Used: map[string]int64{"pods": 3}}}
			w.pods(webSet, 3, 3).restart(w.live("deployments", deployment(3, rollingUpdate(tc.surge, tc.unavailable))))
			if n := len(linesWith(w.compute(), "the rollout cannot begin: no old pod may go before a new one is there")); n != tc.want {
				t.Errorf("%d such lines, want %d", n, tc.want)
			}
		})
	}
}
