package engine

import (
	"slices"
	"sync"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// record is what the lines of one call have in common: its number, by which each call can
// be counted whatever became of it, and its dry runs, until a line has them.
type record struct {
	n int64 // from 1, per process, without a gap

	mu      sync.Mutex
	dryRuns []plan.StepResult
}

// begin numbers a call.
func (e *Engine) begin(c Call) Call {
	c.record = &record{n: e.calls.Add(1)}
	e.repeats.begins(c)
	return c
}

// The outcomes of a dry run, as its StepResult names them.
const (
	dryRunOK = "ok"
	dryRunNo = "failed"
)

// dryRan keeps what one planning pass has dry-run for the next line of the call.
func (r *record) dryRan(answers []dryRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range answers {
		res := plan.StepResult{Step: a.pr.Step.Key(), Outcome: dryRunOK, Code: a.ans.Code, AuditID: a.id}
		if a.err != nil {
			res.Outcome = dryRunNo
		}
		r.dryRuns = append(r.dryRuns, res)
	}
}

// unwritten are the dry runs that no line has yet.
func (r *record) unwritten() []plan.StepResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dryRuns)
}

// written says that a line with them is on disk.
func (r *record) written() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dryRuns = nil
}
