package faults

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// wall is a wall clock that can be set.
type wall struct{ offset atomic.Int64 }

func (w *wall) now() time.Time        { return time.Now().Add(time.Duration(w.offset.Load())) }
func (w *wall) set(off time.Duration) { w.offset.Store(int64(off)) }

// core is the engine without the program around it, for what a flag does not reach: its
// clock and its principal.
type core struct {
	*engine.Engine
	t         *testing.T
	state     string
	proxy     *harness.Proxy
	principal engine.Principal
}

type coreOptions struct {
	state      string // an own temporary folder when empty
	clock      *wall  // a sound one when nil
	principal  string // alice when empty
	ttl        time.Duration
	verifyWait time.Duration
}

func newCore(t *testing.T, o coreOptions) *core {
	t.Helper()
	if o.state == "" {
		o.state = filepath.Join(t.TempDir(), "state")
	}
	if o.clock == nil {
		o.clock = &wall{}
	}
	c := &core{
		t: t, state: o.state, proxy: harness.NewProxy(t, harness.Account(t, cp)),
		principal: engine.Principal{Kind: "os", Name: cmp.Or(o.principal, "alice")},
	}
	keys, err := journal.LoadKeys(filepath.Join(o.state, "keys.json"), o.clock.now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	inst := plan.NewID([]byte(rand.Text())[:7])[:4]
	j, err := journal.Open(journal.Options{Dir: o.state, Keys: keys, Now: o.clock.now, Inst: inst})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	clients, err := kube.New(c.proxy.Config(), "test", time.Now, log)
	if err != nil {
		t.Fatal(err)
	}
	c.Engine = engine.New(engine.Config{
		Policy: gate.Policy{Limits: gate.Limits{
			MaxReplicas: 100, MaxBlastPercent: 100, WritesPerMinute: 1000, PlansPerMinute: 10000, TTL: cmp.Or(o.ttl, 2*time.Minute), Irreversible: gate.Allow,
		}},
		Label: "kind-lab", Inst: inst,
		VerifyWait: cmp.Or(o.verifyWait, 45*time.Second), VerifyTimeout: time.Second, Log: log,
	}, clients, j, keys, o.clock.now, rand.Reader)
	t.Cleanup(func() {
		c.Stop()
		c.Wait(t.Context())
		clients.Cache.Close()
		_ = j.Close() // a clock that was set back may keep it from its last checkpoint
	})
	return c
}

var scaleAction = func() *action.Action {
	all := actions.All()
	return all[slices.IndexFunc(all, func(a *action.Action) bool { return a.Name == "scale" })]
}()

func (c *core) call(tool string, args harness.Args) engine.Call {
	c.t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		c.t.Fatal(err)
	}
	return engine.Call{Action: scaleAction, Tool: tool, Raw: raw, Principal: c.principal}
}

// plan gives the arguments that execute a scale.
func (c *core) plan(args harness.Args) harness.Args {
	c.t.Helper()
	got, err := c.Plan(c.t.Context(), c.call("plan_scale", args))
	if err != nil || got.Phrase == "" {
		c.t.Fatalf("no phrase: %v", err)
	}
	return args.With("confirm", got.Phrase).With("reason", "a test")
}

func (c *core) execute(args harness.Args) (*engine.Execution, error) {
	return c.Execute(c.t.Context(), c.call("scale", args))
}

// refuses wants a call to be refused with one of the codes, and nothing to be sent for it.
func (c *core) refuses(args harness.Args, codes ...refusal.Code) {
	c.t.Helper()
	c.proxy.Reset()
	x, err := c.execute(args)
	if !slices.ContainsFunc(codes, func(code refusal.Code) bool { return refusal.Is(err, code) }) {
		c.t.Errorf("%q: %v (%+v), want %q", args["confirm"], err, x, codes)
	}
	if w := c.proxy.Writes(); len(w) != 0 {
		c.t.Errorf("it wrote %+v", w)
	}
}

// executes wants the outcome of a call.
func (c *core) executes(args harness.Args, want plan.Outcome) *engine.Execution {
	c.t.Helper()
	x, err := c.execute(args)
	if err != nil || x.Outcome != want {
		c.t.Fatalf("%+v (%v), want %s", x, err, want)
	}
	return x
}

// TestFault_31_EveryByte changes each byte of a phrase in several ways: all are refused,
// nothing is sent for any of them, and the right one still works.
func TestFault_31_EveryByte(t *testing.T) {
	t.Parallel()
	ns, scale := harness.WebScale(t, cp)
	c := newCore(t, coreOptions{})
	right := c.plan(scale)
	phrase := right["confirm"].(string)
	c.proxy.Reset()
	tried := 0
	try := func(changed string) {
		if changed == phrase {
			return
		}
		tried++
		if _, err := c.execute(right.With("confirm", changed)); !refusal.Is(err, refusal.UnknownPhrase) {
			t.Errorf("%q: %v", changed, err)
		}
	}
	for i := range len(phrase) {
		head, b, tail := phrase[:i], phrase[i], phrase[i+1:]
		try(head + tail)                                // left out
		try(head + string(b) + string(b) + tail)        // twice
		try(head + string(b^0x20) + tail)               // of the other case, or a neighbour
		try(head + string(b^1) + tail)                  // one bit
		try(head + "\u200b" + string(b) + tail)         // a space that is not seen
		try(phrase[:max(i, 1)])                         // cut off
		try(head + string(rune(b)-'a'+'\uff41') + tail) // wide
	}
	for latin, cyrillic := range map[string]string{"a": "а", "c": "с", "e": "е", "o": "о", "p": "р"} {
		try(strings.ReplaceAll(phrase, latin, cyrillic))
	}
	if n := len(c.proxy.Requests(nil)); n != 0 || tried < 6*len(phrase) {
		t.Errorf("%d requests for %d phrases", n, tried)
	}
	mallory := newCore(t, coreOptions{state: c.state, principal: "mallory"})
	mallory.refuses(right, refusal.UnknownPhrase)
	if n := len(mallory.proxy.Requests(nil)); n != 0 {
		t.Errorf("%d requests for another principal", n)
	}
	c.executes(right, plan.Executed)
	if n := harness.Replicas(t, cp, ns, "web"); n != 3 {
		t.Errorf("%d replicas", n)
	}
}

// TestFault_32_Clock sets the wall clock between plan and execution: that never gives a
// plan more time than it was made for.
func TestFault_32_Clock(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		back  time.Duration
		codes []refusal.Code
	}{
		"back an hour, and the time passes":       {time.Hour, []refusal.Code{refusal.Expired, refusal.AuditUnavailable}}, // the last line is in the future
		"back half a minute, and the time passes": {30 * time.Second, []refusal.Code{refusal.Expired}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, scale := harness.WebScale(t, cp)
			w := &wall{}
			c := newCore(t, coreOptions{clock: w, ttl: 2 * time.Second})
			args := c.plan(scale)
			over := time.Now().Add(2 * time.Second)
			w.set(-tc.back)
			lab.Eventually(t, "the plan to expire", func() (bool, error) { return time.Now().After(over), nil })
			c.refuses(args, tc.codes...)
		})
	}
	t.Run("forward an hour, and back", func(t *testing.T) {
		t.Parallel()
		_, scale := harness.WebScale(t, cp)
		w := &wall{}
		c := newCore(t, coreOptions{clock: w})
		args := c.plan(scale)
		w.set(time.Hour)
		c.refuses(args, refusal.Expired)
		w.set(0)
		c.refuses(args, refusal.Expired, refusal.AuditUnavailable)
		restarted := newCore(t, coreOptions{state: c.state, clock: &wall{}})
		restarted.refuses(args, refusal.Expired, refusal.AuditUnavailable) // its last line is in the future
	})
}

// TestFault_32_StepDuringTheClaim sets the clock when the intent is on disk: the write goes
// out once, and its result is the one.
func TestFault_32_StepDuringTheClaim(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, scale := harness.WebScale(t, cp)
			w := &wall{}
			c := newCore(t, coreOptions{clock: w})
			args := c.plan(scale)
			var once sync.Once
			c.proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
				if r.Method == http.MethodGet && strings.HasSuffix(r.Path, "/deployments/web") && journalHas(c.state, `"execute_intent"`) {
					once.Do(func() { w.set(step) }) // at the last look
				}
				return true
			})
			if step < 0 { // the last line on disk is in the future: the outcome waits for a clock that is right
				if _, err := c.execute(args); !refusal.Is(err, refusal.AuditUnavailable) || !strings.Contains(err.Error(), "may have been applied") {
					t.Fatal(err)
				}
				w.set(0)
				lab.Eventually(t, "the outcome to be on record", func() (bool, error) { return journalHas(c.state, `"late":true`), nil })
			}
			first := c.executes(args, plan.Executed)
			again := c.executes(args, plan.Executed)
			if !again.Replayed || string(again.Result) != string(first.Result) {
				t.Errorf("replayed %t with %s, want %s", again.Replayed, again.Result, first.Result)
			}
			scales := slices.DeleteFunc(c.proxy.Writes(), func(r harness.Request) bool { return !isScale(r) })
			if n := harness.Replicas(t, cp, ns, "web"); n != 3 || len(scales) != 1 {
				t.Errorf("%d replicas after %d writes", n, len(scales))
			}
		})
	}
}

// TestFault_32_StepWhileUnknown sets the clock forward while a request whose answer was lost
// is still on its way: no verdict may be given before the time has really passed in which it
// can commit, since it does.
func TestFault_32_StepWhileUnknown(t *testing.T) {
	t.Parallel()
	ns, scale := harness.WebScale(t, cp)
	w := &wall{}
	c := newCore(t, coreOptions{clock: w, verifyWait: 10 * time.Second})
	args := c.plan(scale)
	var body atomic.Pointer[string]
	c.proxy.Before(func(r *harness.Request, _ http.ResponseWriter) bool {
		if isScale(*r) {
			body.Store(&r.Body)
			w.set(time.Hour)
			panic(http.ErrAbortHandler) // and the API server gets it later
		}
		return true
	})
	c.executes(args, plan.Unknown)
	c.executes(args, plan.Unknown)
	var late autoscalingv1.Scale
	if err := json.Unmarshal([]byte(*body.Load()), &late); err != nil {
		t.Fatal(err)
	}
	if _, err := cp.Client.AppsV1().Deployments(ns).UpdateScale(t.Context(), "web", &late, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	var found *engine.Execution
	lab.Eventually(t, "what became of it to be found out", func() (bool, error) {
		var err error
		if found, err = c.execute(args); err != nil {
			t.Fatal(err)
		}
		return found.Outcome != plan.Unknown, nil
	})
	if found.Outcome != plan.Executed {
		t.Errorf("%+v, want %s", found, plan.Executed)
	}
	if n := harness.Replicas(t, cp, ns, "web"); n != 3 {
		t.Errorf("%d replicas", n)
	}
}

// TestFault_49_Memory: a result is replayed for a day, whatever the plan's own time was;
// after that nothing is known, and so nothing is done.
func TestFault_49_Memory(t *testing.T) {
	t.Parallel()
	ns, scale := harness.WebScale(t, cp)
	w := &wall{}
	c := newCore(t, coreOptions{clock: w})
	done, unused := c.plan(scale), c.plan(scale.With("replicas", 4))
	first := c.executes(done, plan.Executed)
	w.set(24 * time.Hour)
	c.refuses(unused, refusal.Expired)
	if again := c.executes(done, plan.Executed); !again.Replayed || string(again.Result) != string(first.Result) {
		t.Errorf("after 24 h: replayed %t with %s, want %s", again.Replayed, again.Result, first.Result)
	}
	w.set(27 * time.Hour)
	c.refuses(harness.Args(scale).With("confirm", "yes").With("reason", "a line of this time"), refusal.UnknownPhrase)
	for _, args := range []harness.Args{done, unused} {
		c.refuses(args, refusal.UnknownPhrase, refusal.RecordMissing)
	}
	restarted := newCore(t, coreOptions{state: c.state, clock: w})
	for _, args := range []harness.Args{done, unused} {
		restarted.refuses(args, refusal.UnknownPhrase, refusal.RecordMissing)
	}
	if n := harness.Replicas(t, cp, ns, "web"); n != 3 {
		t.Errorf("%d replicas", n)
	}
}

// written is when the journal in testdata ends.
var written = time.Date(2026, 11, 30, 9, 39, 0, 0, time.UTC)

// TestFault_49_OldRecord opens a journal that the first version of the format wrote, and
// which is never to be made anew: what it executed is replayed, byte for byte, and what it
// did not has expired.
func TestFault_49_OldRecord(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	old := func(name string) []byte {
		raw, err := os.ReadFile(filepath.Join("testdata", "v1", name))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for _, name := range []string{"keys.json", "audit.jsonl"} {
		if err := os.WriteFile(filepath.Join(state, name), old(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var calls struct{ Executed, Unused harness.Args }
	if err := json.Unmarshal(old("calls.json"), &calls); err != nil {
		t.Fatal(err)
	}
	w := &wall{}
	w.set(time.Until(written.Add(10 * time.Minute)))
	c := newCore(t, coreOptions{state: state, clock: w})
	x := c.executes(calls.Executed, plan.Executed)
	if !x.Replayed || !strings.Contains(string(old("audit.jsonl")), `"result":`+string(x.Result)) {
		t.Errorf("replayed %t with a result that does not stand in the journal: %s", x.Replayed, x.Result)
	}
	c.refuses(calls.Unused, refusal.Expired)
	if n := len(c.proxy.Requests(nil)); n != 0 {
		t.Errorf("%d requests", n)
	}
}
