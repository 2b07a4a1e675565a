package plan

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// MaxPhrase is the length of a phrase at most, in bytes.
const MaxPhrase = 640

// maxSentence leaves room for "undo ", a plan id and ": ", for " on ", the longest label and
// the code.
const maxSentence = MaxPhrase - 17 - 4 - maxLabel - 26

var (
	base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	idRE        = regexp.MustCompile(`^[a-z2-7]{10}$`)
	phraseRE    = regexp.MustCompile(`^([ -~]+) \[([a-z2-7]{10})-([a-z2-7]{12})\]$`)
	tokenRE     = regexp.MustCompile(`^[A-Za-z0-9._:/@-]+$`) // lengths are compared: counted in an expression they make it large
)

// The lengths of a token and of a cluster label at most.
const (
	maxToken = 320
	maxLabel = 80
)

// NewID makes a plan id of 50 bits, 10 characters, from at least 7 random bytes.
func NewID(random []byte) string { return base32Lower.EncodeToString(random)[:10] }

// ValidID reports whether a text is a plan id as NewID makes it.
func ValidID(id string) bool { return idRE.MatchString(id) }

// ValidLabel reports whether a cluster label may stand in a phrase.
func ValidLabel(label string) bool { return len(label) <= maxLabel && tokenRE.MatchString(label) }

// Sentence joins validated tokens. Anything that could be free text of the cluster is an
// error.
func Sentence(tokens ...any) (string, error) {
	out := make([]string, len(tokens))
	for i, t := range tokens {
		out[i] = fmt.Sprint(t)
		if len(out[i]) > maxToken || !tokenRE.MatchString(out[i]) {
			return "", fmt.Errorf("token %q may not stand in a phrase", out[i])
		}
	}
	sentence := strings.Join(out, " ")
	if len(sentence) > maxSentence {
		return "", fmt.Errorf("a sentence of %d characters is too long for a phrase", len(sentence))
	}
	return sentence, nil
}

// SplitPhrase finds the sentence and the plan id that a phrase names; it proves nothing.
func SplitPhrase(phrase string) (sentence, id string, ok bool) {
	if len(phrase) > MaxPhrase {
		return "", "", false
	}
	m := phraseRE.FindStringSubmatch(phrase)
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

// Sign gives the phrase: sentence, plan id and 60 bits of a keyed mac over everything
// that the phrase stands for. Fields are length-prefixed, as in DSSE, so that no two
// plans share an encoding.
func (p *Plan) Sign(key []byte) string {
	h := hmac.New(sha256.New, key)
	fields := []string{
		"kube-write-mcp/confirm/v1", p.KeyID, p.ID, p.Action, string(p.Args), p.Principal, p.Cluster,
		strconv.FormatInt(p.Created.UnixNano(), 10), strconv.FormatInt(p.Expires.UnixNano(), 10),
		hex.EncodeToString(Digest(p.Steps)), p.Sentence,
	}
	if p.Undoes != "" { // older records have no such field
		fields = append(fields, p.Undoes)
	}
	for _, part := range p.Parts {
		fields = append(fields, strconv.Itoa(part.Steps))
	}
	if p.Person != nil {
		fields = append(append(fields, "person", p.Person.Name), p.Person.Reasons...)
		if p.Person.Second != "" { // older records have no such field
			fields = append(fields, "second", p.Person.Second)
		}
	}
	for _, f := range fields {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(f)))
		h.Write(n[:])
		h.Write([]byte(f))
	}
	return fmt.Sprintf("%s [%s-%s]", p.Sentence, p.ID, base32Lower.EncodeToString(h.Sum(nil))[:12])
}

// Confirms compares a whole phrase, sentence and code, with the record's own in constant
// time.
func (p *Plan) Confirms(phrase string, key []byte) bool {
	return hmac.Equal([]byte(phrase), []byte(p.Sign(key)))
}

// PhraseName is the sentence with the plan id: what the journal may store. The mac never
// leaves the answer that issued it.
func (p *Plan) PhraseName() string { return fmt.Sprintf("%s [%s]", p.Sentence, p.ID) }
