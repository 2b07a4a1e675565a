package misroute

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// policy is the only thing in which the servers differ from the defaults: the only ready
// pod of a workload counts.
const policy = "gate_single_pod: true\n"

// scene is where a task is played.
type scene struct {
	place
	witness *witness
	names   map[string]string // what stands for {…} in calls
	flags   []string
	servers map[string]*harness.Server // by their name for the cluster
}

// newScene makes what the task needs and starts the server.
func newScene(t *testing.T, tk task, w *witness) *scene {
	t.Helper()
	s := &scene{witness: w, names: map[string]string{}, servers: map[string]*harness.Server{}}
	for _, name := range []string{"ns", "other"} {
		ns := cp.Namespace(t)
		s.names[name], s.namespaces = ns, append(s.namespaces, ns)
	}
	lab.Eventually(t, "the default service accounts", func() (bool, error) {
		for _, ns := range s.namespaces {
			if _, err := cp.Client.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	for _, make := range tk.world {
		make(t, s)
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	s.flags = []string{"--policy", file, "--verify-wait", "20s"}
	text := policy
	if tk.loose {
		text = "{}\n"
	}
	for _, f := range tk.flags {
		if f = s.fill(f); strings.Contains(f, "\n") {
			text += f // lines for the policy file
			continue
		}
		s.flags = append(s.flags, f)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.server(t, "")
	s.settle(t)
	return s
}

// server gives a server with a state folder of its own, which is started on first use.
func (s *scene) server(t *testing.T, name string) *harness.Server {
	t.Helper()
	if s.servers[name] == nil {
		flags := s.flags
		if name != "" {
			flags = append([]string{"--cluster-name", name}, flags...)
		}
		s.servers[name] = harness.Start(t, cp, harness.Options{Args: flags})
	}
	return s.servers[name]
}

// fill puts names for what stands for them.
func (s *scene) fill(text string) string {
	for name, value := range s.names {
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

// send sends a call, unless it needs what the agent does not have.
func (s *scene) send(t *testing.T, c call) (sent, bool) {
	t.Helper()
	raw, err := json.Marshal(c.args)
	if err != nil {
		t.Fatal(err)
	}
	text := s.fill(string(raw))
	if strings.Contains(text, "{phrase}") || strings.Contains(text, "{sentence}") || strings.Contains(text, "{plan}") {
		return sent{}, false
	}
	server := s.server(t, c.via)
	server.Proxy.Reset()
	out := sent{call: c, answer: server.Must(c.tool, json.RawMessage(text))}
	// What a watch asks again in the background belongs to no call.
	out.requests = server.Proxy.Requests(func(r harness.Request) bool { return !strings.Contains(r.Query, "watch=") })
	if v := out.answer.Field("version"); v != "" {
		s.names["version"] = v
	}
	if strings.HasPrefix(c.tool, "plan_") {
		delete(s.names, "phrase")
		delete(s.names, "sentence")
		delete(s.names, "plan")
		if phrase := out.answer.Field("confirm"); phrase != "" {
			s.names["phrase"], s.names["plan"] = phrase, out.answer.Field("plan")
			s.names["sentence"] = phrase[:strings.LastIndex(phrase, " [")]
		}
	}
	return out, true
}

// settle waits until the controllers have done what there is to do.
func (s *scene) settle(t *testing.T) {
	t.Helper()
	for _, ns := range s.namespaces {
		lab.Eventually(t, "the workloads of "+ns, func() (bool, error) {
			deployments, err := cp.Client.AppsV1().Deployments(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			for _, d := range deployments.Items {
				n, st := *d.Spec.Replicas, d.Status
				if d.DeletionTimestamp == nil && !d.Spec.Paused && (st.ObservedGeneration != d.Generation || st.Replicas != n || st.UpdatedReplicas != n || st.AvailableReplicas != n) {
					return false, fmt.Errorf("deployment %s: %+v", d.Name, st)
				}
			}
			sets, err := cp.Client.AppsV1().StatefulSets(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			for _, d := range sets.Items {
				if n, st := *d.Spec.Replicas, d.Status; st.ObservedGeneration != d.Generation || st.Replicas != n || st.AvailableReplicas != n {
					return false, fmt.Errorf("statefulset %s: %+v", d.Name, st)
				}
			}
			jobs, err := cp.Client.BatchV1().Jobs(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			for _, j := range jobs.Items {
				if !ptr.Deref(j.Spec.Suspend, false) && j.Status.Active+j.Status.Succeeded == 0 {
					return false, fmt.Errorf("job %s: %+v", j.Name, j.Status)
				}
			}
			return true, nil
		})
	}
	s.witness.catchUp(t, s.place)
}

// in is a thing in the other namespace.
func in(what thing) thing {
	return func(t *testing.T, s *scene) {
		home := s.names["ns"]
		s.names["ns"] = s.names["other"]
		what(t, s)
		s.names["ns"] = home
	}
}

// deployment makes a Deployment.
func deployment(name string, replicas int32, mods ...func(*appsv1.Deployment)) thing {
	return func(t *testing.T, s *scene) {
		d := harness.Deployment(name).Replicas(replicas)
		for _, m := range mods {
			d.With(m)
		}
		harness.Create(t, cp, s.names["ns"], d)
	}
}

// web is what the person means, unless the task says otherwise. {pod} is one of its pods.
func web(t *testing.T, s *scene) {
	deployment("web", 3)(t, s)
	podsOf("web", 3)(t, s)
}

// podsOf waits for the n pods of a workload; {pod} is the first, {pod2} the last, {rs} their
// owner.
func podsOf(app string, n int) thing {
	return func(t *testing.T, s *scene) {
		lab.Eventually(t, "the pods of "+app, func() (bool, error) {
			list, err := cp.Client.CoreV1().Pods(s.names["ns"]).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
			if err != nil || len(list.Items) != n {
				return false, err
			}
			s.names["pod"], s.names["pod2"] = list.Items[0].Name, list.Items[n-1].Name
			s.names["rs"] = metav1.GetControllerOf(&list.Items[0]).Name
			return true, nil
		})
	}
}

// database is a StatefulSet whose claims go with its pods when it is scaled down.
func database(t *testing.T, s *scene) {
	harness.Create(t, cp, s.names["ns"], harness.StatefulSet("db").Replicas(2).With(func(d *appsv1.StatefulSet) {
		d.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType, WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
		}
		d.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}}
	}))
	for i := range 2 {
		volume(t, s.names["ns"], fmt.Sprintf("data-db-%d", i))
	}
}

// volume is bound to a claim by hand, as no provisioner runs here.
func volume(t *testing.T, ns, claim string) {
	t.Helper()
	name := ns + "-" + claim
	_, err := cp.Client.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: ns, Name: claim},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// loner is a pod without a controller.
func loner(t *testing.T, s *scene) {
	tpl := harness.Template("loner")
	tpl.Spec.NodeName = s.names["node"]
	pods := cp.Client.CoreV1().Pods(s.names["ns"])
	if _, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "loner", Labels: tpl.Labels}, Spec: tpl.Spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "pod loner", func() (bool, error) {
		p, err := pods.Get(t.Context(), "loner", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning, err
	})
}

// once is a pod template that is run once, on no node: kwok would end its pods at once.
func once(name string) corev1.PodTemplateSpec {
	tpl := harness.Template(name)
	tpl.Spec.RestartPolicy = corev1.RestartPolicyNever
	tpl.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "no-such-node"}
	return tpl
}

// job is a Job with one active pod.
func job(name string) thing {
	return func(t *testing.T, s *scene) {
		if _, err := cp.Client.BatchV1().Jobs(s.names["ns"]).Create(t.Context(), &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{Template: once(name)},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// cronJob is a CronJob that no task lives to see run by itself.
func cronJob(name string, suspended bool) thing {
	return func(t *testing.T, s *scene) {
		if _, err := cp.Client.BatchV1().CronJobs(s.names["ns"]).Create(t.Context(), &batchv1.CronJob{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       batchv1.CronJobSpec{Schedule: "0 0 1 1 *", Suspend: &suspended, JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: once(name)}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// autoscaler owns the replicas of web.
func autoscaler(t *testing.T, s *scene) {
	if _, err := cp.Client.AutoscalingV2().HorizontalPodAutoscalers(s.names["ns"]).Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MinReplicas: ptr.To(int32(3)), MaxReplicas: 6,
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// budget is a disruption budget of web that allows nothing.
func budget(t *testing.T, s *scene) {
	harness.Create(t, cp, s.names["ns"], harness.Budget("web").MaxUnavailable(0))
	lab.Eventually(t, "the budget", func() (bool, error) {
		b, err := cp.Client.PolicyV1().PodDisruptionBudgets(s.names["ns"]).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.ExpectedPods == 3, err
	})
}

// registry is an admission policy that allows the image main alone.
func registry(t *testing.T, s *scene) {
	name := "registry-" + s.names["ns"]
	fail := admissionv1.Fail
	harness.Bind(t, cp, s.names["ns"], &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
			}}}},
			Validations: []admissionv1.Validation{{
				Expression: "object.spec.template.spec.containers.all(c, c.image.startsWith('main'))", Message: "images come from our registry",
			}},
		},
	})
	patch := []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"elsewhere"}]}}}}`)
	lab.Eventually(t, "the policy to be in force", func() (bool, error) {
		_, err := cp.Client.AppsV1().Deployments(s.names["ns"]).Patch(t.Context(), "web", types.StrategicMergePatchType, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsInvalid(err), nil
	})
}

// node is a node of the task's own.
func node(t *testing.T, s *scene) {
	name := "node-of-" + s.names["ns"]
	s.node, s.names["node"] = name, name
	if err := cp.Node(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "node "+name, func() (bool, error) {
		n, err := cp.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return len(n.Spec.Taints) == 0, nil
			}
		}
		return false, nil
	})
	t.Cleanup(func() { _ = cp.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
}

// onNode places the pods of a Deployment on the task's own node.
func onNode(name string, replicas int32) thing {
	return func(t *testing.T, s *scene) {
		deployment(name, replicas, func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: s.node}
		})(t, s)
	}
}

// lastNode cordons all nodes but the task's own.
func lastNode(t *testing.T, s *scene) {
	list, err := cp.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Items {
		if n.Name == s.node {
			continue
		}
		cordoned(t, n.Name, true)
		t.Cleanup(func() { cordoned(t, n.Name, false) })
	}
}

func cordoned(t *testing.T, name string, v bool) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, v)
	if _, err := cp.Client.CoreV1().Nodes().Patch(context.WithoutCancel(t.Context()), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
}

// patched is what another person does to web.
func patched(body string) thing {
	return func(t *testing.T, s *scene) {
		if _, err := cp.Client.AppsV1().Deployments(s.names["ns"]).Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// recreated deletes web and makes it again.
func recreated(t *testing.T, s *scene) {
	deployments := cp.Client.AppsV1().Deployments(s.names["ns"])
	if err := deployments.Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the old web's end", func() (bool, error) {
		_, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	web(t, s)
}

// terminating deletes web, which a finalizer holds.
func terminating(t *testing.T, s *scene) {
	patched(`{"metadata":{"finalizers":["example.com/held"]}}`)(t, s)
	deployments := cp.Client.AppsV1().Deployments(s.names["ns"])
	if err := deployments.Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}); err != nil {
		t.Fatal(err)
	}
	ns := s.names["ns"]
	t.Cleanup(func() {
		_, _ = cp.Client.AppsV1().Deployments(ns).Patch(context.Background(), "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	})
}

// later is when the phrase is good no more.
func later(*testing.T, *scene) { time.Sleep(1500 * time.Millisecond) }
