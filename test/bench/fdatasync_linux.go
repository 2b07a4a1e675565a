package main

import (
	"os"
	"syscall"
)

// datasync is what the journal does: the data, and of the metadata what finds it again.
func datasync(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }
