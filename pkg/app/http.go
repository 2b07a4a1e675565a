package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/server"
)

// listen opens the address of --http; without one it gives nil, and without a certificate
// it must be a loopback one.
func (o *options) listen() (net.Listener, error) {
	switch {
	case o.http == "":
		return nil, nil
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return nil, errors.New("tls-cert and tls-key go together")
	case o.requestsPerSecond < 1:
		return nil, errors.New("requests-per-second must be 1 or more")
	case o.audience == "":
		return nil, errors.New("audience must not be empty: a token for the API server itself must not pass")
	}
	addr, err := net.ResolveTCPAddr("tcp", o.http)
	if err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	if o.tlsCert == "" && !addr.IP.IsLoopback() {
		return nil, fmt.Errorf("%s is no loopback address: give a certificate with --tls-cert and --tls-key, or listen on 127.0.0.1", o.http)
	}
	l, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	return l, nil
}

// httpOptions are those of the flags.
func (o *options) httpOptions(guard server.GuardOptions, clients *kube.Clients, j *journal.Journal, ledger func(context.Context) error) (server.HTTPOptions, error) {
	out := server.HTTPOptions{
		GuardOptions: guard, Gate: clients.Reviews(o.audience, time.Now), Host: isLoopback, Rate: o.requestsPerSecond,
		Namespaces: o.allow, Impersonate: o.impersonate, Ready: (&readiness{clients: clients, journal: j, ledger: ledger}).check,
	}
	if o.tlsCert == "" {
		return out, nil
	}
	cert, err := newCertificate(o.tlsCert, o.tlsKey, guard.Log)
	if err != nil {
		return out, err
	}
	out.TLS, out.Host = cert.config(), cert.names
	return out, nil
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.IsLoopback()
}

// The pace of asking whether the cluster is there: whoever asks us needs no token.
const (
	readyFor  = 5 * time.Second
	readyWait = 3 * time.Second
)

// readiness says whether anything can be planned or executed.
type readiness struct {
	clients *kube.Clients
	journal *journal.Journal
	ledger  func(context.Context) error

	mu   sync.Mutex
	seen time.Time
	lost error
}

// check asks the API server at most every 5 s. What it says is short and fixed: anybody may
// read it.
func (r *readiness) check(ctx context.Context) error {
	if r.journal.Sealed() != nil {
		return errors.New("the journal is sealed")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.seen) >= readyFor {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyWait)
		defer cancel()
		r.lost = nil
		if _, err := r.clients.Read.Identity(ctx, true); err != nil {
			r.lost = errors.New("the API server does not answer")
		} else if err := r.ledger(ctx); err != nil {
			r.lost = errors.New("the ledger cannot be reached")
		}
		r.seen = time.Now()
	}
	return r.lost
}
