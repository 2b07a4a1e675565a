package read

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// stock is a source of so many rows, of which it tells how many are left.
func stock(resource string, n int, asked *[]string) source {
	return source{resource, "ns", func(_ context.Context, o metav1.ListOptions) (int, metav1.ListMeta, error) {
		*asked = append(*asked, fmt.Sprintf("%s limit %d from %q", resource, o.Limit, o.Continue))
		from := 0
		_, _ = fmt.Sscan(o.Continue, &from)
		got := min(int(o.Limit), n-from)
		meta := metav1.ListMeta{}
		if left := n - from - got; left > 0 {
			meta.Continue, meta.RemainingItemCount = fmt.Sprint(from+got), new(int64(left))
		}
		return got, meta, nil
	}}
}

func TestPage(t *testing.T) {
	for name, tc := range map[string]struct {
		sizes         []int
		limit         int32
		want          []string // shown and truncated of each page
		wantRequested []string
	}{
		"all of it":       {[]int{2, 1}, 3, []string{"3 "}, []string{"a limit 3 from \"\"", "b limit 1 from \"\""}},
		"within one":      {[]int{5, 1}, 4, []string{"4 1 more of a in ns; b in ns not read yet", "2 "}, []string{"a limit 4 from \"\"", "a limit 4 from \"4\"", "b limit 3 from \"\""}},
		"between two":     {[]int{2, 0, 1}, 2, []string{"2 b in ns, c in ns not read yet", "1 "}, []string{"a limit 2 from \"\"", "b limit 2 from \"\"", "c limit 2 from \"\""}},
		"nothing at all":  {[]int{0, 0}, 0, []string{"0 "}, []string{"a limit 50 from \"\"", "b limit 50 from \"\""}},
		"more than a few": {[]int{60}, 0, []string{"50 10 more of a in ns", "10 "}, []string{"a limit 50 from \"\"", "a limit 50 from \"50\""}},
	} {
		t.Run(name, func(t *testing.T) {
			var asked, got []string
			var sources []source
			for i, n := range tc.sizes {
				sources = append(sources, stock(string(rune('a'+i)), n, &asked))
			}
			at := paging{Limit: tc.limit}
			for range 5 {
				p, err := page(t.Context(), at, "", nil, sources, "less")
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprintf("%d %s", p.Shown, strings.TrimSuffix(p.Truncated, ". Pass continue for the next page, or narrow with less")))
				if at.Continue = p.Continue; p.Continue == "" {
					break
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("pages (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantRequested, asked); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPageHandle: a handle that is too old, or was not given out by this list, is refused.
func TestPageHandle(t *testing.T) {
	var asked []string
	first, err := page(t.Context(), paging{Limit: 1}, "app=web", nil, []source{stock("a", 3, &asked)}, "less")
	if err != nil {
		t.Fatal(err)
	}
	gone := source{"a", "ns", func(context.Context, metav1.ListOptions) (int, metav1.ListMeta, error) {
		return 0, metav1.ListMeta{}, apierrors.NewResourceExpired("too old")
	}}
	for name, tc := range map[string]struct {
		selector string
		sources  []source
		from     string
	}{
		"another selector": {"app=db", []source{stock("a", 3, &asked)}, first.Continue},
		"other sources":    {"app=web", []source{stock("b", 3, &asked)}, first.Continue},
		"no handle":        {"app=web", []source{stock("a", 3, &asked)}, "e30"},
		"too old":          {"app=web", []source{gone}, first.Continue},
	} {
		if _, err := page(t.Context(), paging{Limit: 1, Continue: tc.from}, tc.selector, nil, tc.sources, "less"); !refusal.Is(err, refusal.InvalidArguments) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSheet: the text of an answer stays within its bound, whatever is in it, says what it
// leaves out, and ends with what the cluster says.
func TestSheet(t *testing.T) {
	s := sheet{head: "500 rows", table: [][]string{{"NAME", "TEXT"}}}
	for i := range 500 {
		s.table = append(s.table, []string{fmt.Sprint("row-", i), strings.Repeat("x", 30)})
		s.quote(fmt.Sprint("row-", i), strings.Repeat("é", plan.MaxUntrusted))
	}
	s.line("a line")
	text := s.text(Head{Cluster: "lab", NotOnRecord: true})
	if n := utf8.RuneCountInString(text); n > 8000 || n < 6000 {
		t.Errorf("the text is %d characters", n)
	}
	for _, want := range []string{"not on record: ", "500 rows on lab", "more rows stand in the structured answer only", "\n  a line\n", "more texts of the cluster stand"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q", want)
		}
	}
	at := strings.Index(text, "\nuntrusted[")
	if at < 0 || strings.Contains(text[at:], "\n  ") {
		t.Errorf("text of the cluster does not come last: %s", text[max(at, 0):])
	}
}
