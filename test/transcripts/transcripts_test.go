// Package transcripts holds what goes over the wire to the server and back, line by line
// and in both protocol eras, as files that a person can read and a change must touch.
package transcripts

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

var cp *lab.Lab

func TestMain(m *testing.M) { lab.Main(m, lab.Options{}, func(l *lab.Lab) { cp = l }) }

var eras = []stdio.Era{stdio.Legacy, stdio.Modern}

func eraName(e stdio.Era) string {
	if e == stdio.Legacy {
		return "legacy"
	}
	return "modern"
}

// scenario is one conversation with a server that has nothing but Deployment web and
// its two ready pods, in a namespace of its own.
type scenario struct {
	name, prose string
	flags       []string                 // more than those of every server
	readOnly    bool                     // without --allow-write
	handshake   bool                     // it begins before the handshake, where there is one
	setup       func(*testing.T, string) // what else is in the namespace
	requests    []request

	person func(form json.RawMessage) any // at the client; nil is a client that cannot ask
}

// request is one line to the server. In its text NAMESPACE stands for the scenario's
// namespace and CONFIRM for the last phrase that was issued.
type request struct {
	method string
	params args
	only   stdio.Era // "": in both
	raw    string    // a whole line instead of method and params
}

type args = map[string]any

func call(tool string, a args) request {
	return request{method: "tools/call", params: args{"name": tool, "arguments": a}}
}

func scale(replicas any) args {
	return args{"namespace": "NAMESPACE", "deployment": "web", "replicas": replicas}
}

func step(action string, a args) args { return args{"action": action, "arguments": a} }

func several() args {
	return args{"steps": []any{
		step("scale", scale(3)),
		step("rollout_restart", args{"namespace": "NAMESPACE", "deployment": "api"}),
		step("cronjob_suspend", args{"namespace": "NAMESPACE", "cronjob": "mail"}),
	}}
}

func confirmed(a args, phrase string) args {
	return harness.Args(a).With("confirm", phrase).With("reason", "more visitors are expected")
}

var deletes = args{"namespace": "NAMESPACE", "pod": "alone"}

func alone(t *testing.T, ns string) { pod(t, ns, "alone") }

// typed is a person who types one name after the other.
func typed(names ...string) func(json.RawMessage) any {
	n := 0
	return func(json.RawMessage) any {
		n++
		return args{"action": "accept", "content": args{"name": names[(n-1)%len(names)]}}
	}
}

var scenarios = []scenario{
	{
		name: "hello", prose: "What the server says about itself, at the handshake or when it is asked.", handshake: true,
		requests: []request{{method: "server/discover", only: stdio.Modern}},
	},
	{
		name: "tools", prose: "All tools, with --allow-write.",
		requests: []request{{method: "tools/list"}},
	},
	{
		name: "tools_readonly", prose: "Without --allow-write there are plan tools only.", readOnly: true,
		requests: []request{{method: "tools/list"}},
	},
	{
		name: "plan", prose: "A plan changes nothing and ends with the phrase and the literal next call.",
		requests: []request{call("plan_scale", scale(3))},
	},
	{
		name: "plan_readonly", prose: "Without --allow-write a plan names no next call.", readOnly: true,
		requests: []request{call("plan_scale", scale(3))},
	},
	{
		name: "reads", prose: "Reads need no flag. They show fixed fields, versions, and what the cluster says apart.", readOnly: true,
		flags: []string{"--read-only"},
		requests: []request{
			call("list_workloads", args{"namespace": "NAMESPACE"}),
			call("list_pods", args{"namespace": "NAMESPACE", "limit": 1}),
			call("get_workload", args{"namespace": "NAMESPACE", "deployment": "web"}),
			call("get_workload", args{"namespace": "NAMESPACE", "deployment": "web-2"}),
			call("list_events", args{"namespace": "NAMESPACE"}),
			call("write_history", args{"namespace": "NAMESPACE"}),
		},
	},
	{
		name: "guessed", prose: "A phrase that was guessed confirms nothing.",
		requests: []request{
			call("scale", confirmed(scale(3), "scale deployment NAMESPACE/web from 2 to 3 on kind-lab [aaaaaaaaaa-bbbbbbbbbbbb]")),
			call("scale", confirmed(scale(3), "yes")),
		},
	},
	{
		name: "protected", prose: "Nothing is planned in a protected namespace, and nothing is read there.",
		requests: []request{call("plan_scale", args{"namespace": "kube-system", "deployment": "coredns", "replicas": 0})},
	},
	{
		name: "execute", prose: "A plan is executed once. No controller runs here, so the verdict is not_started. The same call again gives the first result.",
		flags: []string{"--verify-timeout", "1s"},
		requests: []request{
			call("plan_scale", scale(3)),
			call("scale", confirmed(scale(3), "CONFIRM")),
			call("scale", confirmed(scale(3), "CONFIRM")),
		},
	},
	{
		name: "changes", prose: "Several calls are one plan with one phrase, made in order. The same call again gives the first result.",
		flags: []string{"--verify-timeout", "1s"},
		setup: func(t *testing.T, ns string) { deployment(t, ns, "api"); cronJob(t, ns) },
		requests: []request{
			call("plan_changes", several()),
			call("changes", confirmed(several(), "CONFIRM")),
			call("changes", confirmed(several(), "CONFIRM")),
		},
	},
	{
		name: "changes_refused", prose: "Two calls on one object are no plan, every fault is named with its step, and what is so already needs no phrase.",
		requests: []request{
			call("plan_changes", args{"steps": []any{step("scale", scale(2))}}),
			call("plan_changes", args{"steps": []any{step("scale", scale(3)), step("rollout_restart", args{"namespace": "NAMESPACE", "deployment": "web"})}}),
			call("plan_changes", args{"steps": []any{step("scale", scale("3")), step("rm", scale(3))}}),
		},
	},
	{
		name: "set_image", prose: "A change of the pod template shows both images, and how the pods follow.",
		requests: []request{call("plan_set_image", args{"namespace": "NAMESPACE", "deployment": "web", "container": "main", "image": "main:2"})},
	},
	{
		name: "trigger", prose: "A Job is made from a CronJob once, here without a person. Its name holds the plan's id.", setup: cronJob, flags: []string{"--irreversible", "allow"},
		requests: []request{
			call("plan_cronjob_trigger", args{"namespace": "NAMESPACE", "cronjob": "mail"}),
			call("cronjob_trigger", confirmed(args{"namespace": "NAMESPACE", "cronjob": "mail"}, "CONFIRM")),
			call("cronjob_trigger", confirmed(args{"namespace": "NAMESPACE", "cronjob": "mail"}, "CONFIRM")),
		},
	},
	{
		name: "no_change", prose: "What is so already needs no phrase.",
		requests: []request{call("plan_scale", scale(2))},
	},
	{
		name: "not_found", prose: "An absent target comes with near names.",
		requests: []request{call("plan_scale", args{"namespace": "NAMESPACE", "deployment": "webb", "replicas": 3})},
	},
	{
		name: "invalid", prose: "Every fault of the arguments is named at once, with what is allowed.",
		requests: []request{call("plan_scale", args{"Namespace": "NAMESPACE", "deployment": "Web", "statefulset": "", "replicas": "3", "yes": true})},
	},
	{
		name: "to_zero", prose: "Too large a step is refused, and the largest that passes is named.",
		requests: []request{call("plan_scale", scale(0)), call("plan_scale", scale(1))},
	},
	{
		name: "waits", prose: "What cannot be taken back waits for a person, whom this client cannot ask.", setup: alone,
		requests: []request{call("plan_delete_pod", deletes), call("delete_pod", confirmed(deletes, "CONFIRM"))},
	},
	{
		name: "person", prose: "A client that can ask its person: the wrong name and then the right one. The stateless era asks in the answer to the call, the older ones in the middle of it.",
		setup: alone, person: typed("web", "alone"),
		requests: []request{call("plan_delete_pod", deletes), call("delete_pod", confirmed(deletes, "CONFIRM")), call("delete_pod", confirmed(deletes, "CONFIRM"))},
	},
	{
		name: "unknown_tool", prose: "Without --allow-write the write tool does not exist.", readOnly: true,
		requests: []request{call("scale", confirmed(scale(3), "yes"))},
	},
	{
		name: "protocol", prose: "What is no tool call: a batch, a ping, a method that does not exist.",
		requests: []request{
			{raw: `[{"jsonrpc":"2.0","id":901,"method":"ping"},{"jsonrpc":"2.0","id":902,"method":"ping"}]`},
			{method: "ping"},
			{method: "tools/nothing"},
		},
	},
}

func TestTranscripts(t *testing.T) {
	for _, sc := range scenarios {
		for _, era := range eras {
			t.Run(sc.name+"/"+eraName(era), func(t *testing.T) {
				got := play(t, sc, era).text(sc)
				path := filepath.Join("testdata", sc.name+"."+eraName(era)+".txt")
				if *update {
					if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(string(want), got); d != "" {
					t.Errorf("%s (-want +got), -update rewrites it:\n%s", path, d)
				}
			})
		}
	}
}

// TestFiles finds transcripts that no scenario writes any more.
func TestFiles(t *testing.T) {
	known := map[string]bool{"plans": true} // those of TestPlanTexts
	for _, sc := range scenarios {
		for _, era := range eras {
			known[sc.name+"."+eraName(era)+".txt"] = true
		}
	}
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !known[f.Name()] {
			t.Errorf("testdata/%s belongs to no scenario", f.Name())
		}
	}
}

// TestErasAgree wants the same answer to the same tool call in both eras.
func TestErasAgree(t *testing.T) {
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			legacy, modern := play(t, sc, stdio.Legacy).answers, play(t, sc, stdio.Modern).answers
			if d := cmp.Diff(legacy, modern); d != "" {
				t.Errorf("-legacy +modern:\n%s", d)
			}
		})
	}
}

// TestWhatTheyShow holds the scenarios to what their prose says, so that -update cannot
// make a wrong answer right.
func TestWhatTheyShow(t *testing.T) {
	want := map[string][]string{
		"changes":         {`"status":"planned"`, "CONFIRM: changes: 1 scale deployment NAMESPACE1/web from 2 to 3; 2 restart deployment NAMESPACE1/api; 3 suspend cronjob NAMESPACE1/mail on kind-lab [PLAN1-MAC1]", `"tool":"changes"`, "EXECUTED changes: 1 scale", "REPLAYED"},
		"changes_refused": {"steps[0] and steps[1] both touch deployment NAMESPACE1/web", "steps[0].arguments: replicas must be", "steps[1].action: there is no such action"},
		"hello":           {`"name":"kube-write-mcp"`, `"instructions":"Kubernetes writes are two calls apart.`},
		"tools":           {`"name":"plan_scale"`, `"name":"scale"`},
		"tools_readonly":  {`"name":"plan_scale"`},
		"plan":            {`"status":"planned"`, "CONFIRM: scale deployment NAMESPACE1/web from 2 to 3 on kind-lab [PLAN1-MAC1]", `"tool":"scale"`},
		"plan_readonly":   {`"status":"planned"`, "this server cannot execute"},
		"guessed":         {`"code":"unknown_phrase"`},
		"protected":       {`"code":"out_of_scope"`, "nothing was read"},
		"execute":         {`"outcome":"EXECUTED","replayed":false`, `"outcome":"EXECUTED","replayed":true`, `"verdict":"not_started"`},
		"set_image":       {`spec.template.spec.containers[0].image: main → main:2`, `"tool":"set_image"`, "plan_set_image"},
		"trigger":         {"trigger cronjob NAMESPACE1/mail as job mail-PLAN1", `"outcome":"EXECUTED","replayed":false`, `"outcome":"EXECUTED","replayed":true`, `"verdict":"verified"`, "delete job/mail-PLAN1"},
		"reads":           {"1 workload on kind-lab", "1 more of pods in NAMESPACE1", "deployment NAMESPACE1/web: ready on kind-lab", "untrusted[image of main]: main", `"code":"not_found"`, "near names are web"},
		"no_change":       {`"status":"no change"`, "NO CHANGE"},
		"not_found":       {`"code":"not_found"`, "near names are web"},
		"invalid":         {`"code":"invalid_arguments"`, "unknown argument Namespace: write namespace", "unknown argument yes", "missing argument namespace", "without quotes", "deployment is wrong"},
		"to_zero":         {`"code":"blast_limit"`, "the largest step that passes is replicas: 1", `"status":"planned"`},
		"waits":           {`"status":"waits for a person","needs_person":["pod NAMESPACE1/alone has no controller`, "WAITS FOR A PERSON: ", `"code":"needs_person"`, "kube-write-mcp approve PLAN1", `"retryable":true`},
		"person":          {"elicitation/create", "type the name of its target", "not that of the target", `"outcome":"EXECUTED","replayed":false`},
		"unknown_tool":    {`"code":-32602`},
		"protocol":        {`"code":-32600`, "batches are not supported", `"code":-32601`},
	}
	for _, sc := range scenarios {
		for _, era := range eras {
			raw, err := os.ReadFile(filepath.Join("testdata", sc.name+"."+eraName(era)+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			if len(want[sc.name]) == 0 {
				t.Errorf("nothing is said about %s", sc.name)
			}
			for _, w := range want[sc.name] {
				if quoted, _ := json.Marshal(w); !strings.Contains(string(raw), w) && !strings.Contains(string(raw), strings.Trim(string(quoted), `"`)) {
					t.Errorf("%s in the %s era does not show %s", sc.name, eraName(era), w)
				}
			}
		}
	}
}

// played is what a scenario came to.
type played struct {
	lines   []string   // both ways, normalised
	answers []answer   // of its tool calls, normalised
	tools   []toolCall // the same as they came
}

// answer is what the model sees of a tool call.
type answer struct {
	Tool, Content, Structured string
	IsError                   bool
	Code                      int // of a JSON-RPC error
}

type toolCall struct {
	name   string
	result stdio.Tool
}

func (p played) text(sc scenario) string {
	flags := strings.Join(sc.flags, " ")
	if !sc.readOnly {
		flags = strings.TrimSpace("--allow-write " + flags)
	}
	if flags == "" {
		flags = "none"
	}
	return fmt.Sprintf("# %s\n# Flags: %s\n%s\n", sc.prose, flags, strings.Join(p.lines, "\n"))
}

// play runs a scenario against a server and a namespace of its own.
func play(t *testing.T, sc scenario, era stdio.Era) (out played) {
	t.Helper()
	ns := cp.Namespace(t)
	deployment(t, ns, "web")
	if sc.setup != nil {
		sc.setup(t, ns)
	}
	s := serveTo(t, era, harness.Account(t, cp), sc.readOnly, sc.person, sc.flags...)
	norm, seen, confirm := normaliser{}, len(s.Lines()), ""
	if sc.handshake {
		seen = 0
		sent := s.sent.take()
		for i, l := range sent { // the handshake: one request and its answer, one notification
			out.lines = append(out.lines, norm.apply("-> "+l))
			if i == 0 && len(sent) > 1 {
				out.lines, seen = append(out.lines, norm.apply("<- "+s.Lines()[0])), 1
			}
		}
	}
	s.sent.take()
	for _, r := range sc.requests {
		if r.only != "" && r.only != era {
			continue
		}
		fill := strings.NewReplacer("NAMESPACE", ns, "CONFIRM", confirm)
		var m stdio.Message
		if r.raw != "" {
			m = s.line(t, fill.Replace(r.raw))
		} else {
			raw, err := json.Marshal(r.params)
			if err != nil {
				t.Fatal(err)
			}
			var params map[string]any
			if err := json.Unmarshal([]byte(fill.Replace(string(raw))), &params); err != nil {
				t.Fatal(err)
			}
			if m, err = s.Request(r.method, params); err != nil {
				t.Fatal(err, s.stderr.String())
			}
		}
		for _, l := range s.sent.take() {
			out.lines = append(out.lines, norm.apply("-> "+l))
		}
		for _, l := range s.Lines()[seen:] {
			out.lines = append(out.lines, norm.apply("<- "+l))
			seen++
		}
		if r.method != "tools/call" {
			continue
		}
		got, err := stdio.Parse(m)
		if err != nil {
			t.Fatal(err)
		}
		if c := got.Field("confirm"); c != "" {
			confirm = c
		}
		var whole struct {
			Content json.RawMessage `json:"content"`
		}
		_ = json.Unmarshal(m.Result, &whole)
		name := r.params["name"].(string)
		out.tools = append(out.tools, toolCall{name, got})
		a := answer{
			Tool: name, Content: norm.apply(string(whole.Content)), Structured: norm.apply(string(got.Structured)),
			IsError: got.IsError, Code: got.Code,
		}
		if a.Content == "" {
			a.Content = norm.apply(got.Text)
		}
		out.answers = append(out.answers, a)
	}
	s.end(t)
	return out
}

// server is one server in this process, whose lines both ways are kept.
type server struct {
	*stdio.Client
	stdin  io.WriteCloser
	sent   *recorder
	stderr *harness.Buffer
	state  string
	code   chan int
}

// serve starts a server that talks to the API server of cfg without a proxy.
func serve(t *testing.T, era stdio.Era, cfg *rest.Config, readOnly bool, flags ...string) *server {
	t.Helper()
	return serveTo(t, era, cfg, readOnly, nil, flags...)
}

// serveTo is serve to a client with a person.
func serveTo(t *testing.T, era stdio.Era, cfg *rest.Config, readOnly bool, person func(json.RawMessage) any, flags ...string) *server {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := cp.Kubeconfig(kubeconfig, "kind-lab", cfg); err != nil {
		t.Fatal(err)
	}
	s := &server{stderr: &harness.Buffer{}, state: filepath.Join(dir, "state"), code: make(chan int, 1)}
	argv := []string{"serve", "--kubeconfig", kubeconfig, "--state-dir", s.state}
	if !readOnly {
		argv = append(argv, "--allow-write")
	}
	argv = append(argv, flags...)
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.code <- app.Main(argv, inR, outW, s.stderr, actions.All()...)
		outW.Close()
		inR.CloseWithError(io.ErrClosedPipe)
	}()
	s.stdin = inW
	s.sent = &recorder{WriteCloser: inW}
	c, err := stdio.Connect(era, s.sent, outR, person)
	if err != nil {
		t.Fatal(err, s.stderr.String())
	}
	s.Client = c
	t.Cleanup(func() {
		c.Close()
		<-ended // it signs its journal in a folder that is removed next
	})
	return s
}

// line sends one raw line and waits for the message that has no id of ours.
func (s *server) line(t *testing.T, line string) (m stdio.Message) {
	t.Helper()
	before := len(s.Notifications())
	if _, err := s.sent.Write([]byte(line + "\n")); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the answer to a raw line", func() (bool, error) {
		if notes := s.Notifications(); len(notes) > before {
			m = notes[before]
			return true, nil
		}
		return false, nil
	})
	return m
}

// end ends the server's input; it must end well, with a journal that verifies.
func (s *server) end(t *testing.T) {
	t.Helper()
	s.Close()
	if code := <-s.code; code != 0 {
		t.Errorf("the server ended with %d: %s", code, s.stderr.String())
	}
	if _, err := os.Stat(filepath.Join(s.state, "audit.jsonl")); err == nil {
		harness.Lines(t, s.state)
	}
}

// recorder keeps the lines that are written through it.
type recorder struct {
	io.WriteCloser
	mu    sync.Mutex
	lines []string
}

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.lines = append(r.lines, strings.TrimSpace(string(b)))
	r.mu.Unlock()
	return r.WriteCloser.Write(b)
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.lines
	r.lines = nil
	return out
}

// normaliser replaces what differs from run to run: the first value of a kind that is
// seen becomes KIND1, and so on, wherever it stands. Times lose their value altogether:
// which of them are equal differs as well.
type normaliser map[string]string

var (
	volatile = regexp.MustCompile(strings.Join([]string{
		`(?P<TIME>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)`,
		`(?P<NAMESPACE>\bt-[a-z0-9]{10}\b)`,
		`(?P<UID>\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b)`,
		`\[(?P<PLAN>[a-z2-7]{10})-(?P<MAC>[a-z2-7]{12})\]`,
		`\bkube-write-mcp-(?P<PLAN>[a-z2-7]{10})-s\d+-`,
		`\bmail-(?P<PLAN>[a-z2-7]{10})\b`,
		`\bapprove (?P<PLAN>[a-z2-7]{10})\b`,
		`"requestState":"(?P<STATE>[^"]*)"`,
		`\bfor (?P<PRINCIPAL>os:[^,]+), until`,
		`(?P<HASH>(?:hmac-)?sha256:[0-9a-f]{12}(?:[0-9a-f]{4})?)\b`,
		`"?\bplan\\*"?:? ?\\*"?(?P<PLAN>\b[a-z2-7]{10}\b)`,
		`"rv":"(?P<RV>\d+)"`,
		`\b(?P<HANDLE>v[0-9a-f]{10})\b`,
		`"name":"kube-write-mcp",(?:"title":"[^"]*",)?"version":"(?P<VERSION>[^"]*)"`,
		`(?P<PAGE>\beyJ[A-Za-z0-9_-]{20,})`,
		`\bcache, (?P<AGE>\d+m?s) old`,
	}, "|"))
	uncounted = []string{"TIME", "AGE", "VERSION"}
)

// lateSync is why a cache is not used that has not synced within 2 s. On a machine that is
// slow at this moment that says nothing of the product.
const lateSync = "live list: the cache has not synced yet"

func (n normaliser) apply(s string) string {
	s = strings.ReplaceAll(s, lateSync, "cache, 2s old")
	var out strings.Builder
	at := 0
	for _, m := range volatile.FindAllStringSubmatchIndex(s, -1) {
		for i, kind := range volatile.SubexpNames() {
			if kind == "" || m[2*i] < 0 {
				continue
			}
			out.WriteString(s[at:m[2*i]])
			out.WriteString(n.name(kind, s[m[2*i]:m[2*i+1]]))
			at = m[2*i+1]
		}
	}
	out.WriteString(s[at:])
	return out.String()
}

func (n normaliser) name(kind, value string) string {
	if slices.Contains(uncounted, kind) {
		return kind
	}
	key := kind + " " + value
	if n[key] == "" {
		count := 1
		for k := range n {
			if strings.HasPrefix(k, kind+" ") {
				count++
			}
		}
		n[key] = fmt.Sprintf("%s%d", kind, count)
	}
	return n[key]
}

// deployment makes a Deployment of two pods and gives it the status of a rollout that is
// done; each mod changes it before.
func deployment(t testing.TB, ns, name string, mods ...func(*appsv1.Deployment)) *appsv1.Deployment {
	t.Helper()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main"}}},
			},
		},
	}
	for _, m := range mods {
		m(d)
	}
	apps := cp.Client.AppsV1().Deployments(ns)
	d, err := apps.Create(t.Context(), d, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.Status = appsv1.DeploymentStatus{
		Replicas: 2, ReadyReplicas: 2, AvailableReplicas: 2, UpdatedReplicas: 2, ObservedGeneration: d.Generation,
	}
	if d, err = apps.UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		pod(t, ns, fmt.Sprintf("%s-5c4f8b-%d", name, i), func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": name, "pod-template-hash": "5c4f8b"}
			p.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name + "-5c4f8b", UID: "11111111-2222-4333-8444-555555555555", Controller: new(true),
			}}
		})
	}
	return d
}

// cronJob makes the CronJob mail, which never runs by itself.
func cronJob(t *testing.T, ns string) {
	t.Helper()
	c := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "mail"}, Spec: batchv1.CronJobSpec{
		Schedule: "0 0 31 2 *",
		JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "main"}}},
		}}},
	}}
	if _, err := cp.Client.BatchV1().CronJobs(ns).Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// pod makes a pod that is ready by its status.
func pod(t testing.TB, ns, name string, mods ...func(*corev1.Pod)) {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main"}}},
	}
	for _, m := range mods {
		m(p)
	}
	pods := cp.Client.CoreV1().Pods(ns)
	p, err := pods.Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if _, err := pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
