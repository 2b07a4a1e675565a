package plan

import (
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func TestTop(t *testing.T) {
	hashed := map[string]string{"pod-template-hash": "5f7"}
	for name, tc := range map[string]struct {
		pod  Pod
		want Owner
	}{
		"of a deployment":              {Pod{Owner: Owner{"ReplicaSet", "web-5f7", "u"}, Labels: hashed}, Owner{Kind: "Deployment", Name: "web"}},
		"of a replicaset of its own":   {Pod{Owner: Owner{"ReplicaSet", "web-5f7", "u"}}, Owner{"ReplicaSet", "web-5f7", "u"}},
		"of one with another's hash":   {Pod{Owner: Owner{"ReplicaSet", "web", "u"}, Labels: hashed}, Owner{"ReplicaSet", "web", "u"}},
		"the hash inside of the name":  {Pod{Owner: Owner{"ReplicaSet", "web-5f7-x", "u"}, Labels: hashed}, Owner{"ReplicaSet", "web-5f7-x", "u"}},
		"of a statefulset with a hash": {Pod{Owner: Owner{"StatefulSet", "db-5f7", "u"}, Labels: hashed}, Owner{"StatefulSet", "db-5f7", "u"}},
		"of nobody":                    {Pod{Labels: hashed}, Owner{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.pod.Top(); got != tc.want {
				t.Errorf("Top() = %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestFinished(t *testing.T) {
	for phase, want := range map[string]bool{"Pending": false, "Running": false, "Unknown": false, "": false, "Succeeded": true, "Failed": true} {
		if got := (Pod{Phase: phase}).Finished(); got != want {
			t.Errorf("a pod in phase %q is finished: %t, want %t", phase, got, want)
		}
	}
}

func TestCovers(t *testing.T) {
	web := Pod{Namespace: "default", Labels: map[string]string{"app": "web"}}
	for name, tc := range map[string]struct {
		budget Budget
		want   bool
	}{
		"its label":          {Budget{Namespace: "default", Selector: labels.SelectorFromSet(labels.Set{"app": "web"})}, true},
		"another label":      {Budget{Namespace: "default", Selector: labels.SelectorFromSet(labels.Set{"app": "api"})}, false},
		"another namespace":  {Budget{Namespace: "prod", Selector: labels.SelectorFromSet(labels.Set{"app": "web"})}, false},
		"the empty selector": {Budget{Namespace: "default", Selector: labels.Everything()}, true},
		"the null selector":  {Budget{Namespace: "default", Selector: labels.Nothing()}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.budget.Covers(web); got != tc.want {
				t.Errorf("Covers() = %t, want %t", got, tc.want)
			}
		})
	}
}

func TestSchedulable(t *testing.T) {
	for name, tc := range map[string]struct {
		node Node
		want bool
	}{
		"ready":         {Node{Ready: true}, true},
		"not ready":     {Node{}, false},
		"cordoned":      {Node{Ready: true, Unschedulable: true}, false},
		"tainted":       {Node{Ready: true, Taints: []Taint{{Key: "gpu"}}}, false},
		"all of it bad": {Node{Unschedulable: true, Taints: []Taint{{Key: "gpu"}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.node.Schedulable(); got != tc.want {
				t.Errorf("Schedulable() = %t, want %t", got, tc.want)
			}
		})
	}
}
