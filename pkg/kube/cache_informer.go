package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// informer is a running informer of one source.
type informer struct {
	source
	store     *store
	stop      context.CancelFunc
	done      chan struct{}
	used      time.Time    // guarded by Cache.mu
	open      atomic.Int32 // watches that deliver what is new
	forbidden atomic.Bool  // why it has ended

	mu    sync.Mutex
	heard time.Time                 // when the API server spoke last
	seen  string                    // the version that it was at then
	quiet struct{ from, to string } // versions between which nothing has changed
}

// start runs an informer. It ends with stop, or by itself where watching is forbidden
// or the API is not served, which no retry heals.
func (c *Cache) start(s source) *informer {
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), klog.New(informerLog{c.log})))
	i := &informer{source: s, store: newStore(), stop: stop, done: make(chan struct{})}
	calls := s.calls(c.client)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.Continue == "" {
				o.ResourceVersion, o.ResourceVersionMatch = "", "" // consistent: never what a server's own cache had once
			}
			asked := c.now()
			list, err := calls.list(ctx, o)
			if err == nil {
				if m, err := meta.ListAccessor(list); err == nil {
					i.hear(asked, m.GetResourceVersion())
				}
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			state := o.SendInitialEvents != nil && *o.SendInitialEvents
			if state {
				o.ResourceVersion = "" // likewise
			}
			w, err := calls.watch(ctx, o)
			switch {
			case err == nil:
				return c.tap(ctx, i, w, !state), nil
			case state:
				return nil, opaque{err}
			}
			return nil, err
		},
	}
	controller := cache.New(&cache.Config{
		Queue: i.store, ListerWatcher: lw, ObjectType: s.example(),
		WatchErrorHandlerWithContext: func(_ context.Context, _ *cache.Reflector, err error) {
			c.log.Debug("watch failed", "resource", s.resource, "namespace", s.namespace, "err", plan.Untrusted(err.Error()))
			if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) { // no right to it, or no such API
				c.deny(i)
			}
		},
	})
	c.running.Go(func() {
		defer close(i.done)
		controller.RunWithContext(ctx)
	})
	return i
}

// opaque hides from the reflector that an error could be retried: while it waits to
// stream the state again it cannot be stopped. So it goes on to a list, and after that
// waits where it can be.
type opaque struct{ error }

func (i *informer) ended() bool {
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

// syncing reports whether the first state is still to come.
func (i *informer) syncing() bool { return !i.store.HasSynced() && !i.ended() }

// version is that up to which the watch has brought every change, and proven that up to
// which the store is known to have every change.
func (i *informer) version() (version, proven string) {
	version = i.store.upTo()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.quiet.from == version {
		return version, i.quiet.to
	}
	return version, version
}

// prove takes a live list as proof that nothing has changed since the store's version, if
// it holds just the same.
func (i *informer) prove(l *listing) {
	version, _ := i.version()
	if l.missing != "" || !i.store.holds(l.whole) {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.quiet.from, i.quiet.to = version, l.version
}

// hear notes that the API server was at a version when it spoke.
func (i *informer) hear(at time.Time, version string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.heard, i.seen = at, version
}

func (i *informer) last() (heard time.Time, seen string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.heard, i.seen
}

// tap passes a watch on and hears its events and bookmarks, once the watch is past the
// state that it begins with.
func (c *Cache) tap(ctx context.Context, i *informer, w watch.Interface, past bool) watch.Interface {
	t := &tapped{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	if past {
		i.open.Add(1)
	}
	c.running.Go(func() {
		defer close(t.events)
		for e := range w.ResultChan() {
			if m, err := meta.Accessor(e.Object); err == nil && e.Type != watch.Error {
				if !past && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
					i.open.Add(1)
					past = true
				}
				if past {
					i.hear(c.now(), m.GetResourceVersion())
				}
			}
			select {
			case t.events <- e:
				continue
			case <-t.stopped:
			case <-ctx.Done(): // a reflector that ends does not stop every watch that it has begun
				w.Stop()
			}
			break
		}
		if past {
			i.open.Add(-1)
		}
	})
	return t
}

type tapped struct {
	watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	once    sync.Once
}

func (t *tapped) ResultChan() <-chan watch.Event { return t.events }

func (t *tapped) Stop() {
	t.once.Do(func() { close(t.stopped) })
	t.Interface.Stop()
}

// informerLog is where the informers' own log goes: client-go tells at the usual level of each
// retry, which concerns nobody while live lists do.
type informerLog struct{ log *slog.Logger }

func (informerLog) Init(klog.RuntimeInfo)               {}
func (informerLog) Enabled(level int) bool              { return level <= 1 }
func (q informerLog) WithName(string) klog.LogSink      { return q }
func (q informerLog) WithValues(kv ...any) klog.LogSink { return informerLog{q.log.With(kv...)} }

func (q informerLog) Info(_ int, msg string, kv ...any) {
	q.log.Debug("informer: "+msg, printable(kv)...)
}

func (q informerLog) Error(err error, msg string, kv ...any) {
	q.log.Debug("informer: "+msg, printable(append(kv, "err", err))...)
}

// printable makes the values of a log line safe: errors of the API may quote objects.
func printable(kv []any) []any {
	out := make([]any, len(kv))
	for n, v := range kv {
		out[n] = plan.Untrusted(fmt.Sprint(v))
	}
	return out
}
