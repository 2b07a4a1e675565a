package journal

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A new key signs at once, also in a process that runs; the old one verifies what it
// signed, until no file names it.
func TestRotateKeys(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.dir, "keys.json")
	other, err := ReadKeys(path, f.clock.now) // of another process
	if err != nil {
		t.Fatal(err)
	}
	j := f.open()
	f.append(j, &Line{Event: EventRefused})
	first := f.keys.Current()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	second, err := other.Rotate(rand.Reader, time.Minute)
	if err != nil || second == first {
		t.Fatalf("%s, %v", second, err)
	}
	if got := f.keys.Current(); got != second || other.Current() != second {
		t.Errorf("%s and %s sign, want %s", got, other.Current(), second)
	}
	f.append(j, &Line{Event: EventRefused})
	f.clock.at = epoch.Add(time.Hour)
	f.append(j, &Line{Event: EventRefused})
	var kids []string
	for _, l := range f.scan() {
		kids = append(kids, l.KID)
	}
	if diff := cmp.Diff([]string{first, second, second}, kids); diff != "" {
		t.Errorf("signed by (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if c := other.keys[first]; !c.RetireAfter.Equal(epoch.Add(time.Minute)) {
		t.Errorf("the first is retired at %v", c.RetireAfter)
	}

	r, err := f.verify(VerifyOptions{})
	if err != nil || len(r.Keys) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if dropped, err := other.Prune(r.Keys); err != nil || dropped != nil {
		t.Errorf("dropped %v, %v, although lines name them", dropped, err)
	}
	if dropped, err := other.Prune(nil); err != nil || !cmp.Equal(dropped, []string{first}) {
		t.Errorf("dropped %v, %v, want only the retired one", dropped, err)
	}
	if keys, err := readKeys(path); err != nil || len(keys) != 1 {
		t.Errorf("%d keys, %v", len(keys), err)
	}

	// What was retired long before, and brought back, signs nothing.
	if err := os.WriteFile(path, before, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := f.keys.Current(); got != second {
		t.Errorf("%q signs, want %s", got, second)
	}
}

// With every key retired nothing is signed, and it is said why; another process's rotation
// helps at once.
func TestEveryKeyIsRetired(t *testing.T) {
	f := newFixture(t)
	j := f.open()
	kid := f.keys.Current()
	if err := f.keys.rewrite(func(keys map[string]key) error {
		c := keys[kid]
		c.RetireAfter = epoch
		keys[kid] = c
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := appendLines(j, &Line{Event: EventRefused}); err == nil || !strings.Contains(err.Error(), "every key is retired") || errors.Is(err, ErrSealed) {
		t.Errorf("got %v, want it said", err)
	}
	if dropped, err := f.keys.Prune(nil); err == nil {
		t.Errorf("dropped %v, the last key", dropped)
	}
	other, err := ReadKeys(filepath.Join(f.dir, "keys.json"), f.clock.now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Rotate(rand.Reader, 0); err != nil {
		t.Fatal(err)
	}
	f.append(j, &Line{Event: EventRefused})
}

// A key whose secret is another one under the same id is not taken over.
func TestSwappedKeys(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.dir, "keys.json")
	kid := f.keys.Current()
	want, err := f.keys.Derive(kid, "audit")
	if err != nil {
		t.Fatal(err)
	}
	if err := writeKeys(path, map[string]key{kid: {Secret: bytes.Repeat([]byte{7}, keySize), Created: epoch.Add(time.Hour)}}); err != nil {
		t.Fatal(err)
	}
	if got := f.keys.Current(); got != kid {
		t.Errorf("%q signs", got)
	}
	if got, err := f.keys.Derive(kid, "audit"); err != nil || !bytes.Equal(want, got) {
		t.Errorf("the key changed, %v", err)
	}
}

// A process is killed while it rewrites the key file: the old one is whole, and what was
// left over is no hindrance.
func TestKeyRewriteIsCutOff(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.dir, "keys.json")
	if err := os.WriteFile(path+".new", []byte(`{"half":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readKeys(path); err != nil {
		t.Fatal(err)
	}
	kid, err := f.keys.Rotate(rand.Reader, time.Minute)
	if err != nil || f.keys.Current() != kid || exists(path+".new") {
		t.Errorf("%s, %v", kid, err)
	}
	if _, err := f.keys.Rotate(strings.NewReader("short"), 0); err == nil || f.keys.Current() != kid {
		t.Error("a key was made without randomness")
	}
}

func TestRedact(t *testing.T) {
	f := newFixture(t)
	secret, err := f.keys.Derive(f.keys.Current(), "redact")
	if err != nil {
		t.Fatal(err)
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("hunter2"))
	want := "hmac-sha256:" + hex.EncodeToString(h.Sum(nil))[:16]
	if got := f.keys.Redact("hunter2"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if f.keys.Redact("hunter3") == want || newFixture(t).keys.Redact("hunter2") == want {
		t.Error("another value, or another key, gives the same")
	}
	if _, err := f.keys.Rotate(rand.Reader, 0); err != nil {
		t.Fatal(err)
	}
	if got := f.keys.Redact("hunter2"); got != want {
		t.Errorf("after a rotation %s, want %s", got, want)
	}
}
