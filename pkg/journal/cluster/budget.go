package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// BudgetName is the name of the one RateBudget.
const BudgetName = "kube-write-mcp"

// How far back it looks, and how much it holds. What does not fit is refused: nothing may
// be forgotten early that a gate goes by.
const (
	ratesMemory    = 5 * time.Minute
	capacityMemory = 10 * time.Minute
	maxUsed        = 4000
	maxSeen        = 8000
)

// used adds to a budget what lines use up. It reports whether they do.
func (st *RateBudgetStatus) used(lines []*journal.Line, now time.Time) (changes bool) {
	at := now.UnixMilli()
	for _, l := range lines {
		switch l.Event {
		case journal.EventPlan, journal.EventDryRunFailed, journal.EventRefused, journal.EventExpired, journal.EventStale:
			st.Calls, changes = append(st.Calls, Used{Cluster: l.Cluster, At: at}), true
		case journal.EventIntent: // a plan counts once, whichever replica claims it
			if !slices.ContainsFunc(st.Writes, func(u Used) bool { return u.Plan == l.Plan }) {
				st.Writes, changes = append(st.Writes, Used{l.Plan, l.Cluster, at}), true
			}
		}
		for _, r := range l.Ready {
			st.Seen = slices.DeleteFunc(st.Seen, func(s Seen) bool { return s.UID == r.UID && s.Ready <= r.Ready })
			st.Seen, changes = append(st.Seen, Seen{r.UID, r.Ready, at}), true
		}
	}
	return changes
}

// forget takes off what is too old.
func (st *RateBudgetStatus) forget(now time.Time) {
	before := func(memory time.Duration) int64 { return now.Add(-memory).UnixMilli() }
	old := func(u Used) bool { return u.At < before(ratesMemory) }
	st.Writes, st.Calls = slices.DeleteFunc(st.Writes, old), slices.DeleteFunc(st.Calls, old)
	st.Seen = slices.DeleteFunc(st.Seen, func(s Seen) bool { return s.At < before(capacityMemory) })
}

// times are those after since of what was used in a cluster, ascending, but for a plan's.
func times(used []Used, cluster string, since time.Time, but string) (out []time.Time) {
	for _, u := range used {
		if at := time.UnixMilli(u.At); u.Cluster == cluster && at.After(since) && (but == "" || u.Plan != but) {
			out = append(out, at)
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}

// peak is the highest number after since, and the last time of it.
func (st *RateBudgetStatus) peak(uid string, since time.Time) (ready int, at time.Time) {
	for _, s := range st.Seen {
		if t := time.UnixMilli(s.At); s.UID == uid && t.After(since) && (s.Ready > ready || s.Ready == ready && t.After(at)) {
			ready, at = s.Ready, t
		}
	}
	return ready, at
}

// budget reads the RateBudget live. One that is not there is made from the Writes, so that
// to delete it gives nobody a new budget.
func (c *Cluster) budget(ctx context.Context) (*RateBudget, error) {
	for {
		b, err := read(ctx, func() (*RateBudget, error) { return c.budgets.Get(ctx, BudgetName, metav1.GetOptions{}) })
		switch {
		case apierrors.IsNotFound(err):
			if err := missing(err); err != nil {
				return nil, err
			}
			_, err := c.budgets.Create(ctx, &RateBudget{
				TypeMeta:   metav1.TypeMeta{APIVersion: kube.LedgerGroup.String(), Kind: "RateBudget"},
				ObjectMeta: metav1.ObjectMeta{Name: BudgetName},
			}, metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return nil, &failed{"the rate budget cannot be made", err}
			}
		case err != nil:
			return nil, &failed{"the rate budget cannot be read", err}
		case b.Status == nil:
			if err := c.rebuild(ctx, b); err != nil && !errors.Is(err, errMoved) {
				return nil, err
			}
		default:
			if err := same(b.Status.MAC, func() (string, error) { return c.budgetMAC(b) }); err != nil {
				return nil, changed("the rate budget", err)
			}
			return b, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, &failed{"the rate budget cannot be read", err}
		}
	}
}

// rebuild gives a budget its first status.
func (c *Cluster) rebuild(ctx context.Context, b *RateBudget) error {
	b.Status = &RateBudgetStatus{Writes: []Used{}, Calls: []Used{}, Seen: []Seen{}}
	now := c.now()
	err := c.each(ctx, "", func(w *Write) error {
		if w.Status == nil || c.check(w) != nil {
			return nil
		}
		for _, raw := range w.Status.Lines {
			var l journal.Line
			if err := json.Unmarshal([]byte(raw), &l); err != nil {
				return err
			}
			if now.Sub(l.Time) <= capacityMemory && (l.Event == journal.EventPlan || l.Event == journal.EventIntent) {
				b.Status.used([]*journal.Line{&l}, l.Time)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.Status.forget(now)
	_, err = c.spend(ctx, b)
	return err
}

// spend writes the next status of the budget. errMoved says that it is another one by now.
func (c *Cluster) spend(ctx context.Context, b *RateBudget) (got *RateBudget, err error) {
	if len(b.Status.Writes) > maxUsed || len(b.Status.Calls) > maxUsed || len(b.Status.Seen) > maxSeen {
		return nil, errors.New("the rate budget is full: more was planned in the last minutes than it can hold")
	}
	b.Status.KeyID = c.keys.Current()
	b.Status.Serial++
	if b.Status.MAC, err = c.budgetMAC(b); err != nil {
		return nil, err
	}
	err = c.sure(ctx, func() (err error) {
		got, err = c.budgets.UpdateStatus(ctx, b, metav1.UpdateOptions{})
		return err
	}, func() (bool, error) {
		got, err = c.budgets.Get(ctx, BudgetName, metav1.GetOptions{})
		return settledAs(err, got, func() bool { return got.UID == b.UID && got.Status != nil && got.Status.MAC == b.Status.MAC }, b.ResourceVersion)
	})
	switch {
	case errors.Is(err, errMoved), apierrors.IsNotFound(err):
		return nil, errMoved
	case err != nil:
		return nil, &failed{"the rate budget cannot be updated", err}
	}
	return got, nil
}

// stateOf is the state that a result ends a plan in.
func stateOf(o plan.Outcome) State {
	switch o {
	case plan.Executed:
		return Executed
	case plan.Indeterminate:
		return Indeterminate
	}
	return Failed
}
