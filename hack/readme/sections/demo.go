package sections

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Demo makes the sections demo, excerpt and audit from the output of hack/demo.sh. What differs
// from run to run (ids, codes, times, uids, versions) is replaced by fixed values of the
// same shape, and a step that met a conflict and was tried again is shown once.
func Demo(output string) (map[string]string, error) {
	story, rest, ok := strings.Cut(strings.ReplaceAll(output, "\r\n", "\n"), "\nThe execute line")
	if !ok {
		return nil, errors.New("the demo's output has no execute line")
	}
	_, line, ok := strings.Cut(rest, "\n")
	if !ok {
		return nil, errors.New("the demo's output ends before the execute line")
	}
	line, _, _ = strings.Cut(strings.TrimSpace(line), "\n")
	ids := newNames(story)
	execute, err := onePerLine(ids.replace(settle(line)))
	if err != nil {
		return nil, fmt.Errorf("the execute line of the demo: %w", err)
	}
	told := ids.replace(settle(trim(withoutRetries(story))))
	first, err := step(told, 1)
	if err != nil {
		return nil, err
	}
	fourth, err := step(told, 4)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"demo":    fence("text", told),
		"excerpt": fence("text", first+"\n"+fourth),
		"audit":   fence("json", execute),
	}, nil
}

// step is one numbered step of the story.
func step(story string, n int) (string, error) {
	_, rest, ok := strings.Cut(story, fmt.Sprintf("\n%d. ", n))
	text, _, closed := strings.Cut(rest, fmt.Sprintf("\n%d. ", n+1))
	if !ok || !closed {
		return "", fmt.Errorf("the demo has no step %d", n)
	}
	return fmt.Sprintf("%d. %s", n, text), nil
}

// names maps what is random to fixed names, in the order in which they appear.
type names struct{ pairs []string }

var phraseCode = regexp.MustCompile(`\[([a-z2-7]{10})(?:-([a-z2-7]{12}))?\]`)

// The fixed plan ids and codes. A demo has fewer plans than these.
var (
	planIDs = []string{"mf3q7x2ad5", "k7rw2nve4t", "b5hjy3ocq6", "u2dzp6gxs7", "e6tla4mki3", "w3xvc5rbf2"}
	codes   = []string{"x4k2p7f2qd6x", "n5e3t6vay2rk", "h7wq2bzo4mju", "c6ls3gxd5ipf", "t2yn4ake7vqh", "r3fb5jwu6ozc"}
)

func newNames(story string) names {
	var n names
	var plans, macs []string
	for _, m := range phraseCode.FindAllStringSubmatch(story, -1) {
		if !slices.Contains(plans, m[1]) && len(plans) < len(planIDs) {
			n.pairs = append(n.pairs, m[1], planIDs[len(plans)])
			plans = append(plans, m[1])
		}
		if m[2] != "" && !slices.Contains(macs, m[2]) && len(macs) < len(codes) {
			n.pairs = append(n.pairs, m[2], codes[len(macs)])
			macs = append(macs, m[2])
		}
	}
	return n
}

func (n names) replace(s string) string { return strings.NewReplacer(n.pairs...).Replace(s) }

// settled are the values that differ from run to run and have no name to keep. The
// state right after a write depends on how far the controllers are at that moment.
var settled = []struct {
	was *regexp.Regexp
	is  string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "2026-11-30T12:00:00Z"},
	{regexp.MustCompile(`(expires in \d+ s) \([0-9TZ:.-]+\)`), "$1 (2026-11-30T12:02:00Z)"},
	{regexp.MustCompile(`(?m)^( *)\d\d-\d\d \d\d:\d\d:\d\d`), "${1}11-30 12:00:00"},
	{regexp.MustCompile(`\bv[0-9a-f]{10}\b`), "v3c0ffee123"},
	{regexp.MustCompile(`-s(\d+)-x\d+`), "-s$1-x1"},
	{regexp.MustCompile(`(before: .*generation )\d+`), "${1}1"},
	{regexp.MustCompile(`(right after the write: replicas 3), ready \d+, available \d+, updated \d+, generation \d+`), "$1, ready 2, available 2, updated 2, generation 3"},
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "…"},
	{regexp.MustCompile(`"(rv|claim|inst|prev|mac|kid)":"[^"]*"`), `"$1":"…"`},
	{regexp.MustCompile(`"seq":\d+`), `"seq":8`},
	{regexp.MustCompile(`"pid":\d+`), `"pid":4242`},
	{regexp.MustCompile(`("kind":"os", ?"name":)"[^"]*"`), `$1"alice"`},
	{regexp.MustCompile(`("before":\{[^}]*"generation":)\d+`), "${1}1"},
	{regexp.MustCompile(`("after":\{[^}]*"available":)\d+`), "${1}2"},
	{regexp.MustCompile(`("after":\{[^}]*"generation":)\d+`), "${1}3"},
	{regexp.MustCompile(`("after":\{[^}]*"ready":)\d+`), "${1}2"},
	{regexp.MustCompile(`("after":\{[^}]*"updated":)\d+`), "${1}2"},
}

func settle(s string) string {
	for _, v := range settled {
		s = v.was.ReplaceAllString(s, v.is)
	}
	return s
}

// trim takes the blanks from the ends of lines and the blank lines from the ends of the
// text.
func trim(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}

var (
	rowRE        = regexp.MustCompile(`^ *\d\d-\d\d \d\d:\d\d:\d\d `)
	continuation = regexp.MustCompile(`^ {20,}\S`) // of a row whose cell is wrapped
)

// withoutRetries leaves out of the audit table each attempt that was not applied: its
// intent and its outcome.
func withoutRetries(s string) string {
	var rows []string // a row of the table with the lines that continue it; any other line
	for line := range strings.Lines(s) {
		n := len(rows) - 1
		if n >= 0 && rowRE.MatchString(rows[n]) && continuation.MatchString(line) {
			rows[n] += line
			continue
		}
		rows = append(rows, line)
	}
	var kept []string
	for _, row := range rows {
		n := len(kept) - 1
		if n >= 0 && rowRE.MatchString(row) && strings.Contains(row, " not applied ") && strings.Contains(kept[n], " execute_intent ") {
			kept = kept[:n]
			continue
		}
		kept = append(kept, row)
	}
	return strings.Join(kept, "")
}

// onePerLine writes a JSON object with each field on a line of its own, and those of its
// field result too.
func onePerLine(line string) (string, error) {
	fields, err := split(line)
	if err != nil {
		return "", err
	}
	for i, f := range fields {
		name, value, _ := strings.Cut(f, ":")
		if name != `"result"` {
			continue
		}
		inner, err := split(value)
		if err != nil {
			return "", err
		}
		fields[i] = name + ":{\n    " + strings.Join(inner, ",\n    ") + "\n  }"
	}
	return "{\n  " + strings.Join(fields, ",\n  ") + "\n}", nil
}

// split gives the fields of a JSON object in their order, each as "name":value.
func split(object string) (fields []string, err error) {
	dec := json.NewDecoder(strings.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		fields = append(fields, fmt.Sprintf("%q:%s", name, value))
	}
	_, err = dec.Token()
	return fields, err
}
