package journal

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/json"
)

// ErrUnknownKey is in the error for a key id that the key file does not have.
var ErrUnknownKey = errors.New("unknown key")

// The purposes for which keys are derived. Each has a key of its own, so that what is
// signed for one proves nothing for another.
var purposes = []string{"confirm", "audit", "redact", "checkpoint", "snapshot", "quiet", "ask", "ledger"}

// keySize is the length of a secret and of a derived key, in bytes.
const keySize = 32

var kidRE = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// key is one entry of a key file.
type key struct {
	Secret      []byte    `json:"secret"` // 32 random bytes, base64 in the file
	Created     time.Time `json:"created"`
	RetireAfter time.Time `json:"retire_after,omitzero"` // signs nothing from then on, and still verifies
}

// Keyring holds the secrets of one key file: a JSON object of key id to secret, created
// and, where it is to be replaced, retire_after. It is safe for concurrent use.
type Keyring struct {
	path string
	now  func() time.Time

	mu   sync.Mutex
	keys map[string]key
	read fs.FileInfo // the file as it was read last
}

// LoadKeys reads the key file of a state folder, and makes both when they are missing.
// Processes that start at once get the same key. The file must be ours, with mode 0600.
func LoadKeys(path string, now func() time.Time, random io.Reader) (*Keyring, error) {
	dir := filepath.Dir(path)
	if err := privateDir(dir); err != nil {
		return nil, err
	}
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := makeKeys(path, now(), random); err != nil {
			return nil, fmt.Errorf("making the key file %s: %w", path, err)
		}
	case err != nil:
		return nil, err
	default:
		if err := private(path, info); err != nil {
			return nil, err
		}
	}
	return ReadKeys(path, now)
}

// ReadKeys reads a key file that somebody else made, and never makes one. The file must
// be regular and nobody else's: ours with no right for others, or, as Kubernetes mounts a
// Secret, at most 0440 and ours or root's. Links to it are followed.
func ReadKeys(path string, now func() time.Time) (*Keyring, error) {
	keys, err := readKeys(path)
	if err != nil {
		return nil, err
	}
	return &Keyring{path: path, now: now, keys: keys}, nil
}

func readKeys(path string) (map[string]key, error) {
	f, err := openExisting(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if err := secretFile(path, info); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	keys, err := parseKeys(b)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return keys, nil
}

func parseKeys(b []byte) (map[string]key, error) {
	keys := map[string]key{}
	strict, err := json.UnmarshalStrict(b, &keys)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errors.New("it holds no key")
	}
	for kid, k := range keys {
		switch {
		case !kidRE.MatchString(kid):
			return nil, fmt.Errorf("key id %q is not 1 to 32 characters of a-z, 0-9 and -", kid)
		case len(k.Secret) != keySize:
			return nil, fmt.Errorf("key %s: the secret has %d bytes, not %d", kid, len(k.Secret), keySize)
		case k.Created.IsZero():
			return nil, fmt.Errorf("key %s: created is missing", kid)
		}
	}
	return keys, nil
}

// makeKeys writes a new key file with one key. It is called under the lock.
func makeKeys(path string, now time.Time, random io.Reader) error {
	kid, made, err := makeKey(now, random)
	if err != nil {
		return err
	}
	return writeKeys(path, map[string]key{kid: made})
}

// makeKey makes a key and its id.
func makeKey(now time.Time, random io.Reader) (kid string, k key, err error) {
	secret := make([]byte, keySize+5)
	if _, err := io.ReadFull(random, secret); err != nil {
		return "", key{}, fmt.Errorf("randomness: %w", err)
	}
	kid = strings.ToLower(base32.StdEncoding.EncodeToString(secret[keySize:]))
	return kid, key{Secret: secret[:keySize], Created: now.UTC().Truncate(time.Second)}, nil
}

// writeKeys replaces a key file. It is called under the lock. The file gets its name when
// it is whole and on the disk, so that no reader and no crash meets a part.
func writeKeys(path string, keys map[string]key) error {
	b, err := stdjson.MarshalIndent(keys, "", "  ")
	if err != nil {
		return err
	}
	part := path + ".new"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeNew(part, bytes.NewReader(append(b, '\n'))); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// refresh takes over what another process did to the file: keys that were added, and when
// those that are known are retired. A key that was read once never changes nor goes. A
// file that cannot be read leaves all as it is.
func (k *Keyring) refresh() {
	info, err := os.Stat(k.path)
	if err != nil || k.read != nil && os.SameFile(info, k.read) && info.ModTime().Equal(k.read.ModTime()) && info.Size() == k.read.Size() {
		return
	}
	fresh, err := readKeys(k.path)
	if err != nil {
		return
	}
	k.read = info
	for kid, f := range fresh {
		known, ok := k.keys[kid]
		if ok && !bytes.Equal(known.Secret, f.Secret) {
			continue
		}
		k.keys[kid] = f
	}
}

// Current is the id of the key that signs: the newest one that is not retired, "" when
// all are. It looks whether the file was changed.
func (k *Keyring) Current() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	return k.current()
}

func (k *Keyring) current() string {
	now, current := k.now(), ""
	for _, kid := range slices.Sorted(maps.Keys(k.keys)) {
		c := k.keys[kid]
		if !c.RetireAfter.IsZero() && !now.Before(c.RetireAfter) {
			continue
		}
		if current == "" || c.Created.After(k.keys[current].Created) {
			current = kid
		}
	}
	return current
}

// Derive gives the 32-byte key of one purpose: confirm, audit, redact, checkpoint or snapshot. For an id that
// it does not know it looks into the file again, since another process may have begun to
// sign with a key that was added later; a key that was read once never changes. An id
// that is not there either gives an error that is ErrUnknownKey.
func (k *Keyring) Derive(kid, purpose string) ([]byte, error) {
	if !slices.Contains(purposes, purpose) {
		return nil, fmt.Errorf("keys are derived for %v, not for %q", purposes, purpose)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.keys[kid]; !ok {
		if _, err := readKeys(k.path); err != nil {
			return nil, fmt.Errorf("%w %q: %w", ErrUnknownKey, kid, err)
		}
		k.refresh()
	}
	c, ok := k.keys[kid]
	if !ok {
		return nil, fmt.Errorf("%w %q: %s does not have it, bring back the key file that does", ErrUnknownKey, kid, k.path)
	}
	return hkdf.Key(sha256.New, c.Secret, nil, "kube-write-mcp/"+purpose+"/v1", keySize)
}

// rewrite changes the file under the lock of its folder, as it is then.
func (k *Keyring) rewrite(change func(map[string]key) error) error {
	unlock, err := lock(filepath.Dir(k.path))
	if err != nil {
		return err
	}
	defer unlock()
	keys, err := readKeys(k.path)
	if err != nil {
		return err
	}
	if err := change(keys); err != nil {
		return err
	}
	if err := writeKeys(k.path, keys); err != nil {
		return fmt.Errorf("writing the key file %s: %w", k.path, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	return nil
}

// Rotate adds a key, which signs from now on, and retires those before it after grace, in
// which processes that run may still sign with them; they see the new one at their next
// line. A retired key signs nothing and verifies what it signed.
func (k *Keyring) Rotate(random io.Reader, grace time.Duration) (kid string, err error) {
	err = k.rewrite(func(keys map[string]key) error {
		now := k.now()
		var made key
		if kid, made, err = makeKey(now, random); err != nil {
			return err
		}
		for old, c := range keys {
			if !c.Created.Before(made.Created) {
				made.Created = c.Created.Add(time.Second) // the newest one signs
			}
			if c.RetireAfter.IsZero() {
				c.RetireAfter = now.UTC().Add(grace).Truncate(time.Second)
				keys[old] = c
			}
		}
		keys[kid] = made
		return nil
	})
	return kid, err
}

// Prune takes the retired keys out of the file that no file of the journal names; inUse is
// Report.Keys of a journal that was verified in whole. A key that is not retired stays.
func (k *Keyring) Prune(inUse []string) (dropped []string, err error) {
	err = k.rewrite(func(keys map[string]key) error {
		now := k.now()
		for kid, c := range keys {
			if c.RetireAfter.IsZero() || now.Before(c.RetireAfter) || slices.Contains(inUse, kid) {
				continue
			}
			dropped = append(dropped, kid)
			delete(keys, kid)
		}
		if len(keys) == 0 {
			return errors.New("no key would be left: add one first")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(dropped)
	return dropped, nil
}

// Redact gives what stands in a line in the place of a secret value: the same for the same
// value, with the oldest key so that a rotation does not change it, and of no use to who
// does not have that key.
func (k *Keyring) Redact(value string) string {
	k.mu.Lock()
	oldest := ""
	for _, kid := range slices.Sorted(maps.Keys(k.keys)) {
		if oldest == "" || k.keys[kid].Created.Before(k.keys[oldest].Created) {
			oldest = kid
		}
	}
	k.mu.Unlock()
	secret, err := k.Derive(oldest, "redact")
	if err != nil {
		return "redacted" // an empty keyring, which no reader makes
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(value))
	return "hmac-sha256:" + hex.EncodeToString(h.Sum(nil)[:8])
}

// inUse tells whether a key that was read could have signed at a time. Processes whose
// clocks differ a little write into one file.
func (k *Keyring) inUse(kid string, at time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch c := k.keys[kid]; {
	case at.Before(c.Created.Add(-maxAhead)):
		return fmt.Errorf("it is signed with key %s, which was made only at %s", kid, c.Created.Format(time.RFC3339))
	case !c.RetireAfter.IsZero() && at.After(c.RetireAfter.Add(maxAhead)):
		return fmt.Errorf("it is signed with key %s, which was retired at %s", kid, c.RetireAfter.Format(time.RFC3339))
	}
	return nil
}

// Format prints the file's name whatever the verb, never a secret.
func (k *Keyring) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "keyring(%s)", k.path) }
