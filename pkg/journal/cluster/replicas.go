package cluster

import (
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The pace of the leases. None of them decides what may be sent: who settles what another
// replica left behind looks at the object until nothing can come any more, and his result
// counts only where the other did not go on.
const (
	beatEvery   = 3 * time.Second
	deadAfter   = 10 * time.Second // without a beat, by the clock of who looks
	leaseFor    = 15 * time.Second // of the leader
	renewFor    = 10 * time.Second
	retryEvery  = 2 * time.Second
	settleEvery = 5 * time.Second
	cleanEvery  = 10 * time.Minute
)

// How long Writes stay. A result is replayed for 24 h; a plan lives an hour at most, and its
// execution not much longer.
const (
	executedStays = 27 * time.Hour // from when it was planned
	openStays     = time.Hour      // from when it expired
)

const (
	leaderName   = "kube-write-mcp"
	replicaLabel = "kubewrite.dev/replica"
)

// leaseName is that of a replica's own lease.
func leaseName(inst string) string { return "kube-write-mcp-" + inst }

// beat is when a lease was seen to move last.
type beat struct {
	version string
	seen    time.Time // with the monotonic clock
}

// Live says to all replicas that this one is alive, until release, or until it dies. It
// fails where the ledger cannot be reached, or is not there, or this clock is wrong.
func (c *Cluster) Live() (release func(), err error) {
	ctx, stop := context.WithCancel(context.Background())
	leases := c.client.Leases.Leases(c.client.Namespace)
	first, cancel := context.WithTimeout(ctx, decideFor)
	defer cancel()
	if _, err = c.budget(first); err == nil {
		if err = c.enlist(first); err != nil {
			err = &failed{"this replica's lease cannot be made", err}
		}
	}
	if err != nil {
		stop()
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(beatEvery):
				if err := c.beat(ctx); err != nil && ctx.Err() == nil {
					c.log.Warn("this replica's lease could not be renewed", "err", &failed{"lease", err})
				}
			}
		}
	}()
	return func() {
		stop()
		<-done
		last, cancel := context.WithTimeout(context.Background(), retryEvery)
		defer cancel()
		if err := leases.Delete(last, leaseName(c.inst), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			c.log.Warn("this replica's lease could not be given back", "err", &failed{"lease", err})
		}
	}, nil
}

// enlist makes this replica's lease, which nobody else may have.
func (c *Cluster) enlist(ctx context.Context) error {
	now, seconds := metav1.NewMicroTime(c.now()), int32(deadAfter/time.Second)
	l, err := c.client.Leases.Leases(c.client.Namespace).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: leaseName(c.inst), Labels: map[string]string{replicaLabel: c.inst}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &c.inst, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return c.onTime(l.CreationTimestamp)
}

// beat renews this replica's lease, and makes it anew where somebody took it away.
func (c *Cluster) beat(ctx context.Context) error {
	leases := c.client.Leases.Leases(c.client.Namespace)
	l, err := leases.Get(ctx, leaseName(c.inst), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return c.enlist(ctx)
	case err != nil:
		return err
	}
	now := metav1.NewMicroTime(c.now())
	l.Spec.RenewTime = &now
	_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
	return err
}

// Alive reports whether the replica of an instance lives: its lease moved while we looked,
// or we have not looked for long. Where that cannot be seen it counts as alive.
func (c *Cluster) Alive(inst string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), retryEvery)
	defer cancel()
	l, err := c.client.Leases.Leases(c.client.Namespace).Get(ctx, leaseName(inst), metav1.GetOptions{})
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, last := time.Now(), c.peers[inst]
	if last.version != l.ResourceVersion {
		c.peers[inst] = beat{l.ResourceVersion, now}
		return true
	}
	return now.Sub(last.seen) < deadAfter
}

// Quiet is 0: replicas run on several machines, which have no clock in common that nobody
// can set. Each waits by itself.
func (c *Cluster) Quiet(string, string) time.Duration { return 0 }

// Maintain settles what dead replicas left behind and cleans up, while this replica is the
// leader, until ctx ends.
func (c *Cluster) Maintain(ctx context.Context, settle func()) {
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Name: leaderName, Namespace: c.client.Namespace}, Client: c.client.Leases,
				LockConfig: resourcelock.ResourceLockConfig{Identity: c.inst},
			},
			LeaseDuration: leaseFor, RenewDeadline: renewFor, RetryPeriod: retryEvery, ReleaseOnCancel: true, Name: leaderName,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { c.lead(ctx, settle) },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			c.log.Error("nobody settles and cleans up here", "err", err)
			return
		}
		elector.Run(ctx)
	}
}

func (c *Cluster) lead(ctx context.Context, settle func()) {
	var cleaned time.Time
	for ctx.Err() == nil {
		settle()
		if time.Since(cleaned) >= cleanEvery {
			if err := c.Clean(ctx); err != nil && ctx.Err() == nil {
				c.log.Warn("the ledger could not be cleaned up", "err", err)
			}
			cleaned = time.Now()
		}
		select {
		case <-ctx.Done():
		case <-time.After(settleEvery):
		}
	}
}

// Clean takes away Writes that nobody will ask for any more, and leases of replicas that
// are long dead. What was claimed and has no result stays, however old it is.
func (c *Cluster) Clean(ctx context.Context) error {
	var errs []error
	err := c.each(ctx, "", func(w *Write) error {
		if !c.past(w) {
			return nil
		}
		err := c.writes.Delete(ctx, w.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &w.UID, ResourceVersion: &w.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, &failed{"plan " + w.Name + " cannot be removed", err})
		}
		return nil
	})
	leases := c.client.Leases.Leases(c.client.Namespace)
	list, listErr := leases.List(ctx, metav1.ListOptions{LabelSelector: replicaLabel})
	if listErr != nil {
		return errors.Join(append(errs, err, &failed{"leases", listErr})...)
	}
	for _, l := range list.Items {
		if l.Spec.RenewTime != nil && c.now().Sub(l.Spec.RenewTime.Time) > openStays {
			if err := leases.Delete(ctx, l.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				errs = append(errs, &failed{"lease " + l.Name, err})
			}
		}
	}
	return errors.Join(append(errs, err)...)
}

// past reports whether a Write has had its time.
func (c *Cluster) past(w *Write) bool {
	age := c.now().Sub(w.CreationTimestamp.Time)
	if w.Status == nil { // its replica died before it was on record
		return age > openStays
	}
	switch w.Status.State {
	case Claimed, Unknown:
		return false
	case Executed, Failed, Indeterminate:
		return age > executedStays
	}
	expires, err := time.Parse(time.RFC3339, w.Spec.Expires)
	return err == nil && c.now().Sub(expires) > openStays && age > openStays || err != nil && age > executedStays
}
