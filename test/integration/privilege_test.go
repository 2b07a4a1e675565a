package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// printed runs a command of the program and gives the objects that it prints.
func printed(t *testing.T, args ...string) (out []client.Object) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := app.Main(args, nil, &stdout, &stderr, actions.All()...); code != 0 {
		t.Fatalf("%v: %s", args, stderr.String())
	}
	docs := yaml.NewYAMLReader(bufio.NewReader(&stdout))
	for {
		doc, err := docs.Read()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v in %s", err, doc)
		}
		out = append(out, o.(client.Object))
	}
}

// apply makes objects, whose every field the API server must know.
func apply(t *testing.T, objects ...client.Object) {
	t.Helper()
	c, err := client.New(cp.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c = client.WithFieldValidation(c, metav1.FieldValidationStrict)
	for _, o := range objects {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatalf("%T %s: %v", o, o.GetName(), err)
		}
		if o.GetNamespace() == "" {
			t.Cleanup(func() { _ = c.Delete(context.Background(), o) })
		}
	}
}

// login is a config with a token of an account that exists.
func login(t *testing.T, ns, name string) *rest.Config {
	t.Helper()
	token, err := cp.Client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](24 * 60 * 60)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(cp.Config)
	cfg.BearerToken, cfg.QPS = token.Status.Token, -1
	return cfg
}

// may asks the API server's authorizer about one right of an account.
func may(t *testing.T, account string, r right) bool {
	t.Helper()
	resource, sub, _ := strings.Cut(r.resource, "/")
	review, err := cp.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: account, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: r.verb, Group: r.group, Resource: resource, Subresource: sub, Namespace: r.namespace, Name: r.name,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// right is one verb on one resource.
type right struct{ verb, group, resource, namespace, name string }

func (r right) String() string { return strings.TrimSuffix(r.verb+" "+r.resource+"."+r.group, ".") }

// rightsOf takes rules apart.
func rightsOf(rules []rbacv1.PolicyRule) (out []right) {
	for _, r := range rules {
		names := r.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				for _, name := range names {
					out = append(out, right{verb: verb, group: r.APIGroups[0], resource: resource, name: name})
				}
			}
		}
	}
	return out
}

// granted waits until the API server's authorizer knows every right of these roles, which
// and whose bindings it learns of each by a watch of its own.
func granted(t *testing.T, account string, objects ...client.Object) {
	t.Helper()
	var rights []right
	for _, o := range objects {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			rights = append(rights, rightsOf(o.Rules)...)
		case *rbacv1.Role:
			for _, r := range rightsOf(o.Rules) {
				r.namespace = o.Namespace
				rights = append(rights, r)
			}
		}
	}
	lab.Eventually(t, "the rights of "+account, func() (bool, error) {
		return !slices.ContainsFunc(rights, func(r right) bool { return !may(t, account, r) }), nil
	})
}

// allCalls are calls of one action that together use everything it can be about: each
// kind of target, one that the answer must name a neighbour of, and the special cases that
// read something more.
func (b workbench) allCalls(t *testing.T, action string) []harness.Args {
	t.Helper()
	base := b.furnish(t)[action]
	out := []harness.Args{base}
	on := func(kind, name string) {
		a := harness.Args{}
		for k, v := range base {
			if !slices.Contains([]string{"deployment", "statefulset", "daemonset", "replicaset"}, k) {
				a[k] = v
			}
		}
		out = append(out, a.With(kind, name))
	}
	switch action {
	case "scale":
		on("statefulset", "db")
		on("replicaset", "rs")
		out = append(out, base.With("replicas", 1))
	case "rollout_restart", "set_image":
		on("statefulset", "db")
		on("daemonset", "agent")
		if action == "rollout_restart" { // its undo names the revision
			b.daemonHistory(t)
		}
	case "rollout_resume": // its template was changed meanwhile
		d, err := cp.Client.AppsV1().Deployments(b.ns).Get(t.Context(), "paused", metav1.GetOptions{})
		if err == nil {
			d.Status.UpdatedReplicas = 0
			_, err = cp.Client.AppsV1().Deployments(b.ns).UpdateStatus(t.Context(), d, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	case "rollout_undo":
		on("statefulset", "pastset")
		on("daemonset", "agent")
		b.daemonHistory(t)
	case "evict_pod":
		b.jobPod(t)
		out = append(out, of(b.ns, "pod", "of-mail"))
	case "drain":
		b.jobPod(t)
		b.daemonPod(t)
	}
	// A name that is nearly one: the answer names those there are.
	for kind, name := range base {
		if s, ok := name.(string); ok && slices.Contains([]string{"deployment", "cronjob", "job", "pod", "node"}, kind) {
			out = append(out, base.With(kind, s+"x"))
		}
	}
	for _, a := range out {
		for _, kind := range []string{"statefulset", "daemonset", "replicaset"} {
			if s, ok := a[kind].(string); ok {
				out = append(out, a.With(kind, s+"x"))
			}
		}
	}
	return out
}

// jobPod is a pod of the Job mail, on the node that is drained, with a volume.
func (b workbench) jobPod(t *testing.T) {
	t.Helper()
	job, err := cp.Client.BatchV1().Jobs(b.ns).Get(t.Context(), "mail", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	harness.Create(t, cp, b.ns, harness.Pod("of-mail").On(b.drained).With(func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}})
	}))
}

// daemonPod is a pod of the DaemonSet agent on the node that is drained.
func (b workbench) daemonPod(t *testing.T) {
	t.Helper()
	set, err := cp.Client.AppsV1().DaemonSets(b.ns).Get(t.Context(), "agent", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	harness.Create(t, cp, b.ns, harness.Pod("of-agent").On(b.drained).With(func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set.Name, UID: set.UID, Controller: ptr.To(true)}}
	}))
}

// daemonHistory gives the DaemonSet agent an earlier revision.
func (b workbench) daemonHistory(t *testing.T) {
	t.Helper()
	set, err := cp.Client.AppsV1().DaemonSets(b.ns).Get(t.Context(), "agent", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for n, image := range []string{"main:0", set.Spec.Template.Spec.Containers[0].Image} {
		set.Spec.Template.Spec.Containers[0].Image = image
		tpl, _ := json.Marshal(set.Spec.Template)
		if _, err := cp.Client.AppsV1().ControllerRevisions(b.ns).Create(t.Context(), &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("agent-r%d", n), Labels: set.Spec.Template.Labels,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
			},
			Revision: int64(n + 1), Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":{"$patch":"replace",` + string(tpl[1:]) + `}}`)},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// said is what an answer to a plan says of rights: what it refuses, why, what it could not
// know, and how exactly it is taken back.
func said(t *testing.T, got stdio.Tool) string {
	t.Helper()
	var s struct {
		Code, Message, Hint string
		Warnings, Stays     []string
		Also                []struct{ Code, Message string }
		Undo                struct{ Arguments json.RawMessage }
	}
	if err := json.Unmarshal(got.Structured, &s); err != nil {
		return got.Text
	}
	return fmt.Sprintln(s.Code, s.Message, s.Hint, s.Warnings, s.Stays, s.Also, string(s.Undo.Arguments))
}

// unseen are rights whose lack no plan shows, and what they are for.
var unseen = map[string]string{
	"get namespaces of cordon":          "the cluster's identity, which is else a hash of its address",
	"get namespaces of uncordon":        "the cluster's identity, which is else a hash of its address",
	"get nodes of delete_pod":           "a verdict names the node whose kubelet does not confirm the end of a pod",
	"get nodes of evict_pod":            "a verdict names the node whose kubelet does not confirm the end of a pod",
	"get pods of drain":                 "the last look at a pod before it is evicted",
	"get jobs.batch of cronjob_trigger": "the last look for a job of that name before it is made",
}

// TestExactlyTheGeneratedRights: each action works under the RBAC that is generated for it
// alone, and misses whichever right of its own is taken away (those of the reads are beside
// them). A right to write is missed in the dry
// run, by a 403 that names it. Of list and watch either one serves while the API server
// streams its lists, so these are taken away together where nothing misses the one.
func TestExactlyTheGeneratedRights(t *testing.T) {
	for _, a := range actions.All() {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			b := newWorkbench(t)
			calls := b.allCalls(t, a.Name)
			name := "only-" + b.ns
			objects := printed(t, "rbac", "--actions", a.Name, "--allow-node-selector", "pool=lab", "--namespace", b.ns, "--service-account", name)
			apply(t, objects...)
			role := objects[1].(*rbacv1.ClusterRole)
			rights := rightsOf(role.Rules)
			cfg := login(t, b.ns, name)
			grant := func(t *testing.T, less ...right) {
				t.Helper()
				role.Rules = nil
				for _, r := range rights {
					if !slices.Contains(less, r) {
						role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{r.resource}, Verbs: []string{r.verb}})
					}
				}
				var err error
				if role, err = cp.Client.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				lab.Eventually(t, "the rights", func() (bool, error) {
					return !slices.ContainsFunc(rights, func(r right) bool {
						return may(t, "system:serviceaccount:"+b.ns+":"+name, r) == slices.Contains(less, r)
					}), nil
				})
			}
			ask := func(t *testing.T) (out []string) {
				s := harness.Start(t, cp, harness.Options{Config: cfg, Args: append([]string{"--verify-timeout", "1s"}, wide...)})
				for _, args := range calls {
					out = append(out, said(t, s.Must("plan_"+a.Name, args)))
				}
				return out
			}
			grant(t)
			whole := ask(t)
			if strings.Contains(strings.Join(whole, ""), "not known") {
				t.Errorf("something is missing: %s", whole)
			}
			for _, r := range rightsOf(engine.Rules([]*action.Action{a})) {
				t.Run("without "+r.String(), func(t *testing.T) {
					grant(t, r)
					got := ask(t)
					if slices.Equal(got, whole) && (r.verb == "list" || r.verb == "watch") {
						list, watch := r, r
						list.verb, watch.verb = "list", "watch"
						grant(t, list, watch)
						got = ask(t)
					}
					if slices.Equal(got, whole) && unseen[r.String()+" of "+a.Name] == "" {
						t.Errorf("nothing misses it: it is more than is needed\n%s", strings.Join(got, ""))
					}
					if slices.Contains([]string{"get", "list", "watch"}, r.verb) {
						return
					}
					want := []string{"dry run failed (403)", "no confirm phrase", "verb " + r.verb + " on " + strings.TrimPrefix(r.String(), r.verb+" ")}
					if a.Name == "scale" && r.verb == "patch" {
						want = []string{"the reason cannot be noted on the object (403)"}
					}
					for i := range got {
						if strings.HasPrefix(got[i], "not_found") {
							continue // the nodes of the tests beside it come and go among the near names
						}
						for _, w := range want {
							if got[i] != whole[i] && !strings.Contains(got[i], w) {
								t.Errorf("the answer lacks %q: %s", w, got[i])
							}
						}
					}
				})
			}
		})
	}
}

// TestActionsUnderTheirRights: everything is executed under the generated RBAC, in the
// whole cluster and in one namespace alone; beside it nothing may be written.
func TestActionsUnderTheirRights(t *testing.T) {
	for _, a := range actions.All() {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			b := newWorkbench(t)
			args := b.furnish(t)[a.Name]
			limits := []string{"--allow-namespaces", b.ns, "--allow-nodes", strings.Join([]string{b.node, b.drained, b.ns + "-cordoned"}, ",")}
			home := cp.Namespace(t)
			name := "inside-" + b.ns
			objects := printed(t, append([]string{"rbac", "--actions", a.Name, "--namespace", home, "--service-account", name}, limits...)...)
			apply(t, objects...)
			user := "system:serviceaccount:" + home + ":" + name
			granted(t, user, objects...)
			for _, r := range rightsOf(a.Needs) {
				if !slices.Contains([]string{"get", "list", "watch"}, r.verb) {
					r.namespace, r.name = "default", "other"
					if may(t, user, r) {
						t.Errorf("it may %s outside", r)
					}
				}
			}
			s := harness.Start(t, cp, harness.Options{Config: login(t, home, name), Args: append(append([]string{"--verify-timeout", "1s"}, limits...), wide...)})
			got := s.Do(a.Name, args)
			if x := harness.Into[execution](t, got); x.Outcome != plan.Executed {
				t.Errorf("outcome %s: %s", x.Outcome, got.Text)
			}
		})
	}
}
