package integration

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// once checks that a target had exactly one effect, as the watch and the wire have it. A
// definite 409 is no effect: the same write may then leave again.
func once(t *testing.T, action string, seen []string, wire []harness.Request) {
	t.Helper()
	if len(seen) != 2 {
		t.Errorf("the watch saw %q, want one change", seen)
	}
	n := count(wire, func(r harness.Request) bool { return isEffect(action)(r) && r.Status != http.StatusConflict })
	if n != 1 {
		t.Errorf("%d writes left the server, want 1: %+v", n, wire)
	}
}

// TestHundredCalls sends one phrase a hundred times at once.
func TestHundredCalls(t *testing.T) {
	for _, action := range []string{"scale", "rollout_restart", "rollout_pause", "set_image", "delete_pod", "cordon"} {
		t.Run(action, func(t *testing.T) {
			b := newTarget(t, action)
			harness.Converge(t, cp, b.ns)
			s := start(t, wide...)
			args := b.calls()[action]
			seen := effects(t, b.ns, action, args)
			answers := together(t, 100, action, s.Plan(action, args), s)
			sameResult(t, answers, plan.Executed)
			once(t, action, seen(), s.Proxy.Writes())
			verb := map[string]string{"scale": "update ", "delete_pod": "delete "}[action] // else patch
			applied := slices.DeleteFunc(realWrites(t, b.ns), func(w string) bool {
				return !strings.HasPrefix(w, cmp.Or(verb, "patch ")) || !strings.HasSuffix(w, " 200")
			})
			if len(applied) != 1 {
				t.Errorf("the API server's audit log has %d effects, want 1: %q", len(applied), applied)
			}
			var executed, others int
			for _, e := range outcomes(harness.Events(t, s.State)) {
				switch e {
				case "plan":
				case "execute":
					executed++
				case "replayed", "in_progress":
					others++
				default:
					t.Errorf("a call ended as %s", e)
				}
			}
			if diff := gocmp.Diff([]int{1, 99}, []int{executed, others}); diff != "" {
				t.Errorf("journal: executed, replayed or in progress (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCase_PX_06 repeats a call when its plan has expired.
func TestCase_PX_06(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, ttl  string
		execute    bool
		wantCode   string
		wantWrites int
		wantEvents []string
	}{
		{"never executed", "1s", false, "expired", 0, []string{"plan", "expired", "expired"}},
		{"executed", "20s", true, "", 1, []string{"plan", "execute", "replayed", "replayed"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns := cp.Namespace(t)
			harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
			harness.Converge(t, cp, ns)
			s := start(t, "--ttl", tc.ttl)
			got := s.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 3))
			expires, err := time.Parse(time.RFC3339, got.Field("expires"))
			if err != nil {
				t.Fatal(err)
			}
			args := of(ns, "deployment", "web").With("replicas", 3).With("confirm", got.Field("confirm")).With("reason", "a test")
			first := execution{}
			if tc.execute {
				if first = harness.Into[execution](t, s.Must("scale", args)); first.Outcome != plan.Executed {
					t.Fatalf("outcome %+v", first)
				}
			}
			lab.Eventually(t, "the plan to expire", func() (bool, error) { return time.Now().After(expires), nil })
			for range 2 {
				again := s.Must("scale", args)
				if code := harness.Code(again); code != tc.wantCode {
					t.Errorf("code %q, want %q: %s", code, tc.wantCode, again.Text)
				}
				if got := harness.Into[execution](t, again); tc.execute && (!got.Replayed || string(got.Result) != string(first.Result)) {
					t.Errorf("replayed %t with %s, want %s", got.Replayed, got.Result, first.Result)
				}
			}
			if n := count(s.Proxy.Writes(), isEffect("scale")); n != tc.wantWrites {
				t.Errorf("%d writes, want %d", n, tc.wantWrites)
			}
			if diff := gocmp.Diff(tc.wantEvents, outcomes(harness.Events(t, s.State))); diff != "" {
				t.Errorf("journal (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTwoProcesses gives one phrase to two processes that share a state folder, at once.
func TestTwoProcesses(t *testing.T) {
	bin := program(t)
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	harness.Converge(t, cp, ns)
	state := t.TempDir() + "/state"
	o := harness.Options{State: state, Args: wide}
	a, b := harness.Spawn(t, cp, bin, o), harness.Spawn(t, cp, bin, o)
	for round := range 8 {
		args := of(ns, "deployment", "web").With("replicas", 3+round)
		seen := effects(t, ns, "scale", args)
		a.Proxy.Reset()
		b.Proxy.Reset()
		answers := together(t, 8, "scale", a.Plan("scale", args), a, b)
		sameResult(t, answers, plan.Executed)
		once(t, "scale", seen(), append(a.Proxy.Writes(), b.Proxy.Writes()...))
	}
}

// hold stops the effect of an action in the proxy.
func hold(s *harness.Server, action string) (arrived chan struct{}, release func()) {
	return s.Proxy.Hold(func(r harness.Request) bool { return r.Mutates() && isEffect(action)(r) })
}

// TestClientVanished loses the client while its write is on the way. The write finishes,
// and whoever asks again gets its result.
func TestClientVanished(t *testing.T) {
	for _, tc := range []struct {
		name   string
		vanish func(t *testing.T, s *harness.Server, id int)
	}{
		{"end of input", func(t *testing.T, s *harness.Server, _ int) { _ = s.CloseInput() }},
		{"cancelled", func(t *testing.T, s *harness.Server, id int) {
			if err := s.Notify("notifications/cancelled", map[string]any{"requestId": id, "reason": "gone"}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := cp.Namespace(t)
			harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
			harness.Converge(t, cp, ns)
			state := t.TempDir() + "/state"
			s := harness.Start(t, cp, harness.Options{State: state, Args: wide})
			call := of(ns, "deployment", "web").With("replicas", 3)
			seen := effects(t, ns, "scale", call)
			args := s.Plan("scale", call)
			arrived, release := hold(s, "scale")
			id, _, err := s.Send("tools/call", map[string]any{"name": "scale", "arguments": args})
			if err != nil {
				t.Fatal(err)
			}
			<-arrived
			tc.vanish(t, s, id)
			release()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			next := harness.Start(t, cp, harness.Options{State: state, Args: wide})
			got := harness.Into[execution](t, next.Must("scale", args))
			if got.Outcome != plan.Executed || !got.Replayed {
				t.Errorf("outcome %s, replayed %t, want a replay of EXECUTED", got.Outcome, got.Replayed)
			}
			once(t, "scale", seen(), s.Proxy.Writes())
			if w := next.Proxy.Writes(); len(w) != 0 {
				t.Errorf("the second server wrote %+v", w)
			}
			events := outcomes(harness.Events(t, state))
			if n := len(events); n < 3 || events[n-1] != "replayed" || strings.Count(strings.Join(events, " "), "execute") != 1 || strings.Contains(strings.Join(events, " "), "refused") {
				t.Errorf("journal %q, want one execute, a replay, and nothing refused: something was sent", events)
			}
		})
	}
}

// TestCase_PX_08 kills a process (-9) between claim and answer, or after its answer.
// Nobody sends its write again; the next process finds out what became of it, or has it
// on record.
func TestCase_PX_08(t *testing.T) {
	t.Parallel()
	bin := program(t)
	for _, answered := range []bool{false, true} {
		t.Run(fmt.Sprintf("answered %t", answered), func(t *testing.T) {
			t.Parallel()
			ns := cp.Namespace(t)
			harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
			state := t.TempDir() + "/state"
			quick := append([]string{"--verify-timeout", "1s"}, wide...)
			s := harness.Spawn(t, cp, bin, harness.Options{State: state, Args: quick})
			args := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
			var results []string
			if answered {
				results = append(results, string(harness.Into[execution](t, s.Must("scale", args)).Result))
				s.Kill()
			} else {
				arrived, release := hold(s, "scale")
				if _, _, err := s.Send("tools/call", map[string]any{"name": "scale", "arguments": args}); err != nil {
					t.Fatal(err)
				}
				<-arrived
				s.Kill()
				release()
			}
			next := harness.Start(t, cp, harness.Options{State: state, Args: quick})
			for range 2 {
				x := harness.Into[execution](t, next.Must("scale", args))
				d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				truth := plan.Failed
				if *d.Spec.Replicas == 3 {
					truth = plan.Executed
				}
				if x.Outcome != truth || !x.Replayed || answered && truth != plan.Executed {
					t.Errorf("outcome %s, replayed %t, want the replay of %s", x.Outcome, x.Replayed, truth)
				}
				results = append(results, string(x.Result))
			}
			for _, r := range results[1:] {
				if r != results[0] {
					t.Errorf("two results:\n%s\n%s", results[0], r)
				}
			}
			if w := next.Proxy.Writes(); len(w) != 0 {
				t.Errorf("the next server wrote %+v", w)
			}
		})
	}
}

// TestConflictStorm lets another writer update the status as fast as it can: every
// resourceVersion is stale at once, and the change is still made, exactly once. It runs
// beside no other test: the server's attempts and the storm have a processor each.
func TestConflictStorm(t *testing.T) {
	for _, action := range []string{"scale", "rollout_restart", "rollout_pause", "set_image", "cordon"} {
		t.Run(action, func(t *testing.T) {
			b := newTarget(t, action)
			s := start(t, wide...)
			args := b.calls()[action]
			seen := effects(t, b.ns, action, args)
			confirmed := s.Plan(action, args)
			stop, done, storms := make(chan struct{}), make(chan struct{}), 0
			begun := make(chan struct{})
			go func() {
				defer close(done)
				for ; ; storms++ {
					select {
					case <-stop:
						return
					default:
					}
					if storms == 1 {
						close(begun)
					}
					if err := touchStatus(t, b, action, storms); err != nil {
						t.Error(err)
						return
					}
				}
			}()
			<-begun
			got := s.Must(action, confirmed)
			close(stop)
			<-done
			if o := harness.Into[execution](t, got).Outcome; o != plan.Executed {
				t.Fatalf("outcome %s after %d status writes: %s", o, storms, got.Text)
			}
			if values := seen(); len(values) != 2 {
				t.Errorf("the watch saw %q, want one change", values)
			}
			applied := 0
			for _, r := range s.Proxy.Writes() {
				if isEffect(action)(r) && r.Status == http.StatusOK {
					applied++
				}
			}
			if applied != 1 {
				t.Errorf("%d writes applied, want 1 of %+v", applied, s.Proxy.Writes())
			}
		})
	}
}

// touchStatus writes a status that is as converged as any, and new each time.
func touchStatus(t *testing.T, b workbench, action string, n int) error {
	if action == "cordon" {
		body, _ := json.Marshal(map[string]any{"status": map[string]any{"nodeInfo": map[string]any{"kernelVersion": "k" + time.Now().String()}}})
		_, err := cp.Client.CoreV1().Nodes().Patch(t.Context(), b.node, types.MergePatchType, body, metav1.PatchOptions{}, "status")
		return err
	}
	replicas := 2
	if action == "scale" {
		replicas = 3
	}
	body, _ := json.Marshal(map[string]any{"status": map[string]any{
		"observedGeneration": 1_000_000 + n, "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
	}})
	_, err := cp.Client.AppsV1().Deployments(b.ns).Patch(t.Context(), "web", types.MergePatchType, body, metav1.PatchOptions{}, "status")
	return err
}

// failure is what the proxy does to the effect of an action.
type failure struct {
	name       string
	commit     bool // the API server has it
	status     int  // what is answered; 0 is a connection that is cut
	retryAfter string
	want       plan.Outcome
	moved      bool // then somebody else writes to the object, which proves that it can come no more
}

var failures = []failure{
	{"503 after the commit", true, 503, "1", plan.Unknown, false},
	{"503 before it", false, 503, "1", plan.Unknown, true},
	{"500 after the commit", true, 500, "", plan.Unknown, true},
	{"504 before it", false, 504, "1", plan.Unknown, true},
	{"429 before it", false, 429, "1", plan.Failed, false},
	{"403 before it", false, 403, "", plan.Failed, false},
	{"cut after the commit", true, 0, "", plan.Unknown, false},
	{"cut before it", false, 0, "", plan.Unknown, false},
}

func (f failure) inject(p *harness.Proxy, action string) {
	status, _ := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Message: "injected", Code: int32(f.status),
	})
	head := func(h http.Header) {
		h.Set("Content-Type", "application/json")
		if f.retryAfter != "" {
			h.Set("Retry-After", f.retryAfter)
		}
	}
	if !f.commit {
		p.Before(func(r *harness.Request, w http.ResponseWriter) bool {
			if !r.Mutates() || !isEffect(action)(*r) {
				return true
			}
			if f.status == 0 {
				panic(http.ErrAbortHandler)
			}
			head(w.Header())
			w.WriteHeader(f.status)
			_, _ = w.Write(status)
			return false
		})
		return
	}
	p.After(func(r *harness.Request, resp *http.Response) {
		if !r.Mutates() || !isEffect(action)(*r) {
			return
		}
		if f.status == 0 {
			panic(http.ErrAbortHandler)
		}
		_ = resp.Body.Close()
		resp.StatusCode, resp.Body, resp.ContentLength = f.status, io.NopCloser(bytes.NewReader(status)), int64(len(status))
		resp.Header = http.Header{}
		head(resp.Header)
	})
}

// TestCase_CL_06 answers a write with something that a client library would send again,
// or with nothing at all: it is never sent again, what is not known is called so, and
// what became of it is found out.
func TestCase_CL_06(t *testing.T) {
	for _, action := range []string{"scale", "rollout_restart", "set_image", "delete_pod", "cordon"} {
		for _, f := range failures {
			t.Run(action+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				b := newTarget(t, action)
				s := start(t, append(wide, "--verify-timeout", "1s")...)
				args := b.calls()[action]
				seen := effects(t, b.ns, action, args)
				confirmed := s.Plan(action, args)
				f.inject(s.Proxy, action)
				first := s.Must(action, confirmed)
				s.Proxy.Before(nil)
				s.Proxy.After(nil)
				if x := harness.Into[execution](t, first); x.Outcome != f.want || !first.IsError || !strings.HasPrefix(first.Text, string(f.want)) {
					t.Errorf("the first call: outcome %q, error %t, want %s: %s", x.Outcome, first.IsError, f.want, first.Text)
				}
				if f.moved {
					b.touch(t, action)
				}
				truth := plan.Failed
				if f.commit {
					truth = plan.Executed
				}
				var results []string
				for i := range 2 {
					got := s.Must(action, confirmed)
					x := harness.Into[execution](t, got)
					if x.Outcome != truth || !x.Replayed {
						t.Errorf("call %d: outcome %q, replayed %t, want the replay of %s: %s", i+2, x.Outcome, x.Replayed, truth, got.Text)
					}
					results = append(results, string(x.Result))
				}
				if results[0] != results[1] {
					t.Errorf("two results:\n%s\n%s", results[0], results[1])
				}
				if w := s.Proxy.Writes(); len(w) != 1 {
					t.Errorf("%d mutating requests on the wire, want 1: %+v", len(w), w)
				}
				want := 1
				if f.commit {
					want = 2
				}
				if values := seen(); len(values) != want {
					t.Errorf("the watch saw %q, want %d values", values, want)
				}
			})
		}
	}
}

// touch moves the version of an action's target and nothing that a plan rests on.
func (b workbench) touch(t *testing.T, action string) {
	t.Helper()
	const labels = `{"metadata":{"labels":{"touched":"by-a-test"}}}`
	switch action {
	case "scale", "rollout_restart":
		patchAs(t, "deployments", b.ns, "web", labels)
	case "cordon":
		patchAs(t, "nodes", "", b.node, labels)
	}
}

// TestUnknownForAll: callers that wait for another one's run learn that its outcome is
// unknown, as that one does.
func TestUnknownForAll(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	s := start(t, wide...)
	args := s.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	gate := make(chan struct{})
	var sent atomic.Bool
	s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
		if r.Mutates() {
			sent.Store(true)
			<-gate
			panic(http.ErrAbortHandler)
		}
		if sent.Load() && r.Path == "/api/v1/namespaces/kube-system" { // so that nothing is found out, and nobody waits for it
			w.WriteHeader(http.StatusServiceUnavailable)
			return false
		}
		return true
	})
	go func() {
		for len(s.Proxy.Writes()) == 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond) // so that the others wait by then; nothing rests on it
		close(gate)
	}()
	for _, got := range together(t, 10, "scale", args, s) {
		if o := harness.Into[execution](t, got).Outcome; o != plan.Unknown {
			t.Errorf("outcome %q, want UNKNOWN: %s", o, got.Text)
		}
	}
	if w := s.Proxy.Writes(); len(w) != 1 {
		t.Errorf("%d writes, want 1: %+v", len(w), w)
	}
	if got := outcomes(harness.Events(t, s.State)); len(got) != 11 {
		t.Errorf("%d outcomes of 11 calls: %q", len(got), got)
	}
}

// TestSeesAnothersEffect: a server whose second look at the target shows the effect of
// another one that shares its journal answers with that one's result: it is no drift.
func TestSeesAnothersEffect(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2).Ready(2))
	harness.Converge(t, cp, ns)
	state := t.TempDir() + "/state"
	a := harness.Start(t, cp, harness.Options{State: state, Args: wide})
	b := harness.Start(t, cp, harness.Options{State: state, Args: wide})
	args := a.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	arrived, release := b.Proxy.Hold(func(r harness.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.Path, "/deployments/web")
	})
	_, answer, err := b.Send("tools/call", map[string]any{"name": "scale", "arguments": args})
	if err != nil {
		t.Fatal(err)
	}
	<-arrived
	first := a.Must("scale", args)
	release()
	second, err := stdio.Parse(<-answer)
	if err != nil {
		t.Fatal(err)
	}
	sameResult(t, []stdio.Tool{first, second}, plan.Executed)
	if w := b.Proxy.Writes(); len(w) != 0 {
		t.Errorf("the second server wrote %+v", w)
	}
	if diff := gocmp.Diff([]string{"plan", "execute", "replayed"}, outcomes(harness.Events(t, state))); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
}
