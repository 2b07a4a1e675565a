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
	StatePath   = "/state/kube-write-mcp" // a folder of its own: the volume's is open to a group
	PolicyPath  = policyFolder + "/policy.yaml"
	TLSCertPath = tlsFolder + "/" + corev1.TLSCertKey
	TLSKeyPath  = tlsFolder + "/" + corev1.TLSPrivateKeyKey
	KeysPath    = keysFolder + "/keys.json"

	// Port is the one that the server is reached at.
	Port = 8443

	volumePath   = "/state"
	policyFolder = "/etc/kube-write-mcp/policy"
	tlsFolder    = "/etc/kube-write-mcp/tls"
	keysFolder   = "/etc/kube-write-mcp/keys"
	userID       = 65532 // nonroot of the image
	replicas     = 3     // with a ledger that they share
)

// Pod is everything for the server in pods of its own: its namespace, its rights and limits,
// what its callers' rights are made of, and what runs it. Two Secrets are somebody else's to
// make: NAME-tls, of type kubernetes.io/tls, and with the cluster ledger NAME-keys, which
// holds keys.json. Where the journal is a file there is one replica, and the old pod ends
// before the new one begins. With the cluster ledger there are three, each with a volume of
// its own for its own audit log, which outlives the pod.
func Pod(c Config) []any {
	out := []any{c.namespace()}
	if c.Ledger != nil {
		out = append(out, c.Ledger.Definitions...)
	}
	out = append(append(out, RBAC(c)...), Admission(c)...)
	out = append(out, c.callers()...)
	if c.PolicyFile != "" {
		out = append(out, c.policyMap())
	}
	if c.Ledger != nil {
		out = append(out, c.statefulSet())
	} else {
		out = append(out, c.claim(), c.deployment())
	}
	return append(out, c.service(), c.networkPolicy(), c.disruptionBudget())
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
		Spec:       claimSpec(),
	}
}

func claimSpec() corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
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
	pod := c.pod()
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "state", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name + "-state"},
	}})
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
		ObjectMeta: c.namespaced(""),
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)),
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Selector: &metav1.LabelSelector{MatchLabels: c.labels()},
			Template: pod,
		},
	}
}

// statefulSet gives each replica a name and a volume that stay: its checkpoints bear the
// one, and its audit log is on the other.
func (c Config) statefulSet() *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "StatefulSet"},
		ObjectMeta: c.namespaced(""),
		Spec: appsv1.StatefulSetSpec{
			Replicas:            new(int32(replicas)),
			ServiceName:         c.Name,
			PodManagementPolicy: appsv1.ParallelPodManagement, // none waits for another one
			Selector:            &metav1.LabelSelector{MatchLabels: c.labels()},
			Template:            c.pod(),
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
				ObjectMeta: metav1.ObjectMeta{Name: "state", Labels: c.labels()},
				Spec:       claimSpec(),
			}},
		},
	}
}

// pod is what runs the server, but for the volume of its state.
func (c Config) pod() corev1.PodTemplateSpec {
	probe := func(path string, every int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: path, Port: intstr.FromString("https"), Scheme: corev1.URISchemeHTTPS,
			}},
			PeriodSeconds: every, TimeoutSeconds: 5,
		}
	}
	var volumes []corev1.Volume
	mounts := []corev1.VolumeMount{{Name: "state", MountPath: volumePath}}
	mount := func(name, path string, from corev1.VolumeSource) {
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: from})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: true})
	}
	secret := func(suffix string) corev1.VolumeSource { // the group's is the pod's
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: c.Name + suffix, DefaultMode: new(int32(0o440))}}
	}
	mount("tls", tlsFolder, secret("-tls"))
	if c.Ledger != nil {
		mount("keys", keysFolder, secret("-keys"))
	}
	if c.PolicyFile != "" {
		mount("policy", policyFolder, corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: c.Name + "-policy"}},
		})
	}
	return corev1.PodTemplateSpec{
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
			TopologySpreadConstraints: c.spread(),
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
	}
}

// spread keeps replicas on different nodes where that can be.
func (c Config) spread() []corev1.TopologySpreadConstraint {
	if c.Ledger == nil {
		return nil
	}
	return []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: c.labels()},
	}}
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
