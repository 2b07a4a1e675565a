package journal

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// faults is a file that fails as told; what it does not fail at, it does.
type faults struct {
	file
	write             int // bytes that still fit; -1 is all
	writeErr          error
	truncate, dataErr error
	syncErr           error
	reserveErr        error
	calls             *[]string
}

func (f *faults) Write(b []byte) (int, error) {
	*f.calls = append(*f.calls, "write")
	if f.write < 0 || f.write > len(b) {
		return f.file.Write(b)
	}
	n, err := f.file.Write(b[:f.write])
	return n, errors.Join(err, f.writeErr)
}

func (f *faults) Truncate(size int64) error {
	*f.calls = append(*f.calls, "truncate")
	if f.truncate != nil {
		return f.truncate
	}
	return f.file.Truncate(size)
}

func (f *faults) Datasync() error {
	*f.calls = append(*f.calls, "datasync")
	if f.dataErr != nil {
		return f.dataErr
	}
	return f.file.Datasync()
}

func (f *faults) Sync() error {
	*f.calls = append(*f.calls, "sync")
	if f.syncErr != nil {
		return f.syncErr
	}
	return f.file.Sync()
}

// Reserve is in calls only where it fails.
func (f *faults) Reserve(from, size int64) error {
	if f.reserveErr != nil {
		*f.calls = append(*f.calls, "reserve")
		return f.reserveErr
	}
	return f.file.Reserve(from, size)
}

func TestWriteFaults(t *testing.T) {
	noSpace, io5 := syscall.ENOSPC, syscall.EIO
	for name, tc := range map[string]struct {
		fault      faults
		wantErr    string
		wantSealed bool
		wantClean  bool // the file is as it was
		wantCalls  []string
	}{
		"no space at all":           {faults{write: 0, writeErr: noSpace}, "nothing was recorded: no space left", false, true, []string{"write", "truncate", "sync"}},
		"space for a part":          {faults{write: 100, writeErr: noSpace}, "nothing was recorded: no space left", false, true, []string{"write", "truncate", "sync"}},
		"space for the first line":  {faults{write: 1000, writeErr: noSpace}, "nothing was recorded: no space left", false, true, []string{"write", "truncate", "sync"}},
		"a short write, no error":   {faults{write: 100}, io.ErrShortWrite.Error(), false, true, []string{"write", "truncate", "sync"}},
		"an input/output error":     {faults{write: 10, writeErr: io5}, "nothing was recorded: input/output error", false, true, []string{"write", "truncate", "sync"}},
		"and the cut fails":         {faults{write: 100, writeErr: noSpace, truncate: io5}, "could not be taken off again: input/output error", true, false, []string{"write", "truncate"}},
		"and the sync of it fails":  {faults{write: 100, writeErr: noSpace, syncErr: io5}, "could not be taken off again: input/output error", true, true, []string{"write", "truncate", "sync"}},
		"the sync of a write fails": {faults{write: -1, dataErr: io5}, "the disk may not have what was written: input/output error", true, false, []string{"write", "datasync"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			j, err := f.try()
			if err != nil {
				t.Fatal(err)
			}
			f.append(j, planLine("p1", epoch.Add(1e12)))
			good := f.read()

			var calls []string
			open := j.open
			j.open = func(path string, create bool) (file, error) {
				under, err := open(path, create)
				fault := tc.fault
				fault.file, fault.calls = under, &calls
				return &fault, err
			}
			two := []*Line{{Event: EventRefused, Output: strings.Repeat("x", 500)}, intentLine("p1", "c1")}
			err = appendLines(j, two...)
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) || errors.Is(err, ErrSealed) != tc.wantSealed {
				t.Errorf("got %v, want %q, sealed %v", err, tc.wantErr, tc.wantSealed)
			}
			if diff := cmp.Diff(tc.wantCalls, calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if clean := bytes.Equal(good, f.read()); clean != tc.wantClean {
				t.Errorf("the file is as it was: %v, want %v", clean, tc.wantClean)
			}
			if s := stateOf(t, j, "p1"); s.Claimed || !s.Planned {
				t.Errorf("the state is %+v, want only what is on the disk", s)
			}

			// The disk is mended: a sealed journal stays so and touches nothing.
			j.open, calls = open, nil
			after := f.read()
			err = appendLines(j, two...)
			if errors.Is(err, ErrSealed) != tc.wantSealed || !tc.wantSealed && err != nil {
				t.Errorf("then it gave %v, want sealed %v", err, tc.wantSealed)
			}
			if tc.wantSealed && !bytes.Equal(after, f.read()) {
				t.Error("a sealed journal has written")
			}
			if p, err := j.Record("p1"); p == nil || err != nil {
				t.Errorf("the record is %v, %v: what was recorded must be readable", p, err)
			}

			// A new process mends what can be mended; where the disk failed, the operator does.
			if err := f.trySealed(); (err != nil) != tc.wantSealed || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("a new process is sealed by %v, want %v", err, tc.wantSealed)
			}
			if tc.wantSealed {
				if did, err := f.recover(false); err != nil || !strings.Contains(did, tc.wantErr) {
					t.Errorf("recovering did %q, %v", did, err)
				}
			}
			again := f.open()
			f.append(again, &Line{Event: EventReplayed})
			wantClaimed := !tc.wantSealed || tc.fault.write < 0 // in the last case the line was written, and nobody could know
			if s := stateOf(t, again, "p1"); s.Claimed != wantClaimed {
				t.Errorf("a new process sees %+v, want claimed %v", s, wantClaimed)
			}
		})
	}
}

// A full disk: what begins something is refused, what ends it has room.
func TestNoRoom(t *testing.T) {
	event := func(e string) *Line { return &Line{Event: e, Plan: "p1"} }
	for name, tc := range map[string]struct {
		lines       []*Line
		wantRefused bool
	}{
		"a plan":                     {[]*Line{planLine("p2", epoch)}, true},
		"a claim":                    {[]*Line{intentLine("p1", "c1")}, true},
		"an outcome with a claim":    {[]*Line{event(EventStep), intentLine("p1", "c1")}, true},
		"a refusal":                  {[]*Line{event(EventRefused)}, true},
		"a replay":                   {[]*Line{event(EventReplayed)}, true},
		"the outcome of a Step":      {[]*Line{event(EventStep)}, false},
		"a result":                   {[]*Line{event(EventStep), executeLine("p1")}, false},
		"unknown":                    {[]*Line{event(EventUnknown)}, false},
		"what was found out":         {[]*Line{event(EventReconciled)}, false},
		"the verdict after a result": {[]*Line{event(EventVerify)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			j := f.open()
			f.append(j, planLine("p1", epoch.Add(time.Hour)))
			j.reserved = 0 // and somebody fills the disk
			before := f.read()
			var calls []string
			open := j.open
			j.open = func(path string, create bool) (file, error) {
				under, err := open(path, create)
				return &faults{file: under, write: -1, reserveErr: syscall.ENOSPC, calls: &calls}, err
			}
			// What is refused stands in nobody's way: an outcome of the same moment is written.
			errs := f.together(j, write(tc.lines...), write(event(EventVerify)))
			if refused := errs[0] != nil; refused != tc.wantRefused || refused && (!errors.Is(errs[0], syscall.ENOSPC) || errors.Is(errs[0], ErrSealed)) {
				t.Errorf("got %v, want it refused: %v", errs[0], tc.wantRefused)
			}
			if errs[1] != nil {
				t.Errorf("an outcome was refused: %v", errs[1])
			}
			if tc.wantRefused {
				tc.lines = nil
			}
			if got := len(f.scan()) - 1; got != len(tc.lines)+1 || !bytes.HasPrefix(f.read(), before) {
				t.Errorf("%d lines were written, want %d", got, len(tc.lines)+1)
			}
			if s := stateOf(t, j, "p1"); tc.wantRefused && s.Claimed {
				t.Error("what was refused is claimed")
			}
			j.open = open
			f.append(j, intentLine("p1", "c1")) // there is room again
		})
	}
}

// room counts what is reserved.
type room struct {
	file
	asked *[][2]int64
}

func (r room) Reserve(from, size int64) error {
	*r.asked = append(*r.asked, [2]int64{from, size})
	return r.file.Reserve(from, size)
}

// Room is made for a whole reserve behind what is written, and again when half of it is
// used up, or when a cut gave it back.
func TestReserve(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	var asked [][2]int64
	open := j.open
	j.open = func(path string, create bool) (file, error) {
		under, err := open(path, create)
		return room{under, &asked}, err
	}
	var ends []int64
	for range 100 {
		before := int64(len(f.read()))
		f.append(j, &Line{Event: EventRefused, Output: strings.Repeat("x", 1000)})
		end := int64(len(f.read()))
		if n := len(asked); n > len(ends) {
			if want := [2]int64{before, end - before + reserveSize}; asked[n-1] != want {
				t.Errorf("asked for %v, want %v", asked[n-1], want)
			}
			ends = append(ends, end)
		}
		if left := ends[len(ends)-1] + reserveSize - end; left < reserveSize/2 {
			t.Fatalf("%d bytes are left", left)
		}
	}
	if size := len(f.read()); len(asked) != 1+size/(reserveSize/2) {
		t.Errorf("asked %d times for %d bytes", len(asked), size)
	}
	asked = nil
	f.write(append(f.read(), "{"...))
	f.append(j, &Line{Event: EventRefused}) // cuts
	if len(asked) != 1 {
		t.Errorf("after a cut it was asked %d times, want once", len(asked))
	}
}

// A torn line of another process is only cut off when a copy of it is safe, and the cut
// itself may fail.
func TestRepairFaults(t *testing.T) {
	f := newFixture(t)
	j, err := f.try()
	if err != nil {
		t.Fatal(err)
	}
	f.append(j, planLine("p1", epoch.Add(1e12)))
	torn := append(f.read(), `{"v":1,"se`...)
	f.write(torn)
	var calls []string
	open := j.open
	j.open = func(path string, create bool) (file, error) {
		under, err := open(path, create)
		return &faults{file: under, write: -1, truncate: syscall.EIO, calls: &calls}, err
	}
	err = appendLines(j, &Line{Event: EventRefused})
	if !errors.Is(err, ErrSealed) || !bytes.Equal(torn, f.read()) {
		t.Errorf("got %v, want it sealed and the file as it was", err)
	}
	if b, err := os.ReadFile(f.path + ".broken-20261130T120000Z"); err != nil || string(b) != `{"v":1,"se` {
		t.Errorf("the copy is %q, %v", b, err)
	}

	// The operator's recovery finds the name taken and keeps a second copy.
	if did, err := f.recover(false); err != nil {
		t.Errorf("%q, %v", did, err)
	}
	f.append(f.open(), &Line{Event: EventRefused})
	if b, err := os.ReadFile(f.path + ".broken-20261130T120000Z-2"); err != nil || string(b) != `{"v":1,"se` {
		t.Errorf("the second copy is %q, %v", b, err)
	}
	if got, want := f.scan()[1].Output, "10 bytes behind line 1 were moved to audit.jsonl.broken-20261130T120000Z-2; it was sealed: 2026"; !strings.HasPrefix(got, want) {
		t.Errorf("on record is %q, want %q", got, want)
	}
}
