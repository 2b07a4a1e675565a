package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// auditPolicy keeps the request of whatever can change something, and who read what.
// Watches and the housekeeping of the control plane itself are left out.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  verbs: [watch]
- level: None
  users: ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kwok"]
  resources:
  - {group: coordination.k8s.io, resources: [leases]}
  - {group: "", resources: [events]}
  - {group: events.k8s.io, resources: [events]}
- level: Request
  verbs: [create, update, patch, delete, deletecollection]
- level: Metadata
  verbs: [get, list]
`

// AuditEvent is one finished request in the API server's own audit log, in the words of
// audit.k8s.io/v1.
type AuditEvent struct {
	AuditID    string    `json:"auditID"`
	Stage      string    `json:"stage"`
	Verb       string    `json:"verb"`
	RequestURI string    `json:"requestURI"`
	UserAgent  string    `json:"userAgent"`
	Received   time.Time `json:"requestReceivedTimestamp"`
	Ended      time.Time `json:"stageTimestamp"` // of a finished one
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestObject json.RawMessage `json:"requestObject"` // of a patch, the patch
}

// AuditLog is the path of the API server's own audit log.
func (l *Lab) AuditLog() string { return l.path("audit.log") }

// auditSeen is what was read of the audit log so far: it only grows, and to read it whole
// for each of many callers takes longer than all that they do beside it.
type auditSeen struct {
	mu       sync.Mutex
	to       int64
	finished []AuditEvent
	open     map[string]bool // the ids of what has begun and has no end yet
}

// AuditEvents are the finished requests of the API server's own audit log, in the order
// of their ends. Every request whose answer the caller has seen is among them: the
// server logs a request before it works on it, but may answer before it logs the end,
// so what has begun is waited for.
func (l *Lab) AuditEvents(ctx context.Context) ([]AuditEvent, error) {
	_, begun, err := l.readAudit()
	if err != nil {
		return nil, err
	}
	var finished []AuditEvent
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, startTimeout, true, func(context.Context) (bool, error) {
		var open map[string]bool
		finished, open, err = l.readAudit()
		maps.DeleteFunc(begun, func(id string, _ bool) bool { return !open[id] })
		return len(begun) == 0, err
	})
	if err != nil {
		return nil, fmt.Errorf("audit log: %d requests without an end: %w", len(begun), err)
	}
	return finished, nil
}

// readAudit reads on in the log: the ends, and the ids of what has begun and not ended.
func (l *Lab) readAudit() (finished []AuditEvent, open map[string]bool, err error) {
	s := &l.audit
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := os.Open(l.AuditLog())
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if _, err := f.Seek(s.to, io.SeekStart); err != nil {
		return nil, nil, err
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return nil, nil, err
	}
	if s.open == nil {
		s.open = map[string]bool{}
	}
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1] // not a line that is being written
	for line := range bytes.Lines(raw) {
		var e AuditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, nil, fmt.Errorf("audit log: %w", err)
		}
		s.to += int64(len(line))
		switch e.Stage {
		case "RequestReceived":
			s.open[e.AuditID] = true
		case "ResponseComplete", "Panic":
			delete(s.open, e.AuditID)
			s.finished = append(s.finished, e)
		}
	}
	return slices.Clip(s.finished), maps.Clone(s.open), nil
}
