package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// TestJudge is the table of RELIABILITY 2.7: what the evidence says of a write whose
// answer was lost.
func TestJudge(t *testing.T) {
	type object struct {
		uid, rv  string
		gen      int64
		replicas int64
		manager  string // of the plan's own, "scale" or "patch"
		deleted  bool
	}
	live := func(o *object) plan.Object {
		if o == nil {
			return nil
		}
		meta := map[string]any{"uid": o.uid, "resourceVersion": o.rv, "generation": o.gen}
		switch o.manager {
		case "scale":
			meta["managedFields"] = []any{map[string]any{"manager": "kube-write-mcp:mf3q7x2ad5", "subresource": "scale"}}
		case "patch":
			meta["managedFields"] = []any{map[string]any{"manager": "kube-write-mcp:mf3q7x2ad5"}}
		case "made":
			meta["annotations"] = map[string]any{plan.PlanAnnotation: "mf3q7x2ad5"}
		case "another plan's":
			meta["managedFields"] = []any{map[string]any{"manager": "kube-write-mcp:aaaaaaaaaa", "subresource": "scale"}}
		}
		if o.deleted {
			meta["deletionTimestamp"] = "2026-11-30T12:00:00Z"
		}
		return plan.Object{"metadata": meta, "spec": map[string]any{"replicas": o.replicas}}
	}
	web := plan.Target{Resource: "deployments", Namespace: "default", Name: "web", UID: "u"}
	three := int32(3)
	scale := plan.Step{Verb: plan.Scale, Target: web, Replicas: &three, Changes: []plan.Change{{Field: "spec.replicas", Old: "2", New: "3"}}}
	node := plan.Step{Verb: plan.Patch, Target: plan.Target{Resource: "nodes", Name: "n", UID: "u"}, Changes: []plan.Change{{Field: "spec.replicas", Old: "2", New: "3"}}}
	evict := plan.Step{Verb: plan.Evict, Target: plan.Target{Resource: "pods", Namespace: "default", Name: "p", UID: "u"}}
	create := plan.Step{Verb: plan.Create, Target: plan.Target{Resource: "cronjobs", Namespace: "default", Name: "c", UID: "u"}, Object: plan.JSON(map[string]any{"kind": "Job", "metadata": map[string]any{"name": "j"}})}
	known := journal.Intent{RV: "100", Since: "100", Gen: 7, AuditID: "kube-write-mcp-mf3q7x2ad5-s1-x1"}
	crashed := journal.Intent{Since: "90", Gen: 7, AuditID: "kube-write-mcp-mf3q7x2ad5-s1-x1"}
	for name, tc := range map[string]struct {
		step   plan.Step
		open   journal.Intent
		live   *object
		rested bool
		want   string // "" is not decided yet
	}{
		"the mark":                                     {scale, known, &object{uid: "u", rv: "101", gen: 8, replicas: 3, manager: "scale"}, false, stepApplied},
		"the mark, and overridden since":               {scale, known, &object{uid: "u", rv: "109", gen: 12, replicas: 9, manager: "scale"}, true, stepApplied},
		"the mark of another subresource":              {scale, known, &object{uid: "u", rv: "100", gen: 7, replicas: 2, manager: "patch"}, true, stepNotApplied},
		"the mark of another plan":                     {scale, known, &object{uid: "u", rv: "100", gen: 7, replicas: 2, manager: "another plan's"}, true, stepNotApplied},
		"as it was, and it may still come":             {scale, known, &object{uid: "u", rv: "100", gen: 7, replicas: 2}, false, ""},
		"as it was, for good":                          {scale, known, &object{uid: "u", rv: "100", gen: 7, replicas: 2}, true, stepNotApplied},
		"moved by a status":                            {scale, known, &object{uid: "u", rv: "101", gen: 7, replicas: 2}, false, stepNotApplied},
		"one change, as planned":                       {scale, known, &object{uid: "u", rv: "101", gen: 8, replicas: 3}, false, stepApplied},
		"one change, another one":                      {scale, known, &object{uid: "u", rv: "101", gen: 8, replicas: 5}, false, stepNotApplied},
		"two changes, back as it was":                  {scale, known, &object{uid: "u", rv: "102", gen: 9, replicas: 2}, true, stepIndeterminate},
		"two changes, as planned":                      {scale, known, &object{uid: "u", rv: "102", gen: 9, replicas: 3}, true, stepIndeterminate},
		"gone":                                         {scale, known, nil, false, stepIndeterminate},
		"another object":                               {scale, known, &object{uid: "v", rv: "200", gen: 1, replicas: 2}, false, stepIndeterminate},
		"crashed: no version proves anything":          {scale, crashed, &object{uid: "u", rv: "999", gen: 7, replicas: 2}, false, ""},
		"crashed, for good":                            {scale, crashed, &object{uid: "u", rv: "999", gen: 7, replicas: 2}, true, stepNotApplied},
		"crashed, one change as planned":               {scale, crashed, &object{uid: "u", rv: "999", gen: 8, replicas: 3}, true, stepApplied},
		"crashed, the mark":                            {scale, crashed, &object{uid: "u", rv: "999", gen: 8, replicas: 3, manager: "scale"}, false, stepApplied},
		"no generation, the mark":                      {node, known, &object{uid: "u", rv: "101", replicas: 3, manager: "patch"}, false, stepApplied},
		"no generation, as planned":                    {node, known, &object{uid: "u", rv: "101", replicas: 3}, false, stepIndeterminate},
		"no generation, not as planned":                {node, known, &object{uid: "u", rv: "101", replicas: 2}, false, stepIndeterminate},
		"no generation, as it was, and may still come": {node, known, &object{uid: "u", rv: "100", replicas: 2}, false, ""},
		"made":                            {create, known, &object{uid: "j", rv: "101", manager: "made"}, false, stepApplied},
		"made by another":                 {create, known, &object{uid: "j", rv: "101"}, false, stepNotApplied},
		"not made, and it may still come": {create, known, nil, false, ""},
		"not made, for good":              {create, known, nil, true, stepNotApplied},
		"evicted":                         {evict, known, nil, false, stepApplied},
		"evicted, and made again":         {evict, known, &object{uid: "v", rv: "200"}, false, stepApplied},
		"terminating":                     {evict, known, &object{uid: "u", rv: "101", deleted: true}, false, stepApplied},
		"there, and it may still come":    {evict, known, &object{uid: "u", rv: "101"}, false, ""},
		"there, for good":                 {evict, known, &object{uid: "u", rv: "101"}, true, stepNotApplied},
	} {
		t.Run(name, func(t *testing.T) {
			got := judge(tc.step, "mf3q7x2ad5", tc.open, live(tc.live), tc.rested)
			if got.outcome != tc.want {
				t.Errorf("%q (%s), want %q", got.outcome, got.detail, tc.want)
			}
			if got.outcome == stepIndeterminate && tc.live != nil && tc.live.uid == "u" && !strings.Contains(got.detail, tc.open.AuditID) {
				t.Errorf("it must say where to search: %s", got.detail)
			}
		})
	}
}

// TestReconcile: the result is made of the outcomes on record and of what was found.
func TestReconcile(t *testing.T) {
	pod := func(name string) plan.Step {
		return plan.Step{Verb: plan.Evict, Target: plan.Target{Resource: "pods", Namespace: "a", Name: name, UID: name}}
	}
	web := plan.Target{Resource: "deployments", Namespace: "a", Name: "web", UID: "u"}
	scale := plan.Step{Verb: plan.Scale, Target: web}
	note := plan.Step{Verb: plan.Patch, Target: web, Optional: true}
	result := func(s plan.Step, outcome string) plan.StepResult {
		return plan.StepResult{Step: s.Key(), Outcome: outcome}
	}
	type outcome struct {
		Outcome plan.Outcome
		Steps   []string
	}
	for name, tc := range map[string]struct {
		steps []plan.Step
		known []plan.StepResult
		open  journal.Intent
		found finding
		want  outcome
	}{
		"applied":                             {[]plan.Step{scale, note}, nil, journal.Intent{Step: 1}, finding{outcome: stepApplied}, outcome{plan.Executed, []string{stepApplied}}},
		"not applied":                         {[]plan.Step{scale, note}, nil, journal.Intent{Step: 1}, finding{outcome: stepNotApplied}, outcome{plan.Failed, []string{stepNotApplied}}},
		"nobody knows":                        {[]plan.Step{scale, note}, nil, journal.Intent{Step: 1}, finding{outcome: stepIndeterminate}, outcome{plan.Indeterminate, []string{stepIndeterminate}}},
		"cut off in a note":                   {[]plan.Step{scale, note}, []plan.StepResult{result(scale, stepApplied)}, journal.Intent{Step: 2}, finding{outcome: stepUnknown}, outcome{plan.Executed, []string{stepApplied, stepUnknown}}},
		"a drain in between":                  {[]plan.Step{pod("a"), pod("b"), pod("c")}, []plan.StepResult{result(pod("a"), stepApplied), result(pod("b"), stepUnknown)}, journal.Intent{Step: 2, Outcome: stepUnknown}, finding{outcome: stepApplied}, outcome{plan.Failed, []string{stepApplied, stepApplied, stepNotSent}}},
		"a drain that died between two steps": {[]plan.Step{pod("a"), pod("b")}, []plan.StepResult{result(pod("a"), stepApplied)}, journal.Intent{Step: 1, Outcome: stepApplied}, finding{outcome: stepUnknown}, outcome{plan.Failed, []string{stepApplied, stepNotSent}}},
		"a drain that was all done":           {[]plan.Step{pod("a"), pod("b")}, []plan.StepResult{result(pod("a"), stepGone), result(pod("b"), stepApplied)}, journal.Intent{Step: 2, Outcome: stepApplied}, finding{outcome: stepUnknown}, outcome{plan.Executed, []string{stepGone, stepApplied}}},
	} {
		t.Run(name, func(t *testing.T) {
			e := &Engine{now: (&clock{wall: time.Now}).now}
			res := e.reconcile(&plan.Plan{ID: "mf3q7x2ad5", Steps: tc.steps}, journal.State{Steps: tc.known, LastIntent: tc.open}, tc.found)
			got := outcome{Outcome: res.Outcome}
			for _, r := range res.Steps {
				got.Steps = append(got.Steps, r.Outcome)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestWithoutHistory: who set a field, and when, decides where the versions are gone.
func TestWithoutHistory(t *testing.T) {
	sent := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	node := func(unschedulable bool, since time.Time) plan.Object {
		o := plan.Object{"metadata": map[string]any{}, "spec": map[string]any{}}
		if unschedulable {
			o["spec"] = map[string]any{"unschedulable": true}
			o["metadata"] = map[string]any{"managedFields": []any{map[string]any{
				"manager": "kubectl", "time": since.Format(time.RFC3339), "fieldsV1": map[string]any{"f:spec": map[string]any{"f:unschedulable": map[string]any{}}},
			}}}
		}
		return o
	}
	step := func(op, was, is string) plan.Step {
		return plan.Step{Verb: plan.Patch, Target: plan.Target{Resource: "nodes", Name: "n"}, Patch: []plan.Op{{Op: op, Path: "/spec/unschedulable"}},
			Changes: []plan.Change{{Field: "spec.unschedulable", Old: was, New: is}}}
	}
	cordon, uncordon := step("add", "false", "true"), step("remove", "true", "false")
	for name, tc := range map[string]struct {
		step plan.Step
		live plan.Object
		want string
	}{
		"cordoned, by whomever":                     {cordon, node(true, sent), stepApplied},
		"not cordoned: it may have been":            {cordon, node(false, sent), stepIndeterminate},
		"uncordoned, by whomever":                   {uncordon, node(false, sent), stepApplied},
		"cordoned since long before":                {uncordon, node(true, sent.Add(-time.Hour)), stepNotApplied},
		"cordoned again since":                      {uncordon, node(true, sent.Add(time.Second)), stepIndeterminate},
		"cordoned about then: clocks are not equal": {uncordon, node(true, sent.Add(-time.Second)), stepIndeterminate},
	} {
		got := withoutHistory(tc.step, journal.Intent{Time: sent}, tc.live, finding{outcome: stepIndeterminate})
		if got.outcome != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// TestNodeOfTheSameName: what a new node of the same name is like says nothing of a write
// to the one before it.
func TestNodeOfTheSameName(t *testing.T) {
	const node = `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","uid":"new","resourceVersion":"9"},"spec":{}}`
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Has("watch") {
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}`, node)
			return
		}
		fmt.Fprint(w, node)
	}))
	defer api.Close()
	k, err := kube.New(&rest.Config{Host: api.URL}, "test", time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{k: k, j: waited{}, cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	uncordon := plan.Step{Verb: plan.Patch, Target: plan.Target{Resource: "nodes", Name: "n", UID: "old"}, Patch: []plan.Op{{Op: "remove", Path: "/spec/unschedulable"}},
		Changes: []plan.Change{{Field: "spec.unschedulable", Old: "true", New: "false"}}}
	got, err := e.evidence(t.Context(), &plan.Plan{ID: "mf3q7x2ad5", Steps: []plan.Step{uncordon}}, journal.Intent{Step: 1, RV: "5", Since: "5"})
	if err != nil || got.outcome != stepIndeterminate {
		t.Errorf("%s (%v), want %s", got, err, stepIndeterminate)
	}
}

// TestHistory: what came and went again is seen in the versions since the request; without
// them, or with one that nobody can attribute, nobody can tell.
func TestHistory(t *testing.T) {
	const id = "mf3q7x2ad5"
	version := func(rv string, gen, replicas int, manager string) string {
		var owner string
		if manager != "" {
			owner = fmt.Sprintf(`,"managedFields":[{"manager":%q,"subresource":"scale","operation":"Update","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}}}]`, manager)
		}
		return fmt.Sprintf(`{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"a","uid":"u","resourceVersion":%q,"generation":%d%s},"spec":{"replicas":%d}}`, rv, gen, owner, replicas)
	}
	known, crashed := journal.Intent{Step: 1, RV: "5", Since: "5", Gen: 1}, journal.Intent{Step: 1, Since: "5", Gen: 1}
	ours := kube.FieldManager + id
	for name, tc := range map[string]struct {
		open     journal.Intent
		versions []string // the last one is the present one
		code     int      // of the watch
		failing  time.Duration
		want     string // "" is not decided yet
	}{
		"the mark, and taken back":           {known, []string{version("6", 2, 3, ours), version("7", 3, 2, "")}, 0, 0, stepApplied},
		"no mark, the first change, back":    {known, []string{version("6", 2, 3, ""), version("7", 3, 2, "")}, 0, 0, stepApplied},
		"another value, and back":            {known, []string{version("6", 2, 9, "x"), version("7", 3, 2, "x")}, 0, 0, stepNotApplied},
		"crashed: the mark, as second":       {crashed, []string{version("6", 2, 9, "x"), version("7", 3, 3, ours), version("8", 4, 2, "x")}, 0, 0, stepApplied},
		"crashed: another value, and back":   {crashed, []string{version("6", 2, 9, "x"), version("7", 3, 2, "x")}, 0, 0, stepNotApplied},
		"crashed: as planned later, no mark": {crashed, []string{version("6", 2, 9, "x"), version("7", 3, 3, ""), version("8", 4, 2, "x")}, 0, 0, stepIndeterminate},
		"the versions are gone":              {known, []string{version("7", 3, 2, "")}, http.StatusGone, 0, stepIndeterminate},
		"where they begin is not on record":  {journal.Intent{Step: 1, RV: "5", Gen: 1}, []string{version("6", 2, 9, "x"), version("7", 3, 2, "x")}, 0, 0, stepIndeterminate},
		"they may not be watched":            {known, []string{version("7", 3, 2, "")}, http.StatusForbidden, 0, stepIndeterminate},
		"no watch is answered":               {known, []string{version("7", 3, 2, "")}, http.StatusBadGateway, 0, ""},
		"none is, for long":                  {known, []string{version("7", 3, 2, "")}, http.StatusBadGateway, watchPatience, stepIndeterminate},
		"none was, but this one":             {known, []string{version("6", 2, 3, ours), version("7", 3, 2, "")}, 0, watchPatience, stepApplied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch watched := r.URL.Query().Has("watch"); {
				case !watched:
					fmt.Fprint(w, tc.versions[len(tc.versions)-1])
				case tc.code != 0:
					w.WriteHeader(tc.code)
				case r.URL.Query().Get("resourceVersion") != "5":
					t.Errorf("it watches from %s", r.URL.Query().Get("resourceVersion"))
				default:
					for _, v := range tc.versions {
						fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`, v)
					}
				}
			}))
			defer api.Close()
			k, err := kube.New(&rest.Config{Host: api.URL}, "test", time.Now, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			e := &Engine{k: k, cfg: Config{Log: slog.New(slog.DiscardHandler)}}
			scale := plan.Step{Verb: plan.Scale, Target: plan.Target{Resource: "deployments", Namespace: "a", Name: "web", UID: "u"},
				Changes: []plan.Change{{Field: "spec.replicas", Old: "2", New: "3"}}}
			o, err := e.readFor(t.Context(), scale)
			if err != nil {
				t.Fatal(err)
			}
			past := newHistory(tc.open)
			if tc.failing > 0 {
				past.since = time.Now().Add(-tc.failing)
			}
			got := e.follow(t.Context(), &past, scale, id, tc.open, o, judge(scale, id, tc.open, o, true))
			if got.outcome != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// TestHistoryComesBack: while the request may still come, a watch that fails for long is not
// given up.
func TestHistoryComesBack(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	t.Cleanup(api.Close)
	k, err := kube.New(&rest.Config{Host: api.URL}, "test", time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{k: k, cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	node := plan.Object{"metadata": map[string]any{"name": "n", "uid": "u", "resourceVersion": "7"}}
	uncordon := plan.Step{Verb: plan.Patch, Target: plan.Target{Resource: "nodes", Name: "n", UID: "u"}, Patch: []plan.Op{{Op: "remove", Path: "/spec/unschedulable"}},
		Changes: []plan.Change{{Field: "spec.unschedulable", Old: "true", New: "false"}}}
	for _, tc := range []struct {
		rested   bool
		wantGone bool
	}{{false, false}, {true, true}} {
		open := journal.Intent{Step: 1, Since: "5"}
		past := newHistory(open)
		past.since = time.Now().Add(-watchPatience)
		e.follow(t.Context(), &past, uncordon, "mf3q7x2ad5", open, node, judge(uncordon, "mf3q7x2ad5", open, node, tc.rested))
		if past.gone != tc.wantGone {
			t.Errorf("rested %t: gone %t", tc.rested, past.gone)
		}
	}
}

// waited is a journal that knows how long nothing has been sent.
type waited struct {
	Journal
	by time.Duration
}

func (w waited) Quiet(string, string) time.Duration { return w.by }

// TestWaited: what processes before this one have waited for a request that may still come
// need not be waited for again.
func TestWaited(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"a","uid":"u","resourceVersion":"5","generation":1},"spec":{"replicas":2}}`)
	}))
	t.Cleanup(api.Close)
	k, err := kube.New(&rest.Config{Host: api.URL}, "test", time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	scale := plan.Step{Verb: plan.Scale, Target: plan.Target{Resource: "deployments", Namespace: "a", Name: "web", UID: "u"},
		Changes: []plan.Change{{Field: "spec.replicas", Old: "2", New: "3"}}}
	for name, tc := range map[string]struct {
		by   time.Duration
		want string // "" is not decided yet
	}{
		"nothing":             {0, ""},
		"all but a minute":    {commitBound - time.Minute, ""},
		"as long as it takes": {commitBound, stepNotApplied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &Engine{k: k, j: waited{by: tc.by}, cfg: Config{Log: slog.New(slog.DiscardHandler)}}
			bound := 15 * time.Second // only a guard
			if tc.want == "" {
				bound = time.Second
			}
			ctx, cancel := context.WithTimeout(context.Background(), bound)
			defer cancel()
			got, err := e.evidence(ctx, &plan.Plan{ID: "mf3q7x2ad5", Steps: []plan.Step{scale}}, journal.Intent{Step: 1, RV: "5", Since: "5", Gen: 1})
			if got.outcome != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("%s (%v), want %q", got, err, tc.want)
			}
		})
	}
}
