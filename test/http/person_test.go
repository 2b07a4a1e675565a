package http

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	mcpclient "github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// person answers the questions that a client is asked.
type person struct {
	action mcp.ElicitationResponseAction
	name   string
	asked  []string
}

func (p *person) Elicit(_ context.Context, req mcp.ElicitationRequest) (*mcp.ElicitationResult, error) {
	p.asked = append(p.asked, req.Params.Message)
	return &mcp.ElicitationResult{ElicitationResponse: mcp.ElicitationResponse{Action: p.action, Content: map[string]any{"name": p.name}}}, nil
}

// TestPerson: the person at a client of mcp-go's own library is asked over HTTP, in the older
// era on the stream of the call and in the stateless one by an answer that asks for input.
// Only the name of the target lets the plan be executed.
func TestPerson(t *testing.T) {
	t.Parallel()
	p := start(t, options{cfg: account(t), flags: []string{"--verify-wait", "20s", "--requests-per-second", "1000", "--writes-per-minute", "1000", "--plans-per-minute", "1000"}})
	for name, era := range eras {
		for _, tc := range []struct {
			name      string
			person    person
			wantText  string
			wantGone  bool
			wantLines []string
		}{
			{"accepts", person{action: mcp.ElicitationResponseActionAccept, name: "loner"}, "EXECUTED", true, []string{"approved", "execute EXECUTED"}},
			{"types another name", person{action: mcp.ElicitationResponseActionAccept, name: "lone"}, "not that of the target", false, []string{"refused needs_person"}},
			{"declines", person{action: mcp.ElicitationResponseActionDecline}, "the person declined", false, []string{"refused needs_person"}},
		} {
			t.Run(name+"/"+tc.name, func(t *testing.T) {
				ns := cp.Namespace(t)
				harness.Create(t, cp, ns, harness.Pod("loner"))
				_, token := caller(t, may("plan,write"))
				over, err := transport.NewStreamableHTTP(p.url+"/mcp", transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer " + token}))
				if err != nil {
					t.Fatal(err)
				}
				options := []mcpclient.ClientOption{mcpclient.WithElicitationHandler(&tc.person)}
				if era == stdio.Legacy {
					options = append(options, mcpclient.WithLegacyProtocolOnly())
				}
				c := mcpclient.NewClient(over, options...)
				if err := c.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, err := c.Initialize(t.Context(), mcp.InitializeRequest{Params: mcp.InitializeParams{ClientInfo: mcp.Implementation{Name: "library", Version: "1"}}}); err != nil {
					t.Fatal(err)
				}
				call := func(tool string, args harness.Args) stdio.Tool {
					t.Helper()
					got, err := c.CallTool(t.Context(), mcp.CallToolRequest{Params: mcp.CallToolParams{Name: tool, Arguments: map[string]any(args)}})
					if err != nil {
						t.Fatalf("%s: %v\n%s", tool, err, p.log)
					}
					return toolOf(t, got)
				}
				args := harness.Of(ns, "pod", "loner")
				planned := call("plan_delete_pod", args)
				got := call("delete_pod", args.With("confirm", planned.Field("confirm")).With("reason", "a test"))
				harness.Tells(t, got, tc.wantText)
				if len(tc.person.asked) != 1 {
					t.Errorf("asked %d times: %q", len(tc.person.asked), tc.person.asked)
				}
				pod, err := cp.Client.CoreV1().Pods(ns).Get(t.Context(), "loner", metav1.GetOptions{})
				if gone := err != nil || pod.DeletionTimestamp != nil; gone != tc.wantGone {
					t.Errorf("the pod is gone: %t, want %t (%v)", gone, tc.wantGone, err)
				}
				var lines []string
				for _, l := range harness.Lines(t, p.state) {
					if l.Plan == planned.Field("plan") && slices.Contains([]string{"approved", "execute", "refused"}, l.Event) {
						lines = append(lines, trimmed(l.Event, l.Code))
					}
				}
				if d := cmp.Diff(tc.wantLines, lines); d != "" {
					t.Errorf("lines (-want +got):\n%s", d)
				}
			})
		}
	}
}

func trimmed(event, code string) string {
	if code == "" {
		return event
	}
	return event + " " + code
}

// toolOf is an answer as mcp-go's client read it.
func toolOf(t *testing.T, got *mcp.CallToolResult) stdio.Tool {
	t.Helper()
	structured, err := json.Marshal(got.StructuredContent)
	if err != nil || len(got.Content) != 1 {
		t.Fatalf("%v, %+v", err, got)
	}
	return stdio.Tool{Text: got.Content[0].(mcp.TextContent).Text, Structured: structured, IsError: got.IsError}
}
