package kube

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// store holds the records of one informer, and what the pods among them add up to on each
// node. A reflector writes to it without a queue between, so a reader sees all of an event,
// or of a list, or nothing of it: records and sums alike.
type store struct {
	pool   pool
	synced chan struct{}
	closed chan struct{}

	mu      sync.RWMutex
	held    shelf
	version string // up to which everything is held
}

var (
	_ cache.Queue                  = (*store)(nil)
	_ cache.ReflectorBookmarkStore = (*store)(nil)
	_ cache.TransformingStore      = (*store)(nil)
)

func newStore() *store {
	return &store{synced: make(chan struct{}), closed: make(chan struct{}), held: newShelf()}
}

// shelf is a state.
type shelf struct {
	records map[string]map[string]*record // by namespace and name
	loads   plan.Loads
}

func newShelf() shelf { return shelf{map[string]map[string]*record{}, plan.Loads{}} }

// put files a record in place of the one before it.
func (s shelf) put(r *record) {
	s.take(r.namespace, r.name)
	if s.records[r.namespace] == nil {
		s.records[r.namespace] = map[string]*record{}
	}
	s.records[r.namespace][r.name] = r
	if pod, ok := r.facts.(plan.Pod); ok {
		s.loads.Add(pod)
	}
}

// take removes a record, if there is one.
func (s shelf) take(namespace, name string) {
	r := s.records[namespace][name]
	if r == nil {
		return
	}
	delete(s.records[namespace], name)
	if len(s.records[namespace]) == 0 {
		delete(s.records, namespace)
	}
	if pod, ok := r.facts.(plan.Pod); ok {
		s.loads.Remove(pod)
	}
}

// in gives the records of some namespaces.
func (s shelf) in(namespaces []string) []*record {
	n := 0
	for _, namespace := range namespaces {
		n += len(s.records[namespace])
	}
	out := make([]*record, 0, n)
	for _, namespace := range namespaces {
		for _, r := range s.records[namespace] {
			out = append(out, r)
		}
	}
	return out
}

func (s shelf) size() (n int) {
	for _, of := range s.records {
		n += len(of)
	}
	return n
}

// Add files an object in place of the one before it.
func (s *store) Add(o any) error {
	out, err := s.pool.compact(o)
	if err != nil {
		return err
	}
	r := out.(*record)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.put(r)
	s.version = r.version
	return nil
}

// Update is Add.
func (s *store) Update(o any) error { return s.Add(o) }

// Delete takes an object out.
func (s *store) Delete(o any) error {
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.take(m.GetNamespace(), m.GetName())
	s.version = m.GetResourceVersion()
	return nil
}

// Replace files the objects of a list in place of everything.
func (s *store) Replace(list []any, version string) error {
	held := newShelf()
	for _, o := range list {
		out, err := s.pool.compact(o)
		if err != nil {
			return err
		}
		held.put(out.(*record))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.version = held, version
	if !s.HasSynced() {
		close(s.synced)
	}
	return nil
}

// Bookmark notes that nothing else has changed up to a version.
func (s *store) Bookmark(version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
	return nil
}

// in gives the records of some namespaces and, of the same moment and where they are
// wanted, the sums.
func (s *store) in(namespaces []string, sums bool) (records []*record, loads plan.Loads) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if sums {
		loads = s.held.loads.Clone()
	}
	return s.held.in(namespaces), loads
}

// size is how many records there are.
func (s *store) size() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.held.size()
}

// holds reports whether the store has just what a list has, of the same versions.
func (s *store) holds(list shelf) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.held.size() != list.size() {
		return false
	}
	for namespace, of := range list.records {
		for name, r := range of {
			if held := s.held.records[namespace][name]; held == nil || held.version != r.version {
				return false
			}
		}
	}
	return true
}

// upTo is the version up to which everything is in the store.
func (s *store) upTo() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.version
}

// What follows makes a cache.Queue of the store, which is what client-go's controller
// writes to: one in which nothing ever waits.

// Pop waits until the store is closed.
func (s *store) Pop(cache.PopProcessFunc) (any, error) {
	<-s.closed
	return nil, cache.ErrFIFOClosed
}

// Close ends Pop.
func (s *store) Close() { close(s.closed) }

// Resync has nobody to tell.
func (s *store) Resync() error { return nil }

// Transformer makes records of a state that is streamed as it comes, not when it is whole.
func (s *store) Transformer() cache.TransformFunc { return s.pool.compact }

// HasSynced reports whether a first state is there.
func (s *store) HasSynced() bool {
	select {
	case <-s.synced:
		return true
	default:
		return false
	}
}

// HasSyncedChecker is the store itself.
func (s *store) HasSyncedChecker() cache.DoneChecker { return s }

// Name is that of a cache.DoneChecker.
func (s *store) Name() string { return "cache" }

// Done is closed when a first state is there.
func (s *store) Done() <-chan struct{} { return s.synced }
