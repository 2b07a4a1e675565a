package kube

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// TestTapEndsWithItsReflector: an event on its way to a reflector that has ended, without
// stopping its watch, holds nothing up: else Close, and with it the process, would wait
// for ever.
func TestTapEndsWithItsReflector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Cache{now: time.Now}
		w := watch.NewFake()
		ctx, end := context.WithCancel(t.Context())
		c.tap(ctx, &informer{}, w, true)
		w.Add(&corev1.Pod{}) // taken by the tap; nobody takes it from there
		end()
		c.running.Wait() // a tap that waits for ever is a deadlock here
		if !w.IsStopped() {
			t.Error("the watch below was not stopped")
		}
	})
}
