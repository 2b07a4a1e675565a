package plan

import (
	"fmt"
	"strings"
)

// ChangesTool is the write tool that executes a plan of several calls.
const ChangesTool = "changes"

// Part is one call of a plan of several: what a plan of its own would say.
type Part struct {
	Action   string `json:"action"`
	Sentence string `json:"sentence,omitempty"` // "" where it changes nothing
	Steps    int    `json:"steps"`              // how many of the plan's are its own; they follow those of the Part before
	Target   Target `json:"target"`
	Before   State  `json:"before,omitempty"`
	Version  string `json:"version,omitempty"` // the handle for expected_version
	Blast    Blast  `json:"blast"`             // of this call alone; the Plan's is of all of them
	Undo     Undo   `json:"undo"`
}

// Span is where the Steps of a Part stand: from the first one to before the last one.
func (p *Plan) Span(part int) (from, to int) {
	for _, one := range p.Parts[:part] {
		from += one.Steps
	}
	return from, from + p.Parts[part].Steps
}

// Alone is the Plan as if a Part were the whole of it.
func (p *Plan) Alone(part int) *Plan {
	one := *p
	from, to := p.Span(part)
	one.Steps, one.Blast, one.Parts = p.Steps[from:to], p.Parts[part].Blast, nil
	return &one
}

// Writes is how many writes the plan is for the rate: one for each call that has a Step.
func (p *Plan) Writes() int {
	n := 0
	for _, part := range p.Parts {
		if part.Steps > 0 {
			n++
		}
	}
	return max(n, 1)
}

// Sentences joins those of several calls, numbered from 1; one that is empty changes
// nothing and is left out. It is an error where the whole does not fit into a phrase.
func Sentences(all []string) (string, error) {
	var out []string
	for i, s := range all {
		if s != "" {
			out = append(out, fmt.Sprintf("%d %s", i+1, s))
		}
	}
	whole := ChangesTool + ": " + strings.Join(out, "; ")
	if len(whole) > maxSentence {
		return "", fmt.Errorf("their sentence has %d characters, and %d fit into a phrase", len(whole), maxSentence)
	}
	return whole, nil
}
