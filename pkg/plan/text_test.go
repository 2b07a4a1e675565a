package plan

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestUntrusted(t *testing.T) {
	long := strings.Repeat("é", MaxUntrusted)
	for name, tc := range map[string]struct{ in, want string }{
		"empty":                    {"", ""},
		"plain":                    {"Scaled up replica set web-5f7 to 3", "Scaled up replica set web-5f7 to 3"},
		"other scripts":            {"déjà vu 日本語 привет", "déjà vu 日本語 привет"},
		"a field path stays":       {`strict decoding error: unknown field "spec.replica"`, `strict decoding error: unknown field "spec.replica"`},
		"lines become one":         {"a\nb\r\nc\td", "a b c d"},
		"line separators":          {"a\u2028b\u2029c\u0085d\u00a0e", "a b c d e"},
		"outer space":              {" \n a \n ", "a"},
		"a forged line":            {"ok\nCONFIRM: scale deployment", "ok CONFIRM: scale deployment"},
		"escape sequence":          {"\x1b[2K\rscale to 1", "[2K scale to 1"},
		"title sequence":           {"\x1b]0;x\x07", "]0;x"},
		"C1 controls":              {"a\u009bb\u0080c", "a b c"},
		"NUL and DEL":              {"a\x00b\x7fc", "a b c"},
		"bidi override":            {"a\u202etxt.exe\u202c", "atxt.exe"},
		"bidi isolates":            {"\u2066a\u2069\u200e\u200f\u061c", "a"},
		"zero-width":               {"a\u200bb\u200cc\u200dd\ufeffe\u2060f", "abcdef"},
		"soft hyphen":              {"a\u00adb", "ab"},
		"tag characters":           {"a\U000e0041\U000e0042\U000e007fb", "ab"},
		"variation selectors":      {"a\ufe0fb\U000e0100c", "abc"},
		"Hangul fillers":           {"a\u115f\u1160\u3164\uffa0b", "ab"},
		"braille blank":            {"a\u2800b", "ab"},
		"grapheme joiner":          {"a\u034fb", "ab"},
		"private use":              {"a\ue000\U000f0000b", "ab"},
		"not UTF-8":                {"a\xff\xfeb\xc3", "ab"},
		"surrogates":               {"a\xed\xa0\x80b", "ab"},
		"as long as may be":        {long, long},
		"one more":                 {long + "x", long + "…"},
		"much more":                {strings.Repeat("word ", 1000), strings.Repeat("word ", 51) + "w…"},
		"hidden ones do not count": {strings.Repeat("\u200b", 1000) + long, long},
		"object":                   {`admission denied: {"env":[{"name":"DB_PASSWORD","value":"hunter2"}]}: no`, "admission denied: (object removed): no"},
		"object over lines":        {"denied: {\n  \"value\": \"hunter2\"\n}", "denied: (object removed)"},
		"quoted object":            {`"" is invalid: patch: Invalid value: "{\"spec\":{\"replicas\":\"5\",\"value\":\"hunter2\"}}": json: cannot unmarshal string`, `"" is invalid: patch: Invalid value: "(object removed)": json: cannot unmarshal string`},
		"quoted object, cut off":   {`patch: Invalid value: "{\"value\":\"hunter2\", and no end`, `patch: Invalid value: "(object removed)`},
		"object, cut off":          {`decoding '{"value":"hunter2`, "decoding '(object removed)"},
		"object, cut off behind one that is whole":    {`{"a":{"b":1},"value":"hunter2`, "(object removed)"},
		"object, cut off behind a brace in a text":    {`{"a":{"cmd":"}"},"value":"hunter2`, "(object removed)"},
		"list of objects":                             {`env: Invalid value: [{"name":"DB_PASSWORD","value":"hunter2"}]: no`, "env: Invalid value: (object removed): no"},
		"list, cut off":                               {`env: Invalid value: [{"name":"DB_PASSWORD","value":"hunter2"`, "env: Invalid value: (object removed)"},
		"list of texts":                               {`command: Invalid value: ["sh","-c","PASSWORD=hunter2"]: no`, "command: Invalid value: (object removed): no"},
		"list of texts, cut off":                      {`command: Invalid value: ["sh","-c","PASSWORD=hunter2`, "command: Invalid value: (object removed)"},
		"an index is no list":                         {`spec.containers[0].image: Required value`, "spec.containers[0].image: Required value"},
		"map as Go prints it":                         {"got map[DB_PASSWORD:hunter2 b:map[c:hunter2]] instead", "got (object removed) instead"},
		"map, cut off":                                {"got map[a:b c:map[d:e] DB_PASSWORD:hunter2", "got (object removed)"},
		"struct as Go prints it":                      {`spec: Forbidden: core.PodSpec{Containers:[]core.Container{core.Container{Value:"hunter2"}}} changed`, "spec: Forbidden: core.PodSpec(object removed) changed"},
		"text between objects":                        {`{"a":"hunter2"} and hunter2 and {"b":1}`, "(object removed)"},
		"a hidden character in the mark of an object": {"got ma\u200bp[DB_PASSWORD:hunter2] and [\u200b\"hunter2\"]", "got (object removed)"},
		"other blanks":                                {"a\u17b4\u180b\u3164\u2065b", "ab"},
		"a space at the end of what fits":             {strings.Repeat("é", MaxUntrusted-1) + " xy", strings.Repeat("é", MaxUntrusted-1) + " …"},
		"a space behind what fits":                    {long + " x", long + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Untrusted(tc.in)
			if got != tc.want {
				t.Errorf("Untrusted(%q)\n got %q\nwant %q", tc.in, got, tc.want)
			}
			if strings.Contains(got, "hunter2") {
				t.Error("a value of an object survives")
			}
		})
	}
}

// TestUntrustedEveryRune: no rune that cannot be seen passes, alone or between others.
func TestUntrustedEveryRune(t *testing.T) {
	for r := rune(0); r < 0xe1000; r++ {
		if r == 0x33480 {
			r = 0xe0000 // nothing is assigned between
		}
		switch got := Untrusted("a" + string(r) + "b"); {
		case got == "ab", got == "a b", r == '{': // an object begins
		case got != "a"+string(r)+"b":
			t.Errorf("%U becomes %q", r, got)
		case !unicode.IsPrint(r), unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector):
			t.Errorf("%U passes and cannot be seen", r)
		}
	}
}

// FuzzUntrusted: one line of at most 256 characters that can be seen, and cleaning it
// again changes nothing.
func FuzzUntrusted(f *testing.F) {
	for _, s := range []string{
		"", "plain", "a\x1b[2K\rb", "\u202e\u200b\U000e0041", "\xff\xfe", strings.Repeat("é ", 300),
		`Invalid value: "{\"a\":\"hunter2\"}": no`, "map[a:b]", strings.Repeat("a", 255) + " bc", strings.Repeat("a", 256) + " ",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Untrusted(s)
		if n := utf8.RuneCountInString(got); n > MaxUntrusted+1 || n == MaxUntrusted+1 && !strings.HasSuffix(got, "…") {
			t.Errorf("%d characters", n)
		}
		for _, r := range got {
			if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
				t.Errorf("%U in %q", r, got)
			}
		}
		if strings.Contains(got, "  ") || strings.HasPrefix(got, " ") {
			t.Errorf("loose space in %q", got)
		}
		if again := Untrusted(got); again != got {
			t.Errorf("cleaned again\n%q becomes\n%q", got, again)
		}
	})
}

func TestPlural(t *testing.T) {
	for n, want := range map[int]string{0: "pods", 1: "pod", 2: "pods"} {
		if got := Plural(n, "pod"); got != want {
			t.Errorf("%d %s, want %s", n, got, want)
		}
	}
}
