//go:build clients

package clients

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the table of what ran to "+tablePath)

const tablePath = "testdata/table.md"

// row is one check of one client that ran.
type row struct {
	client  string
	version string // as installed
	era     string // the protocol version that the client negotiated
	check   string // what holds, in a few words
}

var table struct {
	sync.Mutex
	rows []row
}

// record puts a check into the table. It is called once the client has run, with the era
// that was seen on the wire. The table is that of a whole run in which nothing failed.
func record(t *testing.T, client, version, era, check string) {
	t.Helper()
	if version == "" || era == "" {
		t.Fatalf("%s, %q: version %q, era %q", client, check, version, era)
	}
	table.Lock()
	defer table.Unlock()
	table.rows = append(table.rows, row{client, version, era, check})
}

// markdown is the table of the checks that ran, with the eras of each.
func markdown() []byte {
	table.Lock()
	defer table.Unlock()
	eras := map[row][]string{}
	for _, r := range table.rows {
		in := row{client: r.client, version: r.version, check: r.check}
		if !slices.Contains(eras[in], r.era) {
			eras[in] = append(eras[in], r.era)
		}
	}
	rows := slices.SortedFunc(maps.Keys(eras), func(a, b row) int {
		return cmp.Or(cmp.Compare(a.client, b.client), cmp.Compare(a.check, b.check))
	})
	var out bytes.Buffer
	fmt.Fprintln(&out, "| client | version | era | check |\n|---|---|---|---|")
	for _, r := range rows {
		slices.Sort(eras[r])
		fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", r.client, r.version, strings.Join(eras[r], ", "), r.check)
	}
	return out.Bytes()
}

// tabled are the tests of this package, and at their end the table: a whole run that passed
// must be what the committed one says, or with -update it becomes that.
type tabled struct{ m *testing.M }

func (t tabled) Run() int {
	flag.Parse()
	var part []string
	for _, f := range []string{"run", "skip", "list"} {
		if v := flag.Lookup("test." + f).Value.String(); v != "" {
			part = append(part, "-"+f)
		}
	}
	if *update && part != nil {
		fmt.Fprintf(os.Stderr, "-update writes the table of a whole run: leave out %s\n", strings.Join(part, ", "))
		return 1
	}
	if code := t.m.Run(); code != 0 || part != nil {
		return code
	}
	if err := keep(markdown()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// keep holds the table against the committed one.
func keep(got []byte) error {
	if *update {
		return errors.Join(os.MkdirAll(filepath.Dir(tablePath), 0o755), os.WriteFile(tablePath, got, 0o644))
	}
	want, err := os.ReadFile(tablePath)
	if err != nil {
		return fmt.Errorf("%w: run hack/clients.sh -update", err)
	}
	if diff := gocmp.Diff(string(want), string(got)); diff != "" {
		return fmt.Errorf("%s is not what ran; run hack/clients.sh -update (-want +got):\n%s", tablePath, diff)
	}
	return nil
}
