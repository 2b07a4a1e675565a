package torture

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// round is one plan, executed once, with at most one fault of a write, and what else goes
// on around it. Seed and number decide all of its choices; when things meet, they do not.
type round struct {
	bench
	fault    fault
	at       int    // which write the fault is for, from 0
	tracking string // what became of the object's managedFields before: "", emptied or lost
	storm    bool   // somebody else writes the status all the time
	nudge    bool   // somebody else writes the status once, behind the fault
	override bool   // somebody else undoes the write at once
	callers  int    // of the same phrase, at once
	guess    bool   // a phrase that was never given is tried before
	reads    float64

	late   sync.WaitGroup // what arrives when nobody waits for it
	mu     sync.Mutex
	rng    *rand.Rand
	plan   string
	writes int
	fired  string // the Audit-ID that the fault was for
	calls  []call
}

// call is one call of the write tool and its answer.
type call struct {
	began, ended time.Time
	answer       answer
}

func newRound(t *testing.T, truth *watcher, ns string, seed uint64, i int) *round {
	rng := rand.New(rand.NewPCG(seed, uint64(i)))
	actions := []string{"scale", "scale", "scale", "rollout_restart", "rollout_restart", "cordon", "uncordon", "delete_pod", "drain", plan.ChangesTool}
	r := &round{rng: rng, bench: newBench(t, truth, ns, fmt.Sprintf("r%d", i), actions[rng.IntN(len(actions))]), fault: pick(rng)}
	several := r.action == "drain" || r.action == plan.ChangesTool
	if several || rng.IntN(5) == 0 {
		r.at = rng.IntN(r.bench.writes)
	}
	workload := r.parts[0].kind == "deployment"
	r.tracking = []string{"", "", "", "emptied", "lost"}[rng.IntN(5)]
	r.storm = rng.IntN(8) == 0
	r.nudge = rng.IntN(2) == 0
	r.override = rng.IntN(12) == 0 && workload && !several
	r.callers = []int{1, 1, 3}[rng.IntN(3)]
	r.guess = rng.IntN(8) == 0
	if rng.IntN(6) == 0 {
		r.reads = 0.1
	}
	if !workload {
		r.tracking, r.storm = "", r.storm && r.parts[0].kind == "node"
	}
	return r
}

func (r *round) String() string {
	return fmt.Sprintf("%s %s, write %d %s, tracking %q, storm %t, nudge %t, override %t, %d callers, reads %.1f",
		r.action, r.parts[0].name, r.at, r.fault.kind, r.tracking, r.storm, r.nudge, r.override, r.callers, r.reads)
}

// random is for choices made while the round goes on.
func (r *round) random() *rand.Rand {
	r.mu.Lock()
	defer r.mu.Unlock()
	return rand.New(rand.NewPCG(r.rng.Uint64(), 0))
}

func (r *round) readFault() bool { return r.reads > 0 && r.random().Float64() < r.reads }

// onWrite counts a write, and says whether the fault is for it.
func (r *round) onWrite(auditID string) (f fault, fires bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.writes
	if r.writes++; n != r.at || r.fired != "" || r.fault.kind == "none" {
		return fault{}, false
	}
	r.fired = auditID
	return r.fault, true
}

func (r *round) faultOf(auditID string) (fault, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault, r.fired == auditID
}

func (r *round) hit() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fired != ""
}

// overrule undoes the write as another writer. That it fails is another outcome of the
// race.
func (r *round) overrule() {
	undo := map[string]string{
		"scale":           `{"spec":{"replicas":9}}`,
		"rollout_restart": `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":null}}}}}`,
	}[r.action]
	_ = patchAs("someone-else", r.ns, r.parts[0].kind, r.parts[0].name, undo)
}

// touch writes the status: the version moves, and nothing that a plan rests on.
func (r *round) touch() {
	stamp := time.Now().Format(time.RFC3339Nano)
	p := r.parts[0]
	switch p.kind {
	case "deployment":
		_ = patchAs("controller", r.ns, p.kind, p.name, fmt.Sprintf(`{"metadata":{"labels":{"touched":"t%d"}}}`, time.Now().UnixNano()))
	case "node":
		_ = patchAs("kubelet", r.ns, p.kind, p.name, fmt.Sprintf(`{"metadata":{"annotations":{"example.com/beat":%q}}}`, stamp))
	}
}

// breakTracking takes away what the API server knows of who set what.
func (r *round) breakTracking(t *testing.T) {
	p := r.parts[0]
	var err error
	switch r.tracking {
	case "emptied":
		err = patchAs("someone-else", r.ns, p.kind, p.name, `{"metadata":{"managedFields":[{}]}}`)
	case "lost": // one write of the same value by /scale, and no later one is tracked
		err = scaleAs("someone-else", r.ns, p.name, 2)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// run plans and executes, and holds every answer against the truth.
func (r *round) run(t *testing.T, n *nemesis, slots []*slot) {
	r.breakTracking(t)
	n.enter(r)
	over := make(chan struct{})
	var beside sync.WaitGroup
	defer func() { close(over); beside.Wait() }()
	beside.Go(func() {
		for nudged := false; ; {
			select {
			case <-over:
				return
			case <-time.After(100 * time.Millisecond):
			}
			if nudge := r.nudge && !nudged && r.hit(); r.storm || nudge {
				r.touch()
				nudged = nudged || nudge
			}
		}
	})
	args := r.planned(t, n, slots)
	if r.guess {
		phrase := args["confirm"].(string)
		got, err := slots[0].call(r.action, args.With("confirm", phrase[:len(phrase)-2]+"a]"))
		if a, decoded := into(got); err == nil && (!decoded || a.Code == "") && !strings.HasSuffix(phrase, "a]") {
			n.violation("I7: a guessed phrase was answered with %s", got.Text)
		}
		if w := n.writes(r.plan); len(w) != 0 && !strings.HasSuffix(phrase, "a]") {
			n.violation("I7: a guessed phrase sent %+v", w)
		}
	}
	var callers sync.WaitGroup
	for c := range r.callers {
		callers.Go(func() { r.ask(t, n, slots, c, args) })
	}
	callers.Wait()
	if !t.Failed() {
		r.ask(t, n, slots, r.random().IntN(len(slots)), args) // a replay
	}
	if r.late.Wait(); !t.Failed() {
		n.conclude(r.check(t, n))
	}
}

// planned plans until there is a phrase: what reads meet is no fault of the plan.
func (r *round) planned(t *testing.T, n *nemesis, slots []*slot) harness.Args {
	end := time.Now().Add(time.Minute)
	for i := r.random().IntN(len(slots)); time.Now().Before(end); i++ {
		got, err := slots[i%len(slots)].call("plan_"+r.action, r.args)
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		n.overhear(got)
		phrase := got.Field("confirm")
		if phrase == "" {
			if code := got.Field("code"); !slices.Contains(passing, code) {
				t.Fatalf("refused (%s): %s", code, got.Text)
			}
			continue
		}
		r.mu.Lock()
		r.plan = got.Field("plan")
		r.mu.Unlock()
		if known, err := n.journal.has("plan", r.plan); err != nil || !known {
			n.violation("I3: plan %s was answered and is not on record (%v)", r.plan, err)
		}
		return r.args.With("confirm", phrase).With("reason", "torture")
	}
	t.Fatal("no plan within a minute")
	return nil
}

// passing are the refusals that a fault of a read explains.
var passing = []string{"unreachable", "dry_run_failed", "facts_missing"}

// patience is how long a caller asks on before the test counts it as lost.
const patience = 5 * time.Minute

// ask calls with the same phrase until there is a result.
func (r *round) ask(t *testing.T, n *nemesis, slots []*slot, at int, args harness.Args) {
	end := time.Now().Add(patience)
	last, calls := "", 0
	for i := at; time.Now().Before(end); i++ {
		began := time.Now()
		got, err := slots[i%len(slots)].call(r.action, args)
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		n.overhear(got)
		last, calls = got.Text, calls+1
		a, ok := into(got)
		if !ok {
			t.Errorf("no answer of a tool: %s", got.Text)
			return
		}
		if a.Result != nil {
			executed, err := n.journal.has("execute", r.plan)
			reconciled, err2 := n.journal.has("reconciled", r.plan)
			if !executed && !reconciled {
				n.violation("I3: the result of plan %s was answered and is not on record (%v, %v)", r.plan, err, err2)
			}
		}
		r.mu.Lock()
		r.calls = append(r.calls, call{began, time.Now(), a})
		r.mu.Unlock()
		switch {
		case a.Result != nil:
			return
		case a.Code != "" && !slices.Contains(passing, a.Code):
			t.Errorf("refused (%s): %s", a.Code, got.Text)
			return
		}
	}
	t.Errorf("no result within %s: %s; the last of %d answers: %s", patience, r, calls, last)
}

func into(got stdio.Tool) (a answer, ok bool) {
	if len(got.Structured) == 0 {
		return a, false
	}
	a, err := decode[answer](got.Structured)
	return a, err == nil
}

// verdict is what a round came to.
type verdict struct {
	action, fault string
	fired         bool
	effects       int // by the watch
	unknown       bool
	outcome       plan.Outcome
	override      bool
	real          bool // the API server itself answered 504
}

// check is the independent checker of one plan.
func (r *round) check(t *testing.T, n *nemesis) verdict {
	r.mu.Lock()
	calls := slices.Clone(r.calls)
	r.mu.Unlock()
	seen := r.effects(t)
	v := verdict{action: r.action, fault: r.fault.kind, fired: r.hit(), override: r.override}
	for _, w := range n.writes(r.plan) {
		v.real = v.real || n.timedOut(w.auditID)
	}

	// I1: at most one effect of each Step, and no request behind one that may have had it.
	for i, e := range seen {
		if v.effects += e; e > 1 {
			n.violation("I1: %d effects on %s: %s", e, r.parts[i].name, r)
		}
	}
	ids, may := map[string]bool{}, map[string]bool{}
	for _, w := range n.writes(r.plan) {
		if ids[w.auditID] {
			n.violation("I1: %s was sent twice", w.auditID)
		}
		if may[w.step()] {
			n.violation("I1: %s was sent behind a request that may have had its effect: %+v", w.auditID, n.writes(r.plan))
		}
		ids[w.auditID] = true
		may[w.step()] = w.code != 409 && w.code != 429
	}

	// I5 and I9: one result, the same bytes to everybody, and to everybody who asks behind it.
	var first *call
	for i, c := range calls {
		if c.answer.Result == nil {
			continue
		}
		if first == nil || c.ended.Before(first.ended) {
			first = &calls[i]
		}
	}
	if first == nil {
		t.Errorf("no result: %s", r)
		return v
	}
	v.outcome = first.answer.Outcome
	for _, c := range calls {
		switch {
		case c.answer.Result != nil && !bytes.Equal(c.answer.Result, first.answer.Result):
			n.violation("I5: plan %s has two results:\n%s\n%s", r.plan, c.answer.Result, first.answer.Result)
		case c.answer.Result == nil && c.began.After(first.ended):
			n.violation("I9: plan %s has a result, and a later call had none: %+v", r.plan, c.answer)
		}
	}

	// I6: the verdict is the truth, of the whole and of each Step.
	res, err := first.answer.resultIn()
	if err != nil {
		t.Fatal(err)
	}
	want := plan.Executed
	if slices.Contains(seen, 0) {
		want = plan.Failed
	}
	switch {
	case res.Outcome == want:
	case res.Outcome == plan.Indeterminate && r.override:
	default:
		n.violation("I6: %s, the truth is %s (effects %v): %s: %s", res.Outcome, want, seen, r, first.answer.Result)
	}
	for _, st := range res.Steps {
		for i, p := range r.parts {
			if r.about(st.Step, p) && st.Outcome != "indeterminate" && (st.Outcome == "applied") != (seen[i] == 1) {
				n.violation("I6: %s is %s, the watch saw %d effects: %s", st.Step, st.Outcome, seen[i], r)
			}
		}
	}
	reconciled, err := n.journal.has("reconciled", r.plan)
	if err != nil {
		t.Error(err)
	}
	v.unknown = reconciled
	return v
}
