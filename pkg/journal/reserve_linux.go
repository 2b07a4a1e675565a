package journal

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

const fallocKeepSize = 1 // FALLOC_FL_KEEP_SIZE: the file is no longer for it

// reserve takes disk space for a file beyond its end. A file system that cannot (NFS, some
// that copy on write) gives none and no error: an outcome may then meet a full disk, and
// the journal waits with it in memory.
func reserve(f *os.File, from, size int64) error {
	for {
		switch err := syscall.Fallocate(int(f.Fd()), fallocKeepSize, from, size); {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
			return nil
		default:
			return os.NewSyscallError("fallocate", err)
		}
	}
}

// allocated is how much of the disk a file has. It grows less only where somebody cut the
// file, which gives back what was reserved.
func allocated(info fs.FileInfo) int64 { return info.Sys().(*syscall.Stat_t).Blocks }
