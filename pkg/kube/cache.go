package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// The bounds of the caches.
const (
	syncWait    = 2 * time.Second  // for a first sync, before a live list is made
	silence     = 75 * time.Second // of a watch that is open, on which a bookmark comes every minute
	idleStop    = 10 * time.Minute // without a plan that needs it, an informer stops
	deniedPause = time.Minute      // before a watch that was forbidden is tried again
	maxRunning  = 64               // informers at a time: plans in ever new namespaces are cheap to ask for
	maxNarrow   = 8                // namespaces that are read one by one where all of them may not be read at once
)

// Want says which siblings a plan needs and what a cache of them is measured by.
type Want struct {
	Namespace            string // "" is all namespaces
	Pods, Budgets, Nodes bool

	// Namespaces are those that matter, where Namespace is "": Facts has what is in these,
	// and beside Nodes what the pods of all namespaces add up to. What may not be listed in
	// all namespaces is listed in these. That does not help with pods, of which the sums
	// need all.
	Namespaces []string

	// Services, Autoscalers and Quotas only warn: a cache of them need not have reached
	// NotBefore.
	Services, Autoscalers, Quotas bool

	// NotBefore is the newest resourceVersion among the live objects that the plan rests
	// on (see Newest); "" asks for nothing. A cache that has not reached it is not used.
	NotBefore string

	// Agrees reports whether cached facts agree with what the live target says of itself
	// (its counts, its node). Where they do not, the cache is not used. It may be nil, and
	// it may be called several times.
	Agrees func(plan.Facts) bool
}

// Newest is the newest of some resourceVersions; one that cannot be compared is newer
// than all, so that no cache has reached it.
func Newest(versions ...string) string {
	newest := ""
	for _, v := range versions {
		switch {
		case v == "":
		case !reached(v, v):
			return v
		case newest == "", reached(v, newest):
			newest = v
		}
	}
	return newest
}

// Cache holds the siblings of targets: pods, disruption budgets, nodes and what bears on
// them, as compact records, in informers that start on first use, as narrow as the plan needs, and stop
// when they are idle. Nothing of Secrets or ConfigMaps is ever in it, and nothing but the
// watch writes to it.
//
// A cache is used only while each of these holds. In doubt a live list is made, and its
// Source says why, unless the doubt ends before the list does:
//
//   - It has synced from a consistent read, a watch is open now, and everything that the
//     watch has brought is in the store.
//   - The watch is not silent: an event or a bookmark came within the last 75 s. The API
//     server sends bookmarks every minute, so a silent watch is a cut one. The stated age is
//     the time since the last event, bookmark or sync: what happened after that may be
//     unknown to it.
//   - It has reached Want.NotBefore. One etcd numbers the writes of all kinds in one
//     sequence, and a watch delivers in that order, so a cache at version n has every change
//     up to n. A cache below n is behind, or its kind has merely been quiet since. Only a
//     list tells the two apart: where it holds just what the cache holds, the cache counts
//     as being at the list's version until its next event. So the first plan within a
//     minute after its target was written may need a list, the ones after it do not.
//     What only warns is used as it is.
//   - Want.Agrees, of what does not only warn.
type Cache struct {
	client kubernetes.Interface
	now    func() time.Time
	log    *slog.Logger

	syncWait time.Duration

	mu        sync.Mutex
	informers map[source]*informer
	denied    map[source]time.Time
	idle      *time.Timer
	closed    bool
	running   sync.WaitGroup
}

// NewCache makes an idle cache over a reader.
func NewCache(client kubernetes.Interface, now func() time.Time, log *slog.Logger) *Cache {
	return &Cache{
		client: client, now: now, log: log, syncWait: syncWait,
		informers: map[source]*informer{}, denied: map[source]time.Time{},
	}
}

// Facts gives the siblings, each kind sorted by name. What cannot be had stands in
// Missing with the reason, and never as an empty list. The records share memory with the
// cache: nobody may write to their maps and slices.
func (c *Cache) Facts(ctx context.Context, w Want) plan.Facts {
	parts := c.parts(w)
	awaitSync(ctx, c.syncWait, parts)
	f, whole := c.settle(ctx, w, parts)
	if narrow, rest := c.narrow(w, parts); len(narrow) > 0 {
		awaitSync(ctx, c.syncWait, narrow)
		_, _ = c.settle(ctx, w, narrow)
		parts, whole = append(rest, narrow...), false
	}
	if !whole {
		f = join(w, parts)
	}
	return f
}

// inOrder sorts records by namespace and name.
func inOrder(records []*record) []*record {
	in := map[string][]*record{}
	for _, r := range records {
		in[r.namespace] = append(in[r.namespace], r)
	}
	out := make([]*record, 0, len(records))
	for _, namespace := range slices.Sorted(maps.Keys(in)) {
		of := in[namespace]
		slices.SortFunc(of, func(a, b *record) int { return cmp.Compare(a.name, b.name) })
		out = append(out, of...)
	}
	return out
}

// Warm starts the informers of a want and waits for nothing, so that they sync while the
// caller does something else.
func (c *Cache) Warm(w Want) { c.parts(w) }

func (c *Cache) parts(w Want) (parts []*part) {
	for _, s := range w.sources() {
		if w.narrows(s) && c.isDenied(s) {
			parts = append(parts, c.oneByOne(w, s)...)
			continue
		}
		parts = append(parts, c.part(s))
	}
	return parts
}

func (c *Cache) part(s source) *part {
	i, why := c.inform(s)
	return &part{source: s, informer: i, doubt: why}
}

// oneByOne reads a source of all namespaces in those that matter.
func (c *Cache) oneByOne(w Want, s source) (parts []*part) {
	for _, namespace := range w.Namespaces {
		parts = append(parts, c.part(source{s.resource, namespace}))
	}
	return parts
}

// within gives the namespaces of a source that Facts are wanted of.
func (w Want) within(s source) []string {
	if s.namespace == "" && s.resource != "nodes" {
		return w.Namespaces
	}
	return []string{s.namespace}
}

// sums reports whether it is wanted what the pods of a source add up to.
func (w Want) sums(s source) bool { return w.Nodes && s == source{"pods", ""} }

// narrows reports whether a source of all namespaces can be read in those that matter.
func (w Want) narrows(s source) bool {
	return s.namespace == "" && s.resource != "pods" && s.resource != "nodes" && len(w.Namespaces) > 0 && len(w.Namespaces) <= maxNarrow
}

// narrow finds what may not be listed in all namespaces, and begins to read it in those
// that matter. It gives what is left of the parts beside them.
func (c *Cache) narrow(w Want, parts []*part) (narrow, rest []*part) {
	for _, p := range parts {
		if p.doubt != "" && p.live.Load().forbidden && w.narrows(p.source) {
			narrow = append(narrow, c.oneByOne(w, p.source)...)
			continue
		}
		rest = append(rest, p)
	}
	return narrow, rest
}

func (c *Cache) isDenied(s source) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now().Before(c.denied[s])
}

func (w Want) sources() (out []source) {
	if w.Pods {
		out = append(out, source{"pods", w.Namespace})
	}
	if w.Budgets {
		out = append(out, source{"poddisruptionbudgets", w.Namespace})
	}
	if w.Nodes {
		out = append(out, source{"nodes", ""})
	}
	if w.Services {
		out = append(out, source{"services", w.Namespace})
	}
	if w.Autoscalers {
		out = append(out, source{"horizontalpodautoscalers", w.Namespace})
	}
	if w.Quotas {
		out = append(out, source{"resourcequotas", w.Namespace})
	}
	return out
}

// part is what one call of Facts has of one source.
type part struct {
	source
	informer *informer // nil where there is none
	doubt    string    // why the cache is not used, "" where it is
	cached   listing
	live     *atomic.Pointer[listing] // nil before one is asked for
}

// listing is everything of one source, or why it cannot be had.
type listing struct {
	records []*record  // of the namespaces that are wanted
	loads   plan.Loads // of all pods of the source, where they are wanted
	whole   shelf      // of a live list: all that it has
	version string     // likewise
	origin  string     // for Sources
	missing string     // for Missing

	forbidden bool // why it is missing
}

// awaitSync gives informers that have just started the time to sync.
func awaitSync(ctx context.Context, atMost time.Duration, parts []*part) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for _, p := range parts {
		if p.informer == nil {
			continue
		}
		select {
		case <-p.informer.store.Done():
		case <-p.informer.done:
		case <-ctx.Done():
		}
	}
}

// settle looks at the caches until there is no doubt about any of them or a live list in
// its place. Events may be on their way while the list is. It gives the facts where no
// list was needed.
func (c *Cache) settle(ctx context.Context, w Want, parts []*part) (f plan.Facts, whole bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // lists that their caches overtook
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	listed := make(chan struct{}, len(parts))
	for {
		f, whole = c.look(w, parts)
		waiting := false
		for _, p := range parts {
			if p.doubt == "" {
				continue
			}
			if p.live == nil {
				p.live = new(atomic.Pointer[listing])
				why := p.doubt
				go func() {
					p.live.Store(p.list(ctx, c.client, w.within(p.source), why))
					listed <- struct{}{}
				}()
			}
			waiting = waiting || p.live.Load() == nil
		}
		if !waiting {
			break
		}
		select {
		case <-again.C:
		case <-listed:
		}
	}
	for _, p := range parts {
		if p.doubt == older && p.namespace == p.informer.namespace {
			p.informer.prove(p.live.Load())
		}
	}
	return f, whole
}

const older = "the cache is older than the target"

// look takes what the caches hold now, with the doubts about it. It gives the facts where
// there are none.
func (c *Cache) look(w Want, parts []*part) (f plan.Facts, whole bool) {
	var sound, advising []*part
	for _, p := range parts {
		if p.informer == nil {
			continue
		}
		heard, seen := p.informer.last()
		age := since(c.now(), heard)
		version, proven := p.informer.version() // before the records, which are at least as new
		switch {
		case p.informer.forbidden.Load():
			p.doubt = "watching is forbidden"
		case p.informer.ended():
			p.doubt = "the watch has ended"
		case p.informer.syncing():
			p.doubt = "the cache has not synced yet"
		case age > silence:
			p.doubt = fmt.Sprintf("the watch is silent for %s", age.Round(time.Second))
			c.drop(p.informer)
			p.informer = nil
		case p.informer.open.Load() == 0:
			p.doubt = "the watch is down"
		case !reached(version, seen):
			p.doubt = "the cache is behind its watch"
		case !p.advises() && !reached(proven, w.NotBefore):
			p.doubt = older
		default:
			if p.doubt = ""; p.advises() {
				advising = append(advising, p)
			} else {
				sound = append(sound, p)
			}
			p.cached = listing{origin: fmt.Sprintf("cache, %s old", age.Round(time.Second))}
			p.cached.records, p.cached.loads = p.informer.store.in(w.within(p.source), w.sums(p.source))
		}
	}
	f = join(w, sound)
	if len(sound) == 0 || w.Agrees == nil || w.Agrees(f) {
		add(&f, w, advising)
		return f, len(sound)+len(advising) == len(parts)
	}
	for _, p := range sound {
		p.doubt = "the cache disagrees with the target"
	}
	return f, false
}

// join makes Facts of the caches that are not in doubt and of the lists in their place. A
// kind of which a part is missing is missing.
func join(w Want, parts []*part) plan.Facts {
	f := plan.Facts{Sources: map[string]string{}, Missing: map[string]string{}}
	add(&f, w, parts)
	return f
}

// add joins parts of kinds that the facts do not have yet.
func add(f *plan.Facts, w Want, parts []*part) {
	for _, p := range parts {
		if l := p.listing(); l != nil && l.missing != "" {
			f.Missing[p.resource] = l.missing
		}
	}
	records := map[string][]*record{}
	for _, p := range parts {
		l := p.listing()
		if l == nil || f.Missing[p.resource] != "" {
			continue
		}
		f.Sources[p.resource] = l.origin
		records[p.resource] = append(records[p.resource], l.records...)
		if w.sums(p.source) {
			f.Loads = l.loads
		}
	}
	f.Pods = slices.Grow(f.Pods, len(records["pods"])) // there may be many
	for _, of := range records {
		for _, r := range inOrder(of) { // pointers are moved with less work than facts
			r.addTo(f)
		}
	}
}

// listing is what there is of a part by now, nil for nothing.
func (p *part) listing() *listing {
	switch {
	case p.doubt == "":
		return &p.cached
	case p.live == nil:
		return nil
	}
	return p.live.Load()
}

// inform gives the running informer of a source and starts it on first use; nil, and why,
// while a watch is known to be forbidden or the cache is closed. An informer of all
// namespaces that has synced serves each of them.
func (c *Cache) inform(s source) (*informer, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.closed {
		return nil, "the caches are closed"
	}
	for _, known := range []*informer{c.informers[s], c.informers[source{s.resource, ""}]} {
		if known != nil && !known.ended() && (known.source == s || !known.syncing()) {
			known.used = now
			return known, ""
		}
	}
	if now.Before(c.denied[s]) {
		return nil, "watching is forbidden"
	}
	if len(c.informers) >= maxRunning {
		c.stopOldest()
	}
	i := c.start(s)
	i.used = now
	c.informers[s] = i
	if c.idle == nil {
		c.idle = time.AfterFunc(idleStop, c.stopIdle)
	}
	return i, ""
}

// stopOldest stops the informer that no plan has needed for longest. A call that rests on
// it makes a live list.
func (c *Cache) stopOldest() {
	var oldest *informer
	for _, i := range c.informers {
		if oldest == nil || i.used.Before(oldest.used) {
			oldest = i
		}
	}
	oldest.stop()
	delete(c.informers, oldest.source)
}

// stopIdle stops the informers that no plan has needed for a while, and comes again
// while there are others.
func (c *Cache) stopIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	now, next := c.now(), idleStop
	for s, i := range c.informers {
		left := idleStop - since(now, i.used)
		if left <= 0 || i.ended() {
			i.stop()
			delete(c.informers, s)
			continue
		}
		next = min(next, left)
	}
	for s, until := range c.denied {
		if !now.Before(until) {
			delete(c.denied, s)
		}
	}
	if len(c.informers) == 0 {
		c.idle = nil
		return
	}
	c.idle = time.AfterFunc(next, c.stopIdle)
}

// drop ends an informer that is of no use any more; the next use starts another one.
func (c *Cache) drop(i *informer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i.stop()
	if c.informers[i.source] == i {
		delete(c.informers, i.source)
	}
}

// deny keeps a source from being watched for a while.
func (c *Cache) deny(i *informer) {
	i.forbidden.Store(true)
	c.drop(i)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.denied[i.source] = c.now().Add(deniedPause)
}

// Close stops every informer and waits for them. Facts still answers, from live lists.
func (c *Cache) Close() {
	c.mu.Lock()
	c.closed = true
	if c.idle != nil {
		c.idle.Stop()
	}
	for _, i := range c.informers {
		i.stop()
	}
	clear(c.informers)
	c.mu.Unlock()
	c.running.Wait()
}

// reached reports whether a version is at or after another; false where they cannot be
// compared.
func reached(version, notBefore string) bool {
	if notBefore == "" {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(version, notBefore)
	return err == nil && order >= 0
}

// since is the time that has passed by the clock on the wall or by the process's own,
// whichever says more: the latter stands still while a laptop sleeps.
func since(now, t time.Time) time.Duration {
	return max(0, now.Sub(t), now.Round(0).Sub(t.Round(0)))
}
