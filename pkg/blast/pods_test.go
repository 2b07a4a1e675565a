package blast

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// The prediction of PO-02, PO-04 (all eight cells), PO-05, PO-06, PO-08 and PO-09.
func TestAsk(t *testing.T) {
	budget := func(healthy, desired, allowed int, always bool) plan.Budget {
		return plan.Budget{Namespace: "default", Selector: labels.Everything(), Healthy: healthy, Desired: desired, Allowed: allowed, AlwaysAllow: always, Observed: true}
	}
	one := func(b plan.Budget) []plan.Budget { return []plan.Budget{b} }
	null, err := metav1.LabelSelectorAsSelector(nil)
	if err != nil {
		t.Fatal(err)
	}
	unobserved, nobody, elsewhere := budget(3, 1, 2, false), budget(3, 3, 0, false), budget(3, 3, 0, false)
	unobserved.Observed, nobody.Selector, elsewhere.Namespace = false, null, "other"
	running, broken := plan.Pod{Phase: "Running", Ready: true}, plan.Pod{Phase: "Running"}
	for name, tc := range map[string]struct {
		pod     plan.Pod
		budgets []plan.Budget
		want    answer
	}{
		"PO-04 A, unready":                  {broken, one(budget(2, 2, 0, false)), free},
		"PO-04 A, ready":                    {running, one(budget(2, 2, 0, false)), no},
		"PO-04 A, AlwaysAllow, unready":     {broken, one(budget(2, 2, 0, true)), free},
		"PO-04 A, AlwaysAllow, ready":       {running, one(budget(2, 2, 0, true)), no},
		"PO-04 B, unready":                  {broken, one(budget(1, 2, 0, false)), no},
		"PO-04 B, ready":                    {running, one(budget(1, 2, 0, false)), no},
		"PO-04 B, AlwaysAllow, unready":     {broken, one(budget(1, 2, 0, true)), free},
		"PO-04 B, AlwaysAllow, ready":       {running, one(budget(1, 2, 0, true)), no},
		"PO-05 Pending":                     {plan.Pod{Phase: "Pending"}, one(budget(1, 1, 0, false)), free},
		"PO-05 Succeeded":                   {plan.Pod{Phase: "Succeeded"}, one(budget(1, 1, 0, false)), free},
		"PO-05 Failed":                      {plan.Pod{Phase: "Failed"}, one(budget(1, 1, 0, false)), free},
		"PO-05 terminating":                 {plan.Pod{Phase: "Running", Terminating: true}, one(budget(1, 1, 0, false)), free},
		"PO-05 Pending under two budgets":   {plan.Pod{Phase: "Pending"}, []plan.Budget{budget(1, 1, 0, false), budget(1, 1, 0, false)}, free},
		"PO-06 the only pod may go":         {running, one(budget(1, 0, 1, false)), takes},
		"PO-06 unready, none is needed":     {broken, one(budget(0, 0, 0, false)), no},
		"PO-06 2 of 3":                      {running, one(budget(3, 1, 2, false)), takes},
		"PO-08 bare under maxUnavailable":   {running, one(budget(2, 0, 0, false)), no},
		"PO-08 bare under minAvailable":     {running, one(budget(2, 1, 1, false)), takes},
		"PO-09 a null selector is nobody's": {running, one(nobody), free},
		"another namespace":                 {running, one(elsewhere), free},
		"no budget":                         {running, nil, free},
		"not observed":                      {running, one(unobserved), no},
		"PO-02 two budgets":                 {running, []plan.Budget{budget(3, 2, 1, false), budget(3, 2, 1, false)}, never},
		"negative":                          {running, one(budget(3, 2, -1, false)), no},
	} {
		t.Run(name, func(t *testing.T) {
			tc.pod.Namespace = "default"
			if got := ask(tc.pod, newLedger(tc.budgets, nil).covering(tc.pod)); got != tc.want {
				t.Errorf("answer %d, want %d", got, tc.want)
			}
		})
	}
}

func TestDeleteAndEvict(t *testing.T) {
	job := plan.Owner{Kind: "Job", Name: "mail", UID: "job"}
	full := func(b *plan.Budget) { b.Healthy, b.Desired = 3, 3 }
	one := func(b *plan.Budget) { b.Healthy, b.Desired, b.Allowed = 3, 2, 1 }
	for name, tc := range map[string]struct {
		world      func(*world)
		want       numbers
		wantLines  []string
		wantLosses []string
		wantPerson []string
		wantThen   string
		wantClass  plan.Class
	}{
		"one of three": {
			func(w *world) { w.pods(webSet, 3, 3).gone(plan.Delete, plan.Fail, "web-5f7-0") },
			numbers{plan.Evicts, 1, 3, 3, 1, 34, true},
			[]string{"deletes 1 of 3 pods of deployment default/web"}, nil, nil, "recreated by deployment default/web", plan.Reversible,
		},
		"PO-01 delete under a full budget": {
			func(w *world) { w.pods(webSet, 3, 3).budget("x", full).gone(plan.Delete, plan.Fail, "web-5f7-0") },
			numbers{plan.Evicts, 1, 3, 3, 1, 34, true},
			[]string{"violates pdb/x (3 healthy, 3 needed); delete bypasses it, evict_pod honours it", "deletes 1 of 3 pods of deployment default/web"},
			nil, []string{"deleting default/web-5f7-0 bypasses pdb/x (3 healthy, 3 needed), which evict_pod honours"}, "recreated by deployment default/web", plan.Reversible,
		},
		"delete within its budget": {
			func(w *world) { w.pods(webSet, 3, 3).budget("x", one).gone(plan.Delete, plan.Fail, "web-5f7-0") },
			numbers{plan.Evicts, 1, 3, 3, 1, 34, true},
			[]string{"deletes 1 of 3 pods of deployment default/web"}, nil, nil, "recreated by deployment default/web", plan.Reversible,
		},
		"two deletes sum up": {
			func(w *world) {
				w.pods(webSet, 3, 3).budget("x", one).gone(plan.Delete, plan.Fail, "web-5f7-0", "web-5f7-1")
			},
			numbers{plan.Evicts, 2, 3, 3, 2, 67, true},
			[]string{"violates pdb/x (3 healthy, 2 needed); delete bypasses it, evict_pod honours it", "deletes 2 of 3 pods of deployment default/web"},
			nil, []string{"deleting default/web-5f7-1 bypasses pdb/x (3 healthy, 2 needed), which evict_pod honours"}, "recreated by deployment default/web", plan.Reversible,
		},
		"delete under two budgets, one of which forbids it": {
			func(w *world) {
				w.pods(webSet, 3, 3).budget("x", one).budget("y", full).gone(plan.Delete, plan.Fail, "web-5f7-0")
			},
			numbers{plan.Evicts, 1, 3, 3, 1, 34, true},
			[]string{
				"violates pdb/y (3 healthy, 3 needed); delete bypasses it, evict_pod honours it",
				"covered by two budgets, so never evicted: default/web-5f7-0 (pdb/x, pdb/y)", "deletes 1 of 3 pods of deployment default/web",
			},
			nil, []string{"deleting default/web-5f7-0 bypasses pdb/y (3 healthy, 3 needed), which evict_pod honours"}, "recreated by deployment default/web", plan.Reversible,
		},
		"delete of one that is not ready under a full budget": {
			func(w *world) { w.pods(webSet, 4, 3).budget("x", full).gone(plan.Delete, plan.Fail, "web-5f7-3") },
			numbers{plan.Evicts, 1, 4, 3, 0, 0, true},
			[]string{"deletes 1 of 4 pods of deployment default/web"}, nil, nil, "recreated by deployment default/web", plan.Reversible,
		},
		"the only ready pod": {
			func(w *world) { w.pods(db, 1, 1).gone(plan.Delete, plan.Fail, "db-0") },
			numbers{plan.Evicts, 1, 1, 1, 1, 100, true},
			[]string{theOnlyPod, "deletes 1 of 1 pod of statefulset default/db"}, nil, nil, "recreated by statefulset default/db", plan.Reversible,
		},
		"a singleton that crash-loops": {
			func(w *world) { w.pods(db, 1, 0).gone(plan.Delete, plan.Fail, "db-0") },
			numbers{plan.Evicts, 1, 1, 0, 0, 0, true},
			[]string{"deletes 1 of 1 pod of statefulset default/db"}, nil, nil, "recreated by statefulset default/db", plan.Reversible,
		},
		"PO-12 bare": {
			func(w *world) {
				w.pods(plan.Owner{}, 1, 1, func(_ int, p *plan.Pod) { p.Name = "solo" }).gone(plan.Delete, plan.Fail, "solo")
			},
			numbers{plan.Evicts, 1, 1, 1, 1, 100, false},
			[]string{"1 pod no controller makes again: default/solo", "deletes pod default/solo"},
			[]string{"pod default/solo: no controller makes it again"}, []string{"pod default/solo has no controller: it does not come back"}, "gone", plan.Irreversible,
		},
		"bare and finished": {
			func(w *world) {
				w.pods(plan.Owner{}, 1, 0, func(_ int, p *plan.Pod) { p.Name, p.Phase, p.EmptyDirs = "solo", "Succeeded", []string{"tmp"} }).gone(plan.Delete, plan.Fail, "solo")
			},
			numbers{plan.Evicts, 1, 1, 0, 0, 0, false},
			[]string{"deletes pod default/solo"}, nil, nil, "gone", plan.Reversible,
		},
		"PO-09 evict under the budget of all, and with emptyDir and opt-out": {
			func(w *world) {
				w.pods(webSet, 3, 3, func(_ int, p *plan.Pod) { p.EmptyDirs, p.OptOut = []string{"cache", "shm/Memory"}, true }).
					budget("all", one).gone(plan.Evict, plan.Fail, "web-5f7-0")
			},
			numbers{plan.Evicts, 1, 3, 3, 1, 34, true},
			[]string{
				"emptyDir data is lost: web-5f7-0 (cache, shm/Memory)", "1 pod marked by the owner as not to be disrupted: default/web-5f7-0",
				"evicts 1 of 3 pods of deployment default/web", "pdb/all allows 1 now; 1 of this plan's pods needs it",
			},
			[]string{"emptyDir data of pod default/web-5f7-0: cache, shm/Memory"}, nil, "recreated by deployment default/web", plan.Reversible,
		},
		"of a Job": {
			func(w *world) { w.pods(job, 1, 1).gone(plan.Evict, plan.Fail, "mail-0") },
			numbers{plan.Evicts, 1, 1, 0, 0, 0, true},
			[]string{"evicts 1 of 1 pod of job default/mail", "1 pod of a Job: its work is cut short and may count as a failure: default/mail-0"},
			nil, nil, "recreated by job default/mail while it has retries left", plan.Reversible,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.world(w)
			e := w.compute()
			if diff := cmp.Diff(tc.want, numbersOf(e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLines, e.Blast.Lines); diff != "" {
				t.Errorf("Lines (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLosses, e.Blast.Losses); diff != "" {
				t.Errorf("Losses (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantPerson, e.NeedsPerson); diff != "" {
				t.Errorf("NeedsPerson (-want +got):\n%s", diff)
			}
			if e.Blast.Then != tc.wantThen || e.Class != tc.wantClass {
				t.Errorf("then %q, class %s", e.Blast.Then, e.Class)
			}
		})
	}
}

// A single replaced pod is 100 % and passes the gate; it must not hide 4 of 5 that do
// not.
func TestTheGatedOwnerLeads(t *testing.T) {
	w := newWorld(t).nodes("n1", "n2").pods(db, 1, 1).pods(webSet, 5, 5)
	e := w.cordon("n1").gone(plan.Evict, plan.Wait, "db-0", "web-5f7-0", "web-5f7-1", "web-5f7-2", "web-5f7-3").compute()
	want := plan.Risk{Owner: "Deployment/default/web", UID: "Deployment/default/web", Ready: 5, Peak: 5, Missing: 4, Percent: 80, Replaced: true}
	if diff := cmp.Diff(want, e.Blast.AtRisk); diff != "" {
		t.Errorf("AtRisk (-want +got):\n%s", diff)
	}
	wantLine(t, e, "statefulset default/db: "+theOnlyPod)
	w.in.MaxPercent = 80
	if e = w.compute(); e.Blast.AtRisk.Owner != "StatefulSet/default/db" || e.Blast.AtRisk.UID != "uid-1" {
		t.Errorf("AtRisk %+v", e.Blast.AtRisk)
	}
	wantLine(t, e, "deployment default/web: 4 of 5 ready pods missing at once (80 %)")
}

func TestManyLinesEndInACount(t *testing.T) {
	w := newWorld(t).nodes("n1", "n2")
	var names []string
	for i := range 30 {
		owner := plan.Owner{Kind: "StatefulSet", Name: fmt.Sprintf("s%02d", i), UID: fmt.Sprint(i)}
		w.pods(owner, 1, 1)
		names = append(names, owner.Name+"-0")
	}
	e := w.gone(plan.Evict, plan.Wait, names...).compute()
	if n := len(e.Blast.Lines); n != maxLines || e.Blast.Lines[n-1] != "and 13 lines more" {
		t.Errorf("%d lines, the last: %s", n, e.Blast.Lines[n-1])
	}
	if !slices.ContainsFunc(e.Blast.Lines, func(l string) bool { return strings.HasSuffix(l, theOnlyPod) }) {
		t.Error("outages lead")
	}
}
