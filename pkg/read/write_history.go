package read

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

type writeHistoryArgs struct {
	scoped
	workload
	Pod     string `json:"pod,omitempty" jsonschema:"exact name"`
	Node    string `json:"node,omitempty" jsonschema:"exact name"`
	Plan    string `json:"plan,omitempty" jsonschema:"id of a plan"`
	Action  string `json:"action,omitempty" jsonschema:"such as scale, with its plans"`
	Outcome string `json:"outcome,omitempty" jsonschema:"event or code, as execute, blast_limit"`
	Since   int32  `json:"since_seconds,omitempty" jsonschema:"of the last seconds"`
	paging
}

var word = regexp.MustCompile(`^[A-Za-z][A-Za-z_ ]{0,39}$`)

// Check wants at most one target, and words.
func (a writeHistoryArgs) Check() (faults []string) {
	if n := count(a.targets()); n > 1 {
		faults = append(faults, fmt.Sprintf("a write has one target, and %d are named", n))
	}
	for name, value := range map[string]string{"action": a.Action, "outcome": a.Outcome} {
		if value != "" && !word.MatchString(value) {
			faults = append(faults, name+" must be letters and _, not "+quoted(value))
		}
	}
	slices.Sort(faults)
	return faults
}

func (a writeHistoryArgs) targets() [][2]string {
	return append(a.each(), [2]string{"pod", a.Pod}, [2]string{"node", a.Node})
}

// History is the answer of write_history.
type History struct {
	Head
	Page
	Only   string  `json:"only,omitempty" jsonschema:"what of the history this is"`
	Writes []Write `json:"writes" jsonschema:"newest first"`
}

// Write is one line of the journal.
type Write struct {
	Seq       int64  `json:"seq"`
	Time      string `json:"time"`
	Event     string `json:"event"`
	Code      string `json:"code,omitempty"`
	Tool      string `json:"tool"`
	Plan      string `json:"plan,omitempty"`
	Phrase    string `json:"phrase,omitempty" jsonschema:"its sentence; no phrase confirms by this"`
	Target    string `json:"target,omitempty"`
	Says      string `json:"says,omitempty"`
	Reason    string `json:"untrusted_reason,omitempty"`
	Untrusted string `json:"untrusted,omitempty"`
}

// told are the events that write_history tells: what became of each call that was no read,
// and what was found out about a write later.
var told = append(slices.DeleteFunc(slices.Clone(journal.Outcomes), func(e string) bool { return e == journal.EventRead }),
	journal.EventReconciled, journal.EventVerify)

var writeHistory = of(Tool{
	Name: "write_history", Title: "History of writes",
	Doc: "Reads from the audit log your own plans, writes and refused calls, newest first. Sends nothing to the cluster.",
}, func(_ context.Context, v view, a *writeHistoryArgs) (*History, error) {
	q := journal.Query{Events: told, Limit: a.rows(), Want: func(l *journal.Line) bool { return v.tells(a, l) }}
	if a.Since > 0 {
		q.Since = v.Now().Add(-time.Duration(a.Since) * time.Second)
	}
	if a.Continue != "" {
		raw, err := base64.RawURLEncoding.DecodeString(a.Continue)
		if err == nil {
			q.Before, err = strconv.ParseInt(string(raw), 10, 64)
		}
		if err != nil || q.Before < 1 {
			return nil, refusal.New(refusal.InvalidArguments, "call without continue", "continue is no handle of this list")
		}
	}
	lines, more, err := v.Journal.Newest(q)
	if err != nil {
		return nil, refusal.New(refusal.RecordMissing, "have the operator look at the audit log", "the audit log cannot be read: %v", err)
	}
	out := &History{Writes: []Write{}}
	out.Shown = len(lines)
	if v.Replica != "" {
		out.Only = "calls of replica " + v.Replica + ": each replica has an audit log of its own"
	}
	for _, l := range lines {
		out.Writes = append(out.Writes, written(l, a.rows()))
	}
	if more {
		out.Truncated = "older lines. Pass continue for the next page, or narrow with a target, plan, action, outcome or since_seconds"
		out.Continue = base64.RawURLEncoding.EncodeToString(strconv.AppendInt(nil, lines[len(lines)-1].Seq, 10))
	}
	return out, nil
})

// tells decides about a line: it is of this caller, in scope, and what was asked for.
func (v view) tells(a *writeHistoryArgs, l *journal.Line) bool {
	if l.Principal == nil || l.Principal.String() != v.Principal.String() {
		return false
	}
	var t plan.Target
	if l.Target != nil {
		t = *l.Target
	}
	switch {
	case t.Namespace != "" && v.namespaces[0] != "" && !slices.Contains(v.namespaces, t.Namespace),
		a.Namespace != "" && t.Namespace != a.Namespace,
		a.Plan != "" && l.Plan != a.Plan,
		a.Action != "" && l.Tool != a.Action && l.Tool != "plan_"+a.Action,
		a.Outcome != "" && l.Event != a.Outcome && l.Code != a.Outcome && verdict(l) != a.Outcome:
		return false
	}
	for _, f := range a.targets() {
		if k, ok := plan.KindOf(t.Resource); f[1] != "" && (!ok || k.Argument != f[0] || t.Name != f[1]) {
			return false
		}
	}
	return true
}

func verdict(l *journal.Line) string {
	if l.Verification == nil {
		return ""
	}
	return string(l.Verification.Verdict)
}

// says is how much of an answer a row shows.
const says = 300

func written(l *journal.Line, rows int) Write {
	w := Write{
		Seq: l.Seq, Time: l.Time.UTC().Format(time.RFC3339), Event: l.Event, Code: cmp.Or(l.Code, verdict(l)), Tool: l.Tool, Plan: l.Plan, Phrase: l.Phrase,
		Says: l.Output, Reason: bounded(l.Reason, rows), Untrusted: bounded(l.Untrusted, rows),
	}
	if l.Verification != nil {
		w.Says = l.Verification.Reason
	}
	room := says
	if rows > defaultRows {
		room = 64
	}
	if r := []rune(w.Says); len(r) > room {
		w.Says = string(r[:room]) + "…"
	}
	if l.Target != nil {
		w.Target = l.Target.String()
	}
	return w
}

// Text is the answer as a table.
func (h *History) Text() string {
	s := sheet{head: fmt.Sprintf("%d %s, newest first, of the audit log", h.Shown, plan.Plural(h.Shown, "line")), table: [][]string{{"SEQ", "TIME", "EVENT", "CODE", "TOOL", "PLAN", "WHAT"}}}
	if h.Only != "" {
		s.head += ", " + h.Only
	}
	for _, w := range h.Writes {
		s.table = append(s.table, []string{fmt.Sprint(w.Seq), w.Time, w.Event, w.Code, w.Tool, w.Plan, cmp.Or(w.Phrase, w.Target, w.Says)})
		s.quote(fmt.Sprintf("line %d", w.Seq), strings.TrimSpace(strings.Join([]string{w.Reason, w.Untrusted}, " ")))
	}
	s.page(h.Page)
	return s.text(h.Head)
}
