package journal

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

// TestOpenBehind: what is asked of a journal while its lines are still being read is
// answered from all of them; what Open refuses is refused at once, or seals.
func TestOpenBehind(t *testing.T) {
	const plans = 200
	begun := func(t *testing.T) (*fixture, Options) {
		f := newFixture(t)
		j, err := f.try() // without the scan at the end: a line is changed
		if err != nil {
			t.Fatal(err)
		}
		for i := range plans {
			f.append(j, planLine(planID(i), epoch.Add(time.Minute)))
		}
		return f, Options{Dir: f.dir, Keys: f.keys, Now: f.clock.now, Inst: "test"}
	}
	t.Run("whole", func(t *testing.T) {
		_, o := begun(t)
		j, ready, err := OpenBehind(o)
		if err != nil {
			t.Fatal(err)
		}
		err = j.View(func(l *Ledger) error {
			for i := range plans {
				if !l.Plan(planID(i)).Planned {
					return fmt.Errorf("the ledger lacks plan %d", i)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		<-ready
		if err := j.Sealed(); err != nil {
			t.Error(err)
		}
	})
	t.Run("a line that was changed seals", func(t *testing.T) {
		f, o := begun(t)
		b := f.read()
		b[len(b)/2] ^= 1
		f.write(b)
		j, _, err := OpenBehind(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := appendLines(j, planLine(planID(plans), epoch.Add(time.Minute))); !errors.Is(err, ErrSealed) {
			t.Errorf("an append gave %v, want ErrSealed", err)
		}
	})
	t.Run("a file that others may read is refused", func(t *testing.T) {
		f, o := begun(t)
		if err := os.Chmod(f.path, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, _, err := OpenBehind(o); err == nil {
			t.Error("it was opened")
		}
	})
}
