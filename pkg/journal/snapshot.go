package journal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// snapshotName is the file beside the journal from which Open is quick: the ledger as it
// was at a line, under a mac. One that is missing, old or not to be trusted is left alone,
// and the file is read from its beginning.
const snapshotName = "state.json"

// snapshotEvery is how many bytes are written before another one is made, and snapshotRest
// how much time passes: one is made under the lock of all processes.
const (
	snapshotEvery = 1 << 20
	snapshotRest  = time.Second
)

func snapshotPath(path string) string { return filepath.Join(filepath.Dir(path), snapshotName) }

// snapshot is where a chain stands and what the ledger holds there.
type snapshot struct {
	V       int       `json:"v"`
	Segment int       `json:"segment"`
	Offset  int64     `json:"offset"` // behind the line
	Length  int64     `json:"length"` // of the line, without its newline
	Line    int64     `json:"line"`
	Seq     int64     `json:"seq"`
	Prev    string    `json:"prev"`
	Last    time.Time `json:"last"`

	Plans  map[string]snapshotPlan     `json:"plans"`
	Order  []snapshotStamp             `json:"order"`
	Writes []snapshotStamp             `json:"writes"`
	Calls  []snapshotStamp             `json:"calls"`
	Seen   []snapshotStamp             `json:"seen"`
	Peaks  map[string][]snapshotSample `json:"peaks"`
}

type snapshotPlan struct {
	State   State                   `json:"state"`
	Steps   map[int]plan.StepResult `json:"steps,omitempty"`
	Intents map[int]Intent          `json:"intents,omitempty"`
	Plan    snapshotSpan            `json:"plan"`
	Result  snapshotSpan            `json:"result"`
	Until   time.Time               `json:"until"`
}

type snapshotSpan struct {
	Seq     int64 `json:"seq"`
	Segment int   `json:"segment"`
	Offset  int64 `json:"offset"`
	Length  int   `json:"length"`
}

type snapshotStamp struct {
	At time.Time `json:"at"`
	Of string    `json:"of"`
}

type snapshotSample struct {
	At    time.Time `json:"at"`
	Ready int       `json:"ready"`
}

func spanOut(s span) snapshotSpan { return snapshotSpan{s.seq, s.segment, s.offset, s.length} }

func (s snapshotSpan) in() span { return span{s.Seq, s.Segment, s.Offset, s.Length} }

func stampsOut(q []stamp) (out []snapshotStamp) {
	for _, s := range q {
		out = append(out, snapshotStamp{s.at, s.of})
	}
	return out
}

func (l *Ledger) stampsIn(q []snapshotStamp, shared bool) (in []stamp) {
	for _, s := range q {
		if shared {
			s.Of = l.name(s.Of)
		}
		in = append(in, stamp{s.At, s.Of})
	}
	return in
}

// save puts the ledger beside the journal; it need not outlive a power cut.
func (j *Journal) save() error {
	if j.chain.closed {
		return nil // the next file is about to begin
	}
	s := snapshot{
		V: version, Segment: j.chain.segment, Offset: j.chain.offset, Length: j.chain.length, Line: j.chain.line, Seq: j.chain.seq, Prev: j.chain.prev, Last: j.chain.last,
		Plans: map[string]snapshotPlan{}, Peaks: map[string][]snapshotSample{},
		Order: stampsOut(j.ledger.order), Writes: stampsOut(j.ledger.writes), Calls: stampsOut(j.ledger.calls), Seen: stampsOut(j.ledger.seen),
	}
	for id, r := range j.ledger.plans {
		s.Plans[id] = snapshotPlan{r.State, r.steps, r.intents, spanOut(r.plan), spanOut(r.result), r.until}
	}
	for of, samples := range j.ledger.peaks {
		for _, p := range samples {
			s.Peaks[of] = append(s.Peaks[of], snapshotSample{p.at, p.ready})
		}
	}
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := j.keep(snapshotPath(j.path), "snapshot", body); err != nil {
		return err
	}
	j.saved, j.savedAt = j.chain.offset, j.now()
	return nil
}

// restore takes the ledger from a snapshot of the file in use, whose number is given, and
// goes behind its line; false leaves everything as it is.
func (j *Journal) restore(f io.ReaderAt, size int64, number int) bool {
	body, ok := j.kept(snapshotPath(j.path), "snapshot")
	if !ok {
		return false
	}
	var s snapshot
	if err := json.Unmarshal(body, &s); err != nil || s.V != version || s.Segment != number || s.Offset > size || s.Length > MaxLine || s.Length >= s.Offset {
		return false
	}
	line := make([]byte, s.Length+1)
	if _, err := f.ReadAt(line, s.Offset-int64(len(line))); err != nil || line[s.Length] != '\n' {
		return false
	}
	if sum := sha256.Sum256(line[:s.Length]); hex.EncodeToString(sum[:]) != s.Prev {
		return false
	}
	for ; len(j.heads.list) > 0 && j.heads.list[0].Seq <= s.Seq; j.heads.list = j.heads.list[1:] {
		if p := j.heads.list[0]; p.Seq == s.Seq && p.Hash != s.Prev {
			return false
		}
	}
	l := &Ledger{plans: map[string]*record{}, peaks: map[string][]sample{}, names: map[string]string{}}
	l.order, l.seen = l.stampsIn(s.Order, false), l.stampsIn(s.Seen, false)
	l.writes, l.calls = l.stampsIn(s.Writes, true), l.stampsIn(s.Calls, true)
	for id, p := range s.Plans {
		p.State.Action = l.name(p.State.Action)
		l.plans[id] = &record{p.State, p.Steps, p.Intents, p.Plan.in(), p.Result.in(), p.Until}
	}
	for of, samples := range s.Peaks {
		for _, p := range samples {
			l.peaks[of] = append(l.peaks[of], sample{p.At, p.Ready})
		}
	}
	j.ledger, j.saved = *l, s.Offset
	j.chain.open(j.path, number)
	j.chain.offset, j.chain.length, j.chain.line, j.chain.seq, j.chain.prev, j.chain.last = s.Offset, s.Length, s.Line, s.Seq, s.Prev, s.Last
	return true
}

// VerifyAll verifies all files from their first line to their last, and every checkpoint
// beside them, while the Journal is in use: Open may have begun at a snapshot. A line that
// cannot be trusted seals the Journal. It ends early, with its error, when ctx ends.
func (j *Journal) VerifyAll(ctx context.Context) error {
	list, err := ReadCheckpoints(checkpointsPath(j.path), j.keys)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return j.sealLocked(err)
	}
	c, h := newChain(j.path, j.keys), heads{list: list}
	err = c.walk(func(_ []byte, e *entry, at span) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := h.line(e, &c); err != nil {
			return &BadLine{Path: filepath.Clean(c.file), Line: c.line, Offset: at.offset, Why: err}
		}
		return nil
	})
	if err == nil {
		err = h.end(&c)
	}
	if _, bad := errors.AsType[*BadLine](err); bad && !errors.Is(err, errTorn) { // the next append mends a torn end
		return j.sealLocked(err)
	}
	if errors.Is(err, errTorn) {
		return nil
	}
	return err
}

func (j *Journal) sealLocked(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.seal(err)
}
