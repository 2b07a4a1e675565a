package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// web is a live deployment, as a typed GET gives it.
func web(edit ...func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", UID: "uid-1", ResourceVersion: "100", Generation: 7,
			Labels:      map[string]string{"app": "web", "app.kubernetes.io/name": "web"},
			Annotations: map[string]string{"kubernetes.io/change-cause": "first", "a~b/c": "tilde", "plain": "p"},
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2),
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxUnavailable: ptr.To(intstr.FromString("25%")),
			}},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx:1"}}}},
		},
		Status: appsv1.DeploymentStatus{ReadyReplicas: 2},
	}
	for _, e := range edit {
		e(d)
	}
	return d
}

func object(t *testing.T, o any) Object {
	t.Helper()
	obj, err := ObjectOf(o)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func TestPath(t *testing.T) {
	for name, tc := range map[string]struct {
		field       string
		wantPath    []string
		wantPointer string
	}{
		"nothing":         {"", nil, ""},
		"one":             {"spec", []string{"spec"}, "/spec"},
		"dots":            {"spec.replicas", []string{"spec", "replicas"}, "/spec/replicas"},
		"leading dot":     {".spec.replicas", []string{"spec", "replicas"}, "/spec/replicas"},
		"key with dots":   {"metadata.annotations[a.b.c]", []string{"metadata", "annotations", "a.b.c"}, "/metadata/annotations/a.b.c"},
		"key with slash":  {"metadata.annotations[a.b/c]", []string{"metadata", "annotations", "a.b/c"}, "/metadata/annotations/a.b~1c"},
		"key with tilde":  {"metadata.annotations[a~b]", []string{"metadata", "annotations", "a~b"}, "/metadata/annotations/a~0b"},
		"key like escape": {"metadata.annotations[a~1b]", []string{"metadata", "annotations", "a~1b"}, "/metadata/annotations/a~01b"},
		"after a key":     {"a[b.c].d[e/f]", []string{"a", "b.c", "d", "e/f"}, "/a/b.c/d/e~1f"},
		"key of a key":    {"a[b][c]", []string{"a", "b", "c"}, "/a/b/c"},
		"empty key":       {"a[]", []string{"a", ""}, "/a/"},
		"no end":          {"a[b.c", []string{"a", "b.c"}, "/a/b.c"},
		"two dots":        {"a..b", []string{"a", "", "b"}, "/a//b"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.wantPath, Path(tc.field)); diff != "" {
				t.Errorf("Path(%q) (-want +got):\n%s", tc.field, diff)
			}
			if got := Pointer(tc.field); got != tc.wantPointer {
				t.Errorf("Pointer(%q) = %q, want %q", tc.field, got, tc.wantPointer)
			}
		})
	}
}

// FuzzPath: every field has an end, and its pointer names the same segments.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"", ".", "..", "[", "]", "a[b.c/d~e].f", "[[", "a[b]]c", "metadata.annotations[kubernetes.io/change-cause]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, field string) {
		path, pointer := Path(field), Pointer(field)
		var back []string
		if pointer != "" {
			for _, s := range strings.Split(pointer[1:], "/") {
				back = append(back, strings.ReplaceAll(strings.ReplaceAll(s, "~1", "/"), "~0", "~"))
			}
		}
		if diff := cmp.Diff(path, back); diff != "" {
			t.Errorf("pointer %q of %q names other segments (-path +pointer):\n%s", pointer, field, diff)
		}
	})
}

func TestValue(t *testing.T) {
	o := object(t, web(func(d *appsv1.Deployment) {
		d.OwnerReferences = []metav1.OwnerReference{
			{Kind: "Note", Name: "n", UID: "uid-note"},
			{Kind: "Rollout", Name: "r", UID: "uid-owner", Controller: ptr.To(true)},
		}
	}))
	longest := strings.Repeat("a", 255)
	o["odd"] = map[string]any{"float": 1.5, "null": nil, "list": []any{}, "longest": longest, "longer": longest + "a"}
	for name, tc := range map[string]struct{ field, want string }{
		"number":                   {"spec.replicas", "2"},
		"text":                     {"metadata.uid", "uid-1"},
		"percent":                  {"spec.strategy.rollingUpdate.maxUnavailable", "25%"},
		"key with dots and slash":  {"metadata.annotations[kubernetes.io/change-cause]", "first"},
		"key with tilde and slash": {"metadata.annotations[a~b/c]", "tilde"},
		"plain key":                {"metadata.annotations.plain", "p"},
		"map":                      {"metadata.labels", "sha256:2ee752222fe5"},
		"empty list":               {"odd.list", "sha256:4f53cda18c2b"},
		"fraction":                 {"odd.float", "1.5"},
		"null":                     {"odd.null", ""},
		"the longest text":         {"odd.longest", longest},
		"a longer one":             {"odd.longer", "sha256:02d7160d77e1"},
		"absent":                   {"spec.paused", ""},
		"below absent":             {"spec.nothing.at.all", ""},
		"below a number":           {"spec.replicas.x", ""},
		"of a list":                {"spec.template.spec.containers[0].image", "nginx:1"},
		"of a list, with dots":     {"spec.template.spec.containers.0.name", "web"},
		"beyond a list":            {"spec.template.spec.containers[1].image", ""},
		"before a list":            {"spec.template.spec.containers[-1].image", ""},
		"by a name in a list":      {"spec.template.spec.containers[web].image", ""},
		"controller":               {OwnerField, "uid-owner"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := o.Value(tc.field); got != tc.want {
				t.Errorf("Value(%q) = %q, want %q", tc.field, got, tc.want)
			}
		})
	}
	t.Run("a controller's uid is any text", func(t *testing.T) {
		const uid = "x\nCONFIRM: all"
		o := object(t, web(func(d *appsv1.Deployment) {
			d.OwnerReferences = []metav1.OwnerReference{{UID: uid, Controller: ptr.To(true)}}
		}))
		if got := o.Value(OwnerField); !strings.HasPrefix(got, "sha256:") {
			t.Errorf("Value(%q) = %q", OwnerField, got)
		}
	})
	t.Run("no controller", func(t *testing.T) {
		if got := object(t, web()).Value(OwnerField); got != "" {
			t.Errorf("Value(%q) = %q, want none", OwnerField, got)
		}
	})
	t.Run("the template by all of it", func(t *testing.T) {
		before := object(t, web()).Value("spec.template")
		after := object(t, web(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "nginx:2" })).Value("spec.template")
		if before == after || !strings.HasPrefix(before, "sha256:") {
			t.Errorf("spec.template is %s before and %s after another image", before, after)
		}
	})
}

func TestIntAndLabels(t *testing.T) {
	o := object(t, web())
	o["float"] = 3.0
	for field, want := range map[string]int{"spec.replicas": 2, "status.readyReplicas": 2, "float": 3, "metadata.name": 0, "absent": 0} {
		if got := o.Int(field); got != want {
			t.Errorf("Int(%q) = %d, want %d", field, got, want)
		}
	}
	if diff := cmp.Diff(map[string]string{"app": "web", "app.kubernetes.io/name": "web"}, o.Labels()); diff != "" {
		t.Errorf("Labels (-want +got):\n%s", diff)
	}
	if got := (Object{}).Labels(); len(got) != 0 {
		t.Errorf("Labels of an empty object: %v", got)
	}
}

func TestMoved(t *testing.T) {
	target := Target{Resource: "deployments", Namespace: "default", Name: "web", UID: "uid-1"}
	replicas := Change{Field: "spec.replicas", Old: "2", New: "3"}
	for name, tc := range map[string]struct {
		live    func(*appsv1.Deployment)
		changes []Change
		want    []string
	}{
		"still so": {changes: []Change{replicas}},
		"moved": {
			live:    func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](5) },
			changes: []Change{replicas},
			want:    []string{"spec.replicas of deployment default/web: planned from 2, now 5"},
		},
		"already what was asked for": {
			live:    func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](3) },
			changes: []Change{replicas},
			want:    []string{"spec.replicas of deployment default/web: planned from 2, now 3"},
		},
		"moved to zero": {
			live:    func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](0) },
			changes: []Change{replicas},
			want:    []string{"spec.replicas of deployment default/web: planned from 2, now 0"},
		},
		"every one that moved": {
			live:    func(d *appsv1.Deployment) { d.Spec.Replicas, d.Spec.Paused = ptr.To[int32](5), true },
			changes: []Change{replicas, {Field: "spec.paused"}, {Field: "metadata.name", Old: "web", New: "web"}},
			want: []string{
				"spec.replicas of deployment default/web: planned from 2, now 5",
				"spec.paused of deployment default/web: planned from unset, now true",
			},
		},
		"a held value": {
			live:    func(d *appsv1.Deployment) { d.Spec.Paused = true },
			changes: []Change{{Field: "spec.paused"}},
			want:    []string{"spec.paused of deployment default/web: planned from unset, now true"},
		},
		"zero is how absent shows": {
			live:    func(d *appsv1.Deployment) { d.Spec.Replicas = nil },
			changes: []Change{{Field: "spec.replicas", Old: "0", New: "3"}},
		},
		"false is how absent shows": {changes: []Change{{Field: "spec.paused", Old: "false", New: "true"}}},
		"absent is no other value": {
			live:    func(d *appsv1.Deployment) { d.Spec.Replicas = nil },
			changes: []Change{replicas},
			want:    []string{"spec.replicas of deployment default/web: planned from 2, now unset"},
		},
		"another object": {
			live:    func(d *appsv1.Deployment) { d.UID, d.Spec.Replicas = "uid-2", ptr.To[int32](5) },
			changes: []Change{replicas},
			want:    []string{"deployment default/web is another object now (uid uid-2, planned for uid-1)"},
		},
		"terminating": {
			live: func(d *appsv1.Deployment) {
				d.DeletionTimestamp, d.Spec.Replicas = ptr.To(metav1.Unix(1, 0)), ptr.To[int32](5)
			},
			changes: []Change{replicas},
			want:    []string{"deployment default/web is terminating"},
		},
		"generation, version, labels and status are no drift": {
			live: func(d *appsv1.Deployment) {
				d.Generation, d.ResourceVersion, d.Labels, d.Status.ReadyReplicas = 8, "101", nil, 0
			},
			changes: []Change{replicas},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := web()
			if tc.live != nil {
				tc.live(d)
			}
			got := Step{Verb: Scale, Target: target, Changes: tc.changes}.Moved(object(t, d))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Moved (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("not there", func(t *testing.T) {
		want := []string{"deployment default/web is another object now (uid , planned for uid-1)"}
		if diff := cmp.Diff(want, Step{Target: target}.Moved(nil)); diff != "" {
			t.Errorf("Moved (-want +got):\n%s", diff)
		}
	})
}

// TestMovedToOwn: a Step that was proposed on an object rests on that object.
// TestBefore: a change of a text is taken back in a copy; of what is not shown as it is, or is
// no text, nothing is made up.
func TestBefore(t *testing.T) {
	live := func() Object {
		return Object{"spec": map[string]any{"replicas": int64(3), "image": "b", "annotations": map[string]any{"a.b/c": "now"}, "list": []any{map[string]any{"image": "b"}}}}
	}
	for name, tc := range map[string]struct {
		change Change
		field  string
		want   any
		wantOK bool
	}{
		"another value":         {Change{Field: "spec.image", Old: "a", New: "b"}, "spec.image", "a", true},
		"it was not there":      {Change{Field: "spec.image", New: "b"}, "spec.image", nil, true},
		"nor was its map":       {Change{Field: "spec.annotations[a.b/c]", New: "now"}, "spec.annotations", nil, true},
		"in a list":             {Change{Field: "spec.list[0].image", Old: "a", New: "b"}, "spec.list[0].image", "a", true},
		"a number":              {Change{Field: "spec.replicas", Old: "2", New: "3"}, "", nil, false},
		"a hash":                {Change{Field: "spec.image", Old: "sha256:0123456789ab", New: "b"}, "", nil, false},
		"free text":             {Change{Field: "spec.image", Old: "a b", New: "b"}, "", nil, false},
		"it is not there":       {Change{Field: "spec.other", Old: "a", New: "b"}, "", nil, false},
		"nor is its map, there": {Change{Field: "status.other.x", Old: "a", New: "b"}, "", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := live()
			was, ok := o.Before(tc.change)
			if diff := cmp.Diff(live(), o); diff != "" {
				t.Errorf("the object itself moved (-want +got):\n%s", diff)
			}
			if ok != tc.wantOK {
				t.Fatalf("it is known: %t, want %t", ok, tc.wantOK)
			}
			if ok && was.at(Path(tc.field)) != tc.want {
				t.Errorf("%s was %v, want %v", tc.field, was.at(Path(tc.field)), tc.want)
			}
		})
	}
}

func TestMovedToOwn(t *testing.T) {
	for name, old := range map[string]string{"zero": "0", "false": "false", "unset": ""} {
		t.Run(name, func(t *testing.T) {
			s := Step{Target: Target{UID: "uid-1"}, Changes: []Change{{Field: "spec.absent", Old: old, New: "1"}}}
			if got := s.Moved(object(t, web())); got != nil {
				t.Errorf("old side %q moved: %v", old, got)
			}
		})
	}
}

func TestChangeString(t *testing.T) {
	for want, c := range map[string]Change{
		"spec.replicas: 2 → 3":       {"spec.replicas", "2", "3"},
		"spec.paused: true → unset":  {"spec.paused", "true", ""},
		"spec.paused: unset → true":  {"spec.paused", "", "true"},
		"spec.template: sha256:0123": {"spec.template", "sha256:0123", "sha256:0123"},
		"spec.paused: unset":         {"spec.paused", "", ""},
	} {
		if got := c.String(); got != want {
			t.Errorf("%#v shows as %q, want %q", c, got, want)
		}
	}
}

func TestVersionOf(t *testing.T) {
	version := VersionOf(object(t, web()))
	if !strings.HasPrefix(version, "v") || len(version) != 11 {
		t.Errorf("version %q is no v with 10 digits", version)
	}
	for name, tc := range map[string]struct {
		edit func(*appsv1.Deployment)
		same bool
	}{
		"nothing":         {func(*appsv1.Deployment) {}, true},
		"status":          {func(d *appsv1.Deployment) { d.Status.ReadyReplicas = 0 }, true},
		"labels":          {func(d *appsv1.Deployment) { d.Labels = nil }, true},
		"annotations":     {func(d *appsv1.Deployment) { d.Annotations = nil }, true},
		"generation":      {func(d *appsv1.Deployment) { d.Generation++ }, true},
		"resourceVersion": {func(d *appsv1.Deployment) { d.ResourceVersion = "101" }, true},
		"uid":             {func(d *appsv1.Deployment) { d.UID = "uid-2" }, false},
		"replicas":        {func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](3) }, false},
		"template label":  {func(d *appsv1.Deployment) { d.Spec.Template.Labels = map[string]string{"a": "b"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := VersionOf(object(t, web(tc.edit))); (got == version) != tc.same {
				t.Errorf("version %s after the edit, %s before; the same: want %t", got, version, tc.same)
			}
		})
	}
}

func TestStateOf(t *testing.T) {
	for name, tc := range map[string]struct {
		resource string
		object   any
		want     State
	}{
		"deployment": {"deployments", web(), State{
			"uid": "uid-1", "rv": "100", "generation": int64(7), "replicas": int64(2), "ready": int64(2), "available": 0, "updated": 0,
			"max_unavailable": "25%", "strategy": "RollingUpdate",
		}},
		"a deployment that nobody has seen": {"deployments", &appsv1.Deployment{}, State{
			"uid": "", "rv": "", "replicas": 0, "ready": 0, "available": 0, "updated": 0,
		}},
		"statefulset": {"statefulsets", &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](3),
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: "RollingUpdate", RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{
				Partition: ptr.To[int32](1),
			}},
		}}, State{
			"uid": "", "rv": "", "replicas": int64(3), "ready": 0, "available": int64(0), "updated": 0, "strategy": "RollingUpdate", "partition": int64(1),
		}},
		"daemonset": {"daemonsets", &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 4, NumberReady: 3}}, State{
			"uid": "", "rv": "", "replicas": int64(4), "ready": int64(3), "available": 0, "updated": 0,
		}},
		"pod": {"pods", &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: "Running"}}, State{
			"uid": "", "rv": "", "phase": "Running", "node": "n1",
		}},
		"job": {"jobs", &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](2)}, Status: batchv1.JobStatus{Active: 2}}, State{
			"uid": "", "rv": "", "suspend": false, "parallelism": int64(2), "active": int64(2), "succeeded": 0, "failed": 0,
		}},
		"cronjob": {"cronjobs", &batchv1.CronJob{Spec: batchv1.CronJobSpec{Suspend: ptr.To(true), Schedule: "@hourly"}}, State{
			"uid": "", "rv": "", "suspend": true,
		}},
		"node":          {"nodes", &corev1.Node{}, State{"uid": "", "rv": "", "unschedulable": false}},
		"cordoned node": {"nodes", &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}, State{"uid": "", "rv": "", "unschedulable": true}},
		"terminating": {"pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: ptr.To(metav1.Unix(1, 0))}}, State{
			"uid": "", "rv": "", "terminating": true,
		}},
		"text is sanitised": {"deployments", web(func(d *appsv1.Deployment) {
			d.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "\x1b[2K\rnow\u202e"}
		}), State{
			"uid": "uid-1", "rv": "100", "generation": int64(7), "replicas": int64(2), "ready": int64(2), "available": 0, "updated": 0,
			"max_unavailable": "25%", "strategy": "RollingUpdate", "restarted_at": "sha256:04cba9ebb07c",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, StateOf(tc.resource, object(t, tc.object))); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStateFields: every kind that a plan can be about shows something.
func TestStateFields(t *testing.T) {
	for _, k := range Kinds {
		if len(stateFields[k.Resource]) == 0 {
			t.Errorf("a plan about %s shows no state", k.Resource)
		}
	}
}

// TestOwnedSince reads managedFields as the API server writes them.
func TestOwnedSince(t *testing.T) {
	o := Object{"metadata": map[string]any{"managedFields": []any{
		map[string]any{"manager": "a", "time": "2026-11-30T12:00:00Z", "fieldsV1": map[string]any{"f:spec": map[string]any{"f:unschedulable": map[string]any{}}}},
		map[string]any{"manager": "b", "time": "2026-11-30T12:00:05Z", "fieldsV1": map[string]any{"f:spec": map[string]any{"f:unschedulable": map[string]any{}, "f:taints": map[string]any{}}}},
		map[string]any{"manager": "c", "time": "2026-11-30T12:00:09Z", "fieldsV1": map[string]any{"f:status": map[string]any{}}},
		map[string]any{"manager": "d", "fieldsV1": map[string]any{"f:spec": map[string]any{"f:unschedulable": map[string]any{}}}},
		map[string]any{"manager": "e\nx", "subresource": "scale", "fieldsV1": map[string]any{"f:spec": map[string]any{"f:replicas": map[string]any{}}}},
		"odd",
	}}}
	for field, want := range map[string][2]string{"spec.unschedulable": {"b", ""}, "spec.replicas": {"e x", "scale"}, "spec.podCIDR": {}} {
		if by, through := o.LastOwner(field); by != want[0] || through != want[1] {
			t.Errorf("%s: owned by %q through %q, want %q", field, by, through, want)
		}
	}
	for field, want := range map[string]string{"spec.unschedulable": "2026-11-30T12:00:05Z", "spec.podCIDR": "", "spec.unschedulable.x": ""} {
		got := ""
		if at := o.OwnedSince(field); !at.IsZero() {
			got = at.Format(time.RFC3339)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
}
