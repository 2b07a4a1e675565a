// Package journal is the append-only record of every call, and the ledger is a fold over
// it: one JSONL file, hash-chained, keyed, and on the disk before anybody is answered.
//
// Several processes may share the file. A lock is held for one append, never for the
// life of a process; under it the process first reads what the others wrote, so what a
// decision saw cannot have changed when its lines are written.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// ErrSealed is in every error of an Append that was refused because the journal cannot
// be trusted or written any more. Nothing was written, or nobody knows.
var ErrSealed = errors.New("the journal is sealed")

// reserveSize is what is kept free behind the last line, so that an outcome always fits;
// it is renewed when less than half of it is left.
const reserveSize = 64 << 10

// maxAhead is how far the last line may lie in the future.
const maxAhead = time.Minute

var (
	instRE    = regexp.MustCompile(`^[a-z2-7]{4}$`)
	replicaRE = regexp.MustCompile(`^` + replicaName + `$`)
)

// Options say where a journal is and who writes.
type Options struct {
	Dir  string           // the state folder, mode 0700; made when it is missing
	Path string           // the audit file, mode 0600; made when it is missing; "" is Dir/audit.jsonl
	Keys *Keyring         // what lines are signed with and verified by
	Now  func() time.Time // nil is time.Now
	Inst string           // 4 characters [a-z2-7], new for every process

	Replica string      // a name of letters, digits and ._- that its checkpoints bear; "" where there is one file for all
	Observe func(*Line) // is told of every line that Append has put on the disk; nil for nobody

	RotateAt int64 // the size in bytes at which the file is closed and a new one begun; 0 is 64 MiB
}

// Journal is this process's handle on the file. It is safe for concurrent use. The file
// is open only during a call; Close signs the last head.
type Journal struct {
	path, inst string
	replica    string
	rotateAt   int64
	keys       *Keyring
	now        func() time.Time
	observe    func(*Line)
	open       func(path string, create bool) (file, error)

	queueMu sync.Mutex
	queue   []*waiter // for an append
	writing bool      // somebody has the turn

	looks atomic.Int64 // how many times catchUp has begun

	mu     sync.Mutex
	looked int64       // the newest of them that ended well
	known  fs.FileInfo // the file that was read so far; another one by that name is not ours
	chain  chain
	ledger Ledger
	sealed error

	reserved int64 // the offset up to which the disk has room for this file
	blocks   int64 // what the file had of the disk then

	saved    int64     // the offset of the last snapshot
	savedAt  time.Time // and when it was made
	heads    heads     // a checkpoint that is held against what is read at the start
	signed   int64     // the last line of which this process signed a checkpoint
	signedAt time.Time // and when
}

// Open reads the file and verifies every line of it, or, where Close or a process that wrote
// much left a snapshot under a mac, what stands behind that: VerifyAll does the rest. It
// reads as many closed files as the ledger's memory needs. It refuses a path that is no
// regular file of our own with mode 0600, and says what to do. A torn last line, as a
// killed process leaves it, is moved to <file>.broken-<time> and a recovered line says so.
//
// Where a line cannot be trusted (a *BadLine), or a process has left the mark that the
// disk failed it, the Journal is sealed: Append is refused, and the others show what was
// verified. Recover ends that.
func Open(o Options) (*Journal, error) {
	j, err := newJournal(o)
	if err != nil {
		return nil, err
	}
	if err := j.start(); err != nil && j.sealed == nil {
		return nil, err
	}
	return j, nil
}

// OpenBehind is Open for a caller that has other things to do meanwhile: it returns when the
// file is known to be one of ours, and its lines are read behind that. Every call but Newest,
// Live and Alive waits for them. ready is closed when they are read; what Open would have
// failed with then seals the Journal.
func OpenBehind(o Options) (j *Journal, ready <-chan struct{}, err error) {
	if j, err = newJournal(o); err != nil {
		return nil, nil, err
	}
	read, err := j.look()
	if err != nil && j.sealed == nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	if err != nil {
		close(done)
		return j, done, nil
	}
	j.mu.Lock()
	go func() {
		defer close(done)
		defer j.mu.Unlock()
		if err := read(); err != nil {
			_ = j.seal(err)
		}
	}()
	return j, done, nil
}

func newJournal(o Options) (*Journal, error) {
	if o.Keys == nil {
		return nil, errors.New("journal: no keys")
	}
	if !instRE.MatchString(o.Inst) {
		return nil, fmt.Errorf("journal: instance %q is not 4 characters of a-z, 2-7", o.Inst)
	}
	if o.Replica != "" && (len(o.Replica) > 253 || !replicaRE.MatchString(o.Replica)) {
		return nil, fmt.Errorf("journal: replica %q has no name that a checkpoint may bear", o.Replica)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Path == "" {
		o.Path = filepath.Join(o.Dir, "audit.jsonl")
	}
	if o.RotateAt == 0 {
		o.RotateAt = 64 << 20
	}
	if err := privateDir(o.Dir); err != nil {
		return nil, err
	}
	return &Journal{
		path: o.Path, rotateAt: o.RotateAt, inst: o.Inst, replica: o.Replica, keys: o.Keys, now: o.Now, observe: o.Observe,
		open: openFile, chain: newChain(o.Path, o.Keys),
	}, nil
}

// start reads as much as the ledger needs: the file in use, and those closed before it
// while its memory reaches into them. The bulk is read without the lock, so that other
// processes need not wait: whole lines below a size that was seen under the lock never
// change. What does not look right there is left to the second reading, which holds it.
func (j *Journal) start() error {
	read, err := j.look()
	if err != nil {
		return err
	}
	return read()
}

// look is the quick part of start. It gives the other one, which must be called.
func (j *Journal) look() (read func() error, err error) {
	var bulk int64
	var f file
	var closed []int
	err = j.locked(func(_ file, size int64) error {
		bulk = size
		if err := private(j.path, j.known); err != nil {
			return err
		}
		var err error
		if closed, err = segments(j.path); err != nil {
			return err
		}
		f, err = j.open(j.path, false)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := syncDir(filepath.Dir(j.path)); err != nil {
		f.Close()
		return nil, err
	}
	if err := j.readHeads(); err != nil {
		f.Close()
		return nil, j.seal(err)
	}
	return func() error {
		defer f.Close()
		return j.readLines(f, bulk, closed)
	}, nil
}

// readLines is the long part of start: the lines up to bulk, and then what has come since.
func (j *Journal) readLines(f file, bulk int64, closed []int) error {
	if err := j.readBack(f, bulk, closed); err != nil {
		return err
	}
	if _, _ = j.chain.read(f, bulk, j.see); j.sealed != nil {
		return j.sealed
	}
	return j.locked(func(f file, size int64) error {
		torn, err := j.fold(f, size)
		if err == nil {
			err = j.heads.end(&j.chain)
		}
		if _, bad := errors.AsType[*BadLine](err); bad {
			err = j.seal(err)
		}
		if err != nil {
			return err
		}
		err = j.marked()
		j.signed, j.signedAt = j.chain.seq, j.now()
		if err != nil || !torn || j.unwritable() != nil {
			return err
		}
		return j.repair(f, size)
	})
}

// readBack takes the ledger from a snapshot of the file in use, or folds the closed files
// that its memory reaches into.
func (j *Journal) readBack(f file, size int64, numbers []int) error {
	if size == 0 && len(numbers) > 0 {
		return j.seal(fmt.Errorf("%s is empty, although it carries on %s: its lines were cut off", j.path, segmentPath(j.path, numbers[len(numbers)-1])))
	}
	number, first := 1, first(f)
	if first.Segment != nil {
		number = segmentNumber(first.Segment.File) + 1
	}
	if n := len(numbers); n > 0 && numbers[n-1] >= number {
		return j.seal(fmt.Errorf("%s is older than %s: it was replaced, or the other has no line that closes it", j.path, segmentPath(j.path, numbers[n-1])))
	}
	if j.restore(f, size, number) {
		return nil
	}
	from, begins := number, first.Time
	for limit := newest(f, size).Time.Add(-planMemory); begins.After(limit) && exists(segmentPath(j.path, from-1)); {
		from--
		begins = peek(segmentPath(j.path, from)).Time
	}
	for ; from < number; from++ {
		if err := j.chain.readClosed(from, j.see); err != nil {
			return j.seal(err)
		}
	}
	j.chain.open(j.path, number)
	return nil
}

// Append writes lines and returns when they are on the disk. Under the lock of all
// processes it reads what the others wrote, asks decide, and writes all lines that decide
// gives in one write; what decide saw is then still so. An error of decide is returned
// unchanged, and with it, or with no lines, nothing is written.
//
// Sequence, time, process, chain, key and mac of the lines are filled in here. An error
// that is not ErrSealed means that nothing was recorded and that the same may pass later.
//
// Callers that wait share one lock, one write and one sync. decide sees then, and only
// then, also what was decided just before it; where that could not be written, it gets the
// error of the write instead of its own. It may run on another caller's goroutine, and
// must not call the Journal.
func (j *Journal) Append(decide func(*Ledger) ([]*Line, error)) error {
	w := &waiter{decide: decide, turn: make(chan struct{}, 2)}
	j.queueMu.Lock()
	j.queue = append(j.queue, w)
	first := !j.writing
	j.writing = true
	j.queueMu.Unlock()
	if !first {
		<-w.turn
	}
	if !w.taken {
		j.commit()
	}
	if w.err != nil {
		return w.err
	}
	j.found(w.lines)
	if j.observe != nil {
		for _, l := range w.lines {
			j.observe(l)
		}
	}
	return nil
}

// waiter is one Append. When it has its turn, another one has taken it along, or it is to
// do all that wait.
type waiter struct {
	decide func(*Ledger) ([]*Line, error)
	turn   chan struct{}
	taken  bool
	lines  []*Line // that it decided on
	err    error
}

var errCutShort = errors.New("the goroutine that wrote for several ended before it was through: nothing is known to be recorded")

// commit appends for everybody who waits, and gives the turn to who came meanwhile.
func (j *Journal) commit() {
	var waiters []*waiter
	defer func() {
		for _, w := range waiters {
			w.turn <- struct{}{}
		}
		j.queueMu.Lock()
		defer j.queueMu.Unlock()
		if j.writing = len(j.queue) > 0; j.writing {
			j.queue[0].turn <- struct{}{}
		}
	}()
	j.mu.Lock()
	defer j.mu.Unlock()
	runtime.Gosched() // who was answered just now may be about to come again
	j.queueMu.Lock()
	waiters, j.queue = j.queue, nil
	j.queueMu.Unlock()
	for _, w := range waiters {
		w.taken, w.err = true, errCutShort // each is overwritten below, unless a goroutine ends in decide
	}
	all := func(err error) {
		for _, w := range waiters {
			w.err = err
		}
	}
	if err := j.unwritable(); err != nil {
		all(err)
		return
	}
	decided := false
	append := func(f file, size int64) error {
		torn, err := j.fold(f, size)
		if err == nil {
			err = j.marked()
		}
		if err == nil {
			err = j.unwritable()
		}
		if err != nil {
			return err
		}
		if torn {
			if err := j.repair(f, size); err != nil {
				return err
			}
		}
		if j.chain.closed {
			return j.finish()
		}
		decided = true
		j.decide(f, waiters)
		return nil
	}
	err := j.locked(append)
	if err == nil && !decided {
		err = j.locked(append) // in the file that was begun just now
	}
	if err != nil && !decided {
		all(err)
	}
}

// decide asks everybody who waits, in their order, and writes what they decided.
func (j *Journal) decide(f file, waiters []*waiter) {
	b, view := j.begin(), &j.ledger
	errs, first := make([]error, len(waiters)), -1 // first: with lines; who came after it saw them
	for i, w := range waiters {
		if first >= 0 {
			view = b.view(view)
		}
		var lines []*Line
		if lines, errs[i] = w.ask(view); errs[i] == nil && len(lines) > 0 {
			before := *b
			errs[i] = b.add(lines)
			if errs[i] == nil && slices.ContainsFunc(lines, needsRoom) {
				errs[i] = j.reserve(f, b.next.offset)
			}
			if errs[i] != nil {
				*b = before
			}
			w.lines = lines
		}
		if first < 0 && len(b.lines) > 0 {
			first = i
		}
	}
	if first >= 0 {
		if err := j.write(f, b); err != nil {
			for i := first; i < len(errs); i++ {
				errs[i] = err
			}
		} else if j.signIfDue(f); j.chain.offset >= j.rotateAt && j.reserved > j.chain.offset {
			_ = j.rotate(f) // what was written is on the disk, whatever becomes of this
		}
	}
	for i, w := range waiters {
		w.err = errs[i]
	}
}

// ask makes a panic of decide the error of the caller whose it is: it may run on the
// goroutine of another.
func (w *waiter) ask(l *Ledger) (lines []*Line, err error) {
	defer func() {
		if p := recover(); p != nil {
			lines, err = nil, fmt.Errorf("deciding what to record failed: %v", p)
		}
	}()
	return w.decide(l)
}

// View reads what other processes wrote and shows the ledger; it writes nothing. While
// the journal is sealed it shows what was read until then. The ledger is valid only
// during see, which must not call the Journal; its error is returned unchanged.
func (j *Journal) View(see func(*Ledger) error) error { return j.view(j.looks.Load(), see) }

// view is a View that began after so many looks. A look that began after it has seen all
// that was written before it: who waited for that one need not look again.
func (j *Journal) view(before int64, see func(*Ledger) error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.looked <= before {
		if err := j.catchUp(); err != nil {
			return err
		}
	}
	return see(&j.ledger)
}

// Record gives a plan as it was recorded, nil when there is none. It is read from the
// disk and its line is verified again.
func (j *Journal) Record(id string) (*plan.Plan, error) {
	var l struct {
		Record *plan.Plan `json:"record"`
	}
	err := j.reread(id, func(r *record) span { return r.plan }, &l)
	return l.Record, err
}

// Result gives a plan's first result, byte for byte as it stands in the execute line, or in
// the reconciled line where that came first, nil when there is none.
func (j *Journal) Result(id string) (json.RawMessage, error) {
	var l struct {
		Result json.RawMessage `json:"result"`
	}
	err := j.reread(id, func(r *record) span { return r.result }, &l)
	return l.Result, err
}

// Sealed says why Append is refused, nil when it is not. It looks at no file.
func (j *Journal) Sealed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.unwritable()
}

// Size is that of the file in use, in bytes.
func (j *Journal) Size() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.chain.offset
}

// Close signs the head of the journal, so that what stands up to it cannot be cut off
// unseen, and the next Open is quick. The Journal may be used after it.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.sealed != nil {
		return nil
	}
	return j.locked(func(f file, size int64) error {
		if _, err := j.fold(f, size); err != nil {
			return err
		}
		if j.chain.seq != j.signed {
			if err := j.sync(f); err != nil {
				return err
			}
			if err := j.checkpoint(); err != nil {
				return err
			}
		}
		if j.chain.offset == j.saved {
			return nil
		}
		return j.save()
	})
}

// unwritable is why nothing may be written now. A clock that was set back heals as time
// goes by; everything else needs a new process.
func (j *Journal) unwritable() error {
	if j.sealed != nil {
		return j.sealed
	}
	if ahead := j.chain.last.Sub(j.now()); ahead > maxAhead {
		return fmt.Errorf("%w: its last line is of %s, %s in the future: set the clock right, or run kube-write-mcp audit recover",
			ErrSealed, j.chain.last.Format(time.RFC3339), ahead.Round(time.Second))
	}
	return nil
}

func (j *Journal) seal(err error) error {
	if j.sealed == nil {
		j.sealed = fmt.Errorf("%w: %w", ErrSealed, err)
	}
	return j.sealed
}

// catchUp folds in what other processes wrote. A sealed journal stays as it is.
func (j *Journal) catchUp() error {
	if j.sealed != nil {
		return nil
	}
	look := j.looks.Add(1)
	err := j.locked(func(f file, size int64) error {
		_, err := j.fold(f, size)
		return err
	})
	if j.sealed != nil {
		return nil
	}
	if err == nil {
		j.looked = look
	}
	return err
}

// locked opens the file under the lock of all processes and makes sure that it is the one
// that was read so far, with nothing cut off.
func (j *Journal) locked(do func(f file, size int64) error) error {
	unlock, err := lock(filepath.Dir(j.path))
	if err != nil {
		return err
	}
	defer unlock()
	inUse := j.known != nil
	if !inUse {
		if err := j.adopt(); err != nil {
			return err
		}
	}
	f, err := j.open(j.path, !inUse)
	renamed := inUse && errors.Is(err, fs.ErrNotExist) && exists(segmentPath(j.path, j.chain.segment))
	if err == nil && inUse {
		info, statErr := f.Stat()
		renamed = statErr == nil && !os.SameFile(j.known, info)
	}
	if renamed {
		if err == nil {
			f.Close()
		}
		if err := j.follow(); err != nil {
			return err
		}
		f, err = j.open(j.path, false)
	}
	switch {
	case inUse && errors.Is(err, fs.ErrNotExist):
		return j.mark(fmt.Errorf("%s is gone: it was removed or renamed while it was in use", j.path))
	case inUse && errors.Is(err, errNotRegular):
		return j.mark(err)
	case err != nil:
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case j.known == nil:
		j.known = info
	case info.Size() < j.chain.offset:
		return j.mark(fmt.Errorf("%s shrank from %d to %d bytes: lines were cut off while it was in use", j.path, j.chain.offset, info.Size()))
	}
	return do(f, info.Size())
}

// fold verifies and folds the lines up to size; one that cannot be trusted seals. torn
// says that the last one is not whole.
func (j *Journal) fold(f file, size int64) (torn bool, err error) {
	torn, err = j.chain.read(f, size, j.see)
	if _, ok := errors.AsType[*BadLine](err); ok {
		err = j.seal(err)
	}
	return torn, err
}

// see folds a line that was read.
func (j *Journal) see(_ []byte, e *entry, at span) error {
	if len(j.heads.list) > 0 {
		if err := j.heads.line(e, &j.chain); err != nil {
			return j.seal(&BadLine{Path: filepath.Clean(j.chain.file), Line: j.chain.line, Offset: at.offset, Why: err})
		}
	}
	j.ledger.add(e, at)
	return nil
}

// reread decodes the line at which a plan has something, verified again; nothing where
// there is no such line.
func (j *Journal) reread(id string, where func(*record) span, into any) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.catchUp(); err != nil {
		return err
	}
	r := j.ledger.plans[id]
	if r == nil || where(r).seq == 0 {
		return nil
	}
	if err := j.decode(where(r), into); err != nil {
		return fmt.Errorf("the line of plan %s, at byte %d of %s: %w", id, where(r).offset, j.path, err)
	}
	return nil
}

// decode tries the names that the file may have: it may be closed in this moment. A line
// of the wrong one is never taken, since it has another sequence.
func (j *Journal) decode(at span, into any) (err error) {
	closed := segmentPath(j.path, at.segment)
	for _, name := range []string{closed, j.path, closed} {
		if now := j.decodeFrom(name, at, into); now == nil {
			return nil
		} else if err == nil || !errors.Is(now, fs.ErrNotExist) {
			err = now
		}
	}
	return err
}

func (j *Journal) decodeFrom(path string, at span, into any) error {
	f, err := openExisting(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, at.length)
	if _, err := f.ReadAt(b, at.offset); err != nil {
		return err
	}
	e, err := j.chain.verify(b)
	switch {
	case err != nil:
		return err
	case e.Seq != at.seq:
		return fmt.Errorf("line %d stands in the place of line %d", e.Seq, at.seq)
	}
	return json.Unmarshal(b, into)
}

// batch is what is to be written at once, behind a file that was read to its end.
type batch struct {
	j     *Journal
	next  chain // behind its last line
	buf   []byte
	lines []folded
	seen  int // how many of the lines view has shown
}

// folded is a line as the fold takes it.
type folded struct {
	e  entry
	at span
}

func (j *Journal) begin() *batch { return &batch{j: j, next: j.chain} }

// add signs lines. With an error the batch is half done: put it back to what it was.
func (b *batch) add(lines []*Line) error {
	kid := b.j.keys.Current()
	if kid == "" {
		return errors.New("every key is retired, and none may sign: run kube-write-mcp keys rotate")
	}
	for _, l := range lines {
		l.V, l.Seq, l.Prev, l.Inst, l.PID, l.KID = version, b.next.seq+1, b.next.prev, b.j.inst, os.Getpid(), kid
		if l.Time = b.j.now().UTC().Truncate(time.Millisecond); l.Time.Before(b.next.last) {
			l.Time = b.next.last
		}
		raw, err := b.next.sign(l)
		if err != nil {
			return fmt.Errorf("a line of event %s: %w", l.Event, err)
		}
		e, at, err := b.next.next(raw) // as every reader will
		if err != nil {
			return fmt.Errorf("a line of event %s: %w", l.Event, err)
		}
		b.lines = append(b.lines, folded{e, at})
		b.buf = append(append(b.buf, raw...), '\n')
	}
	return nil
}

// needsRoom tells a line that begins something from an outcome of what was begun, which
// may use the reserve. Those that only say no need it as well: else they would use it up.
func needsRoom(l *Line) bool {
	switch l.Event {
	case EventStep, EventExecute, EventUnknown, EventReconciled, EventVerify:
		return false
	}
	return true
}

// reserve makes sure that the disk has room behind end, where a batch will end.
func (j *Journal) reserve(f file, end int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if j.reserved-end >= reserveSize/2 && allocated(info) >= j.blocks {
		return nil
	}
	if err := f.Reserve(j.chain.offset, end-j.chain.offset+reserveSize); err != nil {
		return fmt.Errorf("%s has no room for the outcome of what would be begun, nothing was recorded: %w", j.path, err)
	}
	if info, err = f.Stat(); err != nil {
		return err
	}
	j.reserved, j.blocks = end+reserveSize, allocated(info)
	return nil
}

// view is the ledger with the lines of the batch; the ledger itself does not know them
// until they are written. shown is what the last view gave.
func (b *batch) view(shown *Ledger) *Ledger {
	if shown == &b.j.ledger {
		shown = &Ledger{under: shown}
	}
	for ; b.seen < len(b.lines); b.seen++ {
		shown.add(&b.lines[b.seen].e, b.lines[b.seen].at)
	}
	return shown
}

// write makes a batch durable, unless it holds reads alone, and folds it.
func (j *Journal) write(f file, b *batch) error {
	n, err := f.Write(b.buf)
	if err == nil && n < len(b.buf) {
		err = io.ErrShortWrite
	}
	if err != nil {
		if cut := j.cut(f); cut != nil {
			return cut
		}
		return fmt.Errorf("%s could not be written, nothing was recorded: %w", j.path, err)
	}
	// A read changed nothing: its line may be lost in a power cut, but no line that was
	// signed or that says more.
	if slices.ContainsFunc(b.lines, func(l folded) bool { return l.e.Event != EventRead }) {
		if err := j.sync(f); err != nil {
			return err
		}
	}
	for _, l := range b.lines {
		j.ledger.add(&l.e, l.at)
	}
	j.chain = b.next
	return nil
}

func (j *Journal) sync(f file) error {
	if err := f.Datasync(); err != nil {
		return j.mark(fmt.Errorf("%s: the disk may not have what was written: %w", j.path, err))
	}
	return nil
}

// cut takes off what stands behind the last good line.
func (j *Journal) cut(f file) error {
	j.reserved = 0 // what is cut off goes with what is free behind it
	err := f.Truncate(j.chain.offset)
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return j.mark(fmt.Errorf("%s: a part of a line could not be taken off again: %w", j.path, err))
	}
	return nil
}

// repair moves a torn last line aside and says so in a line of its own.
func (j *Journal) repair(f file, size int64) error {
	from := j.chain.offset
	aside, err := keep(j.path+".broken-"+j.now().UTC().Format("20060102T150405Z"), f, from, size)
	if err != nil {
		return fmt.Errorf("the torn last line of %s could not be kept: %w", j.path, err)
	}
	if err := j.cut(f); err != nil {
		return err
	}
	b := j.begin()
	if err := b.add([]*Line{{
		Event:  EventRecovered,
		Output: fmt.Sprintf("a torn line of %d bytes was moved to %s", size-from, filepath.Base(aside)),
	}}); err != nil {
		return err
	}
	return j.write(f, b)
}
