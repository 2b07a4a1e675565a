// Package example is an action as a third party writes it: hack/docs/actions.md shows this
// file.
package example

import (
	"context"
	"fmt"
	"regexp"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/action"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// SetOwnerArgs are the arguments of set_owner. Namespaced gives it its scope and
// expected_version; the rest is what the tool's schema shows.
type SetOwnerArgs struct {
	action.Namespaced
	Deployment string `json:"deployment" jsonschema:"exact name"`
	Team       string `json:"team" jsonschema:"a team's name: lower-case letters, digits and dashes"`
}

const owner = "example.com/owner"

var team = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// SetOwner notes on a Deployment which team owns it.
var SetOwner = action.New(action.Spec{
	Name:  "set_owner",
	Title: "Set the owner",
	Doc:   "Note on one Deployment which team owns it, in an annotation.",
	Needs: []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get", "list", "patch"}},
	},
}, planSetOwner)

// planSetOwner reads, and proposes one write. It sends nothing: each proposal is dry-run at
// once, and what is sent later is what a second pass of this function comes to.
func planSetOwner(ctx context.Context, s *action.Session, a SetOwnerArgs) error {
	if !team.MatchString(a.Team) { // what stands in the phrase is validated
		return s.Refuse(refusal.InvalidArguments, "give 1 to 40 lower-case letters, digits and dashes", "team is %q", a.Team)
	}
	d, err := s.AppsV1().Deployments(a.Namespace).Get(ctx, a.Deployment, metav1.GetOptions{})
	if err != nil {
		return err // an absent Deployment is answered with near names
	}
	if err := s.Target(d); err != nil { // terminating, or not at expected_version
		return err
	}
	was := d.Annotations[owner]
	if was == a.Team {
		return nil // no change, and no phrase
	}
	if err := s.Say("set", "owner", "of", "deployment", d.Namespace+"/"+d.Name, "to", a.Team); err != nil {
		return err
	}
	kubectl := func(team string) string {
		return fmt.Sprintf("kubectl -n %s annotate --overwrite deployment/%s %s=%s", d.Namespace, d.Name, owner, team)
	}
	s.Kubectl("%s", kubectl(a.Team))
	if team.MatchString(was) {
		s.UndoCall("plan_set_owner", SetOwnerArgs{action.Namespaced{Namespace: d.Namespace}, d.Name, was}, kubectl(was), "")
	} else {
		s.Undo(plan.Undo{
			Kubectl: fmt.Sprintf("kubectl -n %s annotate deployment/%s %s-", d.Namespace, d.Name, owner),
			Note:    "it had no owner that this tool could set again",
		})
	}
	return s.Patch(d, action.Set("metadata.annotations["+owner+"]", a.Team))
}
