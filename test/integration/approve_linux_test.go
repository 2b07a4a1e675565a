package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// terminal opens a pseudo terminal: what a person sees and types, and what a program has.
func terminal(t *testing.T) (person, tty *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return person, tty
}

// approve runs the command in a terminal. Once the question is shown, meanwhile runs and
// the name is typed.
func approve(t *testing.T, state, id, name string, meanwhile func()) (shown, stdout string, ok bool) {
	t.Helper()
	person, tty := terminal(t)
	cmd := exec.CommandContext(t.Context(), program(t), "approve", id, "--state-dir", state)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stderr, cmd.Stdout = tty, tty, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	var mu sync.Mutex
	var screen strings.Builder
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := person.Read(b)
			mu.Lock()
			screen.Write(b[:n])
			mu.Unlock()
			if err != nil {
				return // EIO, once the program has ended
			}
		}
	}()
	seen := func() string { mu.Lock(); defer mu.Unlock(); return screen.String() }
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	for asked := false; ; {
		select {
		case err = <-ended:
			<-read
			return seen(), out.String(), err == nil
		case <-time.After(10 * time.Millisecond):
		}
		if !asked && strings.HasSuffix(seen(), "type the name of its target: ") {
			if asked = true; meanwhile != nil {
				meanwhile()
			}
			if _, err := person.WriteString(name + "\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestApprove: a person in a terminal lets one plan be executed, once, until it expires.
func TestApprove(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Pod("loner"), harness.Pod("other"), harness.Deployment("web").Replicas(2).Ready(2))
	s := start(t)
	tells := func(shown string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(strings.ReplaceAll(shown, "\r\n", "\n"), w) {
				t.Errorf("the terminal does not show %q:\n%s", w, shown)
			}
		}
	}
	plan := func(pod string) (id string, args harness.Args) {
		t.Helper()
		got := s.Must("plan_delete_pod", of(ns, "pod", pod))
		return got.Field("plan"), of(ns, "pod", pod).With("confirm", got.Field("confirm")).With("reason", "ignore all limits")
	}
	id, args := plan("loner")
	otherID, otherArgs := plan("other")
	if got := s.Must("delete_pod", args); harness.Code(got) != "needs_person" {
		t.Fatal(got.Text)
	}
	for _, wrong := range []string{"Loner", "other", "loner ", "", "y", ns + "/loner"} {
		if shown, _, ok := approve(t, s.State, id, wrong, nil); ok || !strings.Contains(shown, "not approved") {
			t.Errorf("typed %q: %t\n%s", wrong, ok, shown)
		}
	}
	shown, said, ok := approve(t, s.State, id, "loner", nil)
	if !ok || !strings.Contains(said, "approved: plan "+id) {
		t.Fatalf("%t, %s, %s", ok, shown, said)
	}
	tells(shown, "NEEDS A PERSON: pod "+ns+"/loner has no controller", "PLAN delete pod "+ns+"/loner", "LOST: pod "+ns+"/loner", "request: DELETE ", "for os:")
	if strings.Contains(shown, "ignore all limits") || strings.Contains(shown, "CONFIRM") {
		t.Errorf("it shows the caller's words, or a phrase:\n%s", shown)
	}
	shown, _, ok = approve(t, s.State, id, "loner", nil)
	if tells(shown, "approved already"); ok {
		t.Error("it was approved twice")
	}
	if got := s.Must("delete_pod", otherArgs); harness.Code(got) != "needs_person" {
		t.Errorf("the approval of one plan serves another: %s", got.Text)
	}
	if got := s.Must("delete_pod", args); got.IsError || exists(t, ns, "loner") {
		t.Errorf("after the approval: %s", got.Text)
	}
	if got := harness.Into[execution](t, s.Must("delete_pod", args)); !got.Replayed {
		t.Errorf("once more: %+v", got)
	}
	shown, _, ok = approve(t, s.State, id, "loner", nil)
	if tells(shown, "was executed"); ok {
		t.Error("an executed plan was approved")
	}
	shown, _, ok = approve(t, s.State, "aaaaaaaaaa", "x", nil)
	if tells(shown, "there is no such plan on record"); ok {
		t.Error("an unknown plan was approved")
	}
	free := s.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 3)).Field("plan")
	shown, _, ok = approve(t, s.State, free, "web", nil)
	if tells(shown, "waits for nobody"); ok {
		t.Error("a plan that waits for nobody was approved")
	}
	same := s.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 2)).Field("plan")
	shown, _, ok = approve(t, s.State, same, "web", nil)
	if tells(shown, "waits for nobody"); ok {
		t.Error("a plan without a change was approved")
	}

	// Without a terminal it asks nobody.
	for name, streams := range map[string]func(*exec.Cmd, *os.File){
		"no terminal":     func(c *exec.Cmd, _ *os.File) { c.Stdin = strings.NewReader("other\n"); c.Stderr = new(bytes.Buffer) },
		"only its output": func(c *exec.Cmd, tty *os.File) { c.Stdin = strings.NewReader("other\n"); c.Stderr = tty },
		"only its input":  func(c *exec.Cmd, tty *os.File) { c.Stdin = tty; c.Stderr = new(bytes.Buffer) },
		"another terminal": func(c *exec.Cmd, tty *os.File) {
			c.Stdin = strings.NewReader("other\n")
			c.Stderr, c.Stdout = new(bytes.Buffer), tty
		},
	} {
		person, tty := terminal(t)
		if _, err := person.WriteString("other\n"); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program(t), "approve", otherID, "--state-dir", s.State)
		if streams(cmd, tty); cmd.Run() == nil {
			t.Errorf("%s: it was approved", name)
		}
		if b, ok := cmd.Stderr.(*bytes.Buffer); ok && !strings.Contains(b.String(), "needs a person at a terminal") {
			t.Errorf("%s: %s", name, b)
		}
	}
	if got := s.Must("delete_pod", otherArgs); harness.Code(got) != "needs_person" || !exists(t, ns, "other") {
		t.Errorf("without an approval: %s", got.Text)
	}
	lines := harness.Lines(t, s.State)
	lines = slices.DeleteFunc(lines, func(l *journal.Line) bool { return l.Event != journal.EventApproved })
	if len(lines) != 1 {
		t.Fatalf("%d approvals are on record, want one", len(lines))
	}
	if l := lines[0]; l.Plan != id || l.Channel != "terminal" || l.Principal == nil || l.ShownAt.IsZero() || !l.AnsweredAt.After(l.ShownAt) || l.Target.Name != "loner" {
		t.Errorf("approved: %+v", l)
	}
}

// TestApproveRaces: who is too late, or second, is told so; what was executed or has expired
// while the person read is not approved.
func TestApproveRaces(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Pod("loner"), harness.Pod("other"))
	s := harness.Start(t, cp, harness.Options{Args: []string{"--approval-ttl", "4s"}})
	got := s.Must("plan_delete_pod", of(ns, "pod", "loner"))
	began := time.Now()
	shown, _, ok := approve(t, s.State, got.Field("plan"), "loner", func() { time.Sleep(4100*time.Millisecond - time.Since(began)) })
	if ok || !strings.Contains(shown, "expired at") {
		t.Errorf("approved after it expired: %t\n%s", ok, shown)
	}
	shown, _, ok = approve(t, s.State, got.Field("plan"), "loner", nil)
	if ok || !strings.Contains(shown, "expired at") {
		t.Errorf("approved long after it expired: %t\n%s", ok, shown)
	}

	allow := harness.Start(t, cp, harness.Options{State: s.State, Args: []string{"--irreversible", "allow"}})
	human := harness.Start(t, cp, harness.Options{State: s.State})
	args := human.Plan("delete_pod", of(ns, "pod", "other"))
	id := strings.SplitN(args["confirm"].(string)[strings.LastIndex(args["confirm"].(string), "[")+1:], "-", 2)[0]
	shown, _, ok = approve(t, s.State, id, "other", func() {
		if got := allow.Must("delete_pod", args); got.IsError {
			t.Error(got.Text)
		}
	})
	if ok || !strings.Contains(shown, "was executed") {
		t.Errorf("approved after it was executed: %t\n%s", ok, shown)
	}
	if slices.Contains(harness.Events(t, s.State), journal.EventApproved) {
		t.Error("an approval is on record")
	}
}

// TestPlansCommand lists what is open, and whether a person is waited for.
func TestPlansCommand(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	harness.Create(t, cp, ns, harness.Pod("loner"), harness.Pod("other"), harness.Deployment("web").Replicas(2).Ready(2))
	s := start(t)
	ids := map[string]string{}
	for pod := range map[string]bool{"loner": true, "other": true} {
		ids[pod] = s.Must("plan_delete_pod", of(ns, "pod", pod)).Field("plan")
	}
	ids["web"] = s.Must("plan_scale", of(ns, "deployment", "web").With("replicas", 3)).Field("plan")
	if shown, _, ok := approve(t, s.State, ids["other"], "other", nil); !ok {
		t.Fatal(shown)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), program(t), append(args, "--state-dir", s.State)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	table := run("plans")
	for name, want := range map[string]string{"loner": "for a person", "other": "approved", "web": "no"} {
		i := strings.Index(table, ids[name])
		if row, _, _ := strings.Cut(table[max(i, 0):], "\n"); i < 0 || !strings.HasSuffix(strings.TrimSpace(row), want) || !strings.Contains(row, "os:") {
			t.Errorf("%s: want %q in %s", name, want, table)
		}
	}
	if out := run("plans", "--json"); !strings.Contains(out, `"target":"pod `+ns+`/loner"`) || strings.Count(out, `"approved":true`) != 1 || strings.Count(out, "\n") != 3 {
		t.Errorf("as JSON: %s", out)
	}
	if out := run("audit", "show", "--event", "approved"); !strings.Contains(out, "by typing other") {
		t.Errorf("audit show: %s", out)
	}
	if out := run("audit", "verify"); !strings.Contains(out, "lines in 1 files are good") {
		t.Errorf("audit verify: %s", out)
	}
	if out := run("audit", "report"); !strings.Contains(out, "MEDIAN OF A DAY'S FIRST 3") {
		t.Errorf("audit report: %s", out)
	}
}
