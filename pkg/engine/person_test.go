package engine

import (
	"crypto/rand"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// TestQuestionState: what a client brings back is good for one plan and one call, as it was
// given.
func TestQuestionState(t *testing.T) {
	keys, err := journal.LoadKeys(filepath.Join(t.TempDir(), "state", "keys.json"), time.Now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{keys: keys}
	asked := func() *plan.Plan {
		return &plan.Plan{ID: "aaaaaaaaaa", Principal: "os:ada", Cluster: "one", KeyID: keys.Current()}
	}
	shown := time.Unix(1_800_000_000, 7)
	state, err := e.seal(asked(), "drain", "because", "nonce", shown)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(state, ".")
	for name, tc := range map[string]struct {
		plan               func(*plan.Plan)
		tool, reason, back string
		want               bool
	}{
		"as it was":         {func(*plan.Plan) {}, "drain", "because", state, true},
		"another plan":      {func(p *plan.Plan) { p.ID = "bbbbbbbbbb" }, "drain", "because", state, false},
		"another principal": {func(p *plan.Plan) { p.Principal = "os:eve" }, "drain", "because", state, false},
		"another cluster":   {func(p *plan.Plan) { p.Cluster = "two" }, "drain", "because", state, false},
		"an unknown key":    {func(p *plan.Plan) { p.KeyID = "k-none" }, "drain", "because", state, false},
		"another tool":      {func(*plan.Plan) {}, "undo", "because", state, false},
		"another reason":    {func(*plan.Plan) {}, "drain", "why not", state, false},
		"another nonce":     {func(*plan.Plan) {}, "drain", "because", "other." + parts[1] + "." + parts[2], false},
		"another time":      {func(*plan.Plan) {}, "drain", "because", parts[0] + ".1." + parts[2], false},
		"no mac":            {func(*plan.Plan) {}, "drain", "because", parts[0] + "." + parts[1] + ".", false},
		"two parts":         {func(*plan.Plan) {}, "drain", "because", parts[0] + "." + parts[1], false},
		"nothing":           {func(*plan.Plan) {}, "drain", "because", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := asked()
			tc.plan(p)
			at, nonce, ok := e.unseal(p, tc.tool, tc.reason, tc.back)
			if ok != tc.want || ok && (!at.Equal(shown) || nonce != "nonce") {
				t.Errorf("good: %t (%s, %s), want %t", ok, at, nonce, tc.want)
			}
		})
	}
}

// TestQuestions: one question for each plan is open, and its answer is taken once.
func TestQuestions(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p, other := &plan.Plan{ID: "aaaaaaaaaa", Expires: now.Add(time.Minute)}, &plan.Plan{ID: "bbbbbbbbbb", Expires: now.Add(time.Hour)}
	var q questions
	put := func(p *plan.Plan, at time.Time, waits bool) string {
		t.Helper()
		nonce, err := q.put(p, rand.Reader, at, waits)
		if err != nil {
			t.Fatal(err)
		}
		return nonce
	}
	old := put(p, now, false)
	n, o := put(p, now, false), put(other, now, false)
	for name, took := range map[string]bool{
		"a question that another one followed": q.take(p.ID, old),
		"the question about another plan":      q.take(p.ID, o),
		"nothing":                              q.take(p.ID, "") || q.take("cccccccccc", ""),
	} {
		if took {
			t.Errorf("%s was answered", name)
		}
	}
	if !q.take(p.ID, n) || q.take(p.ID, n) {
		t.Error("want one answer")
	}
	n = put(p, now, true)
	if _, err := q.put(p, rand.Reader, now, true); err != errAsked {
		t.Errorf("a second call asks at once: %v", err)
	}
	put(other, now.Add(2*time.Minute), false)
	if _, held := q.open[p.ID]; held || q.take(p.ID, n) {
		t.Error("a question outlives its plan")
	}
}
