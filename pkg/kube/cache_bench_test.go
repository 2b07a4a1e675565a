package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

// manyPods is an API server that has so many pods of one kind, ten to each ReplicaSet.
type manyPods struct {
	pods int
	one  corev1.Pod
	size int // of the JSON of one
}

func newManyPods(tb testing.TB, pods int) *manyPods {
	tb.Helper()
	raw, err := os.ReadFile("testdata/pod.yaml")
	if err != nil {
		tb.Fatal(err)
	}
	m := &manyPods{pods: pods}
	if err := yaml.UnmarshalStrict(raw, &m.one); err != nil {
		tb.Fatal(err)
	}
	// Without its sidecar and the larger part of its managed fields it has about 5 kB.
	m.one.Spec.Containers, m.one.Status.ContainerStatuses = m.one.Spec.Containers[:1], m.one.Status.ContainerStatuses[:1]
	m.one.ManagedFields = m.one.ManagedFields[1:]
	wire, err := json.Marshal(&m.one)
	if err != nil {
		tb.Fatal(err)
	}
	m.size = len(wire)
	return m
}

func (m *manyPods) pod(n int) corev1.Pod {
	p := *m.one.DeepCopy()
	app, hash := fmt.Sprintf("app-%d", n/10), fmt.Sprintf("%010d", n/10)
	p.Name, p.Namespace, p.Spec.NodeName = fmt.Sprintf("%s-%s-%05d", app, hash, n), fmt.Sprintf("team-%d", n/500), fmt.Sprintf("node-%d", n%1000)
	p.UID, p.ResourceVersion = types.UID(fmt.Sprintf("0b4f2c1e-7a61-4b7e-9f0e-%012d", n)), strconv.Itoa(1000000+n)
	p.Labels["app.kubernetes.io/name"], p.Labels["pod-template-hash"] = app, hash
	p.OwnerReferences[0].Name = app + "-" + hash
	return p
}

// RoundTrip answers lists page by page; a watch brings nothing.
func (m *manyPods) RoundTrip(req *http.Request) (*http.Response, error) {
	q := req.URL.Query()
	if q.Get("sendInitialEvents") != "" {
		return status(req, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid), nil
	}
	answer := &http.Response{StatusCode: 200, Request: req, Header: http.Header{"Content-Type": {"application/vnd.kubernetes.protobuf"}}}
	if q.Get("watch") != "" {
		answer.Header.Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
		r, w := io.Pipe()
		go func() { <-req.Context().Done(); w.CloseWithError(io.EOF) }()
		answer.Body = r
		return answer, nil
	}
	from, _ := strconv.Atoi(q.Get("continue"))
	limit, _ := strconv.Atoi(q.Get("limit"))
	if limit == 0 {
		limit = m.pods
	}
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "2000000"}}
	for n := from; n < min(from+limit, m.pods); n++ {
		list.Items = append(list.Items, m.pod(n))
	}
	if from+limit < m.pods {
		list.Continue = strconv.Itoa(from + limit)
	}
	var body bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, &body); err != nil {
		return nil, err
	}
	answer.Body = io.NopCloser(&body)
	return answer, nil
}

// untrimmed is the heap that client-go's own informer holds.
func (m *manyPods) untrimmed(tb testing.TB) uint64 {
	tb.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://pods", Transport: m, QPS: -1})
	if err != nil {
		tb.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Pods().Informer()
	stop := make(chan struct{})
	before := heap()
	factory.Start(stop)
	if !cache.WaitForCacheSync(stop, informer.HasSynced) || len(informer.GetStore().ListKeys()) != m.pods {
		tb.Fatalf("%d pods, want %d", len(informer.GetStore().ListKeys()), m.pods)
	}
	held := heap() - before
	close(stop)
	factory.Shutdown()
	return held
}

// trimmed is the heap that the Cache holds.
func (m *manyPods) trimmed(tb testing.TB) uint64 {
	tb.Helper()
	clients, err := New(&rest.Config{Host: "http://pods", Transport: m}, "test", time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	defer clients.Cache.Close()
	before := heap()
	i, why := clients.Cache.inform(source{"pods", ""})
	if why != "" || !cache.WaitForCacheSync(tb.Context().Done(), i.store.HasSynced) || i.store.size() != m.pods {
		tb.Fatalf("%d pods, want %d: %s", i.store.size(), m.pods, why)
	}
	return heap() - before
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// share is how many of the bytes that the untrimmed informer holds the Cache may hold: an
// eighth.
const share = 8

// BenchmarkCachedPod compares the heap for 50,000 pods of about 5 kB of JSON each.
func BenchmarkCachedPod(b *testing.B) {
	m := newManyPods(b, 50_000)
	for b.Loop() {
		untrimmed, trimmed := m.untrimmed(b), m.trimmed(b)
		b.ReportMetric(float64(m.size), "JSON-B/pod")
		b.ReportMetric(float64(trimmed)/float64(m.pods), "B/pod")
		b.ReportMetric(float64(untrimmed)/float64(m.pods), "untrimmed-B/pod")
		b.ReportMetric(float64(untrimmed)/float64(trimmed), "times-smaller")
		if trimmed > untrimmed/share {
			b.Errorf("%d bytes are more than an eighth of %d", trimmed, untrimmed)
		}
	}
}

// BenchmarkFacts is what a plan over nodes takes from the cache: the pods of two
// namespaces, in clusters of several sizes.
func BenchmarkFacts(b *testing.B) {
	for _, size := range []int{1_000, 10_000, 50_000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			clients, err := New(&rest.Config{Host: "http://pods", Transport: newManyPods(b, size)}, "test", time.Now, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer clients.Cache.Close()
			w := Want{Namespaces: []string{"team-0", "team-1"}, Pods: true}
			for deadline := time.Now().Add(time.Minute); !strings.HasPrefix(clients.Cache.Facts(b.Context(), w).Sources["pods"], "cache"); {
				if time.Now().After(deadline) {
					b.Fatal("the cache is not used")
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				clients.Cache.Facts(b.Context(), w)
			}
		})
	}
}

// TestBytesPerPod is the same with fewer pods.
func TestBytesPerPod(t *testing.T) {
	m := newManyPods(t, 5_000)
	if untrimmed, trimmed := m.untrimmed(t), m.trimmed(t); trimmed > untrimmed/share {
		t.Errorf("%d bytes for %d pods are more than an eighth of %d", trimmed, m.pods, untrimmed)
	}
}
