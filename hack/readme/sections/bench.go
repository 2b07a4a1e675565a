package sections

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubewrite/kube-write-mcp/test/bench/report"
)

// benchTable is the run of hack/bench.sh that is kept, and the soak beside it.
func benchTable(root string) (string, error) {
	var text string
	for _, name := range []string{"results.json", "soak.json"} {
		raw, err := os.ReadFile(filepath.Join(root, "test", "bench", "testdata", name))
		if err != nil {
			return "", err
		}
		var r report.Report
		if err := json.Unmarshal(raw, &r); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		text += table(append(report.Head[:len(report.Head)-1:len(report.Head)-1], "verdict"), r.Cells())
		text += fmt.Sprintf("\nMeasured on %s on %s; load %s.\n\n", r.Date.Format("2006-01-02"), r.Machine, r.Load)
	}
	return text, nil
}
