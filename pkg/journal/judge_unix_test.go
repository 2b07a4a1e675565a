//go:build unix

package journal

import (
	"io/fs"
	"strings"
	"testing"
)

// Whose file it is decides as much as its mode.
func TestJudge(t *testing.T) {
	for name, tc := range map[string]struct {
		mode      fs.FileMode
		uid, euid int
		mounted   bool
		want      string // "" is accepted
	}{
		"ours":                            {0o600, 7, 7, false, ""},
		"ours, read-only":                 {0o400, 7, 7, false, ""},
		"ours, group may read":            {0o440, 7, 7, false, "chmod 600"},
		"another user's":                  {0o600, 8, 7, false, "belongs to user 8, not to user 7"},
		"root's":                          {0o600, 0, 7, false, "belongs to user 0"},
		"another user's, we are root":     {0o600, 7, 0, false, "belongs to user 7"},
		"our folder":                      {fs.ModeDir | 0o700, 7, 7, false, ""},
		"our folder, others may look":     {fs.ModeDir | 0o755, 7, 7, false, "chmod 700"},
		"our folder, with a sticky group": {fs.ModeDir | fs.ModeSetgid | 0o700, 7, 7, false, ""},
		"a Secret":                        {0o440, 0, 7, true, ""},
		"a Secret, ours":                  {0o440, 7, 7, true, ""},
		"a Secret that others may read":   {0o444, 0, 7, true, "belongs to user 0"},
		"a Secret that group may write":   {0o460, 7, 7, true, "chmod 600"},
		"a Secret of another user":        {0o440, 8, 7, true, "belongs to user 8"},
		"a given file, root may write it": {0o640, 0, 7, true, "belongs to user 0"},
	} {
		err := judge("f", tc.mode, tc.uid, tc.euid, tc.mounted)
		if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}
