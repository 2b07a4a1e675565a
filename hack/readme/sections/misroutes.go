package sections

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Class is what a wrong call came to.
type Class string

// The classes of wrong calls, which exclude each other. Only of the last two has anything
// in the cluster changed.
const (
	Read         Class = "landed on a read"                 // answered; nothing was asked that could write, or what was asked was so already or done already
	Unread       Class = "refused before anything was read" // no request left the server
	Precondition Class = "refused by a precondition"        // of the target as it is
	DryRun       Class = "refused by dry run"               // the API server said no
	Gate         Class = "refused by a gate"                // the operator's limits said no
	Person       Class = "waited for a person"
	Undone       Class = "executed and undone in place" // by the undo that the answer printed or, of a pod, by its controller
	Visible      Class = "externally visible"           // capacity or data was gone, or it could not be undone
)

// Classes are all of them, in the order of the table.
var Classes = []Class{Read, Unread, Precondition, DryRun, Gate, Person, Undone, Visible}

// Consequence is what one task of test/misroute came to.
type Consequence struct {
	Mistake string   `json:"mistake"`
	Task    string   `json:"task"`
	Intent  string   `json:"intent"`
	Sent    []string `json:"sent"`   // the wrong calls
	Answer  string   `json:"answer"` // to the last one: the code of a refusal, or how it ended
	Class   Class    `json:"class"`
	Undone  []string `json:"undone,omitempty"` // how each executed call was taken back
	Cost    []string `json:"cost,omitempty"`   // what was missing meanwhile
}

// misrouteTables are made of what the tests measured last: a table with a row for each kind
// of mistake, and a list of the calls that were executed.
func misrouteTables(root string) (counted, executed string, err error) {
	raw, err := os.ReadFile(filepath.Join(root, "test", "misroute", "testdata", "consequences.json"))
	if err != nil {
		return "", "", err
	}
	var all []Consequence
	if err := json.Unmarshal(raw, &all); err != nil {
		return "", "", err
	}
	var mistakes []string
	count := map[string]map[Class]int{"all": {}}
	for _, c := range all {
		if !slices.Contains(Classes, c.Class) {
			return "", "", fmt.Errorf("task %q came to %q, which is no class", c.Task, c.Class)
		}
		if count[c.Mistake] == nil {
			count[c.Mistake] = map[Class]int{}
			mistakes = append(mistakes, c.Mistake)
		}
		count[c.Mistake][c.Class]++
		count["all"][c.Class]++
		if c.Undone != nil {
			executed += fmt.Sprintf("- %s: %s.\n", c.Task, how(c))
		}
	}
	head := []string{"what went wrong"}
	for _, c := range Classes {
		head = append(head, string(c))
	}
	var rows [][]string
	for _, m := range append(mistakes, "all") {
		row, sum := []string{m}, 0
		for _, c := range Classes {
			n := count[m][c]
			sum += n
			cell := fmt.Sprint(n)
			if n == 0 && m != "all" {
				cell = ""
			}
			row = append(row, cell)
		}
		rows = append(rows, append(row, fmt.Sprint(sum)))
	}
	return table(append(head, "tasks"), rows), executed, nil
}

// how says how an executed call was taken back, and what was missing meanwhile.
func how(c Consequence) string {
	back := "taken back by " + code(c.Undone[0])
	if c.Undone[0] == ByController {
		back = "its controller made a new one"
	}
	if c.Class == Visible {
		back = "externally visible"
	}
	return strings.Join(append([]string{back}, c.Cost...), "; ")
}

// ByController says that an executed call has no undo to send, since a controller makes
// again what it removed.
const ByController = "its controller"
