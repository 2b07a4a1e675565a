package kube

import "time"

// CacheState is how large the caches of one resource are, and how old.
type CacheState struct {
	Objects int
	Age     time.Duration // since the API server spoke last, of the one that is furthest behind
}

// State is that of every resource of which a cache has synced.
func (c *Cache) State() map[string]CacheState {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]CacheState{}
	for s, i := range c.informers {
		if i.ended() || i.syncing() {
			continue
		}
		st := out[s.resource]
		st.Objects += i.store.size()
		i.mu.Lock()
		st.Age = max(st.Age, since(c.now(), i.heard))
		i.mu.Unlock()
		out[s.resource] = st
	}
	return out
}
