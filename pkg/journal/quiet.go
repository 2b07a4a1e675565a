package journal

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// quiet is since when nothing is sent of an attempt any more, by a clock that all
// processes of a machine share and that nobody can set.
type quiet struct {
	AuditID string        `json:"audit_id"`
	Clock   string        `json:"clock"` // which one: it begins anew with the machine
	At      time.Duration `json:"at"`
}

func quietPath(path, plan string) string { return filepath.Join(filepath.Dir(path), "quiet-"+plan) }

// Quiet gives how long nothing has been sent of an attempt whose outcome is sought, as far
// as it is known: since the first process on this folder asked. It is 0 for the first one,
// after the machine was started again, and where there is no such clock. Whoever asks
// knows that the attempt is over or its process dead.
func (j *Journal) Quiet(plan, auditID string) time.Duration {
	clock, now := steady()
	if clock == "" {
		return 0
	}
	path := quietPath(j.path, plan)
	var q quiet
	if body, ok := j.kept(path, "quiet"); ok && json.Unmarshal(body, &q) == nil && q.AuditID == auditID && q.Clock == clock && q.At <= now {
		return now - q.At
	}
	body, err := json.Marshal(quiet{auditID, clock, now})
	if err == nil {
		_ = j.keep(path, "quiet", body) // without it the next process waits as long as this one
	}
	return 0
}

// found takes away what Quiet left of plans whose outcome is on record.
func (j *Journal) found(lines []*Line) {
	for _, l := range lines {
		if l.Event == EventReconciled {
			_ = os.Remove(quietPath(j.path, l.Plan))
		}
	}
}
