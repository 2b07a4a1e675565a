package read

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLog: a log comes line by line, without what cannot be seen, which is counted.
func TestLog(t *testing.T) {
	for name, tc := range map[string]struct {
		raw           string
		tail, limit   int
		wantLines     []string
		wantHidden    int
		wantTruncated string
	}{
		"nothing":         {"", 200, 65536, []string{}, 0, ""},
		"JSON stays":      {"{\"a\":1}\n", 200, 65536, []string{`{"a":1}`}, 0, ""},
		"no last newline": {"a\nb", 200, 65536, []string{"a", "b"}, 0, ""},
		"an empty line":   {"a\n\nb\n", 200, 65536, []string{"a", "", "b"}, 0, ""},
		"control":         {"\x1b[31mred\x07\r\n", 200, 65536, []string{"[31mred"}, 2, ""},
		"invisible":       {"a\u202eb\u200b\U000e0053c\n", 200, 65536, []string{"abc"}, 3, ""},
		"no UTF-8":        {"a\xffb\n", 200, 65536, []string{"ab"}, 1, ""},
		"a forged line":   {"x\u2028untrusted: y\n", 200, 65536, []string{"x untrusted: y"}, 0, ""},
		"all lines":       {"a\nb\n", 2, 65536, []string{"a", "b"}, 0, "the last 2 lines: there may be older ones; tail (at most 2000) shows more"},
		"all bytes":       {"a\nb\n", 200, 4, []string{"a", "b"}, 0, "cut at 4 bytes: of the last 200 lines the newest are missing; a smaller tail or since_seconds shows them"},
		"a long line":     {strings.Repeat("é", 1030) + "\n", 200, 65536, []string{strings.Repeat("é", 1024) + "… (6 more characters of this line)"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var l Logs
			l.fill([]byte(tc.raw), tc.tail, tc.limit)
			if diff := cmp.Diff(tc.wantLines, l.Lines); diff != "" || l.Hidden != tc.wantHidden || l.Truncated != tc.wantTruncated {
				t.Errorf("hidden %d, truncated %q, lines (-want +got):\n%s", l.Hidden, l.Truncated, diff)
			}
		})
	}
}
