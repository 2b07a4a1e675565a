package http

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

// masked replaces what differs from run to run, and every token, by what it is.
type masked struct {
	numbers map[string]string
	tokens  map[string]string // token → name
}

var volatile = regexp.MustCompile(strings.Join([]string{
	`(?P<TIME>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)`,
	`(?P<NAMESPACE>\bt-[a-z0-9]{10}\b)`,
	`(?P<UID>\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b)`,
	`\[(?P<PLAN>[a-z2-7]{10})-(?P<MAC>[a-z2-7]{12})\]`,
	`\bkube-write-mcp-(?P<PLAN>[a-z2-7]{10})-s\d+-`,
	`"?\bplan\\*"?:? ?\\*"?(?P<PLAN>\b[a-z2-7]{10}\b)`,
	`(?P<HASH>(?:hmac-)?sha256:[0-9a-f]{12}(?:[0-9a-f]{4})?)\b`,
	`"rv":"(?P<RV>\d+)"`,
	`\b(?P<HANDLE>v[0-9a-f]{10})\b`,
	`(?P<SESSION>\b[A-Z2-7]{26}\b)`,
	`127\.0\.0\.1:(?P<PORT>\d+)`,
	`"name":"kube-write-mcp",(?:"title":"[^"]*",)?"version":"(?P<VERSION>[^"]*)"`,
	`\bcache, (?P<AGE>\d+m?s) old`,
}, "|"))

func (m masked) apply(s string) string {
	for token, name := range m.tokens {
		s = strings.ReplaceAll(s, token, name)
	}
	var out strings.Builder
	at := 0
	for _, match := range volatile.FindAllStringSubmatchIndex(s, -1) {
		for i, kind := range volatile.SubexpNames() {
			if kind == "" || match[2*i] < 0 {
				continue
			}
			out.WriteString(s[at:match[2*i]])
			out.WriteString(m.name(kind, s[match[2*i]:match[2*i+1]]))
			at = match[2*i+1]
		}
	}
	return out.String() + s[at:]
}

func (m masked) name(kind, value string) string {
	if slices.Contains([]string{"TIME", "AGE", "VERSION", "PORT"}, kind) {
		return kind
	}
	key := kind + " " + value
	if m.numbers[key] == "" {
		n := 1
		for k := range m.numbers {
			if strings.HasPrefix(k, kind+" ") {
				n++
			}
		}
		m.numbers[key] = fmt.Sprint(kind, n)
	}
	return m.numbers[key]
}

// shown are the headers of a transcript.
var shown = []string{"Allow", "Authorization", "Content-Type", "Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Session-Id", "Retry-After", "Www-Authenticate"}

// recorder keeps what goes over the wire.
type recorder struct {
	*client
	masked
	text strings.Builder
}

func (r *recorder) headers(h http.Header) {
	for _, name := range shown {
		if v := h.Get(name); v != "" {
			fmt.Fprintf(&r.text, "%s: %s\n", name, r.apply(v))
		}
	}
}

// say makes a request with a message, or with none.
func (r *recorder) say(verb, method string, params map[string]any) reply {
	r.t.Helper()
	req := r.request(method, params)
	body, err := req.GetBody()
	if err != nil {
		r.t.Fatal(err)
	}
	sent := make([]byte, req.ContentLength)
	if _, err := body.Read(sent); err != nil {
		r.t.Fatal(err)
	}
	if req.Method = verb; verb != http.MethodPost {
		req.Body, req.ContentLength, sent = nil, 0, nil
		req.Header.Del("Content-Type")
	}
	fmt.Fprintf(&r.text, "-> %s %s\n", verb, req.URL.Path)
	r.headers(req.Header)
	if len(sent) > 0 {
		fmt.Fprintf(&r.text, "%s\n", r.apply(string(sent)))
	}
	got, err := r.do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	fmt.Fprintf(&r.text, "<- %d %s\n", got.status, http.StatusText(got.status))
	r.headers(got.header)
	if got.body != "" {
		fmt.Fprintf(&r.text, "%s\n", r.apply(got.body))
	}
	r.text.WriteString("\n")
	return got
}

// TestTranscripts: a caller without a token, one that may plan, and one that may write, as
// it goes over the wire in both eras. No controller runs here, so the verdict is
// not_started.
func TestTranscripts(t *testing.T) {
	cfg := account(t)
	_, planner := caller(t, may("plan", "scale"))
	_, writer := caller(t, may("plan,write", "scale"))
	for name, era := range eras {
		t.Run(name, func(t *testing.T) {
			p := start(t, options{cfg: cfg})
			_, args := harness.Web(t, cp)
			m := masked{map[string]string{}, map[string]string{planner: "TOKEN-OF-PLANNER", writer: "TOKEN-OF-WRITER"}}
			var text strings.Builder
			section := func(title, token string, talk func(*recorder)) {
				r := &recorder{client: &client{program: p, era: era, token: token}, masked: m}
				fmt.Fprintf(&text, "# %s\n\n", title)
				talk(r)
				text.WriteString(r.text.String())
			}
			hello := func(r *recorder) {
				if era == stdio.Modern {
					r.say("POST", "server/discover", nil)
					return
				}
				got := r.say("POST", "initialize", map[string]any{"protocolVersion": string(era), "capabilities": map[string]any{}, "clientInfo": clientInfo})
				r.session = got.header.Get("Mcp-Session-Id")
				r.say("POST", "notifications/initialized", nil)
			}
			call := func(r *recorder, tool string, args harness.Args) stdio.Tool {
				msg, err := r.say("POST", "tools/call", map[string]any{"name": tool, "arguments": args}).message()
				if err != nil {
					t.Fatal(err)
				}
				got, err := stdio.Parse(msg)
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			section("Without a token nobody is served.", "", func(r *recorder) { r.say("POST", "ping", nil) })
			var phrase string
			section("Who may plan sees the plan tool alone; the write tool does not exist for it.", planner, func(r *recorder) {
				hello(r)
				r.say("POST", "tools/list", nil)
				phrase = call(r, "plan_scale", args.With("replicas", 3)).Field("confirm")
				call(r, "scale", args.With("replicas", 3).With("confirm", phrase).With("reason", "a test"))
			})
			section("Who may write executes its own plans, and no others.", writer, func(r *recorder) {
				hello(r)
				call(r, "scale", args.With("replicas", 3).With("confirm", phrase).With("reason", "a test"))
				own := call(r, "plan_scale", args.With("replicas", 3)).Field("confirm")
				call(r, "scale", args.With("replicas", 3).With("confirm", own).With("reason", "a test"))
				if era == stdio.Legacy {
					r.say("DELETE", "ping", nil)
					r.say("POST", "tools/list", nil)
				}
			})
			path := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), text.String()); d != "" {
				t.Errorf("%s (-want +got), -update rewrites it:\n%s", path, d)
			}
		})
	}
}
