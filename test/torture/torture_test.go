package torture

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

var (
	faultCount = flag.Int("faults", 60, "how many faults the torture injects, at least")
	unknowns   = flag.Int("unknown", 30, "how many of its outcomes have to have been unknown, at least")
)

// processes share the folder.
const processes = 3

// The bounds of what a process may hold (I10).
const (
	mostMemory = 512 << 20
	mostFiles  = 256
)

// TestTorture runs seeded faults against several processes that share one folder and are
// killed at random, and checks I1 to I10 of every plan, from outside: by the watch of every
// version of every target, by what went over the wire, by all answers, and by the journal.
// A process that found a bad line when it was started again would refuse to write; the whole
// journal is verified at the end, and after every death by TestKilled (I4).
func TestTorture(t *testing.T) {
	t.Parallel()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	t.Logf("seed %d", *seed)
	state := filepath.Join(t.TempDir(), "state")
	truth := newWatcher(t)
	n := &nemesis{journal: &tail{path: filepath.Join(state, "audit.jsonl"), seen: map[[2]string]bool{}}, rounds: map[string]*round{}, wire: map[string][]sent{}, real: map[string]bool{}}
	var slots []*slot
	for range processes {
		s := newSlot(t, bin, state)
		n.guard(s)
		slots = append(slots, s)
	}
	var spaces []string
	for range 4 {
		spaces = append(spaces, cp.Namespace(t))
	}
	stop := make(chan struct{})
	killer := make(chan struct{})
	go func() {
		defer close(killer)
		rng := rand.New(rand.NewPCG(*seed, 1<<63))
		for next := time.Now(); ; {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
			}
			for _, s := range slots {
				s.measure()
			}
			if time.Now().After(next) {
				next = time.Now().Add(time.Duration(3+rng.IntN(8)) * time.Second)
				slots[rng.IntN(len(slots))].kill()
			}
		}
	}()
	for done := 0; !t.Failed() && (n.fired() < *faultCount || n.unknown() < *unknowns); {
		missing := max(*faultCount-n.fired(), *unknowns-n.unknown())
		wave := missing + missing/4 + 10 // some meet no write, some are decided at once
		t.Run("wave", func(t *testing.T) {
			for i := range wave {
				i += done
				t.Run(fmt.Sprint(i), func(t *testing.T) {
					t.Parallel()
					newRound(t, truth, spaces[i%len(spaces)], *seed, i).run(t, n, slots)
				})
			}
		})
		done += wave
	}
	close(stop)
	<-killer
	killed := map[int]bool{}
	for _, s := range slots {
		if err := s.end(false); err != nil {
			t.Errorf("a process did not end well: %v", err)
		}
		for pid := range s.killed {
			killed[pid] = true
		}
	}
	n.audit(t, state, slots, killed)
	indeterminate := n.count(func(v verdict) bool { return v.outcome == plan.Indeterminate })
	if u := n.unknown(); u >= 200 && indeterminate*200 > u { // the rest of a small run says nothing
		n.violation("I6: %d of %d unknown outcomes are indeterminate, more than 0.5 %%", indeterminate, u)
	}
	n.print(*seed, time.Since(began), slots, len(killed))
	for _, w := range n.wrong {
		t.Error(w)
	}
}

// overhear listens for what nobody may be told.
func (n *nemesis) overhear(got stdio.Tool) {
	n.mu.Lock()
	n.answers++
	n.mu.Unlock()
	if strings.Contains(got.Text, canary) || bytes.Contains(got.Structured, []byte(canary)) {
		n.violation("I8: an answer tells a secret: %s", got.Text)
	}
}

func (n *nemesis) conclude(v verdict) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.verdicts = append(n.verdicts, v)
}

func (n *nemesis) count(of func(verdict) bool) (c int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, v := range n.verdicts {
		if of(v) {
			c++
		}
	}
	return c
}

func (n *nemesis) fired() int   { return n.count(func(v verdict) bool { return v.fired }) }
func (n *nemesis) unknown() int { return n.count(func(v verdict) bool { return v.unknown }) }

var ofProcess = regexp.MustCompile(`process ([a-z2-7]{4})`)

// audit checks what can be checked when all is over.
func (n *nemesis) audit(t *testing.T, state string, slots []*slot, killed map[int]bool) {
	verified, counted, err := audited(state) // I4
	if err != nil {
		n.violation("I4: %v", err)
		return
	}
	if len(verified.Unsettled) > 0 {
		n.violation("I3: plans without a result: %q", verified.Unsettled)
	}
	files, err := filepath.Glob(filepath.Join(state, "audit*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	pids := map[string]int{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte(canary)) {
			n.violation("I8: %s tells a secret", f)
		}
		for _, line := range splitLines(raw) {
			l, err := decode[struct {
				Inst string `json:"inst"`
				PID  int    `json:"pid"`
			}](line)
			if err != nil {
				t.Fatal(err)
			}
			pids[l.Inst] = l.PID
		}
	}
	for _, f := range counted.Faults { // a call that its process's death cut short has no outcome
		if m := ofProcess.FindStringSubmatch(f); m == nil || !killed[pids[m[1]]] {
			n.violation("I3: %s", f)
		}
	}
	for plan, list := range n.wire { // I7
		if executed, _ := n.journal.has("execute_intent", plan); !executed {
			n.violation("I7: %+v was sent for plan %s, which was never claimed", list, plan)
		}
	}
	for _, s := range slots {
		if raw, err := os.ReadFile(s.stderr.Name()); err != nil || bytes.Contains(raw, []byte(canary)) {
			n.violation("I8: the log tells a secret (%v)", err)
		}
		if s.rss > mostMemory || s.files > mostFiles {
			n.violation("I10: a process held %d MiB and %d files", s.rss>>20, s.files)
		}
	}
	n.lines = verified.Lines
}

// print prints what happened, by fault.
func (n *nemesis) print(seed uint64, took time.Duration, slots []*slot, killed int) {
	type row struct{ rounds, fired, effects, unknown, applied, not, indeterminate int }
	rows, total := map[string]*row{}, &row{}
	for _, v := range n.verdicts {
		if rows[v.fault] == nil {
			rows[v.fault] = &row{}
		}
		for _, r := range []*row{rows[v.fault], total} {
			r.rounds++
			r.effects += v.effects
			if v.fired {
				r.fired++
			}
			if !v.unknown {
				continue
			}
			r.unknown++
			switch v.outcome {
			case plan.Executed:
				r.applied++
			case plan.Indeterminate:
				r.indeterminate++
			default:
				r.not++
			}
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "fault\tplans\tinjected\teffects\tunknown\tapplied\tnot applied\tindeterminate\t")
	line := func(kind string, r *row) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", kind, r.rounds, r.fired, r.effects, r.unknown, r.applied, r.not, r.indeterminate)
	}
	for _, f := range faults {
		if r := rows[f.kind]; r != nil {
			line(f.kind, r)
		}
	}
	line("all", total)
	w.Flush()
	broken := func(invariants ...string) (c int) {
		for _, v := range n.wrong {
			if slices.ContainsFunc(invariants, func(i string) bool { return strings.HasPrefix(v, i+":") }) {
				c++
			}
		}
		return c
	}
	undone := n.count(func(v verdict) bool { return v.outcome == plan.Indeterminate && v.override })
	var memory int64
	files := 0
	for _, s := range slots {
		memory, files = max(memory, s.rss), max(files, s.files)
	}
	timedOut := n.count(func(v verdict) bool { return v.real })
	committed := n.count(func(v verdict) bool { return v.real && v.effects > 0 })
	fmt.Printf("%d answers, %d journal lines, %d processes killed\n", n.answers, n.lines, killed)
	fmt.Printf("%d plans met a 504 of the API server itself, %d of them with an effect; %d writes came late and took effect; of the indeterminate %d were undone by another writer at once\n",
		timedOut, committed, n.late, undone)
	fmt.Printf("a process held at most %d MiB and %d files\n", memory>>20, files)
	fmt.Printf("double effects %d, wrong verdicts %d, lost lines %d, other violations %d\n",
		broken("I1"), broken("I6"), broken("I2", "I3", "I4"), broken("I5", "I7", "I8", "I9", "I10"))
	fmt.Printf("seed %d, %s\n", seed, took.Round(time.Second))
}

func decode[T any](raw []byte) (v T, err error) {
	err = json.Unmarshal(raw, &v)
	return v, err
}

// scaleAs scales a Deployment as another writer does.
func scaleAs(manager, ns, name string, replicas int32) error {
	_, err := cp.Client.AppsV1().Deployments(ns).UpdateScale(ctx, name, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas},
	}, metav1.UpdateOptions{FieldManager: manager})
	return err
}
