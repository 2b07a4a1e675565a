//go:build unix

package app

import "golang.org/x/sys/unix"

// freeBytes is what an unprivileged process may still write in a folder's file system.
func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}
