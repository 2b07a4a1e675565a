package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// together makes Appends that wait at the same time, in that order, and gives their
// errors.
func (f *fixture) together(j *Journal, decides ...func(*Ledger) ([]*Line, error)) []error {
	f.Helper()
	errs := make([]error, len(decides))
	var wg sync.WaitGroup
	j.mu.Lock()
	for i, decide := range decides {
		wg.Go(func() { errs[i] = errNeverBack; errs[i] = j.Append(decide) })
		for {
			j.queueMu.Lock()
			n := len(j.queue)
			j.queueMu.Unlock()
			if n == i+1 {
				break
			}
			runtime.Gosched()
		}
	}
	j.mu.Unlock()
	wg.Wait()
	return errs
}

var errNeverBack = errors.New("Append did not come back")

func write(lines ...*Line) func(*Ledger) ([]*Line, error) {
	return func(*Ledger) ([]*Line, error) { return lines, nil }
}

// claim is what the engine does: it claims a plan that nobody has claimed.
func claim(id, by string) func(*Ledger) ([]*Line, error) {
	return func(l *Ledger) ([]*Line, error) {
		if l.Plan(id).Claimed {
			return nil, errTaken
		}
		return []*Line{intentLine(id, by)}, nil
	}
}

func TestGroup(t *testing.T) {
	errNo := errors.New("refused")
	refuse := func(*Ledger) ([]*Line, error) { return nil, errNo }
	tooLong := write(&Line{Event: EventRefused}, &Line{Event: EventRefused, Output: strings.Repeat("x", MaxLine)})
	for name, tc := range map[string]struct {
		decides    []func(*Ledger) ([]*Line, error)
		fault      faults
		wantErrs   []string // parts; "" is none
		wantEvents []string
		wantCalls  []string
		wantSealed bool
	}{
		"one write, one sync": {
			decides:    []func(*Ledger) ([]*Line, error){write(&Line{Event: EventRefused}), claim("p1", "a"), write(&Line{Event: EventReplayed}, &Line{Event: EventRefused})},
			fault:      faults{write: -1},
			wantErrs:   []string{"", "", ""},
			wantEvents: []string{EventRefused, EventIntent, EventReplayed, EventRefused},
			wantCalls:  []string{"write", "datasync"},
		},
		"each sees what was decided before it": {
			decides:    []func(*Ledger) ([]*Line, error){claim("p1", "a"), claim("p1", "b"), claim("p2", "c"), claim("p1", "d"), claim("p2", "e")},
			fault:      faults{write: -1},
			wantErrs:   []string{"", "taken", "", "taken", "taken"},
			wantEvents: []string{EventIntent, EventIntent},
			wantCalls:  []string{"write", "datasync"},
		},
		"one that is refused or cannot be written disturbs no other": {
			decides:    []func(*Ledger) ([]*Line, error){refuse, tooLong, claim("p1", "a"), tooLong, refuse, claim("p2", "b"), write()},
			fault:      faults{write: -1},
			wantErrs:   []string{"refused", "the most is", "", "the most is", "refused", "", ""},
			wantEvents: []string{EventIntent, EventIntent},
			wantCalls:  []string{"write", "datasync"},
		},
		"nobody has lines": {
			decides:  []func(*Ledger) ([]*Line, error){refuse, write()},
			fault:    faults{write: -1},
			wantErrs: []string{"refused", ""},
		},
		"not written: nobody acts on it": {
			decides:   []func(*Ledger) ([]*Line, error){refuse, claim("p1", "a"), claim("p1", "b"), claim("p2", "c"), write()},
			fault:     faults{write: 100, writeErr: syscall.ENOSPC},
			wantErrs:  []string{"refused", "nothing was recorded", "nothing was recorded", "nothing was recorded", "nothing was recorded"},
			wantCalls: []string{"write", "truncate", "sync"},
		},
		"not synced: all are sealed": {
			decides:    []func(*Ledger) ([]*Line, error){claim("p1", "a"), claim("p1", "b")},
			fault:      faults{write: -1, dataErr: syscall.EIO},
			wantErrs:   []string{"may not have what was written", "may not have what was written"},
			wantEvents: []string{EventIntent},
			wantCalls:  []string{"write", "datasync"},
			wantSealed: true,
		},
		"a panic is one caller's": {
			decides:    []func(*Ledger) ([]*Line, error){claim("p1", "a"), func(*Ledger) ([]*Line, error) { panic("oh") }, claim("p2", "b")},
			fault:      faults{write: -1},
			wantErrs:   []string{"", "deciding what to record failed: oh", ""},
			wantEvents: []string{EventIntent, EventIntent},
			wantCalls:  []string{"write", "datasync"},
		},
		"a goroutine ends in decide": {
			decides:  []func(*Ledger) ([]*Line, error){claim("p1", "a"), func(*Ledger) ([]*Line, error) { runtime.Goexit(); return nil, nil }, claim("p2", "b")},
			fault:    faults{write: -1},
			wantErrs: []string{"", "goroutine", "goroutine"}, // the first one is the goroutine that ends
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			j, err := f.try()
			if err != nil {
				t.Fatal(err)
			}
			f.append(j, planLine("p1", epoch.Add(time.Hour)), planLine("p2", epoch.Add(time.Hour)))
			var calls []string
			open := j.open
			j.open = func(path string, create bool) (file, error) {
				under, err := open(path, create)
				fault := tc.fault
				fault.file, fault.calls = under, &calls
				return &fault, err
			}
			errs := f.together(j, tc.decides...)
			for i, err := range errs {
				if err == errNeverBack && i == 0 && tc.wantErrs[0] == "" && tc.wantEvents == nil {
					continue // it ended, as it should
				}
				if want := tc.wantErrs[i]; (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) || errors.Is(err, ErrSealed) != tc.wantSealed {
					t.Errorf("caller %d got %v, want %q, sealed %v", i, err, want, tc.wantSealed)
				}
			}
			var events []string
			for _, l := range f.scan()[2:] {
				events = append(events, l.Event)
			}
			if diff := cmp.Diff(tc.wantEvents, events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantCalls, calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			for n, id := range []string{"p1", "p2"} {
				on := 0
				for _, l := range f.scan() {
					if l.Event == EventIntent && l.Plan == id {
						on++
					}
				}
				if s := stateOf(t, j, id); s.Claimed != (on == 1 && !tc.wantSealed) || on > 1 {
					t.Errorf("plan %d has %d claims on record, its state says %+v", n+1, on, s)
				}
			}
			if !tc.wantSealed {
				j.open = open
				f.append(j, &Line{Event: EventRefused}) // it goes on
			}
		})
	}
}

// A ledger on another shows what one shows that folded everything.
func TestLedgerOnAnother(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		var whole, under Ledger
		over := Ledger{under: &under}
		at, n := epoch, 40
		var before [6]State
		show := func(l *Ledger) map[string]any {
			m := map[string]any{"open": l.Open(epoch), "unsettled": l.Unsettled()}
			for i := range 6 {
				m[planID(i)] = l.Plan(planID(i))
				if r := l.record(planID(i)); r != nil {
					m["result of "+planID(i)] = r.result.seq
				}
			}
			for i := range 3 {
				for minutes := range 10 {
					ready, when := l.Peak(fmt.Sprint(i), at.Add(time.Duration(-minutes)*time.Minute))
					m[fmt.Sprint("peak ", i, minutes)] = []any{ready, when}
				}
				m[fmt.Sprint("writes ", i)] = l.Writes(fmt.Sprint(i), at.Add(-rateMemory))
				m[fmt.Sprint("plans ", i)] = l.Plans(fmt.Sprint(i), at.Add(-rateMemory))
			}
			return m
		}
		for i := range n {
			at = at.Add(time.Duration(random.IntN(20)) * time.Second)
			e := entry{
				Time: at, Plan: planID(random.IntN(6)), Cluster: fmt.Sprint(random.IntN(2)), Step: 1 + random.IntN(2), Attempt: 1 + random.IntN(2),
				Event: []string{EventPlan, EventIntent, EventStep, EventUnknown, EventExecute, EventReconciled, EventVerify, EventStale, EventExpired, EventRefused}[random.IntN(10)],
				Ready: []Capacity{{fmt.Sprint(random.IntN(3)), random.IntN(5)}},
			}
			if e.Event == EventPlan {
				e.Record = &entryRecord{Action: "scale", Expires: at.Add(time.Hour), Steps: []entryStep{{}}}
			}
			span := span{seq: int64(i + 1)}
			whole.add(&e, span)
			if i < n/2 {
				under.add(&e, span)
				for id := range before {
					before[id] = under.Plan(planID(id))
				}
			} else {
				over.add(&e, span)
			}
		}
		if diff := cmp.Diff(show(&whole), show(&over)); diff != "" {
			t.Fatalf("round %d (-whole +on another):\n%s", round, diff)
		}
		for id, want := range before {
			if diff := cmp.Diff(want, under.Plan(planID(id))); diff != "" {
				t.Fatalf("round %d: what lies under was changed (-want +got):\n%s", round, diff)
			}
		}
	}
}
