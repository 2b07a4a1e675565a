package plan

import (
	"regexp"
	"strings"
	"unicode"
)

// MaxUntrusted is how many characters of text from the cluster an answer holds.
const MaxUntrusted = 256

// quotedObject is where API errors begin to quote an object or a list of texts: strict
// decoding and type errors repeat the whole object, env values included.
var quotedObject = regexp.MustCompile(`\[?\{|map\[|\["`)

// Untrusted makes text from the cluster (annotations, events, warnings, error and
// webhook messages) safe to pass on: one line, no control, bidi, zero-width or tag
// characters, no quoted objects, at most MaxUntrusted characters.
func Untrusted(s string) string {
	visible, _ := Visible(s)
	text := []rune(withoutObjects(visible))
	if len(text) > MaxUntrusted {
		return string(text[:MaxUntrusted]) + "…"
	}
	return string(text)
}

// Visible makes one line of a text: without control, bidi, zero-width and tag characters,
// with one space for each run of blanks. hidden is how many characters it left out that
// nobody would have seen.
func Visible(s string) (text string, hidden int) {
	var b strings.Builder
	space := false
	for _, r := range s {
		switch {
		case unicode.IsSpace(r):
			space = b.Len() > 0
		case unicode.IsControl(r):
			space = b.Len() > 0
			hidden++
		case !unicode.IsPrint(r) || r == unicode.ReplacementChar || isBlank(r):
			hidden++
		default:
			if space {
				b.WriteByte(' ')
			}
			space = false
			b.WriteRune(r)
		}
	}
	return b.String(), hidden
}

// withoutObjects takes out all from the first object to the end of the last one. What
// follows it is most often the reason, and stays; where an object was cut off or more is
// quoted there, it may be the rest of one, and goes as well.
func withoutObjects(s string) string {
	at := quotedObject.FindStringIndex(s)
	if at == nil {
		return s
	}
	head, rest := s[:at[0]], s[at[0]:]
	tail := rest[strings.LastIndexAny(rest, "}]")+1:]
	if strings.Count(rest, "{") > strings.Count(rest, "}") || strings.Count(rest, "[") > strings.Count(rest, "]") ||
		strings.ContainsAny(strings.TrimLeft(tail, `"'`), "{[\"'`\\") {
		tail = ""
	}
	return head + "(object removed)" + tail
}

// Plural is the noun for n things: 1 pod, 2 pods, 0 pods.
func Plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// isBlank knows the letters and marks that print as nothing: fillers, variation selectors
// and the braille blank.
func isBlank(r rune) bool {
	return r == 0x2800 || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}
