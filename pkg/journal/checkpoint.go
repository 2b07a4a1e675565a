package journal

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// checkpointsName is the file of signed heads beside the journal. Copies of it kept
// elsewhere are what a journal is held against that was cut off at its end.
const checkpointsName = "checkpoints"

// origin is the first line of every checkpoint, and the beginning of its signer's name.
const origin = "kube-write-mcp/audit"

// Checkpoint is the head of a journal at a time, signed with Ed25519 as a C2SP signed
// note: origin, Seq, Hash in base64, time, and the replica where there is one; an empty line;
// the signature. The key is
// derived from the key of that id for the purpose checkpoint.
type Checkpoint struct {
	Seq  int64  // of the last line
	Hash string // SHA-256 of that line without its newline, hex
	Time time.Time
	KID  string

	Replica string // whose file it is, of several that share a ledger; else ""
}

func checkpointsPath(path string) string { return filepath.Join(filepath.Dir(path), checkpointsName) }

// signer gives the Ed25519 key of a key id, and what a note's signature begins with: four
// bytes that tell keys of one name apart.
func (k *Keyring) signer(kid string) (ed25519.PrivateKey, []byte, error) {
	seed, err := k.Derive(kid, "checkpoint")
	if err != nil {
		return nil, nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	name := append([]byte(origin+"/"+kid+"\n"), 1) // 1 is Ed25519
	sum := sha256.Sum256(append(name, key.Public().(ed25519.PublicKey)...))
	return key, sum[:4], nil
}

func (c Checkpoint) text() ([]byte, error) {
	hash, err := hex.DecodeString(c.Hash)
	text := fmt.Appendf(nil, "%s\n%d\n%s\n%s\n", origin, c.Seq, base64.StdEncoding.EncodeToString(hash), c.Time.UTC().Format(time.RFC3339))
	if c.Replica != "" {
		text = fmt.Appendf(text, "%s\n", c.Replica)
	}
	return text, err
}

// note is the checkpoint as it stands in the file, with an empty line behind it.
func (c Checkpoint) note(keys *Keyring) ([]byte, error) {
	text, err := c.text()
	if err != nil {
		return nil, err
	}
	key, id, err := keys.signer(c.KID)
	if err != nil {
		return nil, err
	}
	sig := base64.StdEncoding.EncodeToString(append(id, ed25519.Sign(key, text)...))
	return fmt.Appendf(text, "\n— %s/%s %s\n\n", origin, c.KID, sig), nil
}

const replicaName = `[A-Za-z0-9][A-Za-z0-9._-]*` // counts would make an expression large

var noteRE = regexp.MustCompile(`^` + regexp.QuoteMeta(origin) + `\n([0-9]{1,18})\n([A-Za-z0-9+/]{43}=)\n([0-9TZ:-]{20})\n(?:(` + replicaName + `)\n)?` +
	`\n— ` + regexp.QuoteMeta(origin) + `/([a-z0-9-]{1,32}) ([A-Za-z0-9+/]{91}=)\n\n?$`)

// errNoNote is of bytes that have not the form of a note, as a killed process leaves them.
var errNoNote = errors.New("it is no whole checkpoint")

// signers are those of the key ids that a file names.
type signers struct {
	keys  *Keyring
	known map[string]signer
}

type signer struct {
	key ed25519.PublicKey
	id  []byte
}

func (s *signers) of(kid string) (signer, error) {
	if known, ok := s.known[kid]; ok {
		return known, nil
	}
	key, id, err := s.keys.signer(kid)
	if err != nil {
		return signer{}, err
	}
	s.known[kid] = signer{key.Public().(ed25519.PublicKey), id}
	return s.known[kid], nil
}

func parseNote(b []byte, keys *signers) (c Checkpoint, err error) {
	m := noteRE.FindSubmatch(b)
	if m == nil {
		return c, errNoNote
	}
	c.Replica, c.KID = string(m[4]), string(m[5])
	if c.Seq, err = strconv.ParseInt(string(m[1]), 10, 64); err != nil {
		return c, err
	}
	if c.Time, err = time.Parse(time.RFC3339, string(m[3])); err != nil {
		return c, err
	}
	hash, err := base64.StdEncoding.Strict().DecodeString(string(m[2]))
	if err != nil {
		return c, err
	}
	c.Hash = hex.EncodeToString(hash)
	by, err := keys.of(c.KID)
	if err != nil {
		return c, err
	}
	sig, err := base64.StdEncoding.Strict().DecodeString(string(m[6]))
	if err != nil {
		return c, err
	}
	text, err := c.text()
	if err != nil {
		return c, err
	}
	if !bytes.Equal(sig[:4], by.id) || !ed25519.Verify(by.key, text, sig[4:]) {
		return c, errors.New("its signature does not match")
	}
	return c, nil
}

// notes cuts a file of checkpoints into what each may be.
func notes(b []byte) (notes [][]byte) {
	mark := []byte(origin + "\n")
	for len(b) > 0 {
		end := len(b)
		if i := bytes.Index(b[1:], mark); i >= 0 {
			end = i + 1
		}
		notes = append(notes, b[:end])
		b = b[end:]
	}
	return notes
}

// ReadCheckpoints reads a file of checkpoints and verifies their signatures; they come in
// the order of their Seq. What a killed process left half written is left out; one that is
// whole and does not verify is an error.
func ReadCheckpoints(path string, keys *Keyring) (list []Checkpoint, err error) {
	f, err := openExisting(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	by := &signers{keys, map[string]signer{}}
	for i, n := range notes(b) {
		c, err := parseNote(n, by)
		switch {
		case errors.Is(err, errNoNote):
		case err != nil:
			return nil, fmt.Errorf("checkpoint %d of %s: %w", i+1, path, err)
		default:
			list = append(list, c)
		}
	}
	slices.SortStableFunc(list, func(a, b Checkpoint) int { return cmp.Compare(a.Seq, b.Seq) })
	return list, nil
}

// lastCheckpoint is the newest one of a file, nil where there is none.
func lastCheckpoint(path string, keys *Keyring) (*Checkpoint, error) {
	f, err := openExisting(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(info.Size(), 4096))
	if _, err := f.ReadAt(b, info.Size()-int64(len(b))); err != nil {
		return nil, err
	}
	for _, n := range slices.Backward(notes(b)) {
		c, err := parseNote(n, &signers{keys, map[string]signer{}})
		if errors.Is(err, errNoNote) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the last checkpoint of %s: %w", path, err)
		}
		return &c, nil
	}
	return nil, nil
}

// A head is signed when so many lines were written since, or so much time has gone by when
// one is.
const (
	checkpointLines = 64
	checkpointEvery = time.Minute
)

// readHeads takes the last checkpoint as what the journal is held against.
func (j *Journal) readHeads() error {
	last, err := lastCheckpoint(checkpointsPath(j.path), j.keys)
	if last != nil {
		j.heads.list = []Checkpoint{*last}
	}
	return err
}

// checkpoint signs the head as it stands. Its file may fail: what it cannot hold is missing
// there and nowhere else.
func (j *Journal) checkpoint() error {
	c := Checkpoint{Seq: j.chain.seq, Hash: j.chain.prev, Time: j.now(), KID: j.keys.Current(), Replica: j.replica}
	if c.Seq == 0 {
		return nil
	}
	b, err := c.note(j.keys)
	if err != nil {
		return err
	}
	f, err := openFile(checkpointsPath(j.path), true)
	if err != nil {
		return err
	}
	j.signed, j.signedAt = c.Seq, c.Time
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// signIfDue is called when lines were written. What is signed must be on the disk, and lines
// of reads, of any process, may not be yet.
func (j *Journal) signIfDue(f file) {
	if j.chain.offset-j.saved >= snapshotEvery && j.now().Sub(j.savedAt).Abs() >= snapshotRest {
		_ = j.save()
	}
	if j.chain.seq/checkpointLines > j.signed/checkpointLines || j.now().Sub(j.signedAt) >= checkpointEvery {
		if j.sync(f) == nil {
			_ = j.checkpoint()
		}
	}
}

// heads holds lines against checkpoints, in the order of both.
type heads struct {
	list      []Checkpoint // those that are still to come
	checked   int
	void      int
	recovered time.Time // when the operator last had lines taken off
}

// line holds one against them; the chain stands behind it.
func (h *heads) line(e *entry, c *chain) error {
	if e.Event == EventRecovered && e.Code != "" && e.Code != recoveredVerified {
		h.recovered = e.Time
	}
	for ; len(h.list) > 0 && h.list[0].Seq <= e.Seq; h.list = h.list[1:] {
		switch p := h.list[0]; {
		case p.Seq < e.Seq: // of a file that was not read
		case p.Hash == c.prev:
			h.checked++
		case h.gone(p):
			h.void++
		default:
			return fmt.Errorf("it is another line than when a checkpoint was made of it at %s: the journal was replaced by an older copy and written on", p.Time.Format(time.RFC3339))
		}
	}
	return nil
}

// end is called behind the last line.
func (h *heads) end(c *chain) error {
	for _, p := range h.list {
		if !h.gone(p) {
			return c.bad(fmt.Errorf("it is missing: a checkpoint of %s says that line %d was written, the last one here is %d: lines were cut off at the end, or the journal was replaced by an older copy",
				p.Time.Format(time.RFC3339), p.Seq, c.seq))
		}
		h.void++
	}
	return nil
}

// gone tells that the operator's recovery took off what a checkpoint is about, on record.
func (h *heads) gone(p Checkpoint) bool { return !h.recovered.Before(p.Time) && !h.recovered.IsZero() }
