// Package read has the read tools: what a model may look at before it plans. Each shows a
// fixed list of fields and never an object as it is; what it may cost is bounded in the
// query itself; what the cluster's users wrote stands in fields that begin with untrusted.
// No tool reads a Secret or a ConfigMap.
package read

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// Cluster is what the tools read from. It is fixed when the server starts.
type Cluster struct {
	API       kubernetes.Interface // whose transport lets nothing but reads through
	Journal   *journal.Journal
	Label     string                        // the cluster's name in every answer
	Principal journal.Principal             // whose writes write_history tells
	Redact    func(value string) string     // a keyed hash in the place of a value
	Excluded  func(namespace string) string // why nothing is written there, "" where it is
	Now       func() time.Time

	// Replica is this one's name where several share a ledger, and Journal holds what this
	// one did alone; else "".
	Replica string
}

// view is what one call may read.
type view struct {
	Cluster
	namespaces []string // that a call without a namespace covers; a single "" is all of them
}

// Args are the arguments of a tool. The scope's namespace is "" where a call covers all
// that are in scope.
type Args interface{ Scope() plan.Scope }

// Answer is what a tool gives: its JSON is the structured form, Text says the same.
type Answer interface {
	Text() string
	head() *Head
}

// Head is in every answer.
type Head struct {
	Cluster     string `json:"cluster"`
	NotOnRecord bool   `json:"not_on_record,omitempty" jsonschema:"the journal could not take this read"`
}

func (h *Head) head() *Head { return h }

// Tool is one read tool as data.
type Tool struct {
	Name  string
	Title string // a few words, no full stop
	Doc   string // what it reads, never a symptom to look for

	// Needs is what the server's account must be allowed; none for a tool that asks the
	// journal alone.
	Needs []rbacv1.PolicyRule

	Nodes bool // what it reads is in no namespace, whatever namespaces are in scope

	NewArgs func() Args // a pointer to new arguments, for the decoder
	Zero    Answer      // its type is the output schema's

	run func(context.Context, view, Args) (Answer, error)
}

// All lists the tools by name. Adding one is one file and one line here.
func All() []*Tool {
	return []*Tool{getLogs, getWorkload, listEvents, listNamespaces, listNodes, listPods, listWorkloads, writeHistory}
}

// Rules is the RBAC that the tools need, and no more.
func Rules() (rules []rbacv1.PolicyRule) {
	for _, t := range All() {
		for _, need := range t.Needs {
			if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
				return slices.Equal(r.APIGroups, need.APIGroups) && slices.Equal(r.Resources, need.Resources) && slices.Equal(r.Verbs, need.Verbs)
			}) {
				rules = append(rules, need)
			}
		}
	}
	return rules
}

// need is the right to read resources of one group.
func need(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
}

var (
	get        = []string{"get"}
	list       = []string{"list"}
	getAndList = []string{"get", "list"}
)

// answering is the pointer to an answer's struct.
type answering[R any] interface {
	*R
	Answer
}

// arguing is the pointer to the struct of a tool's arguments.
type arguing[A any] interface {
	*A
	Args
}

// of completes a tool with its types and what it does.
func of[A any, R any, PA arguing[A], PR answering[R]](t Tool, run func(context.Context, view, PA) (PR, error)) *Tool {
	t.NewArgs = func() Args { return PA(new(A)) }
	t.Zero = PR(new(R))
	t.run = func(ctx context.Context, v view, a Args) (Answer, error) {
		r, err := run(ctx, v, a.(PA))
		if err != nil {
			return nil, err
		}
		r.head().Cluster = v.Label
		return r, nil
	}
	return &t
}

// Live reports whether the tool asks the API server.
func (t *Tool) Live() bool { return t.Needs != nil }

// Run reads, in these namespaces only (a single "" is all of them). The error is a refusal
// or one of the API server.
func (t *Tool) Run(ctx context.Context, c Cluster, namespaces []string, args Args) (Answer, error) {
	return t.run(ctx, view{c, namespaces}, args)
}

// NotOnRecord marks an answer that the journal has no line of.
func NotOnRecord(a Answer) { a.head().NotOnRecord = true }

// The bounds of what a call may ask for.
const (
	defaultRows = 50
	maxRows     = 200
	defaultTail = 200 // lines of a log
	maxTail     = 2000
	maxLog      = 64 << 10 // bytes
	maxSince    = 30 * 24 * 60 * 60
	maxHandle   = 4096 // characters of a continue handle
	maxSelector = 512  // characters
)

// Bound adds the limits to an input schema, which the decoder holds calls to.
func Bound(s *jsonschema.Schema) {
	for name, most := range map[string]float64{"limit": maxRows, "tail": maxTail, "limit_bytes": maxLog, "since_seconds": maxSince} {
		if p := s.Properties[name]; p != nil {
			p.Minimum, p.Maximum = new(1.0), new(most)
		}
	}
	for name, most := range map[string]int{"continue": maxHandle, "selector": maxSelector} {
		if p := s.Properties[name]; p != nil {
			p.MaxLength = new(most)
		}
	}
}

// scoped is embedded by arguments that may leave the namespace out.
type scoped struct {
	Namespace string `json:"namespace,omitempty" jsonschema:"else all in scope"`
}

func (s scoped) Scope() plan.Scope { return plan.Scope{Namespace: s.Namespace} }

// namespaced is embedded by arguments that name one object.
type namespaced struct {
	Namespace string `json:"namespace" jsonschema:"exact name; no default"`
}

func (n namespaced) Scope() plan.Scope { return plan.Scope{Namespace: n.Namespace} }

// clusterWide is embedded by arguments of what is in no namespace.
type clusterWide struct{}

func (clusterWide) Scope() plan.Scope { return plan.Scope{} }

// workload is embedded by arguments that may name one object that makes pods.
type workload struct {
	Deployment  string `json:"deployment,omitempty" jsonschema:"exact name"`
	StatefulSet string `json:"statefulset,omitempty" jsonschema:"exact name"`
	DaemonSet   string `json:"daemonset,omitempty" jsonschema:"exact name"`
	ReplicaSet  string `json:"replicaset,omitempty" jsonschema:"exact name"`
	Job         string `json:"job,omitempty" jsonschema:"exact name"`
	CronJob     string `json:"cronjob,omitempty" jsonschema:"exact name"`
}

// named is the argument that names an object, and its value; it is "" where none does.
func (w workload) named() (argument, name string) {
	for _, f := range w.each() {
		if f[1] != "" {
			return f[0], f[1]
		}
	}
	return "", ""
}

func (w workload) each() [][2]string {
	return [][2]string{
		{"deployment", w.Deployment}, {"statefulset", w.StatefulSet}, {"daemonset", w.DaemonSet},
		{"replicaset", w.ReplicaSet}, {"job", w.Job}, {"cronjob", w.CronJob},
	}
}

// count is how many of the arguments name something.
func count(fields [][2]string) (n int) {
	for _, f := range fields {
		if f[1] != "" {
			n++
		}
	}
	return n
}

// denied makes of an API server's no the refusal that names the missing rule; any other
// error is given back as it is.
func denied(err error, verb, resource, namespace string) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	where := "in the whole cluster"
	if namespace != "" {
		where = "in namespace " + namespace
	}
	r := refusal.New(refusal.Forbidden, fmt.Sprintf("grant the server's account the verb %s on %s; kube-write-mcp rbac prints all that it needs", verb, resource),
		"the server's credentials may not %s %s %s", verb, resource, where)
	r.Untrusted = plan.Untrusted(err.Error())
	return r
}

// versioned gives the handle of an object for expected_version.
func versioned(o any) (string, error) {
	m, err := plan.ObjectOf(o)
	if err != nil {
		return "", err
	}
	return plan.VersionOf(m), nil
}

// quoted is what a caller sent, safe to repeat: ASCII, bounded.
func quoted(s string) string {
	q := strconv.QuoteToASCII(s)
	if len(q) > 80 {
		q = q[:80] + "..."
	}
	return q
}

// when writes a time; "" is none.
func when(t metav1.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// bounded is text of the cluster's users, for a list of so many rows: the more there are,
// the less room has each.
func bounded(s string, rows int) string {
	s = plan.Untrusted(s)
	if r := []rune(s); rows > defaultRows && len(r) > 64 {
		return string(r[:64]) + "…"
	}
	return s
}
