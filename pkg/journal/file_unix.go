//go:build unix

package journal

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// openFlags: no link is followed, and a pipe put in the file's place blocks nobody.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

func truncate(f *os.File, size int64) error { return f.Truncate(size) }

// syncDir makes the names in a folder durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// private wants a file or folder that is ours and that nobody else may touch.
func private(path string, info fs.FileInfo) error {
	if !info.IsDir() {
		if err := regular(path, info); err != nil {
			return err
		}
	}
	return judge(path, info.Mode(), owner(info), os.Geteuid(), false)
}

// secretFile wants a file with secrets that nobody else may read.
func secretFile(path string, info fs.FileInfo) error {
	return judge(path, info.Mode(), owner(info), os.Geteuid(), true)
}

func owner(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

// judge decides by mode and owner. mounted accepts what Kubernetes makes of a Secret: at
// most 0440, root's, and readable through the group that the pod runs with.
func judge(path string, mode fs.FileMode, uid, euid int, mounted bool) error {
	perm := mode.Perm()
	switch {
	case mounted && perm&^0o440 == 0 && (uid == euid || uid == 0):
		return nil
	case uid != euid:
		return fmt.Errorf("%s belongs to user %d, not to user %d as whom this process runs", path, uid, euid)
	case perm&0o077 == 0:
		return nil
	case mode.IsDir():
		return fmt.Errorf("%s is open to others (mode %04o): chmod 700 it, or name a folder in it that is then made", path, perm)
	}
	return fmt.Errorf("%s is open to others (mode %04o): chmod 600 it", path, perm)
}
