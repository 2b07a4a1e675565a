package refusal

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// constants reads the codes from the source, since Go cannot list them.
func constants(t *testing.T) (codes []Code) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "refusal.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec)
			if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Code" {
				t.Errorf("constant %s is no Code", spec.Names[0].Name)
				continue
			}
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes = append(codes, Code(text))
		}
	}
	return codes
}

// TestTable: it lists every constant once, in the order of the source, and nothing else.
func TestTable(t *testing.T) {
	var got []Code
	for _, e := range Table {
		got = append(got, e.Code)
	}
	want := constants(t)
	if len(want) == 0 {
		t.Fatal("the source has no constants of type Code")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("codes (-constants +table):\n%s", diff)
	}
	if sorted := slices.Sorted(slices.Values(got)); len(slices.Compact(sorted)) != len(got) {
		t.Error("a code stands there twice")
	}
	for _, e := range Table {
		if e.Meaning == "" || strings.ContainsAny(e.Meaning, "\n|") || strings.HasSuffix(e.Meaning, ".") {
			t.Errorf("%s: the meaning %q is no cell of a table", e.Code, e.Meaning)
		}
	}
}

// TestDesigned: the list is closed. A code that is added must be a decision: here, in the
// README and in a test that provokes it.
func TestDesigned(t *testing.T) {
	want := strings.Fields(`invalid_arguments out_of_scope node_not_allowed not_found terminating owned_by_controller paused no_history
		precondition_failed facts_missing dry_run_failed forbidden blast_limit cap_exceeded window_closed needs_person rate_limited
		unknown_phrase wrong_arguments expired stale record_missing key_unknown audit_unavailable unreachable`)
	var got []string
	for _, c := range constants(t) {
		got = append(got, string(c))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
}

func TestEvent(t *testing.T) {
	own := map[Code]string{DryRunFailed: "dry_run_failed", RateLimited: "rate_limited", Expired: "expired", Stale: "stale", NeedsPerson: "waiting_for_person"}
	for _, c := range append(constants(t), "a_code_of_tomorrow") {
		want := "refused"
		if e, ok := own[c]; ok {
			want = e
		}
		if got := New(c, "", "").Event(); got != want {
			t.Errorf("%s is the event %q, want %q", c, got, want)
		}
	}
}

func TestJoin(t *testing.T) {
	a, b, c := New(BlastLimit, "smaller", "too much"), New(CapExceeded, "", "too many"), New(NeedsPerson, "", "a person's")
	for name, tc := range map[string]struct {
		all       []*Refusal
		wantCode  Code
		wantError string
	}{
		"one":                   {[]*Refusal{a}, BlastLimit, "too much"},
		"the first leads":       {[]*Refusal{b, a}, CapExceeded, "too many; too much"},
		"all are kept":          {[]*Refusal{a, b, c}, BlastLimit, "too much; too many; a person's"},
		"nil are left out":      {[]*Refusal{nil, b, nil, c, nil}, CapExceeded, "too many; a person's"},
		"joined once more":      {[]*Refusal{Join(a, b), c}, BlastLimit, "too much; too many; a person's"},
		"joined before, behind": {[]*Refusal{c, Join(a, b)}, NeedsPerson, "a person's; too much; too many"},
		"the same one twice":    {[]*Refusal{a, a}, BlastLimit, "too much; too much"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Join(tc.all...)
			if got.Code != tc.wantCode || got.Error() != tc.wantError {
				t.Errorf("joined: %s %q, want %s %q", got.Code, got.Error(), tc.wantCode, tc.wantError)
			}
		})
	}
	for name, all := range map[string][]*Refusal{"none": nil, "nil alone": {nil, nil}} {
		t.Run(name, func(t *testing.T) {
			if got := Join(all...); got != nil {
				t.Errorf("joined: %v, want nil", got)
			}
		})
	}
	t.Run("joined with two others", func(t *testing.T) {
		first := Join(a, b, c, a)
		x, y := Join(first, b), Join(first, c)
		if got, want := x.Error(), "too much; too many; a person's; too much; too many"; got != want {
			t.Errorf("joined %q, want %q; another joined from the same: %q", got, want, y.Error())
		}
	})
	t.Run("those joined are unchanged", func(t *testing.T) {
		Join(a, b, c)
		if a.Also != nil || b.Also != nil {
			t.Errorf("a has %v, b has %v beside it", a.Also, b.Also)
		}
	})
}

func TestLater(t *testing.T) {
	at := time.Date(2026, 11, 30, 5, 0, 0, 0, time.UTC)
	r := New(RateLimited, "", "too many").Later(at)
	if !r.Retryable || !r.RetryAt.Equal(at) {
		t.Errorf("retryable %t at %s, want at %s", r.Retryable, r.RetryAt, at)
	}
	if Join(r, New(Stale, "", "")).RetryAt != at {
		t.Error("joined, it has lost its time")
	}
	if New(Stale, "", "").Retryable {
		t.Error("a new refusal is retryable")
	}
}

func TestIs(t *testing.T) {
	r := New(Expired, "plan again", "the plan %s expired", "abc")
	if r.Message != "the plan abc expired" || r.Hint != "plan again" {
		t.Errorf("refusal %+v", r)
	}
	for name, tc := range map[string]struct {
		err  error
		code Code
		want bool
	}{
		"itself":       {r, Expired, true},
		"wrapped":      {fmt.Errorf("while executing: %w", r), Expired, true},
		"joined":       {errors.Join(errors.New("a"), r), Expired, true},
		"another code": {r, Stale, false},
		"no refusal":   {errors.New("expired"), Expired, false},
		"nil":          {nil, Expired, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Is(tc.err, tc.code); got != tc.want {
				t.Errorf("Is = %t, want %t", got, tc.want)
			}
		})
	}
}
