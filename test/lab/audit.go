package lab

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// AuditEvent is what a test needs of one event of the API server's own audit log.
type AuditEvent struct {
	AuditID    string    `json:"auditID"`
	Stage      string    `json:"stage"`
	Verb       string    `json:"verb"`
	RequestURI string    `json:"requestURI"`
	UserAgent  string    `json:"userAgent"`
	Received   time.Time `json:"requestReceivedTimestamp"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource, Subresource, Namespace, Name string
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestObject json.RawMessage `json:"requestObject"`
}

// AuditLog is the path of the API server's own audit log.
func (l *Lab) AuditLog() string { return filepath.Join(l.dir, "audit.log") }

// AuditEvents reads the finished requests of the API server's own audit log so far.
func (l *Lab) AuditEvents() (events []AuditEvent, err error) {
	f, err := os.Open(l.AuditLog())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var e AuditEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		if e.Stage == "ResponseComplete" || e.Stage == "Panic" {
			events = append(events, e)
		}
	}
	return slices.Clip(events), lines.Err()
}
