package plan

import (
	"regexp"
	"strings"
	"unicode"
)

// MaxUntrusted is how many characters of text from the cluster an answer holds.
const MaxUntrusted = 256

// quotedObject matches what API errors quote of objects: strict decoding and type errors
// repeat the whole object, env values included.
var quotedObject = regexp.MustCompile(`(?s)(\{.*\}|\[\{.*|"\{.*|map\[.*\])`)

// Untrusted makes text from the cluster (annotations, events, warnings, error and
// webhook messages) safe to pass on: one line, no control, bidi, zero-width or tag
// characters, no quoted objects, at most MaxUntrusted characters.
func Untrusted(s string) string {
	s = quotedObject.ReplaceAllString(s, "{object removed}")
	var b strings.Builder
	n, space := 0, false
	for _, r := range s {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			space = n > 0
			continue
		}
		if !unicode.IsPrint(r) || unicode.Is(unicode.Cf, r) || r == unicode.ReplacementChar || isFiller(r) {
			continue
		}
		if space {
			b.WriteByte(' ')
			n, space = n+1, false
		}
		if n++; n > MaxUntrusted {
			return b.String() + "…"
		}
		b.WriteRune(r)
	}
	return b.String()
}

// isFiller knows the letters and marks that print as nothing: Hangul fillers, variation
// selectors and the braille blank.
func isFiller(r rune) bool {
	switch {
	case r == 0x115F, r == 0x1160, r == 0x3164, r == 0xFFA0, r == 0x2800, r == 0x034F:
		return true
	case r >= 0xFE00 && r <= 0xFE0F, r >= 0xE0100 && r <= 0xE01EF:
		return true
	}
	return false
}
