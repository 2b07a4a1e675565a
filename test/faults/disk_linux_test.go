package faults

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/gofrs/flock"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// mortal makes the test's own program become another one, to which file modes apply: root
// may read and write any file, unless it has lost that for good.
const mortal = "as-mortal"

func init() { become[mortal] = asMortal }

func asMortal(args []string) error {
	const dropFromBoundingSet, dacOverride, dacReadSearch = 24, 1, 2 // prctl(2), capabilities(7)
	runtime.LockOSThread()                                           // it is the thread's, and what it executes inherits it
	for _, capability := range []uintptr{dacOverride, dacReadSearch} {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, dropFromBoundingSet, capability, 0); errno != 0 && os.Geteuid() == 0 {
			return errno
		}
	}
	return syscall.Exec(args[0], args, os.Environ())
}

// mortalProgram is the shipped program as somebody to whom file modes apply.
func mortalProgram(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "program")
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' %s '%s' \"$@\"\n", self, mortal, harness.Program(t, cp))
	syscall.ForkLock.RLock() // a fork at this moment would hold the script open, and nobody could run it
	err = os.WriteFile(path, []byte(script), 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// TestFault_13_DiskGone takes the journal from a running program in several ways: nothing
// is sent, and when it is back as it was the plan still holds.
func TestFault_13_DiskGone(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name       string
		take, give func(t *testing.T, state string)
	}{
		{
			"the file may not be opened",
			func(t *testing.T, state string) { chmod(t, filepath.Join(state, "audit.jsonl"), 0) },
			func(t *testing.T, state string) { chmod(t, filepath.Join(state, "audit.jsonl"), 0o600) },
		},
		{
			"the file may only be read",
			func(t *testing.T, state string) { chmod(t, filepath.Join(state, "audit.jsonl"), 0o400) },
			func(t *testing.T, state string) { chmod(t, filepath.Join(state, "audit.jsonl"), 0o600) },
		},
		{
			"the folder may not be entered",
			func(t *testing.T, state string) { chmod(t, state, 0) },
			func(t *testing.T, state string) { chmod(t, state, 0o700) },
		},
		{
			"the folder is gone",
			func(t *testing.T, state string) { rename(t, state, state+".away") },
			func(t *testing.T, state string) { rename(t, state+".away", state) },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns, scale := harness.WebScale(t, cp)
			s := harness.Spawn(t, cp, mortalProgram(t), harness.Options{Args: quick})
			args := s.Plan("scale", scale)
			tc.take(t, s.State)
			for range 2 {
				wantCode(t, s.Must("scale", args), "audit_unavailable")
				wantCode(t, s.Must("plan_scale", scale), "audit_unavailable")
			}
			wantNoWrites(t, s)
			if n := harness.Replicas(t, cp, ns, "web"); n != 2 {
				t.Errorf("%d replicas", n)
			}
			tc.give(t, s.State)
			wantOutcome(t, s.Must("scale", args), plan.Executed)
		})
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// TestFault_13_14_RefusesToStart: with a journal that cannot be written the program does
// not start, and says which in one line.
func TestFault_13_14_RefusesToStart(t *testing.T) {
	t.Parallel()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cp.Kubeconfig(kubeconfig, "kind-lab", cp.Config); err != nil {
		t.Fatal(err)
	}
	program := mortalProgram(t)
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, state, audit string) error
		audit   string // "" is the one in the state folder
		want    string
	}{
		{"as it should be", func(*testing.T, string, string) error { return nil }, "", ""},
		{"the file may only be read", func(_ *testing.T, _, audit string) error { return os.WriteFile(audit, nil, 0o400) }, "", "permission denied"},
		{"the folder may only be read", func(t *testing.T, state, _ string) error { chmod(t, state, 0o500); return nil }, "", "permission denied"},
		{"always full", nil, "/dev/full", "a device"},
		{"a link", func(_ *testing.T, _, audit string) error { return os.Symlink("/dev/null", audit) }, "", "a symbolic link"},
		{"a pipe", func(_ *testing.T, _, audit string) error { return syscall.Mkfifo(audit, 0o600) }, "", "a named pipe"},
		{"a folder", func(_ *testing.T, _, audit string) error { return os.Mkdir(audit, 0o700) }, "", "a folder"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			state := filepath.Join(t.TempDir(), "state")
			audit := filepath.Join(state, "audit.jsonl")
			if err := os.Mkdir(state, 0o700); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Chmod(state, 0o700) })
			args := []string{"serve", "--allow-write", "--quiet", "--kubeconfig", kubeconfig, "--state-dir", state}
			if tc.prepare != nil {
				if err := tc.prepare(t, state, audit); err != nil {
					t.Fatal(err)
				}
			}
			if tc.audit != "" {
				args = append(args, "--audit", tc.audit)
			}
			c, err := stdio.Start(stdio.Modern, program, nil, args...)
			if err != nil {
				t.Fatal(err)
			}
			err = c.Close()
			if (err == nil) != (tc.want == "") || !strings.Contains(c.Stderr.String(), tc.want) || tc.want != "" && strings.Count(c.Stderr.String(), "\n") != 1 {
				t.Errorf("it ended with %v, want one line with %q: %s", err, tc.want, c.Stderr)
			}
		})
	}
}

// TestFault_15_JournalBlocked holds the journal's lock, as a disk that hangs does: the call
// is answered all the same, nothing is sent, and later the plan still holds. When it is
// held behind the claim the outcome waits for it.
func TestFault_15_JournalBlocked(t *testing.T) {
	t.Parallel()
	t.Run("before the claim", func(t *testing.T) {
		t.Parallel()
		_, scale := harness.WebScale(t, cp)
		s := start(t)
		args := s.Plan("scale", scale)
		lock := flock.New(filepath.Join(s.State, "LOCK"))
		if err := lock.Lock(); err != nil {
			t.Fatal(err)
		}
		wantCode(t, s.Must("scale", args), "audit_unavailable")
		wantNoWrites(t, s)
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
		wantOutcome(t, s.Must("scale", args), plan.Executed)
	})
	t.Run("behind the claim", func(t *testing.T) {
		t.Parallel()
		ns, _ := harness.WebScale(t, cp)
		blockedBehindTheClaim(t, "rollout_restart", harness.Of(ns, "deployment", "web"), http.MethodPatch)
	})
	t.Run("behind the claim, before the note", func(t *testing.T) { // which is left out, and fails nothing
		t.Parallel()
		_, scale := harness.WebScale(t, cp)
		blockedBehindTheClaim(t, "scale", scale, http.MethodPut)
	})
}

// blockedBehindTheClaim holds the lock while the write is on its way.
func blockedBehindTheClaim(t *testing.T, action string, call harness.Args, method string) {
	s := start(t)
	args := s.Plan(action, call)
	lock := flock.New(filepath.Join(s.State, "LOCK"))
	isWrite := func(r harness.Request) bool { return r.Mutates() && r.Method == method }
	arrived, release := s.Proxy.Hold(isWrite)
	go func() {
		defer release()
		<-arrived
		if err := lock.Lock(); err != nil {
			t.Error(err)
		}
	}()
	got := s.Must(action, args)
	if harness.Code(got) != "audit_unavailable" || !strings.Contains(got.Text, "may have been applied") {
		t.Errorf("want what may have been applied: %s", got.Text)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the outcome to be on record", func() (bool, error) { return journalHas(s.State, `"late":true`), nil })
	x := wantOutcome(t, s.Must(action, args), plan.Executed)
	wantReplay(t, s, action, args, x)
	if writes := s.Proxy.Requests(isWrite); len(writes) != 1 {
		t.Errorf("%d writes, want 1: %+v", len(writes), writes)
	}
}
