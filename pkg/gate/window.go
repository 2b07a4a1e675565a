package gate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the names of time zones, where the system has none

	"github.com/robfig/cron/v3"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// WindowKind says what an open Window does.
type WindowKind string

// The kinds of a Window. An open deny window wins over any allow window.
const (
	AllowWindow WindowKind = "allow" // where one matches, nothing passes unless one that matches is open
	DenyWindow  WindowKind = "deny"  // while it is open, nothing passes that it matches
)

// ExceptApproved is the one value of a Window's except: it does not hold a plan that a
// person approved.
const ExceptApproved = "approved"

// WindowSpec is a change window as an operator writes it.
type WindowSpec struct {
	Name       string     // at most 40 lower-case letters, digits and dashes
	Kind       WindowKind // allow or deny
	Schedule   string     // cron, five fields or a word such as @daily: when it opens
	Duration   string     // how long it stays open, by the clock that runs: from 1m to 744h
	TimeZone   string     // of the schedule, as IANA names it
	Namespaces []string   // empty: all, and nodes
	Actions    []string   // empty: all
	Except     string     // "" or ExceptApproved
}

// Window is a change window that ParseWindow has found to be whole.
type Window struct {
	spec     WindowSpec
	duration time.Duration
	zone     *time.Location
	schedule cron.Schedule // in what the clocks of the zone show, as if that were UTC
}

// The bounds of a Window.
const (
	minWindow = time.Minute
	maxWindow = 31 * 24 * time.Hour
)

var windowNameRE = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// ParseWindow gives a window, or every fault of its fields: what was wrong, and what would
// pass. Namespaces and actions are only compared with those of calls, and are the caller's
// to check.
func ParseWindow(s WindowSpec) (w Window, faults []string) {
	wrong := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if !windowNameRE.MatchString(s.Name) {
		wrong("name must be 1 to 40 lower-case letters, digits and dashes, such as night-freeze, not %q", s.Name)
	}
	if s.Kind != AllowWindow && s.Kind != DenyWindow {
		wrong("kind must be allow or deny, not %q", s.Kind)
	}
	if s.Except != "" && s.Except != ExceptApproved {
		wrong("except must be approved, or left out, not %q", s.Except)
	}
	w.spec = s
	var err error
	if w.duration, err = time.ParseDuration(s.Duration); err != nil || w.duration < minWindow || w.duration > maxWindow {
		wrong("duration must be from 1m to 744h, such as 8h or 90m, not %q", s.Duration)
	}
	// "" and Local would be zones as well, the second another one on every machine.
	if w.zone, err = time.LoadLocation(s.TimeZone); err != nil || s.TimeZone == "" || s.TimeZone == "Local" {
		wrong("time_zone must be a name of the IANA database, such as Europe/Berlin or UTC, not %q", s.TimeZone)
	}
	switch w.schedule, err = schedule(s.Schedule); {
	case err != nil:
		wrong(`schedule must be five cron fields, such as "0 22 * * mon-fri", or a word such as @daily, not %q: %v`, s.Schedule, err)
	case w.schedule.Next(time.Unix(0, 0).UTC()).IsZero():
		wrong("schedule %q names a day that never comes; it must come within five years", s.Schedule)
	}
	return w, faults
}

// schedule parses cron. A zone stands in its own field, and @every, which has no
// beginning that two processes would agree on, is no schedule of a window.
func schedule(text string) (cron.Schedule, error) {
	switch {
	case strings.Contains(text, "TZ="):
		return nil, fmt.Errorf("the zone stands in time_zone")
	case strings.HasPrefix(strings.TrimSpace(text), "@every"):
		return nil, fmt.Errorf("@every has no time at which it begins")
	}
	return cron.ParseStandard("CRON_TZ=UTC " + text)
}

// next is when the window opens after t: at each time that the schedule names, twice
// where clocks that are set back show it twice, and where clocks that are set forward
// leave it out, at the moment of the change. The zero time is never. The schedule is asked
// for what the clocks show, one stretch without a change after the other: its own reading
// of a zone forgets what is left out, which would let a deny window not open at all.
func (w Window) next(t time.Time) time.Time {
	for stretch := t.In(w.zone); ; {
		_, offset := stretch.Zone()
		ahead := time.Duration(offset) * time.Second
		named := w.schedule.Next(t.UTC().Add(ahead))
		if named.IsZero() {
			return named
		}
		_, change := stretch.ZoneBounds()
		if at := named.Add(-ahead); change.IsZero() || at.Before(change) {
			return at
		}
		_, offset = change.Zone()
		if named.Before(change.UTC().Add(time.Duration(offset) * time.Second)) {
			return change
		}
		stretch, t = change, change.Add(-time.Second) // the change itself counts
	}
}

// ends is when the window, open at t, ends if it does not open again before; it reports
// false where it is closed at t.
func (w Window) ends(t time.Time) (time.Time, bool) {
	began := w.next(t.Add(-w.duration))
	return began.Add(w.duration), !began.IsZero() && !began.After(t)
}

func (w Window) matches(action, namespace string) bool {
	return (len(w.spec.Actions) == 0 || slices.Contains(w.spec.Actions, action)) &&
		(len(w.spec.Namespaces) == 0 || slices.Contains(w.spec.Namespaces, namespace))
}

// Window refuses an action that the change windows hold back at now in a namespace, or on
// nodes where that is "". approved says that a person approved the plan. Where only that
// is missing, and the policy leaves plans to a person, unless is set: the refusal's
// message is then the reason why the plan is a person's.
func (p Policy) Window(action, namespace string, now time.Time, approved bool) (no *refusal.Refusal, unless bool) {
	var about []Window
	for _, w := range p.Windows {
		if w.matches(action, namespace) {
			about = append(about, w)
		}
	}
	holds := held(about, now, approved)
	if holds == nil {
		return nil, false
	}
	where := "on nodes"
	if namespace != "" {
		where = "in namespace " + namespace
	}
	names := make([]string, len(holds))
	for i, w := range holds {
		names[i] = w.spec.Name
	}
	text := fmt.Sprintf("the change %s %s %s %s %s", plan.Plural(len(names), "window"), strings.Join(names, ", "), verb(holds[0].spec.Kind, len(names)), action, where)
	person := p.For(namespace).Irreversible
	unless = held(about, now, true) == nil && person != Refuse && person != Allow
	at, found := opens(about, now, approved)
	if !found {
		return refusal.New(refusal.WindowClosed, "no time was found at which it would pass: ask the operator who wrote change_windows", "%s", text), unless
	}
	at, when := named(at)
	return refusal.New(refusal.WindowClosed, fmt.Sprintf("it passes at %s (%s), which is %s", at.In(holds[0].zone).Format("Mon 2006-01-02 15:04:05 -0700"), holds[0].zone, when),
		"%s", text).Later(at), unless
}

func verb(k WindowKind, n int) string {
	switch {
	case k == DenyWindow && n == 1:
		return "forbids"
	case k == DenyWindow:
		return "forbid"
	case n == 1:
		return "is closed to"
	}
	return "are closed to"
}

// held gives the windows of those about a call that hold it back at a time: the deny
// windows that are open, else the allow windows where none is. A person's approval takes
// those away that except it, and what they allow stays.
func held(about []Window, at time.Time, approved bool) (holds []Window) {
	allowed := false
	var closed []Window
	for _, w := range about {
		_, open := w.ends(at)
		excepted := approved && w.spec.Except == ExceptApproved
		switch {
		case w.spec.Kind == AllowWindow && open:
			allowed = true
		case excepted:
		case w.spec.Kind == AllowWindow:
			closed = append(closed, w)
		case open:
			holds = append(holds, w)
		}
	}
	if holds == nil && !allowed {
		return closed
	}
	return holds
}

// The bounds of the search for a time that passes.
const (
	searchFor   = 366 * 24 * time.Hour
	searchSteps = 5000 // a window that opens every minute is followed for some days
)

// opens is the first time after t at which nothing holds a call back.
func opens(about []Window, t time.Time, approved bool) (at time.Time, found bool) {
	until := t.Add(searchFor)
	at = t
	for range searchSteps {
		holds := held(about, at, approved)
		switch {
		case at.After(until):
			return at, false
		case holds == nil:
			return at, true
		}
		// Nothing changes before the first of these.
		var then time.Time
		for _, w := range about {
			change, open := w.ends(at)
			if !open {
				change = w.next(at)
			}
			if !change.IsZero() && (then.IsZero() || change.Before(then)) {
				then = change
			}
		}
		if then.IsZero() {
			return at, false
		}
		at = then
	}
	return at, false
}
