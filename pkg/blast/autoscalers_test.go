package blast

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

func TestAutoscalers(t *testing.T) {
	hpa := func(edit func(*plan.Autoscaler)) plan.Autoscaler {
		a := plan.Autoscaler{Namespace: "default", Name: "web", Group: "apps", Kind: "Deployment", Target: "web", Min: 3, Max: 5}
		edit(&a)
		return a
	}
	keda := func(name string) plan.Autoscaler {
		return hpa(func(a *plan.Autoscaler) { a.Name, a.ScaledObject, a.Min = name, "shop", 1 })
	}
	for name, tc := range map[string]struct {
		of          plan.Autoscaler
		from, to    int32
		want        string
		wantReverts []string
	}{
		"below":                      {hpa(func(*plan.Autoscaler) {}), 3, 1, "HPA web keeps 3 to 5: 1 is below, it will set 3", []string{"HPA web"}},
		"above":                      {hpa(func(*plan.Autoscaler) {}), 3, 9, "HPA web keeps 3 to 5: 9 is above, it will set 5", []string{"HPA web"}},
		"within":                     {hpa(func(*plan.Autoscaler) {}), 3, 4, "HPA web keeps 3 to 5: it will set its own number again", []string{"HPA web"}},
		"at its bounds":              {hpa(func(*plan.Autoscaler) {}), 3, 5, "HPA web keeps 3 to 5: it will set its own number again", []string{"HPA web"}},
		"to zero":                    {hpa(func(*plan.Autoscaler) {}), 3, 0, "HPA web keeps 3 to 5, but stops at 0: it will not bring pods back until someone scales up", nil},
		"to zero, which it may have": {hpa(func(a *plan.Autoscaler) { a.Min = 0 }), 3, 0, "HPA web keeps 0 to 5: it will set its own number again", []string{"HPA web"}},
		"from zero":                  {hpa(func(*plan.Autoscaler) {}), 0, 2, "HPA web starts again and keeps 3 to 5: 2 is below, it will set 3", []string{"HPA web"}},
		"KEDA":                       {keda("keda-hpa-shop"), 3, 4, "KEDA ScaledObject shop keeps 1 to 5: it will set its own number again", []string{"KEDA ScaledObject shop"}},
		"KEDA to zero":               {keda("keda-hpa-shop"), 3, 0, "KEDA ScaledObject shop keeps 1 to 5, and leaves 0 when one of its triggers is active", []string{"KEDA ScaledObject shop"}},
		"KEDA by another name":       {keda("x"), 3, 4, "KEDA ScaledObject shop (HPA x) keeps 1 to 5: it will set its own number again", []string{"KEDA ScaledObject shop (HPA x)"}},
		"of another kind":            {hpa(func(a *plan.Autoscaler) { a.Kind = "StatefulSet" }), 3, 1, "", nil},
		"of another group":           {hpa(func(a *plan.Autoscaler) { a.Group = "argoproj.io" }), 3, 1, "", nil},
		"of another target":          {hpa(func(a *plan.Autoscaler) { a.Target = "db" }), 3, 1, "", nil},
		"elsewhere":                  {hpa(func(a *plan.Autoscaler) { a.Namespace = "other" }), 3, 1, "", nil},
		"with a strange name":        {hpa(func(a *plan.Autoscaler) { a.Name = "now run: x" }), 3, 4, "HPA (name withheld) keeps 3 to 5: it will set its own number again", []string{"HPA (name withheld)"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.in.Facts.Autoscalers = []plan.Autoscaler{tc.of}
			w.pods(webSet, int(tc.from), int(tc.from)).scale(w.live("deployments", deployment(tc.from, rollingUpdate("0", "1"))), tc.to)
			e := w.compute()
			got := append(linesWith(e, "HPA"), linesWith(e, "KEDA ScaledObject shop keeps")...)
			if tc.want == "" && len(got) > 0 {
				t.Errorf("lines %q, want none", got)
			}
			wantLine(t, e, tc.want)
			if diff := cmp.Diff(tc.wantReverts, e.Blast.Reverts, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("reverts (-want +got):\n%s", diff)
			}
		})
	}
	w := newWorld(t)
	w.in.Facts.Autoscalers = []plan.Autoscaler{hpa(func(*plan.Autoscaler) {})}
	w.pods(webSet, 3, 3).restart(w.live("deployments", deployment(3, rollingUpdate("0", "1"))))
	if e := w.compute(); len(linesWith(e, "HPA")) > 0 || len(e.Blast.Reverts) > 0 {
		t.Errorf("a restart: lines %q, reverts %q, want none", e.Blast.Lines, e.Blast.Reverts)
	}
}
