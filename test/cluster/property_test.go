package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// sampler knows from a watch of its own how many pods of a workload are ready.
type sampler struct {
	ns, name string

	mu     sync.Mutex
	live   map[string]string // resourceVersions
	ready  map[string]bool
	lowest int
	gone   error
}

// sample watches the pods of a workload until the test ends. The pods that there are when
// it begins are all known before it returns.
func sample(t *testing.T, ns, name string) *sampler {
	t.Helper()
	s := &sampler{ns: ns, name: name, live: map[string]string{}, ready: map[string]bool{}}
	list, err := cp.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		s.see(watch.Event{Type: watch.Added, Object: &list.Items[i]})
	}
	s.lowest = len(s.ready)
	w, err := cp.Client.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name, ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	go func() {
		for e := range w.ResultChan() {
			s.see(e)
		}
	}()
	return s
}

func (s *sampler) see(e watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := e.Object.(*corev1.Pod)
	if !ok {
		s.gone = fmt.Errorf("the watch gave %T", e.Object)
		return
	}
	if delete(s.live, p.Name); e.Type != watch.Deleted {
		s.live[p.Name] = p.ResourceVersion
	}
	up := false
	for _, c := range p.Status.Conditions {
		up = up || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	if delete(s.ready, p.Name); up && p.DeletionTimestamp == nil && e.Type != watch.Deleted {
		s.ready[p.Name] = true
	}
	s.lowest = min(s.lowest, len(s.ready))
}

// now is how many are ready, and how many were at the worst moment since the last time.
func (s *sampler) now(t *testing.T) (ready, lowest int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		t.Fatal(s.gone)
	}
	ready, lowest = len(s.ready), s.lowest
	s.lowest = ready
	return ready, lowest
}

// settled waits until so many are ready, and all is seen that happened before: what the watch
// is behind with would count for what comes next.
func (s *sampler) settled(t *testing.T, want int) (lowest int) {
	t.Helper()
	lab.Eventually(t, fmt.Sprintf("%d ready pods", want), func() (bool, error) {
		live := map[string]string{}
		for _, p := range pods(t, s.ns, s.name) {
			live[p.Name] = p.ResourceVersion
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.ready) == want && maps.Equal(live, s.live), s.gone
	})
	_, lowest = s.now(t)
	return lowest
}

// TestPredictedRiskHolds: for random Deployments and budgets, what really is missing at
// the worst moment is never more than the plan said, and for a scale and a deletion it is
// just that.
func TestPredictedRiskHolds(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i := range 10 {
		t.Run(fmt.Sprint("deployment ", i), func(t *testing.T) {
			t.Parallel()
			predictDeployment(t, rand.New(rand.NewPCG(seed, uint64(i))))
		})
	}
	for i := range 4 {
		t.Run(fmt.Sprint("drain ", i), func(t *testing.T) {
			t.Parallel()
			predictDrain(t, rand.New(rand.NewPCG(seed, uint64(100+i))), fmt.Sprint("predict-", i))
		})
	}
}

func predictDeployment(t *testing.T, rng *rand.Rand) {
	ns, replicas := cp.Namespace(t), 1+rng.IntN(8)
	amount := func() *intstr.IntOrString {
		v := intstr.FromInt32(rng.Int32N(4))
		if rng.IntN(2) == 0 {
			v = intstr.FromString(fmt.Sprintf("%d%%", []int{0, 10, 25, 34, 50, 100}[rng.IntN(6)]))
		}
		return &v
	}
	zero := func(v *intstr.IntOrString) bool { return v.IntVal == 0 && (v.Type == intstr.Int || v.StrVal == "0%") }
	rolling := &appsv1.RollingUpdateDeployment{MaxUnavailable: amount(), MaxSurge: amount()}
	if zero(rolling.MaxSurge) && zero(rolling.MaxUnavailable) {
		one := intstr.FromInt32(1)
		rolling.MaxSurge = &one
	}
	strategy := appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: rolling}
	if rng.IntN(6) == 0 {
		strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	}
	deployment(t, ns, "web", int32(replicas), func(d *appsv1.Deployment) { d.Spec.Strategy = strategy })
	pods, s := sample(t, ns, "web"), start(t, wide...)
	pods.settled(t, replicas)
	web := of(ns, "deployment", "web")
	about := fmt.Sprintf("%d replicas, %+v", replicas, strategy)

	act := func(action string, args harness.Args, after int) (predicted plan.Risk, missing int) {
		t.Helper()
		p := s.Must("plan_"+action, args)
		if predicted = harness.Into[planned](t, p).Blast.AtRisk; p.Field("confirm") == "" {
			t.Fatalf("%s: %s", about, p.Text)
		}
		pods.now(t)
		got := s.Must(action, args.With("confirm", p.Field("confirm")).With("reason", "a test"))
		if x := harness.Into[execution](t, got); x.Outcome != plan.Executed || x.Current.Verdict != plan.Verified {
			t.Fatalf("%s: %s", about, got.Text)
		}
		return predicted, predicted.Ready - pods.settled(t, after)
	}
	if predicted, missing := act("rollout_restart", web, replicas); missing > predicted.Missing {
		t.Errorf("%s: a restart was said to miss %d of %d at most, %d were missing", about, predicted.Missing, predicted.Ready, missing)
	}
	if replicas > 1 {
		to := 1 + rng.IntN(replicas-1)
		if predicted, missing := act("scale", web.With("replicas", to), to); missing != predicted.Missing || missing != replicas-to {
			t.Errorf("%s: a scale to %d was said to miss %d, %d were missing", about, to, predicted.Missing, missing)
		}
		replicas = to
	}
	name := ""
	for _, p := range podsOf(t, ns, "web") {
		name = p.Name
	}
	if predicted, missing := act("delete_pod", of(ns, "pod", name), replicas); missing != predicted.Missing || missing != 1 {
		t.Errorf("%s: a deletion was said to miss %d, %d were missing", about, predicted.Missing, missing)
	}
}

// podsOf are the pods that are not on their way out.
func podsOf(t *testing.T, ns, name string) (out []corev1.Pod) {
	t.Helper()
	for _, p := range pods(t, ns, name) {
		if p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}

// predictDrain drains a node of the test's own, with as many pods and as tight a budget as
// it happens.
func predictDrain(t *testing.T, rng *rand.Rand, name string) {
	ns, from, to := cp.Namespace(t), node(t, name+"-from"), node(t, name+"-to")
	reserve(t, from, name)
	replicas := 2 + rng.IntN(5)
	cordonForNow(t, to)
	deployment(t, ns, "web", int32(replicas), func(d *appsv1.Deployment) {
		onNodes(from, to)(&d.Spec.Template)
		d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "example.com/for", Value: name}}
	})
	limit := intstr.FromInt32(1 + rng.Int32N(int32(replicas)))
	spec := policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &limit, Selector: selector("web")}
	if rng.IntN(2) == 0 {
		least := intstr.FromInt32(rng.Int32N(int32(replicas)))
		spec.MaxUnavailable, spec.MinAvailable = nil, &least
	}
	if _, err := cp.Client.PolicyV1().PodDisruptionBudgets(ns).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: spec,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the budget", func() (bool, error) {
		b, err := cp.Client.PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.DisruptionsAllowed > 0, err
	})
	uncordonNow(t, to)
	pods, s := sample(t, ns, "web"), start(t, wide...)
	args := harness.Args{"node": from, "timeout_seconds": 60}
	p := s.Must("plan_drain", args)
	if p.Field("confirm") == "" {
		t.Fatalf("%s", p.Text)
	}
	predicted := harness.Into[planned](t, p).Blast.AtRisk
	got := s.Must("drain", args.With("confirm", p.Field("confirm")).With("reason", "a test"))
	if x := harness.Into[execution](t, got); x.Outcome != plan.Executed {
		t.Fatalf("%s", got.Text)
	}
	if missing := predicted.Ready - pods.settled(t, replicas); missing > predicted.Missing || predicted.Ready != replicas {
		t.Errorf("%d replicas, budget %+v: a drain was said to miss %d of %d at most, %d were missing", replicas, spec, predicted.Missing, predicted.Ready, missing)
	}
}

// reserve keeps the pods of other tests off a node; those that were there already go.
func reserve(t *testing.T, name, owner string) {
	t.Helper()
	lab.Eventually(t, "node "+name+" to be reserved", func() (bool, error) {
		n, err := cp.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "example.com/for", Value: owner, Effect: corev1.TaintEffectNoExecute})
		_, err = cp.Client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		return err == nil, nil
	})
	lab.Eventually(t, "node "+name+" to be empty", func() (bool, error) {
		list, err := cp.Client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
		return err == nil && len(list.Items) == 0, err
	})
}
