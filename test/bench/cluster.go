package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/test/bench/report"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// wide are the limits of a server that is asked for more than a person would.
var wide = []string{"--plans-per-minute", "1000000", "--writes-per-minute", "1000000", "--max-blast-percent", "100", "--irreversible", "allow"}

const namespace = "bench"

// rig is the local control plane, with the account that every side uses. Its controllers
// do not run, so that nothing but what is measured is at work.
type rig struct {
	*lab.Lab
	account    *rest.Config
	kubeconfig string
	forPeers   string // a kubeconfig that may do everything: they ask for more than our account has
	bare       *kubernetes.Clientset
}

// cluster starts the rig once.
func (b *bench) cluster(ctx context.Context) (*rig, error) {
	if b.rig != nil {
		return b.rig, nil
	}
	l, err := lab.Start(ctx, lab.Options{})
	if err != nil {
		return nil, err
	}
	r := &rig{Lab: l, kubeconfig: filepath.Join(b.dir, "kubeconfig")}
	b.rig = r
	if r.account, err = l.ServiceAccount(ctx, "kube-write-mcp", "server", engine.Rules(actions.All(), read.Rules()...)); err != nil {
		return nil, err
	}
	if err := l.Kubeconfig(r.kubeconfig, "kind-lab", r.account); err != nil {
		return nil, err
	}
	all, err := l.ServiceAccount(ctx, "peers", "server", []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}})
	if err != nil {
		return nil, err
	}
	r.forPeers = filepath.Join(b.dir, "kubeconfig-peers")
	if err := l.Kubeconfig(r.forPeers, "kind-lab", all); err != nil {
		return nil, err
	}
	r.bare, err = bare(r.account)
	if err != nil {
		return nil, err
	}
	return r, r.played(ctx, namespace, "web")
}

// bare is client-go as an author would set it up for speed: no rate limit, JSON out and
// protobuf in, one connection.
func bare(account *rest.Config) (*kubernetes.Clientset, error) {
	c := rest.CopyConfig(account)
	c.QPS, c.UserAgent = -1, bareAgent
	c.ContentType, c.AcceptContentTypes = "application/json", "application/vnd.kubernetes.protobuf,application/json"
	return kubernetes.NewForConfig(c)
}

const (
	bareAgent = "bare-client-go"
	ourAgent  = "kube-write-mcp/"
)

func (b *bench) close() {
	if b.rig != nil {
		_ = b.rig.Stop()
	}
}

// workload makes a Deployment of two replicas.
func (r *rig) workload(ctx context.Context, ns, name string) error {
	_, _ = r.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
	labels := map[string]string{"app": name}
	_, err := r.Client.AppsV1().Deployments(ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"team": "bench"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main"}}},
			},
		},
	}, metav1.CreateOptions{})
	return err
}

// played makes a workload whose status says, for whatever replicas it may get up to three,
// that they are there, where no controllers run: an execution of a scale to three is
// verified at the first look, and what is timed is not how fast pods start.
func (r *rig) played(ctx context.Context, ns, name string) error {
	if err := r.workload(ctx, ns, name); err != nil {
		return err
	}
	d, err := r.Client.AppsV1().Deployments(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1 << 40, Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 3, AvailableReplicas: 3}
	_, err = r.Client.AppsV1().Deployments(ns).UpdateStatus(ctx, d, metav1.UpdateOptions{})
	return err
}

// server starts the program with an own state folder.
func (b *bench) server(r *rig, state string, flags ...string) (*stdio.Client, error) {
	return stdio.Start(stdio.Modern, b.binary, nil, b.flags(r, state, flags...)...)
}

func (b *bench) flags(r *rig, state string, flags ...string) []string {
	return slices.Concat([]string{
		"serve", "--allow-write", "--kubeconfig", r.kubeconfig, "--state-dir", filepath.Join(b.dir, state), "--quiet", "--allow-node-selector", "pool=lab",
	}, wide, flags)
}

func scaleTo(name string, n int) map[string]any {
	return map[string]any{"namespace": namespace, "deployment": name, "replicas": n}
}

// planned plans and gives the arguments that execute the plan.
func planned(s *stdio.Client, action string, args map[string]any) (map[string]any, error) {
	got, err := s.Call("plan_"+action, args)
	if err != nil {
		return nil, err
	}
	if got.Field("confirm") == "" {
		return nil, fmt.Errorf("plan_%s gave no phrase: %s", action, got.Text)
	}
	out := map[string]any{"confirm": got.Field("confirm"), "reason": "to measure it"}
	for k, v := range args {
		out[k] = v
	}
	return out, nil
}

// executed executes what was planned, and wants it executed and verified.
func executed(s *stdio.Client, action string, args map[string]any) error {
	got, err := s.Call(action, args)
	if err == nil && (got.Field("outcome") != "EXECUTED" || !strings.Contains(got.Text, "verified")) {
		err = fmt.Errorf("%s: %s", action, got.Text)
	}
	return err
}

// calls are the API calls of the bare side.
type calls struct {
	ctx context.Context
	k   *kubernetes.Clientset
}

func (c calls) namespace(name string) error {
	_, err := c.k.CoreV1().Namespaces().Get(c.ctx, name, metav1.GetOptions{})
	return err
}

func (c calls) get(name string) (*appsv1.Deployment, error) {
	return c.k.AppsV1().Deployments(namespace).Get(c.ctx, name, metav1.GetOptions{})
}

func (c calls) scale(d *appsv1.Deployment, version string, n int32, dryRun ...string) error {
	_, err := c.k.AppsV1().Deployments(d.Namespace).UpdateScale(c.ctx, d.Name, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name, UID: d.UID, ResourceVersion: version},
		Spec:       autoscalingv1.ScaleSpec{Replicas: n},
	}, metav1.UpdateOptions{DryRun: dryRun, FieldManager: "bare"})
	return err
}

func (c calls) note(d *appsv1.Deployment) error {
	patch := fmt.Sprintf(`[{"op":"replace","path":"/metadata/uid","value":%q},{"op":"add","path":"/metadata/annotations/kubernetes.io~1change-cause","value":"to measure it"}]`, d.UID)
	_, err := c.k.AppsV1().Deployments(d.Namespace).Patch(c.ctx, d.Name, types.JSONPatchType, []byte(patch),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: "bare"})
	return err
}

// plan is what plan_scale sends: the namespace beside the target, and once that is there
// its two dry runs, beside each other.
func (c calls) plan(name string) error {
	return together(
		func() error { return c.namespace(namespace) },
		func() error {
			d, err := c.get(name)
			if err != nil {
				return err
			}
			return together(
				func() error { return c.scale(d, "", 3, metav1.DryRunAll) },
				func() error { return c.note(d) },
			)
		},
	)
}

// again is what an execution sends before its claim: the plan once more, without the note,
// and the cluster's identity.
func (c calls) again(name string) error {
	return together(
		func() error { return c.namespace(namespace) },
		func() error { return c.namespace(metav1.NamespaceSystem) },
		func() error {
			d, err := c.get(name)
			if err != nil {
				return err
			}
			return c.scale(d, "", 3, metav1.DryRunAll)
		},
	)
}

func together(do ...func() error) error {
	errs := make(chan error, len(do))
	for _, f := range do {
		go func() { errs <- f() }()
	}
	var all []error
	for range do {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// back sets the replicas to two, as before each scale to three.
func (r *rig) back(ctx context.Context, name string) error {
	_, err := r.Client.AppsV1().Deployments(namespace).Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{})
	return err
}

// sent gives the requests of a user agent, by the API server's own audit log, that came
// while do ran.
func (r *rig) sent(ctx context.Context, agent string, do func() error) (spans []report.Span, err error) {
	began := time.Now()
	if err := do(); err != nil {
		return nil, err
	}
	events, err := r.AuditEvents(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range events {
		if !strings.HasPrefix(e.UserAgent, agent) || e.Received.Before(began) {
			continue
		}
		o := e.ObjectRef
		name := fmt.Sprintf("%s %s/%s", e.Verb, strings.TrimSuffix(o.Resource+"/"+o.Subresource, "/"), o.Name)
		if strings.Contains(e.RequestURI, "dryRun=All") {
			name += " (dry run)"
		}
		spans = append(spans, report.Span{Name: name, Begin: e.Received, End: e.Ended})
	}
	return spans, nil
}

// same wants two sides to have sent the same requests, and gives them in the order of
// their names.
func same(ours, base []report.Span) ([]string, error) {
	names := func(spans []report.Span) (out []string) {
		for _, s := range spans {
			out = append(out, s.Name)
		}
		slices.Sort(out)
		return out
	}
	o, b := names(ours), names(base)
	if !slices.Equal(o, b) {
		return nil, fmt.Errorf("the sides do not send the same: ours %q, the baseline %q", o, b)
	}
	return o, nil
}

// disk is a file that lines are written to and put on the disk, as the baseline of the
// journal.
type disk struct {
	f    *os.File
	line []byte
}

func (b *bench) disk(name string, size int) (disk, error) {
	f, err := os.Create(filepath.Join(b.dir, name))
	line := make([]byte, size)
	for i := range line {
		line[i] = 'x'
	}
	return disk{f, line}, err
}

func (d disk) write() error {
	if _, err := d.f.Write(d.line); err != nil {
		return err
	}
	return datasync(d.f)
}

// lineSize is how many bytes one run adds to a journal.
func (b *bench) lineSize(state string, do func() error) (int, error) {
	size := func() (int64, error) {
		info, err := os.Stat(filepath.Join(b.dir, state, "audit.jsonl"))
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	}
	before, err := size()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := size()
	return int(after - before), err
}
