package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
)

// TestHandlePanic: a panic of a tool is an answer, which tells the incident and no more.
func TestHandlePanic(t *testing.T) {
	var log guardSink
	handler := tools{options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}.handle(nil, func(context.Context, engine.Call) (answer, error) {
		panic("secret\nlevel=INFO msg=forged")
	})
	incident := regexp.MustCompile(`^failed: an internal fault, incident ([A-Z2-7]{8}) in the server's log; the same call again`)
	known := map[string]bool{}
	for range 3 {
		res, err := handler(t.Context(), mcp.CallToolRequest{})
		if err != nil || !res.IsError {
			t.Fatalf("got error %v, result %+v", err, res)
		}
		text := res.Content[0].(mcp.TextContent).Text
		id := incident.FindStringSubmatch(text)
		if id == nil || known[id[1]] || strings.Contains(text, "secret") {
			t.Fatalf("answer %q, incidents before %v", text, known)
		}
		known[id[1]] = true
		if got := log.take(); len(got) != 1 || !strings.Contains(got[0], "incident="+id[1]) || !strings.Contains(got[0], `panic="secret\nlevel=INFO`) {
			t.Errorf("log %q", got)
		}
	}
}

// TestSchemas: every schema that a client is given compiles, which no start looks at again.
func TestSchemas(t *testing.T) {
	e := engine.New(engine.Config{}, nil, nil, nil, nil, nil)
	all, err := Tools(e, actions.All(), Options{AllowWrite: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 2*len(actions.All()) {
		t.Fatalf("%d tools", len(all))
	}
	for _, tool := range all {
		for what, raw := range map[string]json.RawMessage{"input": tool.RawInputSchema, "output": tool.RawOutputSchema} {
			var s jsonschema.Schema
			if err := json.Unmarshal(raw, &s); err != nil {
				t.Errorf("%s of %s: %v", what, tool.Name, err)
			} else if _, err := s.Resolve(nil); err != nil {
				t.Errorf("%s of %s: %v", what, tool.Name, err)
			}
		}
	}
}

// TestProgressToken: a token comes back as it was sent, or not at all.
func TestProgressToken(t *testing.T) {
	for token, want := range map[string]bool{
		`"t"`: true, `""`: true, `7`: true, `-7`: true, `9007199254740991`: true,
		`9007199254740992`: false, `9007199254740993`: false, `-12345678901234567890`: false,
		`null`: false, `true`: false, `["t"]`: false, `{"t":1}`: false,
	} {
		t.Run(token, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startGuard(t, nil)
				r.mcp.AddTool(mcp.NewTool("work"), func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					if tell := (mcpCalls{server: r.mcp}).progress(ctx, req); tell != nil {
						tell("half")
						tell("all")
					}
					return mcp.NewToolResultText("done"), nil
				})
				r.send(metaCallLine("1", "work", "{}", strings.Replace(modernMetaJSON, "{", `{"progressToken":`+token+",", 1)))
				var got, wanted []string
				for _, line := range r.out.take() {
					var n struct {
						Params struct{ ProgressToken, Progress json.RawMessage }
					}
					if err := json.Unmarshal([]byte(line), &n); err != nil {
						t.Fatal(err)
					}
					got = append(got, fmt.Sprintf("%s %s", n.Params.ProgressToken, n.Params.Progress))
				}
				if want {
					wanted = []string{token + " 1", token + " 2"}
				}
				wantGuardLines(t, got, append(wanted, " "))
			})
		})
	}
}
