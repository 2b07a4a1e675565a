package transcripts

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// notHere are the codes that no call over the wire to a sound server can provoke, and
// where they are provoked.
var notHere = map[refusal.Code]string{
	refusal.RecordMissing:    "a damaged journal: TestRecordDamaged in test/integration",
	refusal.KeyUnknown:       "a key ring that lost a key while its journal still verifies: TestKeyUnknown in pkg/engine",
	refusal.AuditUnavailable: "a journal that cannot be written: TestCase_PX_10 in test/integration",
}

// provoked is one refusal over the wire.
type provoked struct {
	code    refusal.Code
	prose   string // of a second way to the same code
	options func(*testing.T, string) harness.Options
	do      func(*testing.T, *harness.Server, string) stdio.Tool
}

// plans makes the world of a case, then calls one plan tool.
func plans(tool string, a func(ns string) harness.Args, world ...func(t *testing.T, ns string)) func(*testing.T, *harness.Server, string) stdio.Tool {
	return func(t *testing.T, s *harness.Server, ns string) stdio.Tool {
		for _, w := range world {
			w(t, ns)
		}
		return s.Must(tool, a(ns))
	}
}

func web(replicas int) func(string) harness.Args {
	return func(ns string) harness.Args {
		return harness.Args{"namespace": ns, "deployment": "web", "replicas": replicas}
	}
}

func flags(f ...string) func(*testing.T, string) harness.Options {
	return func(*testing.T, string) harness.Options { return harness.Options{Args: f} }
}

// account is a server's account with the generated rules, less those that without takes
// away.
func account(name string, without func(group, resource, verb string) bool) func(*testing.T, string) harness.Options {
	return func(t *testing.T, ns string) harness.Options {
		t.Helper()
		var rules []rbacv1.PolicyRule
		for _, r := range engine.Rules(actions.All(), read.Rules()...) {
			for _, g := range r.APIGroups {
				for _, res := range r.Resources {
					verbs := slices.DeleteFunc(slices.Clone(r.Verbs), func(v string) bool { return without(g, res, v) })
					if len(verbs) > 0 {
						rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{g}, Resources: []string{res}, Verbs: verbs, ResourceNames: r.ResourceNames})
					}
				}
			}
		}
		cfg, err := cp.ServiceAccount(t.Context(), "kube-write-mcp", name+"-"+ns, rules)
		if err != nil {
			t.Fatal(err)
		}
		return harness.Options{Config: cfg}
	}
}

var refusals = []provoked{
	{code: refusal.InvalidArguments, do: plans("plan_scale", func(ns string) harness.Args { return harness.Args{"namespace": ns} })},
	{
		code: refusal.OutOfScope, prose: "protected",
		do: plans("plan_scale", func(string) harness.Args { return web(0)("kube-system") }),
	},
	{
		code: refusal.OutOfScope, prose: "not allowed", options: flags("--allow-namespaces", "elsewhere"),
		do: plans("plan_scale", web(3)),
	},
	{
		code: refusal.NodeNotAllowed,
		do: plans("plan_cordon", func(ns string) harness.Args { return harness.Args{"node": "node-" + ns} }, func(t *testing.T, ns string) {
			if _, err := cp.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + ns}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}),
	},
	{code: refusal.NotFound, do: plans("plan_scale", func(ns string) harness.Args {
		return harness.Args{"namespace": ns, "deployment": "none", "replicas": 1}
	})},
	{
		code: refusal.Terminating,
		do: plans("plan_scale", func(ns string) harness.Args {
			return harness.Args{"namespace": ns, "deployment": "ending", "replicas": 3}
		}, func(t *testing.T, ns string) {
			deployment(t, ns, "ending", func(d *appsv1.Deployment) { d.Finalizers = []string{"example.com/hold"} })
			if err := cp.Client.AppsV1().Deployments(ns).Delete(t.Context(), "ending", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}),
	},
	{
		code: refusal.Terminating, prose: "namespace",
		do: plans("plan_scale", web(3), func(t *testing.T, ns string) {
			if err := cp.Client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err) // nothing finishes it: no controller runs
			}
		}),
	},
	{
		code: refusal.OwnedByController,
		do: plans("plan_scale", func(ns string) harness.Args {
			return harness.Args{"namespace": ns, "replicaset": "web-5c4f8b", "replicas": 3}
		}, func(t *testing.T, ns string) {
			labels := map[string]string{"app": "web", "pod-template-hash": "5c4f8b"}
			if _, err := cp.Client.AppsV1().ReplicaSets(ns).Create(t.Context(), &appsv1.ReplicaSet{
				ObjectMeta: metav1.ObjectMeta{Name: "web-5c4f8b", Labels: labels, OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "11111111-2222-4333-8444-555555555556", Controller: new(true),
				}}},
				Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main"}}},
				}},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}),
	},
	{code: refusal.NoHistory, do: plans("plan_rollout_undo", func(ns string) harness.Args { return harness.Args{"namespace": ns, "deployment": "web"} })},
	{
		code: refusal.Paused,
		do: plans("plan_rollout_restart", func(ns string) harness.Args { return harness.Args{"namespace": ns, "deployment": "paused"} },
			func(t *testing.T, ns string) {
				deployment(t, ns, "paused", func(d *appsv1.Deployment) { d.Spec.Paused = true })
			}),
	},
	{code: refusal.PreconditionFailed, do: plans("plan_scale", func(ns string) harness.Args {
		return web(3)(ns).With("expected_version", "v0000000000")
	})},
	{
		code:    refusal.FactsMissing,
		options: account("no-pods", func(_, resource, verb string) bool { return resource == "pods" && verb != "get" }),
		do:      plans("plan_scale", web(1)),
	},
	{
		code:    refusal.DryRunFailed,
		options: account("no-scale", func(_, resource, _ string) bool { return resource == "deployments/scale" }),
		do:      plans("plan_scale", web(3)),
	},
	{
		code:    refusal.Forbidden,
		options: account("no-deployments", func(_, resource, _ string) bool { return resource == "deployments" }),
		do:      plans("plan_scale", web(3)),
	},
	{code: refusal.BlastLimit, do: plans("plan_scale", web(0))},
	{
		code: refusal.NeedsPerson,
		do: func(t *testing.T, s *harness.Server, ns string) stdio.Tool {
			pod(t, ns, "alone")
			return s.Do("delete_pod", harness.Args{"namespace": ns, "pod": "alone"})
		},
	},
	{
		code: refusal.CapExceeded,
		options: func(t *testing.T, ns string) harness.Options {
			policy := filepath.Join(t.TempDir(), "policy.yaml")
			if err := os.WriteFile(policy, fmt.Appendf(nil, "namespaces:\n  %s:\n    max_replicas: 2\n", ns), 0o600); err != nil {
				t.Fatal(err)
			}
			return harness.Options{Args: []string{"--policy", policy}}
		},
		do: plans("plan_scale", web(3)),
	},
	{
		code: refusal.WindowClosed,
		options: func(t *testing.T, _ string) harness.Options {
			policy := filepath.Join(t.TempDir(), "policy.yaml")
			window := "change_windows:\n- {name: freeze, kind: deny, schedule: '@daily', duration: 48h, time_zone: Europe/Berlin}\n"
			if err := os.WriteFile(policy, []byte(window), 0o600); err != nil {
				t.Fatal(err)
			}
			return harness.Options{Args: []string{"--policy", policy}}
		},
		do: plans("plan_scale", web(3)),
	},
	{
		code: refusal.RateLimited, prose: "plans", options: flags("--plans-per-minute", "1"),
		do: func(t *testing.T, s *harness.Server, ns string) stdio.Tool {
			s.Plan("scale", web(3)(ns))
			return s.Must("plan_scale", web(3)(ns))
		},
	},
	{code: refusal.UnknownPhrase, do: func(t *testing.T, s *harness.Server, ns string) stdio.Tool {
		s.Plan("scale", web(3)(ns))
		return s.Must("scale", web(3)(ns).With("confirm", "yes").With("reason", "a test"))
	}},
	{
		code: refusal.WrongArguments, prose: "another number",
		do: func(t *testing.T, s *harness.Server, ns string) stdio.Tool {
			return s.Must("scale", s.Plan("scale", web(3)(ns)).With("replicas", 4))
		},
	},
	{
		code: refusal.WrongArguments, prose: "another tool",
		do: func(t *testing.T, s *harness.Server, ns string) stdio.Tool {
			confirm := s.Plan("scale", web(3)(ns))["confirm"]
			return s.Must("rollout_restart", harness.Args{"namespace": ns, "deployment": "web", "confirm": confirm, "reason": "a test"})
		},
	},
	{
		code: refusal.Expired, options: flags("--ttl", "1s"),
		do: func(t *testing.T, s *harness.Server, ns string) stdio.Tool {
			planned := s.Plan("scale", web(3)(ns))
			time.Sleep(1100 * time.Millisecond)
			return s.Must("scale", planned)
		},
	},
	{code: refusal.Stale, do: func(t *testing.T, s *harness.Server, ns string) stdio.Tool {
		planned := s.Plan("scale", web(3)(ns))
		apps := cp.Client.AppsV1().Deployments(ns)
		sc, err := apps.GetScale(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		sc.Spec.Replicas = 5
		if _, err := apps.UpdateScale(t.Context(), "web", sc, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		return s.Must("scale", planned)
	}},
	{
		code: refusal.Unreachable,
		options: func(t *testing.T, _ string) harness.Options {
			closed, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer closed.Close()
			return harness.Options{Config: &rest.Config{Host: "http://" + closed.Addr().String()}}
		},
		do: plans("plan_scale", web(3)),
	},
}

// TestRefusalCodes provokes the refusals as a client meets them. Whatever the code is,
// nothing was written.
func TestRefusalCodes(t *testing.T) {
	got := map[refusal.Code]bool{}
	for _, r := range refusals {
		got[r.code] = true
		name := string(r.code)
		if r.prose != "" {
			name += ", " + r.prose
		}
		t.Run(name, func(t *testing.T) {
			ns := cp.Namespace(t)
			deployment(t, ns, "web")
			var o harness.Options
			if r.options != nil {
				o = r.options(t, ns)
			}
			if o.Config == nil {
				o.Config = harness.Account(t, cp)
			}
			running := serve(t, stdio.Modern, o.Config, false, append([]string{"--allow-node-selector", "pool=lab"}, o.Args...)...)
			s := &harness.Server{Client: running.Client, T: t, State: running.state}
			answer := r.do(t, s, ns)
			t.Log(answer.Text)
			if c := harness.Code(answer); c != string(r.code) || !answer.IsError {
				t.Errorf("code is %q, want %q, isError %t: %s", c, r.code, answer.IsError, answer.Text)
			}
			if answer.Field("message") == "" || answer.Field("confirm") != "" {
				t.Errorf("a refusal must say why and hold no phrase: %s", answer.Structured)
			}
			noWrites(t, ns)
			running.end(t)
			events := harness.Events(t, s.State)
			if last := events[len(events)-1]; last != (&refusal.Refusal{Code: r.code}).Event() {
				t.Errorf("the last event is %q, want that of %s; all are %v", last, r.code, events)
			}
		})
	}
	for _, e := range refusal.Table {
		if why := notHere[e.Code]; got[e.Code] == (why != "") {
			t.Errorf("%s must be either provoked here or have a reason why not (%q)", e.Code, why)
		}
	}
	if len(notHere) > 5 {
		t.Errorf("%d codes are not provoked over the wire", len(notHere))
	}
}

// noWrites wants that no server wrote in a namespace, or to a node.
func noWrites(t *testing.T, ns string) {
	t.Helper()
	for _, w := range writes(t, ns) {
		t.Errorf("a refused call wrote: %s", w)
	}
}

// writes are the requests of servers in the API server's own audit log that were no
// reads and no dry runs. A node is in no namespace and counts for each.
func writes(t *testing.T, ns string) (out []string) {
	t.Helper()
	events, err := cp.AuditEvents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		mine := strings.HasPrefix(e.User.Username, "system:serviceaccount:kube-write-mcp:") &&
			(e.ObjectRef.Namespace == ns || e.ObjectRef.Resource == "nodes")
		dry := strings.Contains(e.RequestURI, "dryRun=All") || strings.Contains(string(e.RequestObject), `"dryRun":["All"]`)
		if mine && !dry && slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, e.Verb) {
			out = append(out, e.Verb+" "+e.RequestURI)
		}
	}
	return out
}

// TestWitness shows that the audit log does hold a write where there was one: what the
// refusals are held to is not empty by itself.
func TestWitness(t *testing.T) {
	ns := cp.Namespace(t)
	deployment(t, ns, "web")
	running := serve(t, stdio.Modern, harness.Account(t, cp), false, "--verify-timeout", "1s")
	s := &harness.Server{Client: running.Client, T: t, State: running.state}
	planned := s.Plan("scale", web(3)(ns))
	noWrites(t, ns)
	s.Must("scale", planned)
	running.end(t)
	if got := writes(t, ns); len(got) != 2 {
		t.Errorf("writes are %v, want the scale and its note", got)
	}
}
