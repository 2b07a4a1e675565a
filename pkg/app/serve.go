package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/memory"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/read"
	"github.com/kubewrite/kube-write-mcp/pkg/server"
)

func (o *options) serve(cmd *cobra.Command, args []string) error {
	if o.listTools {
		return o.tools(cmd, args)
	}
	idle, forget := context.WithCancel(cmd.Context())
	defer forget()
	go memory.Return(idle)
	stderr := newLossy(cmd.ErrOrStderr())
	defer stderr.Close(time.Second)
	log := o.logger(stderr)
	policy, err := o.policy(cmd.Flags())
	if err != nil {
		return err
	}
	cluster, err := o.cluster()
	if err != nil {
		return err
	}
	listener, err := o.listen()
	if err != nil {
		return err
	}
	if listener != nil {
		defer listener.Close()
	}
	for _, own := range []string{cluster.namespace, o.ledgerNamespace} { // the server's own
		if own != "" && !slices.Contains(policy.ProtectNamespaces, own) {
			policy.ProtectNamespaces = append(policy.ProtectNamespaces, own)
		}
	}
	tel, err := newTelemetry(cmd.Context())
	if err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	defer flush(tel, log)
	cluster.config.Wrap(tel.requests)
	inst, err := instance()
	if err != nil {
		return err
	}
	dir, keys, err := o.keys(true)
	if err != nil {
		return err
	}
	replica, err := o.replica()
	if err != nil {
		return err
	}
	j, opened, err := journal.OpenBehind(journal.Options{Dir: dir, Path: o.audit, Keys: keys, Now: time.Now, Inst: inst, Replica: replica, Observe: tel.wrote})
	if err != nil {
		return err
	}
	defer func() {
		if err := j.Close(); err != nil {
			log.Error("the last checkpoint could not be signed", "err", err)
		}
	}()
	release, err := j.Live()
	if err != nil {
		return err
	}
	defer release()
	shared, err := o.shared(cluster, j, keys, inst, log)
	if err != nil {
		return err
	}
	defer shared.release()
	clients, err := kube.New(cluster.config, version(), time.Now, log)
	if err != nil {
		return err
	}
	defer clients.Cache.Close()
	tel.watch(clients.Cache, j)
	var who journal.Principal // over HTTP it is each caller
	if listener == nil {
		if who, err = principal(); err != nil {
			return err
		}
	}
	e := engine.New(engine.Config{
		Policy: policy, Actions: o.actions, Label: cluster.label, Inst: inst,
		VerifyWait: o.verifyWait, VerifyTimeout: o.verifyTimeout, Log: log, Second: shared.second,
	}, clients, shared.journal, keys, time.Now, rand.Reader)
	s, err := server.New(e, o.actions, server.Options{
		Version: version(), AllowWrite: o.allowWrite, ReadOnly: o.readOnly, Principal: who, HTTP: listener != nil, Log: log,
		Observe: func(ctx context.Context, tool string, header http.Header) (context.Context, func(failed bool)) {
			memory.Started() // it needs room now
			return tel.call(ctx, tool, header)
		},
		Reads: read.Cluster{API: clients.Read, Journal: j, Label: cluster.label, Redact: keys.Redact, Excluded: policy.Excluded, Now: time.Now, Replica: replica},
	})
	if err != nil {
		return err
	}
	background, end := context.WithCancel(context.Background())
	var work sync.WaitGroup
	defer work.Wait()
	defer end()
	work.Go(func() {
		<-opened
		if err := j.Sealed(); err != nil {
			log.Error("nothing can be planned or executed", "err", err)
		}
		select { // the first calls go before it
		case <-time.After(verifyAfter):
		case <-background.Done():
		}
		if err := j.VerifyAll(background); err != nil && background.Err() == nil {
			log.Error("the audit log does not verify", "err", err)
		}
	})
	work.Go(func() { shared.maintain(background, e.Settle) })
	guard := server.GuardOptions{OnStop: e.Stop, Finish: e.Wait, Log: log}
	if listener == nil {
		log.Info("serving MCP on stdio", "cluster", cluster.label, "write", o.allowWrite, "state", dir)
		return server.ServeStdio(cmd.Context(), s, o.stdin, cmd.OutOrStdout(), guard)
	}
	options, err := o.httpOptions(guard, clients, j, shared.ready)
	if err != nil {
		return err
	}
	options.Metrics, options.Count = tel.handler(), tel.answered
	log.Info("serving MCP over HTTP", "address", listener.Addr().String(), "tls", options.TLS != nil, "cluster", cluster.label, "write", o.allowWrite, "state", dir)
	return server.ServeHTTP(cmd.Context(), s, listener, options)
}

// flushWait bounds the wait for the last traces.
const flushWait = 3 * time.Second

func flush(tel *telemetry, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), flushWait)
	defer cancel()
	if err := tel.stop(ctx); err != nil {
		log.Error("the last traces could not be sent", "err", err)
	}
}

// verifyAfter is how long after a start what stands before the last checkpoint is verified:
// it takes a core for a second or more where the journal is long.
const verifyAfter = time.Second

// logger writes to stderr; stdout belongs to the protocol.
func (o *options) logger(w io.Writer) *slog.Logger {
	level := slog.LevelInfo
	if o.quiet {
		level = slog.LevelError
	}
	log := slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	if o.stdin == os.Stdin {
		klog.SetSlogLogger(log) // client-go's own log is process-wide: only in a process of our own
	}
	return log
}

// principal is the user of the operating system.
func principal() (journal.Principal, error) {
	who, err := user.Current()
	if err != nil {
		return journal.Principal{}, fmt.Errorf("who is calling: %w", err)
	}
	return journal.Principal{Kind: "os", Name: plan.Untrusted(who.Username)}, nil
}

func instance() (string, error) {
	b := make([]byte, 7)
	if _, err := io.ReadFull(rand.Reader, b); err != nil {
		return "", err
	}
	return plan.NewID(b)[:4], nil
}

// folder is the state folder.
func (o *options) folder() string {
	if o.stateDir != "" {
		return o.stateDir
	}
	return filepath.Join(xdg.StateHome, "kube-write-mcp")
}

// keys gives the state folder and the key ring. A key file that was named is never made.
func (o *options) keys(make bool) (dir string, keys *journal.Keyring, err error) {
	dir = o.folder()
	if o.keyFile != "" {
		keys, err = journal.ReadKeys(o.keyFile, time.Now)
		return dir, keys, err
	}
	path := filepath.Join(dir, "keys.json")
	if !make {
		keys, err = journal.ReadKeys(path, time.Now)
		if errors.Is(err, os.ErrNotExist) {
			return dir, nil, fmt.Errorf("there is no journal in %s yet", dir)
		}
		return dir, keys, err
	}
	keys, err = journal.LoadKeys(path, time.Now, rand.Reader)
	return dir, keys, err
}

// cluster is the one cluster that this process works on.
type cluster struct {
	config    *rest.Config
	label     string // "" in a pod without --cluster-name: the identity's first characters then
	namespace string // the server's own, in a pod
}

// serviceAccountNamespace is where a pod finds its own namespace.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func (o *options) cluster() (cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	raw, err := rules.Load()
	if err != nil {
		return cluster{}, fmt.Errorf("kubeconfig: %w", err)
	}
	label := o.clusterName
	if label != "" && !plan.ValidLabel(label) {
		return cluster{}, badLabel(label)
	}
	if len(raw.Contexts) == 0 && o.kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return cluster{}, errors.New("no kubeconfig was found and this is no pod: name one with --kubeconfig")
		}
		own, _ := os.ReadFile(serviceAccountNamespace)
		return cluster{config: cfg, label: label, namespace: strings.TrimSpace(string(own))}, err
	}
	name := o.context
	if name == "" {
		name = raw.CurrentContext
		if o.allowWrite && len(raw.Contexts) > 1 {
			return cluster{}, fmt.Errorf("with --allow-write, name the cluster with --context; there are %s", strings.Join(contexts(raw), ", "))
		}
	}
	if _, ok := raw.Contexts[name]; !ok {
		return cluster{}, fmt.Errorf("there is no context %q; there are %s", name, strings.Join(contexts(raw), ", "))
	}
	if label == "" {
		label = name
	}
	if !plan.ValidLabel(label) {
		return cluster{}, badLabel(label)
	}
	cfg, err := clientcmd.NewNonInteractiveClientConfig(*raw, name, &clientcmd.ConfigOverrides{}, rules).ClientConfig()
	if err != nil {
		return cluster{}, fmt.Errorf("kubeconfig: %w", err)
	}
	switch {
	case o.execCredentials != "allow" && o.execCredentials != "deny":
		return cluster{}, fmt.Errorf("exec-credentials must be allow or deny, not %q", o.execCredentials)
	case o.execCredentials == "deny" && cfg.ExecProvider != nil:
		cfg.ExecProvider.PluginPolicy = clientcmdapi.PluginPolicy{PolicyType: clientcmdapi.PluginPolicyDenyAll}
	}
	return cluster{config: cfg, label: label}, nil
}

func badLabel(label string) error {
	return fmt.Errorf("the name %q cannot stand in a phrase: give one of at most 80 letters, digits and ._:/@- with --cluster-name", label)
}

func contexts(raw *clientcmdapi.Config) (names []string) {
	for name := range raw.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
