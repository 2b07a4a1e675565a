package plan

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var phraseKey = []byte("0123456789abcdef0123456789abcdef")

// sealed is a plan as the engine seals it.
func sealed() *Plan {
	created := time.Date(2026, 11, 30, 5, 0, 0, 0, time.UTC)
	return &Plan{
		ID: "mf3q7x2ad5", Action: "scale", Args: json.RawMessage(`{"namespace":"default","deployment":"web","replicas":3}`),
		Principal: "os:ada", Cluster: "7c1d6a52-0000-4000-8000-000000000000", Label: "kind-lab", KeyID: "k1",
		Sentence: "scale deployment default/web from 2 to 3 on kind-lab", Steps: []Step{scaleTo(3)},
		Created: created, Expires: created.Add(2 * time.Minute),
	}
}

func TestSentence(t *testing.T) {
	for name, tc := range map[string]struct {
		tokens []any
		want   string // "" is an error
	}{
		"names and numbers":    {[]any{"scale", "deployment", "default/web", "from", int32(2), "to", 3}, "scale deployment default/web from 2 to 3"},
		"an image":             {[]any{"set", "registry:5000/a/b.c@sha256:0f"}, "set registry:5000/a/b.c@sha256:0f"},
		"the longest name":     {[]any{strings.Repeat("a", 320)}, strings.Repeat("a", 320)},
		"as long as may be":    {[]any{strings.Repeat("a", 256), strings.Repeat("b", 256)}, strings.Repeat("a", 256) + " " + strings.Repeat("b", 256)},
		"longer than a phrase": {[]any{strings.Repeat("a", 257), strings.Repeat("b", 256)}, ""},
		"too long":             {[]any{strings.Repeat("a", 321)}, ""},
		"empty":                {[]any{"scale", ""}, ""},
		"nil":                  {[]any{nil}, ""},
		"space":                {[]any{"a b"}, ""},
		"newline at the end":   {[]any{"web\n"}, ""},
		"carriage return":      {[]any{"web\r"}, ""},
		"escape":               {[]any{"\x1b[2K"}, ""},
		"brackets of the code": {[]any{"[mf3q7x2ad5-x4k2p7f2qd6x]"}, ""},
		"quotes":               {[]any{`"web"`}, ""},
		"shell":                {[]any{"web;id"}, ""},
		"homoglyph":            {[]any{"wеb"}, ""},
		"zero-width":           {[]any{"we\u200bb"}, ""},
		"one of many is wrong": {[]any{"scale", "deployment", "a b", "to", 3}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Sentence(tc.tokens...)
			if got != tc.want || (err != nil) != (tc.want == "") {
				t.Errorf("Sentence = %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestValidLabel(t *testing.T) {
	for label, want := range map[string]bool{
		"kind-lab": true,
		"arn:aws:eks:eu-1:123456789012:cluster/p": true,
		"admin@prod":            true,
		strings.Repeat("a", 80): true,
		strings.Repeat("a", 81): false,
		"":                      false,
		"my cluster":            false,
		"kind-lab\n":            false,
		"prod]":                 false,
		"рrod":                  false,
	} {
		if got := ValidLabel(label); got != want {
			t.Errorf("ValidLabel(%q) = %t, want %t", label, got, want)
		}
	}
}

func TestNewID(t *testing.T) {
	for want, random := range map[string][]byte{
		"aaaaaaaaaa": make([]byte, 7),
		"7777777777": {255, 255, 255, 255, 255, 255, 255},
		"aebagbafay": {1, 2, 3, 4, 5, 6, 7},
	} {
		if got := NewID(random); got != want {
			t.Errorf("NewID(%v) = %q, want %q", random, got, want)
		}
	}
}

// TestSign pins the phrase: one that an older version signed must stay good.
func TestSign(t *testing.T) {
	const want = "scale deployment default/web from 2 to 3 on kind-lab [mf3q7x2ad5-dvdex5w5zpmc]"
	p := sealed()
	if got := p.Sign(phraseKey); got != want {
		t.Errorf("phrase\n%s, want\n%s", got, want)
	}
	if got, want := p.PhraseName(), "scale deployment default/web from 2 to 3 on kind-lab [mf3q7x2ad5]"; got != want {
		t.Errorf("name %q, want %q", got, want)
	}
	sentence, id, ok := SplitPhrase(p.Sign(phraseKey))
	if sentence != p.Sentence || id != p.ID || !ok {
		t.Errorf("SplitPhrase = %q, %q, %t", sentence, id, ok)
	}
}

func TestSplitPhrase(t *testing.T) {
	const code = " [mf3q7x2ad5-x4k2p7f2qd6x]"
	for name, tc := range map[string]struct {
		phrase string
		want   bool
	}{
		"whole":                     {"scale web" + code, true},
		"as long as may be":         {strings.Repeat("a", MaxPhrase-len(code)) + code, true},
		"a byte longer":             {strings.Repeat("a", MaxPhrase-len(code)+1) + code, false},
		"empty":                     {"", false},
		"no sentence":               {code, false},
		"no code":                   {"scale web", false},
		"code alone":                {code[1:], false},
		"no space":                  {"scale" + code[1:], false},
		"newline after it":          {"scale web" + code + "\n", false},
		"space after it":            {"scale web" + code + " ", false},
		"newline inside":            {"scale\nweb" + code, false},
		"tab inside":                {"scale\tweb" + code, false},
		"upper-case code":           {"scale web" + strings.ToUpper(code), false},
		"digits that are no base32": {"scale web [mf3q7x2ad1-x4k2p7f2qd6x]", false},
		"short mac":                 {"scale web [mf3q7x2ad5-x4k2p7f2qd6]", false},
		"long mac":                  {"scale web [mf3q7x2ad5-x4k2p7f2qd6xx]", false},
		"no mac":                    {"scale web [mf3q7x2ad5]", false},
		"homoglyph":                 {"scаle web" + code, false},
		"curly quotes":              {"“scale web" + code + "”", false},
		"two codes":                 {"scale web" + code + code, true}, // the last one counts, and no record has that sentence
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, ok := SplitPhrase(tc.phrase); ok != tc.want {
				t.Errorf("SplitPhrase(%q): %t, want %t", tc.phrase, ok, tc.want)
			}
		})
	}
}

// TestConfirms: the whole phrase, byte for byte, and nothing else.
func TestConfirms(t *testing.T) {
	p := sealed()
	phrase := p.Sign(phraseKey)
	if !p.Confirms(phrase, phraseKey) {
		t.Fatalf("%q does not confirm its own plan", phrase)
	}
	refused := func(t *testing.T, phrase string) {
		t.Helper()
		if p.Confirms(phrase, phraseKey) {
			t.Errorf("%q confirms the plan", phrase)
		}
	}
	t.Run("every other byte at every place", func(t *testing.T) {
		for i := range len(phrase) {
			for b := range 256 {
				if byte(b) != phrase[i] {
					refused(t, phrase[:i]+string([]byte{byte(b)})+phrase[i+1:])
				}
			}
		}
	})
	t.Run("truncation", func(t *testing.T) {
		for i := range len(phrase) {
			refused(t, phrase[:i])
			refused(t, phrase[i+1:])
			refused(t, phrase[:i]+phrase[i+1:])
		}
	})
	t.Run("insertion", func(t *testing.T) {
		for i := range len(phrase) + 1 {
			for _, more := range []string{" ", "\n", "\x00", "a", "\u200b"} {
				refused(t, phrase[:i]+more+phrase[i:])
			}
		}
	})
	t.Run("case", func(t *testing.T) {
		refused(t, strings.ToUpper(phrase))
		refused(t, strings.ToTitle(phrase[:1])+phrase[1:])
	})
	t.Run("parts", func(t *testing.T) {
		refused(t, p.Sentence)
		refused(t, p.PhraseName())
		refused(t, phrase[len(p.Sentence)+1:])
		refused(t, p.Sentence+phrase)
	})
	t.Run("another key", func(t *testing.T) {
		if p.Confirms(phrase, []byte("0123456789abcdef0123456789abcdeF")) || p.Confirms(phrase, nil) {
			t.Error("it confirms under another key")
		}
	})
	t.Run("another plan's mac", func(t *testing.T) {
		o := sealed()
		o.ID = "aaaaaaaaaa"
		other := o.Sign(phraseKey)
		mac := other[len(other)-13:]
		refused(t, other)
		refused(t, phrase[:len(phrase)-13]+mac)
		if o.Confirms(phrase, phraseKey) {
			t.Error("a phrase confirms another plan")
		}
	})
}

// TestSigned changes each field of a plan. What decides what is sent, for whom, where and
// until when is signed; the rest is only shown, and stands in the keyed journal line.
func TestSigned(t *testing.T) {
	signed := map[string]func(*Plan){
		"ID":        func(p *Plan) { p.ID = "aaaaaaaaaa" },
		"Action":    func(p *Plan) { p.Action = "delete_pod" },
		"Undoes":    func(p *Plan) { p.Undoes = "bbbbbbbbbb" },
		"Person":    func(p *Plan) { p.Person = &Person{Reasons: []string{"the last pod"}, Name: "web"} },
		"Args":      func(p *Plan) { p.Args = json.RawMessage(`{"namespace":"default","deployment":"web","replicas":4}`) },
		"Principal": func(p *Plan) { p.Principal = "os:eve" },
		"Cluster":   func(p *Plan) { p.Cluster = "another" },
		"KeyID":     func(p *Plan) { p.KeyID = "k2" },
		"Sentence":  func(p *Plan) { p.Sentence = "scale deployment default/web from 2 to 4 on kind-lab" },
		"Steps":     func(p *Plan) { p.Steps = []Step{scaleTo(4)} },
		"Parts":     func(p *Plan) { p.Parts = []Part{{Steps: 1}} },
		"Created":   func(p *Plan) { p.Created = p.Created.Add(time.Nanosecond) },
		"Expires":   func(p *Plan) { p.Expires = p.Expires.Add(time.Nanosecond) },
	}
	shown := map[string]string{
		"Label":      "in the sentence",
		"Class":      "computed again at execution",
		"Kubectl":    "for a person's hands",
		"Before":     "the old sides of the Steps are signed",
		"Version":    "an argument of later plans",
		"Blast":      "computed again at execution",
		"Undo":       "another call, planned anew",
		"Warnings":   "text",
		"Downstream": "text",
		"Untrusted":  "text",
	}
	phrase := sealed().Sign(phraseKey)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Plan]()) {
		t.Run(f.Name, func(t *testing.T) {
			edit, isSigned := signed[f.Name]
			if _, isShown := shown[f.Name]; isSigned == isShown {
				t.Fatal("decide whether the phrase signs this field")
			}
			if !isSigned {
				return
			}
			p := sealed()
			edit(p)
			if p.Confirms(phrase, phraseKey) {
				t.Error("the phrase confirms a plan with another value")
			}
			// The sentence and the id stand in the phrase as they are; the mac must differ.
			if got := p.Sign(phraseKey); got[len(got)-13:] == phrase[len(phrase)-13:] {
				t.Error("the mac does not cover it")
			}
		})
	}
}

// TestSignedFieldsDoNotRun: moving text from one field to the next gives another mac.
func TestSignedFieldsDoNotRun(t *testing.T) {
	a, b := sealed(), sealed()
	a.Principal, a.Cluster = "os:ada", "x"
	b.Principal, b.Cluster = "os:a", "dax"
	if x, y := a.Sign(phraseKey), b.Sign(phraseKey); x == y {
		t.Errorf("one phrase %q for two plans", x)
	}
}

// TestSignAfterJournal: a plan that was written and read again is the one that was sealed.
func TestSignAfterJournal(t *testing.T) {
	p := sealed()
	p.Created = time.Now() // with a monotonic clock, nanoseconds and a zone
	p.Expires = p.Created.Add(time.Minute)
	p.Steps = append(p.Steps, restart())
	phrase := p.Sign(phraseKey)
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back Plan
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(phrase, back.Sign(phraseKey)); diff != "" {
		t.Errorf("phrase (-sealed +read back):\n%s", diff)
	}
}

// FuzzPhrase: nothing but the phrase itself confirms, and what is taken apart is whole.
func FuzzPhrase(f *testing.F) {
	p := sealed()
	phrase := p.Sign(phraseKey)
	for _, s := range []string{
		phrase, phrase + "\n", " " + phrase, strings.ToUpper(phrase), p.PhraseName(), p.Sentence, "", phrase + phrase,
		strings.Repeat("a", MaxPhrase) + phrase[len(p.Sentence):], "а" + phrase[1:], "\xff" + phrase[1:],
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if p.Confirms(s, phraseKey) != (s == phrase) {
			t.Errorf("Confirms(%q) = %t", s, s != phrase)
		}
		sentence, id, ok := SplitPhrase(s)
		switch {
		case !ok && (sentence != "" || id != ""):
			t.Errorf("no phrase, and yet %q and %q", sentence, id)
		case ok && (len(s) > MaxPhrase || len(id) != 10 || !strings.HasPrefix(s, sentence+" ["+id+"-") || len(s) != len(sentence)+26):
			t.Errorf("SplitPhrase(%q) = %q, %q", s, sentence, id)
		}
	})
}

// TestSignSecond: that it must be a second person is signed, and nothing else changes where it
// need not.
func TestSignSecond(t *testing.T) {
	signed := func(second string) string {
		p := sealed()
		p.Person = &Person{Name: "web", Reasons: []string{"a"}, Second: second}
		return p.Sign(phraseKey)
	}
	if signed("") == signed("b") || signed("b") == signed("c") {
		t.Error("Second is not signed")
	}
}
