package blast

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// keeper is who keeps an object as it is declared elsewhere.
type keeper struct {
	name string // Flux Kustomization flux-system/apps
	by   string // what takes a change back
	self bool   // it comes by itself, without a person
}

// reconcilers are the field managers that set their fields again by themselves.
var reconcilers = []string{"argocd-controller", "argocd-application-controller", "kustomize-controller", "helm-controller"}

// keepersOf finds who keeps an object by its metadata alone.
func keepersOf(m *metav1.PartialObjectMetadata) (keepers []keeper) {
	label, note := m.Labels, m.Annotations
	app, _, _ := strings.Cut(note["argocd.argoproj.io/tracking-id"], ":")
	app = cmp.Or(app, label["argocd.argoproj.io/instance"])
	if app == "" && slices.ContainsFunc(m.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return strings.HasPrefix(e.Manager, "argocd-") }) {
		app = label["app.kubernetes.io/instance"]
	}
	if app != "" {
		keepers = append(keepers, keeper{"Argo CD application " + short(app), "its next sync", true})
	}
	if name := label["kustomize.toolkit.fluxcd.io/name"]; name != "" {
		keepers = append(keepers, keeper{"Flux Kustomization " + full(label["kustomize.toolkit.fluxcd.io/namespace"], name), "its next reconcile", true})
	}
	if name := label["helm.toolkit.fluxcd.io/name"]; name != "" {
		keepers = append(keepers, keeper{"Flux HelmRelease " + full(label["helm.toolkit.fluxcd.io/namespace"], name), "its next reconcile", true})
	}
	if owner := metav1.GetControllerOfNoCopy(m); owner != nil {
		keepers = append(keepers, keeper{short(owner.Kind) + " " + full(m.Namespace, owner.Name), "its controller", true})
	}
	const upgrade = "its next upgrade"
	switch name := note["meta.helm.sh/release-name"]; {
	case len(keepers) > 0: // Helm is their tool
	case name != "":
		keepers = append(keepers, keeper{"Helm release " + full(cmp.Or(note["meta.helm.sh/release-namespace"], m.Namespace), name), upgrade, false})
	case label["app.kubernetes.io/managed-by"] == "Helm":
		keepers = append(keepers, keeper{"Helm", upgrade, false})
	}
	return keepers
}

// sayKeepers tells who takes a change of a workload back: who keeps the object, and which
// field manager sets the changed field again.
func (t *tally) sayKeepers(s plan.Step, o plan.Object) {
	kind, _ := plan.KindOf(s.Target.Resource)
	if s.Optional || s.Verb != plan.Scale && s.Verb != plan.Patch || !kind.Pods && s.Target.Resource != "cronjobs" {
		return
	}
	m, err := decode[metav1.PartialObjectMetadata](o)
	if err != nil {
		return
	}
	for _, k := range keepersOf(m) {
		t.say(blocked, "kept by %s: %s may take this back", k.name, k.by)
		if k.self && declares(s) {
			t.takesBack(k.name)
		}
	}
	for _, e := range m.ManagedFields {
		var fields []string
		for _, c := range s.Changes {
			if c.Old != c.New && owns(e, o, plan.Path(c.Field)) {
				fields = append(fields, c.Field)
			}
		}
		how := "sets it again"
		switch {
		case len(fields) == 0 || e.Subresource != "":
			continue
		case e.Operation == metav1.ManagedFieldsOperationApply:
			how = "sets it again, or without force meets a conflict"
		case !slices.Contains(reconcilers, e.Manager):
			continue // someone wrote it once
		}
		t.say(blocked, "%s applies %s: its next apply %s", short(e.Manager), list(fields, ", "), how)
		if !strings.HasPrefix(e.Manager, "kubectl") {
			t.takesBack(short(e.Manager))
		}
	}
}

// declares reports whether a Step changes what a manifest says of an object: annotations
// that it does not have stay.
func declares(s plan.Step) bool {
	return slices.ContainsFunc(s.Changes, func(c plan.Change) bool {
		return c.Old != c.New && !strings.Contains(c.Field, ".annotations[")
	})
}

// owns reports whether a field manager's entry covers a field of the object, or something
// in it.
func owns(e metav1.ManagedFieldsEntry, o plan.Object, path []string) bool {
	if e.FieldsV1 == nil {
		return false
	}
	var owned any
	if json.Unmarshal(e.FieldsV1.Raw, &owned) != nil {
		return false
	}
	var live any = map[string]any(o)
	for depth, segment := range path {
		fields, ok := owned.(map[string]any)
		if !ok {
			return false
		}
		if depth > 0 && len(fields) == 0 {
			return true // of the whole
		}
		switch in := live.(type) {
		case []any:
			i, err := strconv.Atoi(segment)
			if err != nil || i < 0 || i >= len(in) {
				return false
			}
			live, owned, ok = in[i], nil, false
			for k, v := range fields {
				if isKeyOf(k, in[i]) {
					owned, ok = v, true
				}
			}
		case map[string]any:
			live = in[segment]
			owned, ok = fields["f:"+segment]
		default:
			owned, ok = fields["f:"+segment]
		}
		if !ok {
			return false
		}
	}
	return true
}

// isKeyOf reports whether a key of managedFields, k:{"name":"web"}, means an item of a
// list.
func isKeyOf(key string, item any) bool {
	raw, ok := strings.CutPrefix(key, "k:")
	in, isMap := item.(map[string]any)
	var want map[string]any
	if !ok || !isMap || json.Unmarshal([]byte(raw), &want) != nil {
		return false
	}
	for k, v := range want {
		if fmt.Sprint(v) != fmt.Sprint(in[k]) {
			return false
		}
	}
	return true
}
