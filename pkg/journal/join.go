package journal

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// Kind is what a join comes to for one request.
type Kind string

// The kinds of a Joined. The first two are as it should be.
const (
	Same    Kind = "same"    // both logs say the same
	Legal   Kind = "legal"   // they differ in a way that proves nothing: one side saw no answer
	Noted   Kind = "noted"   // a dry run of ours without a line: its process died, or its caller went away
	Missing Kind = "missing" // the API server's log does not have it
	Differs Kind = "differs" // a field differs
	Alarm   Kind = "alarm"   // a write that bears our name and no line, or one that was sent twice
)

// Joined is one request, as the two logs have it.
type Joined struct {
	Time    time.Time // in the API server's log, else in ours
	AuditID string
	Step    string // its key; of a request without a line: verb and path
	Kind    Kind
	Result  string // in words
}

// Joins are the numbers of a join.
type Joins struct {
	Requests int // of ours: dry runs, and whatever was or may have been sent
	By       map[Kind]int
}

// JoinOptions say what is joined.
type JoinOptions struct {
	Label string    // only the lines of the cluster of this name; "" is all lines
	Since time.Time // only requests from then on
}

// JoinWith joins each dry run and each executed request of an audit file with the API
// server's own audit log, which is JSONL of audit.k8s.io/v1 events, and shows what it
// comes to, in the order of that log and those that it does not have at the end. Both are
// read once; of ours a small record per request is kept. It fails as Scan does, and where
// the other log cannot be read.
func JoinWith(path string, keys *Keyring, theirs io.Reader, o JoinOptions, see func(Joined)) (Joins, error) {
	j := newJoin(o, see)
	if err := Scan(path, keys, func(l *Line) error { j.add(l); return nil }); err != nil {
		return Joins{}, err
	}
	if err := readEvents(theirs, j.match); err != nil {
		return Joins{}, err
	}
	j.finish()
	return j.sums, nil
}

// apart is how far the two logs' times of one request may be from each other.
const apart = 60 * time.Second

// join is the state of a JoinWith.
type join struct {
	o           JoinOptions
	see         func(Joined)
	ours        map[string]*request // by Audit-ID
	dryOK       map[string]bool     // by Audit-ID without its attempt
	first, last time.Time           // of the other log
	sums        Joins
}

// request is what our log says of one request.
type request struct {
	time    time.Time
	step    string
	user    string // "" where the API server did not say
	dry     bool
	code    int    // 0 where there was no answer
	outcome string // "" where only the intent is on record
	seen    bool   // in the other log
}

func newJoin(o JoinOptions, see func(Joined)) *join {
	return &join{o: o, see: see, ours: map[string]*request{}, dryOK: map[string]bool{}, sums: Joins{By: map[Kind]int{}}}
}

// add takes the requests of one line.
func (j *join) add(l *Line) {
	if j.o.Label != "" && l.Label != j.o.Label || l.Time.Before(j.o.Since.Add(-apart)) {
		return
	}
	for _, d := range l.DryRuns {
		if d.Outcome == "ok" {
			j.dryOK[withoutAttempt(d.AuditID)] = true
		}
		r := j.request(l, d.AuditID, d.Step)
		r.dry, r.code, r.outcome = true, d.Code, d.Outcome
	}
	switch l.Event {
	case EventIntent:
		j.request(l, l.AuditID, l.StepKey)
	case EventStep:
		r := j.request(l, l.AuditID, l.StepKey)
		r.code, r.outcome = l.HTTP, l.Code
	}
}

// request finds or makes the record of one.
func (j *join) request(l *Line, auditID, step string) *request {
	r := j.ours[auditID]
	if r == nil {
		r = &request{time: l.Time, step: unique.Make(step).Value()}
		j.ours[auditID] = r
	}
	if l.Principal != nil {
		r.user = unique.Make(l.Principal.K8s).Value()
	}
	return r
}

// withoutAttempt is what the dry runs and attempts of one Step have in common.
func withoutAttempt(auditID string) string {
	return auditID[:max(0, strings.LastIndexByte(auditID, '-'))]
}

// maybeSent reports whether a request may have gone out: some were never sent, since the
// last look or the network said no.
func (r *request) maybeSent() bool { return r.code != 0 || r.unanswered() }

// unanswered reports whether nobody knows from our log what became of a request.
func (r *request) unanswered() bool {
	return r.outcome == "" || r.outcome == "unknown" || r.dry && r.code == 0
}

// match takes one event of the other log.
func (j *join) match(e *apiEvent) {
	if e.Received.Before(j.o.Since.Add(-apart)) {
		return
	}
	if j.first.IsZero() {
		j.first = e.Received
	}
	j.last = e.Received
	r := j.ours[e.AuditID]
	switch {
	case r == nil:
		if kind, why := e.unrecorded(); kind != "" && !e.Received.Before(j.o.Since) {
			j.tell(e.Received, e.AuditID, e.String(), kind, why)
		}
	case r.seen:
		j.tell(e.Received, e.AuditID, r.step, Alarm, "sent twice under one Audit-ID: "+e.String())
	default:
		r.seen = true
		if r.time.Before(j.o.Since) {
			return
		}
		kind, result := r.compare(e)
		if kind == Same && !r.dry && r.code/100 == 4 && j.dryOK[withoutAttempt(e.AuditID)] {
			result = fmt.Sprintf("dry run ok, real %d", r.code)
		}
		j.sums.Requests++
		j.tell(e.Received, e.AuditID, r.step, kind, result)
	}
}

// compare says in which field the two logs differ.
func (r *request) compare(e *apiEvent) (Kind, string) {
	want, got := refOf(r.step), e.ref()
	dry, _ := e.dryRun()
	for _, f := range []struct{ name, ours, theirs string }{
		{"user", r.user, e.user()},
		{"verb", want.verb, got.verb},
		{"resource", want.resource, got.resource},
		{"namespace", want.namespace, got.namespace},
		{"name", want.name, got.name},
		{"dry run", fmt.Sprint(r.dry), fmt.Sprint(dry)},
	} {
		if f.ours != f.theirs && (f.name != "user" || f.ours != "") {
			return Differs, fmt.Sprintf("%s: ours %s, theirs %s", f.name, f.ours, plan.Untrusted(f.theirs))
		}
	}
	code := e.Response.Code
	switch d := e.Received.Sub(r.time).Abs(); {
	case d > apart:
		return Differs, fmt.Sprintf("time: %s apart", d.Round(time.Second))
	case r.code == code, r.code == 200 && code/100 == 2: // ours is 200 for every success: a typed client does not tell them apart
		return Same, "same"
	case !r.maybeSent():
		return Differs, fmt.Sprintf("code: ours none, for it was not sent (%s), theirs %d", r.outcome, code)
	case r.code == 0:
		return Legal, fmt.Sprintf("no answer in ours, %d in theirs", code)
	case r.unanswered(), code == 504 && r.code/100 == 2:
		return Legal, fmt.Sprintf("%d in ours, %d in theirs: a server or proxy that stops waiting may have written all the same", r.code, code)
	}
	return Differs, fmt.Sprintf("code: ours %d, theirs %d", r.code, code)
}

// finish tells of the requests that the other log does not have, in the order of ours.
func (j *join) finish() {
	left := slices.Collect(maps.Keys(j.ours))
	left = slices.DeleteFunc(left, func(id string) bool {
		r := j.ours[id]
		return r.seen || !r.maybeSent() || r.time.Before(j.o.Since)
	})
	slices.SortFunc(left, func(a, b string) int {
		if c := j.ours[a].time.Compare(j.ours[b].time); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	for _, id := range left {
		r := j.ours[id]
		kind, result := Missing, "missing in theirs: is its audit policy None for this?"
		switch {
		case r.unanswered():
			kind, result = Legal, "no answer in ours, nothing in theirs: it never arrived, or their log lacks it"
		case j.first.IsZero(), r.time.Before(j.first), r.time.After(j.last):
			result = "missing in theirs: their log does not cover that time; was it rotated?"
		}
		j.sums.Requests++
		j.tell(r.time, id, r.step, kind, result)
	}
}

func (j *join) tell(at time.Time, auditID, step string, kind Kind, result string) {
	j.sums.By[kind]++
	j.see(Joined{at, plan.Untrusted(auditID), step, kind, result})
}
