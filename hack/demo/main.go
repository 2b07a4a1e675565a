// Command demo shows the whole story on a real API server, by driving the shipped
// binary over stdio as an MCP client does. hack/demo.sh builds and runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "demo: "+err.Error())
		os.Exit(1)
	}
}

type demo struct {
	binary, kubeconfig, context string
	namespace                   string
	state                       string
	client                      kubernetes.Interface
	server                      *stdio.Client
	failures                    int
}

func run() error {
	binary := pflag.String("binary", "", "the kube-write-mcp to drive")
	keep := pflag.Bool("keep", false, "leave the cluster up until Ctrl-C")
	own := pflag.String("context", "", "run in a new namespace of the cluster of this kubeconfig context")
	pflag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	state, err := os.MkdirTemp("", "kube-write-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	d := &demo{binary: *binary, state: state, context: *own, namespace: "default"}
	if *own == "" {
		say("Starting a real control plane with three simulated nodes ...")
		l, err := lab.Start(ctx, lab.Options{Controllers: true, Nodes: 3})
		if err != nil {
			return err
		}
		defer l.Stop()
		d.client, d.context, d.kubeconfig = l.Client, "kind-lab", filepath.Join(state, "kubeconfig")
		if err := l.Kubeconfig(d.kubeconfig, d.context, l.Config); err != nil {
			return err
		}
	} else if err := d.connect(ctx); err != nil {
		return err
	}
	if *own != "" {
		defer func() { // also after Ctrl-C
			say("Deleting namespace %s ...", d.namespace)
			_ = d.client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), d.namespace, metav1.DeleteOptions{})
		}()
	}
	if err := d.workload(ctx); err != nil {
		return err
	}
	if err := d.story(ctx, *own == ""); err != nil {
		return err
	}
	if d.failures > 0 {
		return fmt.Errorf("%d of the steps did not end as they should; they are marked !! above", d.failures)
	}
	if *keep && *own == "" {
		say("The cluster stays up until Ctrl-C. In another terminal:")
		fmt.Printf("  export KUBECONFIG=%s\n", d.kubeconfig)
		fmt.Printf("  claude mcp add kube-write --env KUBECONFIG=%s -- %s serve --allow-write --allow-node-selector pool=lab\n", d.kubeconfig, d.binary)
		<-ctx.Done()
	}
	return nil
}

// connect uses the caller's own cluster, in a new namespace.
func (d *demo) connect(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: d.context}).ClientConfig()
	if err != nil {
		return err
	}
	if d.client, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	ns, err := d.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "kube-write-demo-"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	d.namespace = ns.Name
	return nil
}

// workload deploys web with two replicas and waits for it.
func (d *demo) workload(ctx context.Context) error {
	labels := map[string]string{"app": "web"}
	say("Deploying %s/web with two replicas ...", d.namespace)
	_, err := d.client.AppsV1().Deployments(d.namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.k8s.io/pause:3.10"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		w, err := d.client.AppsV1().Deployments(d.namespace).Get(ctx, "web", metav1.GetOptions{})
		return err == nil && w.Status.AvailableReplicas == 2 && w.Status.ObservedGeneration == w.Generation, err
	})
}

func (d *demo) story(ctx context.Context, policy bool) error {
	args := []string{"serve", "--allow-write", "--context", d.context, "--state-dir", d.state, "--quiet"}
	if d.kubeconfig != "" {
		args = append(args, "--kubeconfig", d.kubeconfig)
	}
	var err error
	if d.server, err = stdio.Start(stdio.Modern, d.binary, nil, args...); err != nil {
		return err
	}
	defer d.server.Kill()
	web := func(replicas int, more ...any) map[string]any {
		out := map[string]any{"namespace": d.namespace, "deployment": "web", "replicas": replicas}
		for i := 0; i < len(more); i += 2 {
			out[more[i].(string)] = more[i+1]
		}
		return out
	}

	say("1. A plan changes nothing and tells everything.")
	plan := d.call("plan_scale", web(3), "PLAN scale")

	say("2. A guessed phrase is refused.")
	d.call("scale", web(3, "confirm", "scale deployment "+d.namespace+"/web from 2 to 3", "reason", "guessing"), "refused: this phrase confirms no plan")

	say("3. A protected namespace is refused before anything is read.")
	d.call("plan_scale", map[string]any{"namespace": "kube-system", "deployment": "coredns", "replicas": 0}, "refused: namespace kube-system is protected")

	say("4. The phrase of the plan executes it, once, and the rollout is verified.")
	confirmed := web(3, "confirm", plan.Field("confirm"), "reason", "more traffic since noon")
	d.call("scale", confirmed, "EXECUTED scale")

	say("5. The same call again runs nothing and returns the first result.")
	d.call("scale", confirmed, "REPLAYED")

	say("6. Too large a step is refused, with the largest one that passes.")
	d.call("plan_scale", web(0), "the largest step that passes is replicas: 2")

	if policy {
		say("7. A policy of the cluster (more than 5 replicas needs a change ticket) denies the dry run.")
		if err := d.policy(ctx); err != nil {
			return err
		}
		d.call("plan_scale", web(6), "dry run failed")
	}
	if err := d.server.Close(); err != nil {
		return fmt.Errorf("the server ended with %w: %s", err, d.server.Stderr)
	}
	say("What is on record (kube-write-mcp audit show):")
	return d.audit()
}

// policy installs "more than 5 replicas needs a change ticket" and waits until the API
// server enforces it.
func (d *demo) policy(ctx context.Context) error {
	v := d.client.AdmissionregistrationV1()
	rule := func(resource ...string) admissionv1.NamedRuleWithOperations {
		return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: resource},
		}}
	}
	_, err := v.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "change-ticket"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{rule("deployments", "deployments/scale")}},
			Validations: []admissionv1.Validation{{
				Expression: "!has(object.spec.replicas) || object.spec.replicas <= 5", Message: "more than 5 replicas needs a change ticket",
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = v.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "change-ticket"},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "change-ticket", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		s, err := d.client.AppsV1().Deployments(d.namespace).GetScale(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		s.Spec.Replicas = 6
		_, err = d.client.AppsV1().Deployments(d.namespace).UpdateScale(ctx, "web", s, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "change ticket"), nil
	})
}

// call makes one tool call and prints both sides; want is what the answer must contain.
func (d *demo) call(tool string, args map[string]any, want string) stdio.Tool {
	shown, _ := json.Marshal(args)
	fmt.Printf("\n  → %s %s\n\n", tool, shown)
	got, err := d.server.Call(tool, args)
	if err != nil {
		got.Text = err.Error()
	}
	for _, line := range strings.Split(got.Text, "\n") {
		fmt.Println("    " + line)
	}
	if !strings.Contains(got.Text, want) {
		d.failures++
		fmt.Printf("    !! expected: %s\n", want)
	}
	return got
}

// audit prints the record and, whole, the one execute line.
func (d *demo) audit() error {
	table, err := exec.Command(d.binary, "audit", "show", "--state-dir", d.state).Output()
	if err != nil {
		return err
	}
	fmt.Printf("\n%s\n", indent(string(table)))
	line, err := exec.Command(d.binary, "audit", "show", "--state-dir", d.state, "--event", "execute", "--json").Output()
	if err != nil {
		return err
	}
	if len(line) == 0 {
		return errors.New("there is no execute line")
	}
	fmt.Printf("The execute line answers what it was before, in full:\n\n%s", indent(string(regexp.MustCompile(`,"`).ReplaceAll(line, []byte(`, "`)))))
	return nil
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n    ") + "\n"
}

func say(format string, args ...any) { fmt.Printf("\n"+format+"\n", args...) }
