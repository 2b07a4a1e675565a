package journal

import (
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func init() { children["limit"] = childLimit }

// childLimit appends until the kernel lets the file grow no more, in the middle of a
// line; then it appends what still fits.
func childLimit(dir, name string) error {
	j, err := childOpen(dir, name, 0)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGXFSZ)
	const limit = 10_000
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	for {
		err := appendLines(j, &Line{Event: EventRefused, Output: strings.Repeat("x", 1500)})
		if errors.Is(err, syscall.EFBIG) && !errors.Is(err, ErrSealed) {
			break
		}
		if err != nil {
			return fmt.Errorf("want EFBIG, got %w", err)
		}
	}
	return appendLines(j, &Line{Event: EventReplayed})
}

// A real file that is full: the kernel writes a part of a line, which is taken off again.
func TestFileIsFull(t *testing.T) {
	f := newFixture(t)
	cmd, out := child(t, "limit", f.dir, "b")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	events := map[string]int{}
	for _, l := range f.scan() {
		events[l.Event]++
	}
	if diff := cmp.Diff(map[string]int{EventRefused: 5, EventReplayed: 1}, events); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What is reserved is really the file's, it does not make it longer, and what another
// process gives back is taken again.
func TestReserveIsReal(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	has := func() int64 {
		t.Helper()
		var s syscall.Stat_t
		if err := syscall.Stat(f.path, &s); err != nil {
			t.Fatal(err)
		}
		return s.Blocks*512 - s.Size
	}
	f.append(j, &Line{Event: EventRefused})
	if got := has(); got < reserveSize {
		t.Errorf("the disk has %d bytes behind the end, want %d", got, reserveSize)
	}
	if err := syscall.Truncate(f.path, int64(len(f.read()))); err != nil {
		t.Fatal(err)
	}
	if got := has(); got >= reserveSize {
		t.Fatalf("cut, it still has %d bytes behind the end", got)
	}
	f.append(j, &Line{Event: EventRefused})
	if got := has(); got < reserveSize {
		t.Errorf("after a cut by another process it has %d bytes behind the end, want %d", got, reserveSize)
	}
}

// A pipe as the audit file, or in its place later, is refused and blocks nobody.
func TestPipe(t *testing.T) {
	f := newFixture(t)
	if err := syscall.Mkfifo(f.path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.try(); err == nil || !strings.Contains(err.Error(), "a named pipe, not a regular file") {
		t.Errorf("got %v, want the pipe refused", err)
	}
	if err := Scan(f.path, f.keys, func(*Line) error { return nil }); err == nil || !strings.Contains(err.Error(), "a named pipe") {
		t.Errorf("Scan gave %v, want the pipe refused", err)
	}
}
