package torture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// fault is what is done to one write of a round, chosen by the round's own randomness.
type fault struct {
	kind   string
	weight int
	before func(x hit) (goesOn bool)
	after  func(x hit, resp *http.Response)
}

// hit is the write that a fault is for.
type hit struct {
	*round
	nemesis *nemesis
	slot    *slot
	request *harness.Request
	w       http.ResponseWriter // before
	rng     *rand.Rand
}

func cut() { panic(http.ErrAbortHandler) }

var faults = []fault{
	{kind: "none", weight: 2},
	{kind: "dropped before", weight: 8, before: func(hit) bool { cut(); return false }},
	{kind: "dropped after", weight: 10, after: func(hit, *http.Response) { cut() }},
	{kind: "5xx before", weight: 8, before: func(x hit) bool { return answerWith(x.w, serverError(x.rng), retryAfter(x.rng)) }},
	{kind: "5xx after", weight: 14, after: func(x hit, resp *http.Response) { replace(resp, serverError(x.rng), retryAfter(x.rng)) }},
	{kind: "429 before", weight: 4, before: func(x hit) bool { return answerWith(x.w, http.StatusTooManyRequests, retryAfter(x.rng)) }},
	{kind: "409 before", weight: 3, before: func(x hit) bool { return answerWith(x.w, http.StatusConflict, "") }},
	{kind: "delayed", weight: 4, before: func(x hit) bool {
		time.Sleep(time.Duration(50+x.rng.IntN(1500)) * time.Millisecond)
		return true
	}},
	{kind: "cut, arrives late", weight: 14, before: func(x hit) bool { x.arriveLate(); cut(); return false }},
	{kind: "cut in the body", weight: 6, after: func(_ hit, resp *http.Response) { half(resp, errors.New("cut")) }},
	{kind: "half a body", weight: 6, after: func(_ hit, resp *http.Response) { half(resp, io.EOF) }},
	{kind: "tiny timeout", weight: 30, before: func(x hit) bool {
		// The API server's own 504, with the write committed, or to be, or not at all.
		v, err := url.ParseQuery(x.request.Query)
		if err == nil {
			v.Set("timeout", fmt.Sprintf("%dus", 1000+x.rng.IntN(15000)))
			x.request.Query = v.Encode()
		}
		return true
	}},
	{kind: "killed before", weight: 4, before: func(x hit) bool { x.slot.kill(); cut(); return false }},
	{kind: "killed, arrives late", weight: 6, before: func(x hit) bool { x.slot.kill(); x.arriveLate(); cut(); return false }},
	{kind: "killed after", weight: 6, after: func(x hit, _ *http.Response) { x.slot.kill(); cut() }},
}

// arriveLate lets the write come to the API server when its process does not wait for it
// any more, mostly soon.
func (x hit) arriveLate() {
	after := time.Duration(20+x.rng.IntN(500)) * time.Millisecond
	if x.rng.IntN(4) == 0 {
		after = time.Duration(1+x.rng.IntN(25)) * time.Second // of the 34 that the API server may take
	}
	x.late.Go(func() {
		time.Sleep(after)
		code, err := x.slot.proxy.Send(x.request)
		if err != nil || !slices.Contains([]int{200, 201, 409, 429}, code) {
			x.nemesis.violation("the late request of %s was answered %d, %v", x.round, code, err)
		}
		x.nemesis.arrived(code)
	})
}

func pick(rng *rand.Rand) fault {
	sum := 0
	for _, f := range faults {
		sum += f.weight
	}
	at := rng.IntN(sum)
	for _, f := range faults {
		if at -= f.weight; at < 0 {
			return f
		}
	}
	panic("unreachable")
}

func serverError(rng *rand.Rand) int { return []int{500, 502, 503, 504}[rng.IntN(4)] }

func retryAfter(rng *rand.Rand) string { return []string{"", "1"}[rng.IntN(2)] }

func statusBody(code int) []byte {
	b, _ := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Message: "injected", Code: int32(code),
	})
	return b
}

func answerWith(w http.ResponseWriter, code int, after string) (goesOn bool) {
	w.Header().Set("Content-Type", "application/json")
	if after != "" {
		w.Header().Set("Retry-After", after)
	}
	w.WriteHeader(code)
	_, _ = w.Write(statusBody(code))
	return false
}

func replace(resp *http.Response, code int, after string) {
	_ = resp.Body.Close()
	body := statusBody(code)
	resp.StatusCode, resp.Body, resp.ContentLength = code, io.NopCloser(bytes.NewReader(body)), int64(len(body))
	resp.Header = http.Header{"Content-Type": {"application/json"}}
	if after != "" {
		resp.Header.Set("Retry-After", after)
	}
}

// half leaves half a body, and then an end that looks whole, or none.
func half(resp *http.Response, end error) {
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	body = body[:len(body)/2]
	resp.Body, resp.ContentLength = io.NopCloser(io.MultiReader(bytes.NewReader(body), broken{end})), -1
	resp.Header.Del("Content-Length")
}

type broken struct{ end error }

func (b broken) Read([]byte) (int, error) { return 0, b.end }

// sent is one write that left a process.
type sent struct {
	auditID string
	code    int // that the process was answered, 0 where it had no answer
	fault   string
}

// plan is the id in an Audit-ID, and step what it says of the Step.
func (s sent) plan() string { return strings.Split(strings.TrimPrefix(s.auditID, prefix), "-")[0] }
func (s sent) step() string { return s.auditID[:strings.LastIndex(s.auditID, "-x")] }

const prefix = "kube-write-mcp-"

// nemesis stands between all processes and the API server.
type nemesis struct {
	journal *tail

	mu     sync.Mutex
	rounds map[string]*round // by name of what they are about
	wire   map[string][]sent // by plan
	wrong  []string          // what broke an invariant
	real   map[string]bool   // the Audit-IDs to which the API server itself answered 504

	late int // writes that came when their process had no hope any more, and took effect

	verdicts []verdict
	answers  int
	lines    int64 // of the journal
}

func (n *nemesis) violation(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wrong = append(n.wrong, fmt.Sprintf(format, args...))
}

// enter makes a round's targets subject to faults.
func (n *nemesis) enter(r *round) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range r.parts {
		n.rounds[p.name] = r
	}
}

func (n *nemesis) about(path string) *round {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, seg := range strings.Split(path, "/") {
		if r := n.rounds[seg]; r != nil {
			return r
		}
	}
	return nil
}

// guard arms the proxy of one process.
func (n *nemesis) guard(s *slot) {
	s.proxy.Before(func(q *harness.Request, w http.ResponseWriter) bool {
		r := n.about(q.Path)
		if r == nil {
			return true
		}
		if !q.Mutates() {
			if q.Method == http.MethodGet && r.readFault() {
				if q.Path[len(q.Path)-1]%2 == 0 {
					cut()
				}
				return answerWith(w, http.StatusInternalServerError, "")
			}
			return true
		}
		// I2, from outside: what is about to have an effect stands in the journal.
		if known, err := n.journal.has("execute_intent", q.AuditID); err != nil || !known {
			n.violation("I2: %s %s left with no intent on record (%v)", q.Method, q.AuditID, err)
		}
		f, fires := r.onWrite(q.AuditID)
		n.record(sent{auditID: q.AuditID, fault: f.kind})
		if fires && r.override && f.before != nil && f.kind != "tiny timeout" && f.kind != "delayed" {
			r.overrule()
		}
		if fires && f.before != nil {
			return n.answer(q.AuditID, w, func(w http.ResponseWriter) bool { return f.before(hit{r, n, s, q, w, r.random()}) })
		}
		return true
	})
	s.proxy.After(func(q *harness.Request, resp *http.Response) {
		if !q.Mutates() {
			return
		}
		r := n.about(q.Path)
		if r == nil {
			return
		}
		if resp.StatusCode == http.StatusGatewayTimeout {
			n.mu.Lock()
			n.real[q.AuditID] = true
			n.mu.Unlock()
		}
		f, mine := r.faultOf(q.AuditID)
		if mine && r.override && (f.after != nil || f.kind == "tiny timeout" || f.kind == "delayed") {
			r.overrule()
		}
		if !mine || f.after == nil {
			n.answered(q.AuditID, resp.StatusCode)
			return
		}
		said := resp.StatusCode
		f.after(hit{round: r, nemesis: n, slot: s, request: q, rng: r.random()}, resp)
		if resp.StatusCode == said { // half of a definite no is one
			n.answered(q.AuditID, said)
		}
	})
}

// answer records with what code a fault answered by itself.
func (n *nemesis) answer(auditID string, w http.ResponseWriter, do func(http.ResponseWriter) bool) bool {
	seen := &coded{ResponseWriter: w}
	goesOn := do(seen)
	if seen.code != 0 {
		n.answered(auditID, seen.code)
	}
	return goesOn
}

type coded struct {
	http.ResponseWriter
	code int
}

func (c *coded) WriteHeader(code int) {
	c.code = code
	c.ResponseWriter.WriteHeader(code)
}

func (n *nemesis) record(s sent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wire[s.plan()] = append(n.wire[s.plan()], s)
}

func (n *nemesis) answered(auditID string, code int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.wire[sent{auditID: auditID}.plan()]
	for i := range list {
		if list[i].auditID == auditID {
			list[i].code = code
		}
	}
}

// writes are what was sent for a plan, in order.
func (n *nemesis) writes(plan string) []sent {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.wire[plan])
}

func (n *nemesis) timedOut(auditID string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.real[auditID]
}

func (n *nemesis) arrived(code int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if code < 300 {
		n.late++
	}
}
