package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	ledger "github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/manifests"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
)

// right is one verb on one resource, in one namespace or ("") in all of them.
type right struct{ verb, group, resource, namespace, name string }

func (r right) String() string {
	s := strings.TrimSuffix(r.verb+" "+r.resource+"."+r.group, ".")
	if r.name != "" {
		s += " " + r.name
	}
	if r.namespace != "" {
		s += " in " + r.namespace
	}
	return s
}

// rightsIn are the rights of rules where the generated RBAC grants them, so that both
// never differ.
func rightsIn(p gate.Policy, shares *manifests.Ledger, all, onNodes []rbacv1.PolicyRule) (rights []right) {
	grant := func(namespace string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			names := r.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						for _, name := range names {
							rights = append(rights, right{verb, group, resource, namespace, name})
						}
					}
				}
			}
		}
	}
	for _, o := range manifests.RBAC(manifests.Config{Policy: p, Rules: all, OnNodes: onNodes, Ledger: shares}) {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			grant("", o.Rules)
		case *rbacv1.Role:
			grant(o.Namespace, o.Rules)
		}
	}
	return rights
}

var dry = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// maxReviews is how many reviews are under way at once.
const maxReviews = 8

// missing asks of each enabled action whether the credential has its rights.
func (o *options) missing(ctx context.Context, d *doctor) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	lacks, slots := map[right]bool{}, make(chan struct{}, maxReviews)
	var failed error
	for _, r := range d.needed {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			resource, sub, _ := strings.Cut(r.resource, "/")
			review, err := d.clients.Read.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: r.verb, Group: r.group, Resource: resource, Subresource: sub, Namespace: r.namespace, Name: r.name,
				}},
			}, dry)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			} else if !review.Status.Allowed {
				lacks[r] = true
			}
		})
	}
	wg.Wait()
	if failed != nil {
		d.say("rights", unknown, "let the credential create selfsubjectaccessreviews, as system:basic-user does", "the API server does not say what we may: %s", kube.Text(failed))
		return
	}
	const fix = "grant what the rbac command prints with the same flags: kube-write-mcp rbac | kubectl apply -f -"
	tell := func(whose string, rights []right) {
		var no []string
		for _, r := range rights {
			if lacks[r] {
				no = append(no, r.String())
			}
		}
		if no != nil {
			d.say("rights of "+whose, broken, fix, "missing: %s", several(no))
		}
	}
	enabled, node := o.usable(d.policy)
	for _, a := range enabled {
		rules, onNodes := engine.Rules([]*action.Action{a}), []rbacv1.PolicyRule(nil)
		if slices.Contains(node, a) {
			onNodes = rules
		}
		tell(a.Name, rightsIn(d.policy, nil, rules, onNodes))
	}
	tell("the read tools", rightsIn(d.policy, nil, read.Rules(), nil))
	if o.http != "" {
		tell("asking who calls", rightsIn(d.policy, nil, kube.ReviewRules, nil))
	}
	if d.shares != nil {
		tell("the cluster ledger", rightsIn(gate.Policy{}, d.shares, nil, nil))
	}
	if len(lacks) == 0 {
		d.say("rights", good, "", "nothing that the enabled actions need is missing")
	}
}

// several names the first eight of many, what writes before what reads.
func several(all []string) string {
	reads := func(s string) int {
		verb, _, _ := strings.Cut(s, " ")
		return slices.Index([]string{"get", "list", "watch"}, verb)
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(cmp.Compare(min(reads(a), 0), min(reads(b), 0)), cmp.Compare(a, b))
	})
	all = slices.Compact(all)
	if len(all) > 8 {
		return strings.Join(all[:8], ", ") + fmt.Sprintf(" and %d more", len(all)-8)
	}
	return strings.Join(all, ", ")
}

// excess names what the credential may do beside what is needed: in the namespaces that
// are allowed, and in two that no action may touch.
func (d *doctor) excess(ctx context.Context) {
	const fix = "use a ServiceAccount with exactly what the rbac command prints"
	harmful, more := map[string][]string{}, map[string][]string{} // the namespaces of each right
	namespaces := append(slices.Clone(d.policy.AllowNamespaces), metav1.NamespaceDefault, metav1.NamespaceSystem)
	if d.shares != nil {
		namespaces = append(namespaces, d.shares.Namespace)
	}
	slices.Sort(namespaces)
	namespaces = slices.Compact(namespaces)
	for _, ns := range namespaces {
		review, err := d.clients.Read.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
			Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns},
		}, dry)
		if err != nil {
			d.say("rights too many", unknown, "let the credential create selfsubjectrulesreviews, as system:basic-user does", "the API server does not say what we may: %s", kube.Text(err))
			return
		}
		if review.Status.Incomplete {
			d.say("rights too many", unknown, "", "the list of rights in %s is not complete: an authorizer beside RBAC does not tell", ns)
		}
		for _, rule := range review.Status.ResourceRules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						d.judge(right{verb: verb, group: group, resource: resource}, ns, rule.ResourceNames, harmful, more)
					}
				}
			}
		}
		for _, rule := range review.Status.NonResourceRules {
			if slices.Contains(rule.NonResourceURLs, "*") {
				said := strings.Join(rule.Verbs, ",") + " of every path"
				harmful[said] = append(harmful[said], ns)
			}
		}
	}
	list := func(rights map[string][]string) string {
		var said []string
		for r, in := range rights {
			if in = slices.Compact(in); len(in) < len(namespaces) {
				r += " in " + strings.Join(in, ", ")
			}
			said = append(said, r)
		}
		return several(said)
	}
	if len(harmful) > 0 {
		d.say("rights too many", broken, fix, "it could do great harm: %s", list(harmful))
	}
	if len(more) > 0 {
		d.say("rights too many", warning, fix, "no enabled action needs: %s", list(more))
	}
	if len(harmful)+len(more) == 0 {
		d.say("rights too many", good, "", "there is none that no enabled action needs")
	}
}

// judge sorts one right that the credential has in a namespace.
func (d *doctor) judge(r right, namespace string, names []string, harmful, more map[string][]string) {
	needed := slices.ContainsFunc(d.needed, func(n right) bool {
		return n.verb == r.verb && n.group == r.group && n.resource == r.resource && (n.namespace == "" || n.namespace == namespace) &&
			(n.name == "" || slices.Contains(names, n.name))
	})
	named := r.verb == "impersonate" && d.impersonates && len(names) > 0 // --impersonate is for these
	if needed || everybodys(r) || named {
		return
	}
	said := strings.TrimSuffix(r.verb+" "+plan.Untrusted(r.resource)+"."+plan.Untrusted(r.group), ".")
	if wildcard := r.verb == "*" || r.resource == "*" || r.group == "*"; wildcard || grave(r) {
		harmful[said] = append(harmful[said], namespace)
		return
	}
	more[said] = append(more[said], namespace)
}

// everybodys are the rights that Kubernetes gives to every account by its default roles:
// to ask who one is and what one may, and to read the cluster's trust bundles.
func everybodys(r right) bool {
	switch r.group {
	case "authentication.k8s.io", "authorization.k8s.io":
		return r.verb == "create" && strings.HasPrefix(r.resource, "selfsubject")
	case "certificates.k8s.io":
		return r.resource == "clustertrustbundles" && slices.Contains([]string{"get", "list", "watch"}, r.verb)
	}
	return false
}

// grave are the rights with which a credential reads secrets, runs what it likes, or gives
// itself more.
func grave(r right) bool {
	switch r.resource {
	case "secrets", "pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers", "serviceaccounts/token",
		"nodes/proxy", "pods/proxy", "services/proxy":
		return true
	}
	return slices.Contains([]string{"impersonate", "escalate", "bind"}, r.verb)
}

// dryRun sends the dry run of an annotation to an object that an action could write, and
// looks whether anything moved.
func (d *doctor) dryRun(ctx context.Context) {
	const check = "dry run"
	t, found, err := d.specimen(ctx)
	if !found {
		said := "there is no object here that an enabled action could write"
		if err != nil {
			said = kube.Text(err)
		}
		d.say(check, unknown, "run this again where there is one", "not tried: %s", said)
		return
	}
	const path = "/metadata/annotations/kubewrite.dev~1doctor"
	for range 5 { // the version moves with every status write of others, so one quiet moment is enough
		before, err := d.clients.Read.Get(ctx, t)
		if err != nil {
			d.say(check, unknown, "", "%s cannot be read: %s", t, kube.Text(err))
			return
		}
		t.UID = before.Value("metadata.uid")
		id, err := instance()
		if err != nil {
			d.say(check, unknown, "", "%v", err)
			return
		}
		slots := plan.Slots{}
		if before.Value("metadata.annotations") == "" {
			slots.Absent = []string{"/metadata/annotations"}
		}
		step := plan.Step{Verb: plan.Patch, Target: t, Patch: []plan.Op{
			{Op: "ensure", Path: "/metadata/annotations"}, {Op: "add", Path: path, Value: plan.JSON("dry-run-" + id)},
		}}
		ans, err := d.clients.Dry.Send(ctx, "doctor", "kube-write-mcp-doctor-d"+id, step, slots, time.Time{})
		if err != nil {
			d.say(check, broken, "see the rights above, and the webhooks and policies of the cluster", "refused for %s (%d): %s", t, ans.Code, kube.Text(err))
			return
		}
		after, err := d.clients.Read.Get(ctx, t)
		switch {
		case err != nil:
			d.say(check, unknown, "", "%s cannot be read: %s", t, kube.Text(err))
			return
		case after.Value("metadata.annotations[kubewrite.dev/doctor]") == "dry-run-"+id:
			d.say(check, broken, "do not use this cluster: what answers for it does not honour dryRun; take the annotation kubewrite.dev/doctor away",
				"it was written: %s", t)
			return
		case after.Value("metadata.resourceVersion") == before.Value("metadata.resourceVersion"):
			d.say(check, good, "", "it changed nothing: %s is still at version %s", t, after.Value("metadata.resourceVersion"))
			return
		}
	}
	d.say(check, unknown, "run this again at a quieter time", "others write to %s all the time; the dry run left nothing in it", t)
}

// specimen finds an object in scope that the credential should be able to patch.
func (d *doctor) specimen(ctx context.Context) (t plan.Target, found bool, err error) {
	c := d.clients.Read
	o := metav1.ListOptions{Limit: 50}
	lists := map[string]func(ns string) (runtime.Object, error){
		"deployments":  func(ns string) (runtime.Object, error) { return c.AppsV1().Deployments(ns).List(ctx, o) },
		"statefulsets": func(ns string) (runtime.Object, error) { return c.AppsV1().StatefulSets(ns).List(ctx, o) },
		"daemonsets":   func(ns string) (runtime.Object, error) { return c.AppsV1().DaemonSets(ns).List(ctx, o) },
		"cronjobs":     func(ns string) (runtime.Object, error) { return c.BatchV1().CronJobs(ns).List(ctx, o) },
		"jobs":         func(ns string) (runtime.Object, error) { return c.BatchV1().Jobs(ns).List(ctx, o) },
		"nodes":        func(string) (runtime.Object, error) { return c.CoreV1().Nodes().List(ctx, o) },
	}
	for _, r := range d.needed {
		list, ok := lists[r.resource]
		if r.verb != "patch" || !ok {
			continue
		}
		objects, listErr := list(r.namespace)
		if listErr != nil {
			err = cmp.Or(err, listErr)
			continue
		}
		_ = meta.EachListItem(objects, func(o runtime.Object) error {
			m, err := meta.Accessor(o)
			allowed := err == nil && (r.name == "" || r.name == m.GetName()) && (m.GetNamespace() == "" || d.policy.Excluded(m.GetNamespace()) == "")
			if allowed && !found {
				t, found = plan.Target{Resource: r.resource, Namespace: m.GetNamespace(), Name: m.GetName()}, true
			}
			return err
		})
		if found {
			return t, true, nil
		}
	}
	return t, false, err
}

// webhooks finds those that see the dry runs of what the actions write.
func (d *doctor) webhooks(ctx context.Context) {
	const check = "webhooks"
	api := d.clients.Read.AdmissionregistrationV1()
	validating, err := api.ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	var mutating *admissionv1.MutatingWebhookConfigurationList
	if err == nil {
		mutating, err = api.MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	}
	if err != nil {
		why := kube.Text(err)
		if apierrors.IsForbidden(err) {
			why = "this credential may not list them, and need not"
		}
		d.say(check, unknown, "run this with an operator's kubeconfig to know", "%s", why)
		return
	}
	before := len(d.findings)
	look := func(name string, rules []admissionv1.RuleWithOperations, effects *admissionv1.SideEffectClass, policy *admissionv1.FailurePolicyType) {
		hit := d.touched(rules)
		if hit == nil {
			return
		}
		name = plan.Untrusted(name)
		if effects == nil || (*effects != admissionv1.SideEffectClassNone && *effects != admissionv1.SideEffectClassNoneOnDryRun) {
			d.say(check, broken, "have its owner declare sideEffects None or NoneOnDryRun, and mean it", "%s has side effects: the API server refuses dry runs of %s", name, several(hit))
			return
		}
		if policy == nil || *policy == admissionv1.Fail {
			d.say(check, warning, "see that it runs with more than one replica, or exempt the server's account", "%s sees the dry runs of %s, and while it is down they fail", name, several(hit))
		}
	}
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			look(w.Name, w.Rules, w.SideEffects, w.FailurePolicy)
		}
	}
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			look(w.Name, w.Rules, w.SideEffects, w.FailurePolicy)
		}
	}
	if len(d.findings) == before {
		d.say(check, good, "", "none stands in the way of a dry run")
	}
}

// touched are the resources that the enabled actions write and that rules match.
func (d *doctor) touched(rules []admissionv1.RuleWithOperations) (hit []string) {
	operation := map[string]admissionv1.OperationType{
		"patch": admissionv1.Update, "update": admissionv1.Update, "create": admissionv1.Create, "delete": admissionv1.Delete,
	}
	for _, n := range d.needed {
		op, writes := operation[n.verb]
		resource, sub, _ := strings.Cut(n.resource, "/")
		patterns := []string{"*", resource}
		if sub != "" {
			patterns = []string{"*/*", resource + "/*", "*/" + sub, n.resource}
		}
		if writes && slices.ContainsFunc(rules, func(r admissionv1.RuleWithOperations) bool {
			return (slices.Contains(r.Operations, op) || slices.Contains(r.Operations, admissionv1.OperationAll)) &&
				(slices.Contains(r.APIGroups, n.group) || slices.Contains(r.APIGroups, "*")) &&
				slices.ContainsFunc(r.Resources, func(s string) bool { return slices.Contains(patterns, s) || (s == "*/*" && sub == "") })
		}) {
			hit = append(hit, n.resource)
		}
	}
	return hit
}

// approvals looks whether an Approval is the word of the one whom it names.
func (d *doctor) approvals(ctx context.Context) {
	const check, fix = "approvals", "apply what the manifests command prints with --ledger cluster: without it whoever may create an Approval can name another person as its approver"
	if d.shares == nil {
		return
	}
	policy, binding := ledger.ApprovalPolicy()
	api := d.clients.Read.AdmissionregistrationV1()
	there, err := api.ValidatingAdmissionPolicies().Get(ctx, policy.Name, metav1.GetOptions{})
	bound := &admissionv1.ValidatingAdmissionPolicyBinding{}
	if err == nil {
		bound, err = api.ValidatingAdmissionPolicyBindings().Get(ctx, binding.Name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		d.say(check, broken, fix, "the policy %s is not installed, or not bound", policy.Name)
	case err != nil:
		d.say(check, unknown, "run this with an operator's kubeconfig to know", "the policy %s cannot be read: %s", policy.Name, kube.Text(err))
	case !equality.Semantic.DeepDerivative(policy.Spec, there.Spec) || !equality.Semantic.DeepDerivative(binding.Spec, bound.Spec):
		d.say(check, broken, fix, "the policy %s or its binding is not as this version needs it", policy.Name)
	default:
		d.say(check, good, "", "who approves can name nobody else")
	}
}
