//go:build clients

package clients

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// The packages of the TypeScript SDK: the one of the older era, and the one of both.
const (
	sdkOld  = "@modelcontextprotocol/sdk"
	sdkBoth = "@modelcontextprotocol/client"
)

// kit is one way to connect with the TypeScript SDK.
type kit struct {
	pkg     string
	mode    string // of the version negotiation of sdkBoth
	http    bool
	wantEra string
}

var kits = []kit{
	{pkg: sdkOld, wantEra: "2025-11-25"},
	{pkg: sdkOld, http: true, wantEra: "2025-11-25"},
	{pkg: sdkBoth, mode: "legacy", wantEra: "2025-11-25"},
	{pkg: sdkBoth, mode: "legacy", http: true, wantEra: "2025-11-25"},
	{pkg: sdkBoth, mode: "auto", wantEra: "2026-07-28"},
	{pkg: sdkBoth, mode: "auto", http: true, wantEra: "2026-07-28"},
}

func (k kit) transport() string {
	if k.http {
		return "HTTP"
	}
	return "stdio"
}

// sdk is a client of the TypeScript SDK, and its server. What the SDK's own API gives stands
// in the answers: its Client makes the calls through it.
type sdk struct {
	*harness.Server
	kit
	version string
	eras    func() []string // that were seen on the wire
}

// connect starts a server and connects to it. A person who answers is asked where answer is
// given.
func (k kit) connect(t *testing.T, answer func(form json.RawMessage) any) *sdk {
	t.Helper()
	_, version := installed(t, k.pkg)
	o := map[string]any{"package": k.pkg, "mode": k.mode, "person": answer != nil}
	options := harness.Options{Args: []string{"--writes-per-minute", "1000", "--plans-per-minute", "10000", "--verify-wait", "5s", "--verify-timeout", "20s"}}
	s := &sdk{kit: k, version: version}
	if k.http {
		s.Server, o["url"], o["token"], s.eras = serveHTTP(t, options)
	} else {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		var args []string
		s.Server, args = harness.Prepare(t, cp, options)
		w := wire{t.TempDir()}
		o["command"], o["args"], o["env"] = self, append([]string{harness.Program(t, cp)}, args...), map[string]string{teeEnv: w.dir}
		s.eras = func() []string { return []string{w.era(t)} }
		t.Cleanup(func() { w.ended(t) })
	}
	config, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "sdk.mjs", string(config))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if s.Client, err = stdio.Connect(stdio.Modern, in, out, answer); err != nil { // of which nothing reaches the server
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the SDK: %v: %s", err, stderr.String())
		}
	})
	return s
}

// passed puts a check into the table.
func (s *sdk) passed(t *testing.T, check string) {
	t.Helper()
	if t.Failed() {
		return
	}
	if d := cmp.Diff([]string{s.wantEra}, s.eras()); d != "" {
		t.Errorf("era (-want +got):\n%s", d)
	}
	record(t, "TypeScript "+s.pkg, s.version, s.wantEra, s.transport()+": "+check)
}

var listening = regexp.MustCompile(`msg="serving MCP over HTTP" address=(\S+)`)

// serveHTTP runs the shipped program over HTTP, for a caller with its token. In front is a
// proxy that notes the protocol version in the header of each request.
func serveHTTP(t *testing.T, o harness.Options) (s *harness.Server, address, token string, eras func() []string) {
	t.Helper()
	var err error
	if o.Config, err = cp.ServiceAccount(t.Context(), cp.Namespace(t), "server", append(engine.Rules(actions.All(), read.Rules()...), kube.ReviewRules...)); err != nil {
		t.Fatal(err)
	}
	ns := cp.Namespace(t)
	if _, err := cp.ServiceAccount(t.Context(), ns, "caller", []rbacv1.PolicyRule{
		{APIGroups: []string{"kubewrite.dev"}, Resources: []string{"actions"}, Verbs: []string{"plan", "write", "read"}},
	}); err != nil {
		t.Fatal(err)
	}
	got, err := cp.Client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "caller", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"kube-write-mcp"}, ExpirationSeconds: new(int64(3600))},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, args := harness.Prepare(t, cp, o)
	cmd := exec.Command(harness.Program(t, cp), append(args, "--http", "127.0.0.1:0", "--requests-per-second", "1000")...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				started <- m[1]
			}
		}
		ended <- cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			t.Errorf("the server ended: %v", err)
		}
	})
	var at string
	select {
	case at = <-started:
	case err := <-ended:
		ended <- err
		t.Fatalf("the server did not start: %v", err)
	}
	var mu sync.Mutex
	var seen []string
	address = inFront(t, at, func(in, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if v := in.Header.Get("Mcp-Protocol-Version"); v != "" && !slices.Contains(seen, v) {
			seen = append(seen, v)
		}
	})
	return s, address, got.Status.Token, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// each runs a test with every kit.
func each(t *testing.T, test func(t *testing.T, k kit)) {
	for _, k := range kits {
		t.Run(strings.Join([]string{filepath.Base(k.pkg), k.wantEra, k.transport()}, " "), func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

// TestSDKArguments: what is wrong with the arguments is told with the name of each field, and
// nothing is read or written for it.
func TestSDKArguments(t *testing.T) {
	each(t, func(t *testing.T, k kit) {
		s := k.connect(t, nil)
		good := harness.Of("default", "deployment", "web").With("replicas", 3)
		for name, tc := range map[string]struct {
			args     any
			wantText []string
		}{
			"a text for a number": {good.With("replicas", "3"), []string{"replicas"}},
			"a fraction":          {good.With("replicas", 3.5), []string{"replicas"}},
			"unknown":             {good.With("dry_run", true), []string{"dry_run"}},
			"another case":        {good.With("Replicas", 3), []string{"Replicas"}},
			"missing":             {harness.Of("default", "deployment", "web"), []string{"replicas"}},
			"all missing":         {harness.Args{}, []string{"namespace", "deployment", "replicas"}},
			"none at all":         {nil, []string{"namespace", "deployment", "replicas"}},
		} {
			params := map[string]any{"name": "plan_scale"}
			if tc.args != nil {
				params["arguments"] = tc.args
			}
			m, err := s.Request("tools/call", params)
			if err != nil {
				t.Fatal(err)
			}
			got, err := stdio.Parse(m)
			if err != nil {
				t.Fatal(err)
			}
			if !got.IsError || harness.Code(got) != "invalid_arguments" {
				t.Errorf("%s: %+v", name, got)
			}
			for _, want := range tc.wantText {
				if !strings.Contains(got.Text, want) {
					t.Errorf("%s: %q does not name %s", name, got.Text, want)
				}
			}
		}
		if asked := s.Proxy.Requests(func(r harness.Request) bool { return strings.Contains(r.Path, "/deployments") }); len(asked) > 0 {
			t.Errorf("the cluster was asked: %+v", asked)
		}
		s.passed(t, "wrong, unknown and missing arguments are refused by name")
	})
}

// TestSDKErrors: a refusal comes whole as a result; a tool that does not exist is an error of
// the protocol.
func TestSDKErrors(t *testing.T) {
	each(t, func(t *testing.T, k kit) {
		s := k.connect(t, nil)
		got := s.Must("plan_scale", harness.Of("kube-system", "deployment", "coredns").With("replicas", 3))
		var told struct{ Code, Message, Hint string }
		if err := json.Unmarshal(got.Structured, &told); err != nil || told.Code != "out_of_scope" || told.Hint == "" {
			t.Fatalf("%v: %s", err, got.Structured)
		}
		if want := fmt.Sprintf("refused: %s\n  instead: %s\n  code out_of_scope, retryable false", told.Message, told.Hint); !got.IsError || got.Text != want {
			t.Errorf("text (-want +got):\n%s", cmp.Diff(want, got.Text))
		}
		if got := s.Must("plan_everything", harness.Args{}); got.Code != -32602 || !strings.Contains(got.Text, "plan_everything") {
			t.Errorf("an unknown tool: %+v", got)
		}
		s.passed(t, "a refusal is a result with code, reason and what to do instead; an unknown tool is -32602")
	})
}

// TestSDKResults: the list is whole, and what the tools answer passes the SDK's validation
// against the output schemas of that list.
func TestSDKResults(t *testing.T) {
	var want []string
	for _, a := range actions.All() {
		want = append(want, a.Name, "plan_"+a.Name)
	}
	for _, r := range read.All() {
		want = append(want, r.Name)
	}
	want = append(want, "write_status", "undo", "plan_undo", "changes", "plan_changes")
	slices.Sort(want)
	each(t, func(t *testing.T, k kit) {
		s := k.connect(t, nil)
		m, err := s.Request("tools/list", nil)
		if err != nil {
			t.Fatal(err)
		}
		var list struct{ Tools []struct{ Name string } }
		if err := json.Unmarshal(m.Result, &list); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
		}
		if d := cmp.Diff(want, names); d != "" {
			t.Errorf("tools (-want +got):\n%s", d)
		}
		ns, args := web(t)
		harness.Create(t, cp, ns, harness.Deployment("api"))
		executed := s.Do("scale", args)
		harness.Tells(t, executed, "EXECUTED")
		undo := harness.Args{"plan": executed.Field("plan")}
		harness.Tells(t, s.Do("undo", undo), "EXECUTED")
		pod := s.Must("list_pods", harness.Args{"namespace": ns})
		var pods struct {
			Pods []struct{ Name string } `json:"pods"`
		}
		if err := json.Unmarshal(pod.Structured, &pods); err != nil || len(pods.Pods) == 0 {
			t.Fatalf("%v: %s", err, pod.Structured)
		}
		for tool, args := range map[string]harness.Args{
			"get_workload": harness.Of(ns, "deployment", "web"), "list_workloads": {"namespace": ns}, "list_events": {"namespace": ns}, "list_namespaces": {}, "list_nodes": {},
			"write_history": {}, "write_status": undo,
			"plan_changes": {"steps": []any{
				map[string]any{"action": "scale", "arguments": args}, map[string]any{"action": "rollout_pause", "arguments": harness.Of(ns, "deployment", "api")},
			}},
		} {
			if got := s.Must(tool, args); got.IsError || got.Code != 0 || got.Structured == nil {
				t.Errorf("%s: %d %s", tool, got.Code, got.Text)
			}
		}
		s.passed(t, fmt.Sprintf("%d tools are listed; what plans, writes, undo and reads answer is valid by their output schemas", len(names)))
	})
}

// TestSDKPerson: the person at the SDK is asked about what cannot be undone, in both eras by
// the same handler. Only the name of the target lets it happen.
func TestSDKPerson(t *testing.T) {
	type object = map[string]any
	const waits = "waiting_for_person needs_person"
	for name, tc := range map[string]struct {
		answer    any // nil is a client without a person
		wantText  string
		wantGone  bool
		wantLines []string
	}{
		"accept":                   {object{"action": "accept", "content": object{"name": "loner"}}, "EXECUTED", true, []string{"approved", "execute EXECUTED"}},
		"accept with another name": {object{"action": "accept", "content": object{"name": "lone"}}, "not that of the target", false, []string{"refused needs_person"}},
		"decline":                  {object{"action": "decline"}, "the person declined", false, []string{"refused needs_person"}},
		"cancel":                   {object{"action": "cancel"}, "closed without an answer", false, []string{"refused needs_person"}},
		"no form can be shown":     {object{}, "could not ask", false, []string{waits}},
		"absent":                   {nil, "kube-write-mcp approve", false, []string{waits}},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, k kit) {
				var mu sync.Mutex
				var asked []string
				var answer func(json.RawMessage) any
				if tc.answer != nil {
					answer = func(form json.RawMessage) any {
						mu.Lock()
						defer mu.Unlock()
						asked = append(asked, string(form))
						return tc.answer
					}
				}
				s := k.connect(t, answer)
				ns := cp.Namespace(t)
				loners(t, ns, "", "loner")
				args := s.Plan("delete_pod", harness.Of(ns, "pod", "loner"))
				wantText, wantLines := tc.wantText, tc.wantLines
				if tc.answer != nil && k.wantEra == string(stdio.Modern) { // the first answer to the call is the question
					if wantLines[0] == waits {
						wantText = name // it ends in the SDK, with the error of its handler
					} else {
						wantLines = append([]string{waits}, wantLines...)
					}
				}
				harness.Tells(t, s.Must("delete_pod", args), wantText)
				mu.Lock()
				defer mu.Unlock()
				if (len(asked) == 1) != (tc.answer != nil) || len(asked) > 1 {
					t.Errorf("asked %d times: %q", len(asked), asked)
				}
				for _, form := range asked {
					if !strings.Contains(form, "loner") || !strings.Contains(form, `"name"`) {
						t.Errorf("the question is %s", form)
					}
				}
				if gone := !exists(t, ns, "loner"); gone != tc.wantGone {
					t.Errorf("the pod is gone: %t, want %t", gone, tc.wantGone)
				}
				var lines []string
				for _, l := range harness.Lines(t, s.State) {
					if l.Tool == "delete_pod" && slices.Contains([]string{"approved", "execute", "refused", "waiting_for_person"}, l.Event) {
						lines = append(lines, strings.TrimSpace(l.Event+" "+l.Code))
					}
				}
				if d := cmp.Diff(wantLines, lines); d != "" {
					t.Errorf("lines (-want +got):\n%s", d)
				}
				s.passed(t, "a person who must approve: "+name)
			})
		})
	}
}

// TestSDKProgress: who asks for progress is told it while a verification waits.
func TestSDKProgress(t *testing.T) {
	each(t, func(t *testing.T, k kit) {
		s := k.connect(t, nil)
		ns := cp.Namespace(t)
		harness.Create(t, cp, ns, harness.Deployment("web").Replicas(1).Pods(func(p *corev1.PodTemplateSpec) {
			p.Spec.NodeSelector = map[string]string{"none": "such"} // verified never
		}))
		args := s.Plan("scale", harness.Of(ns, "deployment", "web").With("replicas", 2))
		m, err := s.Request("tools/call", map[string]any{"name": "scale", "arguments": args, "_meta": map[string]any{"progressToken": "mine"}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := stdio.Parse(m)
		if err != nil {
			t.Fatal(err)
		}
		harness.Tells(t, got, "EXECUTED", "verifying")
		var last float64
		for _, n := range s.Notifications() {
			var p struct {
				Token    string `json:"progressToken"`
				Progress float64
				Message  string
			}
			if err := json.Unmarshal(n.Params, &p); err != nil || n.Method != "notifications/progress" || p.Token != "mine" || p.Progress <= last || p.Message == "" {
				t.Errorf("after %v: %v, %s", last, err, n.Line)
			}
			last = p.Progress
		}
		if last == 0 {
			t.Error("nothing was told")
		}
		s.passed(t, "progress is told while a verification waits")
	})
}

// TestSDKAbort: a call that the client aborts is done once or not at all, and the same call
// again tells which. It is aborted where the second dry run is under way, and where the write
// is. Over HTTP nothing tells when the server has seen it: it may have come after the dry run.
func TestSDKAbort(t *testing.T) {
	scales := func(r harness.Request) bool {
		return r.Method != http.MethodGet && strings.HasSuffix(r.Path, "/deployments/web/scale")
	}
	for name, tc := range map[string]struct {
		at       func(harness.Request) bool
		wantDone bool // by the aborted call
	}{
		"before the write": {func(r harness.Request) bool { return scales(r) && !r.Mutates() }, false},
		"in the write":     {func(r harness.Request) bool { return scales(r) && r.Mutates() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, k kit) {
				s := k.connect(t, nil)
				_, args := web(t)
				args = s.Plan("scale", args)
				arrived, release := s.Proxy.Hold(tc.at)
				id, aborted, err := s.Send("tools/call", map[string]any{"name": "scale", "arguments": args})
				if err != nil {
					t.Fatal(err)
				}
				<-arrived
				if err := s.Notify("notifications/cancelled", map[string]any{"requestId": id}); err != nil {
					t.Fatal(err)
				}
				if m := <-aborted; m.Error == nil {
					t.Errorf("the aborted call was answered: %s", m.Line)
				}
				s.Must("write_history", harness.Args{}) // over stdio the server has then read what came before
				release()
				var got stdio.Tool
				lab.Eventually(t, "the result", func() (bool, error) {
					got = s.Must("scale", args)
					return got.Field("outcome") != string(plan.InProgress), nil
				})
				x := harness.Into[harness.Execution](t, got)
				if x.Outcome != plan.Executed || x.Replayed != tc.wantDone && (tc.wantDone || !k.http) {
					t.Errorf("%s, replayed %t: %s", x.Outcome, x.Replayed, got.Text)
				}
				var writes []string
				for _, r := range s.Proxy.Writes() {
					if scales(r) {
						writes = append(writes, fmt.Sprintf("%s %d", r.Method, r.Status))
					}
				}
				if d := cmp.Diff([]string{"PUT 200"}, writes); d != "" {
					t.Errorf("writes (-want +got):\n%s", d)
				}
				s.passed(t, "aborted "+name+", it is done once, and the same call again tells so")
			})
		})
	}
}

// tooMany is what a caller is told over HTTP whose calls in flight are as many as may be.
const tooMany = "requests of yours are in flight"

// TestSDKConcurrent: forty calls with one phrase are one write and one result. Over HTTP eight
// are too many at a time: the SDK says so and does not send them again, which the test does.
func TestSDKConcurrent(t *testing.T) {
	each(t, func(t *testing.T, k kit) {
		s := k.connect(t, nil)
		_, args := web(t)
		args = s.Plan("scale", args)
		answers := make([]stdio.Tool, 40)
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() {
				for again := true; again; again = k.http && strings.Contains(answers[i].Text, tooMany) {
					var err error
					if answers[i], err = s.Call("scale", args); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		first, ran := "", 0
		for _, a := range answers {
			if a.Code != 0 || a.IsError {
				t.Fatalf("%d %s", a.Code, a.Text)
			}
			x := harness.Into[harness.Execution](t, a)
			if first == "" {
				first = string(x.Result)
			}
			if x.Outcome != plan.Executed || first == "" || string(x.Result) != first {
				t.Errorf("%s %s, want %s", x.Outcome, x.Result, first)
			}
			if !x.Replayed {
				ran++
			}
		}
		writes := 0
		for _, r := range s.Proxy.Writes() {
			if strings.HasSuffix(r.Path, "/deployments/web/scale") {
				writes++
			}
		}
		if ran != 1 || writes != 1 {
			t.Errorf("%d calls ran, %d writes", ran, writes)
		}
		check := "40 calls of one phrase at once: one write, one result"
		if k.http {
			check += "; what is beyond 32 in flight is told so (429), and called again"
		}
		s.passed(t, check)
	})
}
