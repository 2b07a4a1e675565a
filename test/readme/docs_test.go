package readme

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/app"
)

// maxReadme is how many lines the README has at most: somebody reads it in two minutes.
const maxReadme = 300

func TestReadmeIsShort(t *testing.T) {
	if n := strings.Count(read(t, "README.md"), "\n"); n >= maxReadme {
		t.Errorf("README.md has %d lines, the limit is %d", n, maxReadme)
	}
}

var (
	linkRE    = regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	headingRE = regexp.MustCompile("(?m)^#+ (.*)$")
	commandRE = regexp.MustCompile("(?m)(?:^|`)kube-write-mcp +([^`\n]*)")
	scriptRE  = regexp.MustCompile(`\bhack/[a-z/-]+\.sh\b`)
)

// TestDocsLinks: every relative link leads somewhere, its anchor too.
func TestDocsLinks(t *testing.T) {
	docs := documents(t)
	for name, text := range docs {
		for _, m := range linkRE.FindAllStringSubmatch(text, -1) {
			target, anchor := m[1], strings.TrimPrefix(m[2], "#")
			if strings.Contains(target, "://") {
				continue
			}
			to := name
			if target != "" {
				to = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links to %s: %v", name, m[0], err)
				continue
			}
			if anchor != "" && !anchors(docs[to])[anchor] {
				t.Errorf("%s links to %s, where there is no such heading", name, m[0])
			}
		}
	}
}

// anchors are those of a document's headings, as they are made where it is shown.
func anchors(doc string) map[string]bool {
	all := map[string]bool{}
	for _, m := range headingRE.FindAllStringSubmatch(doc, -1) {
		kept := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', r >= 'a' && r <= 'z', r >= '0' && r <= '9':
				return r
			}
			return -1
		}, strings.ToLower(m[1]))
		all[kept] = true
	}
	return all
}

// TestDocsCommands: every command line of the program is one that it takes, and every
// script is there. What they do is other tests'.
func TestDocsCommands(t *testing.T) {
	seen := 0
	for name, text := range documents(t) {
		for _, m := range commandRE.FindAllStringSubmatch(text, -1) {
			line, _, _ := strings.Cut(m[1], "#")
			line, _, _ = strings.Cut(line, "|")
			args := strings.Fields(strings.NewReplacer(`"`, "", "'", "", "…", "", `\`, "").Replace(line))
			if len(args) == 0 {
				continue
			}
			seen++
			var out, errs bytes.Buffer
			if code := app.Main(append(args, "--help"), strings.NewReader(""), &out, &errs, actions.All()...); code != 0 {
				t.Errorf("%s: kube-write-mcp %s: %s", name, line, errs.String())
			} else if sub := args[0]; !strings.HasPrefix(sub, "-") && !strings.Contains(out.String(), "kube-write-mcp "+sub) {
				t.Errorf("%s: kube-write-mcp has no command %s", name, sub)
			}
		}
		for _, script := range scriptRE.FindAllString(text, -1) {
			if _, err := os.Stat(filepath.Join(root, script)); err != nil {
				t.Errorf("%s names a script: %v", name, err)
			}
		}
	}
	if seen < 10 {
		t.Errorf("%d command lines were found", seen)
	}
}
