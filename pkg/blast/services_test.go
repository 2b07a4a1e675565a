package blast

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

func (w *world) service(name string, selector labels.Set) *world {
	w.in.Facts.Services = append(w.in.Facts.Services, plan.Service{Namespace: "default", Name: name, Selector: selector.AsSelector()})
	return w
}

// linesWith are the lines of an effect that contain a text.
func linesWith(e Effect, text string) []string {
	return slices.DeleteFunc(slices.Clone(e.Blast.Lines), func(l string) bool { return !strings.Contains(l, text) })
}

func TestServices(t *testing.T) {
	web := labels.Set{"app": "web"}
	index := func(n int, key string) func(int, *plan.Pod) {
		return func(i int, p *plan.Pod) {
			if i == n {
				p.Labels[key] = "true"
			}
		}
	}
	for name, tc := range map[string]struct {
		build     func(*world)
		wantLines []string
		wantLeads bool // but for the words on the pods themselves
	}{
		"a restart of three": {func(w *world) {
			w.pods(webSet, 3, 3).service("api", web).restart(w.live("deployments", deployment(3, rollingUpdate("0", "1"))))
		}, []string{"service api keeps 2 of 3 ready endpoints"}, false},
		"a restart with a surge alone": {func(w *world) {
			w.pods(webSet, 3, 3).service("api", web).restart(w.live("deployments", deployment(3, rollingUpdate("1", "0"))))
		}, nil, false},
		"a scale to zero": {func(w *world) {
			w.pods(webSet, 3, 3).service("api", web).scale(w.live("deployments", deployment(3, rollingUpdate("0", "1"))), 0)
		}, []string{"service api keeps none of 3 ready endpoints: an outage"}, true},
		"other pods serve too": {func(w *world) {
			w.pods(webSet, 3, 3).pods(plan.Owner{Kind: "ReplicaSet", Name: "canary", UID: "c"}, 2, 1)
			w.service("api", web).scale(w.live("deployments", deployment(3, rollingUpdate("0", "1"))), 0)
		}, []string{"service api keeps 1 of 4 ready endpoints"}, false},
		"two services at once": {func(w *world) {
			w.pods(webSet, 3, 3).service("api", web).service("web", web).scale(w.live("deployments", deployment(3, rollingUpdate("0", "1"))), 0)
		}, []string{"2 services keep no ready endpoint, an outage: api, web"}, true},
		"a service of other pods, and one of another namespace": {func(w *world) {
			w.pods(webSet, 3, 3).service("db", labels.Set{"app": "db"}).service("web", web)
			w.in.Facts.Services[1].Namespace = "other"
			w.scale(w.live("deployments", deployment(3, rollingUpdate("0", "1"))), 0)
		}, nil, false},
		"those that are not ready go first": {func(w *world) {
			w.pods(webSet, 4, 2).service("api", web).scale(w.live("deployments", deployment(4, rollingUpdate("0", "1"))), 2)
		}, nil, false},
		"the ordinals that go": {func(w *world) {
			w.pods(db, 3, 3, index(2, "leader")).service("db", labels.Set{"app": "web"}).service("leader", labels.Set{"leader": "true"})
			w.scale(w.live("statefulsets", statefulSet(3, nil)), 2)
		}, []string{"service leader keeps none of 1 ready endpoint: an outage", "service db keeps 2 of 3 ready endpoints"}, true},
		"the pod that is deleted": {func(w *world) {
			w.pods(webSet, 3, 3, index(1, "leader")).service("api", web).service("leader", labels.Set{"leader": "true"}).gone(plan.Delete, plan.Fail, "web-5f7-1")
		}, []string{"service leader keeps none of 1 ready endpoint: an outage", "service api keeps 2 of 3 ready endpoints"}, true},
		"a pod that was not ready": {func(w *world) {
			w.pods(webSet, 3, 2).service("api", web).gone(plan.Delete, plan.Fail, "web-5f7-2")
		}, nil, false},
		"the leader is not among the ordinals that go": {func(w *world) {
			w.pods(db, 3, 3, index(0, "leader")).service("leader", labels.Set{"leader": "true"})
			w.scale(w.live("statefulsets", statefulSet(3, nil)), 2)
		}, nil, false},
		"what serves stays, what does not goes": {func(w *world) {
			w.pods(webSet, 3, 2, index(0, "leader"), index(2, "leader")).service("leader", labels.Set{"leader": "true"})
			w.gone(plan.Delete, plan.Fail, "web-5f7-1", "web-5f7-2")
		}, nil, false},
		"a drain that a budget paces": {func(w *world) {
			w.pods(webSet, 4, 4).service("api", web).nodes("n1", "n2").budget("web", func(b *plan.Budget) { b.Allowed, b.Healthy, b.Desired = 1, 4, 3 })
			w.cordon("n1").gone(plan.Evict, plan.Wait, "web-5f7-0", "web-5f7-1", "web-5f7-2", "web-5f7-3")
		}, []string{"service api keeps 3 of 4 ready endpoints"}, false},
		"services of two namespaces": {func(w *world) {
			w.pods(webSet, 2, 2).service("api", web).service("api", web).nodes("n1", "n2")
			w.in.Facts.Services[1].Namespace = "other"
			twin := w.in.Facts.Pods[0]
			twin.Namespace, twin.Name, twin.UID = "other", "web-5f7-9", "pod-web-5f7-9"
			w.in.Facts.Pods = append(w.in.Facts.Pods, twin)
			w.cordon("n1").gone(plan.Evict, plan.Wait, "web-5f7-0", "web-5f7-9")
		}, []string{"service other/api keeps none of 1 ready endpoint: an outage", "service default/api keeps 1 of 2 ready endpoints"}, true},
		"many that keep fewer": {func(w *world) {
			w.pods(webSet, 3, 3)
			for i := range 9 {
				w.service(fmt.Sprintf("s%d", i), web)
			}
			w.scale(w.live("deployments", deployment(3, rollingUpdate("0", "1"))), 2)
		}, []string{"9 services keep fewer ready endpoints: s0 2 of 3, s1 2 of 3, s2 2 of 3, s3 2 of 3, s4 2 of 3, s5 2 of 3 and 3 more"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.build(w)
			e := w.compute()
			got := linesWith(e, "service")
			if diff := cmp.Diff(tc.wantLines, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
			if first := e.Blast.Lines[0]; tc.wantLeads && first != tc.wantLines[0] && !strings.HasSuffix(first, "nothing serves any more") {
				t.Errorf("%q leads", first)
			}
			if len(e.Warnings) > 0 {
				t.Errorf("warnings %q, want none", e.Warnings)
			}
		})
	}
}

// TestMissingAdvice: what no gate rests on is warned of, and never an empty list.
func TestMissingAdvice(t *testing.T) {
	for name, tc := range map[string]struct {
		missing string
		build   func(*world)
		want    []string
	}{
		"services": {factServices, func(w *world) {
			w.pods(webSet, 3, 3).restart(w.live("deployments", deployment(3, rollingUpdate("0", "1"))))
		}, []string{"not known: which services lose ready endpoints; cannot list (403)"}},
		"pods of a cordon": {factPods, func(w *world) { w.nodes("n1", "n2").cordon("n1") },
			[]string{"not known: how many pods stay on the node; cannot list (403)"}},
		"services of a scale-up": {factServices, func(w *world) { w.scale(w.live("deployments", deployment(3, rollingUpdate("0", "1"))), 4) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.build(w)
			w.in.Facts.Missing = map[string]string{tc.missing: "cannot list (403)"}
			if diff := cmp.Diff(tc.want, w.compute().Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}
