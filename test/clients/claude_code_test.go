//go:build clients

package clients

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// web makes a Deployment of two ready pods, and gives the arguments that scale it to three.
func web(t *testing.T) (ns string, scale harness.Args) {
	t.Helper()
	ns = cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(2))
	lab.Eventually(t, "two ready pods", func() (bool, error) {
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.AvailableReplicas == 2, err
	})
	return ns, harness.Of(ns, "deployment", "web").With("replicas", 3)
}

// loners makes pods without a controller.
func loners(t *testing.T, ns, node string, names ...string) {
	t.Helper()
	for _, name := range names {
		tpl := harness.Template("loner")
		tpl.Spec.NodeName = node
		if _, err := cp.Client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: tpl.Labels}, Spec: tpl.Spec,
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	lab.Eventually(t, "running pods", func() (bool, error) {
		pods, err := cp.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=loner", FieldSelector: "status.phase=Running"})
		return err == nil && len(pods.Items) == len(names), err
	})
}

func exists(t *testing.T, ns, pod string) bool {
	t.Helper()
	p, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), pod, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil && p.DeletionTimestamp == nil
}

// written are the writes of the server in a namespace, by the API server's own audit log.
func written(t *testing.T, ns string) (out []string) {
	t.Helper()
	events, err := cp.AuditEvents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		switch e.Verb {
		case "get", "list", "watch":
			continue
		}
		if e.ObjectRef.Namespace == ns && strings.HasPrefix(e.UserAgent, "kube-write-mcp/") &&
			!strings.Contains(e.RequestURI, "dryRun=All") && e.ResponseStatus.Code < 300 {
			what := e.ObjectRef.Resource
			if e.ObjectRef.Subresource != "" {
				what += "/" + e.ObjectRef.Subresource
			}
			out = append(out, e.Verb+" "+what)
		}
	}
	return out
}

// scaled are the writes of one scale: the effect, and the note on the object.
var scaled = []string{"update deployments/scale", "patch deployments"}

// TestClaudeCode_Write: the model is told the whole plan, confirms it, and is told what
// became of it. The tool call can be found in the audit.
func TestClaudeCode_Write(t *testing.T) {
	eras(t, func(t *testing.T, negotiation string) {
		ns, scale := web(t)
		c := runClaude(t, setting{negotiation: negotiation, permissions: allow("plan_scale", "scale")},
			calls("plan_scale", scale), confirms("scale", scale))
		told := c.only(t, 2)
		for i, name := range []string{"plan_scale", "scale"} {
			if sent := c.results(t, name)[0]; told[i].IsError || !sameJSON(t, told[i].Structured, sent.Structured) {
				t.Errorf("%s: the model is told %s\nwhich is not the structured part of the answer: %s", name, told[i].Text, sent.Structured)
			}
		}
		p := harness.Into[map[string]any](t, told[0])
		for field, want := range map[string]string{
			"changes":      "spec.replicas: 2 → 3",
			"dry_run":      "accepted by the API server",
			"blast_radius": "adds 1 pod to 2",
			"undo":         "--current-replicas=3 --replicas=2",
			"before":       "max_unavailable",
			"class":        "reversible",
			"kubectl":      "scale deployment/web --current-replicas=2 --replicas=3",
			"expires":      "T",
			"confirm":      "scale deployment " + ns + "/web from 2 to 3 on kind-lab [",
			"next":         `"reason":"<why>"`,
		} {
			if got := encode(t, p[field]); !strings.Contains(got, want) {
				t.Errorf("the plan as the model sees it: %s is %s, want %q in it", field, got, want)
			}
		}
		if e := harness.Into[harness.Execution](t, told[1]); e.Outcome != plan.Executed || e.Replayed || e.Current == nil || len(e.Result) == 0 {
			t.Errorf("the execution as the model sees it: %s", told[1].Text)
		}
		if diff := gocmp.Diff(scaled, written(t, ns)); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		ids := map[string]string{}
		for _, l := range harness.Lines(t, c.State) {
			if l.Event == journal.EventPlan || l.Event == journal.EventExecute {
				ids[l.Event] = l.Client.Name + " " + l.Client.Version + " " + l.Client.Call
			}
		}
		if diff := gocmp.Diff(map[string]string{
			journal.EventPlan: "claude-code " + c.version + " toolu_00_0", journal.EventExecute: "claude-code " + c.version + " toolu_01_0",
		}, ids); diff != "" {
			t.Errorf("client and tool call in the audit (-want +got):\n%s", diff)
		}
		c.record(t, "the model is told the whole structured plan and result", "a plan and its write, both allowed: written once", "the audit names the tool call")
	})
}

// TestClaudeCode_Headless: a write that nobody is there to allow is not sent, and the plan
// before it is.
func TestClaudeCode_Headless(t *testing.T) {
	for _, tc := range []struct {
		rule, wantTold string
	}{
		{"ask", "requested permissions to use " + tool("scale") + ", but you haven't granted it yet"},
		{"deny", "No such tool available: " + tool("scale")},
		{"", "requested permissions to use " + tool("scale") + ", but you haven't granted it yet"},
	} {
		where := "in " + cmp.Or(tc.rule, "no rule")
		t.Run(where, func(t *testing.T) {
			eras(t, func(t *testing.T, negotiation string) {
				ns, scale := web(t)
				permissions := allow("plan_scale")
				if tc.rule != "" {
					permissions[tc.rule] = []string{tool("scale")}
				}
				c := runClaude(t, setting{negotiation: negotiation, permissions: permissions}, calls("plan_scale", scale), confirms("scale", scale))
				told := c.only(t, 2)
				if told[0].Field("confirm") == "" || !told[1].IsError || !strings.Contains(told[1].Text, tc.wantTold) {
					t.Errorf("the model is told %s\nand then %s", told[0].Text, told[1].Text)
				}
				if n := len(c.calls(t, "scale")); n != 0 {
					t.Errorf("scale was called %d times", n)
				}
				if w := written(t, ns); w != nil {
					t.Errorf("written: %q", w)
				}
				if diff := gocmp.Diff([]string{journal.EventPlan}, harness.Events(t, c.State)); diff != "" {
					t.Errorf("journal (-want +got):\n%s", diff)
				}
				c.record(t, "a write "+where+", headless: not called, nothing written")
			})
		})
	}
}

// TestClaudeCode_Refused: the model, which has loaded the tool as Claude Code tells it to, is
// told a refusal whole: the code, every reason, and what to do instead; also one that is as
// long as they get.
func TestClaudeCode_Refused(t *testing.T) {
	var steps []object
	for i := range 20 {
		arguments := object{"namespace": "Not A Namespace", "deployment": strings.Repeat("x", 300), "replicas": -1 - i}
		for j := range 20 {
			arguments[fmt.Sprintf("unknown_argument_%02d_%02d", i, j)] = true
		}
		steps = append(steps, object{"action": "scale", "arguments": arguments})
	}
	for _, tc := range []struct {
		name, tool string
		args       harness.Args
		wantCode   string
		wantLength int // characters at least
	}{
		{"short", "plan_scale", harness.Of("kube-system", "deployment", "web").With("replicas", 3), "out_of_scope", 0},
		{"long", "plan_changes", harness.Args{"steps": steps}, "invalid_arguments", 4000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eras(t, func(t *testing.T, negotiation string) {
				c := runClaude(t, setting{negotiation: negotiation, permissions: allow(tc.tool)}, loads(tc.tool), calls(tc.tool, tc.args))
				told, sent := c.only(t, 2)[1], c.results(t, tc.tool)[0]
				if !told.IsError || told.Text != sent.Text {
					t.Errorf("the model is told %s\nwhich is not the text of the answer: %s", told.Text, sent.Text)
				}
				harness.Tells(t, told, "refused: ", "instead: "+sent.Field("hint"), "code "+tc.wantCode)
				if len(told.Text) < tc.wantLength {
					t.Errorf("it has only %d characters", len(told.Text))
				}
				c.record(t, "the model is told the whole refusal, also of over 4000 characters")
			})
		})
	}
}

// longNames are n names of pods, as long as names get in practice.
func longNames(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("a-worker-with-quite-a-long-name-for-its-kind-of-work-%03d", i))
	}
	return out
}

// TestClaudeCode_Long: a long success is not truncated.
func TestClaudeCode_Long(t *testing.T) {
	ns := cp.Namespace(t)
	node := "long-" + ns
	if err := cp.Node(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	loners(t, ns, node, longNames(180)...)
	for _, tc := range []struct {
		tool       string
		args       harness.Args
		wantLength int // characters at least
	}{
		{"plan_drain", harness.Args{"node": node, "force": true}, 5_000},
		{"list_pods", harness.Args{"namespace": ns, "limit": 200}, 40_000},
	} {
		t.Run(tc.tool, func(t *testing.T) {
			eras(t, func(t *testing.T, negotiation string) {
				c := runClaude(t, setting{negotiation: negotiation, permissions: allow(tc.tool), server: harness.Options{Args: harness.Wide}}, calls(tc.tool, tc.args))
				told, sent := c.only(t, 1)[0], c.results(t, tc.tool)[0]
				if told.IsError || !sameJSON(t, told.Structured, sent.Structured) {
					t.Errorf("the model is told %s\nwhich is not the structured part of the answer: %s", told.Text, sent.Structured)
				}
				if len(told.Text) < tc.wantLength {
					t.Errorf("it has only %d characters", len(told.Text))
				}
				c.record(t, fmt.Sprintf("a long answer (%s, over %d characters) is not truncated", tc.tool, tc.wantLength))
			})
		})
	}
}

// TestClaudeCode_Timeout: the client gives up in the middle of a write. The write ends all
// the same, and the same phrase gives its result.
func TestClaudeCode_Timeout(t *testing.T) {
	eras(t, func(t *testing.T, negotiation string) {
		ns, scale := web(t)
		proxy := harness.NewProxy(t, harness.Account(t, cp))
		_, open := proxy.Hold(func(r harness.Request) bool { return r.Method == http.MethodPut && r.Mutates() })
		release := sync.OnceFunc(open)
		t.Cleanup(release)
		state := filepath.Join(t.TempDir(), "state")
		var write use
		c := runClaude(t, setting{
			negotiation: negotiation, permissions: allow("plan_scale", "scale"), timeout: 4 * time.Second,
			server: harness.Options{Proxy: proxy, State: state},
		},
			calls("plan_scale", scale),
			func(seen []told) []use {
				write = confirms("scale", scale)(seen)[0]
				return []use{write}
			},
			func([]told) []use {
				release()
				_ = wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
					raw, err := os.ReadFile(filepath.Join(state, "audit.jsonl"))
					return bytes.Contains(raw, []byte(`"event":"execute"`)), err
				})
				return []use{write}
			},
		)
		told := c.only(t, 3)
		if !told[1].IsError || !strings.Contains(told[1].Text, "timed out after 4s") || len(c.calls(t, "scale")) != 2 {
			t.Fatalf("the client did not give up: %s", told[1].Text)
		}
		replay := harness.Into[harness.Execution](t, told[2])
		if replay.Outcome != plan.Executed || !replay.Replayed {
			t.Errorf("the replay: %s", told[2].Text)
		}
		for _, l := range harness.Lines(t, c.State) {
			if l.Event == journal.EventExecute && !sameJSON(t, []byte(encode(t, l.Result)), replay.Result) {
				t.Errorf("the first result is %s, the replay has %s", encode(t, l.Result), replay.Result)
			}
		}
		if diff := gocmp.Diff(scaled, written(t, ns)); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		c.record(t, "it times out in the middle of a write: written once, and the replay gives the first result")
	})
}

// command is a hook that says what a file says, and takes what it is told.
func command(file string) object {
	return object{"type": "command", "command": "cat >/dev/null; cat " + file}
}

// answersElicitations is a hook that types the name for the person.
func answersElicitations(t *testing.T, name string) object {
	t.Helper()
	answer := writeJSON(t, t.TempDir(), "answer.json", object{"hookSpecificOutput": object{
		"hookEventName": "Elicitation", "action": "accept", "content": object{"name": name},
	}})
	return object{"Elicitation": []object{{"hooks": []object{command(answer)}}}}
}

// TestClaudeCode_Elicitation: headless, nobody is there to answer; a hook that answers for
// the person is believed, which the audit shows for what it is.
func TestClaudeCode_Elicitation(t *testing.T) {
	t.Run("nobody", func(t *testing.T) {
		eras(t, func(t *testing.T, negotiation string) {
			ns := cp.Namespace(t)
			loners(t, ns, "node-1", "loner")
			evict := harness.Of(ns, "pod", "loner")
			c := runClaude(t, setting{negotiation: negotiation, permissions: allow("plan_evict_pod", "evict_pod")}, calls("plan_evict_pod", evict), confirms("evict_pod", evict))
			told := c.only(t, 2)
			harness.Tells(t, told[1], "needs_person", "closed without an answer", "kube-write-mcp approve ")
			if !told[1].IsError || !exists(t, ns, "loner") {
				t.Errorf("evicted without a person: %s", told[1].Text)
			}
			c.record(t, "headless, a question is closed without an answer: nothing written")
		})
	})
	t.Run("hook", func(t *testing.T) {
		eras(t, func(t *testing.T, negotiation string) {
			ns := cp.Namespace(t)
			loners(t, ns, "node-1", "loner")
			evict := harness.Of(ns, "pod", "loner")
			c := runClaude(t, setting{
				negotiation: negotiation, permissions: allow("plan_evict_pod", "evict_pod"), hooks: answersElicitations(t, "loner"),
			}, calls("plan_evict_pod", evict), confirms("evict_pod", evict))
			told := c.only(t, 2)
			if e := harness.Into[harness.Execution](t, told[1]); e.Outcome != plan.Executed || exists(t, ns, "loner") {
				t.Errorf("the hook's answer: %s", told[1].Text)
			}
			lines := harness.Lines(t, c.State)
			i := slices.IndexFunc(lines, func(l *journal.Line) bool { return l.Event == journal.EventApproved })
			if i < 0 {
				t.Fatalf("no approval on record: %q", harness.Events(t, c.State))
			}
			l := lines[i]
			if l.Channel != "elicitation" || !strings.HasPrefix(l.Output, "by typing loner, ") || l.ShownAt.IsZero() || l.AnsweredAt.Sub(l.ShownAt) > time.Second {
				t.Errorf("the approval on record: channel %q, %q, shown %s, answered %s", l.Channel, l.Output, l.ShownAt, l.AnsweredAt)
			}
			out, err := exec.Command(harness.Program(t, cp), "audit", "report", "--json", "--state-dir", c.State).Output()
			var report struct {
				Prompts []journal.PromptReport `json:"prompts"`
			}
			if err != nil || json.Unmarshal(out, &report) != nil || len(report.Prompts) != 1 || report.Prompts[0].First == nil || *report.Prompts[0].First > 1 {
				t.Errorf("audit report: %s (%v)", out, err)
			}
			c.record(t, "a hook that answers for the person: the audit has it answered within a second")
		})
	})
	t.Run("hook and two persons", func(t *testing.T) {
		eras(t, func(t *testing.T, negotiation string) {
			ns := cp.Namespace(t)
			loners(t, ns, "node-1", "loner")
			evict := harness.Of(ns, "pod", "loner")
			policy := filepath.Join(t.TempDir(), "policy.yaml")
			if err := os.WriteFile(policy, []byte("namespaces: {"+ns+": {two_persons: true}}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			c := runClaude(t, setting{
				negotiation: negotiation, permissions: allow("plan_evict_pod", "evict_pod"), hooks: answersElicitations(t, "loner"),
				server: clusterLedger(t, "--policy", policy),
			}, calls("plan_evict_pod", evict), confirms("evict_pod", evict))
			told := c.only(t, 2)
			harness.Tells(t, told[1], "needs_person", "second person", "kube-write-mcp approve ")
			if !told[1].IsError || !exists(t, ns, "loner") {
				t.Errorf("a hook was taken for a second person: %s", told[1].Text)
			}
			if slices.Contains(harness.Events(t, c.State), journal.EventApproved) {
				t.Errorf("journal: %q", harness.Events(t, c.State))
			}
			c.record(t, "a hook that answers for the person does not satisfy two_persons")
		})
	})
}

// clusterLedger are the options of a server whose ledger is in the cluster.
func clusterLedger(t *testing.T, args ...string) harness.Options {
	t.Helper()
	ledger := cp.Namespace(t)
	account := harness.Account(t, cp)
	rbac := cp.Client.RbacV1()
	meta := metav1.ObjectMeta{Name: "ledger"}
	if _, err := rbac.Roles(ledger).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: cluster.Rules()}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := rbac.RoleBindings(ledger).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-write-mcp", Name: "server"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	keys := filepath.Join(state, "keys.json")
	if _, err := journal.LoadKeys(keys, time.Now, rand.Reader); err != nil {
		t.Fatal(err)
	}
	return harness.Options{Config: account, State: state, Args: append([]string{
		"--ledger", "cluster", "--ledger-namespace", ledger, "--key-file", keys,
	}, args...)}
}

// TestClaudeCode_RequiresUser: drain, delete_pod and changes are never called without a
// person, whatever the settings allow.
func TestClaudeCode_RequiresUser(t *testing.T) {
	dir := t.TempDir()
	before := writeJSON(t, dir, "before.json", object{"hookSpecificOutput": object{"hookEventName": "PreToolUse", "permissionDecision": "allow"}})
	request := writeJSON(t, dir, "request.json", object{"hookSpecificOutput": object{"hookEventName": "PermissionRequest", "decision": object{"behavior": "allow"}}})
	everywhere := func(event, file string) object {
		return object{event: []object{{"matcher": ".*", "hooks": []object{command(file)}}}}
	}
	for _, tc := range []struct {
		name string
		set  setting
	}{
		{"allow rules", setting{permissions: allow("plan_delete_pod", "delete_pod", "plan_scale", "scale")}},
		{"a PreToolUse hook", setting{hooks: everywhere("PreToolUse", before)}},
		{"a PermissionRequest hook", setting{hooks: everywhere("PermissionRequest", request)}},
		{"bypassPermissions", setting{flags: []string{"--permission-mode", "bypassPermissions"}, env: []string{"IS_SANDBOX=1"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eras(t, func(t *testing.T, negotiation string) {
				ns, scale := web(t)
				loners(t, ns, "node-1", "loner")
				del := harness.Of(ns, "pod", "loner")
				tc.set.negotiation = negotiation
				tc.set.server = harness.Options{Args: harness.Wide} // the server itself asks nobody
				c := runClaude(t, tc.set,
					calls("plan_delete_pod", del), confirms("delete_pod", del), calls("plan_scale", scale), confirms("scale", scale))
				told := c.only(t, 4)
				if told[0].Field("confirm") == "" || !told[1].IsError || !strings.Contains(told[1].Text, "requires permission") || len(c.calls(t, "delete_pod")) != 0 || !exists(t, ns, "loner") {
					t.Errorf("delete_pod was called %d times, and the model told %s", len(c.calls(t, "delete_pod")), told[1].Text)
				}
				if told[3].Field("outcome") != string(plan.Executed) {
					t.Errorf("the same settings do not let scale run: %s", told[3].Text)
				}
				var listed []string
				for name, raw := range c.listed(t) {
					if strings.Contains(raw, `"anthropic/requiresUserInteraction":true`) {
						listed = append(listed, name)
					}
				}
				slices.Sort(listed)
				if diff := gocmp.Diff([]string{"changes", "delete_pod", "drain"}, listed); diff != "" {
					t.Errorf("tools with requiresUserInteraction (-want +got):\n%s", diff)
				}
				c.record(t, "requiresUserInteraction holds delete_pod against "+tc.name+", which let scale run")
			})
		})
	}
}

// TestClaudeCode_Names: what the model sees of the tools before it looks closer is a list of
// names. It has all of them, none is cut, and a write stands beside its plan; the server's
// instructions are whole, too.
func TestClaudeCode_Names(t *testing.T) {
	eras(t, func(t *testing.T, negotiation string) {
		c := runClaude(t, setting{negotiation: negotiation})
		var want, got []string
		for name := range c.listed(t) {
			want = append(want, tool(name))
		}
		all := c.prompts[0].text()
		for line := range strings.Lines(all) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, tool("")) {
				got = append(got, line)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := gocmp.Diff(want, got); diff != "" || len(want) < 40 {
			t.Errorf("names as the model sees them (-want +got):\n%s", diff)
		}
		for _, name := range got {
			short := strings.TrimPrefix(name, tool(""))
			_, action, isPlan := strings.Cut(short, "plan_")
			verb, _, _ := strings.Cut(short, "_")
			switch {
			case len(name) >= 40:
				t.Errorf("%s has %d characters", name, len(name))
			case isPlan && !slices.Contains(got, tool(action)):
				t.Errorf("%s plans nothing that is in the list", name)
			case !isPlan && !slices.Contains(got, tool("plan_"+short)) && !slices.Contains([]string{"get", "list", "write"}, verb):
				t.Errorf("%s is neither a read nor stands beside its plan", name)
			}
		}
		c.record(t, "every name is listed, under 40 characters, each write beside its plan")
		var hello struct {
			Instructions string `json:"instructions"`
		}
		for _, m := range c.sent(t, fromServer) {
			if json.Unmarshal(m.Result, &hello) == nil && hello.Instructions != "" {
				break
			}
		}
		if hello.Instructions == "" || !strings.Contains(all, hello.Instructions) {
			t.Errorf("the instructions are not in front of the model: %q in\n%s", hello.Instructions, all)
		}
		c.record(t, "the server's instructions are in front of the model, whole")
	})
}

// sameJSON reports whether two texts are the same JSON.
func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	return gocmp.Equal(x, y)
}

// encode encodes as the answers do, without escapes for HTML.
func encode(t *testing.T, v any) string {
	t.Helper()
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}
