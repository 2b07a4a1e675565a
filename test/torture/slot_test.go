package torture

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// slot is one of the processes that share a folder. It is killed and started again, behind
// the same proxy.
type slot struct {
	binary string
	args   []string
	stderr *os.File
	proxy  *harness.Proxy

	mu     sync.Mutex
	cmd    *exec.Cmd
	client *stdio.Client
	killed map[int]bool // every process of this slot that was
	rss    int64        // the most memory that one was seen with, in bytes
	files  int          // and open files
}

func newSlot(t *testing.T, binary, state string) *slot {
	t.Helper()
	proxy := harness.NewProxy(t, harness.Account(t, cp))
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := cp.Kubeconfig(kubeconfig, "kind-lab", proxy.Config()); err != nil {
		t.Fatal(err)
	}
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stderr.Close() })
	args := append([]string{
		"serve", "--kubeconfig", kubeconfig, "--state-dir", state, "--allow-write", "--allow-node-selector", "pool=lab",
		"--ttl", "10m", "--verify-wait", "5s",
	}, wide...)
	s := &slot{binary: binary, args: args, stderr: stderr, proxy: proxy, killed: map[int]bool{}}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.end(true) })
	return s
}

// start starts the process; the lock is the caller's, or nobody else has the slot yet.
func (s *slot) start() error {
	cmd := exec.Command(s.binary, s.args...)
	cmd.Stderr = s.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	s.client, err = stdio.Connect(stdio.Modern, stdin, stdout, nil)
	return err
}

// call calls a tool of whatever process there is now. The error is that it died.
func (s *slot) call(tool string, args any) (stdio.Tool, error) {
	s.mu.Lock()
	c := s.client
	s.mu.Unlock()
	if c == nil {
		return stdio.Tool{}, errors.New("it has ended")
	}
	return c.Call(tool, args)
}

// kill ends the process as kill -9 does, and starts the next one.
func (s *slot) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	s.killed[s.cmd.Process.Pid] = true
	_ = s.cmd.Process.Kill()
	_ = s.client.Close()
	_ = s.cmd.Wait()
	if err := s.start(); err != nil {
		s.cmd, s.client = nil, nil
	}
}

// end ends the slot for good, kindly or not.
func (s *slot) end(kill bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	if kill {
		_ = s.cmd.Process.Kill()
	}
	_ = s.client.Close()
	err := s.cmd.Wait()
	s.cmd, s.client = nil, nil
	return err
}

// measure looks how much the process holds, as Linux tells it.
func (s *slot) measure() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	proc := fmt.Sprintf("/proc/%d/", s.cmd.Process.Pid)
	if files, err := os.ReadDir(proc + "fd"); err == nil {
		s.files = max(s.files, len(files))
	}
	raw, _ := os.ReadFile(proc + "statm")
	if f := strings.Fields(string(raw)); len(f) > 1 {
		pages, _ := strconv.ParseInt(f[1], 10, 64)
		s.rss = max(s.rss, pages*int64(os.Getpagesize()))
	}
}

// tail reads a journal that others write, through all its files, and keeps what it names.
type tail struct {
	path string

	mu   sync.Mutex
	file *os.File
	rest []byte
	seen map[[2]string]bool // event and plan, event and Audit-ID
}

// has reports whether a line with an event names an id, as of now.
func (t *tail) has(event, id string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.catchUp()
	return t.seen[[2]string{event, id}], err
}

func (t *tail) catchUp() error {
	for {
		if t.file == nil {
			f, err := os.Open(t.path)
			if err != nil {
				return err
			}
			t.file = f
		}
		if err := t.read(); err != nil {
			return err
		}
		now, err := os.Stat(t.path)
		if err != nil {
			return err
		}
		mine, err := t.file.Stat()
		if err != nil || os.SameFile(now, mine) {
			return err
		}
		if err := t.read(); err != nil { // it was closed meanwhile, and this is its end
			return err
		}
		t.file.Close()
		t.file, t.rest = nil, nil
	}
}

func (t *tail) read() error {
	var b bytes.Buffer
	b.Write(t.rest)
	if _, err := b.ReadFrom(t.file); err != nil {
		return err
	}
	raw := b.Bytes()
	whole := bytes.LastIndexByte(raw, '\n') + 1
	t.rest = bytes.Clone(raw[whole:])
	for _, line := range splitLines(raw[:whole]) {
		l, err := named(line)
		if err != nil {
			return err
		}
		t.seen[[2]string{l.Event, l.Plan}] = true
		t.seen[[2]string{l.Event, l.AuditID}] = true
	}
	return nil
}
