// Package misroute measures what wrong calls come to: an agent means one thing and asks
// for another, never notices, and sends every phrase it is given.
package misroute

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/hack/readme/sections"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

var (
	update = flag.Bool("update", false, "rewrite testdata/consequences.json")

	cp *lab.Lab
)

func TestMain(m *testing.M) {
	lab.Main(m, lab.Options{Controllers: true, Nodes: 3}, func(l *lab.Lab) { cp = l })
}

// task is one wrong call, or a row of them.
type task struct {
	name    string
	mistake string // what went wrong, as the README counts it
	intent  string // what the person wanted
	world   []thing
	flags   []string // {ns} is filled in; those of several lines stand in the policy file
	alone   bool     // it needs the cluster to itself
	loose   bool     // at the defaults, without the policy file
	calls   []call
	want    sections.Class
}

// thing makes or changes something in the cluster, as its people do.
type thing func(*testing.T, *scene)

// call is a tool call as the agent sends it. In strings, {ns}, {other}, {node}, {pod}, {pod2}
// and {rs} are names in the scene, and {phrase}, {sentence}, {plan} and {version} are of
// the latest plan. A call that needs a phrase is not sent where there is none.
type call struct {
	tool  string
	args  harness.Args
	right bool   // what the person wanted indeed: no part of the mistake
	via   string // another server, which has a name of its own for the cluster
	first []thing
}

// do is a plan and its execution.
func do(action string, args harness.Args, first ...thing) []call {
	return []call{{tool: "plan_" + action, args: args, first: first}, write(action, args)}
}

// write is an execution with the latest phrase.
func write(action string, args harness.Args) call {
	return call{tool: action, args: args.With("confirm", "{phrase}").With("reason", "as asked")}
}

// right are calls that are no mistake.
func right(calls ...call) []call {
	for i := range calls {
		calls[i].right = true
	}
	return calls
}

// sent is a wrong call with its answer.
type sent struct {
	call
	answer   stdio.Tool
	requests []harness.Request
}

// reached reports whether the call reached the API server at all.
func (s sent) reached() bool { return len(s.requests) > 0 }

// wrote reports whether a request of the call was one that writes, and was accepted.
func (s sent) wrote() bool {
	return slices.ContainsFunc(s.requests, func(r harness.Request) bool { return r.Mutates() && r.Status < http.StatusBadRequest })
}

// dryRunRefused reports whether the API server refused a dry run.
func (s sent) dryRunRefused() bool {
	return slices.ContainsFunc(s.requests, func(r harness.Request) bool {
		return !r.Mutates() && r.Method != http.MethodGet && r.Status >= http.StatusBadRequest
	})
}

// gates are the codes of what the operator has set.
var gates = []refusal.Code{refusal.OutOfScope, refusal.NodeNotAllowed, refusal.BlastLimit, refusal.CapExceeded, refusal.WindowClosed, refusal.RateLimited}

// run makes a task's scene, sends its calls and says what they came to.
func (tk task) run(t *testing.T, w *witness) sections.Consequence {
	s := newScene(t, tk, w)
	out := sections.Consequence{Mistake: tk.mistake, Task: tk.name, Intent: tk.intent}
	var wrong []sent
	var before state
	began := false
	for _, c := range tk.calls {
		for _, change := range c.first {
			change(t, s)
		}
		if c.first != nil || !began && !c.right {
			if slices.ContainsFunc(wrong, sent.wrote) {
				t.Fatal("something else changes the scene after a write: whose effect is it?")
			}
			s.settle(t)
			before, began = w.state(s.place), !c.right
		}
		answer, ok := s.send(t, c)
		if !ok {
			break
		}
		if !c.right {
			wrong = append(wrong, answer)
			out.Sent = append(out.Sent, c.tool)
		} else if answer.answer.IsError {
			t.Fatalf("%s was meant to pass: %s", c.tool, answer.answer.Text)
		}
	}
	if len(wrong) == 0 {
		t.Fatal("no wrong call was sent")
	}
	last := wrong[len(wrong)-1]
	t.Logf("%s: %s", last.tool, last.answer.Text)
	out.Answer = said(last.answer)
	w.catchUp(t, s.place)
	e := w.since(s.place, before)
	wrote := slices.DeleteFunc(slices.Clone(wrong), func(c sent) bool { return !c.wrote() })
	if (len(e.changed) > 0) != (len(wrote) > 0) {
		t.Errorf("the proxy saw %d calls write, and the witness saw changes %q", len(wrote), e.changed)
	}
	if len(wrote) == 0 {
		out.Class = refused(t, last)
		return out
	}
	slices.Reverse(wrote)
	for _, c := range wrote {
		out.Undone = append(out.Undone, s.undo(t, c.answer))
	}
	w.catchUp(t, s.place)
	left := ""
	if e = w.since(s.place, before); e.lost == nil {
		left = w.comesBack(t, s.place, before)
		e = w.since(s.place, before)
	}
	out.Class, out.Cost = sections.Undone, e.cost
	if e.lost != nil || e.outage != nil || left != "" {
		out.Class, out.Cost = sections.Visible, slices.Concat(e.cost, e.lost, e.outage)
	}
	if left != "" {
		out.Cost = append(out.Cost, left)
	}
	return out
}

// refused gives the one class of a call that changed nothing, by its answer and by what
// the API server was asked for it.
func refused(t *testing.T, s sent) sections.Class {
	code := refusal.Code(harness.Code(s.answer))
	var is []sections.Class
	for _, c := range []struct {
		class sections.Class
		holds bool
	}{
		{sections.Read, !s.answer.IsError},
		{sections.Unread, s.answer.IsError && !s.reached() && code != refusal.NeedsPerson},
		{sections.DryRun, s.reached() && code == refusal.DryRunFailed && s.dryRunRefused()},
		{sections.Gate, s.reached() && slices.Contains(gates, code)},
		{sections.Person, code == refusal.NeedsPerson},
		{sections.Precondition, s.answer.IsError && s.reached() && code != "" && code != refusal.DryRunFailed && code != refusal.NeedsPerson && !slices.Contains(gates, code)},
	} {
		if c.holds {
			is = append(is, c.class)
		}
	}
	if len(is) != 1 {
		t.Fatalf("%s is of %d classes %q: %s", s.tool, len(is), is, s.answer.Text)
	}
	return is[0]
}

// said is the code of an answer, or its first word.
func said(a stdio.Tool) string {
	if code := harness.Code(a); code != "" {
		return code
	}
	if a.Code != 0 {
		return fmt.Sprintf("error %d", a.Code)
	}
	for _, f := range []string{"outcome", "status"} {
		if v := a.Field(f); v != "" {
			if strings.Contains(string(a.Structured), `"replayed":true`) {
				return "REPLAYED"
			}
			return v
		}
	}
	return "rows"
}

var printedUndo = regexp.MustCompile(`(?m)^  undo: plan_(\w+) (\{[^}]*\})`)

// undo sends the first undo that an answer prints, and says what took the call back. Where none
// is printed that can be sent, it is left to the controllers, and comesBack says whether
// they did.
func (s *scene) undo(t *testing.T, a stdio.Tool) string {
	m := printedUndo.FindStringSubmatch(a.Text)
	if m == nil {
		return sections.ByController
	}
	var args harness.Args
	if err := json.Unmarshal([]byte(m[2]), &args); err != nil {
		t.Fatal(err)
	}
	var got sent
	for _, c := range do(m[1], args) {
		next, ok := s.send(t, c)
		if !ok || next.answer.IsError {
			t.Errorf("the undo as it was printed, %s %v: %s%s", c.tool, args, got.answer.Text, next.answer.Text)
			return "not undone"
		}
		got = next
	}
	return "plan_" + m[1]
}

// TestConsequences sends every wrong call against a real cluster. What each came to is
// derived from the answers, the requests that a proxy saw and the changes that a witness
// saw, and compared with what is on file, from which the README has its table.
func TestConsequences(t *testing.T) {
	if len(tasks) != 64 {
		t.Errorf("%d tasks, want 64", len(tasks))
	}
	w := newWitness(t)
	var mu sync.Mutex
	got := map[string]sections.Consequence{}
	t.Run("tasks", func(t *testing.T) {
		for _, tk := range tasks {
			t.Run(tk.name, func(t *testing.T) {
				if !tk.alone {
					t.Parallel()
				}
				out := tk.run(t, w)
				t.Logf("%s: %v -> %s; undone %v, cost %q", out.Class, out.Sent, out.Answer, out.Undone, out.Cost)
				if out.Class != tk.want {
					t.Errorf("it is %q, want %q", out.Class, tk.want)
				}
				mu.Lock()
				defer mu.Unlock()
				if _, twice := got[tk.name]; twice {
					t.Errorf("two tasks have the name %q", tk.name)
				}
				got[tk.name] = out
			})
		}
	})
	if len(got) != len(tasks) {
		return // some were left out by -run, or failed
	}
	var rows []sections.Consequence
	sum := map[sections.Class]int{}
	for _, tk := range tasks {
		rows = append(rows, got[tk.name])
		sum[got[tk.name].Class]++
	}
	total := 0
	for _, c := range sections.Classes {
		total += sum[c]
	}
	if total != 64 || sum[sections.Visible] != 0 {
		t.Errorf("the columns close to %d, %d are externally visible: %v", total, sum[sections.Visible], sum)
	}
	raw, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	raw = append(raw, '\n')
	path := filepath.Join("testdata", "consequences.json")
	if *update && !t.Failed() {
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(raw)); d != "" {
		t.Errorf("%s (-want +got), -update rewrites it, then run %s:\n%s", path, sections.Update, d)
	}
}

// TestVisible: the witness sees each kind of harm, where the server is told to let it pass.
func TestVisible(t *testing.T) {
	w := newWitness(t)
	t.Run("tasks", func(t *testing.T) {
		for _, tk := range visible {
			t.Run(tk.name, func(t *testing.T) {
				t.Parallel()
				out := tk.run(t, w)
				if out.Class != sections.Visible || out.Answer != "EXECUTED" {
					t.Errorf("it is %q: %s, undone %v, cost %q", out.Class, out.Answer, out.Undone, out.Cost)
				}
				t.Logf("cost %q", out.Cost)
			})
		}
	})
}
