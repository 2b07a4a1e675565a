package journal

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

// kept is a Source of one plan.
type kept struct {
	record string
	lines  [][]byte
	failed error
}

func (k *kept) Kept(string) ([]byte, [][]byte) {
	if k.record == "" {
		return nil, nil
	}
	return []byte(k.record), k.lines
}
func (k *kept) Unsettled() []string                             { return []string{"p1"} }
func (k *kept) Writes(string, time.Time) []time.Time            { return []time.Time{epoch} }
func (k *kept) Plans(string, time.Time) []time.Time             { return []time.Time{epoch, epoch} }
func (k *kept) Peak(string, time.Time) (ready int, _ time.Time) { return 7, epoch }
func (k *kept) Failed(err error)                                { k.failed = err }

// TestSource: a ledger over a source gives what the source has, and what it cannot fold is
// no plan.
func TestSource(t *testing.T) {
	line := func(l *Line) []byte {
		b, err := Keep(l, "aaaa", epoch)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	planned, intended := line(planLine("p1", epoch)), line(intentLine("p1", "c"))
	const record = `{"action":"scale","expires":"2026-01-02T15:04:05Z","steps":[{}]}`
	for name, tc := range map[string]struct {
		kept
		wantPlanned, wantClaimed bool
		wantErr                  string
	}{
		"nothing":                  {},
		"planned":                  {kept: kept{record: record, lines: [][]byte{planned}}, wantPlanned: true},
		"claimed":                  {kept: kept{record: record, lines: [][]byte{planned, intended}}, wantPlanned: true, wantClaimed: true},
		"no plan line":             {kept: kept{record: record, lines: [][]byte{intended}}, wantErr: "no plan line"},
		"a line of another plan":   {kept: kept{record: record, lines: [][]byte{planned, line(intentLine("p2", "c"))}}, wantErr: `plan "p2"`},
		"a line of another format": {kept: kept{record: record, lines: [][]byte{bytes.Replace(planned, []byte(`"v":1`), []byte(`"v":2`), 1)}}, wantErr: "format 2"},
		"no JSON":                  {kept: kept{record: record, lines: [][]byte{[]byte("{")}}, wantErr: "JSON"},
		"a record that is none":    {kept: kept{record: "[]", lines: [][]byte{planned}}, wantErr: "unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLedger(&tc.kept)
			st := l.Plan("p1")
			if st.Planned != tc.wantPlanned || st.Claimed != tc.wantClaimed {
				t.Errorf("planned %t, claimed %t, want %t and %t", st.Planned, st.Claimed, tc.wantPlanned, tc.wantClaimed)
			}
			if (tc.failed == nil) != (tc.wantErr == "") || tc.failed != nil && !strings.Contains(tc.failed.Error(), tc.wantErr) {
				t.Errorf("failed with %v, want %q", tc.failed, tc.wantErr)
			}
			if n, _ := l.Peak("u", epoch); n != 7 || len(l.Writes("c", epoch)) != 1 || len(l.Plans("c", epoch)) != 2 || len(l.Unsettled()) != 1 {
				t.Error("the budgets are not the source's")
			}
		})
	}
}

// TestReplicaInCheckpoint: a checkpoint bears the name of the replica whose file it is of,
// and the name is signed.
func TestReplicaInCheckpoint(t *testing.T) {
	f := newFixture(t)
	j, err := Open(Options{Dir: f.dir, Path: f.path, Keys: f.keys, Now: f.clock.now, Inst: "aaaa", Replica: "server-0"})
	if err != nil {
		t.Fatal(err)
	}
	f.append(j, &Line{Event: EventRefused})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	list, err := ReadCheckpoints(checkpointsPath(f.path), f.keys)
	if err != nil || len(list) != 1 || list[0].Replica != "server-0" {
		t.Fatalf("%+v, %v", list, err)
	}
	raw, err := os.ReadFile(checkpointsPath(f.path))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"server-1\n", ""} {
		if err := os.WriteFile(checkpointsPath(f.path), bytes.Replace(raw, []byte("server-0\n"), []byte(name), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadCheckpoints(checkpointsPath(f.path), f.keys); err == nil {
			t.Errorf("a checkpoint passes that says %q", name)
		}
	}
	if _, err := Open(Options{Dir: f.dir, Path: f.path, Keys: f.keys, Now: f.clock.now, Inst: "aaaa", Replica: "a\nb"}); err == nil {
		t.Error("a name of two lines passes")
	}
}
