package server

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	mcpserver "github.com/mark3labs/mcp-go/server"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
)

// bounded are the read tools of package read.
func (t tools) bounded() (out []mcpserver.ServerTool, err error) {
	for _, r := range read.All() {
		in, err := action.SchemaOfType(reflect.TypeOf(r.NewArgs()).Elem())
		if err != nil {
			return nil, fmt.Errorf("schema of %s: %w", r.Name, err)
		}
		read.Bound(in)
		answers, err := outputSchemaOf(reflect.TypeOf(r.Zero).Elem())
		if err != nil {
			return nil, fmt.Errorf("output schema of %s: %w", r.Name, err)
		}
		about, err := tool(r.Name, r.Title, r.Doc, in, answers, hints{readOnly: true})
		if err != nil {
			return nil, err
		}
		out = append(out, mcpserver.ServerTool{Tool: about, Handler: t.handle(nil, func(ctx context.Context, c engine.Call) (answer, error) {
			var got readAnswer
			args := r.NewArgs()
			onRecord, err := t.engine.Read(ctx, c, engine.Reading{
				Schema: in, Args: args, Live: r.Live(), Nodes: r.Nodes,
				Do: func(ctx context.Context, namespaces []string) (err error) {
					cluster := t.options.Reads
					cluster.Principal = c.Principal
					got.Answer, err = r.Run(ctx, cluster, namespaces, args)
					return err
				},
			})
			if err != nil {
				return nil, err
			}
			if !onRecord {
				read.NotOnRecord(got.Answer)
			}
			return got, nil
		})})
	}
	return out, nil
}

// readAnswer is what a read tool returns.
type readAnswer struct{ read.Answer }

func (a readAnswer) text() string { return a.Text() }

func (a readAnswer) failed() bool { return false }

// MarshalJSON gives the answer's own form.
func (a readAnswer) MarshalJSON() ([]byte, error) { return json.Marshal(a.Answer) }
