package transcripts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/actions"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// maxPlanLines is what a person reads at a glance.
const maxPlanLines = 25

// planned is a call of one action, as much of it as there is to tell, and what its plan
// must say before all else.
type planned struct {
	world func(t *testing.T, ns string)
	args  func(ns string) harness.Args

	wantChange, wantRadius string // the first line of each; a radius of "" is nothing at risk
}

// planTexts has a call of every action.
var planTexts = map[string]planned{
	"scale": {
		world: func(t *testing.T, ns string) {
			harness.Create(t, cp, ns, harness.Deployment("web").Replicas(4).Ready(4))
		},
		args:       func(ns string) harness.Args { return harness.Of(ns, "deployment", "web").With("replicas", 2) },
		wantChange: "spec.replicas: 4 → 2", wantRadius: "removes 2 of 4 pods",
	},
	"rollout_restart": {
		world: revisions, args: of("deployment", "web"),
		wantChange: "spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]: unset → TIME",
		wantRadius: "replaces 4 of 4 pods: at least 3 of 4 stay available, at most 5 at once",
	},
	"rollout_undo": {
		world: revisions, args: of("deployment", "web"),
		wantChange: "spec.template: HASH1 → HASH2", wantRadius: "replaces 4 of 4 pods: at least 3 of 4 stay available, at most 5 at once",
	},
	"rollout_pause": {world: revisions, args: of("deployment", "web"), wantChange: "spec.paused: false → true"},
	"rollout_resume": {
		world: func(t *testing.T, ns string) {
			revisions(t, ns)
			edit(t, ns, func(d *appsv1.Deployment) { d.Spec.Paused, d.Spec.Template.Spec.Containers[0].Image = true, "main:3" })
		},
		args:       of("deployment", "web"),
		wantChange: "spec.paused: true → false", wantRadius: "replaces 4 of 4 pods: at least 3 of 4 stay available, at most 5 at once",
	},
	"set_image": {
		world: revisions,
		args: func(ns string) harness.Args {
			return harness.Of(ns, "deployment", "web").With("container", "main").With("image", "main:3")
		},
		wantChange: "spec.template.spec.containers[0].image: main → main:3",
		wantRadius: "replaces 4 of 4 pods: at least 3 of 4 stay available, at most 5 at once",
	},
	"delete_pod": {
		world: func(t *testing.T, ns string) {
			harness.Create(t, cp, ns, harness.Pod("loner").With(func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			}))
		},
		args:       of("pod", "loner"),
		wantChange: "delete pod NAMESPACE1/loner", wantRadius: "1 pod no controller makes again: NAMESPACE1/loner",
	},
	"evict_pod": {
		world: func(t *testing.T, ns string) {
			harness.Create(t, cp, ns, harness.Deployment("web").Ready(1), harness.Budget("web").Allows(1, 1))
		},
		args:       of("pod", harness.PodName("web", 0)),
		wantChange: "evict pod NAMESPACE1/web-5d4f8c7b9-0", wantRadius: "the only ready pod: an outage until its replacement is ready",
	},
	"cordon":   {world: nodes(false), args: node, wantChange: "spec.unschedulable: false → true", wantRadius: "evicts none of 0 pods on NAMESPACE1-n1"},
	"uncordon": {world: nodes(true), args: node, wantChange: "spec.unschedulable: true → false"},
	"drain": {
		world: func(t *testing.T, ns string) {
			nodes(false)(t, ns)
			here := func(p *corev1.PodTemplateSpec) { p.Spec.NodeName = ns + "-n1" }
			harness.Create(t, cp, ns,
				harness.Deployment("web").Replicas(2).Pods(here).Ready(2), harness.Budget("web").Allows(1, 2),
				harness.StatefulSet("db").Pods(here).Ready(1), harness.DaemonSet("agent").Pods(here).Ready(1))
		},
		args:       node,
		wantChange: "spec.unschedulable: false → true", wantRadius: "statefulset NAMESPACE1/db: the only ready pod: an outage until its replacement is ready",
	},
	"cronjob_suspend": {world: cronJob, args: of("cronjob", "mail"), wantChange: "spec.suspend: false → true", wantRadius: "stops future runs, and no pod: jobs that are active go on"},
	"cronjob_resume": {
		world: func(t *testing.T, ns string) {
			cronJob(t, ns)
			c, err := cp.Client.BatchV1().CronJobs(ns).Get(t.Context(), "mail", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c.Spec.Suspend = new(true)
			if _, err := cp.Client.BatchV1().CronJobs(ns).Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		args: of("cronjob", "mail"), wantChange: "spec.suspend: true → false",
	},
	"cronjob_trigger": {world: cronJob, args: of("cronjob", "mail"), wantChange: "create job NAMESPACE1/mail-PLAN1 from cronjob NAMESPACE1/mail", wantRadius: "starts 1 pod at once"},
	"job_suspend":     {world: job(false), args: of("job", "report"), wantChange: "spec.suspend: false → true", wantRadius: "ends 3 active pods: what they have begun is lost; 0 succeeded are kept"},
	"job_resume":      {world: job(true), args: of("job", "report"), wantChange: "spec.suspend: true → false", wantRadius: "starts 3 pods at once, 9 completions left"},
}

func of(kind, name string) func(string) harness.Args {
	return func(ns string) harness.Args { return harness.Of(ns, kind, name) }
}

func node(ns string) harness.Args { return harness.Args{"node": ns + "-n1"} }

// revisions makes the Deployment web with four pods, at the second of its two revisions.
func revisions(t *testing.T, ns string) {
	t.Helper()
	web := harness.Deployment("web").Replicas(4).Ready(4)
	harness.Create(t, cp, ns, web)
	live, err := cp.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for number, image := range map[int]string{1: "main:1", 2: "main"} {
		hash := fmt.Sprint("r", number)
		rs := harness.ReplicaSet("web-" + hash).Replicas(0).With(func(rs *appsv1.ReplicaSet) {
			rs.Annotations = map[string]string{"deployment.kubernetes.io/revision": fmt.Sprint(number)}
			rs.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(live, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
			rs.Labels = map[string]string{"app": "web", "pod-template-hash": hash}
			rs.Spec.Template = *live.Spec.Template.DeepCopy()
			rs.Spec.Template.Spec.Containers[0].Image = image
			rs.Spec.Template.Labels["pod-template-hash"] = hash
			rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: rs.Labels}
		})
		harness.Create(t, cp, ns, rs)
	}
}

// edit changes the Deployment web, which its controller then has seen.
func edit(t *testing.T, ns string, change func(*appsv1.Deployment)) {
	t.Helper()
	apps := cp.Client.AppsV1().Deployments(ns)
	d, err := apps.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(d)
	if d, err = apps.Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	d.Status.ObservedGeneration, d.Status.UpdatedReplicas = d.Generation, 0
	if _, err := apps.UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// nodes makes two nodes, of which the first is cordoned or not.
func nodes(cordoned bool) func(*testing.T, string) {
	return func(t *testing.T, ns string) {
		t.Helper()
		for i := 1; i <= 2; i++ {
			name := fmt.Sprintf("%s-n%d", ns, i)
			harness.Create(t, cp, ns, harness.Node(name).Ready().With(func(n *corev1.Node) { n.Spec.Unschedulable = cordoned && i == 1 }))
			t.Cleanup(func() { _ = cp.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
		}
	}
}

// job makes the Job report, of three pods at once.
func job(suspended bool) func(*testing.T, string) {
	return func(t *testing.T, ns string) {
		t.Helper()
		template := harness.Template("report")
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		j, err := cp.Client.BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: "report"},
			Spec:       batchv1.JobSpec{Template: template, Suspend: &suspended, Parallelism: new(int32(3)), Completions: new(int32(9))},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if suspended {
			return
		}
		j.Status.StartTime, j.Status.Active = new(metav1.Now()), 3
		if _, err := cp.Client.BatchV1().Jobs(ns).UpdateStatus(t.Context(), j, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPlanTexts: of every action, what a person reads before confirming it, as a file. The
// change stands first and how bad it is second, and all of it is read at a glance.
func TestPlanTexts(t *testing.T) {
	dir := filepath.Join("testdata", "plans")
	files, err := os.ReadDir(dir)
	if err != nil && !*update {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, known := planTexts[strings.TrimSuffix(f.Name(), ".txt")]; !known {
			t.Errorf("%s belongs to no action", f.Name())
		}
	}
	for _, a := range actions.All() {
		t.Run(a.Name, func(t *testing.T) {
			p, ok := planTexts[a.Name]
			if !ok {
				t.Fatal("there is no call of it here")
			}
			ns := cp.Namespace(t)
			p.world(t, ns)
			s := serve(t, stdio.Modern, harness.Account(t, cp), false, "--allow-node-selector", "pool=lab", "--irreversible", "allow")
			m, err := s.Request("tools/call", args{"name": "plan_" + a.Name, "arguments": p.args(ns)})
			if err != nil {
				t.Fatal(err, s.stderr.String())
			}
			tool, err := stdio.Parse(m)
			if err != nil {
				t.Fatal(err)
			}
			got := normaliser{}.apply(strings.TrimSuffix(tool.Text, "\n") + "\n")
			lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
			if len(lines) > maxPlanLines || tool.Field("confirm") == "" {
				t.Errorf("%d lines, phrase %q, want at most %d lines and a phrase:\n%s", len(lines), tool.Field("confirm"), maxPlanLines, got)
			}
			// The sentence, the changes, and at once how bad it is.
			i := slices.IndexFunc(lines[1:], func(l string) bool { return !strings.HasPrefix(l, "  change: ") }) + 1
			if !strings.HasPrefix(lines[0], "PLAN ") || lines[1] != "  change: "+p.wantChange {
				t.Errorf("it does not begin with the change %q:\n%s", p.wantChange, got)
			}
			if p.wantRadius != "" && lines[i] != "  radius: "+p.wantRadius || p.wantRadius == "" && lines[i] != "  at risk: nothing" {
				t.Errorf("after the changes stands %q, want %q first:\n%s", lines[i], p.wantRadius, got)
			}
			path := filepath.Join(dir, a.Name+".txt")
			if *update {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("%s (-want +got), -update rewrites it:\n%s", path, d)
			}
			s.end(t)
		})
	}
}
