package torture

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// relay is an HTTP proxy that passes connections on, and can keep new ones waiting.
type relay struct {
	net.Listener

	mu      sync.Mutex
	stalled chan struct{} // nil, or closed when new connections may go on
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.pass(c)
		}
	}()
	return r
}

func (r *relay) pass(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	req, err := http.ReadRequest(in)
	if err != nil || req.Method != http.MethodConnect {
		return
	}
	r.mu.Lock()
	stalled := r.stalled
	r.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
	to, err := net.Dial("tcp", req.Host)
	if err != nil {
		return
	}
	if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	defer to.Close()
	go func() { _, _ = io.Copy(to, in); to.Close() }()
	_, _ = io.Copy(c, to)
}

// TestStalledConnection: the connection ends behind the last look, and the next one takes
// twenty seconds. The write leaves then, or not at all; its process dies, and the API
// server takes nearly as long as it may. Whatever is found out stays true.
func TestStalledConnection(t *testing.T) {
	t.Parallel()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, newWatcher(t), cp.Namespace(t), "one", "rollout_restart")
	proxy := harness.NewProxy(t, harness.Account(t, cp))
	r := newRelay(t)
	dir := t.TempDir()
	if err := cp.Kubeconfig(dir+"/kubeconfig", "kind-lab", proxy.Config()); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := clientcmd.LoadFromFile(dir + "/kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig.Clusters["kind-lab"].ProxyURL = "http://" + r.Addr().String()
	if err := clientcmd.WriteToFile(*kubeconfig, dir+"/kubeconfig"); err != nil {
		t.Fatal(err)
	}
	flags := append([]string{"serve", "--kubeconfig", dir + "/kubeconfig", "--state-dir", dir + "/state", "--allow-write"}, wide...)
	c, err := stdio.Start(stdio.Modern, bin, nil, flags...)
	if err != nil {
		t.Fatal(err)
	}
	s := &harness.Server{Client: c, T: t, Proxy: proxy, State: dir + "/state"}
	args := s.Plan(b.action, b.args)

	m := moment{b, proxy, s.State}
	arrived, release := make(chan harness.Request, 1), make(chan struct{})
	t.Cleanup(sync.OnceFunc(func() { close(release) }))
	proxy.After(func(q *harness.Request, resp *http.Response) {
		if b.reads(*q) && m.onDisk(t, "execute_intent") {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.stalled == nil {
				r.stalled = make(chan struct{})
				time.AfterFunc(20*time.Second, func() { close(r.stalled) })
				resp.Header.Set("Connection", "close") // over HTTP/2 the server then says goodbye
			}
		}
	})
	proxy.Before(func(q *harness.Request, _ http.ResponseWriter) bool {
		if q.Mutates() {
			arrived <- *q
			<-release
			cut()
		}
		return true
	})
	began := time.Now()
	_, reply, err := c.Send("tools/call", map[string]any{"name": b.action, "arguments": args})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case q := <-arrived:
		t.Logf("the write left %s behind its call", time.Since(began).Round(time.Second))
		c.Kill()
		time.AfterFunc(27*time.Second, func() { // of the 34 that the API server may take
			if code, err := proxy.Send(&q); err != nil || code != 200 {
				t.Logf("the late write: %d, %v", code, err)
			}
		})
	case m := <-reply: // it was given up
		t.Logf("the write did not leave: %.300s", m.Line)
		c.Kill()
	}
	next := harness.Spawn(t, cp, bin, harness.Options{State: s.State, Args: wide})
	a := settled(t, next, b.action, args)
	time.Sleep(time.Until(began.Add(50 * time.Second)))
	got := b.effects(t)
	want := plan.Failed
	if got[0] == 1 {
		want = plan.Executed
	}
	if a.Outcome != want {
		t.Errorf("outcome %s, and the watch saw %d effects: %s", a.Outcome, got[0], a.Result)
	}
}
