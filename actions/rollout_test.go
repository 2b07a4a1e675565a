package actions

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

var selectsWeb = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}

// withImage is a pod template of one container and one init container.
func withImage(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: "sidecar", Image: "proxy:1"}, {Name: "app", Image: image}},
			InitContainers: []corev1.Container{{Name: "migrate", Image: "migrate:1"}},
		},
	}
}

// runs makes the deployment run an image; its own labels select it.
func runs(image string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Selector, d.Spec.Template = selectsWeb, withImage(image) }
}

func paused(d *appsv1.Deployment) { d.Spec.Paused = true }

// replicaSet is a revision of the deployment.
func replicaSet(number any, image string, edit ...func(*appsv1.ReplicaSet)) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprint("web-", number), Labels: map[string]string{"app": "web"},
			Annotations:     map[string]string{"deployment.kubernetes.io/revision": fmt.Sprint(number)},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: "web", UID: "uid-1", Controller: ptr.To(true)}},
		},
		Spec: appsv1.ReplicaSetSpec{Template: withImage(image)},
	}
	rs.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = "5f7"
	for _, e := range edit {
		e(rs)
	}
	return rs
}

// controllerRevision is a revision of a StatefulSet or DaemonSet, as its controller writes
// it.
func controllerRevision(t *testing.T, number int64, image, uid string) *appsv1.ControllerRevision {
	t.Helper()
	raw, err := json.Marshal(withImage(image))
	if err != nil {
		t.Fatal(err)
	}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprint("web-", uid, number), Labels: map[string]string{"app": "web"},
			OwnerReferences: []metav1.OwnerReference{{Name: "web", UID: "uid-1", Controller: ptr.To(uid == "uid-1")}},
		},
		Revision: number,
		Data:     runtime.RawExtension{Raw: []byte(`{"spec":{"template":{"$patch":"replace",` + string(raw[1:]) + `}}`)},
	}
}

// three are revisions 1 to 3, which ran nginx:1 to nginx:3.
func three(more ...runtime.Object) []runtime.Object {
	return append(more, replicaSet(1, "nginx:1"), replicaSet(3, "nginx:3"), replicaSet(2, "nginx:2"),
		replicaSet(7, "nginx:7", func(rs *appsv1.ReplicaSet) { rs.OwnerReferences[0].UID = "uid-other" }),
		replicaSet("x", "nginx:8"),
	)
}

// TestUndo: which revision it goes back to, what is shown of it, and what is sent.
func TestUndo(t *testing.T) {
	const web = `{"namespace":"default","deployment":"web"}`
	set := func(edit ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
		s := &appsv1.StatefulSet{
			ObjectMeta: meta("web"), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), Selector: selectsWeb, Template: withImage("nginx:2")},
			Status: appsv1.StatefulSetStatus{CurrentRevision: "a", UpdateRevision: "b", ReadyReplicas: 2},
		}
		for _, e := range edit {
			e(s)
		}
		return s
	}
	stuck := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web-2", Labels: map[string]string{"app": "web", "controller-revision-hash": "b"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "web", UID: "uid-1", Controller: ptr.To(true)}},
	}}
	revisions := []runtime.Object{
		controllerRevision(t, 2, "nginx:2", "uid-1"), controllerRevision(t, 1, "nginx:1", "uid-1"), controllerRevision(t, 9, "nginx:9", "uid-other"),
	}
	for name, tc := range map[string]struct {
		raw                      string
		world                    []runtime.Object
		wantSentence, wantChange string // "" is no change
		wantBack                 string
		wantImage                string
		wantWarning              string
	}{
		"RO-11 the one before": {
			web, three(deployment(runs("nginx:3"))), "undo deployment default/web from revision 3 to 2",
			"spec.template.spec.containers[1].image: nginx:3 → nginx:2", `"to_revision":3`, "nginx:2", "",
		},
		"RO-11 again": {
			web, []runtime.Object{deployment(runs("nginx:2")), replicaSet(1, "nginx:1"), replicaSet(3, "nginx:3"), replicaSet(4, "nginx:2")},
			"undo deployment default/web from revision 4 to 3", "spec.template.spec.containers[1].image: nginx:2 → nginx:3", `"to_revision":4`, "nginx:3", "",
		},
		"to a revision": {
			`{"namespace":"default","deployment":"web","to_revision":1}`, three(deployment(runs("nginx:3"))), "undo deployment default/web from revision 3 to 1",
			"spec.template.spec.containers[1].image: nginx:3 → nginx:1", `"to_revision":3`, "nginx:1", "",
		},
		"RO-15 to the current one": {`{"namespace":"default","deployment":"web","to_revision":3}`, three(deployment(runs("nginx:3"))), "", "", "", "", ""},
		"to one of the same template": {web, []runtime.Object{
			deployment(runs("nginx:3")), replicaSet(1, "nginx:3"), replicaSet(2, "nginx:3"),
		}, "", "", "", "", ""},
		"RO-16 a stuck statefulset": {
			`{"namespace":"default","statefulset":"web"}`, append(revisions, set(), stuck), "undo statefulset default/web from revision 2 to 1",
			"spec.template.spec.containers[1].image: nginx:2 → nginx:1", `"to_revision":2`, "nginx:1",
			"; pod web-2 keeps its template, for it never became ready: it must be deleted after the undo (plan_delete_pod), the controller waits for it",
		},
		"RO-16 a parallel one": {
			`{"namespace":"default","statefulset":"web"}`, append(revisions, set(func(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement })),
			"undo statefulset default/web from revision 2 to 1", "spec.template.spec.containers[1].image: nginx:2 → nginx:1", `"to_revision":2`, "nginx:1", "",
		},
		"a daemonset": {
			`{"namespace":"default","daemonset":"web"}`,
			append(revisions, &appsv1.DaemonSet{ObjectMeta: meta("web"), Spec: appsv1.DaemonSetSpec{Selector: selectsWeb, Template: withImage("nginx:2")}}),
			"undo daemonset default/web from revision 2 to 1", "spec.template.spec.containers[1].image: nginx:2 → nginx:1", `"to_revision":2`, "nginx:1", "",
		},
		"another number of containers": {
			web, []runtime.Object{
				deployment(runs("nginx:3")), replicaSet(2, "nginx:3"),
				replicaSet(1, "nginx:1", func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Spec.Containers = rs.Spec.Template.Spec.Containers[1:] }),
			}, "undo deployment default/web from revision 2 to 1",
			"spec.template.spec.containers[0].image: proxy:1 → nginx:1; spec.template.spec.containers[1].image: nginx:3 → unset", `"to_revision":2`, "nginx:1", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, RolloutUndo, tc.raw, tc.world)
			if err != nil {
				t.Fatal(err)
			}
			checkOutcome(t, RolloutUndo, tc.raw, out)
			if out.Sentence != tc.wantSentence {
				t.Errorf("sentence %q, want %q", out.Sentence, tc.wantSentence)
			}
			want := "only the pod template is put back: not replicas, strategy, paused or any other field of the spec" + tc.wantWarning
			if got := strings.Join(out.Warnings, "; "); tc.wantSentence != "" && got != want {
				t.Errorf("warnings %q, want %q", got, want)
			}
			if tc.wantSentence == "" {
				if out.Proposals != nil {
					t.Errorf("it proposes %v", out.Proposals)
				}
				return
			}
			if !strings.Contains(string(out.Undo.Arguments), tc.wantBack) || out.Undo.Tool != "plan_rollout_undo" {
				t.Errorf("undo %s %s, want %s", out.Undo.Tool, out.Undo.Arguments, tc.wantBack)
			}
			step := out.Proposals[0].Step
			var changes []string
			for _, c := range step.Changes {
				if strings.HasSuffix(c.Field, "image") {
					changes = append(changes, c.String())
				}
			}
			if got := strings.Join(changes, "; "); got != tc.wantChange {
				t.Errorf("changes %q, want %q", got, tc.wantChange)
			}
			if c := step.Changes[0]; c.Field != "spec.template" || c.Old == c.New || !strings.HasPrefix(c.New, "sha256:") {
				t.Errorf("the first change is %s", c)
			}
			var sent corev1.PodTemplateSpec
			if err := json.Unmarshal(step.Patch[0].Value, &sent); err != nil || step.Patch[0].Path != "/spec/template" {
				t.Fatalf("%s: %v", step.Patch[0].Path, err)
			}
			if diff := cmp.Diff(map[string]string{"app": "web"}, sent.Labels); diff != "" {
				t.Errorf("labels of the template (-want +got):\n%s", diff)
			}
			if last := sent.Spec.Containers[len(sent.Spec.Containers)-1]; last.Image != tc.wantImage {
				t.Errorf("image %s, want %s", last.Image, tc.wantImage)
			}
			for _, op := range step.Patch[1:] {
				if op.Path != "/metadata/annotations" && !strings.HasPrefix(op.Path, "/metadata/annotations/kubernetes.io~1") {
					t.Errorf("it also writes %s", op.Path)
				}
			}
		})
	}
}

func TestUndoRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		to    string
		world []runtime.Object
		want  refusal.Code
		text  string
	}{
		"RO-14 one revision": {"", []runtime.Object{deployment(runs("nginx:1")), replicaSet(1, "nginx:1")}, refusal.NoHistory,
			"deployment default/web has no earlier revision to go back to"},
		"RO-14 revisionHistoryLimit 0": {`,"to_revision":2`, []runtime.Object{deployment(runs("nginx:4")), replicaSet(4, "nginx:4")}, refusal.NoHistory,
			"deployment default/web has no earlier revision to go back to"},
		"RO-14 a wrong one": {`,"to_revision":9`, three(deployment(runs("nginx:3"))), refusal.NoHistory, "deployment default/web has no revision 9; it has 1, 2, 3"},
		"no history at all": {"", []runtime.Object{deployment(runs("nginx:1"))}, refusal.NoHistory, "deployment default/web has no earlier revision to go back to"},
		"RO-05 paused":      {"", three(deployment(runs("nginx:3"), paused)), refusal.Paused, "deployment default/web is paused, nothing would roll"},
		"not seen yet": {"", three(deployment(runs("nginx:4"), func(d *appsv1.Deployment) { d.Generation = 2 })), refusal.PreconditionFailed,
			"deployment default/web was changed, and its controller has made no revision of it yet"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, RolloutUndo, `{"namespace":"default","deployment":"web"`+tc.to+`}`, tc.world)
			if !refusal.Is(err, tc.want) || err.Error() != tc.text {
				t.Errorf("%v, want %s: %s", err, tc.want, tc.text)
			}
			if out.Proposals != nil {
				t.Errorf("it proposes %v", out.Proposals)
			}
		})
	}
}

// TestImageReferences: what no kubelet can parse is refused before anything is read; the
// API server would take it (RO-23).
func TestImageReferences(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0123456789abcdef", 4)
	for image, want := range map[string]string{
		"nginx": "", "nginx:1.27": "", "registry.example.com:5000/team/app:v1_2-x": "", "team/app" + digest: "", "app:1" + digest: "",
		"nginx:1.27 ":      `the character ' ' at 10 stands in no image reference`,
		"\nnginx":          `the character '\n' at 0 stands in no image reference`,
		"nginx:1.27\u200b": `the character '\u200b' at 10 stands in no image reference`,
		"sha256:12":        "it must be an image reference with a name",
		"Nginx":            "it must be an image reference",
		"nginx:":           "it must be an image reference",
		"a//b":             "it must be an image reference",
		"app@sha256:12":    "it must be an image reference",
		"--image=x":        "it must be an image reference",
		"http://x/y":       "it must be an image reference",
	} {
		t.Run(image, func(t *testing.T) {
			raw, err := json.Marshal(map[string]string{"namespace": "default", "deployment": "web", "container": "app", "image": image})
			if err != nil {
				t.Fatal(err)
			}
			_, err = SetImage.Decode(SetImage.Schema(), raw)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", image, err, want)
			}
			if err == nil && plan.Show(image) != image {
				t.Errorf("%q is shown as %q", image, plan.Show(image))
			}
		})
	}
	for name, raw := range map[string]string{
		"empty":             `{"namespace":"default","deployment":"web","container":"app","image":""}`,
		"a container's":     `{"namespace":"default","deployment":"web","container":"A b","image":"nginx"}`,
		"no workload":       `{"namespace":"default","container":"app","image":"nginx"}`,
		"longer than shown": `{"namespace":"default","deployment":"web","container":"app","image":"a/` + strings.Repeat("b", 254) + `"}`,
	} {
		if _, err := SetImage.Decode(SetImage.Schema(), json.RawMessage(raw)); !refusal.Is(err, refusal.InvalidArguments) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
