package harness

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// Request is one request that went through the proxy.
type Request struct {
	Method, Path, Query string
	Body                string
	AuditID             string
	Status              int // 0 while it is on its way, or where it was dropped

	header http.Header
}

// Mutates reports whether the request could write: it is no read, and no dry run in
// the place where the API server looks for that verb (FACTS 2).
func (r Request) Mutates() bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	inQuery := strings.Contains(r.Query, "dryRun=All")
	inBody := strings.Contains(r.Body, `"dryRun":["All"]`)
	if r.Method == http.MethodDelete || strings.HasSuffix(r.Path, "/eviction") {
		return !inBody
	}
	return !inQuery
}

// Proxy stands between a server and the API server, on loopback. It records every
// request and can delay, drop or answer single ones.
type Proxy struct {
	target    *rest.Config
	transport http.RoundTripper // to the API server
	server    *httptest.Server

	mu       sync.Mutex
	requests []*Request
	before   func(*Request, http.ResponseWriter) bool
	after    func(*Request, *http.Response)
	lost     []string // requests that the API server did not answer
}

// NewProxy makes a proxy to the API server of cfg, with cfg's own credentials left to
// the client. It ends with the test.
func NewProxy(t testing.TB, cfg *rest.Config) *Proxy {
	t.Helper()
	host, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	bare := rest.AnonymousClientConfig(cfg)
	bare.QPS = -1
	bare.Dial = (&net.Dialer{}).DialContext // else all proxies share one connection, and what befalls it
	transport, err := rest.TransportFor(bare)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: cfg, transport: transport}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(host) },
		Transport:     transport,
		FlushInterval: -1,                         // watches
		ErrorLog:      log.New(io.Discard, "", 0), // that answers are cut is what it is for
		ModifyResponse: func(resp *http.Response) error {
			rec := resp.Request.Context().Value(recordKey{}).(*Request)
			p.mu.Lock()
			rec.Status = resp.StatusCode
			after := p.after
			p.mu.Unlock()
			if after != nil {
				after(rec, resp)
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil { // the caller is still there: why it gets no answer
				p.mu.Lock()
				p.lost = append(p.lost, fmt.Sprintf("%s %s %s: %v", time.Now().UTC().Format(time.TimeOnly), r.Method, r.URL.Path, err))
				p.mu.Unlock()
			}
			panic(http.ErrAbortHandler)
		},
	}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil { // its process died in the middle of it: there is no such request
			panic(http.ErrAbortHandler)
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		rec := &Request{Method: req.Method, Path: req.URL.Path, Query: req.URL.RawQuery, Body: string(body), AuditID: req.Header.Get("Audit-ID"), header: req.Header}
		p.mu.Lock()
		p.requests = append(p.requests, rec)
		before := p.before
		p.mu.Unlock()
		if before != nil && !before(rec, w) {
			return
		}
		p.mu.Lock()
		req.URL.RawQuery = rec.Query
		p.mu.Unlock()
		forward.ServeHTTP(w, req.WithContext(withRecord(req, rec)))
	}))
	p.server.EnableHTTP2 = true
	p.server.Config.ErrorLog = forward.ErrorLog
	p.server.StartTLS() // a kubeconfig's credentials are not sent without
	t.Cleanup(func() {
		p.server.CloseClientConnections() // watches
		p.server.Close()
		if t.Failed() && len(p.lost) > 0 {
			t.Logf("the API server gave the proxy no answer:\n%s", strings.Join(p.lost, "\n"))
		}
	})
	return p
}

// Config is the account's config, through the proxy.
func (p *Proxy) Config() *rest.Config {
	c := rest.CopyConfig(p.target)
	c.Host = p.server.URL
	c.TLSClientConfig = rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})}
	return c
}

// Before is called with each request before it goes on; false means that it has been
// answered or shall not go on. What it makes of the Query goes on. It replaces the one
// before; nil takes it away.
func (p *Proxy) Before(f func(*Request, http.ResponseWriter) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = f
}

// After is called with each answer before it goes back; a panic with
// http.ErrAbortHandler loses it.
func (p *Proxy) After(f func(*Request, *http.Response)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.after = f
}

// Send gives a request to the API server, whatever becomes of the one that is recorded:
// one that was dropped may arrive late.
func (p *Proxy) Send(r *Request) (status int, err error) {
	req, err := http.NewRequest(r.Method, strings.TrimSuffix(p.target.Host, "/")+r.Path+"?"+r.Query, strings.NewReader(r.Body))
	if err != nil {
		return 0, err
	}
	req.Header = r.header.Clone()
	resp, err := p.transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// Requests are copies of all requests so far that match.
func (p *Proxy) Requests(match func(Request) bool) (out []Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.requests {
		if match == nil || match(*r) {
			out = append(out, *r)
		}
	}
	return out
}

// Writes are the requests so far that could write.
func (p *Proxy) Writes() []Request { return p.Requests(Request.Mutates) }

// Reset forgets the requests so far.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = nil
}

type recordKey struct{}

func withRecord(req *http.Request, rec *Request) context.Context {
	return context.WithValue(req.Context(), recordKey{}, rec)
}
