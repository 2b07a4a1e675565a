package gate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// verdict is what tables compare of a refusal; the zero one passes.
type verdict struct {
	Code          refusal.Code
	Message, Hint string
}

func verdictOf(r *refusal.Refusal) verdict {
	if r == nil {
		return verdict{}
	}
	return verdict{r.Code, r.Message, r.Hint}
}

func check(t *testing.T, want verdict, got *refusal.Refusal) {
	t.Helper()
	if diff := cmp.Diff(want, verdictOf(got)); diff != "" {
		t.Errorf("verdict (-want +got):\n%s", diff)
	}
}

func TestFor(t *testing.T) {
	base := Limits{
		MaxReplicas: 100, MaxBlastPercent: 50, WritesPerMinute: 6, PlansPerMinute: 60, TTL: 2 * time.Minute, ApprovalTTL: time.Hour, Irreversible: Human,
	}
	for name, tc := range map[string]struct{ over, want Limits }{
		"nothing": {Limits{}, base},
		"each of them": {
			Limits{MaxReplicas: 10, MaxBlastPercent: 25, WritesPerMinute: 1, PlansPerMinute: 5, TTL: time.Minute, ApprovalTTL: time.Minute, Irreversible: Refuse, GateSinglePod: true, RequireExpectedVersion: true},
			Limits{MaxReplicas: 10, MaxBlastPercent: 25, WritesPerMinute: 1, PlansPerMinute: 5, TTL: time.Minute, ApprovalTTL: time.Minute, Irreversible: Refuse, GateSinglePod: true, RequireExpectedVersion: true},
		},
		"one of them": {
			Limits{MaxBlastPercent: 25},
			Limits{MaxReplicas: 100, MaxBlastPercent: 25, WritesPerMinute: 6, PlansPerMinute: 60, TTL: 2 * time.Minute, ApprovalTTL: time.Hour, Irreversible: Human},
		},
		"looser":   {Limits{MaxReplicas: 1000, MaxBlastPercent: 100, WritesPerMinute: 600, PlansPerMinute: 6000, TTL: time.Hour, ApprovalTTL: 2 * time.Hour, Irreversible: Allow}, base},
		"negative": {Limits{MaxReplicas: -1, MaxBlastPercent: -1, WritesPerMinute: -1, PlansPerMinute: -1, TTL: -1, ApprovalTTL: -1}, base},
		"no word":  {Limits{Irreversible: "never"}, base},
	} {
		t.Run(name, func(t *testing.T) {
			p := Policy{Limits: base, Namespaces: map[string]Limits{"prod": tc.over}}
			if diff := cmp.Diff(tc.want, p.For("prod")); diff != "" {
				t.Errorf("limits in prod (-want +got):\n%s", diff)
			}
			for _, other := range []string{"dev", ""} {
				if diff := cmp.Diff(base, p.For(other)); diff != "" {
					t.Errorf("limits in %q (-want +got):\n%s", other, diff)
				}
			}
		})
	}
}

// TestForOfNoWord: a policy that says nothing means a person.
func TestForOfNoWord(t *testing.T) {
	p := Policy{Namespaces: map[string]Limits{"ns": {Irreversible: Allow}}}
	if got := p.For("ns").Irreversible; got == Allow {
		t.Errorf("irreversible is %q in a namespace that loosens nothing", got)
	}
}

// TestForNeverLoosens: whatever a namespace says, no field is looser than the policy's,
// and none that is stricter is lost.
func TestForNeverLoosens(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	strictness := map[Person]int{Allow: 0, Human: 1, Refuse: 2}
	persons := []Person{Allow, Human, Refuse}
	limits := func(unset bool) Limits {
		n := func(most int) int {
			if unset && rnd.IntN(3) == 0 {
				return 0
			}
			return rnd.IntN(most)
		}
		l := Limits{
			MaxReplicas: int32(n(200)), MaxBlastPercent: n(101), WritesPerMinute: n(20), PlansPerMinute: n(100), TTL: time.Duration(n(3600)) * time.Second, ApprovalTTL: time.Duration(n(3600)) * time.Second,
			Irreversible: persons[rnd.IntN(3)], GateSinglePod: rnd.IntN(2) == 0, RequireExpectedVersion: rnd.IntN(2) == 0,
		}
		if unset && rnd.IntN(3) == 0 {
			l.Irreversible = ""
		}
		return l
	}
	for range 10_000 {
		p := Policy{Limits: limits(false), Namespaces: map[string]Limits{"ns": limits(true)}}
		base, over, got := p.Limits, p.Namespaces["ns"], p.For("ns")
		for field, loose := range map[string]bool{
			"MaxReplicas":            got.MaxReplicas > base.MaxReplicas || over.MaxReplicas > 0 && got.MaxReplicas > over.MaxReplicas,
			"MaxBlastPercent":        got.MaxBlastPercent > base.MaxBlastPercent || over.MaxBlastPercent > 0 && got.MaxBlastPercent > over.MaxBlastPercent,
			"WritesPerMinute":        got.WritesPerMinute > base.WritesPerMinute || over.WritesPerMinute > 0 && got.WritesPerMinute > over.WritesPerMinute,
			"PlansPerMinute":         got.PlansPerMinute > base.PlansPerMinute || over.PlansPerMinute > 0 && got.PlansPerMinute > over.PlansPerMinute,
			"TTL":                    got.TTL > base.TTL || over.TTL > 0 && got.TTL > over.TTL,
			"ApprovalTTL":            got.ApprovalTTL > base.ApprovalTTL || over.ApprovalTTL > 0 && got.ApprovalTTL > over.ApprovalTTL,
			"Irreversible":           strictness[got.Irreversible] < strictness[base.Irreversible] || strictness[got.Irreversible] < strictness[over.Irreversible],
			"GateSinglePod":          !got.GateSinglePod && (base.GateSinglePod || over.GateSinglePod),
			"RequireExpectedVersion": !got.RequireExpectedVersion && (base.RequireExpectedVersion || over.RequireExpectedVersion),
		} {
			if loose {
				t.Fatalf("%s is loosened: policy %+v, namespace %+v, together %+v", field, base, over, got)
			}
		}
	}
}

func TestScope(t *testing.T) {
	const hint = "only the operator can change this, with --protect-namespaces or --allow-namespaces"
	open := Policy{ProtectNamespaces: []string{"kube-system", "own"}}
	narrow := Policy{ProtectNamespaces: []string{"kube-system"}, AllowNamespaces: []string{"dev", "kube-system"}}
	for name, tc := range map[string]struct {
		policy Policy
		scope  plan.Scope
		want   verdict
	}{
		"every namespace":           {open, plan.Scope{Namespace: "default"}, verdict{}},
		"protected":                 {open, plan.Scope{Namespace: "kube-system"}, verdict{refusal.OutOfScope, "namespace kube-system is protected; nothing was read", hint}},
		"the server's own":          {open, plan.Scope{Namespace: "own"}, verdict{refusal.OutOfScope, "namespace own is protected; nothing was read", hint}},
		"allowed":                   {narrow, plan.Scope{Namespace: "dev"}, verdict{}},
		"not allowed":               {narrow, plan.Scope{Namespace: "prod"}, verdict{refusal.OutOfScope, "namespace prod is not in --allow-namespaces; nothing was read", hint}},
		"allowed and protected":     {narrow, plan.Scope{Namespace: "kube-system"}, verdict{refusal.OutOfScope, "namespace kube-system is protected; nothing was read", hint}},
		"names are whole":           {narrow, plan.Scope{Namespace: "dev-2"}, verdict{refusal.OutOfScope, "namespace dev-2 is not in --allow-namespaces; nothing was read", hint}},
		"names are no patterns":     {Policy{AllowNamespaces: []string{"*"}}, plan.Scope{Namespace: "dev"}, verdict{refusal.OutOfScope, "namespace dev is not in --allow-namespaces; nothing was read", hint}},
		"a node is no namespace":    {narrow, plan.Scope{Node: "n1"}, verdict{}},
		"a node named as protected": {open, plan.Scope{Node: "kube-system"}, verdict{}},
	} {
		t.Run(name, func(t *testing.T) { check(t, tc.want, tc.policy.Scope(tc.scope)) })
	}
}

func TestNode(t *testing.T) {
	workers, err := labels.Parse("pool=workers")
	if err != nil {
		t.Fatal(err)
	}
	none := Policy{}
	named := Policy{AllowNodes: []string{"n1"}}
	both := Policy{AllowNodes: []string{"n1"}, AllowNodeSelector: workers}
	for name, tc := range map[string]struct {
		policy    Policy
		scope     plan.Scope
		labels    map[string]string
		wantReads bool
		want      verdict
	}{
		"no node":             {none, plan.Scope{Namespace: "default"}, nil, false, verdict{}},
		"none are allowed":    {none, plan.Scope{Node: "n1"}, nil, false, verdict{refusal.NodeNotAllowed, "node n1 is not in --allow-nodes", "the operator allows nodes with --allow-nodes n1 or --allow-node-selector"}},
		"by name":             {named, plan.Scope{Node: "n1"}, nil, false, verdict{}},
		"by another name":     {named, plan.Scope{Node: "n10"}, nil, false, verdict{refusal.NodeNotAllowed, "node n10 is not in --allow-nodes", "the operator allows nodes with --allow-nodes n10 or --allow-node-selector"}},
		"by name, not label":  {both, plan.Scope{Node: "n1"}, nil, false, verdict{}},
		"by label":            {both, plan.Scope{Node: "n2"}, map[string]string{"pool": "workers"}, true, verdict{}},
		"by another label":    {both, plan.Scope{Node: "n2"}, map[string]string{"pool": "control"}, true, verdict{refusal.NodeNotAllowed, "node n2 is not in --allow-nodes and does not match --allow-node-selector pool=workers", "the operator allows nodes with --allow-nodes or a wider --allow-node-selector"}},
		"labels are not read": {named, plan.Scope{Node: "n2"}, map[string]string{"pool": "workers"}, false, verdict{refusal.NodeNotAllowed, "node n2 is not in --allow-nodes", "the operator allows nodes with --allow-nodes n2 or --allow-node-selector"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.policy.NeedsNode(tc.scope); got != tc.wantReads {
				t.Errorf("NeedsNode() = %t, want %t", got, tc.wantReads)
			}
			check(t, tc.want, tc.policy.Node(tc.scope, tc.labels))
		})
	}
}

func TestAction(t *testing.T) {
	some := Policy{Actions: []string{"scale", "cordon"}}
	for name, tc := range map[string]struct {
		policy Policy
		action string
		want   verdict
	}{
		"all":         {Policy{}, "drain", verdict{}},
		"enabled":     {some, "cordon", verdict{}},
		"not enabled": {some, "drain", verdict{refusal.OutOfScope, "action drain is not enabled by --actions", "enabled are scale, cordon"}},
	} {
		t.Run(name, func(t *testing.T) { check(t, tc.want, tc.policy.Action(tc.action)) })
	}
}

func TestVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		required bool
		expected string
		want     verdict
	}{
		"optional, none": {false, "", verdict{}},
		"optional, one":  {false, "v0123456789", verdict{}},
		"required, one":  {true, "v0123456789", verdict{}},
		"required, none": {true, "", verdict{refusal.PreconditionFailed, "the policy requires expected_version here", "read the target and pass its version as expected_version"}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, tc.want, Limits{RequireExpectedVersion: tc.required}.Version(tc.expected))
		})
	}
}

func scale(from string, to int32) plan.Step {
	return plan.Step{Verb: plan.Scale, Replicas: &to, Changes: []plan.Change{{Field: "spec.replicas", Old: from, New: fmt.Sprint(to)}}}
}

func TestCap(t *testing.T) {
	for name, tc := range map[string]struct {
		steps []plan.Step
		want  verdict
	}{
		"none":                         {nil, verdict{}},
		"no scale":                     {[]plan.Step{{Verb: plan.Patch}, {Verb: plan.Evict}}, verdict{}},
		"up to it":                     {[]plan.Step{scale("2", 10)}, verdict{}},
		"above it":                     {[]plan.Step{scale("2", 11)}, verdict{refusal.CapExceeded, "11 replicas are more than max_replicas 10", "at most 10 passes"}},
		"above it, from above":         {[]plan.Step{scale("12", 13)}, verdict{refusal.CapExceeded, "13 replicas are more than max_replicas 10", "at most 10 passes"}},
		"a reduction to a value above": {[]plan.Step{scale("30", 20)}, verdict{}},
		"from an unset value":          {[]plan.Step{scale("", 11)}, verdict{refusal.CapExceeded, "11 replicas are more than max_replicas 10", "at most 10 passes"}},
		"from no number":               {[]plan.Step{scale("many", 11)}, verdict{refusal.CapExceeded, "11 replicas are more than max_replicas 10", "at most 10 passes"}},
		"to zero":                      {[]plan.Step{scale("2", 0)}, verdict{}},
		"the second of two":            {[]plan.Step{scale("2", 3), scale("2", 11)}, verdict{refusal.CapExceeded, "11 replicas are more than max_replicas 10", "at most 10 passes"}},
	} {
		t.Run(name, func(t *testing.T) { check(t, tc.want, Limits{MaxReplicas: 10}.Cap(tc.steps)) })
	}
}

func TestBlast(t *testing.T) {
	const text = "3 of 4 ready pods may be missing at once: 75 % at risk, the limit is 50 %"
	removes := func(r plan.Risk, largest *int32) plan.Blast {
		return plan.Blast{Direction: plan.Removes, AtRisk: r, Largest: largest}
	}
	replaces := func(r plan.Risk) plan.Blast { return plan.Blast{Direction: plan.Replaces, AtRisk: r} }
	for name, tc := range map[string]struct {
		blast      plan.Blast
		single     bool // gate_single_pod
		want       verdict
		wantPerson string
		wantAt     time.Time
	}{
		"nothing at risk":    {blast: replaces(plan.Risk{Ready: 4, Peak: 4})},
		"up to the limit":    {blast: removes(plan.Risk{Ready: 4, Peak: 4, Missing: 2, Percent: 50}, nil)},
		"over it, by nature": {blast: replaces(plan.Risk{Ready: 4, Peak: 4, Missing: 3, Percent: 75}), wantPerson: text},
		"over it, with a smaller step": {
			blast: removes(plan.Risk{Ready: 4, Peak: 4, Missing: 3, Percent: 75}, ptr.To[int32](2)),
			want:  verdict{refusal.BlastLimit, text, "the largest step that passes is replicas: 2"},
		},
		"the only pod is replaced": {blast: replaces(plan.Risk{Ready: 1, Peak: 1, Missing: 1, Percent: 100, Replaced: true})},
		"the only pod is replaced, and counts": {
			blast: replaces(plan.Risk{Ready: 1, Peak: 1, Missing: 1, Percent: 100, Replaced: true}), single: true,
			wantPerson: "1 of 1 ready pod may be missing at once: 100 % at risk, the limit is 50 %",
		},
		"the last of three whose replacements never got ready": {
			blast:      replaces(plan.Risk{Ready: 1, Peak: 3, Missing: 1, Percent: 100, Replaced: true}),
			wantPerson: "3 of the 3 ready pods of the last 10 minutes may be missing at once: 100 % at risk, the limit is 50 %",
		},
		"the second of three whose replacement is not ready yet": {
			blast: replaces(plan.Risk{Ready: 2, Peak: 3, Missing: 1, Percent: 67, Replaced: true}),
			want: verdict{refusal.BlastLimit, "2 of the 3 ready pods of the last 10 minutes may be missing at once: 67 % at risk, the limit is 50 %",
				"it passes at 2026-11-30T12:10:00Z"},
			wantAt: noon.Add(10 * time.Minute),
		},
		"the only pod is removed": {
			blast:      removes(plan.Risk{Ready: 1, Peak: 1, Missing: 1, Percent: 100}, nil),
			wantPerson: "1 of 1 ready pod may be missing at once: 100 % at risk, the limit is 50 %",
		},
		"two of two are replaced": {
			blast:      replaces(plan.Risk{Ready: 2, Peak: 2, Missing: 2, Percent: 100, Replaced: true}),
			wantPerson: "2 of 2 ready pods may be missing at once: 100 % at risk, the limit is 50 %",
		},
		"a removal that passes without the memory": {
			blast: removes(plan.Risk{Ready: 4, Peak: 8, Missing: 2, Percent: 75}, nil),
			want: verdict{refusal.BlastLimit, "6 of the 8 ready pods of the last 10 minutes may be missing at once: 75 % at risk, the limit is 50 %",
				"it passes at 2026-11-30T12:10:00Z"},
			wantAt: noon.Add(10 * time.Minute),
		},
		"a removal that does not": {
			blast: removes(plan.Risk{Ready: 4, Peak: 8, Missing: 3, Percent: 88}, nil),
			want: verdict{refusal.BlastLimit, "7 of the 8 ready pods of the last 10 minutes may be missing at once: 88 % at risk, the limit is 50 %",
				"no smaller step passes before 2026-11-30T12:10:00Z; plan a smaller one then"},
		},
		"a replacement that passes without the memory": {
			blast: replaces(plan.Risk{Ready: 4, Peak: 8, Missing: 1, Percent: 63}),
			want: verdict{refusal.BlastLimit, "5 of the 8 ready pods of the last 10 minutes may be missing at once: 63 % at risk, the limit is 50 %",
				"it passes at 2026-11-30T12:10:00Z"},
			wantAt: noon.Add(10 * time.Minute),
		},
		"a replacement that does not is a person's": {
			blast:      replaces(plan.Risk{Ready: 4, Peak: 8, Missing: 4, Percent: 100}),
			wantPerson: "8 of the 8 ready pods of the last 10 minutes may be missing at once: 100 % at risk, the limit is 50 %",
		},
		"a smaller step beats the memory": {
			blast: removes(plan.Risk{Ready: 4, Peak: 6, Missing: 3, Percent: 84}, ptr.To[int32](3)),
			want: verdict{refusal.BlastLimit, "5 of the 6 ready pods of the last 10 minutes may be missing at once: 84 % at risk, the limit is 50 %",
				"the largest step that passes is replicas: 3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			no, person := Limits{MaxBlastPercent: 50, GateSinglePod: tc.single}.Blast(tc.blast, noon)
			check(t, tc.want, no)
			if person != tc.wantPerson {
				t.Errorf("a person's: %q, want %q", person, tc.wantPerson)
			}
			if no != nil && (!no.RetryAt.Equal(tc.wantAt) || no.Retryable == tc.wantAt.IsZero()) {
				t.Errorf("the same call passes: %t, at %s, want at %s", no.Retryable, no.RetryAt, tc.wantAt)
			}
		})
	}
}

func TestBlastLimits(t *testing.T) {
	risk := plan.Blast{Direction: plan.Replaces, AtRisk: plan.Risk{Ready: 4, Peak: 4, Missing: 2, Percent: 50}}
	for limit, wantPass := range map[int]bool{0: false, 49: false, 50: true, 100: true} {
		no, person := Limits{MaxBlastPercent: limit}.Blast(risk, noon)
		if pass := no == nil && person == ""; pass != wantPass {
			t.Errorf("50 %% under a limit of %d passes: %t, want %t", limit, pass, wantPass)
		}
	}
	if no, person := (Limits{}).Blast(plan.Blast{Direction: plan.Adds}, noon); no != nil || person != "" {
		t.Errorf("nothing at risk under a limit of 0: %v, %q", no, person)
	}
}

func TestNeedsPerson(t *testing.T) {
	reasons := []string{"a bare pod", "75 % at risk"}
	for name, tc := range map[string]struct {
		person    Person
		reasons   []string
		wantWaits bool
		want      verdict
	}{
		"no reason":         {Human, nil, false, verdict{}},
		"no reason, refuse": {Refuse, nil, false, verdict{}},
		"allow":             {Allow, reasons, false, verdict{}},
		"human":             {Human, reasons, true, verdict{}},
		"no word is human":  {"", reasons, true, verdict{}},
		"refuse": {Refuse, reasons, false, verdict{refusal.BlastLimit, "a bare pod; 75 % at risk",
			"there is no smaller step; the operator has forbidden this one with --irreversible=refuse"}},
	} {
		t.Run(name, func(t *testing.T) {
			waits, no := Limits{Irreversible: tc.person}.NeedsPerson(tc.reasons)
			check(t, tc.want, no)
			if waits != tc.wantWaits {
				t.Errorf("it waits: %t, want %t", waits, tc.wantWaits)
			}
		})
	}
}

func TestRate(t *testing.T) {
	before := func(seconds ...int) (past []time.Time) {
		for _, s := range seconds {
			past = append(past, noon.Add(-time.Duration(s)*time.Second))
		}
		return past
	}
	for name, tc := range map[string]struct {
		past   []time.Time
		limit  int
		want   verdict
		wantAt time.Time
	}{
		"none":         {nil, 2, verdict{}, time.Time{}},
		"one is left":  {before(1), 2, verdict{}, time.Time{}},
		"none is left": {before(50, 1), 2, verdict{refusal.RateLimited, "2 writes in the last minute: no more are allowed", "call again in 10s, at 2026-11-30T12:00:10Z"}, noon.Add(10 * time.Second)},
		"too many: the oldest that counts": {before(50, 40, 30), 2,
			verdict{refusal.RateLimited, "2 writes in the last minute: no more are allowed", "call again in 20s, at 2026-11-30T12:00:20Z"}, noon.Add(20 * time.Second)},
		"one a minute": {before(0), 1, verdict{refusal.RateLimited, "1 write in the last minute: no more are allowed", "call again in 1m0s, at 2026-11-30T12:01:00Z"}, noon.Add(time.Minute)},
		"a part of a second is a whole one": {[]time.Time{noon.Add(-50*time.Second + 400*time.Millisecond)}, 1,
			verdict{refusal.RateLimited, "1 write in the last minute: no more are allowed", "call again in 11s, at 2026-11-30T12:00:11Z"}, noon.Add(11 * time.Second)},
		"never less than a second": {before(60), 1, verdict{refusal.RateLimited, "1 write in the last minute: no more are allowed", "call again in 1s, at 2026-11-30T12:00:00Z"}, noon},
	} {
		t.Run(name, func(t *testing.T) {
			got := Rate("write", tc.past, tc.limit, noon)
			check(t, tc.want, got)
			if got != nil && (!got.RetryAt.Equal(tc.wantAt) || !got.Retryable) {
				t.Errorf("retryable %t at %s, want at %s", got.Retryable, got.RetryAt, tc.wantAt)
			}
		})
	}
}

// TestRateNamesTheTime: the call that is refused passes at the time that is named, and
// not a second before.
func TestRateNamesTheTime(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 2_000 {
		limit := 1 + rnd.IntN(5)
		var all []time.Time
		at := noon.Add(-3 * time.Minute)
		for range rnd.IntN(30) {
			at = at.Add(time.Duration(rnd.Int64N(int64(20 * time.Second))))
			if at.After(noon) {
				break
			}
			all = append(all, at)
		}
		rate := func(now time.Time) *refusal.Refusal { // as the engine asks
			var past []time.Time
			for _, p := range all {
				if p.After(now.Add(-time.Minute)) {
					past = append(past, p)
				}
			}
			return Rate("plan", past, limit, now)
		}
		r := rate(noon)
		if r == nil {
			continue
		}
		if again := rate(r.RetryAt); again != nil {
			t.Fatalf("limit %d, past %v: refused until %s and then refused again: %v", limit, all, r.RetryAt, again)
		}
		named, err := time.Parse(time.RFC3339, r.Hint[strings.LastIndex(r.Hint, " ")+1:])
		if err != nil || !named.Equal(r.RetryAt) {
			t.Fatalf("the hint %q does not name %s: %v", r.Hint, r.RetryAt, err)
		}
		if early := rate(r.RetryAt.Add(-time.Second)); early == nil {
			t.Fatalf("limit %d, past %v: refused until %s and it passes before", limit, all, r.RetryAt)
		}
	}
}

// TestHints: every refusal of a gate says what to do instead, on one line.
func TestHints(t *testing.T) {
	_, refuse := Limits{Irreversible: Refuse}.NeedsPerson([]string{"a bare pod"})
	no, _ := Limits{MaxBlastPercent: 50}.Blast(plan.Blast{AtRisk: plan.Risk{Ready: 4, Peak: 4, Missing: 3, Percent: 75}, Largest: ptr.To[int32](2)}, noon)
	for _, r := range []*refusal.Refusal{
		Policy{AllowNamespaces: []string{"dev"}}.Scope(plan.Scope{Namespace: "prod"}),
		Policy{}.Node(plan.Scope{Node: "n1"}, nil),
		Policy{Actions: []string{"scale"}}.Action("drain"),
		Limits{RequireExpectedVersion: true}.Version(""),
		Limits{MaxReplicas: 10}.Cap([]plan.Step{scale("2", 11)}),
		no,
		refuse,
		Rate("write", []time.Time{noon}, 1, noon),
	} {
		if r == nil || r.Hint == "" || strings.Contains(r.Hint+r.Message, "\n") {
			t.Errorf("refusal %+v has no hint on one line", r)
		}
	}
}
