// Package http tests the server over Streamable HTTP: the shipped program, as a
// ServiceAccount, between callers whose tokens and rights a real API server decides.
package http

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

var cp *lab.Lab

func TestMain(m *testing.M) { lab.Main(m, lab.Options{}, func(l *lab.Lab) { cp = l }) }

const audience = "kube-write-mcp"

// account is the server's: the generated rules, and those that the test adds.
func account(t testing.TB, more ...rbacv1.PolicyRule) *rest.Config {
	t.Helper()
	rules := append(append(engine.Rules(actions.All()), kube.ReviewRules...), more...)
	cfg, err := cp.ServiceAccount(t.Context(), cp.Namespace(t), "server", rules)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// may is a rule that lets a caller do virtual verbs with some actions, or with all.
func may(verbs string, actions ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{"kubewrite.dev"}, Resources: []string{"actions"}, Verbs: strings.Split(verbs, ","), ResourceNames: actions}
}

// caller makes a ServiceAccount with rights in the whole cluster.
func caller(t testing.TB, rules ...rbacv1.PolicyRule) (user, token string) {
	t.Helper()
	ns := cp.Namespace(t)
	if _, err := cp.ServiceAccount(t.Context(), ns, "caller", rules); err != nil {
		t.Fatal(err)
	}
	return "system:serviceaccount:" + ns + ":caller", tokenFor(t, ns, audience)
}

// bind gives a subject a right in one namespace.
func bind(t testing.TB, ns, name string, rule rbacv1.PolicyRule, to rbacv1.Subject) {
	t.Helper()
	meta, rbac := metav1.ObjectMeta{Name: name}, cp.Client.RbacV1()
	if _, err := rbac.Roles(ns).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := rbac.RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: []rbacv1.Subject{to},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func tokenFor(t testing.TB, ns string, audiences ...string) string {
	t.Helper()
	got, err := cp.Client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "caller", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: new(int64(3600))},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status.Token
}

// program is one running server.
type program struct {
	t     testing.TB
	url   string // without a path
	state string
	cmd   *exec.Cmd
	done  chan struct{} // closed when it has ended
	log   *text
}

type text struct {
	sync.Mutex
	bytes.Buffer
}

func (l *text) String() string {
	l.Lock()
	defer l.Unlock()
	return l.Buffer.String()
}

type options struct {
	cfg   *rest.Config // of the server's account
	env   []string
	flags []string
	state string // its folder, which is there; "" is a new one
}

var listening = regexp.MustCompile(`msg="serving MCP over HTTP" address=(\S+) tls=(true|false)`)

// start runs the shipped program on a free port. When the test ends it is stopped, and its
// journal verified.
func start(t testing.TB, o options) *program {
	t.Helper()
	dir := t.TempDir()
	p := &program{t: t, state: cmp.Or(o.state, filepath.Join(dir, "state")), done: make(chan struct{}), log: &text{}}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := cp.Kubeconfig(kubeconfig, "kind-lab", o.cfg); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"serve", "--http", "127.0.0.1:0", "--kubeconfig", kubeconfig, "--state-dir", p.state, "--allow-write", "--verify-wait", "1s", "--verify-timeout", "1s"}, o.flags...)
	p.cmd = exec.Command(harness.Program(t, cp), args...)
	p.cmd.Env = append(os.Environ(), o.env...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address := make(chan []string, 1)
	go func() {
		defer close(p.done)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.log.Lock()
			p.log.WriteString(lines.Text() + "\n")
			p.log.Unlock()
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				address <- m
			}
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(time.Minute):
			_ = p.cmd.Process.Kill()
			t.Errorf("it does not end: %s", p.log)
		}
		harness.Lines(t, p.state)
	})
	select {
	case m := <-address:
		p.url = map[string]string{"true": "https://", "false": "http://"}[m[2]] + m[1]
	case <-p.done:
		t.Fatalf("it did not start: %s", p.log)
	}
	return p
}

// client is one MCP client with a token.
type client struct {
	*program
	token   string
	era     stdio.Era
	session string
	next    int
}

// connect shakes hands in the older era.
func (p *program) connect(era stdio.Era, token string) *client {
	p.t.Helper()
	c := &client{program: p, token: token, era: era}
	if era == stdio.Modern {
		return c
	}
	got := c.post("initialize", map[string]any{"protocolVersion": string(era), "capabilities": map[string]any{}, "clientInfo": clientInfo})
	if c.session = got.header.Get("Mcp-Session-Id"); c.session == "" {
		p.t.Fatalf("no session: %d %s", got.status, got.body)
	}
	c.post("notifications/initialized", nil)
	return c
}

var clientInfo = map[string]any{"name": "test-client", "version": "1"}

// reply is an HTTP answer.
type reply struct {
	status int
	header http.Header
	body   string
}

// request makes the request of a message.
func (c *client) request(method string, params map[string]any) *http.Request {
	c.t.Helper()
	m := map[string]any{"jsonrpc": "2.0", "method": method}
	if params == nil {
		params = map[string]any{}
	}
	if !strings.HasPrefix(method, "notifications/") {
		c.next++
		m["id"] = c.next
	}
	if c.era == stdio.Modern {
		params["_meta"] = map[string]any{
			"io.modelcontextprotocol/protocolVersion": string(c.era), "io.modelcontextprotocol/clientInfo": clientInfo,
			"io.modelcontextprotocol/clientCapabilities": map[string]any{},
		}
	}
	if len(params) > 0 {
		m["params"] = params
	}
	raw, err := json.Marshal(m)
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := http.NewRequest(http.MethodPost, c.url+"/mcp", bytes.NewReader(raw))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.session != "" {
		r.Header.Set("Mcp-Session-Id", c.session)
	}
	if method != "initialize" {
		r.Header.Set("Mcp-Protocol-Version", string(c.era))
	}
	if c.era == stdio.Modern {
		r.Header.Set("Mcp-Method", method)
		if name, ok := params["name"].(string); ok {
			r.Header.Set("Mcp-Name", name)
		}
	}
	return r
}

// do sends a request.
func (p *program) do(r *http.Request) (reply, error) {
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, strings.TrimSpace(string(body))}, err
}

func (c *client) post(method string, params map[string]any) reply {
	c.t.Helper()
	got, err := c.do(c.request(method, params))
	if err != nil {
		c.t.Fatal(err, c.log)
	}
	return got
}

// get gets a path with the client's token.
func (c *client) get(path string) reply {
	c.t.Helper()
	r, err := http.NewRequest(http.MethodGet, c.url+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	got, err := c.do(r)
	if err != nil {
		c.t.Fatal(err, c.log)
	}
	return got
}

// message is the one JSON-RPC message in an answer.
func (r reply) message() (m stdio.Message, err error) {
	body := r.body
	if strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") {
		all := strings.Split(body, "data: ")
		body = all[len(all)-1]
	}
	err = json.Unmarshal([]byte(body), &m)
	m.Line = body
	return m, err
}

// try calls a tool.
func (c *client) try(tool string, args harness.Args) (stdio.Tool, error) {
	got, err := c.do(c.request("tools/call", map[string]any{"name": tool, "arguments": args}))
	if err != nil {
		return stdio.Tool{}, err
	}
	m, err := got.message()
	if err != nil {
		return stdio.Tool{}, fmt.Errorf("%d %s: %w", got.status, got.body, err)
	}
	return stdio.Parse(m)
}

func (c *client) call(tool string, args harness.Args) stdio.Tool {
	c.t.Helper()
	got, err := c.try(tool, args)
	if err != nil {
		c.t.Fatal(err, c.log)
	}
	return got
}

// plan plans and gives the arguments that execute it.
func (c *client) plan(action string, args harness.Args) harness.Args {
	c.t.Helper()
	got := c.call("plan_"+action, args)
	if got.Field("confirm") == "" {
		c.t.Fatalf("no phrase: %s", got.Text)
	}
	return args.With("confirm", got.Field("confirm")).With("reason", "a test")
}

// tools are the names in the client's tool list.
func (c *client) tools() (names []string, err error) {
	got, err := c.do(c.request("tools/list", nil))
	if err != nil {
		return nil, err
	}
	m, err := got.message()
	if err != nil {
		return nil, fmt.Errorf("%d %s: %w", got.status, got.body, err)
	}
	var list struct {
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(m.Result, &list); err != nil {
		return nil, err
	}
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return names, nil
}

var eras = map[string]stdio.Era{"legacy": stdio.Legacy, "modern": stdio.Modern}
