package journal

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// MaxLine is how many bytes a line has at most, without its newline.
const MaxLine = 256 << 10

// version is the format of a line.
const version = 1

// Every line ends with its mac. What the mac covers is everything before macKey, cut from
// the bytes as they stand and never encoded again.
const (
	macKey  = `,"mac":"`
	macEnd  = `"}`
	macTail = len(macKey) + 2*sha256.Size + len(macEnd)
)

// BadLine is a line that cannot be trusted, and why.
type BadLine struct {
	Path   string
	Line   int64 // in the file, from 1
	Offset int64 // of its first byte
	Why    error
}

// Error names the line and says what it means.
func (b *BadLine) Error() string {
	return fmt.Sprintf("%s, line %d (at byte %d): %v; nothing is written to a file that cannot be trusted: restore it, or run kube-write-mcp audit recover", b.Path, b.Line, b.Offset, b.Why)
}

// Unwrap gives the reason, which may be ErrUnknownKey.
func (b *BadLine) Unwrap() error { return b.Why }

// Scan reads a journal from its first line to its last, the closed files that lie beside
// path and then path, verifies each line and shows it. It stops at the first line that
// cannot be trusted, with a *BadLine, and at the first error of see, which it returns
// unchanged. Of a file in use it reads what was there when it began. Lines missing at the
// end cannot be found from the files alone.
func Scan(path string, keys *Keyring, see func(*Line) error) error {
	c := newChain(path, keys)
	return c.walk(func(b []byte, _ *entry, _ span) error {
		l, err := c.decode(b)
		if err != nil {
			return err
		}
		return see(l)
	})
}

// decode gives a line that was verified whole.
func (c *chain) decode(b []byte) (*Line, error) {
	var l Line
	if err := json.Unmarshal(b, &l); err != nil {
		return nil, c.bad(err) // signed, and yet no Line: of another version
	}
	return &l, nil
}

// entry is what the fold needs of a line.
type entry struct {
	V     int       `json:"v"`
	Seq   int64     `json:"seq"`
	Time  time.Time `json:"ts"`
	Inst  string    `json:"inst"`
	Event string    `json:"event"`

	Plan    string `json:"plan"`
	Cluster string `json:"cluster"`

	Claim     string     `json:"claim"`
	Step      int        `json:"step"`
	Attempt   int        `json:"attempt"`
	StepKey   string     `json:"step_key"`
	AuditID   string     `json:"audit_id"`
	RV        string     `json:"rv"`
	Gen       int64      `json:"gen"`
	Reason    string     `json:"reason"`
	HTTP      int        `json:"http"`
	Code      string     `json:"code"`
	Output    string     `json:"output"`
	Untrusted string     `json:"untrusted"`
	Ready     []Capacity `json:"ready"`
	Channel   string     `json:"channel"`

	Record       *entryRecord       `json:"record"`
	Verification *plan.Verification `json:"verification"`
	Segment      *Segment           `json:"segment"`

	Prev string `json:"prev"`
	KID  string `json:"kid"`
}

// entryRecord is what it needs of a plan.
type entryRecord struct {
	Action  string      `json:"action"`
	Expires time.Time   `json:"expires"`
	Steps   []entryStep `json:"steps"`
	Parts   []entryPart `json:"parts"`
}

type entryPart struct {
	Steps int `json:"steps"`
}

type entryStep struct {
	Optional bool `json:"optional"`
}

// span is where a line stands in the file, without its newline. The zero span is no line.
type span struct {
	seq     int64
	segment int // the number of the file
	offset  int64
	length  int
}

// chain is where a reader or writer stands in a file: behind a line that it verified.
type chain struct {
	path string // of the journal: the name that the file in use has
	file string // that is read
	keys *Keyring
	macs map[string]hash.Hash // by kid
	buf  *bufio.Reader

	segment int // the number of the file, from 1

	offset int64
	length int64     // of the last line
	line   int64     // how many lines of this file it read
	seq    int64     // of the last line
	prev   string    // SHA-256 of the last line's bytes without its newline, hex; "" before the first line
	last   time.Time // of the last line
	closed bool      // the last line closed the file
}

func newChain(path string, keys *Keyring) chain {
	return chain{path: path, file: path, segment: 1, keys: keys, macs: map[string]hash.Hash{}, buf: bufio.NewReaderSize(nil, MaxLine+1)}
}

// What a line may be that cannot be read at all. Where nothing follows, that is how a
// killed process or a power cut leaves the last line; anywhere else it is damage.
var (
	errTorn    = errors.New("it has no end: a process was killed while it wrote it")
	errTooLong = fmt.Errorf("it is longer than %d bytes", MaxLine)
)

// read verifies the lines from where the chain stands up to size and shows each; what see
// is given is valid only during the call. torn says that what is left behind the last good
// line is one torn line. The error is a *BadLine, that of see, or one of reading.
func (c *chain) read(f io.ReaderAt, size int64, see func(b []byte, e *entry, at span) error) (torn bool, err error) {
	c.buf.Reset(io.NewSectionReader(f, c.offset, size-c.offset))
	for c.offset < size {
		b, err := c.buf.ReadSlice('\n')
		switch err {
		case nil:
		case io.EOF:
			return true, nil
		case bufio.ErrBufferFull:
			return c.unreadable(f, size, errTooLong)
		default:
			return false, fmt.Errorf("reading %s: %w", c.file, err)
		}
		b = b[:len(b)-1]
		e, at, err := c.next(b)
		if _, ok := errors.AsType[*json.SyntaxError](err); ok {
			return c.unreadable(f, size, fmt.Errorf("it is no JSON: %w", err))
		}
		if err != nil {
			return false, c.bad(err)
		}
		if err := see(b, &e, at); err != nil {
			return false, err
		}
	}
	return false, nil
}

// unreadable tells a torn last line from damage: nothing stands behind a torn one.
func (c *chain) unreadable(f io.ReaderAt, size int64, why error) (torn bool, err error) {
	c.buf.Reset(io.NewSectionReader(f, c.offset, size-1-c.offset)) // the last byte may be a newline
	for {
		_, err := c.buf.ReadSlice('\n')
		switch err {
		case bufio.ErrBufferFull:
		case io.EOF:
			return true, nil
		case nil:
			return false, c.bad(why)
		default:
			return false, fmt.Errorf("reading %s: %w", c.file, err)
		}
	}
}

func (c *chain) bad(why error) error {
	return &BadLine{Path: filepath.Clean(c.file), Line: c.line + 1, Offset: c.offset, Why: why}
}

// next verifies that b, a line without its newline, is the one that follows, and moves
// behind it.
func (c *chain) next(b []byte) (e entry, at span, err error) {
	if e, err = c.verify(b); err == nil {
		err = c.follows(&e)
	}
	if err != nil {
		return e, at, err
	}
	if c.line == 0 && e.Segment != nil {
		c.segment = segmentNumber(e.Segment.File) + 1
	}
	c.closed = c.line > 0 && e.Event == EventRotated
	sum := sha256.Sum256(b)
	at = span{e.Seq, c.segment, c.offset, len(b)}
	c.length = int64(len(b))
	c.offset, c.line, c.seq, c.prev, c.last = c.offset+c.length+1, c.line+1, e.Seq, hex.EncodeToString(sum[:]), e.Time
	return e, at, nil
}

// follows checks a line's place. The first line of a file that carries on another one
// names where that ends; a reader who did not read the other takes its word.
func (c *chain) follows(e *entry) error {
	if c.closed && c.line > 0 {
		return errors.New("it stands behind the line that closed the file")
	}
	seq, prev, last := c.seq, c.prev, c.last
	if s := e.Segment; s != nil && c.line == 0 {
		if seq == 0 {
			seq, prev = s.Seq, s.Hash
		}
		if seq != s.Seq || prev != s.Hash {
			return fmt.Errorf("it does not carry on %s where that ends", s.File)
		}
		if e.Event == EventRecovered {
			last = time.Time{} // a clock that was wrong is why the operator had a new file begun
		}
	}
	switch {
	case e.Seq != seq+1:
		return fmt.Errorf("it was written as line %d: lines were removed, added or moved", e.Seq)
	case e.Prev != prev:
		return errors.New("it does not follow the line before it: one of the two is of another file")
	case e.Time.Before(last):
		return fmt.Errorf("its time %s is before that of the line before it", e.Time.Format(time.RFC3339Nano))
	}
	return nil
}

// open goes to the beginning of another file, which carries on the one that was read.
func (c *chain) open(file string, number int) {
	c.file, c.segment, c.offset, c.line, c.closed = file, number, 0, 0, false
}

// verify decodes a line and checks its mac, not its place.
func (c *chain) verify(b []byte) (e entry, err error) {
	if err := json.Unmarshal(b, &e); err != nil {
		return e, err
	}
	cut := len(b) - macTail
	if cut < 0 || !bytes.HasPrefix(b[cut:], []byte(macKey)) || !bytes.HasSuffix(b, []byte(macEnd)) {
		return e, errors.New("it carries no mac at its end")
	}
	if e.V != version {
		return e, fmt.Errorf("it is of format %d, this program knows %d", e.V, version)
	}
	mac, err := c.mac(e.KID, b[:cut])
	if err != nil {
		return e, err
	}
	if !hmac.Equal(b[cut+len(macKey):len(b)-len(macEnd)], mac) {
		return e, errors.New("it was changed after it was written: its mac does not match")
	}
	return e, nil
}

// sign gives the bytes of a line, without a newline.
func (c *chain) sign(l *Line) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	l.MAC = ""
	if err := enc.Encode(l); err != nil {
		return nil, err
	}
	if !utf8.Valid(buf.Bytes()) {
		return nil, errors.New("it is not UTF-8")
	}
	open := bytes.TrimSuffix(buf.Bytes(), []byte(macKey+macEnd+"\n"))
	mac, err := c.mac(l.KID, open)
	if err != nil {
		return nil, err
	}
	l.MAC = string(mac)
	b := append(append(append(open, macKey...), mac...), macEnd...)
	if len(b) > MaxLine {
		return nil, fmt.Errorf("it has %d bytes, the most is %d", len(b), MaxLine)
	}
	return b, nil
}

// mac is HMAC-SHA256 with a key's audit key, hex.
func (c *chain) mac(kid string, b []byte) ([]byte, error) {
	h := c.macs[kid]
	if h == nil {
		key, err := c.keys.Derive(kid, "audit")
		if err != nil {
			return nil, fmt.Errorf("it was written with another key: %w", err)
		}
		h = hmac.New(sha256.New, key)
		c.macs[kid] = h
	}
	h.Reset()
	h.Write(b)
	return hex.AppendEncode(nil, h.Sum(nil)), nil
}
