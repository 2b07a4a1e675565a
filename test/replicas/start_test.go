package replicas

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// TestLive: a replica comes to life only where the ledger is, with a clock that is right.
func TestLive(t *testing.T) {
	for _, tc := range []struct {
		name   string
		off    time.Duration
		answer func(http.ResponseWriter) // of the ledger's API
		want   string
	}{
		{"all is well", 0, nil, ""},
		{"a little late", -20 * time.Second, nil, ""},
		{"clock ahead", 5 * time.Minute, nil, "off the API server's"},
		{"clock behind", -5 * time.Minute, nil, "off the API server's"},
		{"no definitions", 0, func(w http.ResponseWriter) { http.Error(w, "404 page not found", http.StatusNotFound) }, "does not have its definitions"},
		{"no right", 0, func(w http.ResponseWriter) { http.Error(w, "no", http.StatusForbidden) }, "the rate budget cannot be read"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLedger(t)
			p := harness.NewProxy(t, serverAccount(t))
			p.Before(func(r *harness.Request, w http.ResponseWriter) bool {
				if tc.answer != nil && strings.Contains(r.Path, "/kubewrite.dev/") {
					tc.answer(w)
					return false
				}
				return true
			})
			cfg := p.Config()
			c := cluster.New(cluster.Options{
				Client: l.client(cfg), Keys: l.ring(), Inst: "aaaa", Now: func() time.Time { return time.Now().Add(tc.off) }, Log: slog.New(slog.DiscardHandler),
			})
			release, err := c.Live()
			if err == nil {
				release()
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestFlags: what does not go together is refused when the program starts.
func TestFlags(t *testing.T) {
	l := newLedger(t)
	kubeconfig := t.TempDir() + "/kubeconfig"
	if err := cp.Kubeconfig(kubeconfig, "kind-lab", serverAccount(t)); err != nil {
		t.Fatal(err)
	}
	keys := l.options().State + "/keys.json"
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--ledger", "etcd"}, "ledger must be file or cluster"},
		{[]string{"--ledger-namespace", "x"}, "ledger-namespace is for --ledger cluster"},
		{[]string{"--ledger", "cluster", "--ledger-namespace", l.namespace}, "--key-file"},
		{[]string{"--ledger", "cluster", "--key-file", keys}, "--ledger-namespace"},
		{[]string{"--ledger", "cluster", "--key-file", keys, "--ledger-namespace", "../x"}, "no name of a namespace"},
	} {
		var stderr strings.Builder
		args := append([]string{"serve", "--kubeconfig", kubeconfig, "--state-dir", t.TempDir() + "/state"}, tc.args...)
		if code := app.Main(args, strings.NewReader(""), io.Discard, &stderr); code == 0 || !strings.Contains(stderr.String(), tc.want) {
			t.Errorf("%q: ended with %d: %s; want %q", tc.args, code, stderr.String(), tc.want)
		}
	}
}
