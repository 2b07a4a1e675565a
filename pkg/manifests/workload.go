package manifests

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Where things are in the pod.
const (
	StatePath  = "/state/kube-write-mcp" // a folder of its own: the volume's is open to a group
	PolicyPath = "/etc/kube-write-mcp/policy.yaml"

	// Port is the one that the server is reached at.
	Port = 8443

	volumePath   = "/state"
	policyFolder = "/etc/kube-write-mcp"
	userID       = 65532 // nonroot of the image
)

// Pod is everything for the server in a pod of its own: its namespace, its rights and
// limits, and what runs it. The journal is a file on a volume of its own, so there is one
// replica and the old pod ends before the new one begins.
func Pod(c Config) []any {
	out := []any{c.namespace()}
	out = append(append(out, RBAC(c)...), Admission(c)...)
	out = append(out, c.claim())
	if c.PolicyFile != "" {
		out = append(out, c.policyMap())
	}
	return append(out, c.deployment(), c.service(), c.networkPolicy(), c.disruptionBudget())
}

// namespace admits no pod that is not restricted.
func (c Config) namespace() *corev1.Namespace {
	m := metav1.ObjectMeta{Name: c.Namespace, Labels: c.labels()}
	for _, mode := range []string{"enforce", "audit", "warn"} {
		m.Labels["pod-security.kubernetes.io/"+mode] = "restricted"
	}
	return &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: m}
}

func (c Config) claim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: c.namespaced("-state"),
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

func (c Config) policyMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: c.namespaced("-policy"),
		Data:       map[string]string{"policy.yaml": c.PolicyFile},
	}
}

func (c Config) deployment() *appsv1.Deployment {
	probe := func(path string, every int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: path, Port: intstr.FromString("https"), Scheme: corev1.URISchemeHTTPS,
			}},
			PeriodSeconds: every, TimeoutSeconds: 5,
		}
	}
	volumes := []corev1.Volume{{Name: "state", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name + "-state"},
	}}}
	mounts := []corev1.VolumeMount{{Name: "state", MountPath: volumePath}}
	if c.PolicyFile != "" {
		volumes = append(volumes, corev1.Volume{Name: "policy", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: c.Name + "-policy"}},
		}})
		mounts = append(mounts, corev1.VolumeMount{Name: "policy", MountPath: policyFolder, ReadOnly: true})
	}
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
		ObjectMeta: c.namespaced(""),
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)),
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Selector: &metav1.LabelSelector{MatchLabels: c.labels()},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: c.labels()},
				Spec: corev1.PodSpec{
					ServiceAccountName:            c.Name,
					AutomountServiceAccountToken:  new(true),
					EnableServiceLinks:            new(false),
					TerminationGracePeriodSeconds: new(int64(60)), // a request in flight has 30 s, and its outcome is written
					SecurityContext: &corev1.PodSecurityContext{
						RunAsNonRoot: new(true), RunAsUser: new(int64(userID)), RunAsGroup: new(int64(userID)), FSGroup: new(int64(userID)),
						FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch),
						SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{{
						Name: "server", Image: c.Image, Args: c.Args,
						Ports: []corev1.ContainerPort{{Name: "https", ContainerPort: Port, Protocol: corev1.ProtocolTCP}},
						SecurityContext: &corev1.SecurityContext{
							AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Privileged: new(false),
							Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
						},
						Resources: corev1.ResourceRequirements{
							Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
							Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
						},
						LivenessProbe: probe("/healthz", 10), ReadinessProbe: probe("/readyz", 5),
						VolumeMounts: mounts,
					}},
					Volumes: volumes,
				},
			},
		},
	}
}

// service keeps a client on one pod: sessions of the older protocol live there.
func (c Config) service() *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: c.namespaced(""),
		Spec: corev1.ServiceSpec{
			Selector: c.labels(), SessionAffinity: corev1.ServiceAffinityClientIP,
			Ports: []corev1.ServicePort{{Name: "https", Port: 443, TargetPort: intstr.FromString("https"), Protocol: corev1.ProtocolTCP}},
		},
	}
}

// networkPolicy lets the port in and nothing out but to where an API server listens: its
// address is not known here.
func (c Config) networkPolicy() *networkingv1.NetworkPolicy {
	port := func(n int) networkingv1.NetworkPolicyPort {
		return networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt(n))}
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"},
		ObjectMeta: c.namespaced(""),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: c.labels()},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{port(Port)}}},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{port(443), port(6443)}}},
		},
	}
}

// disruptionBudget lets a node be drained, one replica at a time.
func (c Config) disruptionBudget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
		ObjectMeta: c.namespaced(""),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt(1)), Selector: &metav1.LabelSelector{MatchLabels: c.labels()},
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}
}
