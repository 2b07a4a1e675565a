// Package skill tests the form of the reviewer's skill: that a client can load it, that
// its runbook is whole, and that each verdict fills the form.
package skill

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const folder = "../../hack/packaging/skills/write-tool-design-review"

var (
	checks = []string{"preview", "binding", "expiry", "idempotency", "blast radius", "scope", "rate", "audit", "undo", "visibility"}
	drills = []string{"the retry", "the stale plan", "the pasted phrase"}
	scores = []string{"pass", "partial", "none", "fail", "untested"}
)

func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// section is a heading of a Markdown file with what stands below it.
type section struct{ title, body string }

// sections cuts text at the headings of a level, such as "##". Lines in code blocks are no
// headings.
func sections(text, level string) (out []section) {
	code := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		}
		title, heading := strings.CutPrefix(line, level+" ")
		switch {
		case heading && !code:
			out = append(out, section{title: strings.TrimSpace(title)})
		case len(out) > 0:
			out[len(out)-1].body += line
		}
	}
	return out
}

func titles(text, level string) (out []string) {
	for _, s := range sections(text, level) {
		out = append(out, s.title)
	}
	return out
}

// rows gives the cells of the first table in text, without its head.
func rows(text string) (out [][]string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if out != nil {
				break
			}
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		out = append(out, cells)
	}
	if len(out) < 2 {
		return nil
	}
	return out[2:] // the head and its line
}

func column(rows [][]string, n int) (out []string) {
	for _, r := range rows {
		out = append(out, r[n])
	}
	return out
}

// TestFrontmatter: the limits are those of the Agent Skills format.
func TestFrontmatter(t *testing.T) {
	parts := strings.SplitN(read(t, "SKILL.md"), "---\n", 3)
	if len(parts) != 3 || parts[0] != "" {
		t.Fatal("SKILL.md does not begin with frontmatter")
	}
	var front map[string]string
	if err := yaml.UnmarshalStrict([]byte(parts[1]), &front); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"description", "name"}, slices.Sorted(maps.Keys(front))); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	if got, want := front["name"], filepath.Base(folder); got != want || len(got) > 64 {
		t.Errorf("name is %q: it must be the folder's, %q, of at most 64 characters", got, want)
	}
	if d := front["description"]; len(d) > 1024 || !strings.Contains(d, "Use when") {
		t.Errorf("the description has %d characters, at most 1024, and must say when to use the skill", len(d))
	}
	if n := strings.Count(parts[2], "\n"); n > 80 {
		t.Errorf("SKILL.md has %d lines: what is not always needed belongs beside it", n)
	}
}

// TestLinks: every file beside SKILL.md is reachable from it, and every link leads to a
// file, or to a heading of its own file.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)]+)\)`)
	reached := map[string]bool{"SKILL.md": true}
	for queue := []string{"SKILL.md"}; len(queue) > 0; queue = queue[1:] {
		text := read(t, queue[0])
		if !strings.HasSuffix(queue[0], ".md") {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if anchor, ok := strings.CutPrefix(m[1], "#"); ok {
				if !slices.ContainsFunc(titles(text, "##"), func(title string) bool { return slug(title) == anchor }) {
					t.Errorf("%s links to #%s, which it has not", queue[0], anchor)
				}
				continue
			}
			to := filepath.ToSlash(filepath.Join(filepath.Dir(queue[0]), m[1]))
			if !reached[to] {
				reached[to] = true
				queue = append(queue, to)
			}
		}
	}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if name = filepath.ToSlash(name); !reached[name] {
			t.Errorf("no link leads to %s", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func slug(title string) string {
	return strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(title), ".", ""), " ", "-")
}

// TestChecks wants of each check what to look for, and a request with its answer that
// passes and one that fails.
func TestChecks(t *testing.T) {
	var got []string
	for _, s := range sections(read(t, "checks.md"), "##") {
		_, name, _ := strings.Cut(s.title, ". ")
		got = append(got, strings.ToLower(name))
		if !strings.Contains(s.body, "\nLook for: ") && !strings.Contains(s.body, "\nLook for ") {
			t.Errorf("%s: it does not say what to look for", s.title)
		}
		for _, kind := range []string{"Passes", "Fails"} {
			_, rest, _ := strings.Cut(s.body, "\n"+kind+":\n\n```text\n")
			example, _, closed := strings.Cut(rest, "\n```")
			if !closed || !strings.Contains(example, "→ ") || !strings.Contains("\n"+example, "\n← ") && !strings.Contains(example, "\n# ") {
				t.Errorf("%s: no request and answer under %q", s.title, kind)
			}
		}
	}
	if diff := cmp.Diff(checks, got); diff != "" {
		t.Errorf("checks (-want +got):\n%s", diff)
	}
}

// TestDrills wants of each drill numbered steps and what counts as passed.
func TestDrills(t *testing.T) {
	step := regexp.MustCompile(`(?m)^\d\. `)
	var got []string
	for _, s := range sections(read(t, "drills.md"), "##") {
		title, ok := strings.CutPrefix(s.title, "Drill ")
		if !ok {
			continue
		}
		number, name, _ := strings.Cut(title, ": ")
		got = append(got, name)
		if n := len(step.FindAllString(s.body, -1)); n < 4 {
			t.Errorf("%s has %d steps", s.title, n)
		}
		if !strings.Contains(s.body, "Passes: ") || !strings.Contains(s.body, "\nDrill "+number+" passes when ") {
			t.Errorf("%s does not say what counts as passed", s.title)
		}
	}
	if diff := cmp.Diff(drills, got); diff != "" {
		t.Errorf("drills (-want +got):\n%s", diff)
	}
}

// TestRule: what the tests below take for scores and verdicts is what SKILL.md says.
func TestRule(t *testing.T) {
	parts := sections(read(t, "SKILL.md"), "##")
	want := map[string][]string{"Scores": scores, "Verdict": {"unattended", "attended", "not here"}}
	for _, s := range parts {
		for _, word := range want[s.title] {
			if !strings.Contains(s.body, "`"+word+"`") {
				t.Errorf("section %s of SKILL.md does not define %q", s.title, word)
			}
		}
		delete(want, s.title)
	}
	for title := range want {
		t.Errorf("SKILL.md has no section %s", title)
	}
}

func TestInstall(t *testing.T) {
	text := read(t, "install.md")
	for client, paths := range map[string][]string{
		"Claude Code": {"~/.claude/skills/", ".claude/skills/"},
		"Cursor":      {"~/.cursor/skills/", ".cursor/skills/"},
		"Codex":       {"~/.agents/skills/", ".agents/skills/"},
	} {
		i := slices.Index(column(rows(text), 0), client)
		if i < 0 {
			t.Errorf("no row for %s", client)
			continue
		}
		if diff := cmp.Diff(paths, []string{strings.Trim(rows(text)[i][1], "`"), strings.Trim(rows(text)[i][2], "`")}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", client, diff)
		}
	}
}

// TestVerdicts holds each verdict to the form: the same sections and fields, none empty,
// scores and verdict from their lists and as the rule of SKILL.md has it, and each call
// that is cited is told.
func TestVerdicts(t *testing.T) {
	form := read(t, "verdict-form.md")
	files, err := filepath.Glob(filepath.Join(folder, "verdicts", "*.md"))
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text := read(t, "verdicts/"+filepath.Base(file))
			if diff := cmp.Diff(titles(form, "##"), titles(text, "##")); diff != "" {
				t.Fatalf("sections (-form +verdict):\n%s", diff)
			}
			if strings.Contains(text, "angle brackets") || regexp.MustCompile(`\| <`).MatchString(text) {
				t.Error("parts of the form stand in it unfilled")
			}
			head := map[string]string{}
			for _, r := range rows(text) {
				head[r[0]] = r[1]
			}
			if diff := cmp.Diff(column(rows(form), 0), column(rows(text), 0)); diff != "" {
				t.Errorf("fields of the head (-form +verdict):\n%s", diff)
			}
			if _, err := time.Parse(time.DateOnly, head["Date"]); err != nil {
				t.Error(err)
			}
			if name := strings.TrimSuffix(filepath.Base(file), ".md"); !strings.HasPrefix(text, "# Verdict: "+name+" ") {
				t.Errorf("the title is not that of %s with its version", name)
			}

			inForm, inText := sections(form, "##"), sections(text, "##")
			part := map[string][][]string{}
			for i, s := range inText {
				table := rows(s.body)
				part[s.title] = table
				if s.title != "Write surface" {
					if diff := cmp.Diff(column(rows(inForm[i].body), 0), column(table, 0)); diff != "" {
						t.Errorf("rows of %s (-form +verdict):\n%s", s.title, diff)
					}
				} else if len(table) == 0 || !regexp.MustCompile(`(?m)^Differences: \S`).MatchString(s.body) {
					t.Error("the write surface has no rows, or no word on the differences of the lists")
				}
				for _, r := range append(table, rows(text)...) {
					if slices.Contains(r, "") {
						t.Errorf("%s: an empty cell in the row %v", s.title, r)
					}
				}
			}

			told := titles(text, "###")
			for _, title := range []string{"Checks", "Drills"} {
				for _, r := range part[title] {
					if !slices.Contains(scores, r[1]) {
						t.Errorf("%s: %q is no score", r[0], r[1])
					}
					for _, call := range strings.Split(r[3], ", ") {
						if !slices.Contains(told, call) {
							t.Errorf("%s cites %q, which is not among the calls", r[0], call)
						}
					}
				}
			}
			for _, s := range sections(text, "###") {
				if !regexp.MustCompile(`(?s)→ .*\n *[←#] `).MatchString(s.body) {
					t.Errorf("%s is no call with what came of it", s.title)
				}
			}
			if got, want := part["Verdict"][0][1], ruled(part); got != want {
				t.Errorf("the verdict is %q, by the rule it is %q", got, want)
			}
		})
	}
}

// ruled is the verdict that SKILL.md gives for the scores.
func ruled(part map[string][][]string) string {
	of := map[string]string{}
	for _, r := range append(slices.Clone(part["Checks"]), part["Drills"]...) {
		of[r[0]] = r[1]
	}
	all := slices.Collect(maps.Values(of))
	are := func(names []string, allowed ...string) bool {
		return !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(allowed, of[n]) })
	}
	switch {
	case !slices.Contains(all, "fail") && !slices.Contains(all, "untested") &&
		are([]string{"preview", "binding", "idempotency", "scope", "audit"}, "pass") && are(drills, "pass"):
		return "unattended"
	case are([]string{"scope", "audit"}, "pass", "partial") &&
		are([]string{"preview", "visibility"}, "pass", "partial", "none", "untested"):
		return "attended"
	}
	return "not here"
}
