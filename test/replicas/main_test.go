// Package replicas runs several servers on one cluster ledger, on a real API server that
// has its definitions: as processes, where one is killed or stopped, and in this process.
package replicas

import (
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kubewrite/kube-write-mcp/pkg/app"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/test/harness"
	"github.com/kubewrite/kube-write-mcp/test/lab"
)

var cp *lab.Lab

// together is how many tests run at once: nearly all of them wait until a replica counts as
// dead, and until what it sent can come no more.
const together = "20"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", together); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lab.Main(m, lab.Options{}, func(l *lab.Lab) {
		cp = l
		if _, err := envtest.InstallCRDs(l.Config, envtest.CRDInstallOptions{CRDs: cluster.CRDs()}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			_ = l.Stop()
			os.Exit(1)
		}
		// The program hands client-go's log to its own when it first serves; not while a
		// client of a test is at work.
		app.Main([]string{"serve", "--ttl", "0s"}, nil, io.Discard, io.Discard)
	})
}

// binary is the shipped program, built once into the folder of the lab.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(cp.AuditLog()), "kube-write-mcp")
	out, err := exec.Command("go", "build", "-o", path, "github.com/kubewrite/kube-write-mcp/cmd/kube-write-mcp").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

// shared is a ledger of its own, in a namespace that the server's account has exactly the
// ledger's rights in.
type shared struct {
	t         *testing.T
	namespace string
	keys      []byte // the key file of all replicas
	admin     *kube.LedgerClient
}

func newLedger(t *testing.T) shared {
	t.Helper()
	harness.Account(t, cp)
	l := shared{t: t, namespace: cp.Namespace(t)}
	ctx, rbac := t.Context(), cp.Client.RbacV1()
	if _, err := rbac.Roles(l.namespace).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "ledger"}, Rules: cluster.Rules()}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := rbac.RoleBindings(l.namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "ledger"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "ledger"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-write-mcp", Name: "server"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "state", "keys.json")
	if _, err := journal.LoadKeys(path, time.Now, rand.Reader); err != nil {
		t.Fatal(err)
	}
	var err error
	if l.keys, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	l.admin = l.client(cp.Config)
	own := l.client(harness.Account(t, cp))
	lab.Eventually(t, "the rights to the ledger", func() (bool, error) {
		_, err := objects(own).List(ctx, metav1.ListOptions{})
		return err == nil, err
	})
	return l
}

// ring is the key file as a replica has it.
func (l shared) ring() *journal.Keyring {
	l.t.Helper()
	keys, err := journal.ReadKeys(filepath.Join(l.options().State, "keys.json"), time.Now)
	if err != nil {
		l.t.Fatal(err)
	}
	return keys
}

// client reaches the ledger's objects with any account.
func (l shared) client(cfg *rest.Config) *kube.LedgerClient {
	l.t.Helper()
	c, err := kube.NewLedger(cfg, "test", l.namespace, cluster.Register)
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

// options are those of a replica: a state folder of its own, with the keys of all.
func (l shared) options(args ...string) harness.Options {
	l.t.Helper()
	state := filepath.Join(l.t.TempDir(), "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		l.t.Fatal(err)
	}
	keys := filepath.Join(state, "keys.json")
	if err := os.WriteFile(keys, l.keys, 0o600); err != nil {
		l.t.Fatal(err)
	}
	quick := append([]string{"--ledger", "cluster", "--ledger-namespace", l.namespace, "--key-file", keys, "--verify-timeout", "1s"}, harness.Wide...)
	return harness.Options{State: state, Args: append(quick, args...)}
}

// start runs a replica in this process.
func (l shared) start(args ...string) *harness.Server {
	l.t.Helper()
	o := l.options(args...)
	l.t.Cleanup(func() { verified(l.t, o.State) })
	return harness.Start(l.t, cp, o)
}

// spawn runs a replica as a process of its own.
func (l shared) spawn(args ...string) *harness.Server {
	l.t.Helper()
	bin, err := binary()
	if err != nil {
		l.t.Fatal(err)
	}
	o := l.options(args...)
	l.t.Cleanup(func() { verified(l.t, o.State) })
	return harness.Spawn(l.t, cp, bin, o)
}

// verified verifies a replica's journal as `audit verify` does.
func verified(t *testing.T, state string) *journal.Report {
	t.Helper()
	keys, err := journal.ReadKeys(filepath.Join(state, "keys.json"), time.Now)
	if err != nil {
		t.Error(err)
		return nil
	}
	r, err := journal.Verify(filepath.Join(state, "audit.jsonl"), keys, journal.VerifyOptions{})
	if err != nil {
		t.Errorf("the journal of %s: %v", state, err)
	}
	return r
}

func objects(c *kube.LedgerClient) interface {
	Get(context.Context, string, metav1.GetOptions) (*cluster.Write, error)
	List(context.Context, metav1.ListOptions) (*cluster.WriteList, error)
	Create(context.Context, *cluster.Write, metav1.CreateOptions) (*cluster.Write, error)
	Update(context.Context, *cluster.Write, metav1.UpdateOptions) (*cluster.Write, error)
	UpdateStatus(context.Context, *cluster.Write, metav1.UpdateOptions) (*cluster.Write, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
} {
	return kube.LedgerObjects(c, "writes", func() *cluster.Write { return &cluster.Write{} }, func() *cluster.WriteList { return &cluster.WriteList{} })
}

func approvals(c *kube.LedgerClient) interface {
	Create(context.Context, *cluster.Approval, metav1.CreateOptions) (*cluster.Approval, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
} {
	return kube.LedgerObjects(c, "approvals", func() *cluster.Approval { return &cluster.Approval{} }, func() *cluster.ApprovalList { return &cluster.ApprovalList{} })
}

func budgets(c *kube.LedgerClient) interface {
	Get(context.Context, string, metav1.GetOptions) (*cluster.RateBudget, error)
	UpdateStatus(context.Context, *cluster.RateBudget, metav1.UpdateOptions) (*cluster.RateBudget, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
} {
	return kube.LedgerObjects(c, "ratebudgets", func() *cluster.RateBudget { return &cluster.RateBudget{} }, func() *cluster.RateBudgetList { return &cluster.RateBudgetList{} })
}

// serverAccount is that of every replica.
func serverAccount(t *testing.T) *rest.Config { return harness.Account(t, cp) }

// one gives the only Write of the ledger.
func (l shared) one() *cluster.Write {
	l.t.Helper()
	list, err := objects(l.admin).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	if len(list.Items) != 1 {
		l.t.Fatalf("%d plans in the ledger, want 1", len(list.Items))
	}
	return &list.Items[0]
}

// scales are the live scales that went over the wire of some replicas; what else is written
// there is the ledger's.
func scales(servers ...*harness.Server) (n int) {
	for _, s := range servers {
		n += len(s.Proxy.Requests(isScale))
	}
	return n
}

func isScale(r harness.Request) bool {
	return r.Mutates() && strings.HasSuffix(r.Path, "/scale")
}

// settled asks until there is a result.
func settled(t *testing.T, s *harness.Server, tool string, args harness.Args) (x harness.Execution) {
	t.Helper()
	lab.Eventually(t, "a result of "+tool, func() (bool, error) {
		got := s.Must(tool, args)
		x = harness.Into[harness.Execution](t, got)
		if code := harness.Code(got); code != "" {
			t.Fatalf("refused: %s", got.Text)
		}
		return x.Result != nil, nil
	})
	return x
}

func wantSame(t *testing.T, first, again harness.Execution) {
	t.Helper()
	if !again.Replayed || !bytes.Equal(first.Result, again.Result) {
		t.Errorf("replayed %t with\n%s\nwant\n%s", again.Replayed, again.Result, first.Result)
	}
}

func scaleWeb(t *testing.T, ns string, n int32) {
	t.Helper()
	deployments := cp.Client.AppsV1().Deployments(ns)
	s, err := deployments.GetScale(t.Context(), "web", metav1.GetOptions{})
	if err == nil {
		s.Spec.Replicas = n
		_, err = deployments.UpdateScale(t.Context(), "web", s, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}
