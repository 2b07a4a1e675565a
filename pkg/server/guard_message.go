package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"
)

// rpcMaxNesting is how many arrays and objects may stand inside each other in one
// line. Every decoder behind the guard is recursive, and no call of this
// server needs more than a handful.
const rpcMaxNesting = 100

// The keys that mcp-go binds without regard to case, and of which it lets the
// last duplicate win. Any other spelling of them is refused.
var (
	rpcEnvelopeKeys = []string{"jsonrpc", "id", "method", "params", "result", "error"}
	rpcParamsKeys   = []string{"_meta", "name", "arguments", "task", "inputResponses", "requestState", "requestId"}
)

// rpcMessage is one line of input, taken apart once.
type rpcMessage struct {
	envelope map[string]json.RawMessage // byte-exact members of the line
	params   map[string]json.RawMessage // byte-exact members of params; nil without params
	method   mcp.MCPMethod              // empty in a response
	id       json.RawMessage            // as the client wrote it; nil in a notification
	key      string                     // equal for equal ids, see rpcIDKey
	size     int                        // bytes of the line
}

// parseRPC takes a non-blank line apart and applies every rule that needs
// no other line. A refused message still carries its id where the answer may
// name it, that is, where the line is a request with one sound id.
func parseRPC(line []byte) (*rpcMessage, *mcp.JSONRPCErrorDetails) {
	m := &rpcMessage{size: len(line)}
	if err := checkLineText(line); err != nil {
		return m, newRPCError(mcp.PARSE_ERROR, err)
	}
	switch line[0] {
	case '{':
	case '[':
		return m, newRPCError(mcp.INVALID_REQUEST, errors.New("batches are not supported: send one message per line"))
	default:
		return m, newRPCError(mcp.INVALID_REQUEST, errors.New("a message must be a JSON object"))
	}

	var err error
	m.envelope, err = rpcMembers(line, rpcEnvelopeKeys)
	method, hasMethod := m.envelope["method"]
	id, hasID := m.envelope["id"]
	_, hasResult := m.envelope["result"]
	_, hasError := m.envelope["error"]
	if hasMethod && json.Unmarshal(method, &m.method) == nil && m.method != "" {
		if m.key = rpcIDKey(id); m.key != "" {
			m.id = id
		}
	}
	switch {
	case err != nil:
	case string(m.envelope["jsonrpc"]) != `"2.0"`:
		err = errors.New(`jsonrpc must be "2.0"`)
	case hasMethod && m.method == "":
		err = errors.New("method must be a string that is not empty")
	case hasMethod && (hasResult || hasError):
		err = errors.New("a message with a method cannot have a result or an error")
	case hasMethod && hasID && m.id == nil:
		err = errors.New("id must be a string or an integer")
	case !hasMethod && (hasResult == hasError || !hasID):
		err = errors.New("neither a request nor a notification nor a response")
	}
	if err != nil {
		return m, newRPCError(mcp.INVALID_REQUEST, err)
	}

	switch params := m.envelope["params"]; {
	case params == nil || string(params) == "null":
	case params[0] != '{':
		err = errors.New("params must be an object")
	default:
		m.params, err = rpcMembers(params, rpcParamsKeys)
		if meta := m.params["_meta"]; err == nil && meta != nil && meta[0] == '{' {
			_, err = rpcMembers(meta, nil)
		}
	}
	if err != nil {
		return m, newRPCError(mcp.INVALID_PARAMS, err)
	}
	return m, nil
}

// forMCP renders a request or notification for mcp-go: only the members that
// were checked, and params byte for byte.
func (m *rpcMessage) forMCP() json.RawMessage {
	b := append([]byte(`{"jsonrpc":"2.0","method":`), m.envelope["method"]...)
	if m.id != nil {
		b = append(b, `,"id":`...)
		// mcp-go decodes a number into a float64. One of more than 15 digits
		// might be rounded or overflow, so it goes in as a string; the answer
		// gets the client's own bytes either way.
		if len(m.id) > 15 && m.id[0] != '"' {
			b = strconv.AppendQuote(b, string(m.id))
		} else {
			b = append(b, m.id...)
		}
	}
	if m.params != nil {
		b = append(append(b, `,"params":`...), m.envelope["params"]...)
	}
	return append(b, '}')
}

// nameIn is the tool that a call names; no name is the empty one.
func nameIn(m *rpcMessage) (name string) {
	_ = json.Unmarshal(m.params["name"], &name)
	return name
}

func newRPCError(code int, err error) *mcp.JSONRPCErrorDetails {
	return &mcp.JSONRPCErrorDetails{Code: code, Message: err.Error()}
}

// checkLineText refuses what is not one JSON value, and what encoding/json would
// accept but silently turn into U+FFFD: invalid UTF-8 and escaped surrogates
// without their other half.
func checkLineText(line []byte) error {
	if !utf8.Valid(line) {
		return errors.New("not valid UTF-8")
	}
	depth, inString := 0, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			if r := escapedRune(line[i:]); utf16.IsSurrogate(r) {
				if utf16.DecodeRune(r, escapedRune(line[i+6:])) == utf8.RuneError {
					return fmt.Errorf(`lone surrogate \u%04x`, r)
				}
				i += 6
			}
			i++ // the escaped byte, which may be a quote
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > rpcMaxNesting {
				return fmt.Errorf("nested deeper than %d levels", rpcMaxNesting)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	if !json.Valid(line) {
		return errors.New("not one valid JSON value")
	}
	return nil
}

// escapedRune returns the UTF-16 unit that b begins with in the form \uXXXX,
// or -1.
func escapedRune(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(unit)
}

// rpcMembers splits a valid JSON object into its members, values byte for byte.
// The error names the first key that stands twice (its value is then nil) or
// is one of keys in another case; the map is complete nevertheless.
func rpcMembers(object []byte, keys []string) (map[string]json.RawMessage, error) {
	var first error
	found := map[string]json.RawMessage{}
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil { // the opening brace
		return nil, err
	}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		key, _ := token.(string)
		if _, twice := found[key]; twice {
			value, err = nil, fmt.Errorf("key %.64q stands twice", key)
		} else if i := slices.IndexFunc(keys, func(k string) bool { return strings.EqualFold(k, key) }); i >= 0 && keys[i] != key {
			err = fmt.Errorf("key %.64q must be written %q", key, keys[i])
		}
		if first == nil {
			first = err
		}
		found[key] = value
	}
	return found, first
}

// outOfRange names the value in raw, at most that many levels deep, which holds a number
// beyond a float64: nothing else in valid JSON fails to be decoded. "" if there is none.
func outOfRange(path string, raw json.RawMessage, levels int) string {
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) == nil {
		return ""
	}
	if raw[0] == '{' && levels > 0 {
		members, _ := rpcMembers(raw, nil)
		for _, key := range slices.Sorted(maps.Keys(members)) {
			if at := outOfRange(fmt.Sprintf("%s.%.64s", path, key), members[key], levels-1); at != "" {
				return at
			}
		}
	}
	return path
}

// rpcIDKey returns a key that is equal for equal ids and different for a string
// and an integer of the same digits; "" if raw is neither of the two.
func rpcIDKey(raw json.RawMessage) string {
	var s string
	switch {
	case len(raw) == 0:
	case raw[0] == '"' && json.Unmarshal(raw, &s) == nil:
		return `"` + s
	case (raw[0] == '-' || '0' <= raw[0] && raw[0] <= '9') && !bytes.ContainsAny(raw, ".eE"):
		return string(raw)
	}
	return ""
}
