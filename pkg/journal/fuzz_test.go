package journal

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// FuzzLine: whatever bytes stand where a line should, the reader does not panic and
// accepts only the lines that were signed, each in its place.
func FuzzLine(f *testing.F) {
	keys := &Keyring{now: func() time.Time { return epoch }, keys: map[string]key{"k1": {Secret: bytes.Repeat([]byte{1}, keySize), Created: epoch}}}
	c := newChain("fuzz", keys)
	var file []byte
	var lines [][]byte
	for i, l := range []*Line{planLine("p1", epoch), intentLine("p1", "c1"), executeLine("p1"), {Event: EventRefused, Output: "no"}} {
		l.V, l.Seq, l.Time, l.Prev, l.KID = version, int64(i+1), epoch, c.prev, "k1"
		b, err := c.sign(l)
		if err != nil {
			f.Fatal(err)
		}
		if _, _, err := c.next(b); err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(bytes.Clone(file), b...))
		lines, file = append(lines, b), append(append(file, b...), '\n')
	}
	f.Add(file)
	f.Add([]byte(`{"v":1,"kid":"k1","mac":"`))
	f.Fuzz(func(t *testing.T, b []byte) {
		whole, n := c, 0
		whole.open("fuzz", 1)
		whole.seq, whole.prev, whole.last = 0, "", time.Time{}
		if _, err := whole.verify(b); err == nil {
			signed := false
			for _, l := range lines {
				signed = signed || bytes.Equal(l, b)
			}
			if !signed {
				t.Fatalf("accepted: %q", b)
			}
		}
		torn, err := whole.read(bytes.NewReader(b), int64(len(b)), func(line []byte, _ *entry, at span) error {
			if n == len(lines) || !bytes.Equal(line, lines[n]) || at.seq != int64(n+1) {
				t.Fatalf("line %d accepted: %q", n+1, line)
			}
			n++
			return nil
		})
		if good := whole.offset; !bytes.Equal(b[:good], file[:good]) || !torn && err == nil && good != int64(len(b)) {
			t.Fatalf("read to %d of %d, torn %v, %v", good, len(b), torn, err)
		}
	})
}

// FuzzCheckpoint: whatever bytes stand where a checkpoint should, only what was signed is
// accepted.
func FuzzCheckpoint(f *testing.F) {
	keys := &Keyring{now: func() time.Time { return epoch }, keys: map[string]key{"k1": {Secret: bytes.Repeat([]byte{1}, keySize), Created: epoch}}}
	want := Checkpoint{Seq: 7, Hash: strings.Repeat("ab", 32), Time: epoch, KID: "k1"}
	note, err := want.note(keys)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(note)
	f.Add(append(bytes.Clone(note[:40]), note...))
	f.Add(append(bytes.Clone(note), note...))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, n := range notes(b) {
			if c, err := parseNote(n, &signers{keys, map[string]signer{}}); err == nil && c != want {
				t.Fatalf("accepted: %q", n)
			}
		}
	})
}
