package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// patchAs patches an object of the test as an admin, in one of its subresources if any.
func patchAs(t *testing.T, resource, ns, name, body string, subresource ...string) {
	t.Helper()
	root := "/api/v1"
	if resource != "pods" && resource != "nodes" {
		root = "/apis/apps/v1"
	}
	if ns != "" {
		root += "/namespaces/" + ns
	}
	path := strings.Join(append([]string{root, resource, name}, subresource...), "/")
	if err := cp.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(path).Body([]byte(body)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}

// drift is what somebody else does between plan and execution.
type drift struct {
	name     string
	move     func(t *testing.T, ns string)
	wantCode string   // "" is EXECUTED
	wantText []string // in the refusal
}

// checkDrift plans, lets the world move, and executes.
func checkDrift(t *testing.T, action string, setup func(t *testing.T, ns string) harness.Args, d drift) {
	t.Helper()
	ns := cp.Namespace(t)
	call := setup(t, ns)
	s := start(t, wide...)
	args := s.Plan(action, call)
	d.move(t, ns)
	s.Proxy.Reset()
	got := s.Must(action, args)
	code := harness.Code(got)
	if code != d.wantCode {
		t.Fatalf("code %q, want %q: %s", code, d.wantCode, got.Text)
	}
	if d.wantCode == "" {
		if o := harness.Into[execution](t, got).Outcome; o != plan.Executed {
			t.Errorf("outcome %s: %s", o, got.Text)
		}
		return
	}
	for _, want := range d.wantText {
		if !strings.Contains(got.Text, want) {
			t.Errorf("the refusal lacks %q: %s", want, got.Text)
		}
	}
	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Errorf("it wrote %+v", w)
	}
	if w := realWrites(t, ns); len(w) != 0 {
		t.Errorf("the API server's audit log has writes: %q", w)
	}
	if again := s.Must(action, args); code == "stale" && harness.Code(again) != "stale" {
		t.Errorf("a stale plan came to life again: %s", again.Text)
	}
}

// TestDriftOfAWorkload is the drift table for what writes to a Deployment.
func TestDriftOfAWorkload(t *testing.T) {
	const name = "web"
	set := func(body string) func(*testing.T, string) {
		return func(t *testing.T, ns string) { patchAs(t, "deployments", ns, name, body) }
	}
	recreate := func(t *testing.T, ns string) {
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
		if err := cp.Client.AppsV1().Deployments(ns).Delete(t.Context(), name, now); err != nil {
			t.Fatal(err)
		}
		harness.Create(t, cp, ns, harness.Deployment(name).Replicas(2))
		patchAs(t, "deployments", ns, name, `{"status":{"replicas":2,"readyReplicas":2,"availableReplicas":2}}`, "status")
	}
	terminate := func(t *testing.T, ns string) {
		patchAs(t, "deployments", ns, name, `{"metadata":{"finalizers":["example.com/hold"]}}`)
		if err := cp.Client.AppsV1().Deployments(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	terminateNamespace := func(t *testing.T, ns string) {
		if err := cp.Client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	template := `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"other"}]}}}}`
	thereAndBack := func(there, back string) func(*testing.T, string) {
		return func(t *testing.T, ns string) { set(there)(t, ns); set(back)(t, ns) }
	}
	both := []drift{
		{"a label", set(`{"metadata":{"labels":{"team":"x"}}}`), "", nil},
		{"an annotation", set(`{"metadata":{"annotations":{"example.com/note":"x"}}}`), "", nil},
		{"the status", func(t *testing.T, ns string) {
			patchAs(t, "deployments", ns, name, `{"status":{"conditions":[{"type":"Progressing","status":"True","reason":"x","message":"y"}]}}`, "status")
		}, "", nil},
		{"another object of the name", recreate, "stale", []string{"web is another object now"}},
		{"terminating", terminate, "terminating", []string{"web is terminating"}},
		{"a terminating namespace", terminateNamespace, "terminating", []string{"is terminating"}},
		{"gone", func(t *testing.T, ns string) {
			if err := cp.Client.AppsV1().Deployments(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, "not_found", []string{"not found"}},
	}
	for action, tc := range map[string]struct {
		drifts []drift
		args   func(ns string) harness.Args
	}{
		"scale": {slices.Concat(both, []drift{
			{"other replicas", set(`{"spec":{"replicas":4}}`), "stale", []string{"spec.replicas", "planned 2", "now 4"}},
			{"other replicas, and back", thereAndBack(`{"spec":{"replicas":4}}`, `{"spec":{"replicas":2}}`), "", nil},
			{"another template", set(template), "", nil},
			{"a pause", set(`{"spec":{"paused":true}}`), "", nil},
			{"it is so already", set(`{"spec":{"replicas":3}}`), "stale", []string{"nothing is left to do"}},
		}), func(ns string) harness.Args { return of(ns, "deployment", name).With("replicas", 3) }},
		"rollout_restart": {slices.Concat(both, []drift{
			{"another template", set(template), "stale", []string{"spec.template"}},
			{"another template, and back", thereAndBack(template, `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"main"}]}}}}`), "", nil},
			{"a restart by somebody else", set(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"2026-01-01T00:00:00Z"}}}}}`), "stale", []string{"restartedAt"}},
			{"a pause", set(`{"spec":{"paused":true}}`), "paused", []string{"is paused"}},
		}), func(ns string) harness.Args { return of(ns, "deployment", name) }},
	} {
		for _, d := range tc.drifts {
			t.Run(action+"/"+d.name, func(t *testing.T) {
				checkDrift(t, action, func(t *testing.T, ns string) harness.Args {
					harness.Create(t, cp, ns, harness.Deployment(name).Replicas(2).Ready(2))
					if d.wantCode == "" {
						harness.Converge(t, cp, ns)
					}
					return tc.args(ns)
				}, d)
			})
		}
	}
}

// TestRestartAgainstScale: what a restart does not rest on may change, unless that puts
// more at risk.
func TestRestartAgainstScale(t *testing.T) {
	checkDrift(t, "rollout_restart", func(t *testing.T, ns string) harness.Args {
		harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
		harness.Converge(t, cp, ns)
		return of(ns, "deployment", "web")
	}, drift{"", func(t *testing.T, ns string) { setReplicas(t, ns, "web", 3) }, "", nil})
}

// TestDriftOfOtherKinds: StatefulSets and ReplicaSets drift by the same rule.
func TestDriftOfOtherKinds(t *testing.T) {
	for _, kind := range []string{"statefulset", "replicaset"} {
		for _, d := range []drift{
			{"other replicas", func(t *testing.T, ns string) { patchAs(t, kind+"s", ns, "db", `{"spec":{"replicas":5}}`) }, "stale", []string{"spec.replicas", "now 5"}},
			{"a label", func(t *testing.T, ns string) { patchAs(t, kind+"s", ns, "db", `{"metadata":{"labels":{"a":"b"}}}`) }, "", nil},
		} {
			t.Run(kind+"/"+d.name, func(t *testing.T) {
				ns := cp.Namespace(t)
				harness.Create(t, cp, ns, map[string]harness.Object{
					"statefulset": harness.StatefulSet("db").Replicas(2).Ready(2),
					"replicaset":  harness.ReplicaSet("db").Replicas(2).Ready(2),
				}[kind])
				harness.Converge(t, cp, ns)
				s := start(t, wide...)
				args := s.Plan("scale", of(ns, kind, "db").With("replicas", 3))
				d.move(t, ns)
				got := s.Must("scale", args)
				if code := harness.Code(got); code != d.wantCode {
					t.Fatalf("code %q, want %q: %s", code, d.wantCode, got.Text)
				}
				for _, want := range d.wantText {
					if !strings.Contains(got.Text, want) {
						t.Errorf("the refusal lacks %q: %s", want, got.Text)
					}
				}
				if n := len(s.Proxy.Writes()); (n == 0) != (d.wantCode != "") {
					t.Errorf("%d writes after %q", n, d.wantCode)
				}
			})
		}
	}
}

// TestDriftOfAPod is the table for delete_pod.
func TestDriftOfAPod(t *testing.T) {
	remove := func(t *testing.T, ns string) {
		if err := cp.Client.CoreV1().Pods(ns).Delete(t.Context(), "loner", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []drift{
		{"a label", func(t *testing.T, ns string) { patchAs(t, "pods", ns, "loner", `{"metadata":{"labels":{"a":"b"}}}`) }, "", nil},
		{"an annotation", func(t *testing.T, ns string) {
			patchAs(t, "pods", ns, "loner", `{"metadata":{"annotations":{"a":"b"}}}`)
		}, "", nil},
		{"the status", func(t *testing.T, ns string) {
			patchAs(t, "pods", ns, "loner", `{"status":{"message":"x"}}`, "status")
		}, "", nil},
		{"another pod of the name", func(t *testing.T, ns string) { remove(t, ns); harness.Create(t, cp, ns, harness.Pod("loner")) }, "stale", []string{"loner is another object now"}},
		{"another owner", func(t *testing.T, ns string) {
			patchAs(t, "pods", ns, "loner", `{"metadata":{"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"j","uid":"0b6a5f64-0000-4000-8000-000000000000","controller":true}]}}`)
		}, "stale", []string{"controller"}},
		{"terminating", func(t *testing.T, ns string) {
			patchAs(t, "pods", ns, "loner", `{"metadata":{"finalizers":["example.com/hold"]}}`)
			remove(t, ns)
		}, "terminating", []string{"loner is terminating"}},
		{"gone", remove, "not_found", []string{"not found"}},
	} {
		t.Run(d.name, func(t *testing.T) {
			checkDrift(t, "delete_pod", func(t *testing.T, ns string) harness.Args {
				harness.Create(t, cp, ns, harness.Pod("loner"))
				return of(ns, "pod", "loner")
			}, d)
		})
	}
}

// TestDriftOfANode is the table for cordon.
func TestDriftOfANode(t *testing.T) {
	set := func(body string) func(*testing.T, string) {
		return func(t *testing.T, ns string) { patchAs(t, "nodes", "", ns+"-node", body) }
	}
	for _, d := range []drift{
		{"a label", set(`{"metadata":{"labels":{"a":"b"}}}`), "", nil},
		{"an annotation", set(`{"metadata":{"annotations":{"a":"b"}}}`), "", nil},
		{"the status", func(t *testing.T, ns string) {
			patchAs(t, "nodes", "", ns+"-node", `{"status":{"nodeInfo":{"kernelVersion":"x"}}}`, "status")
		}, "", nil},
		{"cordoned and back", func(t *testing.T, ns string) {
			set(`{"spec":{"unschedulable":true}}`)(t, ns)
			set(`{"spec":{"unschedulable":null}}`)(t, ns)
		}, "", nil},
		{"it is so already", set(`{"spec":{"unschedulable":true}}`), "stale", []string{"nothing is left to do"}},
		{"not allowed any more", set(`{"metadata":{"labels":{"pool":"other"}}}`), "node_not_allowed", []string{"pool=lab"}},
		{"another node of the name", func(t *testing.T, ns string) {
			if err := cp.Client.CoreV1().Nodes().Delete(t.Context(), ns+"-node", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			harness.Create(t, cp, ns, harness.Node(ns+"-node").Ready())
		}, "stale", []string{"is another object now"}},
		{"terminating", func(t *testing.T, ns string) {
			set(`{"metadata":{"finalizers":["example.com/hold"]}}`)(t, ns)
			if err := cp.Client.CoreV1().Nodes().Delete(t.Context(), ns+"-node", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_, _ = cp.Client.CoreV1().Nodes().Patch(context.Background(), ns+"-node", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			})
		}, "terminating", []string{"is terminating"}},
	} {
		t.Run(d.name, func(t *testing.T) {
			checkDrift(t, "cordon", func(t *testing.T, ns string) harness.Args {
				harness.Create(t, cp, ns, harness.Node(ns+"-node").Ready(), harness.Node(ns+"-drained").Ready())
				t.Cleanup(workbench{ns, ns + "-node", ns + "-drained"}.removeNodes)
				return harness.Args{"node": ns + "-node"}
			}, d)
		})
	}
}

// TestDriftOfADrain: pods that left are skipped, pods that came are left over, and one
// that is another by now is never evicted.
func TestDriftOfADrain(t *testing.T) {
	ns := cp.Namespace(t)
	node := ns + "-node"
	pod := func(name string) *harness.PodBuilder { return harness.Pod(name).On(node) }
	setup := func(t *testing.T) (*harness.Server, harness.Args) {
		harness.Create(t, cp, ns, harness.Node(node).Ready(), harness.Node(ns+"-drained").Ready(), pod("one"), pod("two"))
		t.Cleanup(workbench{ns, node, ns + "-drained"}.removeNodes)
		t.Cleanup(func() {
			_ = cp.Client.CoreV1().Pods(ns).DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{})
		})
		s := start(t, wide...)
		return s, s.Plan("drain", harness.Args{"node": node, "force": true, "timeout_seconds": 5})
	}
	remove := func(t *testing.T, name string) {
		if err := cp.Client.CoreV1().Pods(ns).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name         string
		move         func(t *testing.T)
		wantCode     string
		wantOutcome  plan.Outcome
		wantSkipped  string
		wantLeftOver string
		wantEvicted  []string
	}{
		{"a pod left", func(t *testing.T) { remove(t, "one") }, "", plan.Executed, "pod " + ns + "/one", "", []string{"two"}},
		{"a pod is another now", func(t *testing.T) { remove(t, "one"); harness.Create(t, cp, ns, pod("one")) }, "stale", "", "", "", nil},
		{"a pod came that does not come back", func(t *testing.T) { harness.Create(t, cp, ns, pod("three")) }, "stale", "", "", "", nil},
		{
			"a controller's pod came", func(t *testing.T) {
				harness.Create(t, cp, ns, harness.ReplicaSet("late").Replicas(1).Pods(func(p *corev1.PodTemplateSpec) { p.Spec.NodeName = node }).Ready(1))
			}, "", plan.Failed, "", "pod " + ns + "/late", []string{"one", "two"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, args := setup(t)
			tc.move(t)
			got := s.Must("drain", args)
			if code := harness.Code(got); code != tc.wantCode {
				t.Fatalf("code %q, want %q: %s", code, tc.wantCode, got.Text)
			}
			var evicted []string
			for _, w := range s.Proxy.Writes() {
				if strings.HasSuffix(w.Path, "/eviction") {
					evicted = append(evicted, strings.Split(w.Path, "/")[6])
				}
			}
			if fmt.Sprint(evicted) != fmt.Sprint(tc.wantEvicted) {
				t.Errorf("evicted %q, want %q", evicted, tc.wantEvicted)
			}
			if tc.wantCode != "" {
				return
			}
			x := harness.Into[struct {
				Outcome plan.Outcome `json:"outcome"`
				Result  plan.Result  `json:"result"`
			}](t, got)
			if x.Outcome != tc.wantOutcome || !strings.Contains(strings.Join(x.Result.Skipped, " "), tc.wantSkipped) {
				t.Errorf("outcome %s, skipped %q, want %q: %s", x.Outcome, x.Result.Skipped, tc.wantSkipped, got.Text)
			}
			if left := strings.Join(x.Result.LeftOver, " "); !strings.Contains(left, tc.wantLeftOver) || (left == "") != (tc.wantLeftOver == "") {
				t.Errorf("left over %q, want %q", x.Result.LeftOver, tc.wantLeftOver)
			}
		})
	}
}

// TestCase_CL_11 lets the world move while the request is on its way, after the
// last look: its preconditions make it a definite no, and what somebody else did stays.
func TestCase_CL_11(t *testing.T) {
	for _, tc := range []struct {
		action string
		move   func(t *testing.T, b workbench)
		want   func(t *testing.T, b workbench) string // what must still be so; "" is fine
	}{
		{"scale", func(t *testing.T, b workbench) { setReplicas(t, b.ns, "web", 5) }, func(t *testing.T, b workbench) string {
			d, err := cp.Client.AppsV1().Deployments(b.ns).Get(t.Context(), "web", metav1.GetOptions{})
			return differsFrom(int32(5), *d.Spec.Replicas, err)
		}},
		{"rollout_restart", func(t *testing.T, b workbench) {
			patchAs(t, "deployments", b.ns, "web", `{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}`)
		}, func(t *testing.T, b workbench) string {
			d, err := cp.Client.AppsV1().Deployments(b.ns).Get(t.Context(), "web", metav1.GetOptions{})
			return differsFrom("", d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"], err)
		}},
		{"delete_pod", func(t *testing.T, b workbench) {
			if err := cp.Client.CoreV1().Pods(b.ns).Delete(t.Context(), "loner", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			harness.Create(t, cp, b.ns, harness.Pod("loner"))
		}, func(t *testing.T, b workbench) string {
			p, err := cp.Client.CoreV1().Pods(b.ns).Get(t.Context(), "loner", metav1.GetOptions{})
			return differsFrom("loner", p.Name, err)
		}},
		{"cordon", func(t *testing.T, b workbench) {
			if err := cp.Client.CoreV1().Nodes().Delete(t.Context(), b.node, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			harness.Create(t, cp, b.ns, harness.Node(b.node).Ready())
		}, func(t *testing.T, b workbench) string {
			n, err := cp.Client.CoreV1().Nodes().Get(t.Context(), b.node, metav1.GetOptions{})
			return differsFrom(false, n.Spec.Unschedulable, err)
		}},
	} {
		t.Run(tc.action, func(t *testing.T) {
			b := newTarget(t, tc.action)
			s := start(t, wide...)
			args := s.Plan(tc.action, b.calls()[tc.action])
			arrived, release := hold(s, tc.action)
			_, answer, err := s.Send("tools/call", map[string]any{"name": tc.action, "arguments": args})
			if err != nil {
				t.Fatal(err)
			}
			<-arrived
			tc.move(t, b)
			release()
			got, err := stdio.Parse(<-answer)
			if err != nil {
				t.Fatal(err)
			}
			if o := harness.Into[execution](t, got).Outcome; o != plan.Failed {
				t.Errorf("outcome %q, want FAILED: %s", o, got.Text)
			}
			if wrong := tc.want(t, b); wrong != "" {
				t.Error(wrong)
			}
			if w := s.Proxy.Writes(); len(w) != 1 {
				t.Errorf("%d writes, want the one that was refused: %+v", len(w), w)
			}
		})
	}
}

func differsFrom[T comparable](want, got T, err error) string {
	if err != nil || got != want {
		return fmt.Sprintf("it is %v now, want %v (%v)", got, want, err)
	}
	return ""
}
