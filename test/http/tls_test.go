package http

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubewrite/kube-write-mcp/test/lab"
	"github.com/kubewrite/kube-write-mcp/test/stdio"
)

// selfSigned writes a certificate for names, and its key, over what is there.
func selfSigned(t *testing.T, cert, key string, serial int64, names ...string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTLS: with a certificate any address may be served, by the names in it, and a renewed
// one is taken without a restart.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	selfSigned(t, cert, key, 1, "kube-write-mcp.tools.svc")
	p := start(t, options{cfg: account(t), flags: []string{"--http", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key, "--requests-per-second", "1000"}})
	_, token := caller(t, may("plan"))
	var serial int64
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		serial = s.PeerCertificates[0].SerialNumber.Int64()
		return nil
	}}, DisableKeepAlives: true}
	port := p.url[strings.LastIndexByte(p.url, ':'):]
	send := func(host string) int {
		t.Helper()
		r := p.connect(stdio.Modern, token).request("server/discover", nil)
		r.URL.Host, r.Host = "127.0.0.1"+port, host
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	for host, want := range map[string]int{"kube-write-mcp.tools.svc": 200, "kube-write-mcp.tools.svc:8443": 200, "127.0.0.1": 403, "localhost": 403, "evil.example": 403} {
		if got := send(host); got != want {
			t.Errorf("as %s: %d, want %d", host, got, want)
		}
	}
	plain, err := http.NewRequest(http.MethodGet, "http://127.0.0.1"+port+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.do(plain); err == nil && got.status == 200 {
		t.Error("served without TLS")
	}
	if serial != 1 {
		t.Errorf("certificate %d", serial)
	}
	if err := os.WriteFile(key, []byte("half of a renewal"), 0o600); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "a bad pair to be noticed", func() (bool, error) {
		send("kube-write-mcp.tools.svc")
		return strings.Contains(p.log.String(), "cannot be renewed"), nil
	})
	if got := send("kube-write-mcp.tools.svc"); got != 200 || serial != 1 {
		t.Errorf("with a bad pair: %d, certificate %d", got, serial)
	}
	selfSigned(t, cert, key, 2, "other.svc")
	lab.Eventually(t, "the renewed certificate", func() (bool, error) { send("other.svc"); return serial == 2, nil })
	if got, old := send("other.svc"), send("kube-write-mcp.tools.svc"); got != 200 || old != 403 {
		t.Errorf("by the new name %d, by the old one %d", got, old)
	}
}
