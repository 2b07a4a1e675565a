package integration

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// openNow gives flags with a policy of one window of a day's schedule that opened a moment
// ago and stays open for two hours; more are further lines of it.
func openNow(t *testing.T, kind string, more ...string) (flags []string, ends time.Time) {
	t.Helper()
	began := time.Now().UTC().Truncate(time.Minute).Add(-time.Minute)
	file := filepath.Join(t.TempDir(), "policy.yaml")
	lines := append([]string{
		"change_windows:", "- name: freeze", "  kind: " + kind, "  schedule: " + began.Format("4 15 * * *"), "  duration: 2h", "  time_zone: UTC",
	}, more...)
	write(t, file, strings.Join(lines, "\n")+"\n")
	return []string{"--policy", file}, began.Add(2 * time.Hour)
}

// TestChangeWindow: a deny window that is open now refuses plans and executions before
// anything is read, says when they pass, and consumes nothing.
func TestChangeWindow(t *testing.T) {
	ns, other := cp.Namespace(t), cp.Namespace(t)
	for _, n := range []string{ns, other} {
		harness.Create(t, cp, n, harness.Deployment("web").Replicas(2).Ready(2))
		harness.Converge(t, cp, n)
	}
	state := filepath.Join(t.TempDir(), "state")
	before := harness.Start(t, cp, harness.Options{State: state})
	args := before.Plan("scale", of(ns, "deployment", "web").With("replicas", 3))
	executed := before.Do("scale", of(other, "deployment", "web").With("replicas", 3)).Field("plan")

	flags, ends := openNow(t, "deny")
	s := harness.Start(t, cp, harness.Options{State: state, Args: flags})
	for _, tc := range []struct {
		name, tool string
		args       harness.Args
	}{
		{"a plan", "plan_scale", of(ns, "deployment", "web").With("replicas", 3)},
		{"one of a target that is not there", "plan_scale", of(ns, "deployment", "none").With("replicas", 3)},
		{"an execution that was planned before", "scale", args},
		{"an undo", "plan_undo", harness.Args{"plan": executed}},
		{"a node's", "plan_cordon", harness.Args{"node": "none"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.Proxy.Reset()
			got := s.Must(tc.tool, tc.args)
			if harness.Code(got) != "window_closed" || got.Field("retry_at") != ends.Format(time.RFC3339) {
				t.Errorf("code %q, retry at %q; want window_closed, %s: %s", harness.Code(got), got.Field("retry_at"), ends, got.Text)
			}
			harness.Tells(t, got, "the change window freeze forbids", "it passes at "+ends.Format("Mon 2006-01-02 15:04:05 +0000 (UTC)"), ends.Format(time.RFC3339))
			if n := len(s.Proxy.Requests(nil)); n != 0 {
				t.Errorf("it sent %d requests", n)
			}
		})
	}
	over := harness.Start(t, cp, harness.Options{State: state})
	if got := harness.Into[execution](t, over.Must("scale", args)); got.Outcome != plan.Executed {
		t.Errorf("the phrase was consumed by the refusal: %+v", got)
	}
}

// TestChangeWindowOf narrows windows to namespaces and actions.
func TestChangeWindowOf(t *testing.T) {
	ns, other := cp.Namespace(t), cp.Namespace(t)
	for _, n := range []string{ns, other} {
		harness.Create(t, cp, n, harness.Deployment("web").Replicas(4).Ready(4))
	}
	scale, restart := of(ns, "deployment", "web").With("replicas", 5), of(ns, "deployment", "web")
	elsewhere := of(other, "deployment", "web").With("replicas", 5)
	for _, tc := range []struct {
		name, kind string
		more       []string
		wantClosed map[string]bool
	}{
		{"all", "deny", nil, map[string]bool{"scale": true, "restart": true, "elsewhere": true}},
		{"a namespace", "deny", []string{"  namespaces: [" + ns + "]"}, map[string]bool{"scale": true, "restart": true}},
		{"an action", "deny", []string{"  actions: [scale]"}, map[string]bool{"scale": true, "elsewhere": true}},
		{"both", "deny", []string{"  namespaces: [" + ns + "]", "  actions: [rollout_restart]"}, map[string]bool{"restart": true}},
		{"allowed now", "allow", nil, nil},
		{"allowed, and denied", "allow", []string{"- name: noon", "  kind: deny", `  schedule: "* * * * *"`, "  duration: 5m", "  time_zone: UTC", "  namespaces: [" + ns + "]"},
			map[string]bool{"scale": true, "restart": true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			flags, _ := openNow(t, tc.kind, tc.more...)
			s := start(t, flags...)
			for name, call := range map[string]struct {
				tool string
				args harness.Args
			}{"scale": {"plan_scale", scale}, "restart": {"plan_rollout_restart", restart}, "elsewhere": {"plan_scale", elsewhere}} {
				want := ""
				if tc.wantClosed[name] {
					want = "window_closed"
				}
				if got := s.Must(call.tool, call.args); harness.Code(got) != want {
					t.Errorf("%s: code %q, want %q: %s", name, harness.Code(got), want, got.Text)
				}
			}
		})
	}
}

// TestChangeWindowExcept: what a person may approve is planned as theirs, with the window
// as a reason, and is not executed without them; where nobody is asked it stays closed.
func TestChangeWindowExcept(t *testing.T) {
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(4).Ready(4))
	state := filepath.Join(t.TempDir(), "state")
	scale := of(ns, "deployment", "web").With("replicas", 5)
	args := harness.Start(t, cp, harness.Options{State: state}).Plan("scale", scale)
	for _, tc := range []struct {
		name, tool   string
		args         harness.Args
		irreversible string
		wantCode     string
		want         []string
	}{
		{"a plan", "plan_scale", scale, "human", "needs_person", []string{"outside the change windows: the change window freeze forbids scale in namespace " + ns, "it passes at"}},
		{"no change", "plan_scale", scale.With("replicas", 4), "human", "", []string{"NO CHANGE"}},
		{"an execution that was planned before", "scale", args, "human", "window_closed", []string{"it passes at"}},
		{"nobody is asked", "plan_scale", scale, "allow", "window_closed", []string{"it passes at"}},
		{"nobody may", "plan_scale", scale, "refuse", "window_closed", []string{"it passes at"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			flags, _ := openNow(t, "deny", "  except: approved")
			s := harness.Start(t, cp, harness.Options{State: state, Args: append(flags, "--irreversible", tc.irreversible)})
			got := s.Must(tc.tool, tc.args)
			if tc.wantCode == "needs_person" {
				harness.Waits(t, got, "")
			} else if harness.Code(got) != tc.wantCode || got.Field("confirm") != "" {
				t.Errorf("code %q, want %q: %s", harness.Code(got), tc.wantCode, got.Text)
			}
			harness.Tells(t, got, tc.want...)
			if w := s.Proxy.Writes(); len(w) != 0 {
				t.Errorf("it wrote: %+v", w)
			}
		})
	}
	t.Run("approved", func(t *testing.T) {
		flags, _ := openNow(t, "deny", "  except: approved")
		s := harness.Start(t, cp, harness.Options{Args: append(flags, "--verify-timeout", "1s"), Answer: func(json.RawMessage) any {
			return map[string]any{"action": "accept", "content": map[string]any{"name": "web"}}
		}})
		if got := s.Do("scale", scale); harness.Into[execution](t, got).Outcome != plan.Executed {
			t.Errorf("with a person's approval: %s", got.Text)
		}
	})
}

// TestChangeWindowOfADrain: a drain is held back by the windows of the namespaces of the
// pods that it would evict, when it is planned and when it is executed.
func TestChangeWindowOfADrain(t *testing.T) {
	ns := cp.Namespace(t)
	node := ns + "-node"
	harness.Create(t, cp, ns, harness.Node(node).Ready(), harness.Node(node+"-other").Ready(),
		harness.Deployment("web").Replicas(2).Ready(2).Pods(func(tpl *corev1.PodTemplateSpec) { tpl.Spec.NodeName = node }))
	b := workbench{ns, node, node + "-other"}
	t.Cleanup(b.removeNodes)
	state := filepath.Join(t.TempDir(), "state")
	drain := harness.Args{"node": node, "timeout_seconds": 1}
	args := harness.Start(t, cp, harness.Options{State: state, Args: harness.Wide}).Plan("drain", drain)
	flags, ends := openNow(t, "deny", "  namespaces: ["+ns+"]")
	s := harness.Start(t, cp, harness.Options{State: state, Args: append(flags, harness.Wide...)})
	for tool, args := range map[string]harness.Args{"plan_drain": drain, "drain": args} {
		got := s.Must(tool, args)
		if harness.Code(got) != "window_closed" || got.Field("retry_at") != ends.Format(time.RFC3339) {
			t.Errorf("%s: code %q, retry at %q: %s", tool, harness.Code(got), got.Field("retry_at"), got.Text)
		}
		harness.Tells(t, got, "the change window freeze forbids drain in namespace "+ns)
	}
	if got := s.Must("plan_cordon", harness.Args{"node": node}); got.Field("confirm") == "" {
		t.Errorf("a cordon touches no pod of it: %s", got.Text)
	}
	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Errorf("it wrote: %+v", w)
	}
}
