package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	ledger "github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// The ledgers that --ledger knows.
const (
	ledgerFile    = "file"
	ledgerCluster = "cluster"
)

var errNoLedgerNamespace = errors.New("with --ledger cluster and outside of a pod, name its namespace with --ledger-namespace")

// shared is the ledger that a server decides by, and what it does for it.
type shared struct {
	journal  engine.Journal
	release  func()                                   // says that this process is gone
	maintain func(ctx context.Context, settle func()) // until ctx ends
	ready    func(ctx context.Context) error          // whether anything can be put on record
	second   func(ctx context.Context, p *plan.Plan, but ...string) (string, error)
}

// replica is the name that this one's checkpoints bear, the pod's; "" where the file is all
// there is.
func (o *options) replica() (string, error) {
	if o.ledger != ledgerCluster {
		return "", nil
	}
	return os.Hostname()
}

// checkLedger says what is wrong with the flags that choose the ledger.
func (o *options) checkLedger() error {
	switch {
	case !slices.Contains([]string{ledgerFile, ledgerCluster}, o.ledger):
		return fmt.Errorf("ledger must be %s or %s, not %q", ledgerFile, ledgerCluster, o.ledger)
	case o.ledger == ledgerFile && o.ledgerNamespace != "":
		return errors.New("ledger-namespace is for --ledger cluster")
	}
	return nil
}

// shared opens the ledger: the file itself, or the objects in the cluster with the file
// beside them.
func (o *options) shared(at cluster, file *journal.Journal, keys *journal.Keyring, inst string, log *slog.Logger) (shared, error) {
	if err := o.checkLedger(); err != nil {
		return shared{}, err
	}
	if o.ledger == ledgerFile {
		return shared{journal: file, release: func() {}, maintain: func(_ context.Context, settle func()) { settle() }, ready: func(context.Context) error { return nil }}, nil
	}
	if o.keyFile == "" {
		return shared{}, errors.New("with --ledger cluster, name the key file that all replicas share with --key-file")
	}
	client, err := o.ledgerClient(at)
	if err != nil {
		return shared{}, err
	}
	c := ledger.New(ledger.Options{File: file, Client: client, Keys: keys, Inst: inst, Now: time.Now, Log: log})
	release, err := c.Live()
	if err != nil {
		return shared{}, err
	}
	return shared{journal: c, release: release, maintain: c.Maintain, ready: c.Ready, second: c.Approver}, nil
}

// ledgerClient reaches the ledger's objects.
func (o *options) ledgerClient(at cluster) (*kube.LedgerClient, error) {
	namespace := cmp.Or(o.ledgerNamespace, at.namespace)
	if namespace == "" {
		return nil, errNoLedgerNamespace
	}
	return kube.NewLedger(at.config, version(), namespace, ledger.Register)
}
