package gate

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

func window(t *testing.T, s WindowSpec) Window {
	t.Helper()
	w, faults := ParseWindow(s)
	if faults != nil {
		t.Fatal(faults)
	}
	return w
}

// spec is a window in Berlin.
func spec(name string, kind WindowKind, schedule, duration string) WindowSpec {
	return WindowSpec{Name: name, Kind: kind, Schedule: schedule, Duration: duration, TimeZone: "Europe/Berlin"}
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestParseWindow: every fault names its field, what was wrong, and what would pass.
func TestParseWindow(t *testing.T) {
	good := spec("night", DenyWindow, "0 22 * * mon-fri", "8h")
	for name, tc := range map[string]struct {
		change func(*WindowSpec)
		want   []string // one fault has all of it
	}{
		"whole":           {func(*WindowSpec) {}, nil},
		"a word":          {func(s *WindowSpec) { s.Schedule = "@daily" }, nil},
		"the longest":     {func(s *WindowSpec) { s.Duration = "744h" }, nil},
		"an exception":    {func(s *WindowSpec) { s.Except = "approved" }, nil},
		"a leap day":      {func(s *WindowSpec) { s.Schedule = "0 0 29 2 *" }, nil},
		"no name":         {func(s *WindowSpec) { s.Name = "" }, []string{"name must be", "such as", `""`}},
		"a name of words": {func(s *WindowSpec) { s.Name = "the night" }, []string{"name must be", `"the night"`}},
		"a long name":     {func(s *WindowSpec) { s.Name = strings.Repeat("a", 41) }, []string{"name must be"}},
		"kind":            {func(s *WindowSpec) { s.Kind = "freeze" }, []string{"kind must be allow or deny", `"freeze"`}},
		"no kind":         {func(s *WindowSpec) { s.Kind = "" }, []string{"kind must be allow or deny"}},
		"except":          {func(s *WindowSpec) { s.Except = "admins" }, []string{"except must be approved", `"admins"`}},
		"no schedule":     {func(s *WindowSpec) { s.Schedule = "" }, []string{"schedule must be five cron fields", `""`}},
		"seconds":         {func(s *WindowSpec) { s.Schedule = "0 0 22 * * *" }, []string{"schedule must be five cron fields", "such as", "0 0 22"}},
		"an hour of none": {func(s *WindowSpec) { s.Schedule = "0 24 * * *" }, []string{"schedule must be", "24"}},
		"every":           {func(s *WindowSpec) { s.Schedule = "@every 1h" }, []string{"schedule must be", "@every"}},
		"a zone in it":    {func(s *WindowSpec) { s.Schedule = "CRON_TZ=UTC 0 22 * * *" }, []string{"schedule must be", "time_zone"}},
		"a zone alone":    {func(s *WindowSpec) { s.Schedule = "TZ=UTC" }, []string{"schedule must be", "time_zone"}},
		"never":           {func(s *WindowSpec) { s.Schedule = "0 0 30 2 *" }, []string{"schedule", "never comes", "30 2"}},
		"no duration":     {func(s *WindowSpec) { s.Duration = "" }, []string{"duration must be from 1m to 744h", `""`}},
		"no unit":         {func(s *WindowSpec) { s.Duration = "8" }, []string{"duration must be", "such as 8h", `"8"`}},
		"too short":       {func(s *WindowSpec) { s.Duration = "59s" }, []string{"duration must be"}},
		"too long":        {func(s *WindowSpec) { s.Duration = "745h" }, []string{"duration must be"}},
		"backwards":       {func(s *WindowSpec) { s.Duration = "-1h" }, []string{"duration must be"}},
		"no zone":         {func(s *WindowSpec) { s.TimeZone = "" }, []string{"time_zone must be", "Europe/Berlin", `""`}},
		"no such zone":    {func(s *WindowSpec) { s.TimeZone = "Europe/Bonn" }, []string{"time_zone must be", `"Europe/Bonn"`}},
		"a city":          {func(s *WindowSpec) { s.TimeZone = "Berlin" }, []string{"time_zone must be", `"Berlin"`}},
		"a path":          {func(s *WindowSpec) { s.TimeZone = "../../etc/localtime" }, []string{"time_zone must be"}},
		"the machine's":   {func(s *WindowSpec) { s.TimeZone = "Local" }, []string{"time_zone must be", `"Local"`}},
	} {
		t.Run(name, func(t *testing.T) {
			s := good
			tc.change(&s)
			_, faults := ParseWindow(s)
			if (faults != nil) != (tc.want != nil) || len(faults) > 1 {
				t.Fatalf("faults are %q", faults)
			}
			for _, w := range tc.want {
				if !strings.Contains(faults[0], w) {
					t.Errorf("%q lacks %q", faults[0], w)
				}
			}
		})
	}
	if _, faults := ParseWindow(WindowSpec{}); len(faults) != 5 {
		t.Errorf("not every fault is named at once: %q", faults)
	}
}

// TestWindowOpens: when a window is open, and when it opens next, where the clocks of
// Berlin are changed (2027-03-28 from 02:00 to 03:00, 2027-10-31 from 03:00 to 02:00).
func TestWindowOpens(t *testing.T) {
	for name, tc := range map[string]struct {
		schedule, duration string
		at                 string
		wantOpen           bool
		wantEnds           string // where it is open
		wantNext           string
	}{
		"before":                      {"0 9 * * *", "8h", "2026-11-30T08:59:59+01:00", false, "", "2026-11-30T09:00:00+01:00"},
		"its first second":            {"0 9 * * *", "8h", "2026-11-30T09:00:00+01:00", true, "2026-11-30T17:00:00+01:00", "2026-12-01T09:00:00+01:00"},
		"its last":                    {"0 9 * * *", "8h", "2026-11-30T16:59:59+01:00", true, "2026-11-30T17:00:00+01:00", "2026-12-01T09:00:00+01:00"},
		"after":                       {"0 9 * * *", "8h", "2026-11-30T17:00:00+01:00", false, "", "2026-12-01T09:00:00+01:00"},
		"a weekday, on friday night":  {"0 9 * * mon-fri", "8h", "2026-12-04T18:00:00+01:00", false, "", "2026-12-07T09:00:00+01:00"},
		"over midnight, before it":    {"0 22 * * *", "8h", "2026-11-30T23:30:00+01:00", true, "2026-12-01T06:00:00+01:00", "2026-12-01T22:00:00+01:00"},
		"over midnight, after it":     {"0 22 * * *", "8h", "2026-12-01T05:59:00+01:00", true, "2026-12-01T06:00:00+01:00", "2026-12-01T22:00:00+01:00"},
		"over midnight, of another":   {"0 22 * * mon", "8h", "2026-12-01T05:59:00+01:00", true, "2026-12-01T06:00:00+01:00", "2026-12-07T22:00:00+01:00"},
		"over a year's end":           {"0 20 31 12 *", "12h", "2027-01-01T03:00:00+01:00", true, "2027-01-01T08:00:00+01:00", "2027-12-31T20:00:00+01:00"},
		"asked in another zone":       {"0 9 * * *", "8h", "2026-11-30T03:00:00-05:00", true, "2026-11-30T17:00:00+01:00", "2026-12-01T09:00:00+01:00"},
		"summer time is an hour less": {"0 9 * * *", "8h", "2027-07-01T06:59:59Z", false, "", "2027-07-01T07:00:00Z"},
		"the hour that is left out":   {"30 2 * * *", "1h", "2027-03-28T01:15:00Z", true, "2027-03-28T02:00:00Z", "2027-03-29T00:30:00Z"},
		"before that":                 {"30 2 * * *", "1h", "2027-03-28T00:59:59Z", false, "", "2027-03-28T01:00:00Z"},
		"over that, an hour longer":   {"0 22 * * *", "8h", "2027-03-28T04:59:59Z", true, "2027-03-28T05:00:00Z", "2027-03-28T20:00:00Z"},
		"the hour that comes twice":   {"30 2 * * *", "30m", "2027-10-31T00:45:00Z", true, "2027-10-31T01:00:00Z", "2027-10-31T01:30:00Z"},
		"between the two":             {"30 2 * * *", "30m", "2027-10-31T01:15:00Z", false, "", "2027-10-31T01:30:00Z"},
		"the second of them":          {"30 2 * * *", "30m", "2027-10-31T01:45:00Z", true, "2027-10-31T02:00:00Z", "2027-11-01T01:30:00Z"},
		"a leap day is far":           {"0 0 29 2 *", "1h", "2026-11-30T12:00:00Z", false, "", "2028-02-28T23:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			w, at := window(t, spec("w", AllowWindow, tc.schedule, tc.duration)), instant(t, tc.at)
			ends, open := w.ends(at)
			if open != tc.wantOpen || open && !ends.Equal(instant(t, tc.wantEnds)) {
				t.Errorf("open %t until %s, want %t until %s", open, ends, tc.wantOpen, tc.wantEnds)
			}
			if next := w.next(at); !next.Equal(instant(t, tc.wantNext)) {
				t.Errorf("opens next at %s, want %s", next, tc.wantNext)
			}
		})
	}
}

// TestWindowMinuteByMinute compares a window, around changes of the clocks, with what the
// clocks on the wall show: open for its duration from each minute that the schedule names,
// and from the change where that minute is left out.
func TestWindowMinuteByMinute(t *testing.T) {
	for zone, changes := range map[string][]string{
		"Europe/Berlin":       {"2027-03-27", "2027-10-30"},
		"America/New_York":    {"2027-03-13", "2027-11-06"},
		"Africa/Cairo":        {"2027-04-29", "2027-10-28"}, // at midnight
		"Australia/Lord_Howe": {"2027-04-02", "2027-10-01"}, // by half an hour
	} {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		for _, day := range changes {
			for _, named := range [][2]int{{0, 0}, {0, 30}, {1, 0}, {1, 45}, {2, 0}, {2, 15}, {2, 30}, {3, 0}, {23, 30}} {
				hour, minute := named[0], named[1]
				schedule := time.Date(0, 1, 1, hour, minute, 0, 0, time.UTC).Format("4 15 * * *")
				w := window(t, WindowSpec{Name: "w", Kind: DenyWindow, Schedule: schedule, Duration: "50m", TimeZone: zone})
				from := instant(t, day+"T00:00:00Z")
				var starts []time.Time
				for at := from.Add(-24 * time.Hour); at.Before(from.Add(72 * time.Hour)); at = at.Add(time.Minute) {
					now, was := at.In(loc), at.Add(-time.Minute).In(loc)
					if h, m, _ := now.Clock(); h == hour && m == minute {
						starts = append(starts, at)
					}
					_, before := was.Zone()
					_, after := now.Zone()
					for gap := at.UTC().Add(time.Duration(before) * time.Second); after > before && gap.Before(at.UTC().Add(time.Duration(after)*time.Second)); gap = gap.Add(time.Minute) {
						if h, m, _ := gap.Clock(); h == hour && m == minute {
							starts = append(starts, at)
						}
					}
				}
				for at := from; at.Before(from.Add(72 * time.Hour)); at = at.Add(5 * time.Minute) {
					want := slices.ContainsFunc(starts, func(s time.Time) bool { return !s.After(at) && at.Before(s.Add(50*time.Minute)) })
					if _, open := w.ends(at); open != want {
						t.Fatalf("%s, %q, at %s: open %t, want %t", zone, schedule, at.In(loc), open, want)
					}
				}
			}
		}
	}
}

// TestWindow: what the windows of a policy refuse, and the time that they name.
func TestWindow(t *testing.T) {
	office := spec("office", AllowWindow, "0 9 * * mon-fri", "8h")
	lunch := spec("lunch", DenyWindow, "0 12 * * *", "1h")
	freeze := spec("freeze", DenyWindow, "0 0 20 12 *", "336h") // to 2027-01-03
	always := spec("always", DenyWindow, "@hourly", "1h")
	weekend := spec("weekend", AllowWindow, "0 10 * * sat", "2h")
	with := func(s WindowSpec, change func(*WindowSpec)) WindowSpec { change(&s); return s }
	excepted := func(s WindowSpec) WindowSpec {
		return with(s, func(s *WindowSpec) { s.Except = ExceptApproved })
	}
	for name, tc := range map[string]struct {
		windows    []WindowSpec
		action     string // scale when empty
		namespace  string // prod when empty
		at         string // a time in Berlin
		approved   bool
		person     Person
		want       string // the message; "" passes
		wantAt     string
		wantUnless bool
	}{
		"none":                         {at: "2026-11-30T12:00:00+01:00"},
		"allowed":                      {windows: []WindowSpec{office}, at: "2026-11-30T10:00:00+01:00"},
		"not yet":                      {windows: []WindowSpec{office}, at: "2026-11-30T08:00:00+01:00", want: "the change window office is closed to scale in namespace prod", wantAt: "2026-11-30T09:00:00+01:00"},
		"on a friday night":            {windows: []WindowSpec{office}, at: "2026-12-04T17:00:00+01:00", want: "the change window office is closed to scale in namespace prod", wantAt: "2026-12-07T09:00:00+01:00"},
		"deny wins":                    {windows: []WindowSpec{office, lunch}, at: "2026-11-30T12:30:00+01:00", want: "the change window lunch forbids scale in namespace prod", wantAt: "2026-11-30T13:00:00+01:00"},
		"deny is over":                 {windows: []WindowSpec{office, lunch}, at: "2026-11-30T13:00:00+01:00"},
		"both":                         {windows: []WindowSpec{office, freeze}, at: "2026-12-28T08:00:00+01:00", want: "the change window freeze forbids scale in namespace prod", wantAt: "2027-01-04T09:00:00+01:00"},
		"one of two allowed":           {windows: []WindowSpec{office, weekend}, at: "2026-12-05T11:00:00+01:00"},
		"none of two":                  {windows: []WindowSpec{office, weekend}, at: "2026-12-05T08:00:00+01:00", want: "the change windows office, weekend are closed to scale in namespace prod", wantAt: "2026-12-05T10:00:00+01:00"},
		"two that forbid":              {windows: []WindowSpec{lunch, freeze}, at: "2026-12-28T12:30:00+01:00", want: "the change windows lunch, freeze forbid scale in namespace prod", wantAt: "2027-01-03T00:00:00+01:00"},
		"across the spring":            {windows: []WindowSpec{spec("night", AllowWindow, "30 2 * * *", "1h")}, at: "2027-03-28T01:30:00+01:00", want: "the change window night is closed to scale in namespace prod", wantAt: "2027-03-28T03:00:00+02:00"},
		"out of a night of autumn":     {windows: []WindowSpec{spec("night", DenyWindow, "0 22 * * *", "8h")}, at: "2027-10-31T02:30:00+02:00", want: "the change window night forbids scale in namespace prod", wantAt: "2027-10-31T05:00:00+01:00"},
		"never":                        {windows: []WindowSpec{always}, at: "2026-11-30T12:00:00+01:00", want: "the change window always forbids scale in namespace prod"},
		"allowed only when denied":     {windows: []WindowSpec{office, spec("day", DenyWindow, "0 8 * * *", "12h")}, at: "2026-11-30T21:00:00+01:00", want: "the change window office is closed to scale in namespace prod"},
		"another namespace":            {windows: []WindowSpec{with(lunch, func(s *WindowSpec) { s.Namespaces = []string{"dev"} })}, at: "2026-11-30T12:30:00+01:00"},
		"its namespace":                {windows: []WindowSpec{with(lunch, func(s *WindowSpec) { s.Namespaces = []string{"dev", "prod"} })}, at: "2026-11-30T12:30:00+01:00", want: "the change window lunch forbids scale in namespace prod", wantAt: "2026-11-30T13:00:00+01:00"},
		"another action":               {windows: []WindowSpec{with(lunch, func(s *WindowSpec) { s.Actions = []string{"drain"} })}, at: "2026-11-30T12:30:00+01:00"},
		"its action":                   {windows: []WindowSpec{with(lunch, func(s *WindowSpec) { s.Actions = []string{"drain", "scale"} })}, at: "2026-11-30T12:30:00+01:00", want: "the change window lunch forbids scale in namespace prod", wantAt: "2026-11-30T13:00:00+01:00"},
		"nodes":                        {windows: []WindowSpec{lunch}, action: "drain", namespace: "-", at: "2026-11-30T12:30:00+01:00", want: "the change window lunch forbids drain on nodes", wantAt: "2026-11-30T13:00:00+01:00"},
		"nodes, of a namespace":        {windows: []WindowSpec{with(lunch, func(s *WindowSpec) { s.Namespaces = []string{"prod"} })}, action: "drain", namespace: "-", at: "2026-11-30T12:30:00+01:00"},
		"an allow window of another":   {windows: []WindowSpec{with(office, func(s *WindowSpec) { s.Namespaces = []string{"dev"} })}, at: "2026-11-30T03:00:00+01:00"},
		"excepted":                     {windows: []WindowSpec{excepted(lunch)}, at: "2026-11-30T12:30:00+01:00", want: "the change window lunch forbids scale in namespace prod", wantAt: "2026-11-30T13:00:00+01:00", wantUnless: true},
		"excepted, approved":           {windows: []WindowSpec{excepted(lunch)}, at: "2026-11-30T12:30:00+01:00", approved: true},
		"excepted, nobody asks":        {windows: []WindowSpec{excepted(lunch)}, at: "2026-11-30T12:30:00+01:00", person: Allow, want: "the change window lunch forbids scale in namespace prod", wantAt: "2026-11-30T13:00:00+01:00"},
		"excepted, persons are none":   {windows: []WindowSpec{excepted(lunch)}, at: "2026-11-30T12:30:00+01:00", person: Refuse, want: "the change window lunch forbids scale in namespace prod", wantAt: "2026-11-30T13:00:00+01:00"},
		"not excepted, approved":       {windows: []WindowSpec{lunch}, at: "2026-11-30T12:30:00+01:00", approved: true, want: "the change window lunch forbids scale in namespace prod", wantAt: "2026-11-30T13:00:00+01:00"},
		"one of two excepted":          {windows: []WindowSpec{excepted(lunch), freeze}, at: "2026-12-28T12:30:00+01:00", approved: true, want: "the change window freeze forbids scale in namespace prod", wantAt: "2027-01-03T00:00:00+01:00"},
		"closed, excepted":             {windows: []WindowSpec{excepted(office)}, at: "2026-11-30T08:00:00+01:00", want: "the change window office is closed to scale in namespace prod", wantAt: "2026-11-30T09:00:00+01:00", wantUnless: true},
		"closed, excepted, approved":   {windows: []WindowSpec{excepted(office)}, at: "2026-11-30T08:00:00+01:00", approved: true},
		"open one excepted, one not":   {windows: []WindowSpec{excepted(office), weekend}, at: "2026-11-30T10:00:00+01:00", approved: true},
		"closed one excepted, one not": {windows: []WindowSpec{excepted(office), weekend}, at: "2026-12-05T08:00:00+01:00", approved: true, want: "the change window weekend is closed to scale in namespace prod", wantAt: "2026-12-05T10:00:00+01:00"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Policy{Limits: Limits{Irreversible: tc.person}}
			for _, s := range tc.windows {
				p.Windows = append(p.Windows, window(t, s))
			}
			action, namespace, at := tc.action, tc.namespace, instant(t, tc.at)
			if action == "" {
				action = "scale"
			}
			switch namespace {
			case "":
				namespace = "prod"
			case "-":
				namespace = ""
			}
			no, unless := p.Window(action, namespace, at, tc.approved)
			if unless != tc.wantUnless {
				t.Errorf("unless is %t, want %t", unless, tc.wantUnless)
			}
			if no == nil {
				no = &refusal.Refusal{}
			} else if no.Code != refusal.WindowClosed {
				t.Errorf("code is %s", no.Code)
			}
			if diff := cmp.Diff(tc.want, no.Message); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
			if tc.wantAt == "" {
				if !no.RetryAt.IsZero() || no.Retryable {
					t.Errorf("it names %s", no.RetryAt)
				}
				return
			}
			passes := instant(t, tc.wantAt)
			if !no.RetryAt.Equal(passes) || !no.Retryable || !strings.Contains(no.Hint, passes.UTC().Format(time.RFC3339)) {
				t.Errorf("it names %s, want %s: %s", no.RetryAt, passes, no.Hint)
			}
			if zoned := passes.In(p.Windows[0].zone).Format("2006-01-02 15:04:05 -0700") + " (Europe/Berlin)"; !strings.Contains(no.Hint, zoned) {
				t.Errorf("the hint lacks %q: %s", zoned, no.Hint)
			}
			if still, _ := p.Window(action, namespace, passes, tc.approved); still != nil {
				t.Errorf("at the time that it names it says: %s", still.Message)
			}
			if before, _ := p.Window(action, namespace, passes.Add(-time.Second), tc.approved); before == nil {
				t.Error("it passes a second before the time that it names")
			}
		})
	}
}

// TestWindowNamesTheFirstTime: whatever the windows are, a call that they hold back passes
// at the time that is named and at no minute before it.
func TestWindowNamesTheFirstTime(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	schedules := []string{"0 9 * * *", "30 2 * * *", "0 */6 * * *", "15 0 * * sun", "0 22 * * *", "45 1,2,3 * * *"}
	durations := []string{"30m", "1h", "90m", "8h", "26h"}
	from := []time.Time{instant(t, "2027-03-27T12:00:00Z"), instant(t, "2027-10-30T12:00:00Z"), instant(t, "2026-11-30T12:00:00Z")}
	refused := 0
	for range 200 {
		var p Policy
		for range 1 + rnd.IntN(3) {
			kind := []WindowKind{AllowWindow, DenyWindow}[rnd.IntN(2)]
			s := spec("w", kind, schedules[rnd.IntN(len(schedules))], durations[rnd.IntN(len(durations))])
			s.Except = []string{"", ExceptApproved}[rnd.IntN(2)]
			p.Windows = append(p.Windows, window(t, s))
		}
		at, approved := from[rnd.IntN(3)].Add(time.Duration(rnd.IntN(48*60))*time.Minute), rnd.IntN(2) == 0
		no, _ := p.Window("scale", "prod", at, approved)
		if no == nil {
			continue
		}
		refused++
		until := no.RetryAt
		if until.IsZero() {
			until = at.Add(8 * 24 * time.Hour)
		}
		for m := at; m.Before(until); m = m.Add(15 * time.Minute) {
			if held(p.Windows, m, approved) == nil {
				t.Fatalf("%+v: held back at %s until %s, but it passes at %s", p.Windows, at, until, m)
			}
		}
		if still, _ := p.Window("scale", "prod", until, approved); still != nil && !no.RetryAt.IsZero() {
			t.Fatalf("%+v: held back at %s, and still at %s", p.Windows, at, until)
		}
		if !approved {
			if withOne, _ := p.Window("scale", "prod", at, true); withOne != nil && withOne.RetryAt.After(until) {
				t.Fatalf("%+v: with an approval it passes later", p.Windows)
			}
		}
	}
	if refused < 50 {
		t.Errorf("only %d were held back", refused)
	}
}
