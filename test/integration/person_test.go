package integration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// elicited is the person at a client of mcp-go: what it is shown, and what it does.
type elicited func(ctx context.Context, form mcp.ElicitationParams) (*mcp.ElicitationResult, error)

func (e elicited) Elicit(ctx context.Context, req mcp.ElicitationRequest) (*mcp.ElicitationResult, error) {
	return e(ctx, req.Params)
}

func answer(action mcp.ElicitationResponseAction, content any) elicited {
	return func(context.Context, mcp.ElicitationParams) (*mcp.ElicitationResult, error) {
		return &mcp.ElicitationResult{ElicitationResponse: mcp.ElicitationResponse{Action: action, Content: content}}, nil
	}
}

func typed(name string) elicited {
	return answer(mcp.ElicitationResponseActionAccept, map[string]any{"name": name})
}

// library is mcp-go's own client on the shipped program.
type library struct {
	*client.Client
	t     *testing.T
	state string
}

func newLibrary(t *testing.T, era stdio.Era, person client.ElicitationHandler, o harness.Options) *library {
	t.Helper()
	s, args := harness.Prepare(t, cp, o)
	var options []client.ClientOption
	if person != nil {
		options = append(options, client.WithElicitationHandler(person))
	}
	if era == stdio.Legacy {
		options = append(options, client.WithLegacyProtocolOnly())
	}
	c := client.NewClient(transport.NewStdioWithOptions(program(t), nil, args, transport.WithCommandStderrWriter(io.Discard)), options...)
	if err := c.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := c.Initialize(t.Context(), mcp.InitializeRequest{Params: mcp.InitializeParams{ClientInfo: mcp.Implementation{Name: "library", Version: "1"}}}); err != nil {
		t.Fatal(err)
	}
	return &library{c, t, s.State}
}

func (l *library) call(tool string, args harness.Args) stdio.Tool {
	l.t.Helper()
	got, err := l.CallTool(l.t.Context(), mcp.CallToolRequest{Params: mcp.CallToolParams{Name: tool, Arguments: map[string]any(args)}})
	if err != nil {
		l.t.Fatalf("%s: %v", tool, err)
	}
	structured, err := json.Marshal(got.StructuredContent)
	if err != nil || len(got.Content) != 1 {
		l.t.Fatalf("%s: %v, %+v", tool, err, got)
	}
	return stdio.Tool{Text: got.Content[0].(mcp.TextContent).Text, Structured: structured, IsError: got.IsError}
}

func (l *library) plan(action string, args harness.Args) (harness.Args, stdio.Tool) {
	l.t.Helper()
	got := l.call("plan_"+action, args)
	if got.Field("confirm") == "" {
		l.t.Fatalf("plan_%s gave no phrase: %s", action, got.Text)
	}
	return args.With("confirm", got.Field("confirm")).With("reason", "trust me, it is fine"), got
}

// called are the lines of the calls of one tool, with their codes.
func called(t *testing.T, state, tool string) (out []string) {
	t.Helper()
	for _, l := range harness.Lines(t, state) {
		if l.Tool == tool && !slices.Contains([]string{"execute_intent", "step", "verify"}, l.Event) {
			out = append(out, strings.TrimSpace(l.Event+" "+l.Code))
		}
	}
	return out
}

func exists(t *testing.T, ns, pod string) bool {
	t.Helper()
	p, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), pod, metav1.GetOptions{})
	return err == nil && p.DeletionTimestamp == nil
}

// TestPerson drives the question with the client library of mcp-go in both eras: each answer
// has its outcome, its audit line, and its effect or none.
func TestPerson(t *testing.T) {
	const refused, waiting = "refused needs_person", "waiting_for_person needs_person"
	for _, tc := range []struct {
		name       string
		person     client.ElicitationHandler
		flags      []string
		only       stdio.Era
		wantText   string
		wantLines  []string // of the write call
		wantGone   bool
		unanswered bool // no person said anything
	}{
		{name: "accepted", person: typed("loner"), wantText: "EXECUTED", wantLines: []string{"approved", "execute EXECUTED"}, wantGone: true},
		{name: "declined", person: answer(mcp.ElicitationResponseActionDecline, nil), wantText: "the person declined", wantLines: []string{refused}},
		{name: "declined with the name", person: answer(mcp.ElicitationResponseActionDecline, map[string]any{"name": "loner"}), wantText: "the person declined", wantLines: []string{refused}},
		{name: "cancelled", person: answer(mcp.ElicitationResponseActionCancel, nil), wantText: "closed without an answer", wantLines: []string{refused}, unanswered: true},
		{name: "no action", person: answer("yes", map[string]any{"name": "loner"}), wantText: "closed without an answer", wantLines: []string{refused}, unanswered: true},
		{name: "another name", person: typed("lone"), wantText: "not that of the target", wantLines: []string{refused}},
		{name: "another case", person: typed("Loner"), wantText: "not that of the target", wantLines: []string{refused}},
		{name: "with a space", person: typed("loner "), wantText: "not that of the target", wantLines: []string{refused}},
		{name: "no name", person: typed(""), wantText: "not that of the target", wantLines: []string{refused}},
		{name: "no form", person: answer(mcp.ElicitationResponseActionAccept, "loner"), wantText: "not that of the target", wantLines: []string{refused}},
		{name: "a name that is no text", person: answer(mcp.ElicitationResponseActionAccept, map[string]any{"name": []string{"loner"}}), wantText: "not that of the target", wantLines: []string{refused}},
		{name: "unsupported", wantText: "kube-write-mcp approve ", wantLines: []string{waiting}, unanswered: true},
		{
			name: "timed out", only: stdio.Legacy, flags: []string{"--verify-wait", "1s"}, wantText: "no person answered within ", wantLines: []string{refused}, unanswered: true,
			person: elicited(func(ctx context.Context, _ mcp.ElicitationParams) (*mcp.ElicitationResult, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}),
		},
		{
			name: "a client that fails", only: stdio.Legacy, wantText: "this client could not ask", wantLines: []string{waiting}, unanswered: true,
			person: elicited(func(context.Context, mcp.ElicitationParams) (*mcp.ElicitationResult, error) {
				return nil, errors.New("no screen")
			}),
		},
	} {
		for _, era := range []stdio.Era{stdio.Legacy, stdio.Modern} {
			if tc.only != "" && tc.only != era {
				continue
			}
			t.Run(tc.name+"/"+string(era), func(t *testing.T) {
				t.Parallel()
				ns := cp.Namespace(t)
				harness.Create(t, cp, ns, harness.Pod("loner"))
				l := newLibrary(t, era, tc.person, harness.Options{Args: tc.flags})
				args, planned := l.plan("delete_pod", of(ns, "pod", "loner"))
				if planned.Field("status") != "waits for a person" || !strings.HasPrefix(planned.Text, "WAITS FOR A PERSON: pod "+ns+"/loner has no controller") {
					t.Errorf("the plan does not say so first: %s", planned.Text)
				}
				got := l.call("delete_pod", args)
				harness.Tells(t, got, tc.wantText)
				if exists(t, ns, "loner") == tc.wantGone {
					t.Errorf("the pod is gone: %t, want %t", !tc.wantGone, tc.wantGone)
				}
				want := tc.wantLines
				if era == stdio.Modern && tc.person != nil {
					want = append([]string{waiting}, want...) // the question is a call's answer
				}
				if diff := gocmp.Diff(want, called(t, l.state, "delete_pod")); diff != "" {
					t.Errorf("lines (-want +got):\n%s", diff)
				}
				lines := harness.Lines(t, l.state)
				last := lines[slices.IndexFunc(lines, func(l *journal.Line) bool {
					return strings.TrimSpace(l.Event+" "+l.Code) == tc.wantLines[0] && (era == stdio.Legacy || tc.person == nil || l.Event != "waiting_for_person")
				})]
				if last.AnsweredAt.IsZero() != tc.unanswered || !tc.unanswered && (last.ShownAt.IsZero() || last.AnsweredAt.Before(last.ShownAt) || last.Channel != "elicitation" || last.Principal == nil) {
					t.Errorf("the line %+v", last)
				}
				if tc.wantGone {
					return
				}
				if code := harness.Code(got); code != "needs_person" || !got.IsError {
					t.Errorf("code %q", code)
				}
				if r := harness.Into[struct {
					Retryable bool   `json:"retryable"`
					Hint      string `json:"hint"`
				}](t, got); !r.Retryable || !strings.Contains(r.Hint, "kube-write-mcp approve "+planned.Field("plan")) {
					t.Errorf("retryable %t, hint %q", r.Retryable, r.Hint)
				}
				if w := realWrites(t, ns); len(w) != 0 {
					t.Errorf("it wrote %q", w)
				}
				// The plan stays open.
				again := newLibrary(t, era, typed("loner"), harness.Options{State: l.state})
				harness.Tells(t, again.call("delete_pod", args), "EXECUTED")
			})
		}
	}
}

// TestPersonIsShown: the question holds the resolved facts, and nothing that the caller said.
func TestPersonIsShown(t *testing.T) {
	t.Parallel()
	for _, era := range []stdio.Era{stdio.Legacy, stdio.Modern} {
		ns := cp.Namespace(t)
		harness.Create(t, cp, ns, harness.Deployment("web").Replicas(1).Ready(1))
		var form mcp.ElicitationParams
		l := newLibrary(t, era, elicited(func(ctx context.Context, f mcp.ElicitationParams) (*mcp.ElicitationResult, error) {
			form = f
			return typed("web")(ctx, f)
		}), harness.Options{Args: []string{"--verify-wait", "5s", "--verify-timeout", "1s"}})
		args, planned := l.plan("scale", of(ns, "deployment", "web").With("replicas", 0))
		if got := l.call("scale", args); got.IsError {
			t.Fatal(got.Text)
		}
		for _, want := range []string{
			"scale deployment " + ns + "/web from 1 to 0 on kind-lab", "1 of 1 ready pod may be missing at once", "pods: removes 1 of 1", "plan " + planned.Field("plan"), "type the name of its target",
		} {
			if !strings.Contains(form.Message, want) {
				t.Errorf("the question lacks %q:\n%s", want, form.Message)
			}
		}
		if strings.Contains(form.Message, "trust me") {
			t.Errorf("the question holds the caller's words:\n%s", form.Message)
		}
		schema, _ := json.Marshal(form.RequestedSchema)
		if !strings.Contains(string(schema), `"required":["name"]`) {
			t.Errorf("the form is %s", schema)
		}
	}
}

// TestPersonOnce: the second write of an approved plan is the replay of the first, nobody is
// asked for it, and while a question is open no second one is asked.
func TestPersonOnce(t *testing.T) {
	t.Parallel()
	for _, era := range []stdio.Era{stdio.Legacy, stdio.Modern} {
		ns := cp.Namespace(t)
		harness.Create(t, cp, ns, harness.Pod("loner"))
		var n atomic.Int32
		l := newLibrary(t, era, elicited(func(ctx context.Context, f mcp.ElicitationParams) (*mcp.ElicitationResult, error) {
			n.Add(1)
			return typed("loner")(ctx, f)
		}), harness.Options{})
		args, _ := l.plan("delete_pod", of(ns, "pod", "loner"))
		first := harness.Into[execution](t, l.call("delete_pod", args))
		second := harness.Into[execution](t, l.call("delete_pod", args))
		if first.Replayed || !second.Replayed || string(first.Result) != string(second.Result) || first.Outcome != plan.Executed {
			t.Errorf("%s: first %+v, second %+v", era, first, second)
		}
		if n.Load() != 1 {
			t.Errorf("%s: %d questions, want one", era, n.Load())
		}
	}
	t.Run("at once", func(t *testing.T) {
		ns := cp.Namespace(t)
		harness.Create(t, cp, ns, harness.Pod("loner"))
		open, answered := make(chan struct{}), make(chan struct{})
		l := newLibrary(t, stdio.Legacy, elicited(func(ctx context.Context, f mcp.ElicitationParams) (*mcp.ElicitationResult, error) {
			close(open) // panics where it is asked twice
			<-answered
			return typed("loner")(ctx, f)
		}), harness.Options{})
		args, _ := l.plan("delete_pod", of(ns, "pod", "loner"))
		var first stdio.Tool
		var wg sync.WaitGroup
		wg.Go(func() { first = l.call("delete_pod", args) })
		<-open
		harness.Tells(t, l.call("delete_pod", args), "who is being asked for another call")
		close(answered)
		wg.Wait()
		harness.Tells(t, first, "EXECUTED")
	})
}

// TestPersonStale: what moved while the person decided makes the plan stale, with its
// approval on record.
func TestPersonStale(t *testing.T) {
	t.Parallel()
	for _, era := range []stdio.Era{stdio.Legacy, stdio.Modern} {
		ns := cp.Namespace(t)
		harness.Create(t, cp, ns, harness.Deployment("web").Replicas(1).Ready(1))
		l := newLibrary(t, era, elicited(func(ctx context.Context, f mcp.ElicitationParams) (*mcp.ElicitationResult, error) {
			setReplicas(t, ns, "web", 2)
			return typed("web")(ctx, f)
		}), harness.Options{})
		args, planned := l.plan("scale", of(ns, "deployment", "web").With("replicas", 0))
		got := l.call("scale", args)
		if harness.Code(got) != "stale" {
			t.Errorf("%s: %s", era, got.Text)
		}
		if out := called(t, l.state, "scale"); !slices.Contains(out, "approved") || out[len(out)-1] != "stale stale" {
			t.Errorf("%s: lines %q", era, out)
		}
		if got := l.call("scale", args); harness.Code(got) != "stale" {
			t.Errorf("%s: once more: %s", era, got.Text)
		}
		harness.Tells(t, l.call("write_status", harness.Args{"plan": planned.Field("plan")}), "NOT EXECUTED", "stale")
	}
}

// TestPersonExpires: a plan that waits lives as long as --approval-ttl says, and its approval
// no longer.
func TestPersonExpires(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Pod("loner"))
	l := newLibrary(t, stdio.Modern, elicited(func(ctx context.Context, f mcp.ElicitationParams) (*mcp.ElicitationResult, error) {
		time.Sleep(3 * time.Second)
		return typed("loner")(ctx, f)
	}), harness.Options{Args: []string{"--approval-ttl", "3s"}})
	args, planned := l.plan("delete_pod", of(ns, "pod", "loner"))
	harness.Tells(t, planned, "expires in 3 s")
	if got := l.call("delete_pod", args); harness.Code(got) != "expired" {
		t.Errorf("answered too late: %s", got.Text)
	}
	if !exists(t, ns, "loner") {
		t.Error("the pod is gone")
	}
	if got := start(t).Must("plan_delete_pod", of(ns, "pod", "loner")); !strings.Contains(got.Text, "expires in 1800 s") {
		t.Errorf("at the defaults: %s", got.Text)
	}
}

// TestPersonAnswerIsBound sends answers to questions that were not asked by the call: none
// of them counts, and the answer that was right counts once.
func TestPersonAnswerIsBound(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Pod("loner"), harness.Pod("other"))
	s := harness.Start(t, cp, harness.Options{Answer: func(json.RawMessage) any { return nil }})
	plans := map[string]harness.Args{}
	for _, pod := range []string{"loner", "other"} {
		plans[pod] = s.Plan("delete_pod", of(ns, "pod", pod))
	}
	once := func(args harness.Args, more map[string]any) (m stdio.Message, state string) {
		t.Helper()
		params := map[string]any{"name": "delete_pod", "arguments": args}
		for k, v := range more {
			params[k] = v
		}
		m, err := s.Once("tools/call", params)
		if err != nil {
			t.Fatal(err)
		}
		var r struct {
			RequestState string `json:"requestState"`
		}
		_ = json.Unmarshal(m.Result, &r)
		return m, r.RequestState
	}
	answers := func(name, state string) map[string]any {
		return map[string]any{"requestState": state, "inputResponses": map[string]any{
			"approve": map[string]any{"action": "accept", "content": map[string]any{"name": name}},
		}}
	}
	no := func(what string, args harness.Args, more map[string]any) {
		t.Helper()
		m, _ := once(args, more)
		got, err := stdio.Parse(m)
		if err != nil || harness.Code(got) != "needs_person" || !strings.Contains(got.Text, "answers no question that is open") {
			t.Errorf("%s: %v: %s", what, err, m.Line)
		}
	}
	no("no question was asked", plans["loner"], answers("loner", ""))
	no("a state of one's own", plans["loner"], answers("loner", "a.b.c"))
	_, old := once(plans["loner"], nil)
	_, state := once(plans["loner"], nil)
	if old == "" || old == state {
		t.Fatalf("states %q and %q", old, state)
	}
	no("the question before the last one", plans["loner"], answers("loner", old))
	no("of another plan", plans["other"], answers("other", state))
	no("with another reason", plans["loner"].With("reason", "another"), answers("loner", state))
	parts := strings.Split(state, ".")
	no("with another time", plans["loner"], answers("loner", parts[0]+"."+"1."+parts[2]))

	// Declined is final for that question.
	m, _ := once(plans["loner"], map[string]any{"requestState": state, "inputResponses": map[string]any{"approve": map[string]any{"action": "decline"}}})
	if !strings.Contains(m.Line, "the person declined") {
		t.Errorf("declined: %s", m.Line)
	}
	no("the same question again", plans["loner"], answers("loner", state))
	if w := realWrites(t, ns); len(w) != 0 {
		t.Fatalf("it wrote %q", w)
	}

	_, state = once(plans["loner"], nil)
	if m, _ := once(plans["loner"], answers("loner", state)); !strings.Contains(m.Line, `"outcome":"EXECUTED","replayed":false`) {
		t.Errorf("the right answer: %s", m.Line)
	}
	if m, _ := once(plans["loner"], answers("loner", state)); !strings.Contains(m.Line, `"outcome":"EXECUTED","replayed":true`) {
		t.Errorf("the right answer again: %s", m.Line)
	}
	// The approval of one plan serves no other.
	no("the answer about another plan", plans["other"], answers("other", state))
	if m, state := once(plans["other"], nil); state == "" {
		t.Errorf("the other plan does not wait: %s", m.Line)
	}
	if exists(t, ns, "loner") || !exists(t, ns, "other") {
		t.Error("want loner gone and other there")
	}
}

// TestPersonForged: an approval that was written by hand breaks the chain, and nothing is
// executed any more.
func TestPersonForged(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Pod("loner"), harness.Pod("other"))
	s, args := harness.Prepare(t, cp, harness.Options{})
	c, err := stdio.Start(stdio.Modern, program(t), nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	live := &harness.Server{Client: c, T: t, State: s.State}
	confirm := live.Plan("delete_pod", of(ns, "pod", "loner"))
	file := filepath.Join(s.State, "audit.jsonl")
	honest, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := harness.Lines(t, s.State)
	last := *lines[len(lines)-1]
	last.Seq, last.Event, last.Record, last.Channel = last.Seq+1, "approved", nil, "terminal"
	last.ShownAt, last.AnsweredAt = last.Time, last.Time
	forged, err := json.Marshal(last)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, fmt.Appendf(slices.Clone(honest), "%s\n", forged), 0o600); err != nil {
		t.Fatal(err)
	}
	got := live.Must("delete_pod", confirm)
	if code := harness.Code(got); code != "audit_unavailable" && code != "record_missing" {
		t.Errorf("code %q: %s", code, got.Text)
	}
	if !exists(t, ns, "loner") {
		t.Error("the pod is gone")
	}
	c.Kill()
	if err := os.WriteFile(file, honest, 0o600); err != nil { // the cleanup verifies it
		t.Fatal(err)
	}
}

// TestPersonPolicy: what --irreversible says decides whether anybody is waited for, when it
// is planned and again when it is executed.
func TestPersonPolicy(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Pod("loner"), harness.Deployment("web").Replicas(3).Ready(3))
	state := filepath.Join(t.TempDir(), "state")
	with := func(flags ...string) *harness.Server {
		t.Helper()
		return harness.Start(t, cp, harness.Options{State: state, Args: flags})
	}
	pod := of(ns, "pod", "loner")
	asked := 0
	elsewhere := harness.Start(t, cp, harness.Options{
		State: state, Era: stdio.Legacy, Args: []string{"--allow-namespaces", "elsewhere"}, Answer: func(json.RawMessage) any { asked++; return nil },
	})
	human, allow, refuse := with(), with("--irreversible", "allow"), with("--irreversible", "refuse")
	if got := refuse.Must("plan_delete_pod", pod); harness.Code(got) != "blast_limit" {
		t.Errorf("refuse: %s", got.Text)
	}
	waits, free := human.Plan("delete_pod", pod), allow.Plan("delete_pod", pod)
	if got := refuse.Must("delete_pod", waits); harness.Code(got) != "blast_limit" {
		t.Errorf("a plan that waits, where it is refused now: %s", got.Text)
	}
	if got := elsewhere.Must("delete_pod", waits); harness.Code(got) != "out_of_scope" || asked != 0 {
		t.Errorf("a plan that waits, out of scope now: asked %d times, %s", asked, got.Text)
	}
	if got := human.Must("delete_pod", free); harness.Code(got) != "stale" {
		t.Errorf("a plan that waits for nobody, where it must wait now: %s", got.Text)
	}
	if got := allow.Must("delete_pod", waits); got.IsError {
		t.Errorf("a plan that waits, where nobody is needed now: %s", got.Text)
	}
	if got := human.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 0)); harness.Code(got) != "blast_limit" || !strings.Contains(got.Text, "replicas: 2") {
		t.Errorf("3 to 0 has a smaller step: %s", got.Text)
	}
	if got := human.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 2)); got.Field("status") != "planned" {
		t.Errorf("what can be undone waits for nobody: %s", got.Text)
	}
}

// TestPersonGivenUp: a client that gives the call up has its question closed, which is on
// record, and a late answer counts for nothing.
func TestPersonGivenUp(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Pod("loner"))
	open, late := make(chan struct{}), make(chan struct{})
	s := harness.Start(t, cp, harness.Options{Era: stdio.Legacy, Answer: func(json.RawMessage) any {
		close(open)
		<-late
		return map[string]any{"action": "accept", "content": map[string]any{"name": "loner"}}
	}})
	args := s.Plan("delete_pod", of(ns, "pod", "loner"))
	id, _, err := s.Send("tools/call", map[string]any{"name": "delete_pod", "arguments": args})
	if err != nil {
		t.Fatal(err)
	}
	<-open
	if err := s.Notify("notifications/cancelled", map[string]any{"requestId": id}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the question to be closed", func() (bool, error) {
		notes := s.Notifications()
		return slices.ContainsFunc(notes, func(m stdio.Message) bool { return m.Method == "notifications/cancelled" }), nil
	})
	close(late)
	lab.Eventually(t, "the outcome", func() (bool, error) { return len(called(t, s.State, "delete_pod")) > 0, nil })
	s.Must("write_status", harness.Args{"plan": s.Must("plan_delete_pod", of(ns, "pod", "loner")).Field("plan")}) // the late answer was read by now
	if diff := gocmp.Diff([]string{"refused needs_person"}, called(t, s.State, "delete_pod")); diff != "" || !exists(t, ns, "loner") {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// TestPersonRate: nobody is asked without end.
func TestPersonRate(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Pod("loner"))
	asked := 0
	s := harness.Start(t, cp, harness.Options{
		Era: stdio.Legacy, Args: []string{"--plans-per-minute", "4"},
		Answer: func(json.RawMessage) any { asked++; return map[string]any{"action": "decline"} },
	})
	args := s.Plan("delete_pod", of(ns, "pod", "loner"))
	var codes []string
	for range 5 {
		codes = append(codes, cmp.Or(harness.Code(s.Must("delete_pod", args)), "none"))
	}
	if diff := gocmp.Diff([]string{"needs_person", "needs_person", "needs_person", "rate_limited", "rate_limited"}, codes); diff != "" || asked != 3 {
		t.Errorf("asked %d times, codes (-want +got):\n%s", asked, diff)
	}
}
