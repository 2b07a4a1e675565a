//go:build !linux

package journal

import (
	"io/fs"
	"os"
)

// reserve does nothing: darwin and windows give no space beyond a file's end that an
// ordinary append could use. An outcome may meet a full disk.
func reserve(*os.File, int64, int64) error { return nil }

func allocated(fs.FileInfo) int64 { return 0 }
