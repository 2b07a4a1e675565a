package blast

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// The bounds of what a person must read.
const (
	maxLine  = 159 // characters
	maxLines = 20
	maxNames = 6
)

// rank is how bad a line is.
type rank int

const (
	outage  rank = iota
	loss         // data or pods that do not come back
	blocked      // a budget or a lack of nodes stands in the way
	extent       // how much is touched
	detail
)

type line struct {
	rank
	text string
}

// say adds a line. Only numbers, words of ours and names through safe, short, full or
// list may stand in it.
func (t *tally) say(r rank, format string, args ...any) {
	text := []rune(fmt.Sprintf(format, args...))
	if len(text) > maxLine {
		text = append(text[:maxLine-1], '…')
	}
	if l := (line{r, string(text)}); !slices.Contains(t.lines, l) {
		t.lines = append(t.lines, l)
	}
}

func worstFirst(lines []line) (out []string) {
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.rank, b.rank) })
	for i, l := range lines {
		if i == maxLines-1 && len(lines) > maxLines {
			return append(out, fmt.Sprintf("and %d lines more", len(lines)-i))
		}
		out = append(out, l.text)
	}
	return out
}

// sayRisks puts the capacity at risk in words.
func (t *tally) sayRisks() {
	for i, o := range t.owners {
		who := ""
		if len(t.owners) > 1 {
			who = o.display() + ": "
		}
		if o.Missing == 1 && o.Ready == 1 && o.Replaced {
			t.say(outage, "%sthe only ready pod: an outage until its replacement is ready", who)
		} else if i > 0 && o.Percent > 25 && o.kind != "Pod" { // a bare pod is named as a loss
			t.say(extent, "%s%d of %s missing at once (%d %%)", who, o.Missing, count(o.Ready, "ready pod"), o.Percent)
		}
		if i == 0 && o.Missing > 0 && o.Peak > o.Ready {
			t.say(extent, "%s%d ready in the last 10 minutes, %d now: the share is of the %d", who, o.Peak, o.Ready, o.Peak)
		}
	}
}

// count is a number with its noun: 1 pod, 2 pods.
func count(n int, noun string) string {
	return fmt.Sprintf("%d %s", n, plan.Plural(n, noun))
}

// every names all of them: the only pod, all 3 pods.
func every(n int, noun string) string {
	if n == 1 {
		return "the only " + noun
	}
	return "all " + count(n, noun)
}

var safeRE = regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)

// safe withholds what is not a name: owner references, claim templates and media of
// volumes may be free text of the cluster.
func safe(name string) string {
	if len(name) > 253 || !safeRE.MatchString(name) {
		return "(name withheld)"
	}
	return name
}

// short keeps both ends of a long name.
func short(name string) string {
	name = safe(name)
	if len(name) <= 40 {
		return name
	}
	return name[:20] + "…" + name[len(name)-19:]
}

func full(namespace, name string) string { return short(namespace) + "/" + short(name) }

// list joins as many names as fit, and counts the rest: db-2, db-1 and 4 more.
func list(names []string, separator string) string { return listOf(names, separator, len(names)) }

// listOf joins the first names of so many.
func listOf(names []string, separator string, total int) string {
	const room = 90
	out := ""
	for i, n := range names {
		if i > 0 && (i == maxNames || len(out)+len(n) > room) {
			return fmt.Sprintf("%s and %d more", out, total-i)
		}
		if i > 0 {
			out += separator
		}
		out += n
	}
	return out
}

// emptyDirs joins the names of a pod's emptyDir volumes.
func emptyDirs(p plan.Pod) string {
	var names []string
	for _, v := range p.EmptyDirs {
		names = append(names, safe(v))
	}
	return strings.Join(names, ", ")
}
