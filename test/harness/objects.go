package harness

import (
	"context"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/test/lab"
)

// Object is something that Create makes.
type Object interface {
	create(ctx context.Context, c kubernetes.Interface, namespace string) error
}

// Create makes objects, in their order, and fails the test where one cannot be made.
func Create(t testing.TB, l *lab.Lab, namespace string, objects ...Object) {
	t.Helper()
	for _, o := range objects {
		if err := o.create(t.Context(), l.Client, namespace); err != nil {
			t.Fatal(err)
		}
	}
}

// Template is a pod template with one container and the label app. Its pods end at once
// when they are deleted, since no kubelet runs them.
func Template(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To(int64(0)),
			Containers:                    []corev1.Container{{Name: "main", Image: "main"}},
		},
	}
}

// Selector is the selector of what Template makes.
func Selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// Workload builds a Deployment, StatefulSet, DaemonSet or ReplicaSet.
type Workload[T metav1.Object] struct {
	Object T
	kind   workload
	ready  *int32
}

// workload is one object that makes pods, with its type erased.
type workload struct {
	metav1.Object
	gvk      schema.GroupVersionKind
	replicas *int32 // where the spec has it
	template *corev1.PodTemplateSpec
	create   func(context.Context, kubernetes.Interface, string) (metav1.Object, error)
	// settle writes a status of so many ready pods to the live object. It reports false
	// where the status was so already.
	settle func(context.Context, kubernetes.Interface, string, *int32) (bool, error)
}

// Deployment builds a Deployment of one replica.
func Deployment(name string) *Workload[*appsv1.Deployment] {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To(int32(1)), Selector: Selector(name), Template: Template(name)},
	}
	return &Workload[*appsv1.Deployment]{Object: d, kind: deployment(d)}
}

func deployment(d *appsv1.Deployment) workload {
	return workload{
		Object: d, gvk: appsv1.SchemeGroupVersion.WithKind("Deployment"), replicas: d.Spec.Replicas, template: &d.Spec.Template,
		create: func(ctx context.Context, c kubernetes.Interface, ns string) (metav1.Object, error) {
			return c.AppsV1().Deployments(ns).Create(ctx, d, metav1.CreateOptions{})
		},
		settle: func(ctx context.Context, c kubernetes.Interface, ns string, ready *int32) (bool, error) {
			live, err := c.AppsV1().Deployments(ns).Get(ctx, d.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			n, st := *live.Spec.Replicas, &live.Status
			was, r := *st, ptr.Deref(ready, n)
			st.ObservedGeneration, st.Replicas, st.UpdatedReplicas = live.Generation, n, n
			st.ReadyReplicas, st.AvailableReplicas, st.UnavailableReplicas = r, r, n-r
			if was.ObservedGeneration == st.ObservedGeneration && was.ReadyReplicas == r && was.Replicas == n {
				return false, nil
			}
			_, err = c.AppsV1().Deployments(ns).UpdateStatus(ctx, live, metav1.UpdateOptions{})
			return true, err
		},
	}
}

// StatefulSet builds a StatefulSet of one replica.
func StatefulSet(name string) *Workload[*appsv1.StatefulSet] {
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.StatefulSetSpec{Replicas: ptr.To(int32(1)), Selector: Selector(name), Template: Template(name), ServiceName: name},
	}
	return &Workload[*appsv1.StatefulSet]{Object: s, kind: statefulSet(s)}
}

func statefulSet(s *appsv1.StatefulSet) workload {
	return workload{
		Object: s, gvk: appsv1.SchemeGroupVersion.WithKind("StatefulSet"), replicas: s.Spec.Replicas, template: &s.Spec.Template,
		create: func(ctx context.Context, c kubernetes.Interface, ns string) (metav1.Object, error) {
			return c.AppsV1().StatefulSets(ns).Create(ctx, s, metav1.CreateOptions{})
		},
		settle: func(ctx context.Context, c kubernetes.Interface, ns string, ready *int32) (bool, error) {
			live, err := c.AppsV1().StatefulSets(ns).Get(ctx, s.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			n, st := *live.Spec.Replicas, &live.Status
			was, r := *st, ptr.Deref(ready, n)
			st.ObservedGeneration, st.Replicas, st.CurrentReplicas, st.UpdatedReplicas = live.Generation, n, n, n
			st.ReadyReplicas, st.AvailableReplicas = r, r
			st.CurrentRevision, st.UpdateRevision = s.Name+"-"+hash, s.Name+"-"+hash
			if was.ObservedGeneration == st.ObservedGeneration && was.ReadyReplicas == r && was.Replicas == n {
				return false, nil
			}
			_, err = c.AppsV1().StatefulSets(ns).UpdateStatus(ctx, live, metav1.UpdateOptions{})
			return true, err
		},
	}
}

// DaemonSet builds a DaemonSet; Replicas says on how many nodes its pods are counted.
func DaemonSet(name string) *Workload[*appsv1.DaemonSet] {
	d := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DaemonSetSpec{Selector: Selector(name), Template: Template(name)},
	}
	return &Workload[*appsv1.DaemonSet]{Object: d, kind: daemonSet(d)}
}

func daemonSet(d *appsv1.DaemonSet) workload {
	return workload{
		Object: d, gvk: appsv1.SchemeGroupVersion.WithKind("DaemonSet"), template: &d.Spec.Template,
		create: func(ctx context.Context, c kubernetes.Interface, ns string) (metav1.Object, error) {
			return c.AppsV1().DaemonSets(ns).Create(ctx, d, metav1.CreateOptions{})
		},
		settle: func(ctx context.Context, c kubernetes.Interface, ns string, ready *int32) (bool, error) {
			live, err := c.AppsV1().DaemonSets(ns).Get(ctx, d.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			st := &live.Status
			was, r := *st, ptr.Deref(ready, st.DesiredNumberScheduled)
			n := max(r, st.DesiredNumberScheduled)
			st.ObservedGeneration, st.DesiredNumberScheduled, st.CurrentNumberScheduled, st.UpdatedNumberScheduled = live.Generation, n, n, n
			st.NumberReady, st.NumberAvailable = r, r
			if was.ObservedGeneration == st.ObservedGeneration && was.NumberReady == r {
				return false, nil
			}
			_, err = c.AppsV1().DaemonSets(ns).UpdateStatus(ctx, live, metav1.UpdateOptions{})
			return true, err
		},
	}
}

// ReplicaSet builds a ReplicaSet of one replica that no Deployment owns.
func ReplicaSet(name string) *Workload[*appsv1.ReplicaSet] {
	r := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(1)), Selector: Selector(name), Template: Template(name)},
	}
	return &Workload[*appsv1.ReplicaSet]{Object: r, kind: replicaSet(r)}
}

func replicaSet(rs *appsv1.ReplicaSet) workload {
	return workload{
		Object: rs, gvk: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), replicas: rs.Spec.Replicas, template: &rs.Spec.Template,
		create: func(ctx context.Context, c kubernetes.Interface, ns string) (metav1.Object, error) {
			return c.AppsV1().ReplicaSets(ns).Create(ctx, rs, metav1.CreateOptions{})
		},
		settle: func(ctx context.Context, c kubernetes.Interface, ns string, ready *int32) (bool, error) {
			live, err := c.AppsV1().ReplicaSets(ns).Get(ctx, rs.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			n, st := *live.Spec.Replicas, &live.Status
			was, r := *st, ptr.Deref(ready, n)
			st.ObservedGeneration, st.Replicas, st.FullyLabeledReplicas = live.Generation, n, n
			st.ReadyReplicas, st.AvailableReplicas = r, r
			if was.ObservedGeneration == st.ObservedGeneration && was.ReadyReplicas == r && was.Replicas == n {
				return false, nil
			}
			_, err = c.AppsV1().ReplicaSets(ns).UpdateStatus(ctx, live, metav1.UpdateOptions{})
			return true, err
		},
	}
}

// Replicas sets spec.replicas; of a DaemonSet it does nothing.
func (w *Workload[T]) Replicas(n int32) *Workload[T] {
	if w.kind.replicas != nil {
		*w.kind.replicas = n
	}
	return w
}

// Ready makes the pods of a workload, the first n of them ready, and a status that says
// so, as the controllers would. Leave it out where controllers run.
func (w *Workload[T]) Ready(n int32) *Workload[T] {
	w.ready = &n
	return w
}

// With changes the object before it is made. It must not replace what it points to.
func (w *Workload[T]) With(change func(T)) *Workload[T] {
	change(w.Object)
	return w
}

// Pods changes the pod template.
func (w *Workload[T]) Pods(change func(*corev1.PodTemplateSpec)) *Workload[T] {
	change(w.kind.template)
	return w
}

func (w *Workload[T]) create(ctx context.Context, c kubernetes.Interface, ns string) error {
	live, err := w.kind.create(ctx, c, ns)
	if err != nil || w.ready == nil {
		return err
	}
	if err := w.kind.pods(ctx, c, ns, live, ptr.Deref(w.kind.replicas, *w.ready), *w.ready); err != nil {
		return err
	}
	_, err = w.kind.settle(ctx, c, ns, w.ready)
	return err
}

// hash is every pod-template-hash.
const hash = "5d4f8c7b9"

// pods makes n pods of a workload, some of them ready, and ends those beyond.
func (w workload) pods(ctx context.Context, c kubernetes.Interface, ns string, live metav1.Object, n, ready int32) error {
	owner, prefix := *metav1.NewControllerRef(live, w.gvk), live.GetName()
	if w.gvk.Kind == "Deployment" {
		rs := ReplicaSet(live.GetName() + "-" + hash).Replicas(n).With(func(rs *appsv1.ReplicaSet) {
			rs.Spec.Template = *w.template.DeepCopy()
			rs.Spec.Template.Labels["pod-template-hash"] = hash
			rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"pod-template-hash": hash, "app": w.template.Labels["app"]}}
			rs.Labels, rs.OwnerReferences = rs.Spec.Template.Labels, []metav1.OwnerReference{owner}
		})
		made, err := c.AppsV1().ReplicaSets(ns).Create(ctx, rs.Object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			made, err = c.AppsV1().ReplicaSets(ns).Get(ctx, rs.Object.Name, metav1.GetOptions{})
		}
		if err != nil {
			return err
		}
		owner, prefix = *metav1.NewControllerRef(made, appsv1.SchemeGroupVersion.WithKind("ReplicaSet")), made.Name
	}
	have := map[string]bool{}
	list, err := c.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range list.Items {
		ref := metav1.GetControllerOf(&p)
		if ref == nil || ref.UID != owner.UID || p.DeletionTimestamp != nil {
			continue
		}
		if have[p.Name] = true; slices.Index(names(prefix, n), p.Name) < 0 {
			err := c.CoreV1().Pods(ns).Delete(ctx, p.Name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	for i, name := range names(prefix, n) {
		if have[name] {
			continue
		}
		b := Pod(name).With(func(p *corev1.Pod) {
			p.Labels, p.Annotations, p.Spec = map[string]string{}, w.template.Annotations, *w.template.Spec.DeepCopy()
			for k, v := range w.template.Labels {
				p.Labels[k] = v
			}
			if w.gvk.Kind == "Deployment" {
				p.Labels["pod-template-hash"] = hash
			}
			p.OwnerReferences = []metav1.OwnerReference{owner}
		})
		if b.ready = int32(i) < ready; !b.ready {
			b.phase = corev1.PodPending
		}
		if err := b.create(ctx, c, ns); err != nil {
			return err
		}
	}
	return nil
}

func names(prefix string, n int32) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s-%d", prefix, i))
	}
	return out
}

// PodName is the name of the i-th pod that Ready makes of a Deployment; those of the
// other kinds are called <name>-<i>.
func PodName(deployment string, i int) string { return fmt.Sprintf("%s-%s-%d", deployment, hash, i) }

// PodBuilder builds a Pod.
type PodBuilder struct {
	Object *corev1.Pod
	ready  bool
	phase  corev1.PodPhase
}

// Pod builds a running, ready pod that no controller owns.
func Pod(name string) *PodBuilder {
	tpl := Template(name)
	return &PodBuilder{
		Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: tpl.Labels}, Spec: tpl.Spec},
		ready:  true, phase: corev1.PodRunning,
	}
}

// On places the pod on a node.
func (b *PodBuilder) On(node string) *PodBuilder {
	b.Object.Spec.NodeName = node
	return b
}

// Phase sets status.phase; a pod that is not running is not ready.
func (b *PodBuilder) Phase(p corev1.PodPhase) *PodBuilder {
	b.phase, b.ready = p, p == corev1.PodRunning
	return b
}

// With changes the object before it is made.
func (b *PodBuilder) With(change func(*corev1.Pod)) *PodBuilder {
	change(b.Object)
	return b
}

func (b *PodBuilder) create(ctx context.Context, c kubernetes.Interface, ns string) error {
	p, err := c.CoreV1().Pods(ns).Create(ctx, b.Object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	p.Status.Phase = b.phase
	status := corev1.ConditionFalse
	if b.ready {
		status = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	_, err = c.CoreV1().Pods(ns).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}

// BudgetBuilder builds a PodDisruptionBudget.
type BudgetBuilder struct {
	Object *policyv1.PodDisruptionBudget
	status *policyv1.PodDisruptionBudgetStatus
}

// Budget builds a disruption budget over the pods with the label app, of which at most
// one may be unavailable.
func Budget(app string) *BudgetBuilder {
	return &BudgetBuilder{Object: &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: Selector(app)},
	}}
}

// MaxUnavailable sets how many pods may be unavailable.
func (b *BudgetBuilder) MaxUnavailable(n int32) *BudgetBuilder {
	b.Object.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(n))
	return b
}

// Allows sets the status: how many disruptions are allowed of so many healthy pods.
// Leave it out where controllers run.
func (b *BudgetBuilder) Allows(allowed, healthy int32) *BudgetBuilder {
	b.status = &policyv1.PodDisruptionBudgetStatus{
		DisruptionsAllowed: allowed, CurrentHealthy: healthy, DesiredHealthy: healthy - allowed, ExpectedPods: healthy,
	}
	return b
}

func (b *BudgetBuilder) create(ctx context.Context, c kubernetes.Interface, ns string) error {
	live, err := c.PolicyV1().PodDisruptionBudgets(ns).Create(ctx, b.Object, metav1.CreateOptions{})
	if err != nil || b.status == nil {
		return err
	}
	live.Status = *b.status
	live.Status.ObservedGeneration = live.Generation
	_, err = c.PolicyV1().PodDisruptionBudgets(ns).UpdateStatus(ctx, live, metav1.UpdateOptions{})
	return err
}

// NodeBuilder builds a Node.
type NodeBuilder struct {
	Object *corev1.Node
	ready  bool
}

// Node builds a node with the label pool=lab, which the harness allows.
func Node(name string) *NodeBuilder {
	return &NodeBuilder{Object: &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "pool": "lab"}},
	}}
}

// Ready makes the node ready and takes its taints away. Leave it out where controllers
// run.
func (b *NodeBuilder) Ready() *NodeBuilder {
	b.ready = true
	return b
}

// With changes the object before it is made.
func (b *NodeBuilder) With(change func(*corev1.Node)) *NodeBuilder {
	change(b.Object)
	return b
}

func (b *NodeBuilder) create(ctx context.Context, c kubernetes.Interface, _ string) error {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	b.Object.Status.Allocatable, b.Object.Status.Capacity = room, room
	taints := b.Object.Spec.Taints
	live, err := c.CoreV1().Nodes().Create(ctx, b.Object, metav1.CreateOptions{})
	if err != nil || !b.ready {
		return err
	}
	live.Spec.Taints = taints // admission adds not-ready
	if live, err = c.CoreV1().Nodes().Update(ctx, live, metav1.UpdateOptions{}); err != nil {
		return err
	}
	live.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	_, err = c.CoreV1().Nodes().UpdateStatus(ctx, live, metav1.UpdateOptions{})
	return err
}

// Converge plays the controllers of one namespace until the test ends: every change of a
// Deployment, StatefulSet or ReplicaSet is observed at once, its pods are made or ended,
// and all of them are ready.
func Converge(t testing.TB, l *lab.Lab, namespace string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	apps := l.Client.AppsV1()
	follow := func(of func(any) (workload, bool), events <-chan any, done chan<- struct{}) {
		defer close(done)
		for e := range events {
			w, ok := of(e)
			if !ok || w.GetDeletionTimestamp() != nil {
				continue
			}
			err := retry.OnError(retry.DefaultBackoff, func(err error) bool { return ctx.Err() == nil }, func() error {
				if err := w.pods(ctx, l.Client, namespace, w.Object, *w.replicas, *w.replicas); err != nil {
					return err
				}
				_, err := w.settle(ctx, l.Client, namespace, nil)
				return err
			})
			if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
				t.Errorf("playing the controller of %s: %v", w.GetName(), err)
			}
		}
	}
	var ended []chan struct{}
	track := func(of func(any) (workload, bool), start func() (<-chan any, error)) {
		events, err := start()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		ended = append(ended, done)
		go follow(of, events, done)
	}
	track(func(o any) (w workload, ok bool) {
		d, ok := o.(*appsv1.Deployment)
		if ok {
			w = deployment(d)
		}
		return w, ok
	}, func() (<-chan any, error) {
		w, err := apps.Deployments(namespace).Watch(ctx, metav1.ListOptions{})
		return objects(w, err)
	})
	track(func(o any) (w workload, ok bool) {
		s, ok := o.(*appsv1.StatefulSet)
		if ok {
			w = statefulSet(s)
		}
		return w, ok
	}, func() (<-chan any, error) {
		w, err := apps.StatefulSets(namespace).Watch(ctx, metav1.ListOptions{})
		return objects(w, err)
	})
	track(func(o any) (w workload, ok bool) {
		rs, ok := o.(*appsv1.ReplicaSet)
		if ok = ok && metav1.GetControllerOf(rs) == nil; ok {
			w = replicaSet(rs)
		}
		return w, ok
	}, func() (<-chan any, error) {
		w, err := apps.ReplicaSets(namespace).Watch(ctx, metav1.ListOptions{})
		return objects(w, err)
	})
	t.Cleanup(func() {
		cancel()
		for _, done := range ended {
			<-done
		}
	})
}

// objects gives the objects of a watch that were added or changed, until it ends.
func objects(w watch.Interface, err error) (<-chan any, error) {
	if err != nil {
		return nil, err
	}
	out := make(chan any)
	go func() {
		defer close(out)
		for e := range w.ResultChan() {
			if e.Type == watch.Added || e.Type == watch.Modified {
				out <- e.Object
			}
		}
	}()
	return out, nil
}

// Web makes a namespace with the Deployment web of two ready pods, and gives the arguments
// that name it.
func Web(t testing.TB, l *lab.Lab) (ns string, web Args) {
	t.Helper()
	ns = l.Namespace(t)
	Create(t, l, ns, Deployment("web").Replicas(2).Ready(2))
	return ns, Of(ns, "deployment", "web")
}

// WebScale makes the same, and gives the call that scales it to three.
func WebScale(t testing.TB, l *lab.Lab) (ns string, scale Args) {
	t.Helper()
	ns, web := Web(t, l)
	return ns, web.With("replicas", 3)
}

// Replicas are how many a Deployment wants.
func Replicas(t testing.TB, l *lab.Lab, ns, name string) int32 {
	t.Helper()
	d, err := l.Client.AppsV1().Deployments(ns).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return *d.Spec.Replicas
}
