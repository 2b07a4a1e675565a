package blast

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

func TestDrain(t *testing.T) {
	three := []string{"web-5f7-0", "web-5f7-1", "web-5f7-2"}
	allows := func(healthy, desired, allowed int) func(*plan.Budget) {
		return func(b *plan.Budget) { b.Healthy, b.Desired, b.Allowed = healthy, desired, allowed }
	}
	named := func(name string) func(int, *plan.Pod) { return func(_ int, p *plan.Pod) { p.Name = name } }
	for name, tc := range map[string]struct {
		world      func(*world)
		want       numbers
		wantLines  []string
		wantLosses []string
		wantPerson []string
		wantThen   string
		wantClass  plan.Class
	}{
		"ND-01 three pods, one allowed": {
			func(w *world) {
				w.nodes("n1", "n2").pods(webSet, 3, 3).budget("x", allows(3, 2, 1)).cordon("n1").gone(plan.Evict, plan.Wait, three...)
			},
			numbers{plan.Evicts, 3, 3, 3, 1, 34, true},
			[]string{
				"evicts 3 of 3 pods on n1; 0 stay", "1 of 2 schedulable nodes left (50 % fewer)",
				"pdb/x allows 1 now; 3 of this plan's pods need it: one at a time, as replacements become ready",
			}, nil, nil, "recreated by deployment default/web", plan.Reversible,
		},
		"ND-01 and no other node": {
			func(w *world) {
				w.nodes("n1", "n2!").pods(webSet, 3, 3).budget("x", allows(3, 2, 1)).cordon("n1").gone(plan.Evict, plan.Wait, three...)
			},
			numbers{plan.Evicts, 3, 3, 3, 1, 34, false},
			[]string{
				"0 of 1 schedulable node left: 3 evicted pods will be Pending until one takes them",
				"cannot finish: pdb/x allows 1 now; 3 of this plan's pods need it, and no node is left for their replacements",
				"evicts 3 of 3 pods on n1; 0 stay",
			}, nil, []string{"no schedulable node is left for the pods of n1"}, "recreated by deployment default/web", plan.Reversible,
		},
		"ND-05 zero budget": {
			func(w *world) {
				w.nodes("n1", "n2").pods(webSet, 2, 2).budget("x", allows(2, 2, 0)).cordon("n1").gone(plan.Evict, plan.Wait, three[:2]...)
			},
			numbers{plan.Evicts, 2, 2, 2, 0, 0, true},
			[]string{
				"can never finish: pdb/x allows 0 (2 healthy, 2 needed); 2 of this plan's pods need it",
				"evicts 2 of 2 pods on n1; 0 stay", "1 of 2 schedulable nodes left (50 % fewer)",
			}, nil, nil, "recreated by deployment default/web", plan.Reversible,
		},
		"a budget that waits for one to become ready": {
			func(w *world) {
				w.nodes("n1", "n2").pods(webSet, 3, 2).budget("x", allows(2, 2, 0)).cordon("n1").gone(plan.Evict, plan.Wait, three...)
			},
			numbers{plan.Evicts, 3, 3, 2, 0, 0, true},
			[]string{
				"pdb/x allows 0 now (2 healthy, 2 needed); 2 of this plan's pods need it and must wait until it allows more",
				"evicts 3 of 3 pods on n1; 0 stay", "1 of 2 schedulable nodes left (50 % fewer)",
			}, nil, nil, "recreated by deployment default/web", plan.Reversible,
		},
		"a budget that nobody has counted yet bounds nothing": {
			func(w *world) {
				w.nodes("n1", "n2").pods(webSet, 3, 3).budget("x", func(b *plan.Budget) { b.Observed = false }).cordon("n1").gone(plan.Evict, plan.Wait, three...)
			},
			numbers{plan.Evicts, 3, 3, 3, 3, 100, true},
			[]string{
				"pdb/x allows 0 now (not counted yet); 3 of this plan's pods need it and must wait until it allows more",
				"evicts 3 of 3 pods on n1; 0 stay", "1 of 2 schedulable nodes left (50 % fewer)",
			}, nil, nil, "recreated by deployment default/web", plan.Reversible,
		},
		"PO-02 two budgets": {
			func(w *world) {
				w.nodes("n1", "n2").pods(webSet, 3, 3).budget("a", allows(3, 2, 1)).budget("b", allows(3, 2, 1)).cordon("n1").gone(plan.Evict, plan.Wait, three[:1]...)
			},
			numbers{plan.Evicts, 1, 3, 3, 0, 0, true},
			[]string{
				"covered by two budgets, so never evicted: default/web-5f7-0 (pdb/a, pdb/b)",
				"evicts 1 of 3 pods on n1; 2 stay", "1 of 2 schedulable nodes left (50 % fewer)",
			}, nil, nil, "recreated by deployment default/web", plan.Reversible,
		},
		"ND-02 and ND-03 all classes, with the options": {
			func(w *world) {
				w.nodes("n1", "n2", "n3").pods(webSet, 2, 2).
					pods(webSet, 1, 1, named("web-dir"), func(_ int, p *plan.Pod) { p.EmptyDirs = []string{"cache"} }).
					pods(webSet, 1, 1, named("web-far"), func(_ int, p *plan.Pod) { p.Node = "n2" }).
					pods(agent, 1, 1).pods(plan.Owner{Kind: "DaemonSet", Name: "gone", UID: "x"}, 1, 1).
					pods(plan.Owner{Kind: "Node", Name: "n1", UID: "n1"}, 1, 1, named("etcd-n1"), func(_ int, p *plan.Pod) { p.Mirror = true }).
					pods(plan.Owner{}, 1, 1, named("bare")).
					pods(plan.Owner{}, 1, 0, named("done"), func(_ int, p *plan.Pod) { p.Phase = "Succeeded" }).
					pods(plan.Owner{Kind: "Job", Name: "mail", UID: "j"}, 1, 1).
					cordon("n1").gone(plan.Evict, plan.Wait, "bare", "done", "gone-0", "mail-0", "web-5f7-0", "web-5f7-1", "web-dir")
			},
			numbers{plan.Evicts, 7, 9, 1, 1, 100, false},
			[]string{
				"2 pods no controller makes again: default/bare, default/gone-0",
				"emptyDir data is lost: web-dir (cache)",
				"evicts 7 of 9 pods on n1; 2 stay",
				"1 pod of a Job: its work is cut short and may count as a failure: default/mail-0",
				"2 of 3 schedulable nodes left (34 % fewer)",
				"deployment default/web: 3 of 4 ready pods missing at once (75 %)",
			},
			[]string{"pod default/bare: no controller makes it again", "pod default/gone-0: no controller makes it again", "emptyDir data of pod default/web-dir: cache"},
			[]string{"pod default/bare has no controller: it does not come back", "pod default/gone-0 has no controller: it does not come back"},
			"recreated by their controllers; 2 pods gone", plan.Irreversible,
		},
		"ND-14 the last schedulable node": {
			func(w *world) {
				w.nodes("n1", "n2!").pods(webSet, 3, 3).cordon("n1").gone(plan.Evict, plan.Wait, three...)
			},
			numbers{plan.Evicts, 3, 3, 3, 3, 100, false},
			[]string{"0 of 1 schedulable node left: 3 evicted pods will be Pending until one takes them", "evicts 3 of 3 pods on n1; 0 stay"},
			nil, []string{"no schedulable node is left for the pods of n1"}, "recreated by deployment default/web", plan.Reversible,
		},
		"cordoned before": {
			func(w *world) { w.nodes("n1!", "n2").pods(webSet, 3, 3).gone(plan.Evict, plan.Wait, three[0]) },
			numbers{plan.Evicts, 1, 3, 3, 1, 34, true},
			[]string{"evicts 1 of 3 pods on n1; 2 stay", "n1 took no new pods before; 1 schedulable node elsewhere"},
			nil, nil, "recreated by deployment default/web", plan.Reversible,
		},
		"cordon": {
			func(w *world) { w.nodes("n1", "n2", "n3").pods(webSet, 3, 3).cordon("n1") },
			numbers{plan.None, 0, 3, 0, 0, 0, false},
			[]string{"evicts none of 3 pods on n1", "2 of 3 schedulable nodes left (34 % fewer)"}, nil, nil, "", plan.Reversible,
		},
		"cordon of the last": {
			func(w *world) { w.nodes("n1", "n2!").pods(webSet, 3, 3).cordon("n1") },
			numbers{plan.None, 0, 3, 0, 0, 0, false},
			[]string{"0 of 1 schedulable node left: new pods will be Pending", "evicts none of 3 pods on n1"},
			nil, []string{"n1 is the last schedulable node"}, "", plan.Reversible,
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

// Budgets of one name in two namespaces are two.
func TestBudgetsOfTwoNamespaces(t *testing.T) {
	one := func(namespace string) func(*plan.Budget) {
		return func(b *plan.Budget) { b.Namespace, b.Healthy, b.Desired, b.Allowed = namespace, 3, 2, 1 }
	}
	w := newWorld(t).nodes("n1", "n2").pods(webSet, 3, 3).pods(db, 3, 3, func(_ int, p *plan.Pod) { p.Namespace = "other" }).
		budget("x", one("default")).budget("x", one("other")).gone(plan.Evict, plan.Wait, "web-5f7-0", "db-0")
	e := w.compute()
	wantLine(t, e, "pdb/x allows 1 now; 1 of this plan's pods in default needs it")
	wantLine(t, e, "pdb/x allows 1 now; 1 of this plan's pods in other needs it")
}
