// Package integration tests the program against a real API server, without controllers:
// one effect per phrase, nothing written by a plan or a refusal, and everything on
// record. The truth about effects is a watch of the test's own, the proxy between the
// server and the API server, and the API server's own audit log.
package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

var cp *lab.Lab

func TestMain(m *testing.M) {
	lab.Main(m, lab.Options{}, func(l *lab.Lab) {
		cp = l
		// The program hands client-go's log to its own, for the whole process, when it first
		// serves. That must not happen while a client of a test is at work.
		app.Main([]string{"serve", "--ttl", "0s"}, nil, io.Discard, io.Discard)
	})
}

func program(t *testing.T) string { return harness.Program(t, cp) }

// What this package shares with the other tests of the program.
type execution = harness.Execution

var wide, of = harness.Wide, harness.Of

func start(t *testing.T, args ...string) *harness.Server {
	t.Helper()
	return harness.Start(t, cp, harness.Options{Args: args})
}

// planned is the structured answer of a plan tool.
type planned struct {
	Status   string     `json:"status"`
	Plan     string     `json:"plan"`
	Version  string     `json:"version"`
	Confirm  string     `json:"confirm"`
	Blast    plan.Blast `json:"blast"`
	Warnings []string   `json:"warnings"`
	Stays    []string   `json:"stays"`
}

// workbench is a namespace with something of everything that an action can be about, all
// of it ready, and its controllers played.
type workbench struct{ ns, node, drained string }

func newWorkbench(t *testing.T) workbench {
	t.Helper()
	ns := cp.Namespace(t)
	b := workbench{ns, ns + "-node", ns + "-drained"}
	harness.Create(t, cp, ns,
		harness.Deployment("web").Replicas(2).Ready(2),
		harness.StatefulSet("db").Replicas(2).Ready(2),
		harness.ReplicaSet("rs").Replicas(2).Ready(2),
		harness.DaemonSet("agent").Ready(2),
		harness.Pod("loner"),
		harness.Node(b.node).Ready(), harness.Node(b.drained).Ready(),
		harness.Deployment("placed").Replicas(2).Pods(func(p *corev1.PodTemplateSpec) { p.Spec.NodeName = b.drained }).Ready(2),
		harness.Budget("placed").MaxUnavailable(2).Allows(2, 2),
	)
	t.Cleanup(b.removeNodes)
	return b
}

// newTarget is a workbench with nothing but what one action is about.
func newTarget(t *testing.T, action string) workbench {
	t.Helper()
	ns := cp.Namespace(t)
	b := workbench{ns, ns + "-node", ns + "-drained"}
	switch action {
	case "cordon":
		// Not the last schedulable node.
		harness.Create(t, cp, ns, harness.Node(b.node).Ready(), harness.Node(b.drained).Ready())
		t.Cleanup(b.removeNodes)
	case "delete_pod":
		harness.Create(t, cp, ns, harness.Pod("loner"))
	default:
		harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	}
	return b
}

func (b workbench) removeNodes() {
	for _, n := range []string{b.node, b.drained} {
		_ = cp.Client.CoreV1().Nodes().Delete(context.Background(), n, metav1.DeleteOptions{})
	}
}

// calls are one call of every action that changes something on the workbench.
func (b workbench) calls() map[string]harness.Args {
	return map[string]harness.Args{
		"scale":           of(b.ns, "deployment", "web").With("replicas", 3),
		"rollout_restart": of(b.ns, "deployment", "web"),
		"rollout_pause":   of(b.ns, "deployment", "web"),
		"set_image":       of(b.ns, "deployment", "web").With("container", "main").With("image", "main:9"),
		"delete_pod":      of(b.ns, "pod", "loner"),
		"cordon":          {"node": b.node},
		"drain":           {"node": b.drained, "timeout_seconds": 20},
	}
}

// isEffect tells the request that is the effect of an action from its note, and from the
// cordon of a drain.
func isEffect(action string) func(harness.Request) bool {
	return func(r harness.Request) bool {
		switch action {
		case "scale":
			return r.Method == http.MethodPut
		case "delete_pod":
			return r.Method == http.MethodDelete
		case "drain":
			return strings.HasSuffix(r.Path, "/eviction")
		}
		return r.Method == http.MethodPatch
	}
}

func count(all []harness.Request, match func(harness.Request) bool) (n int) {
	for _, r := range all {
		if match(r) {
			n++
		}
	}
	return n
}

// effects watches a target until the test ends. The function gives the values that its
// interesting fields have had, in order, each change once, as of now.
func effects(t *testing.T, ns, action string, args harness.Args) func() []string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	name, _ := args["deployment"].(string)
	kind := "deployments"
	for _, k := range []string{"pod", "node"} {
		if n, ok := args[k].(string); ok {
			name, kind = n, k+"s"
		}
	}
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	var w watch.Interface
	var err error
	switch kind {
	case "pods":
		w, err = cp.Client.CoreV1().Pods(ns).Watch(ctx, opts)
	case "nodes":
		w, err = cp.Client.CoreV1().Nodes().Watch(ctx, opts)
	default:
		w, err = cp.Client.AppsV1().Deployments(ns).Watch(ctx, opts)
	}
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var seen []string
	last := ""
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			now := string(e.Type)
			switch o := e.Object.(type) {
			case *appsv1.Deployment:
				now = fmt.Sprintf("replicas %d", *o.Spec.Replicas)
				switch action {
				case "rollout_restart":
					now = "restarted " + o.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"]
				case "rollout_pause":
					now = fmt.Sprintf("paused %t", o.Spec.Paused)
				case "set_image":
					now = "image " + image(&o.Spec.Template)
				}
			case *corev1.Node:
				now = fmt.Sprintf("unschedulable %t", o.Spec.Unschedulable)
			case *corev1.Pod:
				now = "there"
				if e.Type == watch.Deleted || o.DeletionTimestamp != nil {
					now = "deleted"
				}
			}
			mu.Lock()
			if len(seen) == 0 || seen[len(seen)-1] != now {
				seen = append(seen, now)
			}
			if m, err := metaOf(e.Object); err == nil {
				last = m
			}
			mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() []string {
		t.Helper()
		// A mark of our own: once it is seen, so is everything before it. What is gone takes
		// none, and its end is what is waited for.
		mark := mark(t, ns, kind, name)
		lab.Eventually(t, "the watch to reach the mark", func() (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return mark != "" && last == mark || slices.Contains(seen, "deleted"), nil
		})
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

const markLabel = "example.com/mark"

func metaOf(o any) (string, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return "", fmt.Errorf("%T", o)
	}
	return m.GetLabels()[markLabel], nil
}

var marks struct {
	sync.Mutex
	n int
}

// mark labels a target; "" is one that is gone.
func mark(t *testing.T, ns, kind, name string) string {
	t.Helper()
	marks.Lock()
	marks.n++
	value := fmt.Sprint("m", marks.n)
	marks.Unlock()
	body := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, markLabel, value)
	var err error
	switch kind {
	case "pods":
		_, err = cp.Client.CoreV1().Pods(ns).Patch(t.Context(), name, types.MergePatchType, body, metav1.PatchOptions{})
	case "nodes":
		_, err = cp.Client.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, body, metav1.PatchOptions{})
	default:
		_, err = cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), name, types.MergePatchType, body, metav1.PatchOptions{})
	}
	if metav1.Status(statusOf(err)).Reason == metav1.StatusReasonNotFound {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func statusOf(err error) metav1.Status {
	if s, ok := err.(interface{ Status() metav1.Status }); ok {
		return s.Status()
	}
	return metav1.Status{}
}

// account is the server's name in the API server's audit log.
const account = "system:serviceaccount:kube-write-mcp:server"

// realWrites are the requests of the server's account in the API server's own audit log
// that could change something, about a namespace or about nodes of its name.
func realWrites(t *testing.T, ns string) (out []string) {
	t.Helper()
	events, err := cp.AuditEvents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		mine := e.ObjectRef.Namespace == ns || strings.HasPrefix(e.ObjectRef.Name, ns)
		if e.User.Username != account || !mine || slices.Contains([]string{"get", "list", "watch"}, e.Verb) {
			continue
		}
		dry := strings.Contains(e.RequestURI, "dryRun=All")
		if e.Verb == "delete" || e.ObjectRef.Subresource == "eviction" {
			dry = strings.Contains(string(e.RequestObject), `"dryRun":["All"]`)
		}
		if !dry {
			out = append(out, fmt.Sprintf("%s %s %d", e.Verb, e.RequestURI, e.ResponseStatus.Code))
		}
	}
	return out
}

// outcomes leaves of a journal's events those of which each call has exactly one.
func outcomes(events []string) (out []string) {
	for _, e := range events {
		if !slices.Contains([]string{"execute_intent", "step", "verify", "recovered"}, e) {
			out = append(out, e)
		}
	}
	return out
}

// soFar are the events of a server that may not have made its journal yet.
func soFar(t *testing.T, s *harness.Server) []string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(s.State, "audit.jsonl")); err != nil {
		return nil
	}
	return harness.Events(t, s.State)
}

// together calls a tool so many times at once, over all servers in turn.
func together(t *testing.T, n int, tool string, args harness.Args, servers ...*harness.Server) []stdio.Tool {
	t.Helper()
	out := make([]stdio.Tool, n)
	gate := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-gate
			got, err := servers[i%len(servers)].Call(tool, args)
			if err != nil {
				t.Error(err)
			}
			out[i] = got
		})
	}
	close(gate)
	wg.Wait()
	return out
}

// sameResult wants every answer to be the one result, or in progress.
func sameResult(t *testing.T, answers []stdio.Tool, want plan.Outcome) {
	t.Helper()
	first, run := "", 0
	for _, a := range answers {
		got := harness.Into[execution](t, a)
		if got.Outcome == plan.InProgress {
			continue
		}
		if got.Outcome != want {
			t.Errorf("outcome %q, want %s or %s: %s", got.Outcome, want, plan.InProgress, a.Text)
			continue
		}
		if first == "" {
			first = string(got.Result)
		}
		if string(got.Result) != first {
			t.Errorf("result %s, want %s", got.Result, first)
		}
		if !got.Replayed {
			run++
		}
	}
	if first == "" {
		t.Error("no call gave the result")
	}
	if run > 1 {
		t.Errorf("%d calls say that they ran it", run)
	}
}
