package journal

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func (f *fixture) checkpoints() []Checkpoint {
	f.Helper()
	list, err := ReadCheckpoints(checkpointsPath(f.path), f.keys)
	if err != nil {
		f.Fatal(err)
	}
	return list
}

// What another program needs to verify a checkpoint, done here without this package's own
// verifier: a C2SP signed note.
func TestCheckpointFormat(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	f.append(j, &Line{Event: EventRefused})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(checkpointsPath(f.path))
	if err != nil {
		t.Fatal(err)
	}
	text, sig, ok := strings.Cut(strings.TrimSuffix(string(b), "\n"), "\n\n")
	text += "\n"
	lines := strings.Split(text, "\n")
	kid := f.keys.Current()
	sig, named := strings.CutPrefix(strings.TrimSuffix(sig, "\n"), "— kube-write-mcp/audit/"+kid+" ")
	raw, err := base64.StdEncoding.DecodeString(sig)
	if !ok || !named || err != nil || len(raw) != 4+ed25519.SignatureSize {
		t.Fatalf("%q, %v", b, err)
	}
	seed, err := f.keys.Derive(kid, "checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	if !ed25519.Verify(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey), []byte(text), raw[4:]) {
		t.Error("the signature does not match")
	}
	if lines[0] != "kube-write-mcp/audit" || lines[1] != "1" || len(lines) != 5 || lines[3] != "2026-11-30T12:00:00Z" {
		t.Errorf("the note is %q", text)
	}
	if info, err := os.Stat(checkpointsPath(f.path)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// A head is signed every 64 lines, when a minute has gone by, when a file is closed and at
// the end.
func TestCheckpointsAreMade(t *testing.T) {
	f := newFixture(t)
	j := f.rotating(1 << 20)
	seqs := func() (s []int64) {
		for _, c := range f.checkpoints() {
			s = append(s, c.Seq)
		}
		return s
	}
	for range 130 {
		f.append(j, &Line{Event: EventReplayed})
	}
	f.clock.at = f.clock.at.Add(59 * time.Second)
	f.append(j, &Line{Event: EventReplayed})
	f.clock.at = f.clock.at.Add(time.Second)
	f.append(j, &Line{Event: EventReplayed})
	f.append(j, &Line{Event: EventReplayed})
	j.rotateAt = 1
	f.append(j, &Line{Event: EventReplayed}) // line 134, and 135 closes the file, 136 begins the next
	j.rotateAt = 1 << 20
	f.append(j, &Line{Event: EventReplayed})
	for range 2 {
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]int64{64, 128, 132, 135, 137}, seqs()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := f.verify(VerifyOptions{}); err != nil {
		t.Error(err)
	}
}

// Whatever is changed in a checkpoint is found; what is torn off is left out.
func TestCheckpointTampering(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	f.append(j, &Line{Event: EventRefused})
	for n := range int64(3) {
		j.signed = 9 + n
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	path := checkpointsPath(f.path)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	one := len(good) / 3
	for at := range good {
		b := bytes.Clone(good)
		b[at] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := ReadCheckpoints(path, f.keys)
		want := 3
		if newline := at%one == one-1; !newline {
			want = 2 // one is no note any more, or its neighbour not either
		}
		if err == nil && len(list) > want {
			t.Errorf("byte %d (%q) was changed, and %d checkpoints are good", at, good[at], len(list))
		}
		for _, c := range list {
			if c.Seq != 1 || c.Hash != j.chain.prev {
				t.Errorf("byte %d was changed, and there is %+v", at, c)
			}
		}
	}
	for n := range good {
		if err := os.WriteFile(path, append(bytes.Clone(good[:n]), good[:one]...), 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := ReadCheckpoints(path, f.keys)
		if err != nil || len(list) < n/one || n%one == 0 && len(list) != n/one+1 {
			t.Errorf("after %d bytes and a new one: %d, %v", n, len(list), err)
		}
		last, err := lastCheckpoint(path, f.keys)
		if err != nil || n%one == 0 && last == nil {
			t.Errorf("after %d bytes and a new one the last is %v, %v", n, last, err)
		}
	}
}

// A process that begins holds the journal against the last checkpoint.
func TestOpenAgainstCheckpoint(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(f *fixture, b, older []byte)
		want   string
	}{
		"as it was":           {func(*fixture, []byte, []byte) {}, ""},
		"an older copy":       {func(f *fixture, _, older []byte) { f.write(older) }, "a checkpoint of 2026-11-30T12:00:00Z says that line 5 was written, the last one here is 3"},
		"the end is torn off": {func(f *fixture, b, _ []byte) { f.write(b[:len(b)-5]) }, "line 5 was written"},
		"an older copy, written on": {func(f *fixture, _, older []byte) {
			f.write(older)
			path := checkpointsPath(f.path)
			if err := os.Rename(path, path+".x"); err != nil {
				f.Fatal(err)
			}
			j, err := f.try()
			if err != nil {
				f.Fatal(err)
			}
			f.append(j, &Line{Event: EventReplayed}, &Line{Event: EventReplayed}, &Line{Event: EventReplayed})
			if err := os.Rename(path+".x", path); err != nil {
				f.Fatal(err)
			}
		}, "line 5 (at byte"},
		"no checkpoint":             {func(f *fixture, _, older []byte) { f.write(older); _ = os.Remove(checkpointsPath(f.path)) }, ""},
		"a checkpoint that is torn": {func(f *fixture, b, _ []byte) { _ = os.Truncate(checkpointsPath(f.path), 50) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			j, err := f.try()
			if err != nil {
				t.Fatal(err)
			}
			f.append(j, &Line{Event: EventRefused}, &Line{Event: EventRefused}, &Line{Event: EventRefused})
			older := f.read()
			f.append(j, &Line{Event: EventRefused}, &Line{Event: EventRefused})
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			tc.change(f, f.read(), older)
			err = f.trySealed()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if tc.want != "" {
				if did, err := f.recover(false); name == "an older copy" && err == nil {
					t.Errorf("without being asked to, it did %q", did)
				}
				f.clock.at = f.clock.at.Add(time.Second)
				if did, err := f.recover(true); err != nil || f.trySealed() != nil {
					t.Errorf("it did %q, %v, and is sealed by %v", did, err, f.trySealed())
				}
			}
		})
	}
}
