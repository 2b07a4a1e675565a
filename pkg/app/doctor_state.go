package app

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gofrs/flock"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
)

// What the state folder should have free: a segment of the journal and its successor, and
// what lets an outcome be written at all.
const (
	wantFree = 256 << 20
	mustFree = 16 << 20

	lockWait = 3 * time.Second // an append takes milliseconds
)

// stateHealth reads the state folder and changes nothing in it.
func (o *options) stateHealth(d *doctor) {
	const check = "state folder"
	dir := o.folder()
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.say(check, good, "", "%s is made when the server starts", dir)
		return
	case err != nil:
		d.say(check, broken, "let the user that runs the server reach it", "%v", err)
		return
	case !info.IsDir():
		d.say(check, broken, "name a folder with --state-dir", "%s is no folder", dir)
		return
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0:
		d.say(check, broken, "chmod 700 "+dir, "%s is open to others (mode %04o)", dir, info.Mode().Perm())
	default:
		d.say(check, good, "", "%s is ours alone", dir)
	}
	switch free, err := freeBytes(dir); {
	case err != nil:
		d.say("free space", unknown, "", "%v", err)
	case free < mustFree:
		d.say("free space", broken, "make room: without it nothing can be put on record, and nothing is sent", "%d MiB are free", free>>20)
	case free < wantFree:
		d.say("free space", warning, "make room, or move the state folder", "%d MiB are free", free>>20)
	default:
		d.say("free space", good, "", "%d MiB are free", free>>20)
	}
	if name := filepath.Join(dir, "LOCK"); exists(name) {
		ctx, cancel := context.WithTimeout(context.Background(), lockWait)
		defer cancel()
		l := flock.New(name, flock.SetFlag(os.O_RDWR))
		if ok, err := l.TryLockContext(ctx, 20*time.Millisecond); !ok {
			d.say("lock", broken, "end the process that holds it (it hangs), or put the folder on a local disk", "%s cannot be had in %s: %v", name, lockWait, err)
			return
		}
		_ = l.Unlock()
		d.say("lock", good, "", "it can be had")
	}
	path, keys, err := o.auditLog()
	if err != nil {
		if exists(o.path(dir)) {
			d.say("audit log", broken, "put the key file back: without it no line can be verified", "%v", err)
		} else {
			d.say("audit log", good, "", "there is none yet")
		}
		return
	}
	r, err := journal.Verify(path, keys, journal.VerifyOptions{})
	if err != nil {
		d.say("audit log", broken, "see kube-write-mcp audit verify, keep a copy, then kube-write-mcp audit recover", "%v", err)
		return
	}
	s, fix := good, ""
	if len(r.Unsettled) > 0 {
		s, fix = warning, "start the server: it finds out what became of them"
	}
	d.say("audit log", s, fix, "%d lines and %d checkpoints hold, the last line is of %s; %d plans are begun and without a result",
		r.Lines, r.Checkpoints, r.To.UTC().Format(time.RFC3339), len(r.Unsettled))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
