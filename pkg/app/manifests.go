package app

import (
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
	"github.com/kubewrite/kube-write-mcp/pkg/manifests"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
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
	all, onNodes := o.rights(policy)
	return manifests.Config{Namespace: p.namespace, Name: p.account, Policy: policy, Rules: all, OnNodes: onNodes}, nil
}

// rights are the rules of everything that this policy can do, and of its node actions
// alone.
func (o *options) rights(p gate.Policy) (all, onNodes []rbacv1.PolicyRule) {
	enabled, node := o.usable(p)
	all = engine.Rules(enabled, read.Rules()...)
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
		c.Image, c.PolicyFile = image, string(text)
		c.Args = o.podArgs(cmd.Flags())
		return manifests.Pod(c)
	})
	cmd.Flags().StringVar(&image, "image", "kube-write-mcp:"+Version, "`image` of the server")
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		if o.policyFile != "" {
			text, err = os.ReadFile(o.policyFile)
		}
		return err
	}
	return cmd
}

// podArgs are the arguments of the server in a pod: those flags of this command that the
// server has too, where they were given, and what the pod decides. A flag that this binary
// does not have is not among them.
func (o *options) podArgs(given *pflag.FlagSet) []string {
	pod := map[string]string{
		"http":      fmt.Sprintf(":%d", manifests.Port),
		"state-dir": manifests.StatePath,
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
