package kube

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

func TestPool(t *testing.T) {
	pod := func(n int, labels map[string]string) *corev1.Pod {
		return onePod(func(p *corev1.Pod) {
			p.Name, p.Labels = fmt.Sprintf("web-5f7-%d", n), labels
			p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		})
	}
	pooled := func(p *pool, o *corev1.Pod) plan.Pod {
		got, err := p.compact(o)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := p.compact(got); err != nil || again != got {
			t.Errorf("its own record came back as %v (%v)", again, err)
		}
		facts := got.(*record).facts.(plan.Pod)
		if diff := cmp.Diff(PodFacts(o), facts); diff != "" {
			t.Errorf("(-alone +pooled):\n%s", diff)
		}
		return facts
	}
	same := func(a, b plan.Pod) bool {
		return reflect.ValueOf(a.Labels).Pointer() == reflect.ValueOf(b.Labels).Pointer()
	}
	p := new(pool)
	first := pooled(p, pod(1, map[string]string{"app": "web", "tier": "front"}))
	if !same(first, pooled(p, pod(2, map[string]string{"tier": "front", "app": "web"}))) {
		t.Error("equal labels are held twice")
	}
	for name, labels := range map[string]map[string]string{
		"another value": {"app": "web", "tier": "back"}, "fewer": {"app": "web"}, "none": nil, "empty": {},
	} {
		if same(first, pooled(p, pod(3, labels))) {
			t.Errorf("%s: other labels are taken for the same", name)
		}
	}
	for n := range maxPooled + 100 {
		p.text(fmt.Sprint(n))
	}
	if same(first, pooled(p, pod(4, map[string]string{"app": "web", "tier": "front"}))) || len(p.texts) > 100 {
		t.Errorf("the pool grows without bound: %d texts", len(p.texts))
	}
}
