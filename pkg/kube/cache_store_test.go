package kube

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// recount adds up pods from nothing.
func recount(pods []plan.Pod) plan.Loads {
	l := plan.Loads{}
	for _, p := range pods {
		l.Add(p)
	}
	return l
}

var storeNamespaces = []string{"a", "b", "c"}

// randomPod is one of a few names in some state: on a node or on none, on its way or at
// its end, with requests of several kinds or with none.
func randomPod(r *rand.Rand) *corev1.Pod {
	return onePod(func(p *corev1.Pod) {
		p.Namespace, p.Name = storeNamespaces[r.IntN(3)], fmt.Sprintf("p-%d", r.IntN(8))
		p.Spec.NodeName = []string{"", "n1", "n2", "n3"}[r.IntN(4)]
		p.Status.Phase = []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}[r.IntN(4)]
		requests := corev1.ResourceList{}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, "nvidia.com/gpu", "example.com/fpga"} {
			if r.IntN(2) == 0 {
				requests[name] = *resource.NewQuantity(r.Int64N(4), resource.DecimalSI)
			}
		}
		p.Spec.Containers = []corev1.Container{{Name: "web", Resources: corev1.ResourceRequirements{Requests: requests}}}
	})
}

// TestStoreAddsUp: after every event of a random sequence the sums are those of a recount
// of what a list would show. Meanwhile others read: what they see is of one moment.
func TestStoreAddsUp(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { storeAddsUp(t, seed) })
	}
}

func storeAddsUp(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	s := newStore()
	live := map[string]*corev1.Pod{} // what a list would show
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					wantSums(t, s)
				}
			}
		})
	}
	defer readers.Wait()
	defer close(stop)
	version := 0
	next := func(p *corev1.Pod) *corev1.Pod {
		version++
		p.ResourceVersion = strconv.Itoa(version)
		return p
	}
	key := func(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
	for range 300 {
		var err error
		p := next(randomPod(r))
		known, n := live[key(p)], r.IntN(20)
		switch {
		case n == 0: // a relist, which may have missed anything
			var list []any
			for range r.IntN(20) {
				p := next(randomPod(r))
				live[key(p)] = p
			}
			for name := range live {
				if r.IntN(4) == 0 {
					delete(live, name)
					continue
				}
				list = append(list, live[name])
			}
			err = s.Replace(list, p.ResourceVersion)
		case n < 6: // of one that is there, or is not
			delete(live, key(p))
			if known != nil && r.IntN(2) == 0 {
				p = next(known.DeepCopy())
			}
			err = s.Delete(p)
		case known == nil && n < 18:
			live[key(p)] = p
			err = s.Add(p)
		default: // also of one that no event has brought yet
			live[key(p)] = p
			err = s.Update(p)
		}
		if err != nil {
			t.Fatal(err)
		}
		var facts []plan.Pod
		for _, p := range live {
			facts = append(facts, PodFacts(p))
		}
		if got := wantSums(t, s); len(got) != len(live) {
			t.Fatalf("%d pods, want %d", len(got), len(live))
		}
		_, loads := s.in(nil, true)
		if diff := cmp.Diff(recount(facts), loads); diff != "" {
			t.Fatalf("(-recount +sums):\n%s", diff)
		}
	}
}

// wantSums fails where records and sums are not of one moment.
func wantSums(t *testing.T, s *store) (pods []plan.Pod) {
	t.Helper()
	records, loads := s.in(storeNamespaces, true)
	for _, r := range records {
		pods = append(pods, r.facts.(plan.Pod))
	}
	if diff := cmp.Diff(recount(pods), loads); diff != "" {
		t.Errorf("(-records +sums):\n%s", diff)
	}
	return pods
}

// TestStoreTwice: a list that has a pod twice counts it once.
func TestStoreTwice(t *testing.T) {
	s := newStore()
	p := onePod(func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	if err := s.Replace([]any{p, p}, "7"); err != nil {
		t.Fatal(err)
	}
	if records, loads := s.in([]string{p.Namespace}, true); len(records) != 1 || loads["n1"].Pods != 1 {
		t.Errorf("%d records, loads %v, want one pod", len(records), loads)
	}
}

// TestStoreAsAQueue: client-go's controller meets an end to its waiting, and the version of
// whatever came last.
func TestStoreAsAQueue(t *testing.T) {
	s := newStore()
	if s.HasSynced() || s.upTo() != "" {
		t.Errorf("it begins synced, or at version %q", s.upTo())
	}
	pod := func(version string) *corev1.Pod {
		return onePod(func(p *corev1.Pod) { p.ResourceVersion = version })
	}
	for _, step := range []struct {
		want string
		do   func() error
	}{
		{"5", func() error { return s.Replace([]any{pod("2")}, "5") }},
		{"6", func() error { return s.Update(pod("6")) }},
		{"8", func() error { return s.Bookmark("8") }},
		{"9", func() error { return s.Delete(pod("9")) }},
		{"10", func() error { return s.Add(pod("10")) }},
		{"12", func() error { return s.Replace(nil, "12") }},
	} {
		if err := step.do(); err != nil || s.upTo() != step.want {
			t.Errorf("at version %q (%v), want %q", s.upTo(), err, step.want)
		}
		select {
		case <-s.Done():
		default:
			t.Error("it is not synced after a list")
		}
	}
	s.Close()
	if _, err := s.Pop(nil); err != cache.ErrFIFOClosed {
		t.Errorf("Pop gave %v", err)
	}
}
