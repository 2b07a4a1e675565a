package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// clock is a time that a test sets.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// fixture is a state folder with a clock.
type fixture struct {
	*testing.T
	dir, path string
	clock     *clock
	keys      *Keyring
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	c := &clock{epoch}
	keys, err := LoadKeys(filepath.Join(dir, "keys.json"), c.now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t, dir, filepath.Join(dir, "audit.jsonl"), c, keys}
}

func (f *fixture) try() (*Journal, error) {
	return Open(Options{Dir: f.dir, Keys: f.keys, Now: f.clock.now, Inst: "test"})
}

// trySealed is why a journal that is opened is of no use.
func (f *fixture) trySealed() error {
	j, err := f.try()
	if err != nil {
		return err
	}
	return j.Sealed()
}

// recover does what the operator does.
func (f *fixture) recover(newFile bool) (string, error) {
	return Recover(Options{Dir: f.dir, Keys: f.keys, Now: f.clock.now, Inst: "oper"}, newFile)
}

// open opens the journal and verifies the whole file when the test ends.
func (f *fixture) open() *Journal {
	f.Helper()
	j, err := f.try()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { f.scan() })
	return j
}

// scan gives every line, all verified.
func (f *fixture) scan() (lines []*Line) {
	f.Helper()
	err := Scan(f.path, f.keys, func(l *Line) error { lines = append(lines, l); return nil })
	if err != nil {
		f.Error(err)
	}
	return lines
}

func (f *fixture) append(j *Journal, lines ...*Line) {
	f.Helper()
	if err := appendLines(j, lines...); err != nil {
		f.Fatal(err)
	}
}

func appendLines(j *Journal, lines ...*Line) error {
	return j.Append(func(*Ledger) ([]*Line, error) { return lines, nil })
}

func (f *fixture) read() []byte {
	f.Helper()
	b, err := os.ReadFile(f.path)
	if err != nil {
		f.Fatal(err)
	}
	return b
}

func (f *fixture) write(b []byte) {
	f.Helper()
	if err := os.WriteFile(f.path, b, 0o600); err != nil {
		f.Fatal(err)
	}
}

// state is a plan's state as a new process would see it.
func (f *fixture) state(id string) State {
	f.Helper()
	j, err := f.try()
	if err != nil {
		f.Fatal(err)
	}
	return stateOf(f.T, j, id)
}

func stateOf(t *testing.T, j *Journal, id string) (s State) {
	t.Helper()
	if err := j.View(func(l *Ledger) error { s = l.Plan(id); return nil }); err != nil {
		t.Fatal(err)
	}
	return s
}

// planLine is a plan of one scale, as the engine records it.
func planLine(id string, expires time.Time) *Line {
	three := int32(3)
	p := &plan.Plan{
		ID: id, Action: "scale", Args: json.RawMessage(`{"namespace":"default","deployment":"web","replicas":3}`),
		Principal: "os:alice", Cluster: "uid-1", Label: "kind-lab", KeyID: "k", Sentence: "scale deployment default/web from 2 to 3 on kind-lab",
		Class: plan.Reversible,
		Steps: []plan.Step{{
			Verb: plan.Scale, Target: plan.Target{Resource: "deployments", Namespace: "default", Name: "web", UID: "u-1"},
			Changes: []plan.Change{{Field: "spec.replicas", Old: "2", New: "3"}}, Replicas: &three,
		}},
		Before:  plan.State{"replicas": 2, "ready": 2},
		Created: expires.Add(-2 * time.Minute), Expires: expires,
	}
	return &Line{Event: EventPlan, Plan: id, Tool: "plan_scale", Cluster: "uid-1", Record: p}
}

func intentLine(id, claim string) *Line {
	return &Line{
		Event: EventIntent, Plan: id, Cluster: "uid-1", Claim: claim, Step: 1, Attempt: 1, StepKey: "scale deployment default/web",
		AuditID: "a1", SendNotAfter: epoch.Add(5 * time.Second),
	}
}

func executeLine(id string) *Line {
	return &Line{Event: EventExecute, Plan: id, Cluster: "uid-1", Claim: "c1", Code: string(plan.Executed), Result: &plan.Result{
		Plan: id, Sentence: "scale <web> & more", Outcome: plan.Executed, Steps: []plan.StepResult{{Step: "s", Outcome: "applied", Code: 200}}, Time: epoch,
	}}
}

// TestMain is also the main of the processes that tests start: each does one thing to the
// state folder in its first argument.
func TestMain(m *testing.M) {
	if do, ok := children[os.Getenv("JOURNAL_TEST_CHILD")]; ok {
		if err := do(os.Getenv("JOURNAL_TEST_DIR"), os.Getenv("JOURNAL_TEST_NAME")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var children = map[string]func(dir, name string) error{
	"append": childAppend, "rotate": childRotate, "claim": childClaim, "keys": childKeys,
}

// child starts another process; the caller waits for it. What it prints is in the buffer.
func child(t *testing.T, do, dir, name string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd, out := exec.Command(self), &bytes.Buffer{}
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "JOURNAL_TEST_CHILD="+do, "JOURNAL_TEST_DIR="+dir, "JOURNAL_TEST_NAME="+name)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

func childOpen(dir, name string, rotateAt int64) (*Journal, error) {
	keys, err := LoadKeys(filepath.Join(dir, "keys.json"), time.Now, rand.Reader)
	if err != nil {
		return nil, err
	}
	return Open(Options{Dir: dir, Keys: keys, Inst: "aaa" + name, RotateAt: rotateAt})
}

// together waits until so many processes are here.
func together(dir, name string, processes int) error {
	if err := os.WriteFile(filepath.Join(dir, "here-"+name), nil, 0o600); err != nil {
		return err
	}
	for {
		here, err := filepath.Glob(filepath.Join(dir, "here-*"))
		if err != nil || len(here) >= processes {
			return err
		}
		time.Sleep(100 * time.Microsecond)
	}
}

const (
	appenders    = 4
	childAppends = 500
	claimRounds  = 100
)

// childAppend appends lines, some of them three at a time.
func childAppend(dir, name string) error { return childAppendTo(dir, name, 0) }

// childRotate does the same with files that are closed all the time.
func childRotate(dir, name string) error { return childAppendTo(dir, name, 5000) }

func childAppendTo(dir, name string, rotateAt int64) error {
	j, err := childOpen(dir, name, rotateAt)
	if err != nil {
		return err
	}
	if err := together(dir, name, appenders); err != nil {
		return err
	}
	for n := range childAppends {
		lines := []*Line{{Event: EventRefused, Cluster: "uid-1", Output: name + " " + strconv.Itoa(n)}}
		if n%10 == 0 {
			lines = append(lines, &Line{Event: EventReplayed}, &Line{Event: EventReplayed})
		}
		if err := appendLines(j, lines...); err != nil {
			return err
		}
	}
	return nil
}

var errTaken = errors.New("taken")

// childClaim tries to claim every plan, and prints those it got.
func childClaim(dir, name string) error {
	j, err := childOpen(dir, name, 0)
	if err != nil {
		return err
	}
	if err := together(dir, name, 2); err != nil {
		return err
	}
	for n := range claimRounds {
		id := planID(n)
		err := j.Append(func(l *Ledger) ([]*Line, error) {
			if l.Plan(id).Claimed {
				return nil, errTaken
			}
			return []*Line{intentLine(id, name)}, nil
		})
		switch {
		case err == nil:
			fmt.Println(id, name)
		case err != errTaken:
			return err
		}
	}
	return nil
}

// childKeys prints the key that this process would sign with.
func childKeys(dir, _ string) error {
	keys, err := LoadKeys(filepath.Join(dir, "keys.json"), time.Now, rand.Reader)
	if err != nil {
		return err
	}
	secret, err := keys.Derive(keys.Current(), "audit")
	if err != nil {
		return err
	}
	fmt.Printf("%s %x\n", keys.Current(), secret)
	return nil
}

func planID(n int) string { return fmt.Sprintf("plan%06d", n) }
