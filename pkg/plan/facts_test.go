package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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

func TestLoads(t *testing.T) {
	const gpu, fpga = "nvidia.com/gpu", "example.com/fpga"
	pod := func(node, phase string, r Resources) Pod { return Pod{Node: node, Phase: phase, Requests: r} }
	web := pod("n1", "Running", Resources{CPU: 100, Memory: 5})
	with := pod("n1", "Pending", Resources{CPU: 10, Other: map[string]int64{gpu: 1, fpga: 0}})
	done := pod("n1", "Succeeded", Resources{CPU: 1000, Memory: 1000, Other: map[string]int64{fpga: 1}})
	for name, tc := range map[string]struct {
		add, remove []Pod
		want        Loads
	}{
		"none":            {nil, nil, Loads{}},
		"one":             {[]Pod{web}, nil, Loads{"n1": {1, 1, Resources{CPU: 100, Memory: 5}}}},
		"on no node":      {[]Pod{pod("", "Pending", Resources{CPU: 100})}, nil, Loads{}},
		"on another":      {[]Pod{web, pod("n2", "Running", Resources{Memory: 1})}, nil, Loads{"n1": {1, 1, Resources{CPU: 100, Memory: 5}}, "n2": {1, 1, Resources{Memory: 1}}}},
		"ended":           {[]Pod{web, done}, nil, Loads{"n1": {2, 1, Resources{CPU: 100, Memory: 5}}}},
		"a device":        {[]Pod{web, with, with}, nil, Loads{"n1": {3, 3, Resources{CPU: 120, Memory: 5, Other: map[string]int64{gpu: 2}}}}},
		"a device less":   {[]Pod{web, with, with}, []Pod{with}, Loads{"n1": {2, 2, Resources{CPU: 110, Memory: 5, Other: map[string]int64{gpu: 1}}}}},
		"no device left":  {[]Pod{web, with}, []Pod{with}, Loads{"n1": {1, 1, Resources{CPU: 100, Memory: 5}}}},
		"only ended left": {[]Pod{web, done}, []Pod{web}, Loads{"n1": {1, 0, Resources{}}}},
		"nothing left":    {[]Pod{web, with, done}, []Pod{done, web, with}, Loads{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := Loads{}
			for _, p := range tc.add {
				l.Add(p)
			}
			before := l.Clone()
			for _, p := range tc.remove {
				l.Remove(p)
			}
			if diff := cmp.Diff(tc.want, l); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, p := range tc.remove {
				l.Add(p)
			}
			if diff := cmp.Diff(before, l); diff != "" {
				t.Errorf("taken away and added again (-before +after):\n%s", diff)
			}
		})
	}
	l := Loads{}
	l.Add(with)
	clone := l.Clone()
	l.Add(with)
	if got := clone["n1"].Requests.Other[gpu]; got != 1 {
		t.Errorf("the clone has %d devices, want the 1 of before", got)
	}
}
