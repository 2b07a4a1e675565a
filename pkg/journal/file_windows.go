package journal

import (
	"errors"
	"io/fs"
	"os"
)

const openFlags = 0

// truncate needs a handle of its own: one that appends may not cut.
func truncate(f *os.File, size int64) error {
	w, err := os.OpenFile(f.Name(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(w.Truncate(size), w.Sync(), w.Close())
}

// syncDir has nothing to do: names are durable with the file.
func syncDir(string) error { return nil }

// private knows no modes: the rights of the user's folder are inherited.
func private(path string, info fs.FileInfo) error {
	if info.IsDir() {
		return nil
	}
	return regular(path, info)
}

func secretFile(string, fs.FileInfo) error { return nil }
