package kube

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// maxPooled bounds a pool: past it everything is forgotten and begun again, which costs
// memory for a while and nothing else.
const maxPooled = 1 << 16

// pool shares between records what they have in common: the pods of a ReplicaSet differ
// in hardly more than their names.
type pool struct {
	mu    sync.Mutex
	texts map[string]string
	sets  map[string]map[string]string
}

// compact is the transform of one informer.
func (p *pool) compact(o any) (any, error) {
	if _, done := o.(*record); done {
		return o, nil // others may be reading it
	}
	out, err := compact(o)
	r, ok := out.(*record)
	if !ok || err != nil {
		return out, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.texts == nil || len(p.texts)+len(p.sets) > maxPooled {
		p.texts, p.sets = map[string]string{}, map[string]map[string]string{}
	}
	r.namespace = p.text(r.namespace)
	if pod, ok := r.facts.(plan.Pod); ok {
		pod.Namespace, pod.Node, pod.Phase = r.namespace, p.text(pod.Node), p.text(pod.Phase)
		pod.Owner = plan.Owner{Kind: p.text(pod.Owner.Kind), Name: p.text(pod.Owner.Name), UID: p.text(pod.Owner.UID)}
		pod.Labels = p.set(pod.Labels)
		for i, dir := range pod.EmptyDirs {
			pod.EmptyDirs[i] = p.text(dir)
		}
		r.facts = pod
	}
	return r, nil
}

func (p *pool) text(s string) string {
	known, ok := p.texts[s]
	if !ok {
		known = strings.Clone(s)
		p.texts[known] = known
	}
	return known
}

func (p *pool) set(m map[string]string) map[string]string {
	if len(m) == 0 {
		return m
	}
	var key strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		key.WriteString(k + "=" + m[k] + ",") // neither may stand in a label
	}
	known, ok := p.sets[key.String()]
	if !ok {
		known = make(map[string]string, len(m))
		for k, v := range m {
			known[p.text(k)] = p.text(v)
		}
		p.sets[key.String()] = known
	}
	return known
}
