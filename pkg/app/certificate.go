package app

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificateAge is how long a certificate is used before its files are looked at again.
const certificateAge = 10 * time.Second

// certificate is a pair of files that somebody renews.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu        sync.Mutex
	read      time.Time
	cert, key []byte
	pair      *tls.Certificate
}

// newCertificate reads the pair, which must be good at the start.
func newCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	return c, c.reload()
}

// current is the pair as it was in the files up to 10 s ago, or the last good one.
func (c *certificate) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.read) >= certificateAge {
		if err := c.reload(); err != nil {
			c.log.Error("the certificate cannot be renewed", "err", err)
		}
	}
	return c.pair
}

func (c *certificate) reload() error {
	c.read = time.Now()
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("tls-cert: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("tls-key: %w", err)
	}
	if bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("tls-cert and tls-key: %w", err)
	}
	c.cert, c.key, c.pair = cert, key, &pair
	return nil
}

// config serves the current pair.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil },
	}
}

// names reports whether the certificate is for a host.
func (c *certificate) names(host string) bool {
	return c.current().Leaf.VerifyHostname(host) == nil
}
