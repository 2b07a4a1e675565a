package actions

import (
	"context"
	"fmt"
	"strings"

	"github.com/distribution/reference"
	"github.com/google/jsonschema-go/jsonschema"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// SetImageArgs are the arguments of set_image.
type SetImageArgs struct {
	action.Namespaced
	action.Rollable
	Container string `json:"container" jsonschema:"exact name; init containers too"`
	Image     string `json:"image" jsonschema:"image reference"`
}

// Check wants one workload, a name and an image that a kubelet can parse: the API server
// takes almost any text for one.
func (a SetImageArgs) Check() []string {
	faults := a.Rollable.Check()
	if no := validation.IsDNS1123Label(a.Container); a.Container != "" && no != nil {
		faults = append(faults, "container is wrong: "+strings.Join(no, ", "))
	}
	if err := imageFault(a.Image); a.Image != "" && err != nil {
		faults = append(faults, "image is wrong: "+err.Error()+", such as registry.example.com/team/app:1.2")
	}
	return faults
}

// imageFault says why a text is no image reference. Its words hold none of the text.
func imageFault(image string) error {
	if _, err := reference.ParseNormalizedNamed(image); err != nil {
		for i, r := range image {
			if r <= ' ' || r > '~' {
				return fmt.Errorf("the character %+q at %d stands in no image reference", r, i)
			}
		}
		return fmt.Errorf("it must be an image reference")
	}
	if strings.HasPrefix(image, "sha256:") { // a digest alone, and how a text is shown that may not be
		return fmt.Errorf("it must be an image reference with a name")
	}
	return nil
}

// SetImage changes the image of one container of a pod template.
var SetImage = add(action.New(action.Spec{
	Name:     "set_image",
	Title:    "Set a container image",
	Doc:      "Set the image of one container of one Deployment, StatefulSet or DaemonSet, which replaces its pods at the pace of its update strategy.",
	Destroys: true,
	Rolls:    true,
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"deployments", "statefulsets", "daemonsets"}, Verbs: []string{"get", "list", "patch"}},
	},
	Schema: func(s *jsonschema.Schema) { s.Properties["image"].MaxLength = ptr.To(255) },
}, planSetImage))

func planSetImage(ctx context.Context, s *action.Session, a SetImageArgs) error {
	w, err := a.Get(ctx, s, a.Namespace)
	if err != nil {
		return err
	}
	if err := s.Target(w.Observed); err != nil {
		return err
	}
	o, err := plan.ObjectOf(w.Observed)
	if err != nil {
		return err
	}
	field := ""
	var names []string
	for _, list := range []string{"containers", "initContainers"} {
		for i, name := range containerNames(o, list) {
			if name == a.Container {
				field = fmt.Sprintf("spec.template.spec.%s[%d].image", list, i)
			}
			if list == "initContainers" {
				name += " (init)"
			}
			names = append(names, name)
		}
	}
	if field == "" {
		return s.Refuse(refusal.NotFound, "name one of these", "%s %s has no container %s; it has %s", w.Argument, w.FullName(), a.Container, list(names))
	}
	old := o.Value(field)
	if old == a.Image {
		s.Warn("it has this image already, and no pod is replaced; plan_rollout_restart replaces the pods, which pull it again where their policy says so")
		return nil
	}
	if err := s.Say("set", "image", "of", w.Argument, w.FullName(), "container", a.Container, "to", a.Image); err != nil {
		return err
	}
	kubectl := func(image string) string {
		return fmt.Sprintf("kubectl -n %s set image %s/%s %s=%s", a.Namespace, w.Argument, w.GetName(), a.Container, image)
	}
	s.Kubectl("%s", kubectl(a.Image))
	back := a
	back.Image, back.ExpectedVersion = old, ""
	if imageFault(old) == nil {
		s.UndoCall("plan_set_image", back, kubectl(old), undoesTemplate)
	} else {
		s.Undo(plan.Undo{Note: "there is none: the image of now is no image reference; " + undoesTemplate})
	}
	edits := []action.Edit{action.Hold("spec.template")}
	if w.Argument == "deployment" {
		edits = append(edits, action.Hold("spec.paused"))
	}
	return s.Patch(w.Observed, append(edits, action.Set(field, a.Image), action.SetReason())...)
}

func containerNames(o plan.Object, list string) (names []string) {
	for i := 0; ; i++ {
		name := o.Value(fmt.Sprintf("spec.template.spec.%s[%d].name", list, i))
		if name == "" {
			return names
		}
		names = append(names, name)
	}
}
