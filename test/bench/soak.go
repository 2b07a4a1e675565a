package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/test/bench/report"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// counted is the argument with which this program is the server under the soak: the same
// code as the shipped one, and it writes down how many goroutines it has, which nothing
// outside a process can see.
const counted = "serve-counted"

func serveCounted(file string, args []string) int {
	go func() {
		for {
			_ = os.WriteFile(file+".new", []byte(strconv.Itoa(runtime.NumGoroutine())), 0o600)
			_ = os.Rename(file+".new", file)
			time.Sleep(time.Second)
		}
	}()
	return app.Main(args, os.Stdin, os.Stdout, os.Stderr, actions.All()...)
}

// The soak's rate and what flat means.
const (
	soakPause  = 500 * time.Millisecond // between one round of calls and the next
	soakSample = 5 * time.Second
	settleMost = 5 * time.Minute // of the time, or a third of it where it is shorter
)

// soak keeps one server at work beside real controllers and looks at what it holds.
func (b *bench) soak(ctx context.Context, lasting time.Duration) error {
	l, err := lab.Start(ctx, lab.Options{Controllers: true, Nodes: 3})
	if err != nil {
		return err
	}
	r := &rig{Lab: l, kubeconfig: filepath.Join(b.dir, "kubeconfig")}
	b.rig = r
	if r.account, err = l.ServiceAccount(ctx, "kube-write-mcp", "server", engine.Rules(actions.All(), read.Rules()...)); err != nil {
		return err
	}
	if err := l.Kubeconfig(r.kubeconfig, "kind-lab", r.account); err != nil {
		return err
	}
	const targets = 4
	for i := range targets {
		if err := r.workload(ctx, namespace, fmt.Sprintf("web-%d", i)); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	goroutines := filepath.Join(b.dir, "goroutines")
	s, err := stdio.Start(stdio.Modern, self, nil, append([]string{counted, goroutines}, b.flags(r, "soak", "--verify-wait", "10s")...)...)
	if err != nil {
		return err
	}
	defer s.Kill()

	settle := min(settleMost, lasting/3)
	began := time.Now()
	var samples [3][]float64 // by kind: before the end of settle, and after it
	var after [3][]float64
	sampled, did := time.Time{}, map[string]int{}
	for n := 0; time.Since(began) < lasting; n++ {
		if err := errors.Join(ctx.Err(), r.round(s, n, fmt.Sprintf("web-%d", n%targets), did)); err != nil {
			return err
		}
		if time.Since(sampled) > soakSample {
			sampled = time.Now()
			held, err := holds(s.Process().Pid, goroutines)
			if err != nil {
				return err
			}
			for i, v := range held {
				if time.Since(began) < settle {
					samples[i] = append(samples[i], v)
				} else {
					after[i] = append(after[i], v)
				}
			}
		}
		time.Sleep(soakPause)
	}
	var calls []string
	for k, n := range did {
		calls = append(calls, fmt.Sprintf("%d %s", n, k))
	}
	slices.Sort(calls)
	for i, k := range []struct{ what, unit string }{{"resident memory", "MiB"}, {"goroutines", ""}, {"open files", ""}} {
		// The mean of the last third against that of the first third after things have settled.
		third := len(after[i]) / 3
		if third == 0 {
			return fmt.Errorf("%s is too short for %d samples", lasting, len(after[i]))
		}
		first, last := report.Quantile(after[i][:third], 0.5), report.Quantile(after[i][len(after[i])-third:], 0.5)
		b.add(report.Row{
			What: fmt.Sprintf("soak of %s: %s", lasting, k.what), Baseline: fmt.Sprintf("the first third after %s", settle),
			Ours: last, Base: first, Unit: k.unit, Value: last / first, Bar: report.AtMost(1.1, "×"), Runs: len(after[i]),
			Note: fmt.Sprintf("%s; before that the median was %s", strings.Join(calls, ", "), report.Amount(report.Quantile(samples[i], 0.5), k.unit)),
		})
	}
	return nil
}

// round is a plan that is executed and replayed, one that is not, and reads.
func (r *rig) round(s *stdio.Client, n int, name string, did map[string]int) error {
	args, err := planned(s, "scale", scaleTo(name, 3+n/4%2)) // the four targets up, then down, in turn
	if err != nil {
		return err
	}
	did["plans"]++
	for _, want := range []string{"executions", "replays"} {
		got, err := s.Call("scale", args)
		if err != nil || got.IsError {
			return fmt.Errorf("%s: %w: %s", want, err, got.Text)
		}
		did[want]++
	}
	if _, err := planned(s, "rollout_restart", map[string]any{"namespace": namespace, "deployment": name}); err != nil {
		return err
	}
	did["plans"]++
	for tool, args := range map[string]map[string]any{
		"list_pods": {"namespace": namespace}, "get_workload": {"namespace": namespace, "deployment": name}, "list_events": {"namespace": namespace}, "write_history": {},
	} {
		got, err := s.Call(tool, args)
		if err != nil || got.IsError {
			return fmt.Errorf("%s: %w: %s", tool, err, got.Text)
		}
		did["reads"]++
	}
	return nil
}

// holds is what a process holds: MiB resident, goroutines, open files.
func holds(pid int, goroutines string) (out [3]float64, err error) {
	if out[0], err = resident(pid); err != nil {
		return out, err
	}
	raw, err := os.ReadFile(goroutines)
	if err != nil {
		return out, err
	}
	if out[1], err = strconv.ParseFloat(string(raw), 64); err != nil {
		return out, err
	}
	out[2], err = openFiles(pid)
	return out, err
}
