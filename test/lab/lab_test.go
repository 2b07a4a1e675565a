package lab

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

var lab *Lab

func TestMain(m *testing.M) {
	if os.Getenv(victim) != "" {
		os.Exit(beVictim())
	}
	Main(m, Options{Controllers: true, Nodes: 3}, func(l *Lab) { lab = l })
}

var (
	web      = map[string]string{"app": "web"}
	selector = &metav1.LabelSelector{MatchLabels: web}
	template = corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: web},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}
)

func createDeployment(t *testing.T, ns string, replicas int32) {
	t.Helper()
	if _, err := lab.Client.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: template},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func awaitDeployment(t *testing.T, ns string, generation int64, replicas int32) {
	t.Helper()
	Eventually(t, "the rollout", func() (bool, error) {
		d, err := lab.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		s := d.Status
		return s.ObservedGeneration >= generation && s.Replicas == replicas && s.UpdatedReplicas == replicas && s.AvailableReplicas == replicas, nil
	})
}

// pods are the names of those that are not going away.
func pods(t *testing.T, ns string) (names []string) {
	t.Helper()
	list, err := lab.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			names = append(names, p.Name)
		}
	}
	return names
}

func TestDeploymentRollsOutAndIsCollected(t *testing.T) {
	ns, deployments := lab.Namespace(t), lab.Client.AppsV1()
	createDeployment(t, ns, 6)
	awaitDeployment(t, ns, 1, 6)
	before := pods(t, ns)

	restarted, err := deployments.Deployments(ns).Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	awaitDeployment(t, ns, restarted.Generation, 6)
	for _, p := range pods(t, ns) {
		if slices.Contains(before, p) {
			t.Errorf("pod %s survived the restart", p)
		}
	}

	if err := deployments.Deployments(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "garbage collection", func() (bool, error) {
		sets, err := deployments.ReplicaSets(ns).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(sets.Items) == 0 && len(pods(t, ns)) == 0, err
	})
}

func TestStatefulSetComesUpInOrder(t *testing.T) {
	ns, sets := lab.Namespace(t), lab.Client.AppsV1()
	if _, err := sets.StatefulSets(ns).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.StatefulSetSpec{Replicas: new(int32(3)), Selector: selector, Template: template},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "3 pods", func() (bool, error) {
		s, err := sets.StatefulSets(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && s.Status.AvailableReplicas == 3, err
	})
	if got, want := pods(t, ns), []string{"web-0", "web-1", "web-2"}; !slices.Equal(got, want) {
		t.Errorf("pods %v, want %v", got, want)
	}
}

func TestBudgetHoldsAnEvictionBack(t *testing.T) {
	ns := lab.Namespace(t)
	createDeployment(t, ns, 2)
	awaitDeployment(t, ns, 1, 2)
	budgets := lab.Client.PolicyV1().PodDisruptionBudgets(ns)
	if _, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(2)), Selector: selector},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitBudget := func(allowed int32) {
		t.Helper()
		Eventually(t, "the budget", func() (bool, error) {
			b, err := budgets.Get(t.Context(), "web", metav1.GetOptions{})
			return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.DisruptionsAllowed == allowed, err
		})
	}
	pod := pods(t, ns)[0]
	evict := func() error {
		return lab.Client.CoreV1().Pods(ns).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: ns}})
	}

	awaitBudget(0)
	if err := evict(); !apierrors.IsTooManyRequests(err) {
		t.Errorf("eviction that the budget forbids: %v, want 429", err)
	}
	if _, err := budgets.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"minAvailable":1}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitBudget(1)
	if err := evict(); err != nil {
		t.Errorf("eviction that the budget allows: %v", err)
	}

	events, err := lab.AuditEvents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var codes []int
	for _, e := range events {
		if e.ObjectRef.Namespace == ns && e.ObjectRef.Subresource == "eviction" {
			codes = append(codes, e.ResponseStatus.Code)
			if e.User.Username != "admin" || e.ObjectRef.Name != pod || !strings.Contains(string(e.RequestObject), `"kind":"Eviction"`) || e.AuditID == "" {
				t.Errorf("audit event %+v of %s", e, e.RequestObject)
			}
		}
	}
	if want := []int{429, 201}; !slices.Equal(codes, want) {
		t.Errorf("codes of the evictions in the audit log: %v, want %v", codes, want)
	}
}

func TestPausedControllersSeeNothing(t *testing.T) {
	ns := lab.Namespace(t)
	if err := lab.PauseControllers(); err != nil {
		t.Fatal(err)
	}
	defer lab.ResumeControllers()
	createDeployment(t, ns, 1)
	time.Sleep(500 * time.Millisecond) // a running one needs a tenth of it
	if got := pods(t, ns); len(got) > 0 {
		t.Errorf("pods %v while the controllers are paused", got)
	}
	if err := lab.ResumeControllers(); err != nil {
		t.Fatal(err)
	}
	awaitDeployment(t, ns, 1, 1)
}

func TestServiceAccountHasExactlyItsRules(t *testing.T) {
	ns := lab.Namespace(t)
	cfg, err := lab.ServiceAccount(t.Context(), ns, "reader", []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, ResourceNames: []string{"web"}, Verbs: []string{"get"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	deployments := client.AppsV1().Deployments(ns)
	if _, err := deployments.Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v, want not found", err)
	}
	if _, err := deployments.Patch(t.Context(), "web", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("patch: %v, want forbidden", err)
	}

	events, err := lab.AuditEvents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		if e.User.Username == "system:serviceaccount:"+ns+":reader" {
			got = append(got, fmt.Sprint(e.Verb, " ", e.RequestURI, " ", e.ResponseStatus.Code))
		}
	}
	uri := "/apis/apps/v1/namespaces/" + ns + "/deployments/web"
	if want := []string{"get " + uri + " 404", "patch " + uri + " 403"}; !slices.Equal(got, want) {
		t.Errorf("the account's requests in the audit log: %q, want %q", got, want)
	}
}

func TestWithoutProgramsOneLineNamesTheScript(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())
	_, err := Start(t.Context(), Options{})
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "hack/controlplane/build.sh") {
		t.Errorf("error %q", err)
	}
}

// TestFailedStartLeavesNothing starts a lab whose kwok does not run, beside the other.
func TestFailedStartLeavesNothing(t *testing.T) {
	real, err := programs(true)
	if err != nil {
		t.Fatal(err)
	}
	assets, dir := t.TempDir(), t.TempDir()
	for _, p := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", stages} {
		if err := os.Symlink(filepath.Join(real, p), filepath.Join(assets, p)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(assets, "kwok"), []byte("#!/bin/sh\necho no such stage\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBEBUILDER_ASSETS", assets)

	_, err = Start(t.Context(), Options{Controllers: true, Nodes: 1, Dir: dir})
	for _, want := range []string{"kwok ended: exit status 3", "no such stage"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want %q in it", err, want)
		}
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kwok.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if answers(cfg.Host) {
		t.Error("the API server outlived the failed start")
	}
}

// victim is set for a process that starts a lab of its own and is then killed.
const victim = "LAB_TEST_VICTIM"

func beVictim() int {
	l, err := Start(context.Background(), Options{Dir: os.Getenv(victim)})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(l.Config.Host, l.env.ControlPlane.Etcd.URL)
	select {} // until it is killed
}

func TestProgramsDieWithTheirParent(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victim+"="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	defer cmd.Wait() // not before: a dead parent that nobody has collected counts as dead
	if err != nil {
		t.Fatal(err)
	}
	hosts := strings.Fields(line)
	if len(hosts) != 2 {
		t.Fatal(line)
	}
	for _, host := range hosts {
		Eventually(t, "the end of "+host, func() (bool, error) { return !answers(host), nil })
	}
}

func answers(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func TestKubeconfigIsTheCallersAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := lab.Kubeconfig(path, "lab", lab.Config); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Get(t.Context(), "node-3", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
