package blast

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

func TestPodSecurity(t *testing.T) {
	const enforce = "pod-security.kubernetes.io/enforce"
	plain := func(*corev1.PodSpec) {}
	hostNetwork := func(s *corev1.PodSpec) { s.HostNetwork = true }
	restart := func(w *world, d *appsv1.Deployment) { w.restart(w.live("deployments", d)) }
	scaleTo := func(n int32) func(*world, *appsv1.Deployment) {
		return func(w *world, d *appsv1.Deployment) { w.scale(w.live("deployments", d), n) }
	}
	baseline := map[string]string{enforce: "baseline"}
	refused := []string{"pod security baseline of namespace default refuses new pods, unless exempt: host namespaces"}
	for name, tc := range map[string]struct {
		labels map[string]string
		pod    func(*corev1.PodSpec)
		step   func(*world, *appsv1.Deployment)
		want   []string
	}{
		"a restart":           {baseline, hostNetwork, restart, refused},
		"a scale-up":          {baseline, hostNetwork, scaleTo(4), refused},
		"a scale-down":        {baseline, hostNetwork, scaleTo(2), nil},
		"a template that may": {baseline, plain, restart, nil},
		"no label":            {nil, hostNetwork, restart, nil},
		"privileged":          {map[string]string{enforce: "privileged"}, hostNetwork, restart, nil},
		"a warning only":      {map[string]string{"pod-security.kubernetes.io/warn": "baseline"}, hostNetwork, restart, nil},
		"a level without sense": {map[string]string{enforce: "lenient"}, func(s *corev1.PodSpec) {
			s.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}
			s.Containers[0].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
		}, restart, []string{"pod security restricted of namespace default refuses new pods, unless exempt: seccompProfile"}},
		"an old version that did not ask for it": {map[string]string{enforce: "restricted", enforce + "-version": "v1.18"}, func(s *corev1.PodSpec) {
			s.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}
			s.Containers[0].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
		}, restart, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.in.Labels = tc.labels
			d := deployment(3, rollingUpdate("0", "1"))
			d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "main"}}
			tc.pod(&d.Spec.Template.Spec)
			tc.step(w.pods(webSet, 3, 3), d)
			if diff := cmp.Diff(tc.want, linesWith(w.compute(), "pod security"), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}

	// The template that counts is the one that the dry run came to.
	w := newWorld(t)
	w.in.Labels = baseline
	before, after := deployment(3, rollingUpdate("0", "1")), deployment(3, rollingUpdate("0", "1"))
	after.Spec.Template.Spec.HostPID = true
	target := w.pods(webSet, 3, 3).live("deployments", before)
	made, err := plan.ObjectOf(after)
	if err != nil {
		t.Fatal(err)
	}
	w.in.After = map[string]plan.Object{target.UID: made}
	wantLine(t, w.restart(target).compute(), refused[0])
}
