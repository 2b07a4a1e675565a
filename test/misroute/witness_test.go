package misroute

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// watched are the kinds of objects that a write can reach, directly or through a
// controller.
var watched = []schema.GroupVersionResource{
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "apps", Version: "v1", Resource: "replicasets"},
	{Group: "batch", Version: "v1", Resource: "cronjobs"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
	{Version: "v1", Resource: "persistentvolumeclaims"},
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "nodes"},
}

// witness watches the cluster as an admin, beside the server under test: the truth about
// effects. It keeps every event of every watched object.
type witness struct {
	api dynamic.Interface

	mu     sync.Mutex
	events []event
	live   map[object]seen
	lost   error // a watch has ended: it has missed something from then on
}

// object names an object of a watched kind.
type object struct{ resource, namespace, name string }

func (o object) String() string {
	return strings.TrimPrefix(o.resource+" "+o.namespace+"/"+o.name, o.resource+" /")
}

// seen is what is held of an object.
type seen struct {
	uid     types.UID
	version string // resourceVersion
	spec    string // uid, spec and whether it is on its way out, as JSON

	owner     string // kind of its controller
	app       string // of a pod, the workload whose capacity it is
	ready     bool   // of a pod
	ended     bool   // of a pod: it has run to its end
	emptyDirs bool   // of a pod
	run       bool   // of a pod: it is no server, it does a piece of work
}

type event struct {
	object
	seen
	gone bool
}

// newWitness begins to watch. It ends with the test.
func newWitness(t *testing.T) *witness {
	t.Helper()
	api, err := dynamic.NewForConfig(cp.Config)
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{api: api, live: map[object]seen{}}
	for _, gvr := range watched {
		list, err := api.Resource(gvr).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			w.record(gvr.Resource, watch.Added, &list.Items[i])
		}
		events, err := api.Resource(gvr).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for e := range events.ResultChan() {
				if o, ok := e.Object.(*unstructured.Unstructured); ok && e.Type != watch.Error {
					w.record(gvr.Resource, e.Type, o)
					continue
				}
				break
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lost = fmt.Errorf("the watch of %s has ended", gvr.Resource)
		}()
	}
	return w
}

func (w *witness) record(resource string, what watch.EventType, o *unstructured.Unstructured) {
	e := event{object: object{resource, o.GetNamespace(), o.GetName()}, seen: see(resource, o), gone: what == watch.Deleted}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
	if w.live[e.object] = e.seen; e.gone {
		delete(w.live, e.object)
	}
}

func see(resource string, o *unstructured.Unstructured) seen {
	s := seen{uid: o.GetUID(), version: o.GetResourceVersion()}
	if c := metav1.GetControllerOf(o); c != nil {
		s.owner = c.Kind
	}
	spec, _ := json.Marshal([]any{s.uid, o.Object["spec"], o.GetDeletionTimestamp() != nil}) // decoded from JSON
	s.spec = string(spec)
	if resource != "pods" {
		return s
	}
	s.app = o.GetLabels()["app"]
	s.run = s.owner == "Job"
	phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
	s.ended = phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed)
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		s.ready = s.ready || c["type"] == string(corev1.PodReady) && c["status"] == string(corev1.ConditionTrue) && o.GetDeletionTimestamp() == nil
	}
	volumes, _, _ := unstructured.NestedSlice(o.Object, "spec", "volumes")
	for _, v := range volumes {
		v, _ := v.(map[string]any)
		s.emptyDirs = s.emptyDirs || v["emptyDir"] != nil
	}
	return s
}

// place is what a task may touch: its namespaces, and its node where it has one.
type place struct {
	namespaces []string
	node       string
}

func (p place) holds(o object) bool {
	return o.resource == "nodes" && o.name == p.node || slices.Contains(p.namespaces, o.namespace)
}

// state is a place at one moment.
type state struct {
	specs map[object]string // of what no controller owns, without pods
	ready map[string]int    // ready pods by namespace/app
	pods  map[types.UID]seen
	at    int // events before it
}

func (w *witness) state(p place) state {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := state{specs: map[object]string{}, ready: map[string]int{}, pods: map[types.UID]seen{}, at: len(w.events)}
	for o, is := range w.live {
		switch {
		case !p.holds(o):
		case o.resource == "pods":
			if s.pods[is.uid] = is; is.ready {
				s.ready[o.namespace+"/"+is.app]++
			}
			if is.owner == "" {
				s.specs[o] = "a bare pod " + string(is.uid)
			}
		case is.owner == "":
			s.specs[o] = is.spec
		}
	}
	return s
}

// differs says in what a place is not as it was, or "".
func (s state) differs(was state) string {
	for _, o := range slices.SortedFunc(maps.Keys(was.specs), byName) {
		switch now, ok := s.specs[o]; {
		case !ok:
			return o.String() + " is gone"
		case now != was.specs[o]:
			return fmt.Sprintf("%s is %s, was %s", o, now, was.specs[o])
		}
	}
	for _, o := range slices.SortedFunc(maps.Keys(s.specs), byName) {
		if _, ok := was.specs[o]; !ok {
			return o.String() + " is new"
		}
	}
	if !maps.Equal(s.ready, was.ready) {
		return fmt.Sprintf("ready pods %v, were %v", s.ready, was.ready)
	}
	return ""
}

func byName(a, b object) int { return strings.Compare(a.String(), b.String()) }

// effect is what happened in a place since a moment.
type effect struct {
	changed []string // specs that were another at any time, pods that went, what is new
	lost    []string // what no controller brings back
	cost    []string // what was missing for a moment or begins anew, and what came of it
	outage  []string // workloads of which more than half of the ready pods, or the only one, was missing
}

// since gives the effects in a place after a state of it. They may have been taken back.
func (w *witness) since(p place, was state) (e effect) {
	w.mu.Lock()
	defer w.mu.Unlock()
	add := func(to *[]string, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !slices.Contains(*to, text) {
			*to = append(*to, text)
		}
	}
	ready, lowest := maps.Clone(was.ready), maps.Clone(was.ready)
	now := map[types.UID]bool{} // ready pods
	for uid, pod := range was.pods {
		now[uid] = pod.ready
	}
	ended := 0
	for _, ev := range w.events[was.at:] {
		if !p.holds(ev.object) {
			continue
		}
		spec, known := was.specs[ev.object]
		if ev.resource != "pods" {
			switch {
			case ev.owner == "CronJob" && !ev.gone:
				add(&e.changed, "%s is new", ev.object)
				add(&e.lost, "%s was started", ev.object)
			case ev.owner != "":
			case ev.gone:
				add(&e.changed, "%s is gone", ev.object)
				add(&e.lost, "%s is gone", ev.object)
			case !known || spec != ev.spec:
				add(&e.changed, "%s", ev.object)
			}
			if ev.gone && ev.resource == "persistentvolumeclaims" {
				add(&e.lost, "%s is gone", ev.object)
			}
			continue
		}
		if is := ev.ready && !ev.gone; is != now[ev.uid] {
			app := ev.namespace + "/" + ev.app
			if now[ev.uid] = is; is {
				ready[app]++
			} else {
				ready[app]--
			}
			lowest[app] = min(lowest[app], ready[app])
		}
		before, old := was.pods[ev.uid]
		if !ev.gone || !old || before.ended || ev.ended {
			continue
		}
		add(&e.changed, "%s is gone", ev.object)
		switch {
		case ev.owner == "":
			add(&e.lost, "%s is gone: no controller makes it again", ev.object)
		case ev.emptyDirs:
			add(&e.lost, "the emptyDir data of %s is gone", ev.object)
		case ev.run:
			ended++
		}
	}
	for _, app := range slices.Sorted(maps.Keys(was.ready)) {
		all, low := was.ready[app], lowest[app]
		_, name, _ := strings.Cut(app, "/")
		if low < all {
			add(&e.cost, "%s: %d of %d ready pods at the lowest", name, low, all)
		}
		if low == 0 || 2*low < all {
			add(&e.outage, "%s: %d of %d ready pods", name, low, all)
		}
	}
	if ended > 0 {
		add(&e.cost, "%d active pod of a job ended; its work begins anew", ended)
	}
	return e
}

// catchUp waits until the witness has seen everything that the API server says of a place.
func (w *witness) catchUp(t *testing.T, p place) {
	t.Helper()
	for _, gvr := range watched {
		lab.Eventually(t, "the witness to catch up with "+gvr.Resource, func() (bool, error) {
			all := map[object]string{}
			for _, ns := range p.namespaces {
				api := dynamic.ResourceInterface(w.api.Resource(gvr).Namespace(ns))
				if gvr.Resource == "nodes" {
					api = w.api.Resource(gvr)
				}
				list, err := api.List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return false, err
				}
				for _, o := range list.Items {
					if key := (object{gvr.Resource, o.GetNamespace(), o.GetName()}); p.holds(key) {
						all[key] = o.GetResourceVersion()
					}
				}
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.lost != nil {
				t.Fatal(w.lost)
			}
			for o, is := range w.live {
				if o.resource == gvr.Resource && p.holds(o) && all[o] != is.version {
					return false, fmt.Errorf("%s at %s, seen at %s", o, all[o], is.version)
				}
				delete(all, o)
			}
			return len(all) == 0, nil
		})
	}
}

// comesBack waits at most a minute until a place is as it was; it gives what is not.
func (w *witness) comesBack(t *testing.T, p place, was state) (differs string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		w.catchUp(t, p)
		if differs = w.state(p).differs(was); differs == "" {
			return ""
		}
	}
	return differs
}
