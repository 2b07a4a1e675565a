package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

const inst = "aaaa"

// newCluster is a Cluster on a file and no API server.
func newCluster(t *testing.T) *Cluster {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	keys, err := journal.LoadKeys(filepath.Join(dir, "keys.json"), time.Now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	file, err := journal.Open(journal.Options{Dir: dir, Keys: keys, Inst: inst})
	if err != nil {
		t.Fatal(err)
	}
	return &Cluster{file: file, keys: keys, inst: inst, now: time.Now, log: slog.New(slog.DiscardHandler), ended: map[*journal.Line]bool{}}
}

const id = "mf3q7x2ad5"

func record(steps int) *plan.Plan {
	p := &plan.Plan{ID: id, Action: "drain", Args: []byte(`{}`), Principal: "os:alice", Expires: time.Now().Add(time.Minute).UTC().Truncate(time.Second)}
	for i := range steps {
		p.Steps = append(p.Steps, plan.Step{Verb: plan.Evict, Target: plan.Target{Resource: "pods", Namespace: "default", Name: fmt.Sprintf("web-%d", i), UID: fmt.Sprintf("uid-%d", i)}})
	}
	return p
}

func planned(p *plan.Plan) *journal.Line {
	return &journal.Line{Event: journal.EventPlan, Plan: p.ID, Cluster: "c", Record: p, Ready: []journal.Capacity{{UID: "u", Ready: 3}}}
}

func intent(step, attempt int) *journal.Line {
	return &journal.Line{
		Event: journal.EventIntent, Plan: id, Cluster: "c", Claim: "claim", Step: step, Attempt: attempt,
		StepKey: fmt.Sprint("evict ", step), AuditID: fmt.Sprintf("a-%d-%d", step, attempt), RV: "7", Gen: 2, Reason: "a <reason>",
	}
}

func outcome(step, attempt int, code string) *journal.Line {
	l := intent(step, attempt)
	l.Event, l.Code, l.HTTP, l.Output, l.Untrusted = journal.EventStep, code, 429, "said", "text"
	return l
}

func ending(event string, o plan.Outcome) *journal.Line {
	return &journal.Line{Event: event, Plan: id, Cluster: "c", Claim: "claim", Code: string(o), Result: &plan.Result{Plan: id, Outcome: o, Detail: "<a & b>"}}
}

func verdict(v plan.Verdict) *journal.Line {
	return &journal.Line{Event: journal.EventVerify, Plan: id, Cluster: "c", Code: string(v), Verification: &plan.Verification{Verdict: v}}
}

// TestFold: what a Write keeps of the lines of a plan gives the state that the file gives.
func TestFold(t *testing.T) {
	event := func(e string) *journal.Line { return &journal.Line{Event: e, Plan: id, Cluster: "c"} }
	for _, tc := range []struct {
		name  string
		lines []*journal.Line
		want  State
	}{
		{"planned", nil, Planned},
		{"expired", []*journal.Line{event(journal.EventExpired)}, Expired},
		{"stale", []*journal.Line{event(journal.EventStale), event(journal.EventExpired)}, Stale},
		{"approved", []*journal.Line{event(journal.EventApproved)}, Planned},
		{"approved and claimed", []*journal.Line{event(journal.EventApproved), intent(1, 1)}, Claimed},
		{"claimed", []*journal.Line{intent(1, 1)}, Claimed},
		{"claimed, and stale for another", []*journal.Line{intent(1, 1), event(journal.EventStale)}, Claimed},
		{"one step through", []*journal.Line{intent(1, 1), outcome(1, 1, "applied")}, Claimed},
		{"an attempt again", []*journal.Line{intent(1, 1), outcome(1, 1, "blocked"), intent(2, 1), outcome(2, 1, "applied"), intent(1, 2)}, Claimed},
		{"many attempts", []*journal.Line{intent(1, 1), outcome(1, 1, "blocked"), intent(1, 2), outcome(1, 2, "blocked"), intent(2, 1), intent(1, 3), outcome(1, 3, "applied")}, Claimed},
		{"begun with the second step", []*journal.Line{intent(2, 1), outcome(2, 1, "blocked"), intent(1, 1), intent(2, 2)}, Claimed},
		{"unknown", []*journal.Line{intent(1, 1), outcome(1, 1, "unknown"), event(journal.EventUnknown)}, Unknown},
		{"executed", []*journal.Line{intent(1, 1), outcome(1, 1, "applied"), ending(journal.EventExecute, plan.Executed)}, Executed},
		{"failed", []*journal.Line{intent(1, 1), outcome(1, 1, "not applied"), ending(journal.EventExecute, plan.Failed)}, Failed},
		{"reconciled", []*journal.Line{intent(1, 1), event(journal.EventUnknown), ending(journal.EventReconciled, plan.Indeterminate)}, Indeterminate},
		{"a late outcome", []*journal.Line{intent(1, 1), ending(journal.EventExecute, plan.Executed), outcome(1, 1, "applied"), event(journal.EventUnknown)}, Executed},
		{"verdicts", []*journal.Line{intent(1, 1), ending(journal.EventExecute, plan.Executed), verdict(plan.Blocked), verdict(plan.Verified)}, Executed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, p := newCluster(t), record(2)
			now := time.Now()
			first, err := journal.Keep(planned(p), inst, now)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := journal.Encode(p)
			if err != nil {
				t.Fatal(err)
			}
			w := newWrite(p, string(raw), []string{string(first)})
			for _, l := range append([]*journal.Line{planned(p)}, tc.lines...) {
				if err := c.file.Append(func(*journal.Ledger) ([]*journal.Line, error) { return []*journal.Line{l}, nil }); err != nil {
					t.Fatal(err)
				}
				if l.Event != journal.EventPlan {
					if _, err := c.advance(w, l, now); err != nil {
						t.Fatal(err)
					}
				}
			}
			var want journal.State
			if err := c.file.View(func(l *journal.Ledger) error { want = l.Plan(id); return nil }); err != nil {
				t.Fatal(err)
			}
			v := c.look(context.Background())
			v.writes[id] = w
			got := journal.NewLedger(v).Plan(id)
			if v.err != nil {
				t.Fatal(v.err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateApproxTime(time.Minute)); diff != "" {
				t.Errorf("state by the file and by the Write (-want +got):\n%s", diff)
			}
			if w.Status.State != tc.want {
				t.Errorf("state %s, want %s", w.Status.State, tc.want)
			}
			res, err := c.file.Result(id)
			if err != nil || w.Status.Result != string(res) {
				t.Errorf("result %q, want %q (%v)", w.Status.Result, res, err)
			}
		})
	}
}

// TestLargestFits: a plan of as many Steps as there may be, each tried many times, fits into
// an object, and the lines into what the API server lets them be.
func TestLargestFits(t *testing.T) {
	c, p := newCluster(t), record(plan.MaxSteps)
	w := newWrite(p, "{}", []string{"{}"})
	for attempt := range 2 {
		for step := range plan.MaxSteps {
			for _, l := range []*journal.Line{intent(step+1, attempt+1), outcome(step+1, attempt+1, "blocked")} {
				if _, err := c.advance(w, l, time.Now()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	raw, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(w.Status.Lines); n > maxLines || len(raw) > 1<<20 {
		t.Errorf("%d lines and %d bytes, at most %d and 1 MiB", n, len(raw), maxLines)
	}
}

func TestBudget(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	var st RateBudgetStatus
	add := func(at time.Time, l *journal.Line) { st.used([]*journal.Line{l}, at) }
	ready := func(n int) *journal.Line {
		return &journal.Line{Event: journal.EventRefused, Cluster: "c", Ready: []journal.Capacity{{UID: "u", Ready: n}}}
	}
	add(ago(11*time.Minute), ready(9))
	add(ago(6*time.Minute), ready(4))
	add(ago(4*time.Minute), ready(3))
	add(ago(2*time.Minute), ready(3))
	add(ago(30*time.Second), intent(1, 1))
	add(ago(20*time.Second), intent(1, 2)) // of the same plan
	add(ago(10*time.Second), &journal.Line{Event: journal.EventPlan, Plan: "b", Cluster: "other"})
	add(ago(5*time.Second), &journal.Line{Event: journal.EventReplayed, Plan: "b", Cluster: "c"})
	st.forget(now)
	for name, tc := range map[string]struct{ got, want int }{
		"writes":                    {len(times(st.Writes, "c", ago(time.Minute), "")), 1},
		"writes but one's own":      {len(times(st.Writes, "c", ago(time.Minute), id)), 0},
		"writes of another cluster": {len(times(st.Writes, "other", ago(time.Minute), "")), 0},
		"calls":                     {len(times(st.Calls, "c", ago(5*time.Minute), "")), 2},
		"calls of another cluster":  {len(times(st.Calls, "other", ago(time.Minute), "")), 1},
		"what is left":              {len(st.Seen), 2},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %d, want %d", name, tc.got, tc.want)
		}
	}
	for _, tc := range []struct {
		since time.Duration
		want  int
		at    time.Duration
	}{{10 * time.Minute, 4, 6 * time.Minute}, {5 * time.Minute, 3, 2 * time.Minute}, {time.Minute, 0, 0}} {
		n, at := st.peak("u", ago(tc.since))
		if n != tc.want || n > 0 && at.UnixMilli() != ago(tc.at).UnixMilli() {
			t.Errorf("peak of the last %s: %d at %s, want %d at %s", tc.since, n, at, tc.want, ago(tc.at))
		}
	}
}

// TestSigned: each field that is signed changes the mac, and so does the object's UID.
func TestSigned(t *testing.T) {
	c := newCluster(t)
	make := func() *Write {
		w := newWrite(record(1), "{}", []string{"a", "b"})
		w.Spec.KeyID, w.Status.KeyID, w.UID = c.keys.Current(), c.keys.Current(), "uid"
		w.Status.State, w.Status.Serial, w.Status.Claim, w.Status.Result = Executed, 4, &Claim{"c", "aaaa", "t"}, "{}"
		return w
	}
	both := func(w *Write) string {
		t.Helper()
		spec, err := c.specMAC(w)
		if err != nil {
			t.Fatal(err)
		}
		status, err := c.statusMAC(w)
		if err != nil {
			t.Fatal(err)
		}
		return spec + status
	}
	first := both(make())
	if both(make()) != first {
		t.Fatal("the same Write has another mac")
	}
	for name, change := range map[string]func(*Write){
		"name": func(w *Write) { w.Name = "aaaaaaaaaa" }, "uid": func(w *Write) { w.UID = "other" },
		"action": func(w *Write) { w.Spec.Action = "scale" }, "target": func(w *Write) { w.Spec.Target = "x" }, "sentence": func(w *Write) { w.Spec.Sentence = "x" },
		"principal": func(w *Write) { w.Spec.Principal = "os:bob" }, "expires": func(w *Write) { w.Spec.Expires = "x" }, "record": func(w *Write) { w.Spec.Record = "x" },
		"state": func(w *Write) { w.Status.State = Failed }, "serial": func(w *Write) { w.Status.Serial++ }, "claim": func(w *Write) { w.Status.Claim.ID = "x" },
		"replica": func(w *Write) { w.Status.Claim.Instance = "x" }, "verdict": func(w *Write) { w.Status.Verdict = "x" }, "a line": func(w *Write) { w.Status.Lines[1] = "x" },
		"lines joined": func(w *Write) { w.Status.Lines = []string{"a,b"} }, "verification": func(w *Write) { w.Status.Verification = "x" }, "result": func(w *Write) { w.Status.Result = "x" },
	} {
		w := make()
		change(w)
		if both(w) == first {
			t.Errorf("%s is not signed", name)
		}
	}
	w := make()
	w.Labels, w.ResourceVersion, w.Annotations = map[string]string{"a": "b"}, "9", map[string]string{"a": "b"}
	if both(w) != first {
		t.Error("what is the API server's is signed")
	}
}

// TestCopies: a copy shares nothing.
func TestCopies(t *testing.T) {
	w := newWrite(record(1), "{}", []string{"a"})
	w.Status.Claim = &Claim{ID: "a"}
	b := &RateBudget{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Status: &RateBudgetStatus{Writes: []Used{{Plan: "a"}}, Calls: []Used{{Plan: "a"}}, Seen: []Seen{{UID: "a"}}}}
	wc, bc := w.copy(), b.copy()
	if diff := cmp.Diff(w, wc) + cmp.Diff(b, bc); diff != "" {
		t.Fatal(diff)
	}
	wc.Status.Lines[0], wc.Status.Claim.ID, wc.Labels["x"] = "b", "b", "y"
	bc.Status.Writes[0].Plan, bc.Status.Calls[0].Plan, bc.Status.Seen[0].UID = "b", "b", "b"
	if w.Status.Lines[0] != "a" || w.Status.Claim.ID != "a" || w.Labels["x"] != "" || b.Status.Writes[0].Plan+b.Status.Calls[0].Plan+b.Status.Seen[0].UID != "aaa" {
		t.Errorf("%+v %+v", w, b)
	}
}
