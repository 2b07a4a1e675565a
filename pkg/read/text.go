package read

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// maxText is how many characters the text of an answer has at most, that of a log apart.
const maxText = 7900

// sheet is the text of an answer: a first line, lines, a table, and text of the cluster's
// users last, each of its lines begun with the word untrusted and what it is of.
type sheet struct {
	head      string
	table     [][]string // the first row is the header
	lines     []string
	untrusted [][2]string // of what, text
}

func (s *sheet) line(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// quote adds text of the cluster's users, which is sanitised already.
func (s *sheet) quote(of, text string) {
	if text != "" {
		s.untrusted = append(s.untrusted, [2]string{of, text})
	}
}

// page adds what a list leaves out.
func (s *sheet) page(p Page) {
	if p.Truncated != "" {
		s.line("truncated: %s", p.Truncated)
		s.line("continue: %s", p.Continue)
	}
}

// text lays everything out, with as many rows of the table and as many quotes as fit.
func (s *sheet) text(h Head) string {
	head := s.head + " on " + h.Cluster
	if h.NotOnRecord {
		head = "not on record: the journal cannot be written\n" + head
	}
	left := maxText - utf8.RuneCountInString(head) - 200 // for the two lines that count what is left out
	for _, l := range s.lines {
		left -= utf8.RuneCountInString(l) + 3
	}
	out := []string{head}
	shown := 0
	if len(s.table) > 1 {
		rows := columns(s.table)
		room := left
		if len(s.untrusted) > 0 {
			room = left * 2 / 3
		}
		for _, r := range rows {
			n := utf8.RuneCountInString(r) + 3
			if room -= n; room < 0 {
				break
			}
			left -= n
			shown++
			out = append(out, "  "+r)
		}
		if missing := len(rows) - shown; missing > 0 {
			out = append(out, fmt.Sprintf("  (%d more rows stand in the structured answer only; a smaller limit fits here)", missing))
		}
	}
	for _, l := range s.lines {
		out = append(out, "  "+l)
	}
	for i, q := range s.untrusted {
		line := "untrusted[" + q[0] + "]: " + q[1]
		if left -= utf8.RuneCountInString(line) + 1; left < 0 {
			out = append(out, fmt.Sprintf("(%d more texts of the cluster stand in the structured answer only)", len(s.untrusted)-i))
			break
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// columns aligns a table.
func columns(table [][]string) []string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range table {
		cells := make([]string, len(row))
		for i, c := range row {
			if cells[i] = c; c == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	w.Flush()
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}
