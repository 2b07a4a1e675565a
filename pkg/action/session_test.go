package action

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

func TestNewPanics(t *testing.T) {
	whole := Spec{Name: "scale", Title: "A title", Doc: "A doc.", Needs: needs}
	for name, tc := range map[string]struct {
		edit func(*Spec)
		want string
	}{
		"no name":         {func(s *Spec) { s.Name = "" }, "name must be"},
		"upper case":      {func(s *Spec) { s.Name = "Scale" }, "name must be"},
		"dash":            {func(s *Spec) { s.Name = "roll-out" }, "name must be"},
		"digit":           {func(s *Spec) { s.Name = "scale2" }, "name must be"},
		"two underscores": {func(s *Spec) { s.Name = "a__b" }, "name must be"},
		"long":            {func(s *Spec) { s.Name = strings.Repeat("a", 25) }, "name must be"},
		"no title":        {func(s *Spec) { s.Title = "" }, "title and doc are mandatory"},
		"no doc":          {func(s *Spec) { s.Doc = "" }, "title and doc are mandatory"},
		"no needs":        {func(s *Spec) { s.Needs = nil }, "needs are mandatory"},
		"a limit that is not held to": {func(s *Spec) {
			s.Schema = func(s *jsonschema.Schema) { s.Properties["replicas"].Enum = []any{1, 2} }
		}, "argument replicas: its schema may only add"},
		"wrong schema": {func(s *Spec) {
			s.Schema = func(s *jsonschema.Schema) { s.Properties["replicas"].Pattern = "(" }
		}, "schema: "},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "action ") || !strings.Contains(got, tc.want) {
					t.Errorf("panic %q, want %q in it", got, tc.want)
				}
			}()
			spec := whole
			tc.edit(&spec)
			New(spec, func(context.Context, *Session, scaleArgs) error { return nil })
		})
	}
	t.Run("arguments that no call could give", func(t *testing.T) {
		defer func() {
			if got, want := fmt.Sprint(recover()), "argument names: its type must be a text, a boolean or an integer, not array"; !strings.Contains(got, want) {
				t.Errorf("panic %q, want %q in it", got, want)
			}
		}()
		type listArgs struct {
			Namespaced
			Names []string `json:"names"`
		}
		New(whole, func(context.Context, *Session, listArgs) error { return nil })
	})
	if a := New(whole, func(context.Context, *Session, scaleArgs) error { return nil }); a.Name != "scale" {
		t.Errorf("a whole Spec is named %q", a.Name)
	}
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func session(edit ...func(*Options)) *Session {
	o := Options{ID: "mf3q7x2ad5", Time: noon}
	for _, e := range edit {
		e(&o)
	}
	return NewSession(o)
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid-1", ResourceVersion: "100"}
}

func deployment(edit ...func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)}}
	for _, e := range edit {
		e(d)
	}
	return d
}

var webTarget = plan.Target{Resource: "deployments", Namespace: "default", Name: "web", UID: "uid-1"}

// steps runs f on a session whose target is o and gives the Steps that were proposed.
func steps(t *testing.T, o Observed, f func(*Session) error, edit ...func(*Options)) []plan.Step {
	t.Helper()
	s := session(edit...)
	if err := s.Target(o); err != nil {
		t.Fatal(err)
	}
	if err := f(s); err != nil {
		t.Fatal(err)
	}
	var out []plan.Step
	for _, p := range s.Outcome().Proposals {
		if diff := cmp.Diff(p.Step.Fill(p.Object), p.Slots); diff != "" {
			t.Errorf("slots (-of the object +proposed):\n%s", diff)
		}
		out = append(out, p.Step)
	}
	return out
}

func TestPropose(t *testing.T) {
	change := func(field, old, to string) plan.Change { return plan.Change{Field: field, Old: old, New: to} }
	op := func(op, path string, value any) plan.Op { return plan.Op{Op: op, Path: path, Value: plan.JSON(value)} }
	const (
		annotation = "spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]"
		pointer    = "/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt"
		cause      = "/metadata/annotations/kubernetes.io~1change-cause"
	)
	aPod := &corev1.Pod{ObjectMeta: meta("web-1"), Spec: corev1.PodSpec{NodeName: "n1"}}
	owned := aPod.DeepCopy()
	owned.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-5f7", UID: "uid-rs", Controller: ptr.To(true)}}
	podTarget := plan.Target{Resource: "pods", Namespace: "default", Name: "web-1", UID: "uid-1"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid-1"}}
	cordoned := node.DeepCopy()
	cordoned.Spec.Unschedulable = true
	nodeTarget := plan.Target{Resource: "nodes", Name: "n1", UID: "uid-1"}
	for name, tc := range map[string]struct {
		object Observed
		do     func(*Session) error
		want   plan.Step
	}{
		"scale": {
			deployment(), func(s *Session) error { return s.Scale(deployment(), 3) },
			plan.Step{Verb: plan.Scale, Target: webTarget, Changes: []plan.Change{change("spec.replicas", "2", "3")}, Replicas: ptr.To[int32](3)},
		},
		"scale to zero says zero": {
			deployment(), func(s *Session) error { return s.Scale(deployment(), 0) },
			plan.Step{Verb: plan.Scale, Target: webTarget, Changes: []plan.Change{change("spec.replicas", "2", "0")}, Replicas: ptr.To[int32](0)},
		},
		"set an annotation, hold the template, give the reason": {
			deployment(), func(s *Session) error {
				return s.Patch(deployment(), Hold("spec.paused"), Set(annotation, "T"), SetReason())
			},
			plan.Step{
				Verb: plan.Patch, Target: webTarget,
				Changes: []plan.Change{change("spec.paused", "", ""), change(annotation, "", "T")},
				Patch: []plan.Op{
					{Op: "ensure", Path: "/spec/template/metadata/annotations"}, op("add", pointer, "T"),
					{Op: "ensure", Path: "/metadata/annotations"}, {Op: "add", Path: cause, From: plan.FromReason},
				},
			},
		},
		"set an annotation that has a value": {
			deployment(), func(s *Session) error {
				return s.Patch(deployment(func(d *appsv1.Deployment) {
					d.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "S"}
				}), Set(annotation, "T"))
			},
			plan.Step{
				Verb: plan.Patch, Target: webTarget, Changes: []plan.Change{change(annotation, "S", "T")},
				Patch: []plan.Op{{Op: "ensure", Path: "/spec/template/metadata/annotations"}, op("add", pointer, "T")},
			},
		},
		"set two annotations: their map is made once": {
			deployment(), func(s *Session) error {
				return s.Patch(deployment(), SetReason(), Set("metadata.annotations[a]", "b"))
			},
			plan.Step{
				Verb: plan.Patch, Target: webTarget, Changes: []plan.Change{change("metadata.annotations[a]", "", "b")},
				Patch: []plan.Op{
					{Op: "ensure", Path: "/metadata/annotations"}, {Op: "add", Path: cause, From: plan.FromReason}, op("add", "/metadata/annotations/a", "b"),
				},
			},
		},
		"set a boolean that is absent": {
			node, func(s *Session) error { return s.Patch(node, Set("spec.unschedulable", true)) },
			plan.Step{
				Verb: plan.Patch, Target: nodeTarget, Changes: []plan.Change{change("spec.unschedulable", "false", "true")},
				Patch: []plan.Op{op("add", "/spec/unschedulable", true)},
			},
		},
		"set a number that is absent": {
			deployment(), func(s *Session) error { return s.Patch(deployment(), Set("spec.minReadySeconds", 5)) },
			plan.Step{
				Verb: plan.Patch, Target: webTarget, Changes: []plan.Change{change("spec.minReadySeconds", "0", "5")},
				Patch: []plan.Op{op("add", "/spec/minReadySeconds", 5)},
			},
		},
		"remove": {
			cordoned, func(s *Session) error { return s.Patch(cordoned, Remove("spec.unschedulable")) },
			plan.Step{
				Verb: plan.Patch, Target: nodeTarget, Changes: []plan.Change{change("spec.unschedulable", "true", "false")},
				Patch: []plan.Op{{Op: "remove", Path: "/spec/unschedulable"}},
			},
		},
		"delete": {
			owned, func(s *Session) error { return s.Delete(owned, ptr.To[int64](5)) },
			plan.Step{
				Verb: plan.Delete, Target: podTarget, Grace: ptr.To[int64](5),
				Changes: []plan.Change{change("spec.nodeName", "n1", "n1"), change("controller", "uid-rs", "uid-rs")},
			},
		},
		"evict": {
			aPod, func(s *Session) error { return s.Evict(aPod, nil, plan.Wait, 300) },
			plan.Step{
				Verb: plan.Evict, Target: podTarget, OnBudget: plan.Wait, Deadline: 300,
				Changes: []plan.Change{change("spec.nodeName", "n1", "n1"), change("controller", "", "")},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := steps(t, tc.object, tc.do)
			if diff := cmp.Diff([]plan.Step{tc.want}, got); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if again := steps(t, tc.object, tc.do); !again[0].Equal(got[0]) {
				t.Errorf("planned again it is another Step: %s", again[0].Canonical())
			}
			for _, o := range got[0].Patch {
				if o.Op == "test" {
					t.Error("a test in a patch: a stale version would be a 422 without a reason")
				}
			}
		})
	}
}

// TestNote: the reason stands only where no other's words would be lost.
// TestCreate: what is made is named by the plan, bears its mark and rests on what was read.
func TestCreate(t *testing.T) {
	cron := &batchv1.CronJob{ObjectMeta: meta("mail"), Spec: batchv1.CronJobSpec{Suspend: ptr.To(true)}}
	job := func(edit func(*batchv1.Job)) *batchv1.Job {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mail-mf3q7x2ad5", Annotations: map[string]string{"a": "b"}}}
		if edit != nil {
			edit(j)
		}
		return j
	}
	got := steps(t, cron, func(s *Session) error { return s.Create(cron, job(nil), "spec.suspend") })
	want := []plan.Step{{
		Verb: plan.Create, Target: plan.Target{Resource: "cronjobs", Namespace: "default", Name: "mail", UID: "uid-1"},
		Changes: []plan.Change{{Field: "spec.suspend", Old: "true", New: "true"}},
		Object: json.RawMessage(`{"kind":"Job","apiVersion":"batch/v1","metadata":{"name":"mail-mf3q7x2ad5","namespace":"default",` +
			`"annotations":{"a":"b","kubewrite.dev/plan":"mf3q7x2ad5"}},"spec":{"template":{"metadata":{},"spec":{"containers":null}}},"status":{}}`),
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	for name, made := range map[string]Observed{
		"a generated name": job(func(j *batchv1.Job) { j.GenerateName = "mail-" }),
		"not by the plan":  job(func(j *batchv1.Job) { j.Name = "mail" }),
		"elsewhere":        job(func(j *batchv1.Job) { j.Namespace = "kube-system" }),
		"of no known kind": &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x-mf3q7x2ad5"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := session()
			if err := s.Target(cron); err != nil {
				t.Fatal(err)
			}
			if err := s.Create(cron, made); err == nil || s.Outcome().Proposals != nil {
				t.Errorf("error %v, proposals %v", err, s.Outcome().Proposals)
			}
		})
	}
}

func TestNote(t *testing.T) {
	const field = "metadata.annotations[kubernetes.io/change-cause]"
	managed := func(manager, fields string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Annotations = map[string]string{ChangeCause: "before"}
			d.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}}}
		}
	}
	const ours = `{"f:metadata":{"f:annotations":{"f:kubernetes.io/change-cause":{}}}}`
	note := func(old string) []plan.Step {
		return []plan.Step{{
			Verb: plan.Patch, Target: webTarget, Optional: true, Changes: []plan.Change{{Field: field, Old: old, New: old}},
			Patch: []plan.Op{
				{Op: "ensure", Path: "/metadata/annotations"},
				{Op: "add", Path: "/metadata/annotations/kubernetes.io~1change-cause", From: plan.FromReason},
			},
		}}
	}
	for name, tc := range map[string]struct {
		live     func(*appsv1.Deployment)
		off      bool
		want     []plan.Step
		wantWarn bool
	}{
		"absent":                    {want: note("")},
		"ours":                      {live: managed("kube-write-mcp:mf3q7x2ad5", ours), want: note("before")},
		"another manager's":         {live: managed("kubectl", ours), wantWarn: true},
		"of a manager named alike":  {live: managed("kube-write-mcp-2:x", ours), wantWarn: true},
		"ours, but another field":   {live: managed("kube-write-mcp:mf3q7x2ad5", `{"f:spec":{"f:replicas":{}}}`), wantWarn: true},
		"nobody's":                  {live: func(d *appsv1.Deployment) { d.Annotations = map[string]string{ChangeCause: "before"} }, wantWarn: true},
		"empty is a value":          {live: func(d *appsv1.Deployment) { d.Annotations = map[string]string{ChangeCause: ""} }, wantWarn: true},
		"other annotations are not": {live: func(d *appsv1.Deployment) { d.Annotations = map[string]string{"a": "b"} }, want: note("")},
		"turned off":                {off: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := deployment()
			if tc.live != nil {
				tc.live(d)
			}
			var warnings []string
			got := steps(t, d, func(s *Session) error {
				err := s.Note(d)
				warnings = s.Outcome().Warnings
				return err
			}, func(o *Options) { o.NoNotes = tc.off })
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if (len(warnings) == 1) != tc.wantWarn {
				t.Errorf("warnings %q, want one: %t", warnings, tc.wantWarn)
			}
			if strings.Contains(strings.Join(warnings, ""), "before") {
				t.Errorf("a warning quotes the annotation: %q", warnings)
			}
		})
	}
}

func TestTarget(t *testing.T) {
	obj, err := plan.ObjectOf(deployment())
	if err != nil {
		t.Fatal(err)
	}
	version := plan.VersionOf(obj)
	gone := deployment(func(d *appsv1.Deployment) { d.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) })
	for name, tc := range map[string]struct {
		object   Observed
		expected string
		want     refusal.Code // "" passes
		wantText string
	}{
		"any version":   {deployment(), "", "", ""},
		"its version":   {deployment(), version, "", ""},
		"another one":   {deployment(), "v0123456789", refusal.PreconditionFailed, "deployment default/web is at " + version + ", not v0123456789"},
		"terminating":   {gone, "", refusal.Terminating, "deployment default/web is terminating"},
		"both: version": {gone, "v0123456789", refusal.PreconditionFailed, "deployment default/web is at " + version + ", not v0123456789"},
	} {
		t.Run(name, func(t *testing.T) {
			err := session(func(o *Options) { o.Expected = tc.expected }).Target(tc.object)
			if tc.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if !refusal.Is(err, tc.want) || err.Error() != tc.wantText {
				t.Errorf("%v, want %s: %s", err, tc.want, tc.wantText)
			}
		})
	}
	t.Run("a kind without a write verb", func(t *testing.T) {
		if err := session().Target(&corev1.ConfigMap{}); err == nil || err.Error() != "no write verb for *v1.ConfigMap" {
			t.Errorf("error %v", err)
		}
	})
}

// TestSessionKeepsTheFirstError: a planner cannot hide a refusal by not returning it, and
// proposes nothing behind it.
func TestSessionKeepsTheFirstError(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(*Session)
		want string
	}{
		"refused":                   {func(s *Session) { _ = s.Refuse(refusal.Paused, "", "it is paused") }, "it is paused"},
		"two refusals":              {func(s *Session) { _ = s.Refuse(refusal.Paused, "", "first"); _ = s.Refuse(refusal.Stale, "", "second") }, "first"},
		"free text in the sentence": {func(s *Session) { _ = s.Say("scale", "a b") }, `token "a b" may not stand in a phrase`},
		"no target":                 {func(s *Session) { s.object = nil }, "an action must name its Target before it proposes"},
		"arguments of an undo":      {func(s *Session) { s.UndoCall("plan_scale", func() {}, "", "") }, "json: unsupported type: func()"},
		"another kind":              {func(s *Session) { _ = s.Patch(&corev1.ConfigMap{}, Set("data", "x")) }, "no write verb for *v1.ConfigMap"},
		"a terminating object": {func(s *Session) {
			_ = s.Scale(deployment(func(d *appsv1.Deployment) { d.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) }), 1)
		}, "deployment default/web is terminating"},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Spec{Name: "scale", Title: "t", Doc: "d", Needs: needs}, func(_ context.Context, s *Session, _ scaleArgs) error {
				if err := s.Target(deployment()); err != nil {
					return err
				}
				tc.do(s)
				_ = s.Scale(deployment(), 3)
				return nil
			})
			s := session()
			if err := a.Run(t.Context(), s, scaleArgs{}); err == nil || err.Error() != tc.want {
				t.Errorf("error %v, want %s", err, tc.want)
			}
			if got := s.Outcome().Proposals; got != nil {
				t.Errorf("proposed behind it: %v", got)
			}
		})
	}
	t.Run("one write of an object twice", func(t *testing.T) {
		s := session()
		if err := s.Target(deployment()); err != nil {
			t.Fatal(err)
		}
		if err := s.Patch(deployment(), Set("spec.paused", true)); err != nil {
			t.Fatal(err)
		}
		const want = "two proposals to patch deployment default/web: planning passes are matched by that"
		if err := s.Patch(deployment(), Set("spec.minReadySeconds", 1)); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	})
	t.Run("its own error", func(t *testing.T) {
		own := errors.New("own")
		a := New(Spec{Name: "scale", Title: "t", Doc: "d", Needs: needs}, func(context.Context, *Session, scaleArgs) error { return own })
		if err := a.Run(t.Context(), session(), scaleArgs{}); !errors.Is(err, own) {
			t.Errorf("error %v, want %v", err, own)
		}
	})
}

// TestOnPropose: each proposal is told at once, numbered from 1.
func TestOnPropose(t *testing.T) {
	var told []string
	s := session(func(o *Options) {
		o.OnPropose = func(n int, p Proposal) { told = append(told, fmt.Sprint(n, " ", p.Step.Key())) }
	})
	if err := s.Target(deployment()); err != nil {
		t.Fatal(err)
	}
	if err := s.Scale(deployment(), 3); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1 scale deployment default/web"}, told); diff != "" {
		t.Errorf("after the first (-want +got):\n%s", diff)
	}
	if err := s.Note(deployment()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1 scale deployment default/web", "2 patch deployment default/web (note)"}, told); diff != "" {
		t.Errorf("after the second (-want +got):\n%s", diff)
	}
}

func TestOutcome(t *testing.T) {
	s := session()
	if s.ID != "mf3q7x2ad5" || !s.Time.Equal(noon) {
		t.Errorf("id %q at %s", s.ID, s.Time)
	}
	if err := s.Target(deployment()); err != nil {
		t.Fatal(err)
	}
	if err := s.Say("scale", "deployment", "default/web", "to", 3); err != nil {
		t.Fatal(err)
	}
	s.Kubectl("kubectl scale %s", "deployment/web")
	s.Warn("warning %d", 1)
	s.Stays("%s: stays", "a/b")
	s.UndoCall("plan_scale", scaleArgs{Namespaced: Namespaced{Namespace: "default"}, Scalable: Scalable{Deployment: "web"}, Replicas: 2}, "kubectl scale", "note")
	want := Outcome{
		Target: webTarget, Object: s.object, Sentence: "scale deployment default/web to 3", Kubectl: []string{"kubectl scale deployment/web"},
		Undo: plan.Undo{
			Tool: "plan_scale", Arguments: json.RawMessage(`{"namespace":"default","deployment":"web","replicas":2}`), Kubectl: "kubectl scale", Note: "note",
		},
		Warnings: []string{"warning 1"}, Stays: []string{"a/b: stays"},
	}
	if diff := cmp.Diff(want, s.Outcome()); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
}

func TestBetween(t *testing.T) {
	s := drain.Schema()
	if p := s.Properties["timeout_seconds"]; *p.Minimum != 1 || *p.Maximum != 3600 {
		t.Errorf("from %v to %v", *p.Minimum, *p.Maximum)
	}
}
