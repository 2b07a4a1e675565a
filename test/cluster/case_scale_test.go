package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// The cases about scaling that no other file of this tree has.

// impatient starts a server that gives up on a verification, but not before the controllers
// have said what stands in the way.
func impatient(t *testing.T) *harness.Server {
	t.Helper()
	return start(t, append(slices.Clone(wide), "--verify-timeout", "20s")...)
}

func patch(t *testing.T, ns, name, manager, body string) {
	t.Helper()
	if _, err := cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{FieldManager: manager}); err != nil {
		t.Fatal(err)
	}
}

// replicaSetsOf gives spec.replicas of every ReplicaSet of a namespace, largest first.
func replicaSetsOf(t *testing.T, ns string) (names []string, sizes []int32) {
	t.Helper()
	list, err := cp.Client.AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b appsv1.ReplicaSet) int { return int(*b.Spec.Replicas - *a.Spec.Replicas) })
	for _, rs := range list.Items {
		names, sizes = append(names, rs.Name), append(sizes, *rs.Spec.Replicas)
	}
	return names, sizes
}

func awaitSizes(t *testing.T, ns string, want ...int32) []string {
	t.Helper()
	var names []string
	lab.Eventually(t, fmt.Sprint("ReplicaSets of ", want), func() (bool, error) {
		var sizes []int32
		names, sizes = replicaSetsOf(t, ns)
		return slices.Equal(sizes, want), fmt.Errorf("%v", sizes)
	})
	return names
}

// TestScaleToZeroAtTheDefaults: the refusal names the largest step that passes.
func TestScaleToZeroAtTheDefaults(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	deployment(t, ns, "web", 3)
	got := start(t).Must("plan_scale", of(ns, "deployment", "web").With("replicas", 0))
	if harness.Code(got) != "blast_limit" || !strings.Contains(got.Text, "replicas: 2") {
		t.Errorf("three to none: %s", got.Text)
	}
}

// TestCase_SC_04: a ReplicaSet that a Deployment owns is scaled there; one without an owner
// is scaled itself.
func TestCase_SC_04(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := start(t, wide...)
	deployment(t, ns, "web", 3)
	names, _ := replicaSetsOf(t, ns)
	got := s.Must("plan_scale", of(ns, "replicaset", names[0]).With("replicas", 5))
	for _, want := range []string{"is controlled by Deployment/web", "call plan_scale with deployment: web"} {
		if harness.Code(got) != "owned_by_controller" || !strings.Contains(got.Text, want) {
			t.Errorf("want %q: %s", want, got.Text)
		}
	}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "bare"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(1)), Selector: selector("bare"), Template: template("bare")},
	}
	if _, err := cp.Client.AppsV1().ReplicaSets(ns).Create(t.Context(), rs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	verified(t, s, "scale", of(ns, "replicaset", "bare").With("replicas", 2))
	if n := len(pods(t, ns, "bare")); n != 2 {
		t.Errorf("%d pods, want 2", n)
	}
}

// TestCase_SC_05: the highest ordinals go first, and their claims with them where the
// policy says so.
func TestCase_SC_05(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		when                   appsv1.PersistentVolumeClaimRetentionPolicyType
		wantLine               string
		wantLosses, wantClaims []string
		wantClass              plan.Class
		wantUndo               string
	}{
		{
			appsv1.DeletePersistentVolumeClaimRetentionPolicyType, "deletes 2 volume claims with the data: data-db-2, data-db-1",
			[]string{"volume claim %s/data-db-2", "volume claim %s/data-db-1"}, []string{"data-db-0"}, plan.Irreversible,
			"the data of the deleted ones is gone",
		},
		{
			appsv1.RetainPersistentVolumeClaimRetentionPolicyType, "keeps 2 volume claims: data-db-2, data-db-1",
			[]string{}, []string{"data-db-0", "data-db-1", "data-db-2"}, plan.Reversible, "",
		},
	} {
		t.Run(string(tc.when), func(t *testing.T) {
			t.Parallel()
			ns := cp.Namespace(t)
			s := start(t, wide...)
			volumes(t, ns, 3)
			statefulSet(t, ns, "db", 3, func(s *appsv1.StatefulSet) {
				s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
					WhenScaled: tc.when, WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
				}
				s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
					ObjectMeta: metav1.ObjectMeta{Name: "data"},
					Spec: corev1.PersistentVolumeClaimSpec{
						StorageClassName: &ns, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
						Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: storage}},
					},
				}}
				s.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
			})
			args := of(ns, "statefulset", "db").With("replicas", 1)
			p := wantPlanned(t, s, "scale", args, "removes 2 of 3 pods: db-2 then db-1", tc.wantLine)
			wantLosses := []string{}
			for _, l := range tc.wantLosses {
				wantLosses = append(wantLosses, fmt.Sprintf(l, ns))
			}
			if diff := cmp.Diff(wantLosses, p.Losses); diff != "" || p.Class != tc.wantClass {
				t.Errorf("class %s, losses (-want +got):\n%s", p.Class, diff)
			}
			if u := harness.Into[undoing](t, s.Must("plan_scale", args)).Undo; u.Tool != "plan_scale" || !strings.Contains(u.Note, tc.wantUndo) || tc.wantUndo == "" && u.Note != "" {
				t.Errorf("undo %+v, want %q", u, tc.wantUndo)
			}
			w, err := cp.Client.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			verified(t, s, "scale", args)
			var order []string
			for e := range w.ResultChan() {
				if e.Type != watch.Deleted {
					continue
				}
				if order = append(order, e.Object.(*corev1.Pod).Name); len(order) == 2 {
					break
				}
			}
			if diff := cmp.Diff([]string{"db-2", "db-1"}, order); diff != "" {
				t.Errorf("pods that went (-want +got):\n%s", diff)
			}
			lab.Eventually(t, "claims", func() (bool, error) {
				list, err := cp.Client.CoreV1().PersistentVolumeClaims(ns).List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return false, err
				}
				var names []string
				for _, c := range list.Items {
					names = append(names, c.Name)
				}
				return slices.Equal(names, tc.wantClaims), fmt.Errorf("%v", names)
			})
		})
	}
}

// undoing is what a plan says of its undo.
type undoing struct {
	Undo plan.Undo `json:"undo"`
}

// volumes makes n persistent volumes of a class.
func volumes(t *testing.T, class string, n int) {
	t.Helper()
	for i := range n {
		if _, err := cp.Client.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(class, "-", i)},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: corev1.ResourceList{corev1.ResourceStorage: storage},
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCase_SC_07: a scale in the middle of a rollout is spread over both ReplicaSets, as
// the plan says.
func TestCase_SC_07(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s, hasty := start(t, wide...), start(t, append(slices.Clone(wide), "--verify-timeout", "3s")...) // for what comes to no end
	deployment(t, ns, "web", 40, func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt32(3)), MaxUnavailable: ptr.To(intstr.FromInt32(2))}
	})
	patch(t, ns, "web", "", `{"spec":{"template":{"spec":{"nodeSelector":{"none":"such"}}}}}`)
	awaitSizes(t, ns, 38, 5)
	lab.Eventually(t, "the pods of the new one", func() (bool, error) {
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && d.Status.Replicas == 43 && d.Status.AvailableReplicas == 38 && len(pods(t, ns, "web")) == 43, err
	})
	verified(t, s, "rollout_pause", of(ns, "deployment", "web"))
	names := awaitSizes(t, ns, 38, 5)
	args := of(ns, "deployment", "web").With("replicas", 30)
	p := wantPlanned(t, s, "scale", args, fmt.Sprintf("mid-rollout: %s 38 → 29, %s 5 → 4, until the rollout is resumed", names[0], names[1]))
	if p.Blast.Pods != 10 {
		t.Errorf("%d pods, want 10", p.Blast.Pods)
	}
	if got := harness.Into[execution](t, hasty.Do("scale", args.With("replicas", 30))); got.Outcome != plan.Executed {
		t.Errorf("outcome %s", got.Outcome)
	}
	awaitSizes(t, ns, 29, 4)
	if got := harness.Into[execution](t, hasty.Do("rollout_resume", of(ns, "deployment", "web"))); got.Outcome != plan.Executed {
		t.Errorf("outcome %s", got.Outcome)
	}
	awaitSizes(t, ns, 28, 5)
}

// TestCase_SC_08_Verdict: the verdict on a scale that a quota stops says what stopped it.
func TestCase_SC_08_Verdict(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	s := impatient(t)
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
	got := harness.Into[execution](t, s.Do("scale", of(ns, "deployment", "web").With("replicas", 5)))
	for _, want := range []string{"3 of 5 available", "pods cannot be created: quota team is exceeded"} {
		if got.Current == nil || got.Current.Verdict != plan.QuotaExceeded || !strings.Contains(got.Current.Reason, want) {
			t.Errorf("verification %+v, want quota_exceeded and %q", got.Current, want)
		}
	}
}

// custom makes a kind with a scale subresource, and one object of it.
func custom(t *testing.T, ns, kind, name string) (uid types.UID) {
	t.Helper()
	const group = "cases.example.com"
	singular, c := strings.ToLower(kind), cp.Client.Discovery().RESTClient()
	crd := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[2]ss.%[3]s"},"spec":{
		"group":%[3]q,"scope":"Namespaced","names":{"kind":%[1]q,"plural":"%[2]ss","singular":%[2]q},"versions":[{"name":"v1","served":true,"storage":true,
		"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},
		"subresources":{"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}}}]}}`, kind, singular, group)
	err := c.Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").SetHeader("Content-Type", "application/json").Body([]byte(crd)).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
	object := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":%q,"metadata":{"name":%q},"spec":{"replicas":1}}`, group, kind, name)
	lab.Eventually(t, "the kind "+kind, func() (bool, error) {
		raw, err := c.Post().AbsPath("/apis", group, "v1", "namespaces", ns, singular+"s").SetHeader("Content-Type", "application/json").Body([]byte(object)).DoRaw(t.Context())
		var made metav1.PartialObjectMetadata
		if err == nil {
			err = json.Unmarshal(raw, &made)
		}
		uid = made.UID
		return uid != "", err
	})
	return uid
}

// TestCase_SC_13: a kind of one's own is no argument, and what is one is named.
func TestCase_SC_13(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	custom(t, ns, "Widget", "web")
	s := start(t, wide...)
	got := s.Must("plan_scale", of(ns, "widget", "web").With("replicas", 4))
	for _, want := range []string{"widget", "deployment, statefulset, replicaset"} {
		if harness.Code(got) != "invalid_arguments" || !strings.Contains(got.Text, want) {
			t.Errorf("want %q: %s", want, got.Text)
		}
	}
}

// TestCase_SC_16: an owner that scales its Deployment back is foreseen, seen and named.
func TestCase_SC_16(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	uid := custom(t, ns, "App", "shop")
	deployment(t, ns, "web", 2, func(d *appsv1.Deployment) {
		d.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cases.example.com/v1", Kind: "App", Name: "shop", UID: uid, Controller: ptr.To(true)}}
	})
	s := start(t, wide...)
	args := of(ns, "deployment", "web").With("replicas", 0)
	p := wantPlanned(t, s, "scale", args, "kept by App "+ns+"/shop: its controller may take this back")
	if want := "controlled by App/shop, which may undo the change"; !slices.Contains(p.Warnings, want) {
		t.Errorf("warnings %q, want %q", p.Warnings, want)
	}
	confirmed := s.Plan("scale", args)
	done := make(chan execution)
	go func() { done <- harness.Into[execution](t, s.Must("scale", confirmed)) }()
	lab.Eventually(t, "the write", func() (bool, error) { return eventOf(t, s.State, journal.EventExecute), nil })
	patch(t, ns, "web", "shop-operator", `{"spec":{"replicas":2}}`)
	got := <-done
	if got.Current == nil || got.Current.Verdict != plan.Reverted || !strings.Contains(got.Current.Reason, "spec.replicas is 2 now, not 0, last written by shop-operator") {
		t.Errorf("verification %+v, want reverted by shop-operator", got.Current)
	}
	for _, l := range harness.Lines(t, s.State) {
		switch l.Event {
		case journal.EventExecute:
			if fmt.Sprint(l.Before["replicas"], l.After["replicas"]) != "2 0" {
				t.Errorf("execute line: before %v, after %v", l.Before, l.After)
			}
		case journal.EventVerify:
			if l.Code != "reverted" || fmt.Sprint(l.Verification.State["replicas"]) != "2" {
				t.Errorf("verify line: %s %+v", l.Code, l.Verification)
			}
		}
	}
}

// TestCase_SC_18: a scale-up onto no node ends by the server's own deadline, with what its
// pods wait for.
func TestCase_SC_18(t *testing.T) {
	t.Parallel()
	ns, n := cp.Namespace(t), node(t, "case-sc-18")
	s := impatient(t)
	deployment(t, ns, "web", 1, func(d *appsv1.Deployment) {
		onNodes(n)(&d.Spec.Template)
		d.Spec.ProgressDeadlineSeconds = ptr.To(int32(10))
	})
	verified(t, s, "scale", of(ns, "deployment", "web").With("replicas", 0))
	cordonForNow(t, n)
	d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || !slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentProgressing && c.Reason == "NewReplicaSetAvailable"
	}) {
		t.Fatalf("conditions %+v (%v), want those of a rollout that is over", d.Status.Conditions, err)
	}
	got := harness.Into[execution](t, s.Do("scale", of(ns, "deployment", "web").With("replicas", 2)))
	if got.Current == nil || got.Current.Verdict != plan.Unschedulable || got.Current.Reason != "0 of 2 available, 2 updated, 2 in all, 2 Pending (Unschedulable)" {
		t.Errorf("verification %+v", got.Current)
	}
}
