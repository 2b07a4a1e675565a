package app

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLossy: a log that nobody reads holds nobody up, and says what it left out.
func TestLossy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		l := newLossy(w)
		for i := range 3 * lossyLines {
			fmt.Fprintf(l, "line %d\n", i)
		}
		synctest.Wait()
		var got bytes.Buffer
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(&got, r)
		}()
		synctest.Wait()
		fmt.Fprintln(l, "the last line")
		l.Close(time.Second)
		w.Close()
		<-read
		lines := strings.Split(strings.TrimSpace(got.String()), "\n")
		if lines[0] != "line 0" || lines[len(lines)-1] != "the last line" || !strings.HasSuffix(lines[len(lines)-2], "lines are left out: nobody read them") {
			t.Errorf("%d lines: %q ... %q", len(lines), lines[0], lines[len(lines)-2:])
		}
		if n := len(lines); n < lossyLines || n > lossyLines+4 {
			t.Errorf("%d lines", n)
		}
		fmt.Fprintln(l, "too late") // and no panic
	})
}

// TestLossyStuck: the end does not wait for ever either.
func TestLossyStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		l := newLossy(w)
		fmt.Fprintln(l, "a line")
		began := time.Now()
		l.Close(time.Second)
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %s", took)
		}
		r.Close() // lets the writer go
	})
}
