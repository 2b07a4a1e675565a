package lab

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Main is the TestMain of a package that shares one lab: it starts the lab, runs the
// tests, stops the lab and exits. Without the control plane's programs it fails in one
// line, it never skips.
func Main(m interface{ Run() int }, o Options, set func(*Lab)) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	l, err := Start(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ignore := context.AfterFunc(ctx, func() {
		_ = l.Stop()
		os.Exit(1)
	})
	set(l)
	code := m.Run()
	ignore()
	if err := l.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	cancel()
	os.Exit(code)
}

// Namespace makes a namespace for one test. It stays until the lab ends.
func (l *Lab) Namespace(t testing.TB) string {
	t.Helper()
	name := "t-" + strings.ToLower(rand.Text()[:10])
	if _, err := l.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

// Eventually waits until a condition holds. Its errors are tried again, and the last one
// is shown. The bound is a guard against hanging, not an expectation.
func Eventually(t testing.TB, what string, done func() (bool, error)) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		ok, err := done()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s: %v", what, err)
		}
	}
}
