package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// captured are both logs of one run against a real API server: a dry run that failed, a
// scale that met a 409, a deletion, and one eviction of a drain.
type captured struct {
	t      *testing.T
	ours   []*Line
	theirs [][]byte
}

func capture(t *testing.T) *captured {
	t.Helper()
	c := &captured{t: t}
	for _, raw := range c.lines("audit.jsonl") {
		var l Line
		if err := json.Unmarshal(raw, &l); err != nil {
			t.Fatal(err)
		}
		c.ours = append(c.ours, &l)
	}
	c.theirs = c.lines("apiserver.jsonl")
	return c
}

func (c *captured) lines(name string) (out [][]byte) {
	c.t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "join", name))
	if err != nil {
		c.t.Fatal(err)
	}
	return bytes.SplitAfter(bytes.TrimSuffix(raw, []byte("\n")), []byte("\n"))
}

// The requests that the cases change.
const (
	scaled   = "kube-write-mcp-qxeedl773z-s1-x2"     // 200
	conflict = "kube-write-mcp-qxeedl773z-s1-x1"     // 409
	noted    = "kube-write-mcp-qxeedl773z-s2-x1"     // 200
	dryScale = "kube-write-mcp-qxeedl773z-s1-dkvvv4" // 200
	dryGone  = "kube-write-mcp-omeleop6m3-s1-dkvvv9" // a delete, 200
	deleted  = "kube-write-mcp-omeleop6m3-s1-x1"     // 200
	evicted  = "kube-write-mcp-x7qcb7io2p-s2-x1"     // 201, the last one
	user     = "system:serviceaccount:kube-write-mcp:server"
)

// in replaces a text in the end of one request in their log, or drops it for "".
func (c *captured) in(auditID, was, is string) {
	c.t.Helper()
	found := 0
	for i, b := range c.theirs {
		if !bytes.Contains(b, []byte(`"auditID":"`+auditID+`","stage":"ResponseComplete"`)) {
			continue
		}
		found += bytes.Count(b, []byte(was))
		c.theirs[i] = bytes.Replace(b, []byte(was), []byte(is), 1)
		if was == "" {
			c.theirs[i] = []byte("{}\n")
		}
	}
	if found == 0 {
		c.t.Fatalf("their log has no %q in %s", was, auditID)
	}
}

// drop takes a request out of their log.
func (c *captured) drop(auditID string) { c.in(auditID, "", "") }

// twice repeats a request in their log.
func (c *captured) twice(auditID string) {
	for _, b := range c.theirs {
		if bytes.Contains(b, []byte(auditID)) {
			c.theirs = append([][]byte{append(bytes.TrimSpace(b), '\n')}, c.theirs...)
		}
	}
}

// step changes what our log has of one request.
func (c *captured) step(auditID string, change func(*Line)) {
	for _, l := range c.ours {
		if l.Event == EventStep && l.AuditID == auditID {
			change(l)
		}
	}
}

// forget takes every line of one request out of our log.
func (c *captured) forget(auditID string) {
	var kept []*Line
	for _, l := range c.ours {
		if l.AuditID != auditID || l.Event == EventExecute {
			kept = append(kept, l)
		}
	}
	c.ours = kept
}

// TestJoin: both logs as they were captured match; whatever is changed in either is named.
func TestJoin(t *testing.T) {
	unknown := func(code int) func(*Line) { return func(l *Line) { l.Code, l.HTTP = "unknown", code } }
	const rotated = "missing in theirs: their log does not cover that time; was it rotated?"
	late := time.Date(2026, 11, 30, 8, 35, 23, 356e6, time.UTC) // before the deletion is claimed
	notSent := func(l *Line) { l.Code, l.HTTP = "not applied", 0 }
	for name, tc := range map[string]struct {
		change func(*captured)
		o      JoinOptions
		want   []string // what is not simply the same
		wantN  string
	}{
		"as captured": {func(*captured) {}, JoinOptions{}, nil, "13 of 13"},

		"another user":     {func(c *captured) { c.in(scaled, user, "admin") }, JoinOptions{}, []string{"differs " + scaled + " user: ours " + user + ", theirs admin"}, "12 of 13"},
		"impersonation":    {func(c *captured) { c.in(scaled, `"sourceIPs"`, `"impersonatedUser":{"username":"bob"},"sourceIPs"`) }, JoinOptions{}, []string{"differs " + scaled + " user: ours " + user + ", theirs bob"}, "12 of 13"},
		"another verb":     {func(c *captured) { c.in(scaled, `"verb":"update"`, `"verb":"patch"`) }, JoinOptions{}, []string{"differs " + scaled + " verb: ours update, theirs patch"}, "12 of 13"},
		"another resource": {func(c *captured) { c.in(scaled, `,"subresource":"scale"`, "") }, JoinOptions{}, []string{"differs " + scaled + " resource: ours apps/deployments/scale, theirs apps/deployments"}, "12 of 13"},
		"another name": {func(c *captured) {
			c.in(evicted, `"name":"placed-5d4f8c7b9-0","apiVersion"`, `"name":"b","apiVersion"`)
		}, JoinOptions{}, []string{"differs " + evicted + " name: ours placed-5d4f8c7b9-0, theirs b"}, "12 of 13"},
		"another namespace":                         {func(c *captured) { c.in(deleted, `"namespace":"t-5nl5qj64dc"`, `"namespace":"prod"`) }, JoinOptions{}, []string{"differs " + deleted + " namespace: ours t-5nl5qj64dc, theirs prod"}, "12 of 13"},
		"another time":                              {func(c *captured) { c.in(scaled, "T08:35:", "T08:37:") }, JoinOptions{}, []string{"differs " + scaled + " time: 2m0s apart"}, "12 of 13"},
		"another code":                              {func(c *captured) { c.in(scaled, `"code":200`, `"code":409`) }, JoinOptions{}, []string{"differs " + scaled + " code: ours 200, theirs 409"}, "12 of 13"},
		"a conflict that wrote":                     {func(c *captured) { c.in(conflict, `"code":409`, `"code":200`) }, JoinOptions{}, []string{"differs " + conflict + " code: ours 409, theirs 200"}, "12 of 13"},
		"a dry run that wrote":                      {func(c *captured) { c.in(dryScale, `dryRun=All\u0026`, "") }, JoinOptions{}, []string{"differs " + dryScale + " dry run: ours true, theirs false"}, "12 of 13"},
		"a dry run in the query alone, of a delete": {func(c *captured) { c.in(dryGone, `,"dryRun":["All"]`, "") }, JoinOptions{}, []string{"differs " + dryGone + " dry run: ours true, theirs false"}, "12 of 13"},
		"written without being sent":                {func(c *captured) { c.step(scaled, notSent) }, JoinOptions{}, []string{"differs " + scaled + " code: ours none, for it was not sent (not applied), theirs 200"}, "12 of 13"},
		"not sent":                                  {func(c *captured) { c.step(scaled, notSent); c.drop(scaled) }, JoinOptions{}, nil, "12 of 12"},

		"a 504 that was applied":  {func(c *captured) { c.in(scaled, `"code":200`, `"code":504`) }, JoinOptions{}, []string{"legal " + scaled + " 200 in ours, 504 in theirs: a server or proxy that stops waiting may have written all the same"}, "12 of 13"},
		"a proxy's 502":           {func(c *captured) { c.step(scaled, unknown(502)) }, JoinOptions{}, []string{"legal " + scaled + " 502 in ours, 200 in theirs: a server or proxy that stops waiting may have written all the same"}, "12 of 13"},
		"an answer that was lost": {func(c *captured) { c.step(scaled, unknown(0)) }, JoinOptions{}, []string{"legal " + scaled + " no answer in ours, 200 in theirs"}, "12 of 13"},
		"an intent alone": {func(c *captured) {
			c.ours = c.ours[:len(c.ours)-1]
		}, JoinOptions{}, []string{"legal " + evicted + " no answer in ours, 201 in theirs"}, "12 of 13"},
		"one that never arrived": {func(c *captured) { c.step(scaled, unknown(0)); c.drop(scaled) }, JoinOptions{}, []string{"legal " + scaled + " no answer in ours, nothing in theirs: it never arrived, or their log lacks it"}, "12 of 13"},

		"missing":         {func(c *captured) { c.drop(scaled) }, JoinOptions{}, []string{"missing " + scaled + " missing in theirs: is its audit policy None for this?"}, "12 of 13"},
		"rotated":         {func(c *captured) { c.theirs = c.theirs[len(c.theirs)-2:] }, JoinOptions{Since: late}, []string{"missing kube-write-mcp-omeleop6m3-s1-dkvvv10 " + rotated, "missing " + deleted + " " + rotated}, "1 of 3"},
		"nothing of ours": {func(c *captured) { c.theirs = nil; c.ours = c.ours[len(c.ours)-1:] }, JoinOptions{}, []string{"missing " + evicted + " " + rotated}, "0 of 1"},

		"a write without a line":   {func(c *captured) { c.forget(noted) }, JoinOptions{}, []string{"alarm " + noted + " a write that bears our name and no line has"}, "12 of 12"},
		"a delete without a line":  {func(c *captured) { c.forget(deleted) }, JoinOptions{}, []string{"noted kube-write-mcp-omeleop6m3-s1-dkvvv10 a dry run that no line has", "alarm " + deleted + " a write that bears our name and no line has"}, "11 of 11"},
		"a dry run without a line": {func(c *captured) { c.ours[1].DryRuns = c.ours[1].DryRuns[:1] }, JoinOptions{}, []string{"noted kube-write-mcp-qxeedl773z-s2-dkvvv3 a dry run that no line has"}, "12 of 12"},
		"a dry delete without a line or a body": {func(c *captured) {
			c.ours[9].DryRuns = nil
			c.in(dryGone, `"requestObject":{`, `"x":{`)
		}, JoinOptions{}, []string{"alarm " + dryGone + " a write that bears our name and no line has; whether it was a dry run cannot be told, for their log has no bodies"}, "12 of 12"},
		"sent twice":       {func(c *captured) { c.twice(evicted) }, JoinOptions{}, []string{"alarm " + evicted + " sent twice under one Audit-ID: create"}, "13 of 13"},
		"another cluster":  {func(c *captured) { c.ours[0].Label = "prod"; c.theirs = c.theirs[7:] }, JoinOptions{Label: "kind-lab"}, nil, "11 of 11"},
		"before that time": {func(c *captured) { c.forget(noted) }, JoinOptions{Since: late}, nil, "3 of 3"},
	} {
		t.Run(name, func(t *testing.T) {
			c := capture(t)
			tc.change(c)
			var got []string
			j := newJoin(tc.o, func(r Joined) {
				if r.Kind != Same {
					got = append(got, fmt.Sprintf("%s %s %s", r.Kind, r.AuditID, r.Result))
				}
			})
			for _, l := range c.ours {
				j.add(l)
			}
			if err := readEvents(bytes.NewReader(bytes.Join(c.theirs, nil)), j.match); err != nil {
				t.Fatal(err)
			}
			j.finish()
			for i := range got {
				if i < len(tc.want) && strings.HasPrefix(got[i], tc.want[i]+" /") { // the path of the request follows
					got[i] = tc.want[i]
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if n := fmt.Sprintf("%d of %d", j.sums.By[Same], j.sums.Requests); n != tc.wantN {
				t.Errorf("%s match, want %s", n, tc.wantN)
			}
		})
	}
}

// TestJoinSaysRealConflict: a dry run that passed and a write that did not are told apart
// from what is simply the same.
func TestJoinSaysRealConflict(t *testing.T) {
	c := capture(t)
	got := map[string]string{}
	j := newJoin(JoinOptions{}, func(r Joined) { got[r.AuditID] = r.Result })
	for _, l := range c.ours {
		j.add(l)
	}
	if err := readEvents(bytes.NewReader(bytes.Join(c.theirs, nil)), j.match); err != nil {
		t.Fatal(err)
	}
	if got[conflict] != "dry run ok, real 409" || got[scaled] != "same" {
		t.Errorf("409: %q, 200: %q", got[conflict], got[scaled])
	}
}

// TestReadEvents: a last line without an end is being written; anything else that is no
// event is named.
func TestReadEvents(t *testing.T) {
	const whole = `{"stage":"RequestReceived"}` + "\n" + `{"stage":"Panic"}` + "\n" + `{"stage":"ResponseComplete"}` + "\n"
	for name, tc := range map[string]struct {
		log       string
		wantSeen  int
		wantError string
	}{
		"whole":              {whole, 2, ""},
		"being written":      {whole + `{"stage":"Resp`, 2, ""},
		"damaged":            {whole + "what?\n" + whole, 2, "line 4"},
		"empty":              {"", 0, ""},
		"no last newline":    {strings.TrimSuffix(whole, "\n"), 2, ""},
		"of a very long one": {`{"stage":"Panic","requestObject":"` + strings.Repeat("x", 1<<20) + "\"}\n", 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			seen := 0
			err := readEvents(strings.NewReader(tc.log), func(*apiEvent) { seen++ })
			if seen != tc.wantSeen || (err == nil) != (tc.wantError == "") || err != nil && !strings.Contains(err.Error(), tc.wantError) {
				t.Errorf("%d seen, %v; want %d and %q", seen, err, tc.wantSeen, tc.wantError)
			}
		})
	}
}
