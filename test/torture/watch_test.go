package torture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// watcher has seen every version of every Deployment, Pod, Node, CronJob and Job since it
// began. It asks the API server itself, and knows nothing of the program.
type watcher struct {
	client kubernetes.Interface

	mu   sync.Mutex
	seen map[string][]version // by target, as "deployment namespace/name"
	made map[string]int       // how many Jobs were made from a target, which may be seen after them
	lost error                // the watch ended: there is no truth any more
}

// version is what an action could change of an object, at one version of it.
type version struct {
	rv            string
	replicas      int32
	restarted     string
	image         string // of the first container
	paused        bool
	suspended     bool
	made          bool // a Job was made from it
	unschedulable bool
	gone          bool // or being deleted
}

const restartedAt = "kubectl.kubernetes.io/restartedAt"

// newWatcher watches until the test ends.
func newWatcher(t *testing.T) *watcher {
	t.Helper()
	w := &watcher{client: cp.Client, seen: map[string][]version{}, made: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := w.client
	now, err := c.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}) // whatever is made from here on
	if err != nil {
		t.Fatal(err)
	}
	for _, open := range []cache.WatchFuncWithContext{
		func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return c.AppsV1().Deployments("").Watch(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return c.CoreV1().Pods("").Watch(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return c.CoreV1().Nodes().Watch(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return c.BatchV1().CronJobs("").Watch(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return c.BatchV1().Jobs("").Watch(ctx, o)
		},
	} {
		// Where the API server ends a watch, the next one carries on at the last version.
		events, err := watchtools.NewRetryWatcherWithContext(ctx, now.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: open})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for e := range events.ResultChan() {
				w.add(e)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lost = errors.New("the watch ended")
		}()
	}
	return w
}

func (w *watcher) add(e apiwatch.Event) {
	key, v, ok := see(e.Object)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !ok {
		w.lost = fmt.Errorf("the watch gave %s %T", e.Type, e.Object)
		return
	}
	v.gone = v.gone || e.Type == apiwatch.Deleted
	w.seen[key] = append(w.seen[key], v)
	if from := madeFrom(e.Object); from != "" && e.Type == apiwatch.Added {
		w.made[from]++
	}
}

func see(o runtime.Object) (key string, v version, ok bool) {
	m, ok := o.(metav1.Object)
	if !ok {
		return "", v, false
	}
	v.rv, v.gone = m.GetResourceVersion(), m.GetDeletionTimestamp() != nil
	switch o := o.(type) {
	case *appsv1.Deployment:
		key, v.replicas, v.restarted = "deployment "+o.Namespace+"/"+o.Name, *o.Spec.Replicas, o.Spec.Template.Annotations[restartedAt]
		v.image, v.paused = o.Spec.Template.Spec.Containers[0].Image, o.Spec.Paused
	case *batchv1.CronJob:
		key, v.suspended = "cronjob "+o.Namespace+"/"+o.Name, ptr.Deref(o.Spec.Suspend, false)
	case *batchv1.Job:
		key, v.suspended = "job "+o.Namespace+"/"+o.Name, ptr.Deref(o.Spec.Suspend, false)
	case *corev1.Pod:
		key = "pod " + o.Namespace + "/" + o.Name
	case *corev1.Node:
		key, v.unschedulable = "node "+o.Name, o.Spec.Unschedulable
	}
	return key, v, key != ""
}

// madeFrom is the target from which a Job was made, "" for what was made by nobody.
func madeFrom(o runtime.Object) string {
	if job, ok := o.(*batchv1.Job); ok {
		if owner := metav1.GetControllerOf(job); owner != nil {
			return "cronjob " + job.Namespace + "/" + owner.Name
		}
	}
	return ""
}

// versions are all versions that a target has had, the present one among them.
func (w *watcher) versions(t testing.TB, ns, kind, name string) (out []version) {
	t.Helper()
	key := kind + " " + ns + "/" + name
	if kind == "node" {
		key = "node " + name
	}
	lab.Eventually(t, "the watch of "+key+" to catch up", func() (bool, error) {
		if kind == "cronjob" { // what was made from it comes by another watch
			jobs, err := w.client.BatchV1().Jobs(ns).List(context.Background(), metav1.ListOptions{})
			if err != nil || !w.hasSeen(jobs.Items) {
				return false, err
			}
		}
		live, err := w.live(ns, kind, name)
		if err != nil && !apierrors.IsNotFound(err) {
			return false, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.lost != nil {
			t.Fatal(w.lost)
		}
		all := w.seen[key]
		if len(all) == 0 {
			return false, nil
		}
		last := all[len(all)-1]
		out = append([]version(nil), all...)
		for range w.made[key] {
			making := last
			making.made = true
			out = append(out, making, last)
		}
		if err != nil {
			return last.gone, nil
		}
		older, err := resourceversion.CompareResourceVersion(last.rv, live)
		return older >= 0, err
	})
	return out
}

func (w *watcher) hasSeen(jobs []batchv1.Job) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(jobs, func(j batchv1.Job) bool { return w.seen["job "+j.Namespace+"/"+j.Name] == nil })
}

// live is the version of a target as it is now, of a read that no cache answers.
func (w *watcher) live(ns, kind, name string) (rv string, err error) {
	var o metav1.Object
	ctx := context.Background()
	switch kind {
	case "deployment":
		o, err = w.client.AppsV1().Deployments(ns).Get(ctx, name, metav1.GetOptions{})
	case "cronjob":
		o, err = w.client.BatchV1().CronJobs(ns).Get(ctx, name, metav1.GetOptions{})
	case "job":
		o, err = w.client.BatchV1().Jobs(ns).Get(ctx, name, metav1.GetOptions{})
	case "pod":
		o, err = w.client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
	default:
		o, err = w.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	}
	if err != nil {
		return "", err
	}
	return o.GetResourceVersion(), nil
}

// effects counts how often a target has become what an action makes of it.
func effects(is func(version) bool, all []version) (n int) {
	for i := 1; i < len(all); i++ {
		if is(all[i]) && !is(all[i-1]) {
			n++
		}
	}
	return n
}
