package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSentences(t *testing.T) {
	for name, tc := range map[string]struct {
		all       []string
		want      string
		wantError string
	}{
		"of two":        {[]string{"scale deployment default/web from 2 to 3", "cordon node n1"}, "changes: 1 scale deployment default/web from 2 to 3; 2 cordon node n1", ""},
		"one is so":     {[]string{"cordon node n1", "", "cordon node n3"}, "changes: 1 cordon node n1; 3 cordon node n3", ""},
		"as long as it": {[]string{strings.Repeat("a", maxSentence-len("changes: 1 "))}, "changes: 1 " + strings.Repeat("a", maxSentence-len("changes: 1 ")), ""},
		"too long":      {[]string{strings.Repeat("a", maxSentence), "b"}, "", "their sentence has 529 characters, and 513 fit into a phrase"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Sentences(tc.all)
			said := ""
			if err != nil {
				said = err.Error()
			}
			if got != tc.want || said != tc.wantError {
				t.Errorf("%q, %q; want %q, %q", got, said, tc.want, tc.wantError)
			}
		})
	}
}

func TestParts(t *testing.T) {
	named := func(name string) Step { return Step{Verb: Delete, Target: Target{Resource: "pods", Name: name}} }
	p := &Plan{
		Steps: []Step{named("a"), named("b"), named("c")}, Blast: Blast{Pods: 3},
		Parts: []Part{{Steps: 2, Blast: Blast{Pods: 2}}, {}, {Steps: 1, Blast: Blast{Pods: 1}}},
	}
	type alone struct {
		From, To, Pods int
		Names          string
	}
	var got []alone
	for i := range p.Parts {
		from, to := p.Span(i)
		one := p.Alone(i)
		names := ""
		for _, s := range one.Steps {
			names += s.Target.Name
		}
		if one.Parts != nil {
			t.Error("one call has parts of its own")
		}
		got = append(got, alone{from, to, one.Blast.Pods, names})
	}
	if d := cmp.Diff([]alone{{0, 2, 2, "ab"}, {2, 2, 0, ""}, {2, 3, 1, "c"}}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if n := p.Writes(); n != 2 {
		t.Errorf("%d writes, want one for each call that has a Step", n)
	}
	if n := (&Plan{Steps: p.Steps}).Writes(); n != 1 {
		t.Errorf("a plan of one call is %d writes", n)
	}
}
