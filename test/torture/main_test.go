// Package torture kills, cuts and disturbs the real program at work on a real API server,
// and holds what it says against a truth of its own: a watch of every version of every
// target, and what went over the wire.
package torture

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

var cp *lab.Lab

var seed = flag.Uint64("seed", 0, "of all choices; 0 takes one from the clock")

// together is how many tests run at once: nearly all of them wait until a request that was
// cut off is too old to be carried out.
const together = "100"

func TestMain(m *testing.M) {
	flag.Parse()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	if err := flag.Set("test.parallel", together); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lab.Main(m, lab.Options{}, func(l *lab.Lab) {
		cp = l
		// The program hands client-go's log to its own when it first serves; not while a
		// client of a test is at work.
		app.Main([]string{"serve", "--ttl", "0s"}, nil, io.Discard, io.Discard)
	})
}

// binary is the shipped program, built once into the folder of the lab.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(cp.AuditLog()), "kube-write-mcp")
	out, err := exec.Command("go", "build", "-o", path, "github.com/kubewrite/kube-write-mcp/cmd/kube-write-mcp").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

// wide lets through what is not the subject here. Nobody plays the controllers, so that
// nothing is ever verified: one second of it is enough.
var wide = []string{
	"--max-blast-percent", "100", "--irreversible", "allow", "--max-replicas", "1000000",
	"--writes-per-minute", "1000000", "--plans-per-minute", "1000000", "--verify-timeout", "1s",
}

// answer is the structured answer of a write tool.
type answer struct {
	Outcome  plan.Outcome    `json:"outcome"`
	Replayed bool            `json:"replayed"`
	Plan     string          `json:"plan"`
	Result   json.RawMessage `json:"result"`
	Code     string          `json:"code"` // of a refusal
}

// resultIn decodes the first result in an answer.
func (a answer) resultIn() (r plan.Result, err error) {
	err = json.Unmarshal(a.Result, &r)
	return r, err
}

// audited verifies a journal from the first line as `audit verify` does, and counts it as
// `audit report` does.
func audited(state string) (*journal.Report, *journal.CallReport, error) {
	keys, err := journal.ReadKeys(filepath.Join(state, "keys.json"), time.Now)
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(state, "audit.jsonl")
	verified, err := journal.Verify(path, keys, journal.VerifyOptions{})
	if err != nil {
		return verified, nil, err
	}
	counted, err := journal.Count(path, keys, time.Time{})
	return verified, counted, err
}

// events are the lines of a journal with an event, of a file that may be in use; whether
// they are right is audited later.
func events(state, event string) (out []journal.Line, err error) {
	raw, err := os.ReadFile(filepath.Join(state, "audit.jsonl"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	for _, line := range splitLines(raw) {
		var l journal.Line
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, fmt.Errorf("%w in %.100s", err, line)
		}
		if l.Event == event {
			out = append(out, l)
		}
	}
	return out, nil
}

// splitLines gives the whole lines; one that is being written is none yet.
func splitLines(raw []byte) [][]byte {
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1]
	if len(raw) == 0 {
		return nil
	}
	return bytes.Split(bytes.TrimSuffix(raw, []byte("\n")), []byte("\n"))
}

// ctx is for what goes on while a test ends.
var ctx = context.Background()

// named decodes what a line is about, and no more.
func named(line []byte) (l struct {
	Event   string `json:"event"`
	Plan    string `json:"plan"`
	AuditID string `json:"audit_id"`
}, err error) {
	if err := json.Unmarshal(line, &l); err != nil {
		return l, fmt.Errorf("%w in %.100s", err, line)
	}
	return l, nil
}
