package integration

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// The lines of the older era's handshake.
const (
	initialize  = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"printf","version":"1"}}}` + "\n"
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"
)

// planLine is a call of plan_scale. The name stands in it as it is.
func planLine(id, ns, deployment, replicas string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"plan_scale","arguments":{"namespace":"` + ns + `","deployment":"` + deployment + `","replicas":` + replicas + `}}}`
}

// command is the program on a proxy, with a state folder of its own.
func command(t *testing.T, p *harness.Proxy) *exec.Cmd {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cp.Kubeconfig(kubeconfig, "kind-lab", p.Config()); err != nil {
		t.Fatal(err)
	}
	return exec.Command(program(t), "serve", "--allow-write", "--kubeconfig", kubeconfig, "--state-dir", filepath.Join(t.TempDir(), "state"))
}

// pipe runs the program on an input that ends. It must end with 0, and everything that
// comes out of it be messages, one a line.
func pipe(t *testing.T, p *harness.Proxy, input string) []stdio.Message {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := command(t, p)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	return messages(t, out.String())
}

// messages are the messages of a whole output.
func messages(t *testing.T, out string) (all []stdio.Message) {
	t.Helper()
	if out != "" && !strings.HasSuffix(out, "\n") || strings.ContainsAny(out, "\r\x00\x1b") {
		t.Errorf("the last line has no end, or there are raw control characters: %q", out)
	}
	for line := range strings.Lines(out) {
		var m stdio.Message
		var version struct{ JSONRPC string }
		if err := json.Unmarshal([]byte(line), &m); err != nil || json.Unmarshal([]byte(line), &version) != nil || version.JSONRPC != "2.0" {
			t.Errorf("a line that is no message: %s", line)
		}
		m.Line = strings.TrimSuffix(line, "\n")
		all = append(all, m)
	}
	return all
}

// byID files answers under their ids as they were written, each of which must have one.
func byID(t *testing.T, all []stdio.Message) map[string]stdio.Message {
	t.Helper()
	out := map[string]stdio.Message{}
	for _, m := range all {
		id := string(m.ID)
		if _, twice := out[id]; twice && id != "null" {
			t.Errorf("two answers to %s: %s", id, m.Line)
		}
		out[id] = m
	}
	return out
}

func newWeb(t *testing.T) (ns string, p *harness.Proxy) {
	t.Helper()
	ns, _ = harness.Web(t, cp)
	return ns, harness.NewProxy(t, harness.Account(t, cp))
}

// TestCase_MC_01: a line as long as 70 kB or 1 MB is a request like any other; one of 16 or
// 200 MB is an error, holds no memory, and the next one is answered.
func TestCase_MC_01(t *testing.T) {
	t.Parallel()
	ns, p := newWeb(t)
	cmd := command(t, p)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewReader(stdout)
	answer := func(from io.Reader) stdio.Message {
		t.Helper()
		if _, err := io.Copy(in, from); err != nil {
			t.Fatal(err)
		}
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return messages(t, line)[0]
	}
	answer(strings.NewReader(initialize))
	io.WriteString(in, initialized)
	most := 0 // kB
	for i, tc := range []struct {
		size     int64
		wantCode int
	}{{70 << 10, 0}, {1 << 20, 0}, {16 << 20, -32600}, {200 << 20, -32600}} {
		id := fmt.Sprint(100 + i)
		head, tail := `{"jsonrpc":"2.0","id":`+id+`,"method":"ping"`, "}\n"
		got := answer(io.MultiReader(strings.NewReader(head), io.LimitReader(spaces{}, tc.size), strings.NewReader(tail)))
		code, wantID := 0, id
		if got.Error != nil {
			code, wantID = got.Error.Code, "null"
		}
		if code != tc.wantCode || string(got.ID) != wantID {
			t.Errorf("%d bytes: %s, want code %d", tc.size, got.Line, tc.wantCode)
		}
		if got := answer(strings.NewReader(planLine("20"+id, ns, "web", "3") + "\n")); !strings.Contains(got.Line, "CONFIRM: ") {
			t.Errorf("the request after %d bytes: %s", tc.size, got.Line)
		}
		rss := peak(t, cmd.Process.Pid)
		if i == 1 {
			most = rss + 32<<10
		}
		if i > 1 && rss > most {
			t.Errorf("after %d bytes the process has had %d kB, want at most %d", tc.size, rss, most)
		}
	}
	in.Close()
}

// spaces are without end.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// peak is the most memory that a process has held so far, in kB; 0 where the system does
// not say.
func peak(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	kB, err := strconv.Atoi(string(regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(raw)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kB
}

// TestCase_MC_02_Drain: a drain whose client is gone finishes the Step that is on the way
// and begins no other.
func TestCase_MC_02_Drain(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	node := ns + "-drained"
	harness.Create(t, cp, ns, harness.Node(node).Ready(), harness.Node(ns+"-node").Ready(),
		harness.ReplicaSet("web").Replicas(4).Pods(onNode(node)).Ready(4), harness.Deployment("api").Replicas(2).Ready(2))
	t.Cleanup(workbench{ns, ns + "-node", node}.removeNodes)
	s := harness.Spawn(t, cp, program(t), harness.Options{Args: wide})
	// No controller observes this one: its call waits for a verdict, or until the program stops.
	_, waits, err := s.Send("tools/call", map[string]any{"name": "scale", "arguments": s.Plan("scale", of(ns, "deployment", "api").With("replicas", 3))})
	if err != nil {
		t.Fatal(err)
	}
	arrived, release := func() (chan struct{}, func()) {
		args := s.Plan("drain", harness.Args{"node": node})
		arrived, release := hold(s, "drain")
		if _, _, err := s.Send("tools/call", map[string]any{"name": "drain", "arguments": args}); err != nil {
			t.Fatal(err)
		}
		return arrived, release
	}()
	<-arrived
	if err := s.CloseInput(); err != nil {
		t.Fatal(err)
	}
	if got, err := stdio.Parse(<-waits); err != nil || !strings.HasPrefix(got.Text, "EXECUTED") { // by now it has seen the end
		t.Errorf("the call that waited: %s (%v)", got.Text, err)
	}
	release()
	if err := s.Close(); err != nil {
		t.Errorf("it ended with %v: %s", err, s.Stderr)
	}
	if n := count(s.Proxy.Writes(), isEffect("drain")); n != 1 {
		t.Errorf("%d evictions, want the one that was on its way", n)
	}
	events := map[string]int{}
	for _, l := range harness.Lines(t, s.State) {
		if l.Tool == "drain" {
			events[l.Event]++
		}
	}
	if events[journal.EventIntent] != 2 || events[journal.EventStep] != 2 { // of the cordon and the eviction
		t.Errorf("intents and outcomes on record: %v", events)
	}
}

// TestCase_MC_04: whatever a cluster, its certificate or a credential plugin does, nothing
// but messages is on stdout. A panic of a tool is TestHandlePanic in pkg/server.
func TestCase_MC_04(t *testing.T) {
	t.Parallel()
	ns, p := newWeb(t)
	p.After(func(_ *harness.Request, resp *http.Response) {
		resp.Header.Add("Warning", `299 - "this is deprecated, see the release notes"`)
	})
	expired := expiredServer(t)
	plugin := filepath.Join(t.TempDir(), "plugin")
	script := "#!/bin/sh\necho a banner >&2\n" +
		`echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"` + p.Config().BearerToken + `"}}'` + "\n"
	if err := os.WriteFile(plugin, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name     string
		cfg      *rest.Config
		exec     string
		wantCode string
	}{
		{"nobody there", &rest.Config{Host: "https://" + closedPort(t), BearerToken: "x"}, "", "unreachable"},
		{"an expired certificate", &rest.Config{Host: expired.URL, BearerToken: "x", TLSClientConfig: rest.TLSClientConfig{CAData: certificate(expired.Certificate())}}, "", "unreachable"},
		{"warnings", p.Config(), "", ""},
		{"a plugin with a banner", p.Config(), plugin, ""},
		{"a plugin that fails", p.Config(), "/bin/false", "unreachable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if err := cp.Kubeconfig(path, "kind-lab", tc.cfg); err != nil {
				t.Fatal(err)
			}
			if tc.exec != "" {
				raw, err := clientcmd.LoadFromFile(path)
				if err != nil {
					t.Fatal(err)
				}
				raw.AuthInfos["kind-lab"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
					APIVersion: "client.authentication.k8s.io/v1", Command: tc.exec, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
				}}
				if err := clientcmd.WriteToFile(*raw, path); err != nil {
					t.Fatal(err)
				}
			}
			var out, errs bytes.Buffer
			cmd := exec.Command(program(t), "serve", "--allow-write", "--kubeconfig", path, "--state-dir", filepath.Join(t.TempDir(), "state"))
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(initialize+initialized+planLine("2", ns, "web", "3")+"\n"), &out, &errs
			if err := cmd.Run(); err != nil {
				t.Fatal(err, errs.String())
			}
			got, err := stdio.Parse(byID(t, messages(t, out.String()))["2"])
			if err != nil || harness.Code(got) != tc.wantCode {
				t.Errorf("code %q, want %q (%v): %s", harness.Code(got), tc.wantCode, err, got.Text)
			}
		})
	}
}

// expiredServer is a server whose certificate was good once.
func expiredServer(t *testing.T) *httptest.Server {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func certificate(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// TestCase_MC_05: what clients put around their messages is no part of them.
func TestCase_MC_05(t *testing.T) {
	t.Parallel()
	ns, p := newWeb(t)
	crlf := func(line string) string { return strings.TrimSuffix(line, "\n") + "\r\n" }
	answered := byID(t, pipe(t, p, "\ufeff"+crlf(initialize)+"\r\n\n  \n"+crlf(initialized)+
		planLine("2", ns, "web", "3")+" \t \r\n"+
		" "+planLine("3", ns, "web", "4")+"\n\n"+
		`{"jsonrpc":"2.0","id":4,"method":"ping"}`)) // without a line feed at the end
	for id, want := range map[string]string{"1": `"protocolVersion"`, "2": "from 2 to 3", "3": "from 2 to 4", "4": `"result":{}`} {
		if !strings.Contains(answered[id].Line, want) {
			t.Errorf("the answer to %s lacks %s: %s", id, want, answered[id].Line)
		}
	}
	if len(answered) != 4 {
		t.Errorf("%d answers to 4 requests: %v", len(answered), answered)
	}
}

// TestCase_MC_06: what is no text or no number is an error, nothing is put in its place,
// and the next request is answered.
func TestCase_MC_06(t *testing.T) {
	t.Parallel()
	ns, p := newWeb(t)
	for _, tc := range []struct{ name, line, wantID, want string }{
		{"a byte ff in a name", planLine("2", ns, "w\xffb", "3"), "null", `"code":-32700`},
		{"a lone surrogate in a name", planLine("2", ns, `w\ud800b`, "3"), "null", `"code":-32700`},
		{"a NUL in a name", planLine("2", ns, `w\u0000b`, "3"), "2", "invalid_arguments"},
		{"100,000 arrays", planLine("2", ns, "web", strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)), "null", `"code":-32700`},
		{"1e400", planLine("2", ns, "web", "1e400"), "2", `"code":-32602`},
		{"1e400 as an id", planLine("1e400", ns, "web", "3"), "null", `"code":-32600`},
		{"a large id", planLine("12345678901234567890", ns, "web", "3"), "12345678901234567890", "from 2 to 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			answered := byID(t, pipe(t, p, initialize+initialized+tc.line+"\n"+planLine("9", ns, "web", "4")+"\n"))
			if !strings.Contains(answered[tc.wantID].Line, tc.want) {
				t.Errorf("the answer to %s lacks %s: %s", tc.wantID, tc.want, answered[tc.wantID].Line)
			}
			if !strings.Contains(answered["9"].Line, "from 2 to 4") {
				t.Errorf("the next request: %s", answered["9"].Line)
			}
		})
	}
	t.Cleanup(func() { // after the subtests
		for _, r := range p.Requests(nil) {
			if strings.Contains(r.Path, "/deployments/") && !strings.HasSuffix(strings.TrimSuffix(r.Path, "/scale"), "/deployments/web") {
				t.Errorf("it asked for %s", r.Path)
			}
		}
	})
}

// TestCase_MC_07: a batch is refused in both eras, and nothing in it runs.
func TestCase_MC_07(t *testing.T) {
	t.Parallel()
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"printf","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}},`
	for _, era := range []stdio.Era{stdio.Legacy, stdio.Modern} {
		t.Run(string(era), func(t *testing.T) {
			t.Parallel()
			ns, p := newWeb(t)
			shake, planned := initialize+initialized, planLine("2", ns, "web", "3")
			if era == stdio.Modern {
				shake, planned = "", strings.Replace(planned, `"params":{`, `"params":{`+meta, 1)
			}
			executed := strings.Replace(strings.Replace(planned, "plan_scale", "scale", 1), `"replicas"`, `"confirm":"yes","reason":"a test","replicas"`, 1)
			refused := 0
			for _, m := range pipe(t, p, shake+"["+planned+","+executed+"]\n[]\n["+strings.TrimSuffix(initialized, "\n")+"]\n") {
				if m.Error != nil && m.Error.Code == -32600 && string(m.ID) == "null" {
					refused++
				} else if string(m.ID) != "1" {
					t.Errorf("an answer of the batch: %s", m.Line)
				}
			}
			if refused != 3 {
				t.Errorf("%d of 3 batches were refused", refused)
			}
			for _, r := range p.Requests(nil) {
				if strings.Contains(r.Path, ns) {
					t.Errorf("something in a batch ran: %s %s", r.Method, r.Path)
				}
			}
			// The same lines by themselves are calls.
			if got := byID(t, pipe(t, p, shake+planned+"\n"))["2"]; !strings.Contains(got.Line, "CONFIRM: ") {
				t.Errorf("the plan alone: %s", got.Line)
			}
		})
	}
}

// TestCase_MC_09: 200 calls of all sorts at once are answered once each, while a drain
// waits and holds none of them up.
func TestCase_MC_09(t *testing.T) {
	t.Parallel()
	ns := cp.Namespace(t)
	node := ns + "-drained"
	harness.Create(t, cp, ns, harness.Node(node).Ready(), harness.Node(ns+"-node").Ready(),
		harness.Deployment("web").Replicas(2).Ready(2), harness.Deployment("api").Replicas(2).Ready(2),
		harness.ReplicaSet("slow").Replicas(1).Pods(onNode(node)).Ready(1), harness.Budget("slow").Allows(0, 1))
	harness.Converge(t, cp, ns)
	t.Cleanup(workbench{ns, ns + "-node", node}.removeNodes)
	s := start(t, append(wide, "--verify-wait", "110s")...) // longer than all of it, or the drain would answer in between
	drain := s.Plan("drain", harness.Args{"node": node, "timeout_seconds": 300})
	_, drained, err := s.Send("tools/call", map[string]any{"name": "drain", "arguments": drain})
	if err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the drain to wait for its budget", func() (bool, error) {
		return count(s.Proxy.Writes(), isEffect("drain")) > 0, nil
	})
	web := of(ns, "deployment", "web")
	confirmed := s.Plan("scale", of(ns, "deployment", "api").With("replicas", 3))
	status := harness.Args{"plan": strings.Split(confirmed["confirm"].(string), "[")[1][:10]}
	calls := []struct {
		tool string
		args harness.Args
	}{
		{"plan_scale", web.With("replicas", 3)}, {"scale", confirmed}, {"write_status", status},
		{"plan_scale", web.With("replicas", "3")}, {"scale", confirmed.With("confirm", "yes")},
	}
	answers, asked := map[int]chan stdio.Message{}, map[int]string{}
	for i := range 200 {
		c := calls[i%len(calls)]
		id, ch, err := s.Send("tools/call", map[string]any{"name": c.tool, "arguments": c.args})
		if err != nil {
			t.Fatal(err)
		}
		answers[id], asked[id] = ch, c.tool
	}
	var results []stdio.Tool
	for id, ch := range answers {
		got, err := stdio.Parse(<-ch)
		if err != nil {
			t.Errorf("%s: %v", asked[id], err)
		}
		if got.Field("outcome") != "" && asked[id] == "scale" {
			results = append(results, got)
		}
	}
	sameResult(t, results, plan.Executed)
	if n := count(s.Proxy.Writes(), func(r harness.Request) bool { return isEffect("scale")(r) && r.Status != http.StatusConflict }); n != 1 || len(results) != 40 {
		t.Errorf("%d scales were sent, of %d calls; want 1 of 40", n, len(results))
	}
	select {
	case m := <-drained:
		t.Errorf("the drain ended: %s", m.Line)
	default:
	}
	allow(t, ns, "slow", 1)
	if got, err := stdio.Parse(<-drained); err != nil || harness.Into[execution](t, got).Outcome != plan.Executed {
		t.Errorf("the drain: %s (%v)", got.Text, err)
	}
	seen := map[string]int{}
	for _, m := range messages(t, strings.Join(s.Lines(), "\n")+"\n") {
		seen[string(m.ID)]++
	}
	for id := range answers {
		if n := seen[fmt.Sprint(id)]; n != 1 {
			t.Errorf("%d answers to %d", n, id)
		}
	}
}

// TestCase_MC_13: a plan over many pods says what matters in less than 8,000 characters,
// twice; one of more than 200 Steps is refused.
func TestCase_MC_13(t *testing.T) {
	// Alone: hundreds of dry runs are bounded in time as one plan.
	ns := cp.Namespace(t)
	node := ns + "-drained"
	harness.Create(t, cp, ns, harness.Node(node).Ready(), harness.Node(ns+"-node").Ready())
	t.Cleanup(workbench{ns, ns + "-node", node}.removeNodes)
	owners, bare := []string{"web", "api", "shop", "mail"}, []string{"loner-a", "loner-b"}
	for _, o := range owners {
		harness.Create(t, cp, ns, harness.ReplicaSet(o).Replicas(47).Pods(onNode(node)).Ready(47), harness.Budget(o).MaxUnavailable(47).Allows(47, 47))
	}
	for _, b := range bare {
		harness.Create(t, cp, ns, harness.Pod(b).On(node))
	}
	s := start(t, wide...)
	drain := harness.Args{"node": node}
	says := func(got stdio.Tool, wants ...string) {
		t.Helper()
		for form, text := range map[string]string{"text": got.Text, "structured form": string(got.Structured)} {
			if n := utf8.RuneCountInString(text); n >= 8000 {
				t.Errorf("the %s has %d characters", form, n)
			}
			for _, want := range wants {
				if !strings.Contains(text, want) {
					t.Errorf("the %s lacks %q: %s", form, want, text)
				}
			}
		}
	}
	says(s.Must("plan_drain", drain), bare...)
	got := s.Must("plan_drain", drain.With("force", true))
	says(got, append(append(owners, bare...), "190")...)
	if got.Field("confirm") == "" {
		t.Errorf("no phrase: %s", got.Text)
	}
	harness.Create(t, cp, ns, harness.ReplicaSet("many").Replicas(310).Pods(onNode(node)).Ready(0))
	got = s.Must("plan_drain", drain.With("force", true))
	says(got, "50", "200")
	if got.Field("confirm") != "" || !got.IsError {
		t.Errorf("500 pods: %s", got.Text)
	}
}
