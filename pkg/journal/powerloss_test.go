package journal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// sector is what a disk writes as a whole, or not at all.
const sector = 512

// TestPowerLoss cuts the power during every append of one plan's life. What was synced
// before stays; of what was not, each sector may have reached the disk or not, in any
// order, and the file may have any length up to the new one. Whatever is left, what was on
// the disk before is there, nothing that was claimed is free again, and the journal goes
// on or says that it does not.
func TestPowerLoss(t *testing.T) {
	var states, sealed atomic.Int64
	t.Run("where lines begin in a sector", func(t *testing.T) {
		for shift := range 30 {
			t.Run(fmt.Sprint(shift*17), func(t *testing.T) {
				t.Parallel()
				powerLoss(t, shift*17, &states, &sealed)
			})
		}
	})
	if all := states.Load(); all < 1000 || sealed.Load() > all/2 {
		t.Errorf("%d states, %d sealed", all, sealed.Load())
	}
	t.Logf("%d states of the disk, %d of them sealed until the operator looks", states.Load(), sealed.Load())
}

func powerLoss(t *testing.T, shift int, states, sealed *atomic.Int64) {
	f := newFixture(t)
	j := f.open()
	f.append(j, &Line{Event: EventRefused, Output: strings.Repeat("x", shift)})
	before := f.read()
	var synced [][]byte
	for _, batch := range [][]*Line{
		{planLine("p1", epoch.Add(time.Minute))},
		{intentLine("p1", "c1")},
		{{Event: EventStep, Plan: "p1", Claim: "c1", Step: 1, Attempt: 1, Code: "applied", HTTP: 200}, executeLine("p1")},
		{{Event: EventVerify, Plan: "p1"}, {Event: EventReplayed, Plan: "p1"}},
	} {
		f.append(j, batch...)
		synced = append(synced, f.read())
	}
	for k, after := range synced {
		for _, left := range leftOver(before, after) {
			states.Add(1)
			dir := filepath.Join(t.TempDir(), "state")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			g := &fixture{t, dir, filepath.Join(dir, "audit.jsonl"), f.clock, f.keys}
			g.write(left)
			j, err := g.try()
			if err != nil {
				t.Fatalf("append %d, %d bytes: %v", k, len(left), err)
			}
			st := stateOf(t, j, "p1")
			if st.Planned != (k > 0) && k > 0 || st.Claimed != (k > 1) && k > 1 || st.Done != (k > 2) && k > 2 {
				t.Fatalf("append %d, %d bytes: what was on the disk is lost: %+v", k, len(left), st)
			}
			if j.Sealed() != nil {
				sealed.Add(1)
				if err := appendLines(j, &Line{Event: EventReplayed}); err == nil {
					t.Fatalf("append %d, %d bytes: a sealed journal was written", k, len(left))
				}
				if _, err := g.recover(true); err != nil {
					t.Fatalf("append %d, %d bytes: the operator cannot go on: %v", k, len(left), err)
				}
				continue
			}
			g.append(j, &Line{Event: EventReplayed})
			g.scan()
		}
		before = after
	}
}

// leftOver are the files that a power cut may leave between two synced ones.
func leftOver(before, after []byte) (out [][]byte) {
	first := len(before) / sector
	n := (len(after)-1)/sector - first + 1
	lengths := []int{len(before), len(after)}
	for i := range n {
		if end := (first + i + 1) * sector; end < len(after) {
			lengths = append(lengths, end)
		}
	}
	for _, length := range lengths {
		for set := range 1 << n {
			file := make([]byte, length) // what never came is zero
			copy(file, before)
			for i := range n {
				from, to := (first+i)*sector, min((first+i+1)*sector, length)
				if set&(1<<i) != 0 && from < to {
					copy(file[from:to], after[from:to])
				}
			}
			if !slices.ContainsFunc(out, func(b []byte) bool { return bytes.Equal(b, file) }) {
				out = append(out, file)
			}
		}
	}
	return out
}
