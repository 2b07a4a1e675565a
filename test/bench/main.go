// Command bench measures the shipped program beside what it is compared with: the same API
// calls by bare client-go, kubectl, another MCP server. Absolute times differ from machine
// to machine, so each line is a ratio against a baseline that took turns with it in the
// same run, on a local control plane. hack/bench.sh builds what it needs and runs it.
//
// It ends with 1 where a bar is missed that notReached does not explain.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/kubewrite/kube-write-mcp/test/bench/report"
)

// notReached are the bars that are known not to be reached, by the row, with the reason.
// The profiles stand in hack/design/2026-11-30-fast.md and the notes behind it.
var notReached = map[string]string{
	"plan_scale, p50":          ownWork,
	"plan_scale":               "the four calls that a plan makes by bare client-go alone are twice the two of this baseline on two cores, which the API server shares",
	"plan_scale, times faster": "two calls of kubectl take about 90 ms on two quiet cores, so that a plan may take 3.6 ms: its API calls by bare client-go and one sync alone take as long",
	"scale, without a note, verified at the first look": ownWork,
	"plan_scale, p90":                                    ownWork,
	"32 concurrent planners, plans per second":           ownWork,
	"start, beside the peer's own binary":                "a quarter of its start is 10 ms, which the initialisation of packages before main alone takes, most of it that of libraries",
	"idle resident memory, beside the peer's own binary": "35 of 46 MiB are pages of the program file: client-go's types of all API groups and their tables; heap and stacks are 10 MiB, less than the peer's",
}

const ownWork = "the program's own work is about 1 ms of CPU a plan, spread flat over JSON, the journal, client-go and the collector, and each call goes through two more processes' pipes than the baseline's"

// bench is one run.
type bench struct {
	binary, kubectl     string
	peer, peerBinary    string // the command that npm installs, and the program that it starts
	kubectlWhy, peerWhy string // why there is none
	each                time.Duration
	dir                 string

	rig  *rig // see cluster
	rows []report.Row
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == counted {
		os.Exit(serveCounted(os.Args[2], os.Args[3:]))
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		os.Exit(1)
	}
}

func run() error {
	b := &bench{}
	pflag.StringVar(&b.binary, "binary", "", "the kube-write-mcp to measure")
	pflag.StringVar(&b.kubectl, "kubectl", "", "the kubectl to compare with")
	pflag.StringVar(&b.peer, "peer", "", "the kubernetes-mcp-server to compare with")
	pflag.StringVar(&b.peerBinary, "peer-binary", "", "the program that it starts")
	pflag.StringVar(&b.kubectlWhy, "no-kubectl", "not given", "why there is no kubectl")
	pflag.StringVar(&b.peerWhy, "no-peer", "not given", "why there is no kubernetes-mcp-server")
	pflag.DurationVar(&b.each, "each", 8*time.Second, "how long two sides take turns")
	only := pflag.String("run", ".", "only the groups whose names match: plan, execute, planners, peers, start, drain, heap, journal")
	file := pflag.String("json", "", "write the run to this `file` as well")
	soak := pflag.Duration("soak", 0, "instead: plans, executions, replays and reads at a steady rate for so long")
	pflag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if b.dir, err = os.MkdirTemp("", "kube-write-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	defer b.close()

	before := load()
	groups := []struct {
		name string
		run  func(context.Context) error
	}{
		{"plan", b.plan}, {"execute", b.execute}, {"planners", b.planners}, {"peers", b.peers}, {"start", b.start},
		{"drain", b.drain}, {"heap", b.heap}, {"journal", b.journal},
	}
	if *soak > 0 {
		groups = groups[:0]
		groups = append(groups, struct {
			name string
			run  func(context.Context) error
		}{"soak", func(ctx context.Context) error { return b.soak(ctx, *soak) }})
	}
	for _, g := range groups {
		if *soak == 0 && !match.MatchString(g.name) {
			continue
		}
		say("%s ...", g.name)
		if err := g.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
	}
	out := report.Report{Date: time.Now().UTC().Truncate(time.Second), Machine: machine(), Load: before + ", then " + load(), Rows: b.rows}
	if err := out.Print(os.Stdout); err != nil {
		return err
	}
	if *file != "" {
		raw, err := out.JSON()
		if err == nil {
			err = os.WriteFile(*file, raw, 0o644)
		}
		if err != nil {
			return err
		}
	}
	if missed := out.Missed(); missed != nil {
		return fmt.Errorf("%d bars are missed: %q", len(missed), missed)
	}
	return nil
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }

// add judges a row and keeps it.
func (b *bench) add(r report.Row) {
	r.Judge(notReached[r.What])
	b.rows = append(b.rows, r)
	say("  %s: %s (%s) %s", r.What, report.Amount(r.Value, r.Bar.Unit), r.Bar, r.Verdict)
}

// unmeasured keeps rows that could not be measured.
func (b *bench) unmeasured(why string, rows ...report.Row) {
	for _, r := range rows {
		r.Verdict, r.Why = report.NotMeasured, why
		b.add(r)
	}
}

// side is one of those that take turns.
type side struct {
	reset func() error // before each run, not timed; may be nil
	run   func() error
}

// turns lets the sides take turns for as long as a group lasts, in an order that is drawn
// anew for each turn, and gives the milliseconds of each run. In a fixed order the API
// server's garbage collection, which comes every few runs, hits the same side for minutes.
// The first turns warm up.
func (b *bench) turns(ctx context.Context, sides ...side) (ms [][]float64, err error) {
	ms = make([][]float64, len(sides))
	const warm, least = 3, 50
	rng := rand.New(rand.NewPCG(1, 0))
	end := time.Now().Add(b.each)
	for n := 0; n < warm+least || time.Now().Before(end); n++ {
		for _, i := range rng.Perm(len(sides)) {
			if err := errors.Join(ctx.Err(), sides[i].prepare()); err != nil {
				return nil, err
			}
			began := time.Now()
			if err := sides[i].run(); err != nil {
				return nil, err
			}
			if took := time.Since(began); n >= warm {
				ms[i] = append(ms[i], float64(took.Nanoseconds())/1e6)
			}
		}
	}
	return ms, nil
}

func (s side) prepare() error {
	if s.reset == nil {
		return nil
	}
	return s.reset()
}

// compare is a row of the quantile q of two sides, the value being ours in terms of the
// baseline.
func compare(what, baseline string, ours, base []float64, q float64, bar report.Bar) report.Row {
	o, b := report.Quantile(ours, q), report.Quantile(base, q)
	return report.Row{What: what, Baseline: baseline, Ours: o, Base: b, Unit: "ms", Value: o / b, Bar: bar, Runs: len(ours)}
}

// faster is compare, the value being the baseline in terms of ours.
func faster(what, baseline string, ours, base []float64, bar report.Bar) report.Row {
	r := compare(what, baseline, ours, base, 0.5, bar)
	r.Value = r.Base / r.Ours
	return r
}
