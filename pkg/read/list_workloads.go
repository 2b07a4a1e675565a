package read

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

type listWorkloadsArgs struct {
	scoped
	Kind string `json:"kind,omitempty" jsonschema:"deployment, statefulset, daemonset, job, cronjob or replicaset; else all but replicasets"`
	selecting
	paging
}

// Check wants a kind that there is, and a selector that parses.
func (a listWorkloadsArgs) Check() []string {
	faults := a.selecting.Check()
	if a.Kind != "" && !slices.Contains(append(listedKinds, "replicaset"), a.Kind) {
		faults = append(faults, fmt.Sprintf("kind must be one of %s, replicaset, not %s", strings.Join(listedKinds, ", "), quoted(a.Kind)))
	}
	return faults
}

// listedKinds are those of a call that names none.
var listedKinds = []string{"deployment", "statefulset", "daemonset", "job", "cronjob"}

// Workloads is the answer of list_workloads.
type Workloads struct {
	Head
	Page
	Workloads []Workload `json:"workloads"`
}

// Workload is one row of Workloads.
type Workload struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	State     string   `json:"state"`
	Desired   int32    `json:"desired"`
	Ready     int32    `json:"ready"`
	Updated   int32    `json:"updated"`
	Available int32    `json:"available"`
	Created   string   `json:"created"`
	Version   string   `json:"version"`
	Images    []string `json:"untrusted_images,omitempty"`
}

func (w Workload) settled() bool { return w.State == "ready" || w.State == "complete" }

var listWorkloads = of(Tool{
	Name: "list_workloads", Title: "List workloads",
	Doc:   "Lists Deployments, StatefulSets, DaemonSets, Jobs and CronJobs with replicas, state and version, those that are not ready first.",
	Needs: needsOfWorkloads(list),
}, func(ctx context.Context, v view, a *listWorkloadsArgs) (*Workloads, error) {
	out := &Workloads{Workloads: []Workload{}}
	kinds := listedKinds
	if a.Kind != "" {
		kinds = []string{a.Kind}
	}
	var sources []source
	for _, kind := range kinds {
		for _, ns := range v.namespaces {
			sources = append(sources, v.workloads(kind, ns, a.rows(), &out.Workloads))
		}
	}
	var err error
	out.Page, err = page(ctx, a.paging, a.Selector, nil, sources, "namespace, kind or selector")
	slices.SortStableFunc(out.Workloads, func(a, b Workload) int { return settledLast(a.settled(), b.settled()) })
	return out, err
})

// settledLast orders what needs a look before what does not.
func settledLast(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func needsOfWorkloads(verbs []string) []rule {
	return []rule{need("apps", verbs, "deployments", "statefulsets", "daemonsets", "replicasets"), need("batch", verbs, "jobs", "cronjobs")}
}

// workloads is the source of one kind, with its plural and its group.
func (v view) workloads(kind, ns string, rows int, into *[]Workload) source {
	apps, batch := v.API.AppsV1(), v.API.BatchV1()
	switch kind {
	case "deployment":
		return listing("deployments.apps", ns, apps.Deployments(ns).List, func(l *appsv1.DeploymentList) (int, metav1.ListMeta, error) {
			return keep(l.Items, l.ListMeta, rows, deployment, into)
		})
	case "statefulset":
		return listing("statefulsets.apps", ns, apps.StatefulSets(ns).List, func(l *appsv1.StatefulSetList) (int, metav1.ListMeta, error) {
			return keep(l.Items, l.ListMeta, rows, statefulSet, into)
		})
	case "daemonset":
		return listing("daemonsets.apps", ns, apps.DaemonSets(ns).List, func(l *appsv1.DaemonSetList) (int, metav1.ListMeta, error) {
			return keep(l.Items, l.ListMeta, rows, daemonSet, into)
		})
	case "replicaset":
		return listing("replicasets.apps", ns, apps.ReplicaSets(ns).List, func(l *appsv1.ReplicaSetList) (int, metav1.ListMeta, error) {
			return keep(l.Items, l.ListMeta, rows, replicaSet, into)
		})
	case "job":
		return listing("jobs.batch", ns, batch.Jobs(ns).List, func(l *batchv1.JobList) (int, metav1.ListMeta, error) {
			return keep(l.Items, l.ListMeta, rows, job, into)
		})
	}
	return listing("cronjobs.batch", ns, batch.CronJobs(ns).List, func(l *batchv1.CronJobList) (int, metav1.ListMeta, error) {
		return keep(l.Items, l.ListMeta, rows, cronJob, into)
	})
}

// keep adds the rows of a list.
func keep[T any](items []T, meta metav1.ListMeta, rows int, of func(*T) made, into *[]Workload) (int, metav1.ListMeta, error) {
	for i := range items {
		row, err := of(&items[i]).row(rows)
		if err != nil {
			return 0, meta, err
		}
		*into = append(*into, row)
	}
	return len(items), meta, nil
}

// Text is the answer as a table.
func (w *Workloads) Text() string {
	s := sheet{head: fmt.Sprintf("%d %s", w.Shown, plan.Plural(w.Shown, "workload")), table: [][]string{{"KIND", "NAMESPACE", "NAME", "STATE", "READY", "UPDATED", "AVAILABLE", "CREATED", "VERSION"}}}
	for _, r := range w.Workloads {
		s.table = append(s.table, []string{r.Kind, r.Namespace, r.Name, r.State, fmt.Sprintf("%d/%d", r.Ready, r.Desired), fmt.Sprint(r.Updated), fmt.Sprint(r.Available), r.Created, r.Version})
		s.quote(r.Kind+" "+r.Namespace+"/"+r.Name, strings.Join(r.Images, ", "))
	}
	s.page(w.Page)
	return s.text(w.Head)
}
