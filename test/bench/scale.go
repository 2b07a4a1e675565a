package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/test/bench/report"
)

// plan compares plan_scale with the calls that it makes, and with the two calls that
// nobody could do without.
func (b *bench) plan(ctx context.Context) error {
	r, err := b.cluster(ctx)
	if err != nil {
		return err
	}
	s, err := b.server(r, "plan")
	if err != nil {
		return err
	}
	defer s.Kill()
	ours := func() error { _, err := planned(s, "scale", scaleTo("web", 3)); return err }
	k := calls{ctx, r.bare}
	if err := ours(); err != nil { // the first one also asks for the cluster's identity and who we are
		return err
	}
	size, err := b.lineSize("plan", ours)
	if err != nil {
		return err
	}
	sent, path, err := r.compared(ctx, ours, func() error { return k.plan("web") })
	if err != nil {
		return err
	}
	d, err := b.disk("plan.lines", size)
	if err != nil {
		return err
	}
	defer d.f.Close()
	ms, err := b.turns(ctx,
		side{run: ours},
		side{run: func() error {
			if err := k.plan("web"); err != nil {
				return err
			}
			return d.write()
		}},
		side{run: func() error {
			w, err := k.get("web")
			if err != nil {
				return err
			}
			return k.scale(w, "", 3, metav1.DryRunAll)
		}},
	)
	if err != nil {
		return err
	}
	const whole = "its API calls by bare client-go, in the same order and parallel, and one write + fdatasync"
	row := compare("plan_scale, p50", whole, ms[0], ms[1], 0.5, report.AtMost(1.15, "×"))
	row.Note = fmt.Sprintf("both send %s; %d bytes go to the disk", strings.Join(sent, ", "), size)
	b.add(row)
	b.add(compare("plan_scale, p90", whole, ms[0], ms[1], 0.9, report.AtMost(1.15, "×")))
	b.add(compare("plan_scale", "bare client-go: GET, then the dry run of the scale", ms[0], ms[2], 0.5, report.AtMost(1.5, "×")))
	b.add(report.Row{
		What: "API calls of plan_scale one after another", Ours: float64(len(path)), Value: float64(len(path)),
		Bar: report.AtMost(3, ""), Note: "on the critical path are " + strings.Join(path, ", "), Exact: true,
	})
	row = report.Row{What: "plan_scale, times faster", Baseline: "kubectl get -o json, then kubectl scale --dry-run=server", Bar: report.AtLeast(25, "×")}
	if b.kubectl == "" {
		b.unmeasured(b.kubectlWhy, row)
		return nil
	}
	// Apart from the others: what comes after two large programs finds the caches cold.
	if ms, err = b.turns(ctx, side{run: ours}, side{run: b.kubectlDryRun(r)}); err != nil {
		return err
	}
	b.add(faster(row.What, row.Baseline, ms[0], ms[1], row.Bar))
	return nil
}

// compared wants both sides to send the same, and gives what that is, and what of ours
// was sent one after another.
func (r *rig) compared(ctx context.Context, ours, base func() error) (sent, path []string, err error) {
	o, err := r.sent(ctx, ourAgent, ours)
	if err != nil {
		return nil, nil, err
	}
	c, err := r.sent(ctx, bareAgent, base)
	if err != nil {
		return nil, nil, err
	}
	if sent, err = same(o, c); err != nil {
		return nil, nil, err
	}
	// What is sent at the same time may come one after the other in one run: the shortest of
	// several is what must.
	path = report.CriticalPath(o)
	for range 10 {
		o, err := r.sent(ctx, ourAgent, ours)
		if err != nil {
			return nil, nil, err
		}
		if p := report.CriticalPath(o); len(p) < len(path) {
			path = p
		}
	}
	return sent, path, nil
}

// execute compares an execution with its own calls and syncs. There is no note, and the
// verification is satisfied at its first look, which both sides make: how long pods take
// to start is no property of the program.
func (b *bench) execute(ctx context.Context) error {
	r, err := b.cluster(ctx)
	if err != nil {
		return err
	}
	policy := filepath.Join(b.dir, "quiet.yaml")
	if err := os.WriteFile(policy, []byte("change_cause_on_scale: false\n"), 0o600); err != nil {
		return err
	}
	s, err := b.server(r, "execute", "--policy", policy)
	if err != nil {
		return err
	}
	defer s.Kill()
	var args map[string]any
	plan := func() (err error) {
		if err := r.back(ctx, "web"); err != nil {
			return err
		}
		args, err = planned(s, "scale", scaleTo("web", 3))
		return err
	}
	ours := func() error { return executed(s, "scale", args) }
	if err := plan(); err != nil {
		return err
	}
	size, err := b.lineSize("execute", ours)
	if err != nil {
		return err
	}
	d, err := b.disk("execute.lines", size/syncs)
	if err != nil {
		return err
	}
	defer d.f.Close()
	k := calls{ctx, r.bare}
	base := func() error {
		if err := k.again("web"); err != nil {
			return err
		}
		if err := d.write(); err != nil { // the claim
			return err
		}
		w, err := k.get("web")
		if err != nil {
			return err
		}
		if err := k.scale(w, w.ResourceVersion, 3); err != nil {
			return err
		}
		if _, err := k.get("web"); err != nil { // after
			return err
		}
		if err := d.write(); err != nil { // the result
			return err
		}
		if _, err := k.get("web"); err != nil { // the verification
			return err
		}
		return d.write() // the verdict
	}
	if err := plan(); err != nil {
		return err
	}
	o, err := r.sent(ctx, ourAgent, ours)
	if err != nil {
		return err
	}
	if err := r.back(ctx, "web"); err != nil {
		return err
	}
	c, err := r.sent(ctx, bareAgent, base)
	if err != nil {
		return err
	}
	sent, err := same(o, c)
	if err != nil {
		return err
	}
	ms, err := b.turns(ctx, side{plan, ours}, side{func() error { return r.back(ctx, "web") }, base})
	if err != nil {
		return err
	}
	row := compare("scale, without a note, verified at the first look", "its API calls by bare client-go, and its three syncs", ms[0], ms[1], 0.5, report.AtMost(1.15, "×"))
	row.Note = fmt.Sprintf("both send %s; %d bytes go to the disk in %d syncs", strings.Join(sent, ", "), size, syncs)
	b.add(row)
	return nil
}

// syncs is how often an execution of one Step waits for the disk: claim, result, verdict.
const syncs = 3

// parallel is how many planners there are at once.
const parallel = 32

// planners compares how many plans come out of one server that many ask, with how often as
// many goroutines get the same calls done.
func (b *bench) planners(ctx context.Context) error {
	r, err := b.cluster(ctx)
	if err != nil {
		return err
	}
	s, err := b.server(r, "planners")
	if err != nil {
		return err
	}
	defer s.Kill()
	var names []string
	for i := range parallel {
		names = append(names, fmt.Sprintf("web-%d", i))
		if err := r.played(ctx, namespace, names[i]); err != nil {
			return err
		}
	}
	k := calls{ctx, r.bare}
	rate := func(lasting time.Duration, one func(name string) error) (float64, error) {
		var done atomic.Int64
		began := time.Now()
		var all []func() error
		for _, name := range names {
			all = append(all, func() error {
				for time.Since(began) < lasting {
					if err := one(name); err != nil {
						return err
					}
					done.Add(1)
				}
				return nil
			})
		}
		err := together(all...)
		return float64(done.Load()) / time.Since(began).Seconds(), err
	}
	ours := func(name string) error { _, err := planned(s, "scale", scaleTo(name, 3)); return err }
	const rounds = 5
	var o, c []float64
	for n := range rounds + 1 {
		lasting := b.each / rounds
		if n == 0 {
			lasting /= 4 // to warm up
		}
		perSecond, err := rate(lasting, ours)
		if err != nil {
			return err
		}
		bare, err := rate(lasting, k.plan)
		if err != nil {
			return err
		}
		if n > 0 {
			o, c = append(o, perSecond), append(c, bare)
		}
	}
	row := compare(fmt.Sprintf("%d concurrent planners, plans per second", parallel), "as many goroutines of bare client-go that make the same calls", o, c, 0.5, report.AtLeast(0.8, "×"))
	row.Unit = "1/s"
	b.add(row)
	return nil
}
