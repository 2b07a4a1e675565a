package actions

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid-1", ResourceVersion: "100"}
}

func controlledBy(kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: "uid-owner", Controller: ptr.To(true)}}
}

func deployment(edit ...func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)}}
	for _, e := range edit {
		e(d)
	}
	return d
}

func node(edit ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid-n1"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	for _, e := range edit {
		e(n)
	}
	return n
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

// aPod runs on n1 and belongs to a ReplicaSet.
func aPod(name string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	p.OwnerReferences = controlledBy("ReplicaSet", "web-5f7")
	for _, e := range edit {
		e(p)
	}
	return p
}

func bare(p *corev1.Pod)        { p.OwnerReferences = nil }
func ofDaemonSet(p *corev1.Pod) { p.OwnerReferences = controlledBy("DaemonSet", "agent") }
func static(p *corev1.Pod)      { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
func finished(p *corev1.Pod)    { p.Status.Phase = corev1.PodSucceeded }
func leaving(p *corev1.Pod) {
	p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.Unix(1, 0)), []string{"x/y"}
}
func withData(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
}

// shown is what tables compare of a planning pass.
type shown struct {
	Sentence, Kubectl, Undo, Note string
	Steps, Stays, Warnings        []string
}

// run plans once. The client only reads here: dry runs are the engine's.
func run(t *testing.T, a *action.Action, raw string, world []runtime.Object) (action.Outcome, error) {
	t.Helper()
	d, err := a.Decode(a.Schema(), json.RawMessage(raw))
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(world...)
	s := action.NewSession(action.Options{
		ID: "mf3q7x2ad5", Time: noon, Expected: d.Args.Expected(), Read: client, PodFacts: kube.PodFacts,
		Excluded: func(_ context.Context, namespace string) (string, error) {
			if namespace == "kube-system" {
				return "protected", nil
			}
			return "", nil
		},
	})
	err = a.Run(t.Context(), s, d.Args)
	for _, act := range client.Actions() {
		if !slices.Contains([]string{"get", "list"}, act.GetVerb()) {
			t.Errorf("the planner itself does %s %s", act.GetVerb(), act.GetResource().Resource)
		}
		// The fake takes any name, the real client fails on some.
		if g, ok := act.(clienttesting.GetAction); ok && action.SafeName(g.GetName()) != g.GetName() {
			t.Errorf("it reads %s %q", act.GetResource().Resource, g.GetName())
		}
		// The fake gives every pod: that only those of the node are asked for is seen here.
		if l, ok := act.(clienttesting.ListAction); ok {
			want := " app=web" // of what a workload selects
			if act.GetResource().Resource == "pods" && a == Drain {
				want = "spec.nodeName=n1 "
			}
			if got := fmt.Sprint(l.GetListRestrictions().Fields, " ", l.GetListRestrictions().Labels); got != want {
				t.Errorf("it lists %s where %q, want %q", act.GetResource().Resource, got, want)
			}
		}
	}
	return s.Outcome(), err
}

// hashRE is the hash of a whole template, which moves with the API's defaults.
var hashRE = regexp.MustCompile(`sha256:[0-9a-f]{12}`)

var oneLine = regexp.MustCompile(`^[ -~]+$`)

// checkOutcome holds for every pass of every action.
func checkOutcome(t *testing.T, a *action.Action, raw string, out action.Outcome) {
	t.Helper()
	have := rights(t, a)
	for _, p := range out.Proposals {
		k, ok := plan.KindOf(p.Step.Subject().Resource)
		if !ok {
			t.Fatalf("a Step about %s", p.Step.Target.Resource)
		}
		gr := k.GroupResource()
		verb := string(p.Step.Verb)
		switch p.Step.Verb {
		case plan.Scale:
			gr.Resource, verb = gr.Resource+"/scale", "update"
		case plan.Evict:
			gr.Resource, verb = gr.Resource+"/eviction", "create"
		}
		if right := gr.String() + " " + verb; !have[right] {
			t.Errorf("its Step needs the right %q, which its Needs do not name", right)
		}
		if moved := p.Step.Moved(p.Object); moved != nil {
			t.Errorf("the Step does not rest on the object that it was proposed on: %v", moved)
		}
	}
	for _, line := range slices.Concat(out.Kubectl, []string{out.Sentence, out.Undo.Kubectl, out.Undo.Note}, out.Warnings, out.Stays) {
		if line != "" && !oneLine.MatchString(line) {
			t.Errorf("this is not one line that can be printed: %q", line)
		}
	}
	if len(out.Proposals) > 0 && (out.Sentence == "" || len(out.Kubectl) != 1 || out.Undo.Kubectl+out.Undo.Note == "") {
		t.Errorf("it proposes, and has the sentence %q, the kubectl lines %q, the undo %+v", out.Sentence, out.Kubectl, out.Undo)
	}
	if out.Undo.Tool != "" { // a literal call must be one that decodes
		i := slices.IndexFunc(All(), func(a *action.Action) bool { return "plan_"+a.Name == out.Undo.Tool })
		if i < 0 {
			t.Fatalf("undo calls %s", out.Undo.Tool)
		}
		undo := All()[i]
		d, err := undo.Decode(undo.Schema(), out.Undo.Arguments)
		if err != nil {
			t.Fatalf("undo %s: %v", out.Undo.Arguments, err)
		}
		args, err := a.Decode(a.Schema(), json.RawMessage(raw))
		if err != nil {
			t.Fatal(err)
		}
		if d.Args.Scope() != args.Args.Scope() {
			t.Errorf("undo acts on %+v, the action on %+v", d.Args.Scope(), args.Args.Scope())
		}
	}
}

func shownOf(out action.Outcome) shown {
	got := shown{Sentence: out.Sentence, Kubectl: strings.Join(out.Kubectl, "\n"), Note: out.Undo.Note, Stays: out.Stays, Warnings: out.Warnings}
	if out.Undo.Kubectl != "" {
		got.Undo = out.Undo.Tool + " " + string(out.Undo.Arguments) + " " + out.Undo.Kubectl
	}
	for _, p := range out.Proposals {
		var changes []string
		for _, c := range p.Step.Changes {
			changes = append(changes, hashRE.ReplaceAllString(c.String(), "sha256:*"))
		}
		got.Steps = append(got.Steps, p.Step.Key()+": "+strings.Join(changes, "; "))
	}
	return got
}

func TestPlanners(t *testing.T) {
	const web = `{"namespace":"default","deployment":"web"}`
	scale := func(n int) string { return fmt.Sprintf(`{"namespace":"default","deployment":"web","replicas":%d}`, n) }
	for name, tc := range map[string]struct {
		action *action.Action
		raw    string
		world  []runtime.Object
		want   shown
	}{
		"scale": {Scale, scale(3), []runtime.Object{deployment()}, shown{
			Sentence: "scale deployment default/web from 2 to 3",
			Kubectl:  "kubectl -n default scale deployment/web --current-replicas=2 --replicas=3",
			Undo:     `plan_scale {"namespace":"default","deployment":"web","replicas":2} kubectl -n default scale deployment/web --current-replicas=3 --replicas=2`,
			Steps:    []string{"scale deployment default/web: spec.replicas: 2 → 3", "patch deployment default/web (note): metadata.annotations[kubernetes.io/change-cause]: unset"},
		}},
		"scale to zero": {Scale, scale(0), []runtime.Object{deployment()}, shown{
			Sentence: "scale deployment default/web from 2 to 0",
			Kubectl:  "kubectl -n default scale deployment/web --current-replicas=2 --replicas=0",
			Undo:     `plan_scale {"namespace":"default","deployment":"web","replicas":2} kubectl -n default scale deployment/web --current-replicas=0 --replicas=2`,
			Steps:    []string{"scale deployment default/web: spec.replicas: 2 → 0", "patch deployment default/web (note): metadata.annotations[kubernetes.io/change-cause]: unset"},
		}},
		"scale, SC-12: it is so": {Scale, scale(2), []runtime.Object{deployment()}, shown{}},
		"scale a statefulset has no note": {Scale, `{"namespace":"default","statefulset":"db","replicas":3}`, []runtime.Object{
			&appsv1.StatefulSet{ObjectMeta: meta("db"), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2)}},
		}, shown{
			Sentence: "scale statefulset default/db from 2 to 3",
			Kubectl:  "kubectl -n default scale statefulset/db --current-replicas=2 --replicas=3",
			Undo:     `plan_scale {"namespace":"default","statefulset":"db","replicas":2} kubectl -n default scale statefulset/db --current-replicas=3 --replicas=2`,
			Steps:    []string{"scale statefulset default/db: spec.replicas: 2 → 3"},
		}},
		"scale a replicaset of its own": {Scale, `{"namespace":"default","replicaset":"rs","replicas":1}`, []runtime.Object{
			&appsv1.ReplicaSet{ObjectMeta: meta("rs"), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](2)}},
		}, shown{
			Sentence: "scale replicaset default/rs from 2 to 1",
			Kubectl:  "kubectl -n default scale replicaset/rs --current-replicas=2 --replicas=1",
			Undo:     `plan_scale {"namespace":"default","replicaset":"rs","replicas":2} kubectl -n default scale replicaset/rs --current-replicas=1 --replicas=2`,
			Steps:    []string{"scale replicaset default/rs: spec.replicas: 2 → 1"},
		}},
		"scale what is controlled": {Scale, scale(3), []runtime.Object{deployment(func(d *appsv1.Deployment) { d.OwnerReferences = controlledBy("Rollout", "web") })}, shown{
			Sentence: "scale deployment default/web from 2 to 3",
			Kubectl:  "kubectl -n default scale deployment/web --current-replicas=2 --replicas=3",
			Undo:     `plan_scale {"namespace":"default","deployment":"web","replicas":2} kubectl -n default scale deployment/web --current-replicas=3 --replicas=2`,
			Steps:    []string{"scale deployment default/web: spec.replicas: 2 → 3", "patch deployment default/web (note): metadata.annotations[kubernetes.io/change-cause]: unset"},
			Warnings: []string{"controlled by Rollout/web, which may undo the change"},
		}},
		"restart": {RolloutRestart, web, three(deployment(runs("nginx:3"))), shown{
			Sentence: "restart deployment default/web",
			Kubectl:  "kubectl -n default rollout restart deployment/web",
			Undo:     `plan_rollout_undo {"namespace":"default","deployment":"web","to_revision":3} kubectl -n default rollout undo deployment/web --to-revision=3`,
			Note:     undoesTemplate,
			Steps: []string{"patch deployment default/web: spec.template: sha256:*; spec.paused: unset; " +
				"spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]: unset → 2026-11-30T12:00:00Z"},
		}},
		"restart, the template has no revision yet": {RolloutRestart, web, three(deployment(runs("nginx:4"))), shown{
			Sentence: "restart deployment default/web",
			Kubectl:  "kubectl -n default rollout restart deployment/web",
			Undo:     `plan_rollout_undo {"namespace":"default","deployment":"web"} kubectl -n default rollout undo deployment/web`,
			Note:     undoesTemplate,
			Steps: []string{"patch deployment default/web: spec.template: sha256:*; spec.paused: unset; " +
				"spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]: unset → 2026-11-30T12:00:00Z"},
		}},
		"restart, its controller is behind": {RolloutRestart, web, three(deployment(runs("nginx:3"), func(d *appsv1.Deployment) { d.Generation = 2 })), shown{
			Sentence: "restart deployment default/web",
			Kubectl:  "kubectl -n default rollout restart deployment/web",
			Undo:     `plan_rollout_undo {"namespace":"default","deployment":"web"} kubectl -n default rollout undo deployment/web`,
			Note:     undoesTemplate,
			Steps: []string{"patch deployment default/web: spec.template: sha256:*; spec.paused: unset; " +
				"spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]: unset → 2026-11-30T12:00:00Z"},
		}},
		"restart a daemonset": {RolloutRestart, `{"namespace":"default","daemonset":"web"}`, []runtime.Object{
			&appsv1.DaemonSet{ObjectMeta: meta("web"), Spec: appsv1.DaemonSetSpec{Selector: selectsWeb, Template: withImage("nginx:2")}},
			controllerRevision(t, 2, "nginx:2", "uid-1"), controllerRevision(t, 1, "nginx:1", "uid-1"),
		}, shown{
			Sentence: "restart daemonset default/web",
			Kubectl:  "kubectl -n default rollout restart daemonset/web",
			Undo:     `plan_rollout_undo {"namespace":"default","daemonset":"web","to_revision":2} kubectl -n default rollout undo daemonset/web --to-revision=2`,
			Note:     undoesTemplate,
			Steps: []string{"patch daemonset default/web: spec.template: sha256:*; " +
				"spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]: unset → 2026-11-30T12:00:00Z"},
		}},
		"delete a pod": {DeletePod, `{"namespace":"default","pod":"web-1","grace_period_seconds":5}`, []runtime.Object{aPod("web-1")}, shown{
			Sentence: "delete pod default/web-1",
			Kubectl:  "kubectl -n default delete pod/web-1 --grace-period=5",
			Note:     "there is none and none is needed: ReplicaSet/web-5f7 makes a new pod; data in emptyDir volumes is gone",
			Steps:    []string{"delete pod default/web-1: spec.nodeName: n1; controller: uid-owner"},
		}},
		"delete a bare pod": {DeletePod, `{"namespace":"default","pod":"web-1"}`, []runtime.Object{aPod("web-1", bare)}, shown{
			Sentence: "delete pod default/web-1",
			Kubectl:  "kubectl -n default delete pod/web-1",
			Note:     "there is none: no controller makes this pod again",
			Steps:    []string{"delete pod default/web-1: spec.nodeName: n1; controller: unset"},
		}},
		"cordon": {Cordon, `{"node":"n1"}`, []runtime.Object{node()}, shown{
			Sentence: "cordon node n1", Kubectl: "kubectl cordon n1", Undo: `plan_uncordon {"node":"n1"} kubectl uncordon n1`,
			Steps: []string{"patch node n1: spec.unschedulable: false → true"},
		}},
		"cordon, it is so": {Cordon, `{"node":"n1"}`, []runtime.Object{node(cordoned)}, shown{}},
		"uncordon": {Uncordon, `{"node":"n1"}`, []runtime.Object{node(cordoned)}, shown{
			Sentence: "uncordon node n1", Kubectl: "kubectl uncordon n1", Undo: `plan_cordon {"node":"n1"} kubectl cordon n1`,
			Steps: []string{"patch node n1: spec.unschedulable: true → false"}, Warnings: []string{"it moves no pods back"},
		}},
		"uncordon, it is so": {Uncordon, `{"node":"n1"}`, []runtime.Object{node()}, shown{}},
		"drain": {Drain, `{"node":"n1"}`, []runtime.Object{
			node(), aPod("b"), aPod("a"),
		}, shown{
			Sentence: "drain node n1 evicting 2 pods", Kubectl: "kubectl drain n1 --ignore-daemonsets --timeout=300s",
			Undo: `plan_uncordon {"node":"n1"} kubectl uncordon n1`, Note: "evicted pods do not come back to the node by themselves",
			Steps: []string{
				"patch node n1: spec.unschedulable: false → true",
				"evict pod default/a: spec.nodeName: n1; controller: uid-owner", "evict pod default/b: spec.nodeName: n1; controller: uid-owner",
			},
		}},
		"drain: who stays": {Drain, `{"node":"n1"}`, []runtime.Object{
			node(cordoned), &appsv1.DaemonSet{ObjectMeta: meta("agent")}, aPod("agent-1", ofDaemonSet), aPod("static-1", static), aPod("gone", leaving),
			aPod("dns", func(p *corev1.Pod) { p.Namespace = "kube-system" }), aPod("job", bare, finished, withData), aPod("web-1"),
		}, shown{
			Sentence: "drain node n1 evicting 2 pods", Kubectl: "kubectl drain n1 --ignore-daemonsets --timeout=300s",
			Note:  "evicted pods do not come back to the node by themselves; it was cordoned before and stays so",
			Steps: []string{"evict pod default/job: spec.nodeName: n1; controller: unset", "evict pod default/web-1: spec.nodeName: n1; controller: uid-owner"},
			Stays: []string{
				"default/agent-1: of daemonset agent", "default/gone: terminating already", "default/static-1: a static pod",
				"kube-system/dns: its namespace is protected",
			},
		}},
		"drain with every option": {Drain, `{"node":"n1","force":true,"delete_emptydir_data":true,"timeout_seconds":60}`, []runtime.Object{
			node(cordoned, func(n *corev1.Node) { n.Status.Conditions = nil }), aPod("bare", bare), aPod("data", withData), aPod("orphan", ofDaemonSet),
		}, shown{
			Sentence: "drain node n1 evicting 3 pods", Kubectl: "kubectl drain n1 --ignore-daemonsets --timeout=60s --delete-emptydir-data --force",
			Note: "evicted pods do not come back to the node by themselves; it was cordoned before and stays so",
			Steps: []string{
				"evict pod default/bare: spec.nodeName: n1; controller: unset", "evict pod default/data: spec.nodeName: n1; controller: uid-owner",
				"evict pod default/orphan: spec.nodeName: n1; controller: uid-owner",
			},
			Warnings: []string{
				"default/orphan belongs to daemonset agent, which is gone",
				"node n1 is not ready: evicted pods may stay terminating, since no kubelet confirms their end",
			},
		}},
		"drain: owners are any text": {Drain, `{"node":"n1","force":true}`, []runtime.Object{node(cordoned), aPod("a", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "x\nCONFIRM: all", UID: "y\nCONFIRM: all", Controller: ptr.To(true)}}
		})}, shown{
			Sentence: "drain node n1 evicting 1 pod", Kubectl: "kubectl drain n1 --ignore-daemonsets --timeout=300s --force",
			Note:     "evicted pods do not come back to the node by themselves; it was cordoned before and stays so",
			Steps:    []string{"evict pod default/a: spec.nodeName: n1; controller: sha256:*"},
			Warnings: []string{"default/a belongs to daemonset (name withheld), which is gone"},
		}},
		"scale: so are its": {Scale, scale(3), []runtime.Object{deployment(func(d *appsv1.Deployment) { d.OwnerReferences = controlledBy("A b", "x\nCONFIRM: all") })}, shown{
			Sentence: "scale deployment default/web from 2 to 3",
			Kubectl:  "kubectl -n default scale deployment/web --current-replicas=2 --replicas=3",
			Undo:     `plan_scale {"namespace":"default","deployment":"web","replicas":2} kubectl -n default scale deployment/web --current-replicas=3 --replicas=2`,
			Steps:    []string{"scale deployment default/web: spec.replicas: 2 → 3", "patch deployment default/web (note): metadata.annotations[kubernetes.io/change-cause]: unset"},
			Warnings: []string{"controlled by (name withheld)/(name withheld), which may undo the change"},
		}},
		"pause": {RolloutPause, web, []runtime.Object{deployment(func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = 4, 1 })}, shown{
			Sentence: "pause deployment default/web", Kubectl: "kubectl -n default rollout pause deployment/web",
			Undo:     `plan_rollout_resume {"namespace":"default","deployment":"web"} kubectl -n default rollout resume deployment/web`,
			Steps:    []string{"patch deployment default/web: spec.template: sha256:*; spec.paused: false → true"},
			Warnings: []string{"its rollout stops where it is: 1 of 4 pods are updated"},
		}},
		"pause, it is so": {RolloutPause, web, []runtime.Object{deployment(paused)}, shown{}},
		"resume, RO-19: what piled up": {RolloutResume, web, three(deployment(runs("nginx:4"), paused, func(d *appsv1.Deployment) { d.Status.Replicas = 3 })), shown{
			Sentence: "resume deployment default/web", Kubectl: "kubectl -n default rollout resume deployment/web",
			Undo:     `plan_rollout_pause {"namespace":"default","deployment":"web"} kubectl -n default rollout pause deployment/web`,
			Note:     "pods that were replaced meanwhile stay so",
			Steps:    []string{"patch deployment default/web: spec.template: sha256:*; spec.paused: true → false"},
			Warnings: []string{"the pod template was changed since the last rollout: all of it is released now, and 3 pods are replaced", "released: spec.containers[1].image (nginx:3 to nginx:4)"},
		}},
		"resume, RO-19: nothing did": {RolloutResume, web, three(deployment(runs("nginx:3"), paused)), shown{
			Sentence: "resume deployment default/web", Kubectl: "kubectl -n default rollout resume deployment/web",
			Undo:     `plan_rollout_pause {"namespace":"default","deployment":"web"} kubectl -n default rollout pause deployment/web`,
			Note:     "pods that were replaced meanwhile stay so",
			Steps:    []string{"patch deployment default/web: spec.template: sha256:*; spec.paused: true → false"},
			Warnings: []string{"nothing was changed meanwhile: no pod is replaced"},
		}},
		"resume, not observed": {RolloutResume, web, three(deployment(runs("nginx:3"), paused, func(d *appsv1.Deployment) { d.Generation = 2 })), shown{
			Sentence: "resume deployment default/web", Kubectl: "kubectl -n default rollout resume deployment/web",
			Undo:     `plan_rollout_pause {"namespace":"default","deployment":"web"} kubectl -n default rollout pause deployment/web`,
			Note:     "pods that were replaced meanwhile stay so",
			Steps:    []string{"patch deployment default/web: spec.template: sha256:*; spec.paused: true → false"},
			Warnings: []string{"its controller has not seen its last change yet: which pods are updated is not known, and all are counted as replaced"},
		}},
		"resume, paused half-way": {RolloutResume, web, three(deployment(runs("nginx:3"), paused, func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = 4, 1 })), shown{
			Sentence: "resume deployment default/web", Kubectl: "kubectl -n default rollout resume deployment/web",
			Undo:     `plan_rollout_pause {"namespace":"default","deployment":"web"} kubectl -n default rollout pause deployment/web`,
			Note:     "pods that were replaced meanwhile stay so",
			Steps:    []string{"patch deployment default/web: spec.template: sha256:*; spec.paused: true → false"},
			Warnings: []string{"its rollout goes on: 1 of 4 pods are updated"},
		}},
		"resume, it is so": {RolloutResume, web, []runtime.Object{deployment()}, shown{}},
		"set an image": {SetImage, samples["set_image"], []runtime.Object{deployment(runs("nginx:1"))}, shown{
			Sentence: "set image of deployment default/web container app to nginx:2",
			Kubectl:  "kubectl -n default set image deployment/web app=nginx:2",
			Undo:     `plan_set_image {"namespace":"default","deployment":"web","container":"app","image":"nginx:1"} kubectl -n default set image deployment/web app=nginx:1`,
			Note:     undoesTemplate,
			Steps:    []string{"patch deployment default/web: spec.template: sha256:*; spec.paused: unset; spec.template.spec.containers[1].image: nginx:1 → nginx:2"},
		}},
		"set an image, RO-05: paused": {SetImage, samples["set_image"], []runtime.Object{deployment(runs("nginx:1"), paused)}, shown{
			Sentence: "set image of deployment default/web container app to nginx:2",
			Kubectl:  "kubectl -n default set image deployment/web app=nginx:2",
			Undo:     `plan_set_image {"namespace":"default","deployment":"web","container":"app","image":"nginx:1"} kubectl -n default set image deployment/web app=nginx:1`,
			Note:     undoesTemplate,
			Steps:    []string{"patch deployment default/web: spec.template: sha256:*; spec.paused: true; spec.template.spec.containers[1].image: nginx:1 → nginx:2"},
		}},
		"set an image, RO-21: of an init container": {SetImage, `{"namespace":"default","daemonset":"web","container":"migrate","image":"migrate:2"}`, []runtime.Object{
			&appsv1.DaemonSet{ObjectMeta: meta("web"), Spec: appsv1.DaemonSetSpec{Template: withImage("nginx:1")}},
		}, shown{
			Sentence: "set image of daemonset default/web container migrate to migrate:2",
			Kubectl:  "kubectl -n default set image daemonset/web migrate=migrate:2",
			Undo:     `plan_set_image {"namespace":"default","daemonset":"web","container":"migrate","image":"migrate:1"} kubectl -n default set image daemonset/web migrate=migrate:1`,
			Note:     undoesTemplate,
			Steps:    []string{"patch daemonset default/web: spec.template: sha256:*; spec.template.spec.initContainers[0].image: migrate:1 → migrate:2"},
		}},
		"set an image, RO-23: the old one is none": {SetImage, samples["set_image"], []runtime.Object{deployment(runs("nginx:1 \n"))}, shown{
			Sentence: "set image of deployment default/web container app to nginx:2",
			Kubectl:  "kubectl -n default set image deployment/web app=nginx:2",
			Note:     "there is none: the image of now is no image reference; " + undoesTemplate,
			Steps:    []string{"patch deployment default/web: spec.template: sha256:*; spec.paused: unset; spec.template.spec.containers[1].image: sha256:* → nginx:2"},
		}},
		"set an image, RO-22: it is so": {SetImage, samples["set_image"], []runtime.Object{deployment(runs("nginx:2"))}, shown{
			Warnings: []string{"it has this image already, and no pod is replaced; plan_rollout_restart replaces the pods, which pull it again where their policy says so"},
		}},
		"evict a pod": {EvictPod, `{"namespace":"default","pod":"web-1","grace_period_seconds":5}`, []runtime.Object{aPod("web-1")}, shown{
			Sentence: "evict pod default/web-1",
			Kubectl: `echo '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"namespace":"default","name":"web-1"},"deleteOptions":{"gracePeriodSeconds":5}}' | ` +
				"kubectl create --raw /api/v1/namespaces/default/pods/web-1/eviction -f -",
			Note:  "there is none and none is needed: ReplicaSet/web-5f7 makes a new pod; data in emptyDir volumes is gone",
			Steps: []string{"evict pod default/web-1: spec.nodeName: n1; controller: uid-owner"},
		}},
		"drain, it is so": {Drain, `{"node":"n1"}`, []runtime.Object{node(cordoned)}, shown{}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, tc.action, tc.raw, tc.world)
			if err != nil {
				t.Fatal(err)
			}
			checkOutcome(t, tc.action, tc.raw, out)
			got := shownOf(out)
			for _, p := range out.Proposals {
				if wait := p.Step.Verb == plan.Evict && tc.action == Drain; (p.Step.OnBudget == plan.Wait) != wait || (p.Step.Deadline > 0) != wait {
					t.Errorf("%s waits for a budget: %q for %d s", p.Step.Key(), p.Step.OnBudget, p.Step.Deadline)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
			again, err := run(t, tc.action, tc.raw, tc.world)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(out.Proposals, again.Proposals); diff != "" {
				t.Errorf("planned again (-first +again):\n%s", diff)
			}
		})
	}
}

func versionOf(t *testing.T, o any) string {
	t.Helper()
	obj, err := plan.ObjectOf(o)
	if err != nil {
		t.Fatal(err)
	}
	return plan.VersionOf(obj)
}

func TestPlannersRefuse(t *testing.T) {
	gone := func(d *appsv1.Deployment) {
		d.DeletionTimestamp, d.Finalizers = ptr.To(metav1.Unix(1, 0)), []string{"x/y"}
	}
	for name, tc := range map[string]struct {
		action *action.Action
		raw    string
		world  []runtime.Object
		want   refusal.Code
		text   string
	}{
		"scale a replicaset of a deployment": {Scale, `{"namespace":"default","replicaset":"web-5f7","replicas":1}`, []runtime.Object{
			&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-5f7", OwnerReferences: controlledBy("Deployment", "web")}},
		}, refusal.OwnedByController, "replicaset default/web-5f7 is controlled by Deployment/web, which would undo the change at once"},
		"scale what is terminating": {Scale, samples["scale"], []runtime.Object{deployment(gone)}, refusal.Terminating, "deployment default/web is terminating"},
		"restart what is paused": {RolloutRestart, samples["rollout_restart"], []runtime.Object{
			deployment(func(d *appsv1.Deployment) { d.Spec.Paused = true }),
		}, refusal.Paused, "deployment default/web is paused, nothing would roll"},
		"delete a static pod": {DeletePod, samples["delete_pod"], []runtime.Object{aPod("web-1", static)}, refusal.OwnedByController,
			"pod default/web-1 is a static pod, managed by the kubelet of node n1"},
		"evict a static pod": {EvictPod, samples["evict_pod"], []runtime.Object{aPod("web-1", static)}, refusal.OwnedByController,
			"pod default/web-1 is a static pod, managed by the kubelet of node n1"},
		"RO-20 the image of no container": {SetImage, `{"namespace":"default","deployment":"web","container":"web","image":"nginx:2"}`, []runtime.Object{deployment(runs("nginx:1"))},
			refusal.NotFound, "deployment default/web has no container web; it has sidecar, app, migrate (init)"},
		"JB-04 suspend what has finished": {JobSuspend, samples["job_suspend"], []runtime.Object{aJob(ended)}, refusal.PreconditionFailed, "job default/mail has finished"},
		"JB-04 resume what has finished":  {JobResume, samples["job_resume"], []runtime.Object{aJob(ended)}, refusal.PreconditionFailed, "job default/mail has finished"},
		"drain loses data": {Drain, samples["drain"], []runtime.Object{node(), aPod("a", withData), aPod("b", bare), aPod("c", ofDaemonSet)}, refusal.PreconditionFailed,
			"node n1 has pods that a drain would lose: default/a (emptyDir data), default/b (no controller makes it again), default/c (daemonset agent not found)"},
		"drain with one option of two": {Drain, `{"node":"n1","force":true}`, []runtime.Object{node(), aPod("a", withData), aPod("b", bare)}, refusal.PreconditionFailed,
			"node n1 has pods that a drain would lose: default/a (emptyDir data)"},
		"another version": {Scale, `{"namespace":"default","deployment":"web","replicas":3,"expected_version":"v0123456789"}`, []runtime.Object{deployment()},
			refusal.PreconditionFailed, "deployment default/web is at " + versionOf(t, deployment()) + ", not v0123456789"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, tc.action, tc.raw, tc.world)
			if !refusal.Is(err, tc.want) || err.Error() != tc.text {
				t.Errorf("%v, want %s: %s", err, tc.want, tc.text)
			}
			if out.Proposals != nil {
				t.Errorf("it proposes %v", out.Proposals)
			}
		})
	}
}
