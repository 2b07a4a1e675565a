package integration

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// kubelet plays the one endpoint of a node that logs come from.
type kubelet struct {
	node string
	mu   sync.Mutex
	logs map[string][]byte // by namespace/pod/container
	got  []url.Values
}

// newKubelet makes a node whose kubelet is this process.
func newKubelet(t *testing.T, name string) *kubelet {
	t.Helper()
	k := &kubelet{node: name, logs: map[string][]byte{}}
	server := httptest.NewTLSServer(k)
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	harness.Create(t, cp, "", harness.Node(name).Ready())
	t.Cleanup(func() { _ = cp.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	node, err := cp.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(n)
	if _, err := cp.Client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *kubelet) writes(container string, log []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.logs[container] = log
}

// asked are the queries so far.
func (k *kubelet) asked() []url.Values {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.got
}

// ServeHTTP gives the last lines of a log, and of these the first bytes, as kubelets do.
func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	k.mu.Lock()
	k.got = append(k.got, q)
	log, ok := k.logs[strings.TrimPrefix(r.URL.Path, "/containerLogs/")]
	k.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	if n, err := strconv.Atoi(q.Get("tailLines")); err == nil {
		at := len(log)
		for i := 0; i <= n && at >= 0; i++ {
			at = bytes.LastIndexByte(log[:max(at, 0)], '\n')
		}
		log = log[at+1:]
	}
	if n, err := strconv.Atoi(q.Get("limitBytes")); err == nil && n < len(log) {
		log = log[:n]
	}
	_, _ = w.Write(log)
}
