package http

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// expired is a token of the API server's own that was good an hour ago.
func expired(t *testing.T, token string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(filepath.Dir(cp.AuditLog()), "certs", "sa-signer.key"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(token, ".")
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := json.Unmarshal(body, &claims); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	claims["iat"], claims["nbf"], claims["exp"] = now-7200, now-7200, now-3600
	if body, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(body)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key.(*ecdsa.PrivateKey), sum[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// TestCase_MC_11: whoever is not to be served is refused, learns nothing, and the server
// goes on.
func TestCase_MC_11(t *testing.T) {
	p := start(t, options{cfg: account(t)})
	user, token := caller(t, may("read,plan,write"))
	ns, _, _ := strings.Cut(strings.TrimPrefix(user, "system:serviceaccount:"), ":")
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	bearer := func(token string) func(*http.Request) { return header("Authorization", "Bearer "+token) }
	oversizedBody := `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 1<<20) + `"}}`
	body := func(text string) func(*http.Request) {
		return func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
		}
	}
	for name, tc := range map[string]struct {
		change func(*http.Request)
		want   int
		say    string
	}{
		"no token":               {func(r *http.Request) { r.Header.Del("Authorization") }, 401, "a bearer token"},
		"two tokens":             {func(r *http.Request) { r.Header.Add("Authorization", "Bearer x") }, 401, "a bearer token"},
		"a password":             {header("Authorization", "Basic YTpi"), 401, "a bearer token"},
		"an empty token":         {bearer(""), 401, "a bearer token"},
		"a guess":                {bearer("guess"), 401, "a bearer token"},
		"a long guess":           {bearer(strings.Repeat("x", 20<<10)), 401, "a bearer token"},
		"the API's audience":     {bearer(tokenFor(t, ns)), 401, "a bearer token"},
		"a foreign audience":     {bearer(tokenFor(t, ns, "another")), 401, "a bearer token"},
		"an expired token":       {bearer(expired(t, token)), 401, "a bearer token"},
		"a changed token":        {bearer(token[:len(token)-4] + "AAAA"), 401, "a bearer token"},
		"a foreign origin":       {header("Origin", "https://evil.example"), 403, "other origins"},
		"the null origin":        {header("Origin", "null"), 403, "other origins"},
		"another port's":         {header("Origin", "http://127.0.0.1:1"), 403, "other origins"},
		"a cross-site fetch":     {header("Sec-Fetch-Site", "cross-site"), 403, "other origins"},
		"a foreign host":         {func(r *http.Request) { r.Host = "evil.example" }, 403, "the name in Host"},
		"a host like ours":       {func(r *http.Request) { r.Host = "localhost.evil.example" }, 403, "the name in Host"},
		"an oversized body":      {body(oversizedBody), 413, "at most 1048576 bytes"},
		"a batch":                {body("[]"), 400, "batches are not supported"},
		"no JSON":                {body("{"), 400, "not one valid JSON value"},
		"nothing":                {body(""), 400, "not one valid JSON value"},
		"deep nesting":           {body(strings.Repeat("[", 100_000)), 400, "nested deeper"},
		"a duplicate key":        {body(`{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}`), 400, "stands twice"},
		"another case":           {body(`{"jsonrpc":"2.0","id":1,"Method":"ping"}`), 400, "must be written"},
		"an id that is too long": {body(`{"jsonrpc":"2.0","id":12345678901234567,"method":"ping"}`), 400, "more than 15 digits"},
		"a form":                 {header("Content-Type", "application/x-www-form-urlencoded"), 415, "application/json"},
		"no content type":        {func(r *http.Request) { r.Header.Del("Content-Type") }, 415, "application/json"},
		"a charset":              {header("Content-Type", "application/json; charset=utf-8"), 404, "was removed in protocol version"},
		"an unknown era":         {header("Mcp-Protocol-Version", "2099-01-01"), 400, ""},
		"another path":           {func(r *http.Request) { r.URL.Path = "/debug/pprof" }, 404, "there is nothing here"},
		"metrics without leave":  {func(r *http.Request) { r.URL.Path, r.Method, r.Body, r.ContentLength = "/metrics", "GET", nil, 0 }, 403, "you may not get /metrics"},
		"a stream":               {func(r *http.Request) { r.Method, r.Body, r.ContentLength = "GET", nil, 0 }, 405, "messages are posted"},
	} {
		t.Run(name, func(t *testing.T) {
			r := p.connect(stdio.Modern, token).request("ping", nil)
			tc.change(r)
			got, err := p.do(r)
			if err != nil {
				t.Fatal(err)
			}
			if got.status != tc.want || !strings.Contains(got.body, tc.say) {
				t.Errorf("answered %d %.300q, want %d with %q", got.status, got.body, tc.want, tc.say)
			}
			if got.status == 401 && got.header.Get("WWW-Authenticate") == "" {
				t.Error("a 401 names no scheme")
			}
		})
	}
	large, oversized := p.connect(stdio.Modern, token).request("ping", nil), strings.Repeat("x", 64<<10)
	large.Header.Set("X", oversized)
	if got, err := p.do(large); err == nil && got.status != 431 { // or the connection is cut while it is sent
		t.Errorf("an oversized header: %d %s", got.status, got.body)
	}
	if got := p.connect(stdio.Modern, token).post("server/discover", nil); got.status != 200 {
		t.Errorf("afterwards: %d %s", got.status, got.body)
	}
	if strings.Contains(p.log.String(), "panic") {
		t.Error(p.log.String())
	}
}

// TestCase_MC_12: a plan of another principal is answered as one that never was; its own
// goes with the principal, whatever session it comes in.
func TestCase_MC_12(t *testing.T) {
	p := start(t, options{cfg: account(t)})
	_, alice := caller(t, may("read,plan,write"))
	_, mallory := caller(t, may("read,plan,write"))
	_, args := harness.Web(t, cp)
	a, m := p.connect(stdio.Legacy, alice), p.connect(stdio.Legacy, mallory)
	confirmed := a.plan("scale", args.With("replicas", 3))
	phrase := confirmed["confirm"].(string)
	id := phrase[strings.LastIndexByte(phrase, '[')+1:][:10]
	absent := "aaaaaaaaaa"
	same := func(what string, theirs, none stdio.Tool, code string) {
		t.Helper()
		hide := func(got stdio.Tool) string { return strings.ReplaceAll(got.Text, id, absent) }
		if d := cmp.Diff(hide(none), hide(theirs)); d != "" || harness.Code(theirs) != code {
			t.Errorf("%s: a foreign plan is told from none (-none +foreign):\n%s%s", what, d, theirs.Text)
		}
	}
	guess := strings.Replace(phrase, id, absent, 1)
	same("scale", m.call("scale", confirmed), m.call("scale", confirmed.With("confirm", guess)), "unknown_phrase")
	same("write_status", m.call("write_status", harness.Args{"plan": id}), m.call("write_status", harness.Args{"plan": absent}), "not_found")
	same("plan_undo", m.call("plan_undo", harness.Args{"plan": id}), m.call("plan_undo", harness.Args{"plan": absent}), "not_found")
	if got := p.connect(stdio.Legacy, alice).call("scale", confirmed); got.Field("outcome") != "EXECUTED" {
		t.Errorf("its owner, in a new session: %s", got.Text)
	}
	same("undo", m.call("plan_undo", harness.Args{"plan": id}), m.call("plan_undo", harness.Args{"plan": absent}), "not_found")
	same("replay", m.call("scale", confirmed), m.call("scale", confirmed.With("confirm", guess)), "unknown_phrase")
}

// TestForeignSession: a session goes with the principal that opened it.
func TestForeignSession(t *testing.T) {
	p := start(t, options{cfg: account(t)})
	user, alice := caller(t, may("read,plan"))
	ns, _, _ := strings.Cut(strings.TrimPrefix(user, "system:serviceaccount:"), ":")
	_, mallory := caller(t, may("read,plan"))
	a, m := p.connect(stdio.Legacy, alice), p.connect(stdio.Legacy, mallory)
	own := m.session
	m.session = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	none := m.post("tools/list", nil)
	m.session = a.session
	foreign := m.post("tools/list", nil)
	if none.status != 404 || foreign.status != 404 || none.body != foreign.body {
		t.Errorf("none: %d %q, foreign: %d %q", none.status, none.body, foreign.status, foreign.body)
	}
	end := m.request("ping", nil)
	end.Method, end.Body, end.ContentLength = http.MethodDelete, nil, 0
	if got, err := p.do(end); err != nil || got.status != 404 {
		t.Errorf("a foreign session was ended: %v %d", err, got.status)
	}
	m.session = ""
	if got := m.post("tools/list", nil); got.status != 404 {
		t.Errorf("without a session: %d %s", got.status, got.body)
	}
	m.session = own
	a.token = tokenFor(t, ns, audience) // a renewed token is still its
	for _, c := range []*client{a, m} {
		if got := c.post("tools/list", nil); got.status != 200 {
			t.Errorf("its own session: %d %s", got.status, got.body)
		}
	}
	end = a.request("ping", nil)
	end.Method, end.Body, end.ContentLength = http.MethodDelete, nil, 0
	if got, err := p.do(end); err != nil || got.status != 200 {
		t.Errorf("its own session was not ended: %v %d", err, got.status)
	}
	if got := a.post("tools/list", nil); got.status != 404 {
		t.Errorf("an ended session: %d", got.status)
	}
}

// TestSlowClient: who sends a header or a body byte by byte is left, and others are served
// meanwhile.
func TestSlowClient(t *testing.T) {
	p := start(t, options{cfg: account(t)})
	_, token := caller(t, may("plan"))
	for name, head := range map[string]string{
		"header":               "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
		"body":                 "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAuthorization: Bearer " + token + "\r\nContent-Length: 1000\r\n\r\n{",
		"body without a token": "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, head); err != nil {
				t.Fatal(err)
			}
			if got := p.connect(stdio.Modern, token).post("server/discover", nil); got.status != 200 {
				t.Errorf("others meanwhile: %d", got.status)
			}
			var answer bytes.Buffer
			done := make(chan error, 1)
			go func() { _, err := io.Copy(&answer, conn); done <- err }()
			lab.Eventually(t, "the connection to be closed", func() (bool, error) {
				select {
				case <-done:
					return true, nil
				default:
					_, _ = conn.Write([]byte("x"))
					return false, nil
				}
			})
			if strings.Contains(answer.String(), "200 OK") {
				t.Errorf("answered %s", answer.String())
			}
		})
	}
}
