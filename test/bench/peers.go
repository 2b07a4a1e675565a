package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/kubewrite/kube-write-mcp/test/bench/report"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// kubectlDryRun is what an agent with a shell does to see a scale: two processes.
func (b *bench) kubectlDryRun(r *rig) func() error {
	kubectl := func(args ...string) error {
		cmd := exec.Command(b.kubectl, append([]string{"--kubeconfig", r.forPeers, "--cache-dir", filepath.Join(b.dir, "kubectl"), "-n", namespace}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %v: %w: %s", args, err, out)
		}
		return nil
	}
	return func() error {
		if err := kubectl("get", "deployment", "web", "-o", "json"); err != nil {
			return err
		}
		return kubectl("scale", "deployment", "web", "--replicas=3", "--dry-run=server")
	}
}

// peerName is the server that this one is compared with, as it comes.
const peerName = "kubernetes-mcp-server 0.0.67"

// peers compares with the other MCP server: one change, the start, what it holds and what
// it costs its reader.
func (b *bench) peers(ctx context.Context) error {
	r, err := b.cluster(ctx)
	if err != nil {
		return err
	}
	rows := []report.Row{
		{What: "plan_scale and scale together", Baseline: peerName + ": one unplanned resources_scale", Bar: report.AtMost(1, "×")},
		{What: "start of the process to tools/list answered", Baseline: peerName + " as npm starts it, through node", Bar: report.AtMost(0.25, "×")},
		{What: "start, beside the peer's own binary", Baseline: peerName + " without node", Bar: report.AtMost(0.25, "×")},
		{What: "idle resident memory", Baseline: peerName + " as npm starts it, node and binary", Bar: report.AtMost(0.5, "×")},
		{What: "idle resident memory, beside the peer's own binary", Baseline: peerName + " without node", Bar: report.AtMost(0.5, "×")},
		{What: "bytes per tool: name, description, input schema", Baseline: peerName, Bar: report.AtMost(1, "×")},
		{What: "bytes per tool: output schema", Baseline: peerName + ": name, description, input schema", Bar: report.AtMost(1, "×")},
	}
	if b.peer == "" {
		b.unmeasured(b.peerWhy, rows...)
		return nil
	}
	if err := b.change(ctx, r, rows[0]); err != nil {
		return err
	}
	begin := func(binary string, args ...string) func() (*stdio.Client, stdio.Message, error) {
		return func() (*stdio.Client, stdio.Message, error) {
			s, err := stdio.Start(stdio.Legacy, binary, nil, args...)
			if err != nil {
				return nil, stdio.Message{}, err
			}
			list, err := s.Request("tools/list", nil)
			return s, list, err
		}
	}
	starts := []func() (*stdio.Client, stdio.Message, error){
		begin(b.binary, b.flags(r, "started")...),
		begin(b.peer, "--kubeconfig", r.forPeers),
		begin(b.peerBinary, "--kubeconfig", r.forPeers),
	}
	var sides []side
	for _, start := range starts {
		var s *stdio.Client
		sides = append(sides, side{
			reset: func() error { // by the end of its input: node's death would leave its child
				if s != nil {
					_ = s.Close()
					s = nil
				}
				return nil
			},
			run: func() (err error) { s, _, err = start(); return err },
		})
	}
	ms, err := b.turns(ctx, sides...)
	for _, s := range sides {
		err = errors.Join(err, s.reset())
	}
	if err != nil {
		return err
	}
	for i, row := range rows[1:3] {
		b.add(compare(row.What, row.Baseline, ms[0], ms[1+i], 0.5, row.Bar))
	}
	var running []*stdio.Client
	var lists []stdio.Message
	for _, start := range starts {
		s, list, err := start()
		if err != nil {
			return err
		}
		defer s.Close()
		running, lists = append(running, s), append(lists, list)
	}
	time.Sleep(3 * time.Second) // idle
	var held []float64
	for _, s := range running {
		mib, err := residentTree(s.Process().Pid)
		if err != nil {
			return err
		}
		held = append(held, mib)
	}
	for i, row := range rows[3:5] {
		row.Ours, row.Base, row.Value, row.Unit = held[0], held[1+i], held[0]/held[1+i], "MiB"
		b.add(row)
	}
	list, peerList := lists[0], lists[1]

	in, out, n, err := bytesPerTool(list.Result)
	if err != nil {
		return err
	}
	peerIn, peerOut, peerN, err := bytesPerTool(peerList.Result)
	if err != nil {
		return err
	}
	row := rows[5]
	row.Ours, row.Base, row.Value, row.Unit, row.Exact = in, peerIn, in/peerIn, "B", true
	row.Note = fmt.Sprintf("%d tools and %d; the output schemas of the other one are %.0f bytes per tool", n, peerN, peerOut)
	b.add(row)
	row = rows[6]
	row.Ours, row.Base, row.Value, row.Unit, row.Exact = out, peerIn, out/peerIn, "B", true
	b.add(row)
	return nil
}

// bytesPerTool is the size of a list of tools, for each tool: what a model must read to
// call it, and beside it the output schema.
func bytesPerTool(result json.RawMessage) (in, out float64, n int, err error) {
	var list struct {
		Tools []struct {
			Name, Description         string
			InputSchema, OutputSchema json.RawMessage
		} `json:"tools"`
	}
	if err := json.Unmarshal(result, &list); err != nil || len(list.Tools) == 0 {
		return 0, 0, 0, fmt.Errorf("not a list of tools: %w", err)
	}
	for _, t := range list.Tools {
		var schema bytes.Buffer
		if err := json.Compact(&schema, t.InputSchema); err != nil {
			return 0, 0, 0, err
		}
		in += float64(len(t.Name) + len(t.Description) + schema.Len())
		out += float64(len(t.OutputSchema))
	}
	n = len(list.Tools)
	return in / float64(n), out / float64(n), n, nil
}

// change compares one change of ours, planned and executed with all its defaults, with one
// call of the peer.
func (b *bench) change(ctx context.Context, r *rig, row report.Row) error {
	s, err := b.server(r, "change")
	if err != nil {
		return err
	}
	defer s.Kill()
	peer, err := stdio.Start(stdio.Legacy, b.peer, nil, "--kubeconfig", r.forPeers)
	if err != nil {
		return err
	}
	defer peer.Close()
	back := func() error { return r.back(ctx, "web") }
	var sentByPeer []report.Span
	their := func() error {
		got, err := peer.Call("resources_scale", map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": namespace, "name": "web", "scale": 3})
		if err == nil && got.IsError {
			err = fmt.Errorf("resources_scale: %s", got.Text)
		}
		return err
	}
	ours := func() error {
		args, err := planned(s, "scale", scaleTo("web", 3))
		if err != nil {
			return err
		}
		return executed(s, "scale", args)
	}
	for range 2 { // the second time its discovery is cached
		if err := back(); err != nil {
			return err
		}
		if sentByPeer, err = r.sent(ctx, "kubernetes-mcp-server", their); err != nil {
			return err
		}
	}
	if err := back(); err != nil {
		return err
	}
	if err := ours(); err != nil {
		return err
	}
	if err := back(); err != nil {
		return err
	}
	sentByUs, err := r.sent(ctx, ourAgent, ours)
	if err != nil {
		return err
	}
	ms, err := b.turns(ctx, side{back, ours}, side{back, their})
	if err != nil {
		return err
	}
	out := compare(row.What, row.Baseline, ms[0], ms[1], 0.5, row.Bar)
	out.Note = fmt.Sprintf("%d API calls, of which %d one after another, and five syncs; the other one makes %d", len(sentByUs), len(report.CriticalPath(sentByUs)), len(sentByPeer))
	b.add(out)
	return nil
}
