//go:build !linux

package journal

import "os"

// datasync is F_FULLFSYNC on darwin, as Sync is, and FlushFileBuffers on windows.
func datasync(f *os.File) error { return f.Sync() }
