package action

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// The argument types of the tests have every shape that arguments have: an int32 that is
// required, an int64 with a default, an optional pointer, booleans, names of every kind.
type (
	scaleArgs struct {
		Namespaced
		Scalable
		Replicas int32 `json:"replicas"`
	}
	drainArgs struct {
		OnNode
		Force          bool  `json:"force,omitempty"`
		TimeoutSeconds int64 `json:"timeout_seconds,omitempty"`
	}
	podArgs struct {
		Namespaced
		Pod   string `json:"pod"`
		Grace *int64 `json:"grace_period_seconds,omitempty"`
	}
	rollArgs struct {
		Namespaced
		Rollable
	}
)

func (a *drainArgs) SetDefaults() { a.TimeoutSeconds = cmp.Or(a.TimeoutSeconds, 300) }

var needs = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}

func anAction[A Args](name string, schema func(*jsonschema.Schema)) *Action {
	return New(Spec{Name: name, Title: "A title", Doc: "A doc.", Needs: needs, Schema: schema},
		func(context.Context, *Session, A) error { return nil })
}

var (
	scale = anAction[scaleArgs]("scale", func(s *jsonschema.Schema) { s.Properties["replicas"].Minimum = new(float64) })
	drain = anAction[drainArgs]("drain", func(s *jsonschema.Schema) { Between(s, "timeout_seconds", 1, 3600) })
	pod   = anAction[podArgs]("delete_pod", func(s *jsonschema.Schema) { Between(s, "grace_period_seconds", 1, 3600) })
	roll  = anAction[rollArgs]("rollout_restart", nil)
)

// planSchema is what a plan tool publishes under --max-replicas 100.
func planSchema(a *Action) *jsonschema.Schema {
	s := a.Schema()
	if p, ok := s.Properties["replicas"]; ok {
		most := 100.0
		p.Maximum, p.Comment = &most, " (--max-replicas)"
	}
	return s
}

func writeSchema(a *Action) *jsonschema.Schema { return Confirmed(planSchema(a)) }

// refused decodes what must be refused and gives the refusal.
func refused(t *testing.T, a *Action, s *jsonschema.Schema, raw string) *refusal.Refusal {
	t.Helper()
	d, err := a.Decode(s, json.RawMessage(raw))
	r, ok := errors.AsType[*refusal.Refusal](err)
	if !ok || r.Code != refusal.InvalidArguments {
		t.Fatalf("Decode(%s) = %s, %v; want %s", raw, d.Canonical, err, refusal.InvalidArguments)
	}
	for _, text := range []string{r.Message, r.Hint} {
		for _, c := range text {
			if c < ' ' || c > '~' {
				t.Errorf("%U in %q", c, text)
			}
		}
	}
	return r
}

func accepted(t *testing.T, a *Action, s *jsonschema.Schema, raw string) Decoded {
	t.Helper()
	d, err := a.Decode(s, json.RawMessage(raw))
	if err != nil {
		t.Fatalf("Decode(%s): %v", raw, err)
	}
	return d
}

const replicasFault = "replicas must be an integer from 0 to 100 (--max-replicas)"

// TestCase_SC_11: an integer is an integer. Nothing is defaulted, nothing is converted
// but a number whose fraction is zero.
func TestCase_SC_11(t *testing.T) {
	for name, tc := range map[string]struct {
		replicas string // "" leaves the argument out
		want     int32
		refused  string // the message; "" is accepted
	}{
		"5":               {"5", 5, ""},
		"5.0":             {"5.0", 5, ""},
		"5e0":             {"5e0", 5, ""},
		"50e-1":           {"50e-1", 5, ""},
		"0":               {"0", 0, ""},
		"-0":              {"-0", 0, ""},
		"-0.0":            {"-0.0", 0, ""},
		"the maximum":     {"100", 100, ""},
		"text":            {`"5"`, 0, replicasFault + ` without quotes, not "5"`},
		"5.5":             {"5.5", 0, replicasFault + ", not 5.5"},
		"text and space":  {`"5 "`, 0, replicasFault + ` without quotes, not "5 "`},
		"hexadecimal":     {`"0x5"`, 0, replicasFault + ` without quotes, not "0x5"`},
		"exponent text":   {`"5e0"`, 0, replicasFault + ` without quotes, not "5e0"`},
		"empty text":      {`""`, 0, replicasFault + ` without quotes, not ""`},
		"null":            {"null", 0, replicasFault + ", not null"},
		"true":            {"true", 0, replicasFault + ", not true"},
		"list":            {"[5]", 0, replicasFault + ", not [5]"},
		"object":          {`{"value":5}`, 0, replicasFault + `, not {"value":5}`},
		"-1":              {"-1", 0, replicasFault + ", not -1"},
		"over the cap":    {"101", 0, replicasFault + ", not 101"},
		"2147483647":      {"2147483647", 0, replicasFault + ", not 2147483647"},
		"2147483648":      {"2147483648", 0, replicasFault + ", not 2147483648"},
		"-2147483649":     {"-2147483649", 0, replicasFault + ", not -2147483649"},
		"2^32+5":          {"4294967301", 0, replicasFault + ", not 4294967301"},
		"2^63":            {"9223372036854775808", 0, replicasFault + ", not 9223372036854776000"},
		"2^64+5":          {"18446744073709551621", 0, replicasFault + ", not 18446744073709552000"},
		"1e100":           {"1e100", 0, replicasFault + ", not 1e+100"},
		"-1e100":          {"-1e100", 0, replicasFault + ", not -1e+100"},
		"1e400":           {"1e400", 0, replicasFault + ", not 1e400"},
		"-1e400":          {"-1e400", 0, replicasFault + ", not -1e400"},
		"1e400 in a list": {"[1e400]", 0, replicasFault + ", not [1e400]"},
		"1e400 twice":     {`1e400,"replicas":5`, 0, `argument given twice: duplicate field "replicas"`},
		"key twice":       {`{"a":1,"a":2}`, 0, `argument given twice: duplicate field "replicas.a"; ` + replicasFault + `, not {"a":2}`},
		"NaN as text":     {`"NaN"`, 0, replicasFault + ` without quotes, not "NaN"`},
		"missing":         {"", 0, "missing argument replicas"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := `{"namespace":"default","deployment":"web"}`
			if tc.replicas != "" {
				raw = `{"namespace":"default","deployment":"web","replicas":` + tc.replicas + `}`
			}
			if tc.refused != "" {
				if r := refused(t, scale, planSchema(scale), raw); r.Message != tc.refused {
					t.Errorf("message\n%s, want\n%s", r.Message, tc.refused)
				}
				return
			}
			d := accepted(t, scale, planSchema(scale), raw)
			if got := d.Args.(scaleArgs).Replicas; got != tc.want {
				t.Errorf("replicas %d, want %d", got, tc.want)
			}
			want := fmt.Sprintf(`{"namespace":"default","deployment":"web","replicas":%d}`, tc.want)
			if diff := gocmp.Diff(want, string(d.Canonical)); diff != "" {
				t.Errorf("canonical form (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("no JSON number", func(t *testing.T) {
		for _, v := range []string{"NaN", "Infinity", "0x5", "05", "+5", "5.", ".5", "1_000", "5f"} {
			refused(t, scale, planSchema(scale), `{"namespace":"default","deployment":"web","replicas":`+v+`}`)
		}
	})
}

// TestCase_PX_13: keys are compared byte for byte, and none stands there twice.
func TestCase_PX_13(t *testing.T) {
	for name, tc := range map[string]struct{ raw, want string }{
		"another case": {
			`{"namespace":"dev","Namespace":"prod","deployment":"web","replicas":1}`,
			"unknown argument Namespace: write namespace",
		},
		"another case alone": {
			`{"NAMESPACE":"prod","deployment":"web","replicas":1}`,
			"unknown argument NAMESPACE: write namespace; missing argument namespace",
		},
		"twice": {
			`{"namespace":"dev","deployment":"web","replicas":1,"replicas":9}`,
			`argument given twice: duplicate field "replicas"`,
		},
		"twice, the same": {
			`{"namespace":"dev","namespace":"dev","deployment":"web","replicas":1}`,
			`argument given twice: duplicate field "namespace"`,
		},
		"twice, once escaped": {
			`{"namespace":"dev","n\u0061mespace":"prod","deployment":"web","replicas":1}`,
			`argument given twice: duplicate field "namespace"`,
		},
		"twice, once null": {
			`{"namespace":"dev","deployment":"web","replicas":1,"expected_version":null,"expected_version":"v0123456789"}`,
			`argument given twice: duplicate field "expected_version"`,
		},
		"long s": {
			`{"namespace":"dev","deployment":"web","replica\u017f":1}`,
			`unknown argument replica\u017f: write replicas; missing argument replicas`,
		},
		"long s beside": {
			`{"namespace":"dev","deployment":"web","replicas":1,"replica\u017f":9}`,
			`unknown argument replica\u017f: write replicas`,
		},
		"Kelvin sign": {
			`{"namespace":"dev","deployment":"web","replicas":1,"\u212aind":1}`,
			`unknown argument \u212aind`,
		},
		"field names of Go": {
			`{"namespace":"dev","deployment":"web","replicas":1,"ExpectedVersion":"v0"}`,
			`unknown argument ExpectedVersion`,
		},
		"embedded types of Go": {
			`{"namespace":"dev","deployment":"web","replicas":1,"Namespaced":{"namespace":"prod"}}`,
			`unknown argument Namespaced`,
		},
		"space and NUL in a key": {
			`{"namespace":"dev","deployment":"web","replicas":1,"replicas ":9,"replicas\u0000":9}`,
			`unknown argument replicas\x00; unknown argument replicas `,
		},
		"the empty key": {
			`{"namespace":"dev","deployment":"web","replicas":1,"":9}`,
			`unknown argument `,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for what, s := range map[string]*jsonschema.Schema{"plan": planSchema(scale), "write": writeSchema(scale)} {
				raw, want := tc.raw, tc.want
				if what == "write" {
					raw = strings.TrimSuffix(raw, "}") + `,"confirm":"c","reason":"r"}`
				}
				if r := refused(t, scale, s, raw); r.Message != want {
					t.Errorf("%s: message\n%s, want\n%s", what, r.Message, want)
				}
			}
		})
	}
	t.Run("case variants of confirm and reason", func(t *testing.T) {
		raw := `{"namespace":"dev","deployment":"web","replicas":1,"confirm":"c","reason":"r","Confirm":"d","REASON":"s"}`
		want := "unknown argument Confirm: write confirm; unknown argument REASON: write reason"
		if r := refused(t, scale, writeSchema(scale), raw); r.Message != want {
			t.Errorf("message %q, want %q", r.Message, want)
		}
	})
}

// TestCase_PX_14: unknown arguments are refused, null is the absence of an optional one,
// and arguments are an object.
func TestCase_PX_14(t *testing.T) {
	drainOf := func(raw string) string { return strings.Replace(raw, "{", `{"node":"n1",`, 1) }
	for name, tc := range map[string]struct {
		action *Action
		write  bool
		raw    string
		want   string // "" is accepted
	}{
		"typo":                     {drain, false, drainOf(`{"forse":true}`), "unknown argument forse"},
		"null for an optional":     {drain, false, drainOf(`{"timeout_seconds":null,"force":null,"expected_version":null}`), ""},
		"null for a required":      {drain, false, `{"node":null}`, "node must be a text, not null"},
		"null for a pointer":       {pod, false, `{"namespace":"a","pod":"b","grace_period_seconds":null}`, ""},
		"null for an unknown":      {drain, false, drainOf(`{"dry_run":null}`), "unknown argument dry_run"},
		"null for confirm":         {drain, true, drainOf(`{"confirm":null,"reason":"r"}`), "confirm must be a text of 1 to 640 characters, not null"},
		"null for reason":          {drain, true, drainOf(`{"confirm":"c","reason":null}`), "reason must be a text of 1 to 256 characters, not null"},
		"nothing":                  {drain, false, ``, "missing argument node"},
		"null":                     {drain, false, `null`, "missing argument node"},
		"empty object":             {drain, false, `{}`, "missing argument node"},
		"write without its own":    {drain, true, drainOf(`{"force":true}`), "missing argument confirm; missing argument reason"},
		"plan with a write's":      {drain, false, drainOf(`{"confirm":"c","reason":"r"}`), "unknown argument confirm; unknown argument reason"},
		"list":                     {drain, false, `[]`, "arguments must be a JSON object"},
		"text":                     {drain, false, `"{}"`, "arguments must be a JSON object"},
		"number":                   {drain, false, `5`, "arguments must be a JSON object"},
		"boolean":                  {drain, false, `true`, "arguments must be a JSON object"},
		"something behind":         {drain, false, `{"node":"n1"} {}`, "arguments must be a JSON object"},
		"cut off":                  {drain, false, `{"node":"n1"`, "arguments must be a JSON object"},
		"comment":                  {drain, false, `{"node":"n1"/**/}`, "arguments must be a JSON object"},
		"trailing comma":           {drain, false, `{"node":"n1",}`, "arguments must be a JSON object"},
		"single quotes":            {drain, false, `{'node':'n1'}`, "arguments must be a JSON object"},
		"byte order mark":          {drain, false, "\ufeff{\"node\":\"n1\"}", "arguments must be a JSON object"},
		"much too deep":            {drain, false, `{"node":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`, "arguments must be a JSON object"},
		"boolean as text":          {drain, false, drainOf(`{"force":"true"}`), `force must be true or false, not "true"`},
		"boolean as number":        {drain, false, drainOf(`{"force":1}`), `force must be true or false, not 1`},
		"name as number":           {drain, false, `{"node":5}`, `node must be a text, not 5`},
		"name as list":             {drain, false, `{"node":["n1","n2"]}`, `node must be a text, not ["n1","n2"]`},
		"zero is no default":       {drain, false, drainOf(`{"timeout_seconds":0}`), "timeout_seconds must be an integer from 1 to 3600, not 0"},
		"over the limit":           {drain, false, drainOf(`{"timeout_seconds":3601}`), "timeout_seconds must be an integer from 1 to 3600, not 3601"},
		"forced deletion":          {pod, false, `{"namespace":"a","pod":"b","grace_period_seconds":0}`, "grace_period_seconds must be an integer from 1 to 3600, not 0"},
		"pointers are in range":    {pod, false, `{"namespace":"a","pod":"b","grace_period_seconds":-1}`, "grace_period_seconds must be an integer from 1 to 3600, not -1"},
		"pointers take no text":    {pod, false, `{"namespace":"a","pod":"b","grace_period_seconds":"5"}`, `grace_period_seconds must be an integer from 1 to 3600 without quotes, not "5"`},
		"optional names are names": {drain, false, drainOf(`{"expected_version":""}`), `expected_version must be a text, not ""`},
	} {
		t.Run(name, func(t *testing.T) {
			s := planSchema(tc.action)
			if tc.write {
				s = writeSchema(tc.action)
			}
			if tc.want == "" {
				accepted(t, tc.action, s, tc.raw)
				return
			}
			if r := refused(t, tc.action, s, tc.raw); r.Message != tc.want {
				t.Errorf("message\n%s, want\n%s", r.Message, tc.want)
			}
		})
	}
}

// TestCase_PX_17: what client-go would send as it is must not reach it.
func TestCase_PX_17(t *testing.T) {
	bad := []string{
		"--server=https://evil", "-web", "web-", "../nodes/n1", "web/scale", "web%2Fscale", "web\n", "web\x00", "WEB", " web", "web ",
		"wéb", "wеb", "we\u200bb", "web\u202e", strings.Repeat("a", 300), "", "*", "a,b", "a;b", "$(id)", "web?dryRun=All", "web#x", ".", "..", "a..b",
	}
	for argument, tc := range map[string]struct {
		action *Action
		raw    string // %s is the value
		good   []string
		bad    []string // beside those above
	}{
		"namespace":   {scale, `{"namespace":%s,"deployment":"web","replicas":1}`, []string{"a", "kube-system", "0", strings.Repeat("a", 63)}, []string{"a.b", strings.Repeat("a", 64)}},
		"deployment":  {scale, `{"namespace":"a","deployment":%s,"replicas":1}`, []string{"web", "web.v1", "0", strings.Repeat("a", 253)}, []string{strings.Repeat("a", 254)}},
		"statefulset": {scale, `{"namespace":"a","statefulset":%s,"replicas":1}`, []string{"db", "db.v1"}, nil},
		"replicaset":  {scale, `{"namespace":"a","replicaset":%s,"replicas":1}`, []string{"web-5f7"}, nil},
		"daemonset":   {roll, `{"namespace":"a","daemonset":%s}`, []string{"agent"}, nil},
		"pod":         {pod, `{"namespace":"a","pod":%s}`, []string{"web-5f7-x2k"}, nil},
		"node":        {drain, `{"node":%s}`, []string{"n1", "ip-10-0-0-1.eu-1.compute.internal"}, nil},
	} {
		t.Run(argument, func(t *testing.T) {
			raw := func(name string) string {
				quoted, err := json.Marshal(name)
				if err != nil {
					t.Fatal(err)
				}
				return fmt.Sprintf(tc.raw, quoted)
			}
			for _, name := range tc.good {
				accepted(t, tc.action, planSchema(tc.action), raw(name))
			}
			for _, name := range slices.Concat(bad, tc.bad) {
				r := refused(t, tc.action, planSchema(tc.action), raw(name))
				if !strings.HasPrefix(r.Message, argument+" ") {
					t.Errorf("the refusal of %q does not name %s: %s", name, argument, r.Message)
				}
			}
		})
	}
	t.Run("every kind is validated", func(t *testing.T) {
		for _, k := range plan.Kinds {
			if names[k.Argument] == nil {
				t.Errorf("the argument %s is not validated as a name", k.Argument)
			}
		}
	})
}

// TestDecodeNamesEveryFault: one refusal names all of them, and what is allowed.
func TestDecodeNamesEveryFault(t *testing.T) {
	raw := `{"namespace":"*","Deployment":"web","deployment":5,"statefulset":"A","replicas":"5","replicas":"6","dry_run":true,"confirm":7}`
	r := refused(t, scale, writeSchema(scale), raw)
	want := []string{
		`argument given twice: duplicate field "replicas"`,
		"unknown argument Deployment: write deployment",
		"confirm must be a text of 1 to 640 characters, not 7",
		"deployment must be a text, not 5",
		"unknown argument dry_run",
		"namespace is wrong: ",
		replicasFault + ` without quotes, not "6"`,
		"statefulset is wrong: ",
		"missing argument reason",
	}
	at := 0
	for _, w := range want {
		i := strings.Index(r.Message[at:], w)
		if i < 0 {
			t.Fatalf("%q is not named, or not in its place, in:\n%s", w, r.Message)
		}
		at += i
	}
	wantHint := "allowed are namespace: a text; expected_version: a text, optional; deployment: a text, optional; statefulset: a text, optional; " +
		"replicaset: a text, optional; replicas: an integer from 0 to 100 (--max-replicas); " +
		"confirm: a text of 1 to 640 characters; reason: a text of 1 to 256 characters"
	if diff := gocmp.Diff(wantHint, r.Hint); diff != "" {
		t.Errorf("hint (-want +got):\n%s", diff)
	}
}

// TestManyFaults: a refusal has an end, whatever was sent.
func TestManyFaults(t *testing.T) {
	var raw strings.Builder
	raw.WriteString(`{"replicas":"5"`)
	for i := range 10_000 {
		fmt.Fprintf(&raw, `,"%s%d":1`, strings.Repeat("\u00e9", 100), i)
	}
	raw.WriteString("}")
	r := refused(t, scale, planSchema(scale), raw.String())
	if n := len(r.Message) + len(r.Hint); n > 4000 || !strings.HasSuffix(r.Message, " more") {
		t.Errorf("%d characters: %.200s ... %s", n, r.Message, r.Message[len(r.Message)-20:])
	}
}

// TestVersionArgument: what goes into a refusal's words and into the record is a version.
func TestVersionArgument(t *testing.T) {
	for version, want := range map[string]bool{
		"v0123456789": true, "vabcdef0123": true,
		"": false, "v012345678": false, "v01234567890": false, "0123456789": false, "V0123456789": false, "v012345678g": false,
		"v0123456789\n": false, "\x1b[2K\nCONFIRM: x": false, strings.Repeat("v", 400_000): false,
	} {
		quoted, err := json.Marshal(version)
		if err != nil {
			t.Fatal(err)
		}
		raw := `{"node":"n1","expected_version":` + string(quoted) + `}`
		if want {
			accepted(t, drain, planSchema(drain), raw)
		} else if r := refused(t, drain, planSchema(drain), raw); !strings.HasPrefix(r.Message, "expected_version ") || len(r.Message) > 250 {
			t.Errorf("%.40q: message %.300q", version, r.Message)
		}
	}
}

func TestExactlyOne(t *testing.T) {
	const all = "name exactly one of deployment, statefulset, replicaset; "
	for name, tc := range map[string]struct{ named, want string }{
		"none":       {``, all + "none is given"},
		"none, null": {`"deployment":null,`, all + "none is given"},
		"one":        {`"statefulset":"db",`, ""},
		"one, null":  {`"statefulset":"db","deployment":null,`, ""},
		"two":        {`"statefulset":"db","deployment":"web",`, all + "deployment and statefulset are given"},
		"three":      {`"statefulset":"db","deployment":"web","replicaset":"x",`, all + "deployment and statefulset and replicaset are given"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := `{` + tc.named + `"namespace":"default","replicas":1}`
			if tc.want == "" {
				accepted(t, scale, planSchema(scale), raw)
			} else if r := refused(t, scale, planSchema(scale), raw); r.Message != tc.want {
				t.Errorf("message %q, want %q", r.Message, tc.want)
			}
		})
	}
	t.Run("beside other faults", func(t *testing.T) {
		raw := `{"statefulset":"DB","deployment":"web","force":true}`
		want := "unknown argument force; statefulset is wrong: "
		r := refused(t, scale, planSchema(scale), raw)
		if !strings.HasPrefix(r.Message, want) || !strings.HasSuffix(r.Message, "missing argument namespace; missing argument replicas; "+all+"deployment and statefulset are given") {
			t.Errorf("message %q", r.Message)
		}
	})
	r := refused(t, roll, planSchema(roll), `{"namespace":"default","deployment":"a","daemonset":"b"}`)
	if want := "name exactly one of deployment, statefulset, daemonset; deployment and daemonset are given"; r.Message != want {
		t.Errorf("message %q, want %q", r.Message, want)
	}
}

func TestReason(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		want   bool
	}{
		"plain":                             {"INC-42: more load", true},
		"one character":                     {"x", true},
		"other scripts":                     {"déjà vu, 日本語", true},
		"256 characters":                    {strings.Repeat("é", 256), true},
		"257 characters":                    {strings.Repeat("é", 257), false},
		"empty":                             {"", false},
		"a number":                          {"42", true},
		"signs alone":                       {"...", false},
		"spaces alone":                      {"   ", false},
		"a filler":                          {"\u3164", false},
		"what the plan prints in its place": {"<why>", false},
		"two lines":                         {"a\nb", false},
		"carriage return":                   {"a\rb", false},
		"tab":                               {"a\tb", false},
		"escape":                            {"\x1b[2K", false},
		"NUL":                               {"a\x00", false},
		"C1 control":                        {"a\u009b", false},
		"bidi":                              {"a\u202eb", false},
		"zero-width":                        {"a\u200bb", false},
		"byte order mark":                   {"\ufeffa", false},
		"tag characters":                    {"a\U000e0041", false},
		"no-break space":                    {"a\u00a0b", false},
		"line separator":                    {"a\u2028b", false},
		"private use":                       {"a\ue000", false},
	} {
		t.Run(name, func(t *testing.T) {
			quoted, err := json.Marshal(tc.reason)
			if err != nil {
				t.Fatal(err)
			}
			raw := `{"node":"n1","confirm":"c","reason":` + string(quoted) + `}`
			if !tc.want {
				if r := refused(t, drain, writeSchema(drain), raw); !strings.HasPrefix(r.Message, "reason ") {
					t.Errorf("message %q does not name the reason", r.Message)
				}
				return
			}
			if got := accepted(t, drain, writeSchema(drain), raw).Reason; got != tc.reason {
				t.Errorf("reason %q, want %q", got, tc.reason)
			}
		})
	}
}

func TestConfirm(t *testing.T) {
	for length, want := range map[int]bool{0: false, 1: true, plan.MaxPhrase: true, plan.MaxPhrase + 1: false} {
		raw := `{"node":"n1","reason":"r","confirm":"` + strings.Repeat("c", length) + `"}`
		d, err := drain.Decode(writeSchema(drain), json.RawMessage(raw))
		if (err == nil) != want || want && len(d.Confirm) != length {
			t.Errorf("a phrase of %d characters: %v, want it to pass: %t", length, err, want)
		}
	}
}

// TestCanonical: one encoding for one meaning, which the phrase is bound to.
func TestCanonical(t *testing.T) {
	for name, tc := range map[string]struct {
		action *Action
		write  bool
		raws   []string
		want   string
	}{
		"scale": {scale, false, []string{
			`{"namespace":"default","deployment":"web","replicas":5}`,
			`{"namespace":"default","deployment":"web","replicas":5.0}`,
			`{"namespace":"default","deployment":"web","replicas":5e0}`,
			`{"replicas":5,"deployment":"web","namespace":"default"}`,
			"{ \"namespace\" :\t\"default\",\n\"deployment\":\"web\",\r\n\"replicas\":5 }",
			`{"n\u0061mespace":"defaul\u0074","deployment":"web","replicas":5}`,
			`{"namespace":"default","deployment":"web","replicas":5,"statefulset":null,"replicaset":null,"expected_version":null}`,
		}, `{"namespace":"default","deployment":"web","replicas":5}`},
		"zero is said": {scale, false, []string{
			`{"namespace":"default","deployment":"web","replicas":0}`, `{"namespace":"default","deployment":"web","replicas":-0.0}`,
		}, `{"namespace":"default","deployment":"web","replicas":0}`},
		"the version is a part of it": {scale, false, []string{
			`{"namespace":"default","deployment":"web","replicas":5,"expected_version":"v0123456789"}`,
		}, `{"namespace":"default","expected_version":"v0123456789","deployment":"web","replicas":5}`},
		"confirm and reason are not": {scale, true, []string{
			`{"namespace":"default","deployment":"web","replicas":5,"confirm":"c","reason":"r"}`,
			`{"reason":"another","confirm":"another","namespace":"default","deployment":"web","replicas":5}`,
		}, `{"namespace":"default","deployment":"web","replicas":5}`},
		"a default and its value": {drain, false, []string{
			`{"node":"n1"}`, `{"node":"n1","timeout_seconds":300}`, `{"node":"n1","timeout_seconds":300.0}`, `{"node":"n1","timeout_seconds":null}`,
			`{"node":"n1","force":false}`, `{"node":"n1","force":null}`,
		}, `{"node":"n1","timeout_seconds":300}`},
		"another value": {drain, false, []string{`{"node":"n1","timeout_seconds":301,"force":true}`}, `{"node":"n1","force":true,"timeout_seconds":301}`},
		"a pointer":     {pod, false, []string{`{"namespace":"a","pod":"b","grace_period_seconds":5}`, `{"namespace":"a","pod":"b","grace_period_seconds":5.0}`}, `{"namespace":"a","pod":"b","grace_period_seconds":5}`},
		"no pointer":    {pod, false, []string{`{"namespace":"a","pod":"b"}`, `{"namespace":"a","pod":"b","grace_period_seconds":null}`}, `{"namespace":"a","pod":"b"}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := planSchema(tc.action)
			if tc.write {
				s = writeSchema(tc.action)
			}
			for _, raw := range tc.raws {
				if diff := gocmp.Diff(tc.want, string(accepted(t, tc.action, s, raw).Canonical)); diff != "" {
					t.Errorf("canonical form of %s (-want +got):\n%s", raw, diff)
				}
			}
		})
	}
}

// TestDecoded: the typed value holds what was sent, and says its scope and version.
func TestDecoded(t *testing.T) {
	d := accepted(t, scale, writeSchema(scale), `{"namespace":"prod","deployment":"web","replicas":5,"expected_version":"v0123456789","confirm":"the phrase","reason":"why"}`)
	want := Decoded{
		Args:      scaleArgs{Namespaced{"prod", "v0123456789"}, Scalable{Deployment: "web"}, 5},
		Canonical: json.RawMessage(`{"namespace":"prod","expected_version":"v0123456789","deployment":"web","replicas":5}`),
		Confirm:   "the phrase", Reason: "why",
	}
	if diff := gocmp.Diff(want, d); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
	if got := d.Args.Scope(); got != (plan.Scope{Namespace: "prod"}) || d.Args.Expected() != "v0123456789" {
		t.Errorf("scope %+v, version %q", got, d.Args.Expected())
	}
	d = accepted(t, drain, planSchema(drain), `{"node":"n1"}`)
	if got := d.Args.Scope(); got != (plan.Scope{Node: "n1"}) || d.Args.Expected() != "" {
		t.Errorf("scope %+v, version %q", got, d.Args.Expected())
	}
	if d.Confirm != "" || d.Reason != "" {
		t.Errorf("a plan has the phrase %q and the reason %q", d.Confirm, d.Reason)
	}
}

// TestFaultsAreQuoted: what a caller sent comes back in ASCII, cut, on one line.
func TestFaultsAreQuoted(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"plain":        {"web", "web"},
		"quotes":       {`a "b"`, `a "b"`},
		"lines":        {"a\nCONFIRM: x", `a\nCONFIRM: x`},
		"escape":       {"\x1b[2K", `\x1b[2K`},
		"bidi":         {"\u202e", `\u202e`},
		"other script": {"é", `\u00e9`},
		"not UTF-8":    {"\xff", `\xff`},
		"long":         {strings.Repeat("a", 200), strings.Repeat("a", 80) + "..."},
	} {
		t.Run(name, func(t *testing.T) {
			if got := printable(tc.in); got != tc.want {
				t.Errorf("printable(%q) = %q, want %q", tc.in, got, tc.want)
			}
		})
	}
}

// forbiddenProperty matches arguments that would let a caller talk a gate away.
var forbiddenProperty = regexp.MustCompile(`(?i)dry|force.?all|^yes$|approve|skip|ignore|unsafe`)

// TestSchema: what is published is what the decoder enforces.
func TestSchema(t *testing.T) {
	for _, a := range []*Action{scale, drain, pod, roll} {
		for what, s := range map[string]*jsonschema.Schema{"plan_" + a.Name: planSchema(a), a.Name: writeSchema(a)} {
			t.Run(what, func(t *testing.T) {
				raw, err := json.Marshal(s)
				if err != nil {
					t.Fatal(err)
				}
				var got struct {
					Type                 string
					AdditionalProperties *bool
					Required             []string
					Properties           map[string]struct {
						Type             any
						Minimum, Maximum *float64
					}
				}
				if err := json.Unmarshal(raw, &got); err != nil {
					t.Fatal(err)
				}
				if got.Type != "object" || got.AdditionalProperties == nil || *got.AdditionalProperties {
					t.Errorf("type %q, additionalProperties %v", got.Type, got.AdditionalProperties)
				}
				for name, p := range got.Properties {
					if forbiddenProperty.MatchString(name) {
						t.Errorf("property %s", name)
					}
					switch p.Type {
					case "string", "boolean":
					case "integer":
						if p.Minimum == nil || p.Maximum == nil || *p.Minimum < 0 || *p.Maximum > math.MaxInt32 {
							t.Errorf("%s has no range, or that of its Go type: %v to %v", name, p.Minimum, p.Maximum)
						}
					default:
						t.Errorf("%s is of type %v", name, p.Type)
					}
				}
				for _, name := range got.Required {
					if _, ok := got.Properties[name]; !ok {
						t.Errorf("%s is required and unknown", name)
					}
				}
				isWrite := !strings.HasPrefix(what, "plan_")
				for _, name := range []string{"confirm", "reason"} {
					if slices.Contains(got.Required, name) != isWrite {
						t.Errorf("%s is required: want %t", name, isWrite)
					}
				}
				if _, err := s.Resolve(nil); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestSchemaIsACopy: a caller that changes one changes no other.
func TestSchemaIsACopy(t *testing.T) {
	before, err := json.Marshal(scale.Schema())
	if err != nil {
		t.Fatal(err)
	}
	s := writeSchema(scale)
	s.Properties["replicas"].Type = "string"
	delete(s.Properties, "namespace")
	after, err := json.Marshal(scale.Schema())
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(before), string(after)); diff != "" {
		t.Errorf("schema (-before +after):\n%s", diff)
	}
}

func TestRestrict(t *testing.T) {
	s, err := jsonschema.For[struct {
		Small  int32   `json:"small"`
		Signed *int64  `json:"signed,omitempty"`
		Text   *string `json:"text,omitempty"`
		Flag   bool    `json:"flag"`
	}](nil)
	if err != nil {
		t.Fatal(err)
	}
	restrict(s)
	for name, want := range map[string]string{"small": "integer", "signed": "integer", "text": "string", "flag": "boolean"} {
		if p := s.Properties[name]; p.Type != want || p.Types != nil {
			t.Errorf("%s is of type %q %v, want %q", name, p.Type, p.Types, want)
		}
	}
	if p := s.Properties["small"]; p.Minimum != nil || p.Maximum == nil || *p.Maximum != math.MaxInt32 {
		t.Errorf("an int32 is from %v to %v", p.Minimum, p.Maximum)
	}
}

// FuzzDecode: nothing panics; what is accepted is canonical, and valid by the published
// schema; what is refused is refused in words that can be printed.
func FuzzDecode(f *testing.F) {
	for _, raw := range []string{
		``, `null`, `{}`, `[]`, `{"namespace":"default","deployment":"web","replicas":5}`, `{"node":"n1","timeout_seconds":3e2,"force":null}`,
		`{"namespace":"a","pod":"b","grace_period_seconds":1}`, `{"namespace":"a","daemonset":"b","confirm":"c","reason":"r"}`,
	} {
		f.Add([]byte(raw))
	}
	type tool struct {
		action *Action
		schema *jsonschema.Schema
		valid  *jsonschema.Resolved
	}
	var tools []tool
	for _, a := range []*Action{scale, drain, pod, roll} {
		valid, err := planSchema(a).Resolve(nil)
		if err != nil {
			f.Fatal(err)
		}
		tools = append(tools, tool{a, planSchema(a), valid}, tool{a, writeSchema(a), valid})
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, tool := range tools {
			d, err := tool.action.Decode(tool.schema, raw)
			if err != nil {
				if !refusal.Is(err, refusal.InvalidArguments) {
					t.Fatalf("%T: %v", err, err)
				}
				for _, c := range err.Error() {
					if c > unicode.MaxASCII || !unicode.IsPrint(c) {
						t.Errorf("%U in %q", c, err)
					}
				}
				continue
			}
			again, err := tool.action.Decode(planSchema(tool.action), d.Canonical)
			if err != nil {
				t.Fatalf("accepted as %s, which is refused: %v", d.Canonical, err)
			}
			if diff := gocmp.Diff(string(d.Canonical), string(again.Canonical)); diff != "" {
				t.Errorf("canonical form (-first +again):\n%s", diff)
			}
			if diff := gocmp.Diff(d.Args, again.Args); diff != "" {
				t.Errorf("arguments (-first +again):\n%s", diff)
			}
			var instance map[string]any
			if err := json.Unmarshal(d.Canonical, &instance); err != nil {
				t.Fatal(err)
			}
			if err := tool.valid.Validate(instance); err != nil {
				t.Errorf("accepted as %s, and not valid: %v", d.Canonical, err)
			}
		}
	})
}

// TestListsAndObjects: a tool of several calls has a list of objects, whose faults are its
// own to name.
func TestListsAndObjects(t *testing.T) {
	type args struct {
		Steps []json.RawMessage `json:"steps"`
		One   json.RawMessage   `json:"one,omitempty"`
	}
	schema, err := SchemaOf[args]()
	if err != nil {
		t.Fatal(err)
	}
	schema.Properties["steps"].MinItems, schema.Properties["steps"].MaxItems = new(1), new(2)
	schema.Properties["one"] = &jsonschema.Schema{Type: "object"}
	for raw, want := range map[string]string{
		`{"steps":[{"n":3.0,"s":"a"}]}`:        "",
		`{"steps":[1,2],"one":{}}`:             "",
		`{"steps":[]}`:                         "steps must be a list of 1 to 2, not []",
		`{"steps":[1,2,3]}`:                    "steps must be a list of 1 to 2, not [1,2,3]",
		`{"steps":{"0":1}}`:                    "steps must be a list of 1 to 2",
		`{"steps":null}`:                       "steps must be a list of 1 to 2",
		`{"steps":[{"n":1e999}]}`:              "steps must be a list of 1 to 2",
		`{"steps":[{"n":1,"n":2}],"one":"{}"}`: `argument given twice: duplicate field "steps[0].n"; one must be an object`,
	} {
		got, d, err := Decode[args](schema, json.RawMessage(raw))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", raw, err, want)
		}
		if raw == `{"steps":[{"n":3.0,"s":"a"}]}` && (len(got.Steps) != 1 || string(d.Canonical) != `{"steps":[{"n":3,"s":"a"}]}`) {
			t.Errorf("canonical %s", d.Canonical)
		}
	}
}
