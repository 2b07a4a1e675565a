//go:build clients

package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/server"
)

// suiteToken is that of the conformance suite, which brings none.
const suiteToken = "the-suite"

// suite lets the one caller with suiteToken do everything.
type suite struct{}

func (suite) Caller(_ context.Context, token string) (*plan.Caller, error) {
	if token != suiteToken {
		return nil, nil
	}
	return &plan.Caller{Name: "suite"}, nil
}

func (suite) May(context.Context, *plan.Caller, string, string, string) (bool, error) {
	return true, nil
}

func (suite) MayGet(context.Context, *plan.Caller, string) (bool, error) { return false, nil }

// conformant serves the product's tools, and the fixtures of the suite beside them, as
// serve --http does: the same checks of Host, Origin, token, rate, session, id and message
// stand before every one of them. In front is a proxy that adds the token and changes
// nothing else.
func conformant(t *testing.T) (address string) {
	t.Helper()
	e := engine.New(engine.Config{}, nil, nil, nil, time.Now, nil) // no tool of the product is called
	s, err := server.New(e, actions.All(), server.Options{Version: "test", AllowWrite: true, HTTP: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	addFixtures(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- server.ServeHTTP(ctx, s, l, server.HTTPOptions{
			GuardOptions: server.GuardOptions{Signals: make(chan os.Signal)},
			Gate:         suite{}, Rate: 1000,
			Host:    func(name string) bool { return name == "127.0.0.1" || name == "localhost" },
			Ready:   func(context.Context) error { return nil },
			Metrics: http.NotFoundHandler(),
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return inFront(t, l.Addr().String(), func(_, out *http.Request) { out.Header.Set("Authorization", "Bearer "+suiteToken) })
}

// inFront is a proxy before a server, which sees each request as it came and as it goes on,
// and gives the address of MCP there. Host and all else go on as they came.
func inFront(t *testing.T, server string, see func(in, out *http.Request)) (address string) {
	t.Helper()
	front := httptest.NewServer(&httputil.ReverseProxy{
		FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: server})
			r.Out.Host = r.In.Host
			see(r.In, r.Out)
		},
	})
	t.Cleanup(front.Close)
	return front.URL + "/mcp"
}

// TestConformance: what the suite requires of a server, as it was frozen for each revision.
// A check fails only where testdata says so and why; one that is said to fail and passes
// fails here.
func TestConformance(t *testing.T) {
	dir, version := installed(t, "@modelcontextprotocol/conformance")
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			var required, expected struct{ Server []string }
			decodeYAML(t, filepath.Join(dir, "requirements", revision+".yaml"), &required)
			baseline := filepath.Join("testdata", "conformance-"+revision+".yaml")
			decodeYAML(t, baseline, &expected)
			explained(t, baseline)
			results := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			out, err := exec.CommandContext(ctx, "node", filepath.Join(dir, "dist", "index.js"), "server", "--url", conformant(t),
				"--requirements", revision, "--expected-failures", baseline, "--output-dir", results).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			var failed []string
			passed := 0
			for _, scenario := range required.Server {
				for _, c := range checksOf(t, results, scenario) {
					switch c.Status {
					case "SUCCESS":
						passed++
					case "FAILURE", "WARNING":
						failed = append(failed, scenario+":"+c.ID)
					}
				}
			}
			slices.Sort(failed)
			slices.Sort(expected.Server)
			if d := cmp.Diff(expected.Server, slices.Compact(failed)); d != "" {
				t.Errorf("what fails (-%s +now):\n%s", baseline, d)
			}
			record(t, "conformance suite", version, revision, fmt.Sprintf("requirements of a server: %d checks in %d scenarios pass, %d fail for the reasons in %s",
				passed, len(required.Server), len(expected.Server), baseline))
		})
	}
}

// suiteCheck is one check of a scenario, as the suite writes it.
type suiteCheck struct{ ID, Status string }

// checksOf are those of a scenario that was required; one that left none did not run.
func checksOf(t *testing.T, results, scenario string) (all []suiteCheck) {
	t.Helper()
	ran, err := filepath.Glob(filepath.Join(results, "server-"+scenario+"-20??-*", "checks.json"))
	if err != nil || len(ran) != 1 {
		t.Fatalf("%s: results %q (%v)", scenario, ran, err)
	}
	raw, err := os.ReadFile(ran[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &all); err != nil || len(all) == 0 {
		t.Fatalf("%s: %v in %s", scenario, err, raw)
	}
	return all
}

func decodeYAML(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// explained fails a baseline with an entry that has no comment of its own above it.
func explained(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before := ""
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "- ") && !strings.HasPrefix(before, "# ") {
			t.Errorf("%s: %s has no reason above it", path, line)
		}
		before = line
	}
}
