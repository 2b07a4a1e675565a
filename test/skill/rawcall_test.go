//go:build unix

package skill

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// server answers as an MCP server does, with a notification in between; its third request
// it answers with what it was sent.
const server = `
read -r hello; echo '{"jsonrpc":"2.0","id":"hello","result":{}}'
read -r initialized; echo '{"jsonrpc":"2.0","method":"notifications/message"}'
read -r call; printf '{"jsonrpc":"2.0","id":"review","result":%s}\n' "$call"
`

func rawcall(t *testing.T, log string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{filepath.Join(folder, "rawcall.sh")}, args...)...)
	cmd.Env = append(os.Environ(), "RAWCALL_LOG="+log)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func TestRawcall(t *testing.T) {
	log := filepath.Join(t.TempDir(), "calls.log")
	params := `{"name":"scale","arguments":{"text":"a 'b' $c"}}`
	got, said, err := rawcall(t, log, "tools/call", params, "sh", "-c", server)
	if err != nil {
		t.Fatal(err, said)
	}
	request := `{"jsonrpc":"2.0","id":"review","method":"tools/call","params":` + params + `}`
	answer := `{"jsonrpc":"2.0","id":"review","result":` + request + `}`
	if diff := cmp.Diff(answer+"\n", got); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var logged []string
	for line := range strings.Lines(string(raw)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		logged = append(logged, rest)
	}
	if diff := cmp.Diff([]string{"-> " + request, "<- " + answer}, logged); diff != "" {
		t.Errorf("transcript (-want +got):\n%s", diff)
	}
}

func TestRawcallWithoutAnAnswer(t *testing.T) {
	_, said, err := rawcall(t, "", "tools/list", "{}", "sh", "-c", "echo no such cluster >&2; exit 3")
	if err == nil || !strings.Contains(said, "no answer to hello") || !strings.Contains(said, "no such cluster") {
		t.Errorf("err %v, said %q", err, said)
	}
	if _, said, err := rawcall(t, "", "tools/list"); err == nil || !strings.Contains(said, "rawcall.sh METHOD PARAMS SERVER") {
		t.Errorf("without a server: err %v, said %q", err, said)
	}
}
