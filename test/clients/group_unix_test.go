//go:build clients && unix

package clients

import "syscall"

var ownGroup = &syscall.SysProcAttr{Setpgid: true}
