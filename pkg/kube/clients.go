// Package kube builds every client: a reader that can only read, writers behind the
// fence, and the informer caches.
package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// WriteTimeout is how long the client waits for the answer to a write.
const WriteTimeout = 30 * time.Second

// Clients are the ways to one cluster.
type Clients struct {
	Read  *Reader
	Dry   *Writer // sends dry runs and nothing else
	Live  *Writer // for the engine's Execute
	Cache *Cache
}

// New builds the clients of one cluster; it sends nothing. Request bodies are JSON, so
// that the fence can read them; answers may be protobuf. client-go's own rate limit is
// off: the gates count, and the API server has priority and fairness.
func New(cfg *rest.Config, version string, now func() time.Time, log *slog.Logger) (*Clients, error) {
	host, _, err := rest.DefaultServerURL(cmp.Or(cfg.Host, "localhost"), "", schema.GroupVersion{}, true)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	base := strings.TrimSuffix(host.Path, "/")
	// A token in a file is read anew at the first 401; client-go's own source would send the
	// one that was replaced for up to a minute.
	var token transport.WrapperFunc
	if cfg.BearerTokenFile != "" {
		token = transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(cfg.BearerTokenFile))
	}
	build := func(mode Mode, timeout time.Duration) (kubernetes.Interface, error) {
		c := rest.CopyConfig(cfg)
		c.ContentType = "application/json"
		c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
		c.QPS, c.Burst, c.Timeout = -1, 0, timeout
		c.UserAgent = "kube-write-mcp/" + version
		c.WarningHandlerWithContext = warnings{}
		c.Wrap(Fence(mode, base))
		if mode != ReadOnly {
			c.Wrap(impersonates)
		}
		if token != nil {
			c.BearerToken, c.BearerTokenFile = "", ""
			c.Wrap(token)
		}
		return kubernetes.NewForConfig(c)
	}
	read, err := build(ReadOnly, 0)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	dry, err := build(Planning, WriteTimeout)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	live, err := build(Live, WriteTimeout)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	ca := sha256.Sum256(append([]byte(cfg.Host+"\x00"+cfg.CAFile+"\x00"), cfg.CAData...))
	return &Clients{
		Read:  &Reader{Interface: read, server: "server-" + hex.EncodeToString(ca[:8])},
		Dry:   &Writer{Planning, dry},
		Live:  &Writer{Live, live},
		Cache: NewCache(read, now, log),
	}, nil
}

// Reader reads. Its transport lets nothing else through.
type Reader struct {
	kubernetes.Interface
	server string

	mu       sync.Mutex
	identity string

	user atomic.Pointer[string]
}

// Server is what identifies the cluster without asking it: a hash of CA and address.
func (r *Reader) Server() string { return r.server }

// Get reads one object live, as JSON fields.
func (r *Reader) Get(ctx context.Context, t plan.Target) (plan.Object, error) {
	k, err := typedFor(t.Resource)
	if err != nil {
		return nil, err
	}
	return k.get(ctx, r.Interface, t)
}

// historyWait bounds the search for an object's versions.
const historyWait = 5 * time.Second

// History gives every version of an object after one version up to another, in order. It
// fails where the API server keeps them no more. What came and went again is seen in no
// other way.
func (r *Reader) History(ctx context.Context, t plan.Target, after, upTo string) (versions []plan.Object, err error) {
	k, err := typedFor(t.Resource)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, historyWait)
	defer cancel()
	w, err := k.watch(ctx, r.Interface, t.Namespace, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", t.Name).String(), ResourceVersion: after,
	})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return nil, apierrors.FromObject(event.Object) // too old: 410
		}
		o, err := plan.ObjectOf(event.Object)
		if err != nil {
			return nil, err
		}
		if versions = append(versions, o); reached(o.Value("metadata.resourceVersion"), upTo) {
			return versions, nil
		}
	}
	return nil, fmt.Errorf("the versions of %s after %s did not come in %s", t, after, historyWait)
}

// Identity is the cluster's: the UID of its kube-system namespace, or Server where
// reading that is forbidden. It is read once, unless fresh asks again.
func (r *Reader) Identity(ctx context.Context, fresh bool) (string, error) {
	r.mu.Lock()
	known := r.identity
	r.mu.Unlock()
	if known != "" && !fresh {
		return known, nil
	}
	ns, err := r.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	identity := r.server
	switch {
	case err == nil:
		identity = string(ns.UID)
	case !apierrors.IsForbidden(err):
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.identity = identity
	return identity, nil
}

// Known is the identity that the last Identity found, or Server before the first one.
func (r *Reader) Known() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.identity == "" {
		return r.server
	}
	return r.identity
}

// KnownUser is the username that the API server sees, as the last Introduce found it.
func (r *Reader) KnownUser() string {
	if u := r.user.Load(); u != nil {
		return *u
	}
	return ""
}

// Introduce asks the API server who we are, once; where it does not say, nobody is named.
func (r *Reader) Introduce(ctx context.Context) {
	if r.user.Load() != nil {
		return
	}
	review, err := r.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if _, answered := errors.AsType[*apierrors.StatusError](err); err != nil && !answered {
		return // ask again next time
	}
	u := ""
	if err == nil {
		u = plan.Untrusted(review.Status.UserInfo.Username)
	}
	r.user.Store(&u)
}

// Near lists names of the same kind that a person may have meant, at most five. It is
// a courtesy: without permission to list there are none.
func (r *Reader) Near(ctx context.Context, t plan.Target) []string {
	k, err := typedFor(t.Resource)
	if err != nil {
		return nil
	}
	names, err := k.names(ctx, r.Interface, t.Namespace)
	if err != nil {
		return nil
	}
	var near []string
	for _, n := range names {
		if len(near) < 5 && (strings.Contains(n, t.Name) || strings.Contains(t.Name, n) || sharedPrefix(n, t.Name) >= 3) {
			near = append(near, n)
		}
	}
	return near
}

func sharedPrefix(a, b string) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
