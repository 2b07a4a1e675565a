package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// options are the flags of all commands. Those with a policy name may stand in the
// policy file as well, with underscores for dashes; a flag wins over the file.
type options struct {
	actions   []*action.Action
	stdin     io.Reader
	listTools bool

	allowWrite, readOnly bool
	policyFile           string

	kubeconfig, context, clusterName string
	execCredentials                  string

	stateDir, audit, keyFile  string
	ledger, ledgerNamespace   string
	verifyWait, verifyTimeout time.Duration
	quiet                     bool

	http, tlsCert, tlsKey string
	audience              string
	impersonate           bool
	requestsPerSecond     int

	protect, allow, nodes []string
	nodeSelector          string
	enabled               []string
	limits                gate.Limits
	irreversible          string
}

// inPolicy marks a flag that may stand in the policy file.
const inPolicy = "policy"

// addState adds the flags that say where the journal is; every command takes them.
func (o *options) addState(f *pflag.FlagSet) {
	f.StringVar(&o.stateDir, "state-dir", "", "`folder` of journal and keys; else $XDG_STATE_HOME/kube-write-mcp")
	f.StringVar(&o.audit, "audit", "", "audit `file`; else audit.jsonl in the state folder")
	f.StringVar(&o.keyFile, "key-file", "", "key `file`; else keys.json in the state folder, made on first use")
}

// addCluster adds the flags that say which cluster, and whether its ledger is there.
func (o *options) addCluster(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file`; else $KUBECONFIG, ~/.kube/config, or the pod's account")
	f.StringVar(&o.context, "context", "", "kubeconfig context; must be named with --allow-write where there are several")
	f.StringVar(&o.execCredentials, "exec-credentials", "allow", "allow or deny the kubeconfig's credential plugins")
	f.StringVar(&o.ledger, "ledger", ledgerFile, "where plans are claimed: file, or cluster for several replicas")
	f.StringVar(&o.ledgerNamespace, "ledger-namespace", "", "`namespace` of the cluster ledger; else the pod's own")
}

// addServe adds the flags of the server: its cluster, and what it allows.
func (o *options) addServe(f *pflag.FlagSet) {
	f.BoolVar(&o.allowWrite, "allow-write", false, "offer the write tools; without it they do not exist")
	f.BoolVar(&o.readOnly, "read-only", false, "offer the read tools alone: nothing can be planned either")
	f.StringVar(&o.policyFile, "policy", "", "policy `file` (YAML); a flag wins over it")
	o.addCluster(f)
	f.StringVar(&o.clusterName, "cluster-name", "", "the cluster's `name` in every answer and phrase; else the context's")
	f.DurationVar(&o.verifyWait, "verify-wait", 45*time.Second, "how long a call waits for the verdict before it answers verifying, or for a person")
	f.DurationVar(&o.verifyTimeout, "verify-timeout", 120*time.Second, "how long verification goes on")
	f.BoolVar(&o.quiet, "quiet", false, "nothing on stderr but errors")

	f.StringVar(&o.http, "http", "", "serve Streamable HTTP on this `address` instead of stdio, to callers that the cluster authenticates")
	f.StringVar(&o.tlsCert, "tls-cert", "", "certificate `file` of --http, read again when it changes; without one only loopback is served")
	f.StringVar(&o.tlsKey, "tls-key", "", "key `file` of --tls-cert")
	f.StringVar(&o.audience, "audience", "kube-write-mcp", "the audience that a caller's token must be issued for, with --http")
	f.BoolVar(&o.impersonate, "impersonate", false, "send dry runs and writes in the caller's name, with --http; RBAC must let the server's account impersonate it")
	f.IntVar(&o.requestsPerSecond, "requests-per-second", 10, "requests of one caller, with --http; four seconds' worth may come at once")

	policy := pflag.NewFlagSet("policy", pflag.ContinueOnError)
	policy.StringSliceVar(&o.protect, "protect-namespaces", []string{metav1.NamespaceSystem, metav1.NamespacePublic, "kube-node-lease"}, "namespaces in which nothing is written, beside the server's own")
	policy.StringSliceVar(&o.allow, "allow-namespaces", nil, "the only namespaces to read and write in; empty: all, and those that are protected are only read")
	policy.StringSliceVar(&o.nodes, "allow-nodes", nil, "nodes that may be cordoned and drained; empty: none")
	policy.StringVar(&o.nodeSelector, "allow-node-selector", "", "label `selector` of nodes that may be cordoned and drained")
	policy.StringSliceVar(&o.enabled, "actions", nil, "the only actions to offer; empty: all")
	policy.Int32Var(&o.limits.MaxReplicas, "max-replicas", 100, "the most replicas that a scale may set")
	policy.IntVar(&o.limits.MaxBlastPercent, "max-blast-percent", 50, "the most capacity, in percent of the ready pods, that a change may put at risk")
	policy.IntVar(&o.limits.WritesPerMinute, "writes-per-minute", 6, "executions per minute, per cluster")
	policy.IntVar(&o.limits.PlansPerMinute, "plans-per-minute", 60, "plans and refused calls per minute, per cluster")
	policy.DurationVar(&o.limits.TTL, "ttl", 120*time.Second, "how long a confirm phrase is good, at most 60m")
	policy.DurationVar(&o.limits.ApprovalTTL, "approval-ttl", 30*time.Minute, "how long a plan waits for a person, and its approval is good, at most 24h")
	policy.StringVar(&o.irreversible, "irreversible", string(gate.Human), "plans that need a person: human, refuse or allow")
	policy.VisitAll(func(fl *pflag.Flag) { fl.Annotations = map[string][]string{inPolicy: nil} })
	f.AddFlagSet(policy)
}

// policyOnly are the fields of the policy file that are no flags.
type policyOnly struct {
	DrainProtected     bool                        `json:"drain_protected"`
	GateSinglePod      bool                        `json:"gate_single_pod"`
	TwoPersons         bool                        `json:"two_persons"`
	ChangeCauseOnScale *bool                       `json:"change_cause_on_scale"`
	Namespaces         map[string]namespacedLimits `json:"namespaces"`
	Downstream         []downstream                `json:"downstream"`
	ChangeWindows      []changeWindow              `json:"change_windows"`
}

// downstream is a note that plans show.
type downstream struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Note      string `json:"note"`
}

// namespacedLimits tighten the limits of one namespace.
type namespacedLimits struct {
	MaxReplicas            int32           `json:"max_replicas"`
	MaxBlastPercent        int             `json:"max_blast_percent"`
	WritesPerMinute        int             `json:"writes_per_minute"`
	TTL                    metav1.Duration `json:"ttl"`
	ApprovalTTL            metav1.Duration `json:"approval_ttl"`
	Irreversible           gate.Person     `json:"irreversible"`
	GateSinglePod          bool            `json:"gate_single_pod"`
	RequireExpectedVersion bool            `json:"require_expected_version"`
	TwoPersons             bool            `json:"two_persons"`
}

const needsCluster = "needs --ledger cluster: the second person's approval is an object there"

// policy gives what the flags and the policy file allow. Every fault is named at once.
func (o *options) policy(f *pflag.FlagSet) (gate.Policy, error) {
	only, err := o.readPolicy(f)
	if err != nil {
		return gate.Policy{}, err
	}
	o.limits.GateSinglePod, o.limits.TwoPersons = only.GateSinglePod, only.TwoPersons
	o.limits.Irreversible = gate.Person(o.irreversible)
	p := gate.Policy{
		ProtectNamespaces: o.protect, AllowNamespaces: o.allow, AllowNodes: o.nodes, Actions: o.enabled, Limits: o.limits,
		DrainProtected: only.DrainProtected, ChangeCauseOnScale: only.ChangeCauseOnScale == nil || *only.ChangeCauseOnScale,
		Namespaces: map[string]gate.Limits{},
	}
	var faults []error
	wrong := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.readOnly && o.allowWrite {
		wrong("read-only and allow-write contradict each other: give one of them")
	}
	if o.nodeSelector != "" {
		if p.AllowNodeSelector, err = labels.Parse(o.nodeSelector); err != nil {
			wrong("allow-node-selector: %w", err)
		}
	}
	for name, n := range only.Namespaces {
		p.Namespaces[name] = gate.Limits{
			MaxReplicas: n.MaxReplicas, MaxBlastPercent: n.MaxBlastPercent, WritesPerMinute: n.WritesPerMinute, TTL: n.TTL.Duration, ApprovalTTL: n.ApprovalTTL.Duration,
			Irreversible: n.Irreversible, GateSinglePod: n.GateSinglePod, RequireExpectedVersion: n.RequireExpectedVersion, TwoPersons: n.TwoPersons,
		}
		if n.TwoPersons && o.ledger != ledgerCluster {
			wrong("namespaces.%s.two_persons %s", name, needsCluster)
		}
		if n.Irreversible != "" && !validPerson(n.Irreversible) {
			wrong("namespaces.%s.irreversible must be human, refuse or allow, not %q", name, n.Irreversible)
		}
	}
	for i, d := range only.Downstream {
		p.Downstream = append(p.Downstream, gate.Downstream(d))
		if d.Namespace == "" || d.Note == "" || plan.Untrusted(d.Note) != d.Note || utf8.RuneCountInString(d.Note) > gate.MaxNote {
			wrong("downstream[%d] must have a namespace and a note of at most %d printable characters on one line", i, gate.MaxNote)
		}
	}
	known := map[string]bool{}
	for _, a := range o.actions {
		known[a.Name] = true
	}
	for _, a := range o.enabled {
		if !known[a] {
			wrong("actions: there is no action %q", a)
		}
	}
	p.Windows = changeWindows(only.ChangeWindows, known, wrong)
	if o.limits.TwoPersons && o.ledger != ledgerCluster {
		wrong("two_persons %s", needsCluster)
	}
	if !validPerson(o.limits.Irreversible) {
		wrong("irreversible must be human, refuse or allow, not %q", o.irreversible)
	}
	if o.limits.TTL < time.Second || o.limits.TTL > time.Hour {
		wrong("ttl must be from 1s to 60m, not %s", o.limits.TTL)
	}
	if o.limits.ApprovalTTL < time.Second || o.limits.ApprovalTTL > 24*time.Hour {
		wrong("approval-ttl must be from 1s to 24h, not %s", o.limits.ApprovalTTL)
	}
	if o.limits.MaxBlastPercent < 0 || o.limits.MaxBlastPercent > 100 {
		wrong("max-blast-percent must be from 0 to 100, not %d", o.limits.MaxBlastPercent)
	}
	if o.limits.MaxReplicas < 0 || o.limits.WritesPerMinute < 1 || o.limits.PlansPerMinute < 1 {
		wrong("max-replicas must be 0 or more, writes-per-minute and plans-per-minute 1 or more")
	}
	return p, errors.Join(faults...)
}

// changeWindow is a window as the policy file has it: the decoder's own errors would not
// say which window is meant, nor what would pass.
type changeWindow map[string]json.RawMessage

// spec gives the fields of a window. A value that is no text is taken as it is written:
// what does not pass is named then.
func (c changeWindow) spec() (s gate.WindowSpec, faults []string) {
	texts := map[string]*string{
		"name": &s.Name, "kind": (*string)(&s.Kind), "schedule": &s.Schedule, "duration": &s.Duration, "time_zone": &s.TimeZone, "except": &s.Except,
	}
	lists := map[string]*[]string{"namespaces": &s.Namespaces, "actions": &s.Actions}
	for _, key := range slices.Sorted(maps.Keys(c)) {
		text, isText := texts[key]
		list, isList := lists[key]
		switch {
		case isText && json.Unmarshal(c[key], text) != nil:
			*text = string(c[key])
		case isList && json.Unmarshal(c[key], list) != nil:
			faults = append(faults, fmt.Sprintf("%s must be a list of names, such as [one, two], not %s", key, c[key]))
		case !isText && !isList:
			faults = append(faults, fmt.Sprintf("%s is no field of a window: there are name, kind, schedule, duration, time_zone, namespaces, actions and except", key))
		}
	}
	return s, faults
}

// windows gives the change windows; wrong is told every fault of them.
func changeWindows(given []changeWindow, actions map[string]bool, wrong func(string, ...any)) (all []gate.Window) {
	names := map[string]bool{}
	for i, fields := range given {
		field := fmt.Sprintf("change_windows[%d]", i)
		spec, faults := fields.spec()
		w, more := gate.ParseWindow(spec)
		all = append(all, w)
		for _, fault := range append(faults, more...) {
			wrong("%s.%s", field, fault)
		}
		if names[spec.Name] {
			wrong("%s.name must be of this window alone, and %q is another's", field, spec.Name)
		}
		names[spec.Name] = true
		for _, ns := range spec.Namespaces {
			if validation.IsDNS1123Label(ns) != nil {
				wrong("%s.namespaces must be names of namespaces, or left out for all, not %q", field, ns)
			}
		}
		for _, a := range spec.Actions {
			if !actions[a] {
				wrong("%s.actions must be of %s, or left out for all, not %q", field, strings.Join(slices.Sorted(maps.Keys(actions)), ", "), a)
			}
		}
	}
	return all
}

func validPerson(p gate.Person) bool {
	return slices.Contains([]gate.Person{gate.Human, gate.Refuse, gate.Allow}, p)
}

// readPolicy decodes the policy file strictly: a key that is neither a policy flag nor a
// policy-only field is an error. Values of flags that were not given are set from it.
func (o *options) readPolicy(f *pflag.FlagSet) (only policyOnly, err error) {
	if o.policyFile == "" {
		return only, nil
	}
	raw, err := os.ReadFile(o.policyFile)
	if err != nil {
		return only, fmt.Errorf("policy: %w", err)
	}
	var all map[string]json.RawMessage
	if err := yaml.UnmarshalStrict(raw, &all); err != nil {
		return only, fmt.Errorf("policy %s: %w", o.policyFile, err)
	}
	rest := map[string]json.RawMessage{}
	for key, value := range all {
		fl := f.Lookup(strings.ReplaceAll(key, "_", "-"))
		if fl == nil || strings.Contains(key, "-") {
			rest[key] = value
			continue
		}
		if _, ok := fl.Annotations[inPolicy]; !ok {
			return only, fmt.Errorf("policy %s: %s is a flag only", o.policyFile, key)
		}
		if fl.Changed {
			continue
		}
		if err := fl.Value.Set(flagText(value)); err != nil {
			return only, fmt.Errorf("policy %s: %s: %w", o.policyFile, key, err)
		}
	}
	left, err := json.Marshal(rest)
	if err != nil {
		return only, err
	}
	if err := yaml.UnmarshalStrict(left, &only); err != nil {
		return only, fmt.Errorf("policy %s: %w", o.policyFile, err)
	}
	return only, nil
}

// flagText writes a JSON value as a flag takes it.
func flagText(raw json.RawMessage) string {
	var list []string
	var text string
	switch {
	case json.Unmarshal(raw, &list) == nil:
		return strings.Join(list, ",")
	case json.Unmarshal(raw, &text) == nil:
		return text
	}
	return string(raw)
}
