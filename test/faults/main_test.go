// Package faults has the rows of the fault matrix (RELIABILITY 3) that no other package
// tests, on the program and a real API server, and the map of all rows to their tests.
// The truth is the proxy between the two, the journal, and the objects themselves.
package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

var cp *lab.Lab

// become is what this program turns into another one by, where that is its first argument.
var become = map[string]func(args []string) error{}

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && become[os.Args[1]] != nil {
		fmt.Fprintln(os.Stderr, become[os.Args[1]](os.Args[2:]))
		os.Exit(1)
	}
	lab.Main(m, lab.Options{}, func(l *lab.Lab) {
		cp = l
		// The program hands client-go's log to its own, for the whole process, when it first
		// serves. That must not happen while a client of a test is at work.
		app.Main([]string{"serve", "--ttl", "0s"}, nil, io.Discard, io.Discard)
	})
}

// quick are the flags of a server that waits for no verdict, since nothing converges.
var quick = append([]string{"--verify-timeout", "1s"}, harness.Wide...)

func start(t *testing.T, args ...string) *harness.Server {
	t.Helper()
	return harness.Start(t, cp, harness.Options{Args: append(slices.Clone(quick), args...)})
}

func patchWeb(t *testing.T, ns, body string) {
	t.Helper()
	if _, err := cp.Client.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// isScale tells the live request of a scale.
func isScale(r harness.Request) bool { return r.Mutates() && r.Method == http.MethodPut }

// wantOutcome checks the outcome of an execution and gives it.
func wantOutcome(t *testing.T, got stdio.Tool, want ...plan.Outcome) harness.Execution {
	t.Helper()
	x := harness.Into[harness.Execution](t, got)
	if !slices.Contains(want, x.Outcome) {
		t.Errorf("outcome %q, want %q: %s", x.Outcome, want, got.Text)
	}
	return x
}

// wantReplay checks that the same call gives the same first result, and that nothing is
// sent for it.
func wantReplay(t *testing.T, s *harness.Server, tool string, args harness.Args, first harness.Execution) {
	t.Helper()
	sent := len(s.Proxy.Writes())
	again := harness.Into[harness.Execution](t, s.Must(tool, args))
	if !again.Replayed || string(again.Result) != string(first.Result) {
		t.Errorf("replayed %t with\n%s\nwant\n%s", again.Replayed, again.Result, first.Result)
	}
	if n := len(s.Proxy.Writes()); n != sent {
		t.Errorf("the replay sent %d writes", n-sent)
	}
}

func wantCode(t *testing.T, got stdio.Tool, want string) {
	t.Helper()
	if code := harness.Code(got); code != want {
		t.Errorf("code %q, want %q: %s", code, want, got.Text)
	}
}

func wantNoWrites(t *testing.T, s *harness.Server) {
	t.Helper()
	if w := s.Proxy.Writes(); len(w) != 0 {
		t.Errorf("it wrote %+v", w)
	}
}

// answer answers a request in the place of the API server.
func answer(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	body, _ := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Message: "injected", Code: int32(code), Reason: reason,
	})
	_, _ = w.Write(body)
}

// journalHas reports whether the journal file in a state folder holds a text by now.
func journalHas(state, text string) bool {
	raw, err := os.ReadFile(filepath.Join(state, "audit.jsonl"))
	return err == nil && strings.Contains(string(raw), text)
}
