package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/metrics"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// tap is on the watches of a proxy: it can hold back what they bring, and cut them.
type tap struct {
	mu     sync.Mutex
	gate   chan struct{} // closed where events flow
	bodies []io.Closer
}

func newTap(p *harness.Proxy) *tap {
	w := &tap{gate: make(chan struct{})}
	close(w.gate)
	p.After(func(r *harness.Request, resp *http.Response) {
		if !isWatch(*r) {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.bodies = append(w.bodies, resp.Body)
		resp.Body = &tapped{resp.Body, w}
	})
	return w
}

func isWatch(r harness.Request) bool { return strings.Contains(r.Query, "watch=") }

func (w *tap) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gate = make(chan struct{})
}

func (w *tap) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.gate)
}

func (w *tap) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.bodies {
		_ = b.Close()
	}
	w.bodies = nil
}

type tapped struct {
	io.ReadCloser
	of *tap
}

func (b *tapped) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.of.mu.Lock()
	gate := b.of.gate
	b.of.mu.Unlock()
	<-gate
	return n, err
}

type withBlast struct {
	Blast plan.Blast `json:"blast"`
}

// blastOf plans and gives the radius. The plan must have a phrase.
func blastOf(t *testing.T, s *harness.Server, tool string, args harness.Args) (plan.Blast, string) {
	t.Helper()
	got := s.Must(tool, args)
	if got.Field("confirm") == "" {
		t.Fatalf("no phrase: %s", got.Text)
	}
	return harness.Into[withBlast](t, got).Blast, got.Text
}

// wantCache waits until plans come from the cache, which says how old it is.
func wantCache(t *testing.T, s *harness.Server, args harness.Args) {
	t.Helper()
	lab.Eventually(t, "the cache to be used", func() (bool, error) {
		b, _ := blastOf(t, s, "plan_scale", args)
		return strings.HasPrefix(b.Source, "cache, ") && strings.HasSuffix(b.Source, "s old"), fmt.Errorf("source %q", b.Source)
	})
}

// TestCase_CL_01: a plan right after a write sees that write, though no watch has brought
// it yet: the target is read live, and so are its siblings.
func TestCase_CL_01(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	node := ns + "-drained"
	harness.Create(t, cp, ns, harness.Node(node).Ready(), harness.Node(ns+"-node").Ready(), harness.Deployment("web").Replicas(3).Pods(onNode(node)).Ready(3))
	harness.Converge(t, cp, ns)
	t.Cleanup(workbench{ns, ns + "-node", node}.removeNodes)
	s := start(t, wide...)
	watches := newTap(s.Proxy)
	web := of(ns, "deployment", "web")
	wantCache(t, s, web.With("replicas", 2))
	watches.hold()
	t.Cleanup(watches.release) // before the server ends
	if got := s.Do("scale", web.With("replicas", 5)); harness.Into[execution](t, got).Outcome != plan.Executed {
		t.Fatal(got.Text)
	}
	if _, text := blastOf(t, s, "plan_scale", web.With("replicas", 7)); !strings.Contains(text, "from 5 to 7") {
		t.Errorf("the value before is not live: %s", text)
	}
	if b, text := blastOf(t, s, "plan_scale", web.With("replicas", 4)); b.Of != 5 || b.AtRisk.Ready != 5 || !strings.HasPrefix(b.Source, "live list") {
		t.Errorf("radius %+v, want 1 pod of 5 by a live list: %s", b, text)
	}
	if b, text := blastOf(t, s, "plan_drain", harness.Args{"node": node}); b.Pods != 5 {
		t.Errorf("a drain of %d pods, want 5: %s", b.Pods, text)
	}
}

// TestCase_CL_04: while the API server is away nothing is planned from what is remembered;
// when it is back, with watches that are too old, the numbers are right at once.
func TestCase_CL_04(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(4).Ready(4))
	harness.Converge(t, cp, ns)
	s := harness.Spawn(t, cp, program(t), harness.Options{Args: wide})
	watches := newTap(s.Proxy)
	down := of(ns, "deployment", "web").With("replicas", 3)
	wantCache(t, s, down)
	s.Proxy.Before(func(*harness.Request, http.ResponseWriter) bool { panic(http.ErrAbortHandler) })
	watches.cut()
	if got := s.Must("plan_scale", down); harness.Code(got) != "unreachable" || got.Field("confirm") != "" {
		t.Errorf("during the outage: %s", got.Text)
	}
	setReplicas(t, ns, "web", 6)
	lab.Eventually(t, "six pods", func() (bool, error) {
		d, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && d.Status.ReadyReplicas == 6, err
	})
	var mu sync.Mutex
	old := map[string]bool{}
	s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
		mu.Lock()
		defer mu.Unlock()
		if !isWatch(*r) || strings.Contains(r.Query, "sendInitialEvents") || old[r.Path] {
			return true
		}
		old[r.Path] = true
		expired(w, "")
		return false
	})
	if b, text := blastOf(t, s, "plan_scale", down); b.Of != 6 || b.Pods != 3 || !strings.Contains(text, "from 6 to 3") {
		t.Errorf("after the outage: %+v: %s", b, text)
	}
	wantCache(t, s, down)
	if b, _ := blastOf(t, s, "plan_scale", down); b.Of != 6 || b.Pods != 3 {
		t.Errorf("by the cache: %+v, want 3 of 6", b)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(s.Stderr.String(), "\n"); n > 60 {
		t.Errorf("%d lines on stderr: %s", n, s.Stderr)
	}
}

// expired answers 410, with a token to go on from where there is one.
func expired(w http.ResponseWriter, next string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusGone)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, ListMeta: metav1.ListMeta{Continue: next}, Status: metav1.StatusFailure,
		Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "The provided continue parameter is too old",
	})
}

// TestCase_CL_05: a list that expires between its pages is begun again. A plan is never
// made from a part of one.
func TestCase_CL_05(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		expires  func(query string, before int) bool
		wantCode string
		want410  int
	}{
		{"once", func(q string, before int) bool { return before == 0 && strings.Contains(q, "continue=") }, "", 1},
		{"as long as there are pages", func(q string, _ int) bool { return strings.Contains(q, "continue=") }, "", 2},
		{"always", func(string, int) bool { return true }, "facts_missing", 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns := cp.Namespace(t)
			harness.Create(t, cp, ns, harness.Deployment("web").Replicas(5).Ready(5))
			s := start(t, wide...)
			var mu sync.Mutex
			answered := 0
			s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
				if isWatch(*r) {
					panic(http.ErrAbortHandler) // so that there are lists
				}
				if r.Method != http.MethodGet || !strings.HasSuffix(r.Path, "/pods") || strings.Contains(r.Query, "resourceVersion") {
					return true
				}
				mu.Lock()
				defer mu.Unlock()
				if tc.expires(r.Query, answered) {
					answered++
					expired(w, "more")
					return false
				}
				q, err := url.ParseQuery(r.Query)
				if err != nil {
					t.Error(err)
				}
				if q.Get("limit") > "0" {
					q.Set("limit", "2")
				}
				r.Query = q.Encode()
				return true
			})
			got := s.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 4))
			if harness.Code(got) != tc.wantCode {
				t.Fatalf("code %q, want %q: %s", harness.Code(got), tc.wantCode, got.Text)
			}
			if b := harness.Into[withBlast](t, got).Blast; tc.wantCode == "" && (b.Of != 5 || b.AtRisk.Ready != 5) {
				t.Errorf("radius %+v, want 1 of 5", b)
			}
			mu.Lock()
			defer mu.Unlock()
			if answered < tc.want410 { // those of the informer beside them
				t.Errorf("%d lists expired, want at least %d", answered, tc.want410)
			}
		})
	}
}

// limiterWaits counts the requests that asked a rate limiter of client-go, by host.
var limiterWaits = &waits{of: map[string]int{}}

type waits struct {
	mu sync.Mutex
	of map[string]int
}

func (w *waits) Observe(_ context.Context, _ string, u url.URL, _ time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.of[u.Host]++
}

// Not by metrics.Register, which takes the first that comes: that is controller-runtime.
func init() { metrics.RateLimiterLatency = limiterWaits }

// TestCase_CL_07: 110 dry runs of evictions go out, and no limit of the client's own is ever
// asked whether they may.
func TestCase_CL_07(t *testing.T) {
	// Alone: hundreds of dry runs are bounded in time as one plan.
	ns := cp.Namespace(t)
	node := ns + "-drained"
	harness.Create(t, cp, ns, harness.Node(node).Ready(), harness.Node(ns+"-node").Ready(), harness.ReplicaSet("web").Replicas(110).Pods(onNode(node)).Ready(110))
	t.Cleanup(workbench{ns, ns + "-node", node}.removeNodes)
	s := start(t, wide...)
	if b, text := blastOf(t, s, "plan_drain", harness.Args{"node": node}); b.Pods != 110 {
		t.Errorf("%d pods: %s", b.Pods, text)
	}
	if n := len(dryRuns(s, http.MethodPost)); n < 110 {
		t.Errorf("%d dry runs of evictions, want 110", n)
	}
	at, err := url.Parse(s.Proxy.Config().Host)
	if err != nil {
		t.Fatal(err)
	}
	limiterWaits.mu.Lock()
	defer limiterWaits.mu.Unlock()
	if n := limiterWaits.of[at.Host]; n != 0 {
		t.Errorf("%d requests asked a limiter", n)
	}
}

// TestCase_CL_09: a token that is replaced in its file is read from there, by plans and by
// watches, without a restart.
func TestCase_CL_09(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Deployment("web").Replicas(3).Ready(3))
	account := harness.Account(t, cp)
	p := harness.NewProxy(t, account)
	secrets := cp.Client.CoreV1().Secrets("kube-write-mcp")
	bound, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := cp.Client.CoreV1().ServiceAccounts("kube-write-mcp").CreateToken(t.Context(), "server", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: ns, UID: bound.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	token, path := filepath.Join(dir, "token"), filepath.Join(dir, "kubeconfig")
	write(t, token, first.Status.Token)
	if err := cp.Kubeconfig(path, "kind-lab", p.Config()); err != nil {
		t.Fatal(err)
	}
	raw, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw.AuthInfos["kind-lab"].Token, raw.AuthInfos["kind-lab"].TokenFile = "", token
	if err := clientcmd.WriteToFile(*raw, path); err != nil {
		t.Fatal(err)
	}
	s := harness.Start(t, cp, harness.Options{Proxy: p, Args: append([]string{"--kubeconfig", path}, wide...)})
	watches := newTap(p)
	down := of(ns, "deployment", "web").With("replicas", 2)
	wantCache(t, s, down)

	if err := secrets.Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	revoked := rest.AnonymousClientConfig(cp.Config)
	revoked.BearerToken = first.Status.Token
	old, err := kubernetes.NewForConfig(revoked)
	if err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the first token to be revoked", func() (bool, error) {
		_, err := old.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return apierrors.IsUnauthorized(err), err
	})
	write(t, token, account.BearerToken)
	watches.cut()
	if got := s.Must("plan_scale", down); got.IsError { // at which the client learns of it
		if got = s.Must("plan_scale", down); got.IsError {
			t.Fatalf("with the second token: %s", got.Text)
		}
	}
	wantCache(t, s, down)
}

// TestCase_CL_10: 5,000 pods with 20 KiB of what no plan needs, beside Secrets: the process
// stays below 150 MiB, and asks for no Secret or ConfigMap at all.
func TestCase_CL_10(t *testing.T) {
	t.Parallel()
	const pods, ballast, most = 5000, 20 << 10, 150 << 10 // most is in kB
	ns := cp.Namespace(t)
	node := ns + "-drained"
	harness.Create(t, cp, ns, harness.Node(node).Ready(), harness.Node(ns+"-node").Ready())
	t.Cleanup(workbench{ns, ns + "-node", node}.removeNodes)
	if _, err := cp.Client.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "db"}, Data: map[string][]byte{"dump": make([]byte, 100<<10)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := harness.Spawn(t, cp, program(t), harness.Options{Args: wide})
	const version = "9000000000000" // newer than all that there is
	fat := strings.Repeat("x", ballast/2)
	pod := func(n int) corev1.Pod {
		return corev1.Pod{
			TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: ns, Name: fmt.Sprintf("web-%d", n), UID: "11111111-2222-4333-8444-555555555556", ResourceVersion: version, Labels: map[string]string{"app": "web"},
				Annotations:   map[string]string{"kubectl.kubernetes.io/last-applied-configuration": fat},
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: "Update", FieldsV1: metav1.NewFieldsV1(`{"f:` + fat + `":{}}`)}},
			},
			Spec: corev1.PodSpec{NodeName: ns + "-elsewhere", Containers: []corev1.Container{{Name: "main", Image: "main"}}},
		}
	}
	added, err := json.Marshal(map[string]any{"type": "ADDED", "object": pod(0)})
	if err != nil {
		t.Fatal(err)
	}
	var listed, streamed atomic.Int32
	ended := make(chan struct{})
	s.Proxy.Before(func(r *harness.Request, w http.ResponseWriter) bool {
		if r.Path != "/api/v1/pods" || strings.Contains(r.Query, "fieldSelector") { // those of the node are the real ones, of which there are none
			return true
		}
		if isWatch(*r) {
			w.Header().Set("Content-Type", "application/json")
			for n := range pods {
				_, _ = io.WriteString(w, strings.Replace(string(added), `"web-0"`, fmt.Sprintf(`"web-%d"`, n), 1))
				streamed.Add(1)
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "BOOKMARK", "object": corev1.Pod{
				TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
				ObjectMeta: metav1.ObjectMeta{ResourceVersion: version, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
			}})
			_ = http.NewResponseController(w).Flush()
			<-ended
			return false
		}
		q, _ := url.ParseQuery(r.Query)
		from, limit := 0, pods
		_, _ = fmt.Sscan(q.Get("continue"), &from)
		_, _ = fmt.Sscan(q.Get("limit"), &limit)
		list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
		for n := from; n < min(from+limit, pods); n++ {
			list.Items = append(list.Items, pod(n))
		}
		if from+limit < pods {
			list.Continue = fmt.Sprint(from + limit)
		}
		listed.Add(int32(len(list.Items)))
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		_ = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, w)
		return false
	})
	t.Cleanup(func() { close(ended) })
	lab.Eventually(t, "the cache to be used", func() (bool, error) {
		b, _ := blastOf(t, s, "plan_drain", harness.Args{"node": node})
		return strings.HasPrefix(b.Source, "cache, "), fmt.Errorf("source %q", b.Source)
	})
	for range 3 {
		blastOf(t, s, "plan_drain", harness.Args{"node": node})
	}
	rss := peak(t, s.Process().Pid)
	t.Logf("%d kB after %d pods of a watch and %d of lists", rss, streamed.Load(), listed.Load())
	if rss > most || streamed.Load() < pods {
		t.Errorf("%d kB after %d pods of a watch, want at most %d kB for %d", rss, streamed.Load(), most, pods)
	}
	for _, r := range s.Proxy.Requests(nil) {
		if strings.Contains(r.Path, "/secrets") || strings.Contains(r.Path, "/configmaps") {
			t.Errorf("it asked for %s", r.Path)
		}
	}
}
