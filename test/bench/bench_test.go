package main

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/kubewrite/kube-write-mcp/test/bench/report"
)

func TestMetric(t *testing.T) {
	const out = "goos: linux\nBenchmarkCachedPod-2   1   900 ns/op   639.5 B/pod   5817 JSON-B/pod\nPASS\n"
	for unit, want := range map[string]float64{"B/pod": 639.5, "JSON-B/pod": 5817} {
		if got, err := metric(out, unit); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", unit, got, err, want)
		}
	}
	if _, err := metric(out, "pods"); err == nil {
		t.Error("a unit that is not there has a value")
	}
}

func TestField(t *testing.T) {
	raw := []byte("Name:\tx\nVmRSS:\t   35592 kB\nPPid:\t7\n")
	if got, err := field(raw, "VmRSS"); err != nil || got != 35592 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := field(raw, "Rss"); err == nil {
		t.Error("the end of another name was taken")
	}
}

func TestBytesPerTool(t *testing.T) {
	in, out, n, err := bytesPerTool(json.RawMessage(`{"tools":[
		{"name":"ab","description":"cde","inputSchema":{"type": "object"},"outputSchema":{"a":1}},
		{"name":"ab","description":"c","inputSchema":{}}]}`))
	if err != nil || n != 2 || in != float64(5+len(`{"type":"object"}`)+3+len(`{}`))/2 || out != float64(len(`{"a":1}`))/2 {
		t.Errorf("%v, %v, %d, %v", in, out, n, err)
	}
	if _, _, _, err := bytesPerTool(json.RawMessage(`{"tools":[]}`)); err == nil {
		t.Error("no tools have a size")
	}
}

// TestPlace wants the cluster that is fed to be of the shape that it is said to be.
func TestPlace(t *testing.T) {
	owners, nodes, namespaces := map[int]int{}, map[int]int{}, map[int]int{}
	spread := map[[2]int]bool{}
	const pods = 9900 // whole groups of nodes
	for n := range pods {
		w := place(n)
		owners[w.owner]++
		nodes[w.node]++
		namespaces[w.namespace]++
		if spread[[2]int{w.owner, w.node}] {
			t.Fatalf("two pods of owner %d stand on node %d", w.owner, w.node)
		}
		spread[[2]int{w.owner, w.node}] = true
	}
	for name, c := range map[string]struct {
		of   map[int]int
		want int
	}{"owner": {owners, 3}, "node": {nodes, 110}, "namespace": {namespaces, 100}} {
		for i, n := range c.of {
			if n != c.want {
				t.Errorf("%s %d has %d pods, want %d", name, i, n, c.want)
			}
		}
	}
}

func TestSame(t *testing.T) {
	spans := func(names ...string) (out []report.Span) {
		for _, n := range names {
			out = append(out, report.Span{Name: n})
		}
		return out
	}
	if got, err := same(spans("b", "a"), spans("a", "b")); err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := same(spans("a", "a"), spans("a")); err == nil {
		t.Error("a call that is made twice is the same as once")
	}
}
