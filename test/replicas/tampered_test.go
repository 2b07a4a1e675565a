package replicas

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// TestTampered: another user deletes, edits, strips or puts back what is in the ledger. The
// phrase is refused, and nothing is sent for it.
func TestTampered(t *testing.T) {
	ctx := context.Background()
	// again makes a Write anew with what it held.
	again := func(l shared, w *cluster.Write, change func(*cluster.Write)) error {
		if err := objects(l.admin).Delete(ctx, w.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		old := &cluster.Write{TypeMeta: w.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: w.Name}, Spec: w.Spec}
		old.APIVersion, old.Kind = "kubewrite.dev/v1alpha1", "Write"
		status := *w.Status
		change(old)
		made, err := objects(l.admin).Create(ctx, old, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Status = &status
		made.Status.State, made.Status.Serial, made.Status.Claim, made.Status.Result = cluster.Planned, 1, nil, ""
		made.Status.Lines = made.Status.Lines[:1]
		_, err = objects(l.admin).UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	}
	status := func(l shared, w *cluster.Write, change func(*cluster.WriteStatus)) error {
		w.Status.Serial++
		change(w.Status)
		_, err := objects(l.admin).UpdateStatus(ctx, w, metav1.UpdateOptions{})
		return err
	}
	for _, tc := range []struct {
		name     string
		executed bool // before
		tamper   func(shared, *cluster.Write) error
		want     string
	}{
		{"deleted", false, func(l shared, w *cluster.Write) error {
			return objects(l.admin).Delete(ctx, w.Name, metav1.DeleteOptions{})
		}, "unknown_phrase"},
		{"deleted when it was executed", true, func(l shared, w *cluster.Write) error {
			return objects(l.admin).Delete(ctx, w.Name, metav1.DeleteOptions{})
		}, "unknown_phrase"},
		{"made again as it was", false, func(l shared, w *cluster.Write) error { return again(l, w, func(*cluster.Write) {}) }, "record_missing"},
		{"made again as it was before it was executed", true, func(l shared, w *cluster.Write) error { return again(l, w, func(*cluster.Write) {}) }, "record_missing"},
		{"made again with another record", false, func(l shared, w *cluster.Write) error {
			return again(l, w, func(w *cluster.Write) { w.Spec.Record = strings.ReplaceAll(w.Spec.Record, `"web"`, `"db"`) })
		}, "record_missing"},
		{"made again without a status", true, func(l shared, w *cluster.Write) error {
			if err := objects(l.admin).Delete(ctx, w.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
			_, err := objects(l.admin).Create(ctx, &cluster.Write{
				TypeMeta: metav1.TypeMeta{APIVersion: "kubewrite.dev/v1alpha1", Kind: "Write"}, ObjectMeta: metav1.ObjectMeta{Name: w.Name}, Spec: w.Spec,
			}, metav1.CreateOptions{})
			return err
		}, "unknown_phrase"},
		{"the mac is stripped", false, func(l shared, w *cluster.Write) error {
			return status(l, w, func(s *cluster.WriteStatus) { s.MAC = "" })
		}, "record_missing"},
		{"a line is taken off", false, func(l shared, w *cluster.Write) error {
			return status(l, w, func(s *cluster.WriteStatus) { s.Lines = []string{} })
		}, "record_missing"},
		{"it is said to be executed", false, func(l shared, w *cluster.Write) error {
			if err := status(l, w, func(s *cluster.WriteStatus) {
				s.State, s.Claim = cluster.Claimed, &cluster.Claim{ID: "mf3q7x2ad5", Instance: "aaaa", Time: "2026-11-30T12:00:00Z"}
			}); err != nil {
				return err
			}
			w, err := objects(l.admin).Get(ctx, w.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return status(l, w, func(s *cluster.WriteStatus) { s.State, s.Result = cluster.Executed, "{}" })
		}, "record_missing"},
		{"an unknown key", false, func(l shared, w *cluster.Write) error {
			return status(l, w, func(s *cluster.WriteStatus) { s.KeyID = "other" })
		}, "record_missing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLedger(t)
			ns, scale := harness.WebScale(t, cp)
			a, b := l.start(), l.start()
			args := a.Plan("scale", scale)
			wantScales := 0
			if tc.executed {
				if x := harness.Into[harness.Execution](t, a.Must("scale", args)); x.Outcome != plan.Executed {
					t.Fatalf("outcome %q", x.Outcome)
				}
				wantScales = 1
				scaleWeb(t, ns, 2) // so that it would pass
			}
			if err := tc.tamper(l, l.one()); err != nil {
				t.Fatal(err)
			}
			for _, s := range []*harness.Server{a, b} {
				if got := s.Must("scale", args); harness.Code(got) != tc.want {
					t.Errorf("code %q, want %q: %s", harness.Code(got), tc.want, got.Text)
				}
			}
			if n := scales(a, b); n != wantScales {
				t.Errorf("%d scales were sent, want %d", n, wantScales)
			}
		})
	}
}

// TestDeletedUnderWay deletes the record of a plan between its claim and its request. What
// is on its way goes out, nothing more does, and its outcome stands in its replica's file.
func TestDeletedUnderWay(t *testing.T) {
	l := newLedger(t)
	_, scale := harness.WebScale(t, cp)
	s, other := l.start(), l.start()
	args := s.Plan("scale", scale)
	claimed, goOn := hold(t, s.Proxy, true, false, looks(s))
	_, reply, err := s.Send("tools/call", map[string]any{"name": "scale", "arguments": args})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the last look", claimed)
	if err := objects(l.admin).Delete(t.Context(), l.one().Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	goOn()
	got, err := stdio.Parse(<-reply)
	if err != nil {
		t.Fatal(err)
	}
	if harness.Code(got) != "audit_unavailable" {
		t.Errorf("code %q: %s", harness.Code(got), got.Text)
	}
	if got := other.Must("scale", args); harness.Code(got) != "unknown_phrase" {
		t.Errorf("the other: code %q: %s", harness.Code(got), got.Text)
	}
	if w := append(s.Proxy.Requests(toWeb), other.Proxy.Requests(toWeb)...); len(w) != 1 {
		t.Errorf("sent %+v, want one scale", w)
	}
	if e := harness.Events(t, s.State); !slices.Contains(e, journal.EventExecute) {
		t.Errorf("its file has %q, and no outcome", e)
	}
}

// toWeb tells a write to the Deployment.
func toWeb(r harness.Request) bool {
	return r.Mutates() && strings.Contains(r.Path, "/deployments/web")
}

// TestBudgetTampered: nobody gets a new budget by what he does to the object.
func TestBudgetTampered(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		name   string
		tamper func(shared, *cluster.RateBudget) error
		want   string
	}{
		{"emptied", func(l shared, b *cluster.RateBudget) error {
			b.Status.Serial++
			b.Status.Writes = []cluster.Used{}
			_, err := budgets(l.admin).UpdateStatus(ctx, b, metav1.UpdateOptions{})
			return err
		}, "record_missing"},
		{"deleted", func(l shared, b *cluster.RateBudget) error {
			return budgets(l.admin).Delete(ctx, b.Name, metav1.DeleteOptions{})
		}, "rate_limited"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLedger(t)
			ns, scale := harness.WebScale(t, cp)
			a, b := l.start("--writes-per-minute", "1"), l.start("--writes-per-minute", "1")
			if x := harness.Into[harness.Execution](t, a.Do("scale", scale)); x.Outcome != plan.Executed {
				t.Fatalf("outcome %q", x.Outcome)
			}
			scaleWeb(t, ns, 2)
			args := b.Plan("scale", scale)
			budget, err := budgets(l.admin).Get(ctx, cluster.BudgetName, metav1.GetOptions{})
			if err == nil {
				err = tc.tamper(l, budget)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := b.Must("scale", args); harness.Code(got) != tc.want {
				t.Errorf("code %q, want %q: %s", harness.Code(got), tc.want, got.Text)
			}
			if n := scales(b); n != 0 {
				t.Errorf("%d scales were sent", n)
			}
		})
	}
	t.Run("an older one", func(t *testing.T) {
		l := newLedger(t)
		_, scale := harness.WebScale(t, cp)
		s := l.start()
		args := s.Plan("scale", scale)
		old, err := budgets(l.admin).Get(ctx, cluster.BudgetName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.Must("scale", args)
		now, err := budgets(l.admin).Get(ctx, cluster.BudgetName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		now.Status = old.Status
		if _, err := budgets(l.admin).UpdateStatus(ctx, now, metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "no older status") {
			t.Errorf("error %v", err)
		}
	})
}
