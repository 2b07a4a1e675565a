package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"
)

var errGuardInputEnded = errors.New("the client can no longer answer: input has ended")

// stdioSession is the one client of a guard. It lives as long as ServeStdio,
// unlike mcp-go's own, which is one per process. It offers elicitation to
// clients older than 2026-07-28; sampling, roots and log levels are not
// offered.
type stdioSession struct {
	notifications chan mcp.JSONRPCNotification
	send          func(v any)     // writes one message
	ended         <-chan struct{} // closed when no answer can come any more

	mu           sync.Mutex
	initialized  bool
	info         mcp.Implementation
	capabilities mcp.ClientCapabilities
	version      string
	lastID       int64
	questions    map[string]chan<- *rpcMessage // our own requests by id, until answered
}

var (
	_ mcpserver.SessionWithClientInfo      = (*stdioSession)(nil)
	_ mcpserver.SessionWithElicitation     = (*stdioSession)(nil)
	_ mcpserver.SessionWithProtocolVersion = (*stdioSession)(nil)
)

// SessionID returns the same name that mcp-go gives to its stdio session.
func (s *stdioSession) SessionID() string { return "stdio" }

// NotificationChannel returns the queue of notifications to the client.
// mcp-go drops a notification when it is full.
func (s *stdioSession) NotificationChannel() chan<- mcp.JSONRPCNotification { return s.notifications }

// Initialize allows notifications to the client.
func (s *stdioSession) Initialize() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.initialized = true
}

// Initialized tells whether the client has introduced itself.
func (s *stdioSession) Initialized() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.initialized
}

// GetClientInfo returns what the client last said of itself.
func (s *stdioSession) GetClientInfo() mcp.Implementation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// SetClientInfo records what the client says of itself.
func (s *stdioSession) SetClientInfo(info mcp.Implementation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info = info
}

// GetClientCapabilities returns the capabilities that the client last declared.
func (s *stdioSession) GetClientCapabilities() mcp.ClientCapabilities {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capabilities
}

// SetClientCapabilities records the capabilities that the client declares.
func (s *stdioSession) SetClientCapabilities(c mcp.ClientCapabilities) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.capabilities = c
}

// ProtocolVersion returns the version agreed on by initialize, or "".
func (s *stdioSession) ProtocolVersion() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// SetProtocolVersion records the version agreed on by initialize.
func (s *stdioSession) SetProtocolVersion(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
}

// RequestElicitation asks the client's user and waits for the answer, for the
// end of ctx (its error is returned, and the client is told to close the
// question) or for the end of input.
func (s *stdioSession) RequestElicitation(ctx context.Context, req mcp.ElicitationRequest) (*mcp.ElicitationResult, error) {
	answered := make(chan *rpcMessage, 1)
	s.mu.Lock()
	s.lastID++
	id := strconv.FormatInt(s.lastID, 10)
	s.questions[id] = answered
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.questions, id)
	}()

	s.send(rpcOutgoing{ID: json.RawMessage(id), Method: mcp.MethodElicitationCreate, Params: req.Params})
	select {
	case m := <-answered:
		if raw, failed := m.envelope["error"]; failed {
			var details mcp.JSONRPCErrorDetails
			_ = json.Unmarshal(raw, &details) // an error of another shape has no text
			return nil, fmt.Errorf("the client could not ask: %s (%d)", details.Message, details.Code)
		}
		result := &mcp.ElicitationResult{}
		if err := json.Unmarshal(m.envelope["result"], result); err != nil {
			return nil, fmt.Errorf("the client's answer is not an elicitation result: %w", err)
		}
		return result, nil
	case <-s.ended:
		return nil, errGuardInputEnded
	case <-ctx.Done():
		s.send(rpcOutgoing{Method: mcp.MethodNotificationCancelled, Params: map[string]any{"requestId": json.RawMessage(id)}})
		return nil, ctx.Err()
	}
}

// answer hands a response of the client to the question it belongs to. One
// that belongs to none, or comes twice, is dropped.
func (s *stdioSession) answer(response *rpcMessage) {
	id := string(response.envelope["id"])
	s.mu.Lock()
	defer s.mu.Unlock()
	if answered, ok := s.questions[id]; ok {
		delete(s.questions, id)
		answered <- response
	}
}
