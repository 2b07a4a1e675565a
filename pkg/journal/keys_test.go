package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func secret(b byte) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, keySize))
}

func keyFile(t *testing.T, content string, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKeysAreMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	path := filepath.Join(dir, "keys.json")
	c := clock{epoch}
	first, err := LoadKeys(path, c.now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadKeys(path, c.now, strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	if !kidRE.MatchString(first.Current()) || first.Current() != again.Current() {
		t.Errorf("keys %q and %q, want one", first.Current(), again.Current())
	}
	for p, want := range map[string]fs.FileMode{path: 0o600, dir: 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", p, info.Mode(), err, want)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 { // and LOCK
		t.Errorf("%v, %v: something is left behind", entries, err)
	}
	if _, err := LoadKeys(filepath.Join(t.TempDir(), "s", "keys.json"), c.now, strings.NewReader("too short")); err == nil {
		t.Error("a key was made of too little randomness")
	}
}

// Processes that start at once agree on one key, whatever a killed one left behind.
func TestKeysFirstUseRace(t *testing.T) {
	for range 5 {
		dir := filepath.Join(t.TempDir(), "state")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "keys.json.new"), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		var outs []string
		var wait []func()
		for range 4 {
			cmd, out := child(t, "keys", dir, "b")
			wait = append(wait, func() {
				if err := cmd.Wait(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
				outs = append(outs, out.String())
			})
		}
		for _, w := range wait {
			w()
		}
		for _, o := range outs {
			if o != outs[0] || len(o) < 64 {
				t.Fatalf("processes have different keys: %q", outs)
			}
		}
	}
}

func TestReadKeysRefuses(t *testing.T) {
	good := `{"k1": {"secret": "` + secret(1) + `", "created": "2026-11-30T00:00:00Z"}}`
	for name, tc := range map[string]struct {
		content string
		mode    fs.FileMode
		want    string // "" is accepted
	}{
		"good":                   {good, 0o600, ""},
		"read-only":              {good, 0o400, ""},
		"a mounted Secret":       {good, 0o440, ""},
		"group may write":        {good, 0o660, "(mode 0660): chmod 600"},
		"group may read":         {good, 0o640, "(mode 0640): chmod 600"},
		"everybody may read":     {good, 0o444, "(mode 0444): chmod 600"},
		"not JSON":               {"key", 0o600, "invalid character"},
		"no key":                 {"{}", 0o600, "no key"},
		"null":                   {"null", 0o600, "no key"},
		"two of one id":          {`{"k1": {}, "k1": {}}`, 0o600, `duplicate field "k1"`},
		"an unknown field":       {strings.Replace(good, "created", "creatd", 1), 0o600, `unknown field "k1.creatd"`},
		"another case":           {strings.Replace(good, "created", "Created", 1), 0o600, `unknown field "k1.Created"`},
		"no time":                {`{"k1": {"secret": "` + secret(1) + `"}}`, 0o600, "created is missing"},
		"a short secret":         {`{"k1": {"secret": "AAAA", "created": "2026-11-30T00:00:00Z"}}`, 0o600, "3 bytes, not 32"},
		"not base64":             {`{"k1": {"secret": "!!", "created": "2026-11-30T00:00:00Z"}}`, 0o600, "illegal base64"},
		"an id that is no token": {strings.Replace(good, "k1", "K 1", 1), 0o600, `key id "K 1"`},
	} {
		t.Run(name, func(t *testing.T) {
			path := keyFile(t, tc.content, tc.mode)
			k, err := ReadKeys(path, time.Now)
			switch {
			case tc.want == "" && (err != nil || k.Current() != "k1"):
				t.Errorf("got %v, %v, want it accepted", k, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q", err, tc.want)
			case err != nil && strings.Contains(err.Error(), secret(1)):
				t.Errorf("the secret is in the error: %v", err)
			}
		})
	}
	for name, tc := range map[string]struct {
		path string
		want string
	}{
		"missing":  {filepath.Join(t.TempDir(), "keys.json"), "no such file"},
		"a folder": {t.TempDir(), "a folder, not a regular file"},
		"a device": {os.DevNull, "a device, not a regular file"},
	} {
		if _, err := ReadKeys(tc.path, time.Now); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
		if _, err := os.Stat(tc.path); name == "missing" && !errors.Is(err, fs.ErrNotExist) {
			t.Error("a given key file was made")
		}
	}
}

// The key file of a state folder is made by us alone: nothing of what a mounted Secret
// may be is accepted of it.
func TestLoadKeysRefuses(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.dir, "keys.json")
	for name, tc := range map[string]struct {
		prepare func() error
		want    string
	}{
		"group may read": {func() error { return os.Chmod(path, 0o440) }, "(mode 0440): chmod 600"},
		"a link":         {func() error { return errors.Join(os.Rename(path, path+".x"), os.Symlink(path+".x", path)) }, "a symbolic link"},
	} {
		if err := tc.prepare(); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadKeys(path, f.clock.now, rand.Reader); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
		_ = errors.Join(os.Remove(path+".x"), os.Remove(path))
		if _, err := LoadKeys(path, f.clock.now, rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
}

// As Kubernetes mounts a Secret, behind two links.
func TestReadKeysFollowsLinks(t *testing.T) {
	real := keyFile(t, `{"k1": {"secret": "`+secret(1)+`", "created": "2026-11-30T00:00:00Z"}}`, 0o440)
	dir := t.TempDir()
	if err := errors.Join(os.Symlink(filepath.Dir(real), filepath.Join(dir, "..data")),
		os.Symlink(filepath.Join("..data", "keys.json"), filepath.Join(dir, "keys.json"))); err != nil {
		t.Fatal(err)
	}
	if k, err := ReadKeys(filepath.Join(dir, "keys.json"), time.Now); err != nil || k.Current() != "k1" {
		t.Errorf("got %v, %v, want k1", k, err)
	}
}

func TestCurrent(t *testing.T) {
	entry := func(kid, created, retire string) string {
		if retire != "" {
			retire = `, "retire_after": "` + retire + `"`
		}
		return fmt.Sprintf(`%q: {"secret": %q, "created": %q%s}`, kid, secret(1), created, retire)
	}
	const day1, day2, day3 = "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z", "2026-11-03T00:00:00Z"
	for name, tc := range map[string]struct {
		entries []string
		now     string
		want    string
	}{
		"one":                         {[]string{entry("a", day1, "")}, day3, "a"},
		"the newest":                  {[]string{entry("c", day1, ""), entry("a", day2, ""), entry("b", day1, "")}, day3, "a"},
		"of two of one age the first": {[]string{entry("b", day1, ""), entry("a", day1, "")}, day3, "a"},
		"not yet retired":             {[]string{entry("a", day1, day3)}, day2, "a"},
		"retired from that moment":    {[]string{entry("a", day2, day3), entry("b", day1, "")}, day3, "b"},
		"all retired":                 {[]string{entry("a", day1, day2)}, day3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			now, err := time.Parse(time.RFC3339, tc.now)
			if err != nil {
				t.Fatal(err)
			}
			path := keyFile(t, "{"+strings.Join(tc.entries, ",")+"}", 0o600)
			k, err := ReadKeys(path, func() time.Time { return now })
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, k.Current()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDerive(t *testing.T) {
	path := keyFile(t, `{"k1": {"secret": "`+secret(1)+`", "created": "2026-11-30T00:00:00Z"}}`, 0o600)
	k, err := ReadKeys(path, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	// The derivation is a format: another value would make every old journal unreadable.
	// RFC 5869 with SHA-256, no salt, info kube-write-mcp/<purpose>/v1, first 16 bytes.
	want := map[string]string{
		"confirm": "3ba95ccdbe443eb07b28acad16d50e52",
		"audit":   "67506cebba54cc13fe5c444cd6cb4c60",
		"redact":  "b006e3476af6731c003a79c583a6c887",
	}
	got := map[string]string{}
	for purpose := range want {
		b, err := k.Derive("k1", purpose)
		if err != nil || len(b) != keySize {
			t.Fatalf("%s: %d bytes, %v", purpose, len(b), err)
		}
		got[purpose] = fmt.Sprintf("%x", b[:16])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := k.Derive("k1", "other"); err == nil || errors.Is(err, ErrUnknownKey) {
		t.Errorf("got %v for a purpose that there is not", err)
	}
	swapped := `{"k1": {"secret": "` + secret(2) + `", "created": "2026-11-30T00:00:00Z"}}`
	if err := os.WriteFile(path, []byte(swapped), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Derive("k2", "audit"); !errors.Is(err, ErrUnknownKey) { // it looks into the file
		t.Errorf("got %v, want ErrUnknownKey", err)
	}
	if b, err := k.Derive("k1", "audit"); err != nil || fmt.Sprintf("%x", b[:16]) != want["audit"] {
		t.Errorf("a key that was read changed to %x, %v", b, err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x"} {
		if s := fmt.Sprintf(verb, k); s != "keyring("+path+")" {
			t.Errorf("%s prints %s", verb, s)
		}
	}
}

// A key that was added while two processes run: the one that was restarted signs with
// it, the other one learns it from the file. A key that is swapped is found.
func TestKeyIsAdded(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.dir, "keys.json")
	j := f.open()
	f.append(j, planLine("p1", epoch.Add(time.Hour)))
	old := f.keys.Current()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	added := strings.Replace(string(b), "{", `{"new": {"secret": "`+secret(2)+`", "created": "2027-01-01T00:00:00Z"},`, 1)
	if err := os.WriteFile(path, []byte(added), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := ReadKeys(path, f.clock.now)
	if err != nil {
		t.Fatal(err)
	}
	restarted, err := Open(Options{Dir: f.dir, Keys: keys, Now: f.clock.now, Inst: "tesu"})
	if err != nil {
		t.Fatal(err)
	}
	f.append(restarted, intentLine("p1", "c1"))
	if s := stateOf(t, j, "p1"); !s.Claimed {
		t.Errorf("the older process sees %+v", s)
	}
	f.append(j, &Line{Event: EventReplayed})
	var kids []string
	for _, l := range f.scan() {
		kids = append(kids, l.KID)
	}
	if diff := cmp.Diff([]string{old, "new", "new"}, kids); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}

	swapped := keyFile(t, strings.Replace(added, secret(2), secret(3), 1), 0o600)
	if keys, err = ReadKeys(swapped, f.clock.now); err != nil {
		t.Fatal(err)
	}
	err = Scan(f.path, keys, func(*Line) error { return nil })
	if bad, ok := errors.AsType[*BadLine](err); !ok || bad.Line != 2 {
		t.Errorf("got %v, want line 2 not to match", err)
	}
}

// A lost key file is not replaced silently: the new key cannot read the old lines.
func TestKeyIsLost(t *testing.T) {
	f := newFixture(t)
	f.append(f.open(), &Line{Event: EventRefused})
	path := filepath.Join(f.dir, "keys.json")
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	keys, err := LoadKeys(path, f.clock.now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	j, err := Open(Options{Dir: f.dir, Keys: keys, Now: f.clock.now, Inst: "test"})
	if err != nil {
		t.Fatal(err)
	}
	err = j.Sealed()
	bad, ok := errors.AsType[*BadLine](err)
	if !ok || bad.Line != 1 || !errors.Is(err, ErrUnknownKey) || !strings.Contains(err.Error(), "bring back the key file") {
		t.Errorf("got %v, want line 1 of an unknown key", err)
	}
}
