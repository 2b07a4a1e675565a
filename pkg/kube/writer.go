package kube

import (
	"context"
	"fmt"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// FieldManager is the prefix of every write's field manager; the plan id follows it.
const FieldManager = "kube-write-mcp:"

// Writer turns Steps into typed calls. Its client is its own: nothing else can write
// with it. The dry one and the live one differ in dryRun and in nothing else.
type Writer struct {
	mode   Mode
	client kubernetes.Interface
}

// Answer is what the API server said to one request.
type Answer struct {
	Class    Class
	Code     int         // HTTP status, 0 where there was none
	Object   plan.Object // what came back, without its managed fields: the object, or its Scale; nil for deletes and evictions
	Warnings []string    // untrusted text, as it came
}

// Send makes exactly one request for a Step and says what became of it. The error is
// the API server's or the transport's own. A request that has not left before notAfter,
// since a connection takes its time, does not leave at all; the zero time is no limit.
func (w *Writer) Send(ctx context.Context, planID, auditID string, s plan.Step, sl plan.Slots, notAfter time.Time) (Answer, error) {
	t, err := typedFor(s.Subject().Resource)
	if err != nil {
		return Answer{Class: NotApplied}, err
	}
	sl.DryRun = w.mode == Planning
	var sent atomic.Bool
	seen := &warned{}
	ctx = withPermit(ctx, &permit{mode: w.mode, auditID: auditID, replicas: s.Replicas})
	ctx = context.WithValue(ctx, warnedKey{}, seen)
	if !notAfter.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(time.Until(notAfter), func() {
			if !sent.Load() {
				cancel()
			}
		}).Stop()
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	var ans Answer
	ans.Object, err = w.call(ctx, t, FieldManager+planID, s, sl)
	ans.Class, ans.Code = Classify(err, sent.Load())
	ans.Warnings = seen.list()
	return ans, err
}

func (w *Writer) call(ctx context.Context, k typed, manager string, s plan.Step, sl plan.Slots) (plan.Object, error) {
	t := s.Subject()
	var dry []string
	if sl.DryRun {
		dry = []string{metav1.DryRunAll}
	}
	switch s.Verb {
	case plan.Patch:
		body, err := s.JSONPatch(sl)
		if err != nil {
			return nil, err
		}
		return k.patch(ctx, w.client, t, body, metav1.PatchOptions{
			DryRun: dry, FieldManager: manager, FieldValidation: metav1.FieldValidationStrict,
		})
	case plan.Scale:
		if k.scale == nil {
			return nil, fmt.Errorf("%s have no scale subresource", t.Resource)
		}
		return objectOf(k.scale(w.client, t.Namespace).UpdateScale(ctx, t.Name, &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{
				Name: t.Name, Namespace: t.Namespace, UID: types.UID(t.UID), ResourceVersion: sl.ResourceVersion,
			},
			Spec: autoscalingv1.ScaleSpec{Replicas: *s.Replicas},
		}, metav1.UpdateOptions{DryRun: dry, FieldManager: manager, FieldValidation: metav1.FieldValidationStrict}))
	case plan.Create:
		if s.ObjectHash != "" {
			return nil, fmt.Errorf("%s is a record: it does not have what would be sent", s.Key())
		}
		return k.create(ctx, w.client, t, s.Object, metav1.CreateOptions{
			DryRun: dry, FieldManager: manager, FieldValidation: metav1.FieldValidationStrict,
		})
	case plan.Evict:
		return nil, w.client.CoreV1().Pods(t.Namespace).EvictV1(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Name: t.Name, Namespace: t.Namespace},
			DeleteOptions: deleteOptions(s, dry),
		})
	case plan.Delete:
		return nil, k.delete(ctx, w.client, t, *deleteOptions(s, dry))
	}
	return nil, fmt.Errorf("no typed call for %q", s.Verb)
}

// deleteOptions always carries the uid: metadata.uid of an eviction is ignored by the
// server, only this precondition protects a successor of the same name.
func deleteOptions(s plan.Step, dry []string) *metav1.DeleteOptions {
	background, uid := metav1.DeletePropagationBackground, types.UID(s.Target.UID)
	return &metav1.DeleteOptions{
		TypeMeta:           metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"},
		DryRun:             dry,
		GracePeriodSeconds: s.Grace,
		PropagationPolicy:  &background,
		Preconditions:      &metav1.Preconditions{UID: &uid},
	}
}

// warned collects the API server's warnings of one request.
type warned struct {
	mu    sync.Mutex
	texts []string
}

func (w *warned) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.texts
}

type (
	warnedKey struct{}
	warnings  struct{}
)

// HandleWarningHeaderWithContext keeps a warning for the call that caused it.
func (warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	w, ok := ctx.Value(warnedKey{}).(*warned)
	if !ok || code != 299 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}
