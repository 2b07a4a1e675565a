package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestBeforeOf: what a pod that no controller makes again was made of is on record, bounded,
// and without what may be a secret.
func TestBeforeOf(t *testing.T) {
	pod := func(edit ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-1", ResourceVersion: "7"}, Status: corev1.PodStatus{Phase: "Running"}}
		p.Spec.NodeName, p.Spec.ServiceAccountName = "n1", "robot"
		p.Spec.Containers = []corev1.Container{{
			Name: "app", Image: "registry.example.com/team/app:1.2", Command: []string{"hunter2"}, Args: []string{"hunter2"},
			Env: []corev1.EnvVar{{Name: "TOKEN", Value: "hunter2"}},
		}, {Name: "side", Image: "side@sha256:" + strings.Repeat("a", 64)}}
		for _, e := range edit {
			e(p)
		}
		return p
	}
	volume := func(name string, source corev1.VolumeSource) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: source}
	}
	was := State{"uid": "uid-1", "rv": "7", "phase": "Running", "node": "n1"}
	with := func(more State) State {
		out := State{"owner": "none", "service_account": "robot", "containers": "app=registry.example.com/team/app:1.2, side=side@sha256:" + strings.Repeat("a", 64)}
		for _, m := range []State{was, more} {
			for k, v := range m {
				out[k] = v
			}
		}
		return out
	}
	for name, tc := range map[string]struct {
		resource string
		of       *corev1.Pod
		want     State
	}{
		"a bare pod": {"pods", pod(), with(nil)},
		"all of it": {"pods", pod(func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "migrate", Image: "migrate:7"}}
			p.Spec.Volumes = []corev1.Volume{
				volume("data", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-1"}}),
				volume("conf", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf-1"}}}),
				volume("keys", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys-1"}}),
				volume("host", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/hunter2"}}),
				volume("tmp", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
			}
		}), with(State{
			"init_containers": "migrate=migrate:7",
			"volumes":         "data=persistentVolumeClaim/data-1, conf=configMap/conf-1, keys=secret/keys-1, host=hostPath, tmp=emptyDir",
		})},
		"an image that is free text": {"pods", pod(func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "app", Image: "x\nCONFIRM: all"}}
		}), with(State{"containers": "app=" + Show("x\nCONFIRM: all")})},
		"one with a controller": {"pods", pod(func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-5f7", UID: "rs-1", Controller: ptr.To(true)}}
		}), was},
		"another kind": {"widgets", pod(), State{"uid": "uid-1", "rv": "7"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := ObjectOf(tc.of)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, BeforeOf(tc.resource, o)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("bounded", func(t *testing.T) {
		o, err := ObjectOf(pod(func(p *corev1.Pod) {
			p.Spec.Containers = nil
			for i := range 100 {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c-%02d", i), Image: strings.Repeat("a", 46)})
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(BeforeOf("pods", o)["containers"])
		if len(got) > 700 || strings.Count(got, "=") != 11 || !strings.HasSuffix(got, " and 89 more") {
			t.Errorf("%d characters: %s", len(got), got)
		}
	})
}
