package app

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	ledger "github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/manifests"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/pkg/server"
)

// place is where the server runs in the cluster: what its objects are made for.
type place struct{ namespace, account string }

func (p *place) addFlags(f *pflag.FlagSet) {
	f.StringVar(&p.namespace, "namespace", "kube-write-mcp", "`namespace` of the server in the cluster")
	f.StringVar(&p.account, "service-account", "kube-write-mcp", "`name` of the server's ServiceAccount, and of what is made with it")
}

// config is what objects are made from. The server's own namespace is protected.
func (o *options) config(f *pflag.FlagSet, p place) (manifests.Config, error) {
	policy, err := o.policy(f)
	if err != nil {
		return manifests.Config{}, err
	}
	for what, name := range map[string]string{"namespace": p.namespace, "service-account": p.account} {
		if len(validation.IsDNS1123Label(name)) > 0 {
			return manifests.Config{}, fmt.Errorf("%s must be a name of lower-case letters, digits and dashes, not %q", what, name)
		}
	}
	if !slices.Contains(policy.ProtectNamespaces, p.namespace) {
		policy.ProtectNamespaces = append(policy.ProtectNamespaces, p.namespace)
	}
	shares, err := o.sharedRights(p.namespace)
	if err != nil {
		return manifests.Config{}, err
	}
	if shares != nil && !slices.Contains(policy.ProtectNamespaces, shares.Namespace) {
		policy.ProtectNamespaces = append(policy.ProtectNamespaces, shares.Namespace)
	}
	all, onNodes := o.rights(policy)
	return manifests.Config{Namespace: p.namespace, Name: p.account, Policy: policy, Rules: all, OnNodes: onNodes, Ledger: shares}, nil
}

// sharedRights is what the cluster ledger of a server in a namespace needs; nil without
// one.
func (o *options) sharedRights(own string) (*manifests.Ledger, error) {
	if err := o.checkLedger(); err != nil || o.ledger == ledgerFile {
		return nil, err
	}
	l := &manifests.Ledger{Namespace: cmp.Or(o.ledgerNamespace, own), Rules: ledger.Rules()}
	for _, d := range ledger.CRDs() {
		l.Definitions = append(l.Definitions, d)
	}
	policy, binding := ledger.ApprovalPolicy()
	l.Definitions = append(l.Definitions, policy, binding)
	return l, nil
}

// callers are the rights that callers over HTTP have use for. Who approves needs one where
// the plan writes, and one where the ledger is.
func callers(l *manifests.Ledger) []manifests.Role {
	on := func(suffix string, verbs ...string) manifests.Role {
		return manifests.Role{Suffix: suffix, Rules: []rbacv1.PolicyRule{kube.ActionRule(verbs...)}}
	}
	all := []manifests.Role{
		on("-read", engine.VerbRead), on("-plan", engine.VerbRead, engine.VerbPlan), on("-write", engine.VerbRead, engine.VerbPlan, engine.VerbWrite),
		{Suffix: "-metrics", Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{server.MetricsPath}, Verbs: []string{"get"}}}},
	}
	if l != nil {
		all = append(all, on("-approve", engine.VerbApprove), manifests.Role{Suffix: "-approvals", Namespace: l.Namespace, Rules: ledger.ApproverRules()})
	}
	return all
}

// rights are the rules of everything that this policy can do, and of its node actions
// alone.
func (o *options) rights(p gate.Policy) (all, onNodes []rbacv1.PolicyRule) {
	enabled, node := o.usable(p)
	all = engine.Rules(enabled, read.Rules()...)
	if o.http != "" {
		all = append(all, kube.ReviewRules...)
	}
	if node != nil {
		onNodes = engine.Rules(node)
	}
	return all, onNodes
}

// usable are the actions that this policy can do, and those of them that are about nodes.
// An action that is not enabled is none, nor one on nodes where no node is allowed.
func (o *options) usable(p gate.Policy) (all, node []*action.Action) {
	for _, a := range o.actions {
		onNode := a.Schema().Properties["node"] != nil
		switch {
		case o.readOnly || p.Action(a.Name) != nil:
		case onNode && len(p.AllowNodes) == 0 && p.AllowNodeSelector == nil:
		default:
			all = append(all, a)
			if onNode {
				node = append(node, a)
			}
		}
	}
	return all, node
}

// printer is a command that prints objects made for this policy; it needs no cluster.
func (o *options) printer(use, short string, objects func(manifests.Config) []any) *cobra.Command {
	var p place
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		c, err := o.config(cmd.Flags(), p)
		if err != nil {
			return err
		}
		return manifests.Write(cmd.OutOrStdout(), objects(c))
	}}
	o.addServe(cmd.Flags())
	p.addFlags(cmd.Flags())
	return cmd
}

func (o *options) admission() *cobra.Command {
	var planOnly bool
	var user string
	cmd := o.printer("admission", "Print admission policies that hold the server's account to the policy's limits", func(c manifests.Config) []any {
		c.User = user
		if planOnly {
			return manifests.PlanOnly(c)
		}
		return manifests.Admission(c)
	})
	cmd.Flags().BoolVar(&planOnly, "plan-only", false, "print the policy that lets the account dry-run and never write")
	cmd.Flags().StringVar(&user, "user", "", "hold this `username` instead of the ServiceAccount")
	return cmd
}

func (o *options) manifests() *cobra.Command {
	var image string
	var cmd *cobra.Command
	var text []byte
	cmd = o.printer("manifests", "Print everything that runs the server in a pod of the cluster", func(c manifests.Config) []any {
		c.Image, c.PolicyFile, c.Callers = image, string(text), callers(c.Ledger)
		c.Args = o.podArgs(cmd.Flags())
		return manifests.Pod(c)
	})
	cmd.Flags().StringVar(&image, "image", "kube-write-mcp:"+Version, "`image` of the server")
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		o.http = podAddress
		if o.policyFile != "" {
			text, err = os.ReadFile(o.policyFile)
		}
		return err
	}
	return cmd
}

// podAddress is where the server listens in a pod.
var podAddress = fmt.Sprintf(":%d", manifests.Port)

// podArgs are the arguments of the server in a pod: those flags of this command that the
// server has too, where they were given, and what the pod decides. A flag that this binary
// does not have is not among them.
func (o *options) podArgs(given *pflag.FlagSet) []string {
	pod := map[string]string{
		"http":      podAddress,
		"tls-cert":  manifests.TLSCertPath,
		"tls-key":   manifests.TLSKeyPath,
		"state-dir": manifests.StatePath,
	}
	if o.ledger == ledgerCluster {
		pod["key-file"] = manifests.KeysPath
	}
	if o.policyFile != "" {
		pod["policy"] = manifests.PolicyPath
	}
	ours := []string{"kubeconfig", "context", "audit", "key-file", "exec-credentials"} // of the machine that prints
	args := []string{"serve"}
	serve, _, _ := newCommand(nil, o.actions).Find(args)
	serve.InheritedFlags() // joins them with its own
	serve.Flags().VisitAll(func(f *pflag.Flag) {
		value, decided := pod[f.Name]
		switch g := given.Lookup(f.Name); {
		case decided:
		case g == nil || !g.Changed || slices.Contains(ours, f.Name):
			return
		default:
			value = g.Value.String()
			if s, ok := g.Value.(pflag.SliceValue); ok {
				value = strings.Join(s.GetSlice(), ",")
			}
		}
		args = append(args, "--"+f.Name+"="+value)
	})
	return args
}
