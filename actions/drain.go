package actions

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// DrainArgs are the arguments of drain.
type DrainArgs struct {
	action.OnNode
	DeleteEmptyDirData bool  `json:"delete_emptydir_data,omitempty" jsonschema:"evict pods whose emptyDir data is lost with them"`
	Force              bool  `json:"force,omitempty" jsonschema:"evict pods that no controller makes again"`
	TimeoutSeconds     int64 `json:"timeout_seconds,omitempty" jsonschema:"how long to wait for disruption budgets; 300 when left out"`
}

// SetDefaults fills in the timeout.
func (a *DrainArgs) SetDefaults() { a.TimeoutSeconds = cmp.Or(a.TimeoutSeconds, 300) }

// Drain cordons one node and evicts its pods, waiting for their disruption budgets.
var Drain = add(action.New(action.Spec{
	Name:         "drain",
	Title:        "Drain a node",
	Doc:          "Cordon one Node and evict its pods, waiting for their disruption budgets. DaemonSet and static pods stay.",
	Destroys:     true,
	RequiresUser: true,
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"persistentvolumes"}, Verbs: []string{"list"}},
		{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, Verbs: []string{"get"}},
	},
	Schema: func(s *jsonschema.Schema) { action.Between(s, "timeout_seconds", 1, 3600) },
}, planDrain))

func planDrain(ctx context.Context, s *action.Session, a DrainArgs) error {
	n, err := s.CoreV1().Nodes().Get(ctx, a.Node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := s.Target(n); err != nil {
		return err
	}
	// By spec.nodeName and not by a label: names, labels and host names differ.
	pods, err := s.PodsOnNode(ctx, n.Name)
	if err != nil {
		return err
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	d := drain{Session: s, args: a, daemonSets: map[string]bool{}}
	for _, p := range pods {
		if err := d.consider(ctx, p); err != nil {
			return err
		}
	}
	if d.faults != nil {
		return s.Refuse(refusal.PreconditionFailed, "move these pods away first, or plan with "+strings.Join(d.options, " and "),
			"node %s has pods that a drain would lose: %s", n.Name, list(d.faults))
	}
	if len(d.evict) == 0 && n.Spec.Unschedulable {
		return nil
	}
	tokens := []any{"drain", "node", n.Name, "evicting", len(d.evict), plan.Plural(len(d.evict), "pod")}
	if d.optOuts > 0 {
		tokens = append(tokens, "with", d.optOuts, plan.Plural(d.optOuts, "opt-out"))
	}
	if err := s.Say(tokens...); err != nil {
		return err
	}
	if !ready(n) {
		s.Warn("node %s is not ready: evicted pods may stay terminating, since no kubelet confirms their end", n.Name)
	}
	d.warnOfVolumes(ctx, n)
	s.Kubectl("%s", a.kubectl(n.Name))
	if n.Spec.Unschedulable { // by somebody before, who did not ask for its end
		s.Undo(plan.Undo{Note: "evicted pods do not come back to the node by themselves; it was cordoned before and stays so"})
	} else {
		s.UndoCall("plan_uncordon", UncordonArgs{action.OnNode{Node: n.Name}}, "kubectl uncordon "+n.Name, "evicted pods do not come back to the node by themselves")
		if err := proposeCordon(s, n); err != nil {
			return err
		}
	}
	for _, p := range d.evict {
		if err := s.Evict(p, nil, plan.Wait, a.TimeoutSeconds); err != nil {
			return err
		}
	}
	return nil
}

func (a DrainArgs) kubectl(node string) string {
	line := fmt.Sprintf("kubectl drain %s --ignore-daemonsets --timeout=%ds", node, a.TimeoutSeconds)
	if a.DeleteEmptyDirData {
		line += " --delete-emptydir-data"
	}
	if a.Force {
		line += " --force"
	}
	return line
}

// drain sorts the pods of a node into those that go, stay, or stand in the way.
type drain struct {
	*action.Session
	args       DrainArgs
	daemonSets map[string]bool // namespace/name -> exists
	evict      []*corev1.Pod
	faults     []string
	options    []string // that would pass
	optOuts    int      // of evict, marked by their owners as not to be disrupted
}

func (d *drain) consider(ctx context.Context, p *corev1.Pod) error {
	name := p.Namespace + "/" + p.Name
	facts := d.Facts(p)
	owner := facts.Owner
	lost := func(what, option string, allowed bool) {
		if allowed {
			return
		}
		d.faults = append(d.faults, name+" ("+what+")")
		if !slices.Contains(d.options, option) {
			d.options = append(d.options, option)
		}
	}
	why, err := d.Excluded(ctx, p.Namespace)
	switch {
	case err != nil:
		return err
	case why != "":
		d.Stays("%s: its namespace is %s", name, why)
		return nil
	case facts.Mirror:
		d.Stays("%s: a static pod", name)
		return nil
	case facts.Terminating:
		d.Stays("%s: terminating already", name)
		return nil
	case facts.Finished():
	case owner == plan.Owner{}:
		lost("no controller makes it again", "force: true", d.args.Force)
	case owner.Kind == "DaemonSet":
		exists, err := d.daemonSet(ctx, p.Namespace, owner.Name)
		if err != nil {
			return err
		}
		if exists {
			d.Stays("%s: of daemonset %s", name, owner.Name)
			return nil
		}
		lost("daemonset "+action.SafeName(owner.Name)+" not found", "force: true", d.args.Force)
		d.Warn("%s belongs to daemonset %s, which is gone", name, action.SafeName(owner.Name))
	}
	if len(facts.EmptyDirs) > 0 && !facts.Finished() {
		lost("emptyDir "+strings.Join(facts.EmptyDirs, ", "), "delete_emptydir_data: true", d.args.DeleteEmptyDirData)
	}
	d.evict = append(d.evict, p)
	if facts.OptOut && !facts.Finished() {
		d.optOuts++
	}
	return nil
}

func (d *drain) daemonSet(ctx context.Context, namespace, name string) (bool, error) {
	key := namespace + "/" + name
	if exists, known := d.daemonSets[key]; known {
		return exists, nil
	}
	if action.SafeName(name) != name { // any text: client-go fails on some of it, and the drain would with it
		return false, nil
	}
	_, err := d.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	d.daemonSets[key] = err == nil
	return err == nil, nil
}

// warnOfVolumes names the pods of which a volume can be had on this node alone.
func (d *drain) warnOfVolumes(ctx context.Context, n *corev1.Node) {
	claims := map[string][]string{} // namespace/claim -> pods
	for _, p := range d.evict {
		for _, v := range p.Spec.Volumes {
			claim := ""
			switch {
			case v.PersistentVolumeClaim != nil:
				claim = v.PersistentVolumeClaim.ClaimName
			case v.Ephemeral != nil:
				claim = p.Name + "-" + v.Name
			}
			if claim != "" && !d.Facts(p).Finished() {
				key := p.Namespace + "/" + claim
				claims[key] = append(claims[key], p.Namespace+"/"+p.Name)
			}
		}
	}
	if len(claims) == 0 {
		return
	}
	tied, err := d.tied(ctx, n, claims)
	switch {
	case err != nil:
		d.Warn("not known: whether volumes tie the evicted pods to node %s, since persistentvolumes or nodes cannot be listed", n.Name)
	case len(tied) > 0:
		d.Warn("%d %s cannot run elsewhere, because of the nodes that have their volumes: %s", len(tied), plan.Plural(len(tied), "pod"), list(tied))
	}
}

// tied gives the pods of claims that are bound to a volume which no other node has that
// takes pods. A volume knows its claim, so one list of them is enough.
func (d *drain) tied(ctx context.Context, n *corev1.Node, claims map[string][]string) (pods []string, err error) {
	volumes, err := d.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var nodes *corev1.NodeList
	for _, v := range volumes.Items {
		if v.Spec.ClaimRef == nil || v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
			continue
		}
		users := claims[v.Spec.ClaimRef.Namespace+"/"+v.Spec.ClaimRef.Name]
		if users == nil {
			continue
		}
		if nodes == nil {
			if nodes, err = d.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil {
				return nil, err
			}
		}
		if !slices.ContainsFunc(nodes.Items, func(other corev1.Node) bool {
			has, err := corev1helpers.MatchNodeSelectorTerms(&other, v.Spec.NodeAffinity.Required)
			return err == nil && has && other.Name != n.Name && !other.Spec.Unschedulable && ready(&other)
		}) {
			pods = append(pods, users...)
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods), nil
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// list names the first ten of many.
func list(all []string) string {
	if len(all) > 10 {
		return strings.Join(all[:10], ", ") + fmt.Sprintf(" and %d more", len(all)-10)
	}
	return strings.Join(all, ", ")
}
