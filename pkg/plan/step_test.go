package plan

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"
)

const (
	templateNotes = "/spec/template/metadata/annotations"
	notes         = "/metadata/annotations"
)

// restart is a Step that uses everything a patch can say.
func restart() Step {
	return Step{
		Verb:    Patch,
		Target:  Target{Resource: "deployments", Namespace: "default", Name: "web", UID: "uid-1"},
		Changes: []Change{{"spec.paused", "", ""}, {"spec.template.metadata.annotations[a.b/c]", "", "T"}},
		Patch: []Op{
			{Op: "ensure", Path: templateNotes},
			{Op: "add", Path: templateNotes + "/a.b~1c", Value: JSON("T")},
			{Op: "ensure", Path: notes},
			{Op: "add", Path: notes + "/kubernetes.io~1change-cause", From: FromReason},
			{Op: "remove", Path: "/spec/paused"},
		},
	}
}

const job = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"namespace":"a","name":"mail-mf3q7x2ad5"}}`

// trigger is a Step that makes an object.
func trigger() Step {
	return Step{Verb: Create, Target: Target{Resource: "cronjobs", Namespace: "a", Name: "mail", UID: "c"}, Object: json.RawMessage(job)}
}

// TestRecorded: what stands on record is as good for everything but sending, and holds
// nothing of what the cluster's users wrote.
func TestRecorded(t *testing.T) {
	const secret = "hunter2"
	template := JSON(map[string]any{"spec": map[string]any{"env": secret}})
	made := trigger()
	made.Object = json.RawMessage(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"namespace":"a","name":"mail-mf3q7x2ad5","annotations":{"x":"` + secret + `"}},"spec":{"env":"` + secret + `"}}`)
	undo := Step{Verb: Patch, Target: Target{Resource: "deployments", Namespace: "a", Name: "web", UID: "c"}, Patch: []Op{{Op: "replace", Path: "/spec/template", Value: template}}}
	for name, s := range map[string]Step{"create": made, "patch": undo} {
		r := s.Recorded()
		onRecord, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var read Step
		if err := json.Unmarshal(onRecord, &read); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(onRecord)+r.Request(), secret) {
			t.Errorf("%s: the record has the secret: %s", name, onRecord)
		}
		if !s.Equal(read) || !read.Equal(s) || read.Key() != s.Key() || read.Request() != s.Request() || read.Subject() != s.Subject() || read.Rolls() != s.Rolls() {
			t.Errorf("%s: the record is another step: %s", name, onRecord)
		}
	}
	sealed := undo.Sealed(strings.ToUpper) // anything that differs
	if sealed.Equal(undo) || sealed.Patch[0].Hash != strings.ToUpper(undo.Recorded().Patch[0].Hash) {
		t.Errorf("sealed: %s", sealed.Canonical())
	}
	if keyed := undo.Sealed(func(string) string { return keyedPrefix + "x" }); !keyed.Equal(keyed.Sealed(strings.ToUpper)) {
		t.Error("sealing again changes it")
	}
	if _, err := undo.Recorded().JSONPatch(Slots{}); err == nil {
		t.Error("a recorded patch can be sent")
	}
	undo.Patch[0].Value = JSON(map[string]any{"spec": map[string]any{"env": "other"}})
	if undo.Equal(Step{Verb: undo.Verb, Target: undo.Target, Patch: []Op{{Op: "replace", Path: "/spec/template", Value: template}}}.Recorded()) {
		t.Error("another template is equal")
	}
}

func TestSubject(t *testing.T) {
	for name, tc := range map[string]struct {
		step Step
		want Target
	}{
		"a patch is about its target":  {restart(), restart().Target},
		"a create about what it makes": {trigger(), Target{Resource: "jobs", Namespace: "a", Name: "mail-mf3q7x2ad5"}},
		"of an unknown kind":           {Step{Verb: Create, Object: json.RawMessage(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`)}, Target{}},
		"of another version":           {Step{Verb: Create, Object: json.RawMessage(`{"apiVersion":"batch/v2","kind":"Job","metadata":{"name":"x"}}`)}, Target{}},
		"of nothing":                   {Step{Verb: Create, Target: restart().Target}, Target{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.step.Subject(); got != tc.want {
				t.Errorf("about %+v, want %+v", got, tc.want)
			}
		})
	}
}

// TestRolls: whether pods follow is decided by what is written.
func TestRolls(t *testing.T) {
	for path, want := range map[string]bool{
		"/spec/template": true, "/spec/template/spec/containers/0/image": true, "/spec/templates": false, "/spec/paused": false, "/metadata/annotations/a": false,
	} {
		if got := (Step{Verb: Patch, Patch: []Op{{Op: "add", Path: "/metadata/annotations/b"}, {Op: "add", Path: path}}}).Rolls(); got != want {
			t.Errorf("%s: %t, want %t", path, got, want)
		}
	}
	if !scaleTo(3).Rolls() || trigger().Rolls() {
		t.Error("a scale rolls, a create does not")
	}
}

func scaleTo(n int32) Step {
	return Step{
		Verb: Scale, Target: Target{Resource: "deployments", Namespace: "default", Name: "web", UID: "uid-1"},
		Changes: []Change{{"spec.replicas", "2", "3"}}, Replicas: &n,
	}
}

func TestJSONPatch(t *testing.T) {
	const (
		guard = `{"op":"replace","path":"/metadata/uid","value":"uid-1"}`
		at    = `,{"op":"replace","path":"/metadata/resourceVersion","value":"100"}`
		empty = `,{"op":"add","path":"/spec/template/metadata/annotations","value":{}}`
		set   = `,{"op":"add","path":"/spec/template/metadata/annotations/a.b~1c","value":"T"}`
		own   = `,{"op":"add","path":"/metadata/annotations","value":{}}`
		gone  = `,{"op":"remove","path":"/spec/paused"}`
	)
	note := func(reason string) string {
		return `,{"op":"add","path":"/metadata/annotations/kubernetes.io~1change-cause","value":"` + reason + `"}`
	}
	for name, tc := range map[string]struct {
		slots Slots
		want  string
	}{
		"dry run: no version":              {Slots{DryRun: true, Reason: "r"}, guard + set + note("r") + gone},
		"execute: the guard comes first":   {Slots{ResourceVersion: "100", Reason: "r"}, guard + at + set + note("r") + gone},
		"one map is absent":                {Slots{ResourceVersion: "100", Reason: "r", Absent: []string{templateNotes}}, guard + at + empty + set + note("r") + gone},
		"both are":                         {Slots{Reason: "r", Absent: []string{notes, templateNotes}}, guard + empty + set + own + note("r") + gone},
		"an absent map that nobody asked":  {Slots{Reason: "r", Absent: []string{"/metadata/labels"}}, guard + set + note("r") + gone},
		"a reason is data":                 {Slots{Reason: `","op":"x`}, guard + set + note(`\",\"op\":\"x`) + gone},
		"a reason with signs of HTML":      {Slots{Reason: "<a&b>"}, guard + set + note(`\u003ca\u0026b\u003e`) + gone},
		"no reason is an empty annotation": {Slots{}, guard + set + note("") + gone},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := restart().JSONPatch(tc.slots)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff("["+tc.want+"]", string(got)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestJSONPatchHasOnlyRFC6902: neither of our two additions leaves the process, and no
// test does, which would turn a stale version into a 422 without a reason.
func TestJSONPatchHasOnlyRFC6902(t *testing.T) {
	for _, absent := range [][]string{nil, {notes}, {templateNotes}, {notes, templateNotes}} {
		b, err := restart().JSONPatch(Slots{ResourceVersion: "1", Absent: absent})
		if err != nil {
			t.Fatal(err)
		}
		var ops []map[string]any
		if err := json.Unmarshal(b, &ops); err != nil {
			t.Fatal(err)
		}
		for _, op := range ops {
			if !slices.Contains([]string{"add", "remove", "replace"}, op["op"].(string)) || op["from"] != nil {
				t.Errorf("absent %v: operation %v", absent, op)
			}
		}
	}
}

func TestFill(t *testing.T) {
	for name, tc := range map[string]struct {
		live any
		want Slots
	}{
		"both there": {
			web(func(d *appsv1.Deployment) { d.Spec.Template.Annotations = map[string]string{"a": "b"} }),
			Slots{ResourceVersion: "100"},
		},
		"one absent": {web(), Slots{ResourceVersion: "100", Absent: []string{templateNotes}}},
		"both absent": {
			web(func(d *appsv1.Deployment) { d.Annotations = nil }),
			Slots{ResourceVersion: "100", Absent: []string{templateNotes, notes}},
		},
		"an empty map is sent as none": {
			web(func(d *appsv1.Deployment) {
				d.Annotations, d.Spec.Template.Annotations = map[string]string{}, map[string]string{}
			}),
			Slots{ResourceVersion: "100", Absent: []string{templateNotes, notes}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, restart().Fill(object(t, tc.live))); diff != "" {
				t.Errorf("slots (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a path with an escaped key", func(t *testing.T) {
		s := Step{Patch: []Op{{Op: "ensure", Path: "/metadata/annotations/a~0b~1c"}, {Op: "ensure", Path: "/metadata/annotations/a~01b"}}}
		want := Slots{ResourceVersion: "100", Absent: []string{"/metadata/annotations/a~01b"}}
		if diff := cmp.Diff(want, s.Fill(object(t, web()))); diff != "" {
			t.Errorf("slots (-want +got):\n%s", diff)
		}
	})
}

// TestCanonical pins the encoding: journals of older versions hold digests of it.
func TestCanonical(t *testing.T) {
	for name, tc := range map[string]struct {
		step Step
		want string
	}{
		"scale": {scaleTo(3), `{"verb":"scale","target":{"resource":"deployments","namespace":"default","name":"web","uid":"uid-1"},` +
			`"changes":[{"field":"spec.replicas","old":"2","new":"3"}],"replicas":3}`},
		"scale to zero keeps its number": {scaleTo(0), `{"verb":"scale","target":{"resource":"deployments","namespace":"default","name":"web","uid":"uid-1"},` +
			`"changes":[{"field":"spec.replicas","old":"2","new":"3"}],"replicas":0}`},
		"patch": {restart(), `{"verb":"patch","target":{"resource":"deployments","namespace":"default","name":"web","uid":"uid-1"},` +
			`"changes":[{"field":"spec.paused","old":"","new":""},{"field":"spec.template.metadata.annotations[a.b/c]","old":"","new":"T"}],` +
			`"patch":[{"op":"ensure","path":"/spec/template/metadata/annotations"},{"op":"add","path":"/spec/template/metadata/annotations/a.b~1c","value":"T"},` +
			`{"op":"ensure","path":"/metadata/annotations"},{"op":"add","path":"/metadata/annotations/kubernetes.io~1change-cause","from":"reason"},` +
			`{"op":"remove","path":"/spec/paused"}]}`},
		"create": {
			trigger(), `{"verb":"create","target":{"resource":"cronjobs","namespace":"a","name":"mail","uid":"c"},"object":` + job + `,"object_hash":"` + hashOf([]byte(job)) + `"}`,
		},
		"eviction": {
			Step{Verb: Evict, Target: Target{Resource: "pods", Namespace: "a", Name: "b", UID: "c"}, OnBudget: Wait, Deadline: 300, Optional: true, Grace: ptr.To[int64](5)},
			`{"verb":"evict","target":{"resource":"pods","namespace":"a","name":"b","uid":"c"},"grace":5,"on_budget":"wait","deadline":300,"optional":true}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, string(tc.step.Canonical())); diff != "" {
				t.Errorf("canonical form (-want +got):\n%s", diff)
			}
			var back Step
			if err := json.Unmarshal(tc.step.Canonical(), &back); err != nil {
				t.Fatal(err)
			}
			if !back.Equal(tc.step) {
				t.Errorf("read back it is another Step: %s", back.Canonical())
			}
		})
	}
}

// TestEqual: whatever would send another request, or was shown with another value, is
// another Step; what fills its slots for one request is not.
func TestEqual(t *testing.T) {
	for name, edit := range map[string]func(*Step){
		"verb":       func(s *Step) { s.Verb = Delete },
		"resource":   func(s *Step) { s.Target.Resource = "statefulsets" },
		"namespace":  func(s *Step) { s.Target.Namespace = "prod" },
		"name":       func(s *Step) { s.Target.Name = "api" },
		"uid":        func(s *Step) { s.Target.UID = "uid-2" },
		"old side":   func(s *Step) { s.Changes[1].Old = "x" },
		"new side":   func(s *Step) { s.Changes[1].New = "U" },
		"held value": func(s *Step) { s.Changes[0].Old, s.Changes[0].New = "true", "true" },
		"one less":   func(s *Step) { s.Changes = s.Changes[:1] },
		"patch":      func(s *Step) { s.Patch[1].Value = JSON("U") },
		"order":      func(s *Step) { s.Patch[0], s.Patch[1] = s.Patch[1], s.Patch[0] },
		"replicas":   func(s *Step) { s.Replicas = ptr.To[int32](0) },
		"grace":      func(s *Step) { s.Grace = ptr.To[int64](0) },
		"budget":     func(s *Step) { s.OnBudget = Wait },
		"deadline":   func(s *Step) { s.Deadline = 1 },
		"optional":   func(s *Step) { s.Optional = true },
		"object":     func(s *Step) { s.Object = JSON("x") },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := restart(), restart()
			edit(&b)
			if a.Equal(b) || b.Equal(a) {
				t.Errorf("equal to a Step with another %s", name)
			}
			if bytes.Equal(Digest([]Step{a}), Digest([]Step{b})) {
				t.Errorf("same digest as a Step with another %s", name)
			}
		})
	}
	t.Run("slots are no part of it", func(t *testing.T) {
		a, b := restart(), restart()
		for _, live := range []any{web(), web(func(d *appsv1.Deployment) { d.ResourceVersion, d.Annotations = "999", nil })} {
			if _, err := b.JSONPatch(b.Fill(object(t, live))); err != nil {
				t.Fatal(err)
			}
			if !a.Equal(b) || !bytes.Equal(Digest([]Step{a}), Digest([]Step{b})) {
				t.Errorf("another Step after it was filled: %s", b.Canonical())
			}
		}
	})
}

func TestDigest(t *testing.T) {
	a, b := scaleTo(3), restart()
	all := map[string][]Step{"none": nil, "a": {a}, "b": {b}, "a b": {a, b}, "b a": {b, a}, "a a": {a, a}}
	seen := map[string]string{}
	for name, steps := range all {
		d := hex.EncodeToString(Digest(steps))
		if other, twice := seen[d]; twice {
			t.Errorf("%q and %q have one digest", name, other)
		}
		seen[d] = name
	}
	const want = "7299d9ceb9d627b2f2056f78911d155cce23defb8d0b767c3486d264b604dcc9"
	if got := hex.EncodeToString(Digest([]Step{a})); got != want {
		t.Errorf("digest %s, want %s: journals of older versions hold it", got, want)
	}
}

func TestKey(t *testing.T) {
	note := restart()
	note.Optional = true
	for want, s := range map[string]Step{
		"scale deployment default/web":                     scaleTo(3),
		"patch deployment default/web":                     restart(),
		"patch deployment default/web (note)":              note,
		"evict pod a/b":                                    {Verb: Evict, Target: Target{Resource: "pods", Namespace: "a", Name: "b"}},
		"create job a/mail-mf3q7x2ad5 from cronjob a/mail": trigger(),
		"patch node n1":                                    {Verb: Patch, Target: Target{Resource: "nodes", Name: "n1"}},
		"patch widgets a/b":                                {Verb: Patch, Target: Target{Resource: "widgets", Namespace: "a", Name: "b"}},
	} {
		if got := s.Key(); got != want {
			t.Errorf("key %q, want %q", got, want)
		}
	}
	if a, b := scaleTo(3), scaleTo(9); a.Key() != b.Key() {
		t.Errorf("keys %q and %q differ by a value", a.Key(), b.Key())
	}
}

func TestRequest(t *testing.T) {
	pod := Target{Resource: "pods", Namespace: "a", Name: "b"}
	for want, s := range map[string]Step{
		"PUT /apis/apps/v1/namespaces/default/deployments/web/scale spec.replicas=3": scaleTo(3),
		"PUT /apis/apps/v1/namespaces/default/deployments/web/scale spec.replicas=0": scaleTo(0),
		"POST /api/v1/namespaces/a/pods/b/eviction":                                  {Verb: Evict, Target: pod},
		"DELETE /api/v1/namespaces/a/pods/b":                                         {Verb: Delete, Target: pod},
		"PATCH /api/v1/nodes/n1 [add /spec/unschedulable true]": {
			Verb: Patch, Target: Target{Resource: "nodes", Name: "n1"}, Patch: []Op{{Op: "add", Path: "/spec/unschedulable", Value: JSON(true)}},
		},
		"POST /apis/batch/v1/namespaces/a/jobs mail-mf3q7x2ad5 sha256:cc0478afd8d2": trigger(),
		"PATCH /apis/apps/v1/namespaces/default/deployments/web [add /spec/template sha256:881fed9b59f1, add /spec/list sha256:4f53cda18c2b]": {
			Verb: Patch, Target: scaleTo(3).Target, Patch: []Op{
				{Op: "add", Path: "/spec/template", Value: JSON(map[string]any{"env": "secret"})}, {Op: "add", Path: "/spec/list", Value: JSON([]any{})},
			},
		},
		`PATCH /apis/apps/v1/namespaces/default/deployments/web [add /spec/template/metadata/annotations/a.b~1c "T", ` +
			`add /metadata/annotations/kubernetes.io~1change-cause <reason>, remove /spec/paused]`: restart(),
	} {
		if got := s.Request(); got != want {
			t.Errorf("request line\n%s, want\n%s", got, want)
		}
	}
}

func TestTimeout(t *testing.T) {
	if got := (Step{Deadline: 300}).Timeout(); got != 5*time.Minute {
		t.Errorf("timeout %s, want 5m", got)
	}
}

func TestEmpty(t *testing.T) {
	note := Step{Optional: true}
	for name, tc := range map[string]struct {
		steps []Step
		want  bool
	}{
		"none":             {nil, true},
		"notes alone":      {[]Step{note, note}, true},
		"one that changes": {[]Step{scaleTo(3)}, false},
		"with its note":    {[]Step{scaleTo(3), note}, false},
		"behind a note":    {[]Step{note, scaleTo(3)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (&Plan{Steps: tc.steps}).Empty(); got != tc.want {
				t.Errorf("Empty() = %t, want %t", got, tc.want)
			}
		})
	}
}

// TestKinds: arguments, resources and kinds are keys.
func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Kinds {
		for _, key := range []string{"argument " + k.Argument, "resource " + k.Resource, k.GVK.String()} {
			if seen[key] {
				t.Errorf("%s stands there twice", key)
			}
			seen[key] = true
		}
		got, ok := KindOf(k.Resource)
		if !ok || got != k {
			t.Errorf("KindOf(%q) = %v, %t", k.Resource, got, ok)
		}
	}
	if k, ok := KindOf("secrets"); ok {
		t.Errorf("KindOf(secrets) = %v", k)
	}
	for resource, want := range map[string]string{"deployments": "deployments.apps", "pods": "pods"} {
		k, _ := KindOf(resource)
		if got := k.GroupResource().String(); got != want {
			t.Errorf("GroupResource of %s is %s, want %s", resource, got, want)
		}
	}
}
