//go:build clients

package clients

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// use is a tool call that the model makes.
type use struct {
	tool  string
	input any
}

// told is what the model is told of a tool call: the tool_result block, as text.
type told struct {
	tool    string
	text    string
	isError bool
}

// turn is what the model does when it has seen the results of the turn before: it calls
// tools, all at once. The first turn has seen nothing.
type turn func(seen []told) []use

// model is a Messages API on loopback that plays turns, and ends its conversation after the
// last one.
type model struct {
	url   string
	turns []turn

	mu      sync.Mutex
	prompts []prompt
	seen    [][]told // by turn
	tools   map[string]string
}

// prompt is a request to the model, as far as it matters here.
type prompt struct {
	Stream   bool              `json:"stream"`
	Tools    []json.RawMessage `json:"tools"`
	System   json.RawMessage   `json:"system"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"` // a text, or blocks
	} `json:"messages"`
}

// block is one block of a message.
type block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     any             `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   json.RawMessage `json:"content,omitempty"`
	IsError   bool            `json:"is_error,omitempty"`
}

func newModel(t *testing.T, turns ...turn) *model {
	m := &model{turns: turns, tools: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", func(w http.ResponseWriter, r *http.Request) {
		var p prompt
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			t.Errorf("the model was sent %v", err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		id, blocks, stop := m.next(t, p)
		write(w, id, p.Stream, blocks, stop)
	})
	mux.HandleFunc("POST /v1/messages/count_tokens", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"input_tokens":100}`)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	m.url = s.URL
	return m
}

// next plays the turn that the conversation has come to. A request without tools is no part
// of the conversation: clients ask for titles, too.
func (m *model) next(t *testing.T, p prompt) (id string, blocks []block, stop string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prompts = append(m.prompts, p)
	id = fmt.Sprintf("msg_%02d", len(m.prompts)) // messages of one id are one to the client
	if len(p.Tools) > 0 {
		results := p.results(m.tools)
		n := len(results)
		m.seen = results
		if n < len(m.turns) {
			var last []told
			if n > 0 {
				last = results[n-1]
			}
			for i, u := range m.turns[n](last) {
				call := fmt.Sprintf("toolu_%02d_%d", n, i)
				if m.tools[call] != "" {
					t.Errorf("turn %d is asked for again", n)
					return id, end, "end_turn"
				}
				m.tools[call] = u.tool
				blocks = append(blocks, block{Type: "tool_use", ID: call, Name: u.tool, Input: u.input})
			}
			return id, blocks, "tool_use"
		}
	}
	return id, end, "end_turn"
}

var end = []block{{Type: "text", Text: "That is all."}}

// text is all text of a prompt.
func (p prompt) text() string {
	all := []string{text(p.System)}
	for _, m := range p.Messages {
		all = append(all, text(m.Content))
	}
	return strings.Join(all, "\n")
}

// results are the tool results of a conversation, by turn. tools are the tools of the calls.
func (p prompt) results(tools map[string]string) (out [][]told) {
	for _, m := range p.Messages {
		var blocks []block
		if m.Role != "user" || json.Unmarshal(m.Content, &blocks) != nil {
			continue
		}
		var turn []told
		for _, b := range blocks {
			if b.Type == "tool_result" {
				turn = append(turn, told{tools[b.ToolUseID], text(b.Content), b.IsError})
			}
		}
		if turn != nil {
			out = append(out, turn)
		}
	}
	return out
}

// text is the text of a content, which is a text or blocks.
func text(content json.RawMessage) string {
	var s string
	if json.Unmarshal(content, &s) == nil {
		return s
	}
	var blocks []block
	_ = json.Unmarshal(content, &blocks)
	var all []string
	for _, b := range blocks {
		all = append(all, b.Text)
	}
	return strings.Join(all, "\n")
}

// told is what the model was told of its calls, by turn.
func (m *model) told() [][]told {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.seen)
}

// write answers with a message, streamed where that was asked for.
func write(w http.ResponseWriter, id string, stream bool, blocks []block, stop string) {
	type object = map[string]any
	message := object{
		"id": id, "type": "message", "role": "assistant", "model": "scripted", "content": []block{},
		"stop_reason": nil, "stop_sequence": nil, "usage": object{"input_tokens": 10, "output_tokens": 5},
	}
	if !stream {
		message["content"], message["stop_reason"] = blocks, stop
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(message)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(event string, data object) {
		data["type"] = event
		raw, _ := json.Marshal(data)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, raw)
	}
	send("message_start", object{"message": message})
	for i, b := range blocks {
		start, delta := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": b.Text}
		if b.Type == "tool_use" {
			input, _ := json.Marshal(b.Input)
			start = object{"type": "tool_use", "id": b.ID, "name": b.Name, "input": object{}}
			delta = object{"type": "input_json_delta", "partial_json": string(input)}
		}
		send("content_block_start", object{"index": i, "content_block": start})
		send("content_block_delta", object{"index": i, "delta": delta})
		send("content_block_stop", object{"index": i})
	}
	send("message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 5}})
	send("message_stop", object{})
}
