package journal

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// steady is the time since the machine started, less what it slept, and the name of that
// clock: the boot, and the time namespace, which may shift it.
func steady() (clock string, now time.Duration) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", 0
	}
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return "", 0
	}
	namespace, _ := os.Readlink("/proc/self/ns/time") // none before Linux 5.6
	return strings.TrimSpace(string(boot)) + " " + namespace, time.Duration(t.Nano())
}
