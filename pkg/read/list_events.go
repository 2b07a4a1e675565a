package read

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

type listEventsArgs struct {
	scoped
	workload
	Pod      string `json:"pod,omitempty" jsonschema:"exact name"`
	Node     string `json:"node,omitempty" jsonschema:"exact name"`
	Warnings bool   `json:"warnings,omitempty" jsonschema:"warnings alone"`
	paging
}

// Check wants at most one object.
func (a listEventsArgs) Check() []string {
	if n := count(a.about()); n > 1 {
		return []string{fmt.Sprintf("events are about one object, and %d are named", n)}
	}
	return nil
}

func (a listEventsArgs) about() [][2]string {
	return append(a.each(), [2]string{"pod", a.Pod}, [2]string{"node", a.Node})
}

// Events is the answer of list_events.
type Events struct {
	Head
	Page
	Events []Event `json:"events"`
}

// Event is one row of Events.
type Event struct {
	Namespace string `json:"namespace"`
	Last      string `json:"last"`
	Count     int32  `json:"count"`
	Warning   bool   `json:"warning"`
	Object    string `json:"untrusted_object"`
	Reason    string `json:"untrusted_reason"`
	Source    string `json:"untrusted_source,omitempty"`
	Message   string `json:"untrusted_message"`
}

var listEvents = of(Tool{
	Name: "list_events", Title: "List events",
	Doc:   "Lists events, of one object where one is named: warnings first, then the newest first, within the page.",
	Needs: []rule{need("", list, "events")},
}, func(ctx context.Context, v view, a *listEventsArgs) (*Events, error) {
	out := &Events{Events: []Event{}}
	match := fields.Set{}
	for _, f := range a.about() {
		for _, k := range plan.Kinds {
			if k.Argument == f[0] && f[1] != "" {
				match["involvedObject.kind"], match["involvedObject.name"] = k.GVK.Kind, f[1]
			}
		}
	}
	if a.Warnings {
		match["type"] = corev1.EventTypeWarning
	}
	var sources []source
	for _, ns := range v.namespaces {
		sources = append(sources, listing("events", ns, v.API.CoreV1().Events(ns).List, func(l *corev1.EventList) (int, metav1.ListMeta, error) {
			for i := range l.Items {
				out.Events = append(out.Events, eventRow(&l.Items[i], a.rows()))
			}
			return len(l.Items), l.ListMeta, nil
		}))
	}
	var err error
	out.Page, err = page(ctx, a.paging, "", match, sources, "namespace, an object or warnings")
	slices.SortStableFunc(out.Events, func(a, b Event) int {
		return cmp.Or(settledLast(!a.Warning, !b.Warning), strings.Compare(b.Last, a.Last))
	})
	return out, err
})

func eventRow(e *corev1.Event, rows int) Event {
	last := e.LastTimestamp
	if e.Series != nil {
		last = metav1.Time(e.Series.LastObservedTime)
	}
	for _, t := range []metav1.Time{metav1.Time(e.EventTime), e.FirstTimestamp, e.CreationTimestamp} {
		if last.IsZero() {
			last = t
		}
	}
	row := Event{
		Namespace: e.Namespace, Last: when(last), Count: max(e.Count, 1), Warning: e.Type == corev1.EventTypeWarning,
		Object: bounded(e.InvolvedObject.Kind+" "+e.InvolvedObject.Name, rows), Reason: bounded(e.Reason, rows),
		Source: bounded(cmp.Or(e.ReportingController, e.Source.Component), rows), Message: bounded(e.Message, rows),
	}
	if e.Series != nil {
		row.Count = max(e.Series.Count, 1)
	}
	return row
}

// Text is the answer as a table; what the events say stands below it by number.
func (e *Events) Text() string {
	s := sheet{head: fmt.Sprintf("%d %s", e.Shown, plan.Plural(e.Shown, "event")), table: [][]string{{"", "LAST", "COUNT", "TYPE", "NAMESPACE"}}}
	for i, r := range e.Events {
		kind := "normal"
		if r.Warning {
			kind = "warning"
		}
		s.table = append(s.table, []string{fmt.Sprint(i + 1), r.Last, fmt.Sprint(r.Count), kind, r.Namespace})
		s.quote(fmt.Sprintf("event %d", i+1), fmt.Sprintf("%s: %s: %s", r.Object, r.Reason, r.Message))
	}
	s.page(e.Page)
	return s.text(e.Head)
}
