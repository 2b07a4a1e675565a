package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

var cp *lab.Lab

func TestMain(m *testing.M) {
	lab.Main(m, lab.Options{}, func(l *lab.Lab) { cp = l })
}

// wire stands between a cache and the API server. It counts, and can hold back, break or
// answer what passes.
type wire struct {
	next http.RoundTripper

	mu      sync.Mutex
	opened  *sync.Cond
	seen    []string // METHOD path?query
	held    bool
	answer  func(*http.Request) *http.Response
	streams []*stream
}

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.seen = append(w.seen, req.Method+" "+req.URL.RequestURI())
	answer := w.answer
	w.mu.Unlock()
	if answer != nil {
		if resp := answer(req); resp != nil {
			return resp, nil
		}
	}
	resp, err := w.next.RoundTrip(req)
	if err != nil || req.URL.Query().Get("watch") == "" {
		return resp, err
	}
	s := &stream{ReadCloser: resp.Body, wire: w}
	w.mu.Lock()
	w.streams = append(w.streams, s)
	w.mu.Unlock()
	resp.Body = s
	return resp, nil
}

// hold keeps from now on what watches deliver, or lets it through.
func (w *wire) hold(held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = held
	w.opened.Broadcast()
}

// cut breaks the watches that are open.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.streams {
		s.ReadCloser.Close()
	}
	w.streams = nil
}

func (w *wire) setAnswer(f func(*http.Request) *http.Response) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = f
}

// requests are those so far that contain each text.
func (w *wire) requests(texts ...string) (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.seen {
		if !slices.ContainsFunc(texts, func(t string) bool { return !strings.Contains(r, t) }) {
			out = append(out, r)
		}
	}
	return out
}

func (w *wire) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = nil
}

type stream struct {
	io.ReadCloser
	wire   *wire
	closed bool // guarded by wire.mu
}

// Read gives nothing while the wire is held, not even what it has read by then.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	for s.wire.held && !s.closed {
		s.wire.opened.Wait()
	}
	return n, err
}

func (s *stream) Close() error {
	s.wire.mu.Lock()
	s.closed = true
	s.wire.opened.Broadcast()
	s.wire.mu.Unlock()
	return s.ReadCloser.Close()
}

// status is an answer of the API server's kind.
func status(req *http.Request, code int32, reason metav1.StatusReason) *http.Response {
	body, _ := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason,
	})
	return &http.Response{
		StatusCode: int(code), Status: http.StatusText(int(code)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)),
	}
}

// clock is one that a test may put forward.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// underTest is a cache on its wire, through the reader's own transport.
type underTest struct {
	*Cache
	*wire
	*clock
}

func newCache(t testing.TB, cfg *rest.Config) *underTest {
	t.Helper()
	u := &underTest{wire: &wire{}, clock: &clock{}}
	u.opened = sync.NewCond(&u.wire.mu)
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		u.next = next
		return u.wire
	})
	clients, err := New(cfg, "test", u.clock.now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	u.Cache = clients.Cache
	t.Cleanup(u.Close)
	t.Cleanup(func() {
		for _, r := range u.requests() {
			if !strings.HasPrefix(r, http.MethodGet) {
				t.Errorf("the cache sent %s", r)
			}
		}
	})
	return u
}

// live is what a list says now.
func live(t testing.TB, w Want) plan.Facts {
	t.Helper()
	c := NewCache(cp.Client, time.Now, slog.New(slog.DiscardHandler))
	c.Close() // a closed one has only live lists
	return c.Facts(t.Context(), w)
}

// siblings shows Facts in a form that can be compared.
func siblings(f plan.Facts) map[string]any {
	budgets := map[string]string{}
	for _, b := range f.Budgets {
		budgets[b.Namespace+"/"+b.Name] = b.Selector.String()
		b.Selector = nil
		budgets[b.Namespace+"/"+b.Name] += fmt.Sprintf(" %+v", b)
	}
	return map[string]any{"pods": f.Pods, "nodes": f.Nodes, "budgets": budgets, "missing": f.Missing, "loads": f.Loads}
}

func wantSource(t testing.TB, f plan.Facts, resource, prefix string) {
	t.Helper()
	if got := f.Sources[resource]; !strings.HasPrefix(got, prefix) {
		t.Errorf("source of %s is %q, want %q; missing: %q", resource, got, prefix, f.Missing[resource])
	}
}

// eventuallyCached waits until a want is served from its cache.
func eventuallyCached(t testing.TB, u *underTest, w Want, resource string) (f plan.Facts) {
	t.Helper()
	lab.Eventually(t, "a cache of "+resource, func() (bool, error) {
		f = u.Facts(t.Context(), w)
		return strings.HasPrefix(f.Sources[resource], "cache"), errors.New(f.Sources[resource] + f.Missing[resource])
	})
	return f
}

func createPod(t testing.TB, ns, name string) *corev1.Pod {
	t.Helper()
	p, err := cp.Client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: ptr.To(false), // envtest makes no service accounts
			Containers:                   []corev1.Container{{Name: "web", Image: "web"}},
			Volumes:                      []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func setReady(t testing.TB, p *corev1.Pod, ready corev1.ConditionStatus) *corev1.Pod {
	t.Helper()
	p = p.DeepCopy()
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	p, err := cp.Client.CoreV1().Pods(p.Namespace).UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func deletePod(t testing.TB, ns, name string) {
	t.Helper()
	if err := cp.Client.CoreV1().Pods(ns).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
		t.Fatal(err)
	}
}

func createBudget(t testing.TB, ns, name string) {
	t.Helper()
	if _, err := cp.Client.PolicyV1().PodDisruptionBudgets(ns).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// version is that of the newest write.
func version(t testing.TB, ns string) string {
	t.Helper()
	c, err := cp.Client.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "now-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c.ResourceVersion
}

func createNode(t testing.TB, name string) {
	t.Helper()
	if err := cp.Node(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cp.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
}

func TestCacheEqualsALiveList(t *testing.T) {
	ns := cp.Namespace(t)
	createNode(t, "equal-1")
	createBudget(t, ns, "web")
	u := newCache(t, cp.Config)
	for _, w := range []Want{
		{Namespace: ns, Pods: true, Budgets: true},
		{Namespaces: []string{ns}, Pods: true, Budgets: true, Nodes: true},
	} {
		t.Run("namespace "+w.Namespace, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			pods := map[string]*corev1.Pod{}
			cached := 0
			for round := range 40 {
				w.NotBefore = ""
				name := fmt.Sprintf("p-%d", random.IntN(12))
				switch p := pods[name]; {
				case p == nil:
					pods[name] = createPod(t, ns, name)
					w.NotBefore = pods[name].ResourceVersion
				case random.IntN(2) == 0:
					ready := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}[random.IntN(2)]
					pods[name] = setReady(t, p, ready)
					w.NotBefore = pods[name].ResourceVersion
				default:
					deletePod(t, ns, name)
					delete(pods, name)
					w.NotBefore = version(t, ns) // of the next write: only a live list is sure to know
				}
				got := u.Facts(t.Context(), w)
				if diff := cmp.Diff(siblings(live(t, w)), siblings(got)); diff != "" {
					t.Fatalf("round %d, %v (-live list +cache):\n%s", round, got.Sources, diff)
				}
				if strings.HasPrefix(got.Sources["pods"], "cache") {
					cached++
				}
			}
			if cached < 10 {
				t.Errorf("the cache was used in %d of 40 rounds", cached)
			}
			for name := range pods {
				deletePod(t, ns, name)
			}
		})
	}
}

// TestLoadsOfAllNamespaces: a plan over nodes has the facts of its namespaces and what the
// pods of all others add up to beside them, from the cache as from a live list.
func TestLoadsOfAllNamespaces(t *testing.T) {
	ns, other := cp.Namespace(t), cp.Namespace(t)
	createNode(t, "loads-1")
	for i, of := range []string{ns, other, other} {
		if _, err := cp.Client.CoreV1().Pods(of).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "web-"},
			Spec: corev1.PodSpec{
				AutomountServiceAccountToken: ptr.To(false), NodeName: "loads-1",
				Containers: []corev1.Container{{Name: "web", Image: "web", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}}}},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		createBudget(t, of, fmt.Sprintf("web-%d", i))
	}
	u := newCache(t, cp.Config)
	w := Want{Namespaces: []string{ns}, Pods: true, Budgets: true, Nodes: true}
	for source, f := range map[string]plan.Facts{"cache": eventuallyCached(t, u, w, "pods"), "live list": live(t, w)} {
		wantSource(t, f, "pods", source)
		if len(f.Pods) != 1 || len(f.Budgets) != 1 || f.Pods[0].Namespace != ns || f.Budgets[0].Namespace != ns {
			t.Errorf("%s: pods %v, budgets %v, want those of %s", source, f.Pods, f.Budgets, ns)
		}
		want := plan.Load{Pods: 3, Running: 3, Requests: plan.Resources{CPU: 300}}
		if diff := cmp.Diff(want, f.Loads["loads-1"]); diff != "" {
			t.Errorf("%s: on the node (-want +got):\n%s", source, diff)
		}
	}
	w.Nodes = false
	if f := eventuallyCached(t, u, w, "pods"); f.Loads != nil {
		t.Errorf("sums that nobody asked for: %v", f.Loads)
	}
}

func TestCacheOfAllNamespacesServesOne(t *testing.T) {
	ns, other := cp.Namespace(t), cp.Namespace(t)
	createPod(t, ns, "web-0")
	createPod(t, other, "web-1")
	u := newCache(t, cp.Config)
	eventuallyCached(t, u, Want{Pods: true}, "pods")
	u.reset()
	f := u.Facts(t.Context(), Want{Namespace: ns, Pods: true})
	wantSource(t, f, "pods", "cache")
	if diff := cmp.Diff(siblings(live(t, Want{Namespace: ns, Pods: true})), siblings(f)); diff != "" {
		t.Errorf("(-live list +cache):\n%s", diff)
	}
	if r := u.requests(); len(r) > 0 {
		t.Errorf("it sent %q", r)
	}
}

func account(t *testing.T, resources map[string]string) *rest.Config {
	t.Helper()
	var rules []rbacv1.PolicyRule
	for resource, verbs := range resources {
		group := ""
		if resource == "poddisruptionbudgets" {
			group = "policy"
		}
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: strings.Fields(verbs)})
	}
	cfg, err := cp.ServiceAccount(t.Context(), cp.Namespace(t), "cache", rules)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestCase_CL_02_NoPermissionToListBudgets(t *testing.T) {
	ns := cp.Namespace(t)
	createPod(t, ns, "web-0")
	u := newCache(t, account(t, map[string]string{"pods": "get list watch", "nodes": "get list watch"}))
	w := Want{Namespace: ns, Pods: true, Budgets: true, Nodes: true}
	eventuallyCached(t, u, w, "pods") // the API server may learn of the role late
	f := eventuallyCached(t, u, w, "nodes")
	wantSource(t, f, "pods", "cache")
	want := map[string]string{"poddisruptionbudgets": "cannot list poddisruptionbudgets.policy (403)"}
	if diff := cmp.Diff(want, f.Missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	if source, ok := f.Sources["poddisruptionbudgets"]; ok {
		t.Errorf("source of the budgets is %q, want none", source)
	}
	if len(f.Pods) != 1 {
		t.Errorf("%d pods, want 1", len(f.Pods))
	}

	// Nothing asks for ever: beside each plan's own list there is silence.
	lab.Eventually(t, "the end of the informer", func() (bool, error) {
		u.Cache.mu.Lock()
		defer u.Cache.mu.Unlock()
		return u.informers[source{"poddisruptionbudgets", ns}] == nil, nil
	})
	u.reset()
	time.Sleep(2 * time.Second) // client-go's first retry comes after 0.8 to 1.6 s
	if r := u.requests("poddisruptionbudgets"); len(r) != 0 {
		t.Errorf("asked without a plan: %q", r)
	}
	u.Facts(t.Context(), w)
	if r := u.requests("poddisruptionbudgets"); len(r) != 1 {
		t.Errorf("a plan asked %q, want one list", r)
	}

	// What is granted later is found without a restart.
	u.forward(deniedPause + time.Second)
	u.reset()
	u.Facts(t.Context(), w)
	if r := u.requests("poddisruptionbudgets", "watch=true"); len(r) == 0 {
		t.Error("watching was not tried again")
	}
}

func TestNoPermissionToWatch(t *testing.T) {
	ns := cp.Namespace(t)
	createPod(t, ns, "web-0")
	u := newCache(t, account(t, map[string]string{"pods": "get list"}))
	w := Want{Namespace: ns, Pods: true}
	lab.Eventually(t, "the role", func() (bool, error) {
		f := u.Facts(t.Context(), w)
		return f.Sources["pods"] == "live list: watching is forbidden" && len(f.Pods) == 1, fmt.Errorf("%v %v", f.Sources, f.Missing)
	})
	createPod(t, ns, "web-1")
	f := u.Facts(t.Context(), w)
	if len(f.Pods) != 2 || f.Sources["pods"] != "live list: watching is forbidden" {
		t.Errorf("%d pods from %q, want 2 from a live list", len(f.Pods), f.Sources["pods"])
	}
}

func TestIdleStopAndRestart(t *testing.T) {
	ns, other := cp.Namespace(t), cp.Namespace(t)
	createPod(t, ns, "web-0")
	u := newCache(t, cp.Config)
	idle, busy := Want{Namespace: ns, Pods: true}, Want{Namespace: other, Pods: true}
	eventuallyCached(t, u, idle, "pods")
	u.Cache.mu.Lock()
	first := u.informers[source{"pods", ns}]
	u.Cache.mu.Unlock()
	u.forward(idleStop / 2)
	u.Facts(t.Context(), busy)
	u.stopIdle()
	if first.ended() {
		t.Fatal("stopped before it was idle for long enough")
	}
	u.forward(idleStop/2 + time.Second)
	u.stopIdle()
	select {
	case <-first.done:
	case <-time.After(10 * time.Second):
		t.Fatal("an idle informer runs on")
	}
	u.Cache.mu.Lock()
	var left []source
	for s := range u.informers {
		left = append(left, s)
	}
	timer := u.idle
	u.Cache.mu.Unlock()
	if diff := cmp.Diff([]source{{"pods", other}}, left, cmp.AllowUnexported(source{})); diff != "" || timer == nil {
		t.Errorf("informers left, timer %v (-want +got):\n%s", timer, diff)
	}

	createPod(t, ns, "web-1")
	if f := eventuallyCached(t, u, idle, "pods"); len(f.Pods) != 2 {
		t.Errorf("%d pods after the restart, want 2", len(f.Pods))
	}
	u.forward(idleStop + time.Second)
	u.stopIdle()
	u.Cache.mu.Lock()
	defer u.Cache.mu.Unlock()
	if len(u.informers) != 0 || u.idle != nil {
		t.Errorf("%d informers and timer %v are left, want none", len(u.informers), u.idle)
	}
}

// TestInformersAreBounded asks for the siblings of ever new namespaces.
func TestInformersAreBounded(t *testing.T) {
	u := newCache(t, cp.Config)
	inform := func(n int) *informer {
		u.forward(time.Second)
		i, why := u.inform(source{"pods", fmt.Sprintf("ns-%d", n)})
		if why != "" {
			t.Fatal(why)
		}
		return i
	}
	first, second := inform(0), inform(1)
	for n := 2; n < maxRunning; n++ {
		inform(n)
	}
	inform(0) // is used again
	inform(maxRunning)
	u.Cache.mu.Lock()
	running := len(u.informers)
	u.Cache.mu.Unlock()
	if running != maxRunning {
		t.Errorf("%d informers run, want %d", running, maxRunning)
	}
	select {
	case <-second.done:
	case <-time.After(10 * time.Second):
		t.Error("the one that is unused for longest runs on")
	}
	if first.ended() {
		t.Error("one that was used since has ended")
	}
	ns := cp.Namespace(t)
	createPod(t, ns, "web-0")
	if f := eventuallyCached(t, u, Want{Namespace: ns, Pods: true}, "pods"); len(f.Pods) != 1 {
		t.Errorf("%d pods, want 1", len(f.Pods))
	}
}

// TestNothingIsReadFromAHeldWatch holds back what the watch delivers while the cluster
// moves on, which nothing on the wire tells the cache.
func TestNothingIsReadFromAHeldWatch(t *testing.T) {
	ns := cp.Namespace(t)
	pod := setReady(t, createPod(t, ns, "web-0"), corev1.ConditionTrue)
	u := newCache(t, cp.Config)
	w := Want{Namespace: ns, Pods: true, NotBefore: pod.ResourceVersion}
	began := time.Now()
	eventuallyCached(t, u, w, "pods")
	u.hold(true)
	t.Cleanup(func() { u.hold(false) })
	moved := setReady(t, pod, corev1.ConditionFalse)
	createPod(t, ns, "web-1")

	check := func(name string, w Want, wantSource string) {
		t.Helper()
		f := u.Facts(t.Context(), w)
		if f.Sources["pods"] != wantSource || len(f.Pods) != 2 || f.Pods[0].Ready {
			t.Errorf("%s: %d pods from %q, want 2 from %q", name, len(f.Pods), f.Sources["pods"], wantSource)
		}
	}
	w.NotBefore = moved.ResourceVersion
	check("a target that moved", w, "live list: the cache is older than the target")
	w.NotBefore = "not a number"
	check("versions that cannot be compared", w, "live list: the cache is older than the target")
	w.NotBefore = pod.ResourceVersion
	w.Agrees = func(f plan.Facts) bool { return len(f.Pods) == 2 }
	check("a target that counts two pods", w, "live list: the cache disagrees with the target")

	// Without a target that has moved, its age is all that is known: by how much the clock was
	// put forward, and what has passed beside that.
	w.Agrees = nil
	aged := func(source, before, behind string, forward time.Duration) bool {
		rest, ok := strings.CutPrefix(source, before)
		age, err := time.ParseDuration(strings.TrimSuffix(rest, behind))
		return ok && err == nil && age >= forward && age <= forward+time.Since(began)+time.Second // it is rounded
	}
	u.forward(silence - 30*time.Second)
	f := u.Facts(t.Context(), w)
	if source := f.Sources["pods"]; !aged(source, "cache, ", " old", silence-30*time.Second) || len(f.Pods) != 1 {
		t.Errorf("%d pods from %q, want the old state with its age", len(f.Pods), source)
	}
	u.forward(time.Minute)
	f = u.Facts(t.Context(), w)
	if source := f.Sources["pods"]; !aged(source, "live list: the watch is silent for ", "", silence+30*time.Second) || len(f.Pods) != 2 {
		t.Errorf("%d pods from %q, want 2 from a live list", len(f.Pods), source)
	}

	// Another informer takes over. It gets no state at first.
	u.syncWait = 300 * time.Millisecond
	check("a new watch that is held", w, "live list: the cache has not synced yet")
	u.hold(false)
	f = eventuallyCached(t, u, Want{Namespace: ns, Pods: true, NotBefore: moved.ResourceVersion}, "pods")
	if diff := cmp.Diff(siblings(live(t, w)), siblings(f)); diff != "" {
		t.Errorf("(-live list +cache):\n%s", diff)
	}
}

// TestQuietKind is a target that was written after the last event of its siblings: one
// list proves the cache, not the second.
func TestQuietKind(t *testing.T) {
	ns := cp.Namespace(t)
	pod := createPod(t, ns, "web-0")
	u := newCache(t, cp.Config)
	w := Want{Namespace: ns, Pods: true}
	eventuallyCached(t, u, w, "pods")
	check := func(name, wantSource string, wantPods int) {
		t.Helper()
		f := u.Facts(t.Context(), w)
		if source := f.Sources["pods"]; !strings.HasPrefix(source, wantSource) || len(f.Pods) != wantPods {
			t.Errorf("%s: %d pods from %q, want %d from %q", name, len(f.Pods), source, wantPods, wantSource)
		}
	}
	w.NotBefore = version(t, ns)
	check("first", "live list: the cache is older than the target", 1)
	check("second", "cache", 1)
	w.NotBefore = version(t, ns)
	check("written again", "live list: the cache is older than the target", 1)

	u.hold(true)
	t.Cleanup(func() { u.hold(false) })
	createPod(t, ns, "passing")
	deletePod(t, ns, "passing")
	w.NotBefore = version(t, ns)
	check("a pod came and went", "live list: the cache is older than the target", 1)
	check("and is gone from both", "cache", 1)
	setReady(t, pod, corev1.ConditionTrue)
	w.NotBefore = version(t, ns)
	check("a pod moved", "live list: the cache is older than the target", 1)
	check("that is no proof", "live list: the cache is older than the target", 1)
	u.hold(false)
	lab.Eventually(t, "the events", func() (bool, error) {
		f := u.Facts(t.Context(), w)
		return strings.HasPrefix(f.Sources["pods"], "cache") && len(f.Pods) == 1 && f.Pods[0].Ready, fmt.Errorf("%+v", f)
	})
}

// TestCutWatch breaks the watch and refuses the next ones for a while.
func TestCutWatch(t *testing.T) {
	noKlog(t)
	ns := cp.Namespace(t)
	createPod(t, ns, "web-0")
	u := newCache(t, cp.Config)
	w := Want{Namespace: ns, Pods: true}
	eventuallyCached(t, u, w, "pods")
	u.setAnswer(func(req *http.Request) *http.Response {
		if req.URL.Query().Get("watch") == "" {
			return nil
		}
		return status(req, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	})
	u.cut()
	createPod(t, ns, "web-1")
	lab.Eventually(t, "the end of the watch", func() (bool, error) {
		f := u.Facts(t.Context(), w)
		return f.Sources["pods"] == "live list: the watch is down" && len(f.Pods) == 2, fmt.Errorf("%d from %v", len(f.Pods), f.Sources)
	})
	u.setAnswer(nil)
	if f := eventuallyCached(t, u, w, "pods"); len(f.Pods) != 2 {
		t.Errorf("%d pods after the watch is back, want 2", len(f.Pods))
	}
}

// TestWithoutStreamedState is a server that does not stream its state: the informer falls
// back to a list, which must be a consistent one.
func TestWithoutStreamedState(t *testing.T) {
	ns := cp.Namespace(t)
	createPod(t, ns, "web-0")
	u := newCache(t, cp.Config)
	u.setAnswer(func(req *http.Request) *http.Response {
		if req.URL.Query().Get("sendInitialEvents") == "" {
			return nil
		}
		return status(req, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	})
	w := Want{Namespace: ns, Pods: true}
	if f := u.Facts(t.Context(), w); len(f.Pods) != 1 {
		t.Errorf("%d pods, want 1", len(f.Pods))
	}
	f := eventuallyCached(t, u, w, "pods")
	if len(f.Pods) != 1 {
		t.Errorf("%d pods, want 1", len(f.Pods))
	}
	if lists := u.requests("/pods?"); !slices.ContainsFunc(lists, func(r string) bool { return !strings.Contains(r, "watch=") }) {
		t.Errorf("no list among %q", lists)
	}
	for _, r := range u.requests("/pods?") {
		if !strings.Contains(r, "watch=") && strings.Contains(r, "resourceVersion=") {
			t.Errorf("a list that may be old: %s", r)
		}
	}
}

func TestPaging(t *testing.T) {
	ns := cp.Namespace(t)
	const pods = 2*pageSize + 100
	var creating sync.WaitGroup
	for n := range 12 {
		creating.Go(func() {
			for i := n; i < pods; i += 12 {
				createPod(t, ns, fmt.Sprintf("web-%04d", i))
			}
		})
	}
	creating.Wait()
	u := newCache(t, cp.Config)
	w := Want{Namespace: ns, Pods: true}
	cached := eventuallyCached(t, u, w, "pods")
	expired := func(req *http.Request) *http.Response {
		return status(req, http.StatusGone, metav1.StatusReasonExpired)
	}
	for name, tc := range map[string]struct {
		answer       func(n int, req *http.Request) *http.Response // n counts second pages from 1
		wantRequests int
		wantMissing  string
	}{
		"three pages": {func(int, *http.Request) *http.Response { return nil }, 3, ""},
		"expired once": {func(n int, req *http.Request) *http.Response {
			if n == 1 {
				return expired(req)
			}
			return nil
		}, 2 + 3, ""},
		"expired at each page": {func(_ int, req *http.Request) *http.Response { return expired(req) }, 2 + 2 + 1, ""},
		"forbidden in between": {func(_ int, req *http.Request) *http.Response {
			return status(req, http.StatusForbidden, metav1.StatusReasonForbidden)
		}, 2, "cannot list pods (403)"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newCache(t, cp.Config)
			u.Close()
			second := 0
			u.setAnswer(func(req *http.Request) *http.Response {
				if req.URL.Query().Get("continue") == "" {
					return nil
				}
				second++
				return tc.answer(second, req)
			})
			f := u.Facts(t.Context(), w)
			if r := u.requests(); len(r) != tc.wantRequests {
				t.Errorf("%d requests, want %d: %q", len(r), tc.wantRequests, r)
			}
			if f.Missing["pods"] != tc.wantMissing {
				t.Errorf("missing is %q, want %q", f.Missing["pods"], tc.wantMissing)
			}
			if tc.wantMissing != "" {
				if len(f.Pods) > 0 || f.Sources["pods"] != "" {
					t.Errorf("%d pods from %q beside what is missing", len(f.Pods), f.Sources["pods"])
				}
				return
			}
			if diff := cmp.Diff(siblings(cached), siblings(f)); diff != "" || len(f.Pods) != pods {
				t.Errorf("%d pods (-cache +live list):\n%s", len(f.Pods), diff)
			}
		})
	}
}

// TestUnreachable is bounded by its context, keeps quiet and ends at once.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a refused connection takes no time
		noKlog(t)
		u := newCache(t, &rest.Config{Host: "https://127.0.0.1:1"})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		w := Want{Pods: true, Budgets: true}
		u.Facts(ctx, w)
		f := u.Facts(ctx, w) // client-go's retries are seconds apart by now
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		want := map[string]string{
			"pods":                 "cannot list pods (the API server cannot be reached)",
			"poddisruptionbudgets": "cannot list poddisruptionbudgets.policy (the API server cannot be reached)",
		}
		if diff := cmp.Diff(want, f.Missing); diff != "" {
			t.Errorf("missing (-want +got):\n%s", diff)
		}
		start = time.Now()
		u.Close()
		if took := time.Since(start); took != 0 {
			t.Errorf("Close waited %s, for a retry", took)
		}
	})
}

// noKlog fails a test at whose end client-go has said anything on its own log.
func noKlog(t *testing.T) {
	t.Helper()
	var said lockedLog
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(&said, nil)))
	t.Cleanup(func() {
		klog.ClearLogger()
		if s := said.String(); s != "" {
			t.Errorf("client-go said on its own log: %s", s)
		}
	})
}

type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestCloseLeavesNothing(t *testing.T) {
	ns := cp.Namespace(t)
	u := newCache(t, cp.Config)
	w := Want{Namespace: ns, Pods: true, Budgets: true, Nodes: true}
	var calling sync.WaitGroup
	for range 8 {
		calling.Go(func() { u.Facts(t.Context(), w) })
	}
	calling.Wait()
	if got := goroutines(); got == 0 {
		t.Fatal("no goroutine of an informer is found while informers run")
	}
	for range 4 {
		calling.Go(func() { u.Facts(t.Context(), w) })
		calling.Go(u.Close)
	}
	calling.Wait()
	lab.Eventually(t, "the end of all goroutines", func() (bool, error) {
		n := goroutines()
		return n == 0, fmt.Errorf("%d are left", n)
	})
	f := u.Facts(t.Context(), w)
	wantSource(t, f, "pods", "live list: the caches are closed")
	if n := goroutines(); n != 0 {
		t.Errorf("%d goroutines after a use of closed caches", n)
	}
}

// goroutines counts those of informers.
func goroutines() (n int) {
	buf := make([]byte, 16<<20)
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "client-go/tools/cache.") || strings.Contains(g, "kube.(*Cache).start") || strings.Contains(g, "kube.(*Cache).tap") {
			n++
		}
	}
	return n
}

func TestNewest(t *testing.T) {
	for name, tc := range map[string]struct {
		versions []string
		want     string
	}{
		"none":             {nil, ""},
		"empty":            {[]string{"", ""}, ""},
		"longer is newer":  {[]string{"99", "", "1000", "998"}, "1000"},
		"not a number":     {[]string{"99", "x", "1000"}, "x"},
		"zero is no one's": {[]string{"0", "7"}, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Newest(tc.versions...); got != tc.want {
				t.Errorf("newest of %q is %q, want %q", tc.versions, got, tc.want)
			}
		})
	}
}

// TestSleep is a laptop that sleeps: the monotonic clock stands still, the wall's goes on.
func TestSleep(t *testing.T) {
	then := time.Now()
	awake := then.Round(0).Add(time.Hour) // without a monotonic reading
	if got := since(awake, then); got < 59*time.Minute {
		t.Errorf("%s have passed, want an hour", got)
	}
	if got := since(then.Add(-time.Hour), then); got != 0 {
		t.Errorf("%s have passed by a clock that was set back, want none", got)
	}
}

// TestRightsInANamespace: what may not be listed everywhere is watched where it may be.
func TestRightsInANamespace(t *testing.T) {
	own, ns, other := cp.Namespace(t), cp.Namespace(t), cp.Namespace(t)
	cfg, err := cp.ServiceAccount(t.Context(), own, "narrow", []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}}})
	if err != nil {
		t.Fatal(err)
	}
	rbac := cp.Client.RbacV1()
	if _, err := rbac.Roles(ns).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "narrow"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"policy"}, Resources: []string{"poddisruptionbudgets"}, Verbs: []string{"list", "watch"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := rbac.RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "narrow"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "narrow"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: own, Name: "narrow"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	createBudget(t, ns, "web")
	createBudget(t, other, "db")
	u := newCache(t, cfg)
	w := Want{Namespaces: []string{ns}, Pods: true, Budgets: true, Services: true}
	lab.Eventually(t, "the role", func() (bool, error) {
		first := newCache(t, cfg)
		first.Close()
		f := first.Facts(t.Context(), Want{Namespace: ns, Budgets: true})
		return len(f.Budgets) == 1, errors.New(f.Missing["poddisruptionbudgets"])
	})
	if f := u.Facts(t.Context(), w); len(f.Budgets) != 1 {
		t.Errorf("at first %d budgets, %v, want 1", len(f.Budgets), f.Missing)
	}
	f := eventuallyCached(t, u, w, "poddisruptionbudgets")
	wantSource(t, f, "pods", "cache")
	if len(f.Budgets) != 1 || f.Budgets[0].Name != "web" {
		t.Errorf("budgets %v, want that of the namespace", f.Budgets)
	}
	if diff := cmp.Diff(map[string]string{"services": "cannot list services (403)"}, f.Missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	u.reset()
	u.Facts(t.Context(), w)
	if r := u.requests("/apis/policy"); len(r) > 0 {
		t.Errorf("asked again: %q", r)
	}

	// One namespace of two is not enough.
	w.Namespaces = []string{ns, other}
	f = u.Facts(t.Context(), w)
	if len(f.Budgets) > 0 || f.Sources["poddisruptionbudgets"] != "" || f.Missing["poddisruptionbudgets"] == "" {
		t.Errorf("%d budgets from %q, missing %q; want none, and missing", len(f.Budgets), f.Sources["poddisruptionbudgets"], f.Missing)
	}
}

// TestWhatOnlyWarns: services and the like are cached from the first plan on, need not
// have reached the target's version, and nothing of Secrets or ConfigMaps is ever asked for.
func TestWhatOnlyWarns(t *testing.T) {
	ns := cp.Namespace(t)
	for _, name := range []string{"web", "api"} {
		if _, err := cp.Client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	u := newCache(t, cp.Config)
	w := Want{Namespace: ns, Services: true, Autoscalers: true, Quotas: true}
	u.Warm(w)
	lab.Eventually(t, "an informer", func() (bool, error) { return len(u.requests("/services?", "watch=true")) > 0, nil })
	eventuallyCached(t, u, w, "services")
	eventuallyCached(t, u, w, "horizontalpodautoscalers")
	eventuallyCached(t, u, w, "resourcequotas")
	u.reset()
	w.NotBefore = version(t, ns)
	w.Agrees = func(plan.Facts) bool { return false }
	f := u.Facts(t.Context(), w)
	if len(f.Services) != 2 || f.Services[0].Name != "api" {
		t.Errorf("services %v, want api and web", f.Services)
	}
	if r := u.requests(); len(r) > 0 {
		t.Errorf("it sent %q", r)
	}
	everything := Want{Pods: true, Budgets: true, Nodes: true, Services: true, Autoscalers: true, Quotas: true}
	eventuallyCached(t, u, everything, "services")
	for _, r := range u.requests() {
		if strings.Contains(r, "secrets") || strings.Contains(r, "configmaps") {
			t.Errorf("it sent %s", r)
		}
	}
	if _, err := compact(&corev1.Secret{}); err == nil {
		t.Error("a Secret has a record")
	}
	if _, err := compact(&corev1.ConfigMap{}); err == nil {
		t.Error("a ConfigMap has a record")
	}
}
