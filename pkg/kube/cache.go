package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// The bounds of the caches.
const (
	syncWait    = 2 * time.Second // for a first list, before a live list is made instead
	catchUpWait = 200 * time.Millisecond
	idleStop    = 10 * time.Minute // without a plan that needs it an informer stops
	deniedPause = time.Minute      // before a watch that was forbidden is tried again
)

// Want says which siblings a plan needs.
type Want struct {
	Namespace            string // "" is all namespaces
	Pods, Budgets, Nodes bool

	// Agrees reports whether cached facts agree with what the live target says of itself
	// (its counts, its node). Where they do not, the cache is behind and a live list is
	// made. resourceVersions cannot tell: a cache that has not reached the target's may
	// be behind, or merely quiet.
	Agrees func(plan.Facts) bool
}

// Cache holds the siblings of targets: pods, disruption budgets and nodes, as compact
// records, in informers that start on first use, as narrow as the plan needs, and stop
// when they are idle. Nothing of Secrets or ConfigMaps is ever in it, and nothing but the
// watch writes to it.
type Cache struct {
	client kubernetes.Interface
	now    func() time.Time
	log    *slog.Logger

	mu       sync.Mutex
	informed map[source]*informed
	denied   map[source]time.Time
	closed   bool
}

// source is one list of the API.
type source struct{ resource, namespace string }

// informed is a running informer.
type informed struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	done     chan struct{}
	used     time.Time

	mu    sync.Mutex
	heard time.Time // when the last event or list came
}

// NewCache makes an idle cache over a reader.
func NewCache(client kubernetes.Interface, now func() time.Time, log *slog.Logger) *Cache {
	return &Cache{client: client, now: now, log: log, informed: map[source]*informed{}, denied: map[source]time.Time{}}
}

// Facts gives the siblings. What cannot be had stands in Missing with the reason, and
// never as an empty list. Cached facts are used while they agree with the live target,
// else the list is made live; Sources says which.
func (c *Cache) Facts(ctx context.Context, w Want) plan.Facts {
	f := plan.Facts{Sources: map[string]string{}, Missing: map[string]string{}}
	var sources []source
	for _, s := range []struct {
		want bool
		source
	}{{w.Pods, source{"pods", w.Namespace}}, {w.Budgets, source{"poddisruptionbudgets", w.Namespace}}, {w.Nodes, source{"nodes", ""}}} {
		if s.want {
			sources = append(sources, s.source)
		}
	}
	cached := map[source]bool{}
	for _, s := range sources {
		cached[s] = c.fromInformer(ctx, s, &f)
	}
	if w.Agrees != nil && len(sources) > 0 && !c.agreed(ctx, w, cached, &f) {
		cached = nil
	}
	for _, s := range sources {
		if !cached[s] {
			c.live(ctx, s, &f)
		}
	}
	return f
}

// agreed waits a moment for the watch to catch up with the live target.
func (c *Cache) agreed(ctx context.Context, w Want, cached map[source]bool, f *plan.Facts) bool {
	until := time.Now().Add(catchUpWait)
	for !w.Agrees(*f) {
		if time.Now().After(until) || ctx.Err() != nil {
			return false
		}
		time.Sleep(catchUpWait / 10)
		for s, ok := range cached {
			cached[s] = ok && c.fromInformer(ctx, s, f)
		}
	}
	return true
}

// fromInformer fills in what the informer of a source holds; false where it cannot.
func (c *Cache) fromInformer(ctx context.Context, s source, f *plan.Facts) bool {
	i := c.inform(s)
	if i == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, syncWait)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), i.informer.HasSynced) || i.ended() {
		return false
	}
	s.reset(f)
	for _, o := range i.informer.GetStore().List() {
		s.add(f, o)
	}
	i.mu.Lock()
	age := c.now().Sub(i.heard)
	i.mu.Unlock()
	f.Sources[s.resource] = fmt.Sprintf("cache, last event %s ago", max(age, 0).Round(time.Second))
	return true
}

// live lists a source from the API server, whole or not at all.
func (c *Cache) live(ctx context.Context, s source, f *plan.Facts) {
	s.reset(f)
	delete(f.Sources, s.resource)
	p := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return s.list(ctx, c.client, o)
	})
	err := p.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		r, err := compact(o)
		if err == nil {
			s.add(f, r)
		}
		return err
	})
	if err != nil {
		s.reset(f)
		f.Missing[s.resource] = s.missing(err)
		return
	}
	f.Sources[s.resource] = "live list"
}

func (s source) missing(err error) string {
	name := s.resource
	if name == "poddisruptionbudgets" {
		name += ".policy"
	}
	if code := apierrors.ReasonForError(err); code != metav1.StatusReasonUnknown {
		return fmt.Sprintf("cannot list %s (%s)", name, code)
	}
	return fmt.Sprintf("cannot list %s: the API server does not answer", name)
}

// inform gives the running informer of a source and starts it on first use; nil while a
// watch is known to be forbidden, or when the cache is closed.
func (c *Cache) inform(s source) *informed {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for k, i := range c.informed {
		if k != s && now.Sub(i.used) > idleStop || i.ended() {
			i.stop()
			delete(c.informed, k)
		}
	}
	if c.closed || now.Before(c.denied[s]) {
		return nil
	}
	i := c.informed[s]
	if i == nil {
		i = c.start(s)
		c.informed[s] = i
	}
	i.used = now
	return i
}

func (i *informed) ended() bool {
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

func (c *Cache) start(s source) *informed {
	ctx, stop := context.WithCancel(context.Background())
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return s.list(ctx, c.client, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.watch(ctx, c.client, o)
		},
	}
	i := &informed{stop: stop, done: make(chan struct{}), heard: c.now()}
	i.informer = cache.NewSharedIndexInformer(lw, s.example(), 0, nil)
	heard := func(any) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.heard = c.now()
	}
	_ = i.informer.SetTransform(func(o any) (any, error) {
		heard(o)
		return compact(o)
	})
	_ = i.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		c.log.Debug("watch", "resource", s.resource, "namespace", s.namespace, "err", plan.Untrusted(err.Error()))
		if apierrors.IsForbidden(err) {
			c.mu.Lock()
			c.denied[s] = c.now().Add(deniedPause)
			c.mu.Unlock()
			stop() // it would ask for ever
		}
	})
	go func() {
		defer close(i.done)
		i.informer.RunWithContext(ctx)
	}()
	return i
}

// Close stops every informer and waits for them.
func (c *Cache) Close() {
	c.mu.Lock()
	all := c.informed
	c.informed, c.closed = map[source]*informed{}, true
	c.mu.Unlock()
	for _, i := range all {
		i.stop()
		<-i.done
	}
}

// list and watch are the typed calls of a source.
func (s source) list(ctx context.Context, k kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
	switch s.resource {
	case "pods":
		return k.CoreV1().Pods(s.namespace).List(ctx, o)
	case "nodes":
		return k.CoreV1().Nodes().List(ctx, o)
	}
	return k.PolicyV1().PodDisruptionBudgets(s.namespace).List(ctx, o)
}

func (s source) watch(ctx context.Context, k kubernetes.Interface, o metav1.ListOptions) (watch.Interface, error) {
	switch s.resource {
	case "pods":
		return k.CoreV1().Pods(s.namespace).Watch(ctx, o)
	case "nodes":
		return k.CoreV1().Nodes().Watch(ctx, o)
	}
	return k.PolicyV1().PodDisruptionBudgets(s.namespace).Watch(ctx, o)
}

func (s source) example() runtime.Object {
	switch s.resource {
	case "pods":
		return &corev1.Pod{}
	case "nodes":
		return &corev1.Node{}
	}
	return &policyv1.PodDisruptionBudget{}
}

func (s source) reset(f *plan.Facts) {
	switch s.resource {
	case "pods":
		f.Pods = nil
	case "nodes":
		f.Nodes = nil
	default:
		f.Budgets = nil
	}
}

func (s source) add(f *plan.Facts, o any) {
	switch r := o.(*record).facts.(type) {
	case plan.Pod:
		f.Pods = append(f.Pods, r)
	case plan.Node:
		f.Nodes = append(f.Nodes, r)
	case plan.Budget:
		f.Budgets = append(f.Budgets, r)
	}
}

// record is what the store holds in place of an API object: the facts, and what the
// informer needs to file them.
type record struct {
	metav1.ObjectMeta
	facts any // plan.Pod, plan.Node or plan.Budget
}

// compact is the transform of every informer.
func compact(o any) (any, error) {
	var facts any
	switch o := o.(type) {
	case *record:
		return o, nil
	case cache.DeletedFinalStateUnknown:
		return o, nil
	case *corev1.Pod:
		facts = PodFacts(o)
	case *corev1.Node:
		facts = nodeFacts(o)
	case *policyv1.PodDisruptionBudget:
		facts = budgetFacts(o)
	default:
		return nil, fmt.Errorf("nothing is cached of %T", o)
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	return &record{metav1.ObjectMeta{Namespace: m.GetNamespace(), Name: m.GetName(), ResourceVersion: m.GetResourceVersion()}, facts}, nil
}
