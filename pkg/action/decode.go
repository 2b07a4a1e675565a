package action

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/google/jsonschema-go/jsonschema"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// names says how the value of each argument that is a name is validated. client-go
// itself would send "web\n" or "-web", and an empty namespace lists all of them.
var names = func() map[string]func(string) []string {
	out := map[string]func(string) []string{"namespace": validation.IsDNS1123Label}
	for _, k := range plan.Kinds {
		out[k.Argument] = validation.IsDNS1123Subdomain
	}
	out["expected_version"] = version
	out["plan"] = planID
	out["reason"] = printableText
	return out
}()

var versionRE = regexp.MustCompile(`^v[0-9a-f]{10}$`)

// version keeps text that is no version out of refusals and of the record.
func version(s string) []string {
	if !versionRE.MatchString(s) {
		return []string{"a version is v and 10 hexadecimal digits, as a read or a plan prints it"}
	}
	return nil
}

func planID(s string) []string {
	if !plan.ValidID(s) {
		return []string{"the id of a plan is 10 characters of a-z and 2-7"}
	}
	return nil
}

// Why stands for the reason in the literal next call that a plan prints; it is none.
const Why = "<why>"

// printableText wants a reason: one line that can be seen, with a word in it.
func printableText(s string) []string {
	word := func(r rune) bool {
		return (unicode.IsLetter(r) || unicode.IsNumber(r)) && !unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
	}
	if s == Why || !strings.ContainsFunc(s, word) {
		return []string{"say why, in a few words"}
	}
	for _, r := range s {
		if !unicode.IsPrint(r) || unicode.Is(unicode.Cf, r) {
			return []string{"only printable characters on one line"}
		}
	}
	return nil
}

// restrict makes a schema that was derived from a Go type as strict as the decoder: no
// further properties, no null beside a type, the full range of int32 left out.
func restrict(s *jsonschema.Schema) {
	s.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
	for _, p := range s.Properties {
		if p.Type == "" {
			p.Type = kind(p)
			p.Types = nil
		}
		if p.Type == "integer" && p.Minimum != nil && *p.Minimum == math.MinInt32 {
			p.Minimum = nil
		}
	}
}

// unenforced says what of a property the decoder does not know: it would be published and
// not held to, or never be met.
func unenforced(p *jsonschema.Schema) string {
	switch kind(p) {
	case "string", "boolean", "integer":
	default:
		return "its type must be a text, a boolean or an integer, not " + kind(p)
	}
	known := jsonschema.Schema{
		Type: p.Type, Types: p.Types, Title: p.Title, Description: p.Description, Comment: p.Comment, Default: p.Default, Examples: p.Examples,
		Minimum: p.Minimum, Maximum: p.Maximum, MaxLength: p.MaxLength,
	}
	if !reflect.DeepEqual(known, *p) {
		return "its schema may only add minimum, maximum and maxLength"
	}
	return ""
}

// Decode gives the arguments of a tool by its schema, or a refusal.
//
// It is strict and names every fault at once: unknown, duplicate, missing, mistyped and
// out of range. Types say what is allowed, 3.0 is 3, null for an optional argument is its
// absence. The typed value, encoded again, is the canonical form.
func Decode[A any](schema *jsonschema.Schema, raw json.RawMessage) (a A, d Decoded, err error) {
	d, err = DecodeInto(schema, raw, &a)
	return a, d, err
}

// DecodeInto is Decode into a pointer whose type is known only when the program runs.
func DecodeInto(schema *jsonschema.Schema, raw json.RawMessage, into any) (d Decoded, err error) {
	if len(raw) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	got, strict, err := object(raw)
	if err != nil || got == nil {
		return d, invalid(schema, []string{"arguments must be a JSON object"})
	}
	var faults []string
	unread := false // a value could not be read at all
	for _, f := range strict {
		faults = append(faults, "argument given twice: "+printable(f.Error()))
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		p, ok := schema.Properties[name]
		if !ok {
			faults = append(faults, unknown(schema, name))
			delete(got, name)
			continue
		}
		required := slices.Contains(schema.Required, name)
		if got[name] == nil && !required {
			delete(got, name)
			continue
		}
		v, fault := fit(p, got[name])
		unread = unread || fault != ""
		if fault == "" {
			if s, isName := v.(string); isName && names[name] != nil {
				fault = strings.Join(names[name](s), ", ")
				if fault != "" {
					fault = "is wrong: " + fault
				}
			}
		}
		if fault != "" {
			shown, _ := json.Marshal(got[name])
			faults = append(faults, fmt.Sprintf("%s %s, not %s", name, fault, printable(string(shown))))
		}
		got[name] = v
	}
	for _, name := range schema.Required {
		if _, ok := got[name]; !ok {
			faults = append(faults, "missing argument "+name)
		}
	}
	if unread {
		return d, invalid(schema, faults)
	}
	clean, err := json.Marshal(got)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(clean, into); err != nil {
		return d, invalid(schema, append(faults, printable(err.Error())))
	}
	if d, ok := into.(Defaulter); ok {
		d.SetDefaults()
	}
	if c, ok := into.(Checker); ok {
		faults = append(faults, c.Check()...)
	}
	if faults != nil {
		return d, invalid(schema, faults)
	}
	d.Confirm, _ = got["confirm"].(string)
	d.Reason, _ = got["reason"].(string)
	d.Canonical, err = json.Marshal(into)
	return d, err
}

// object decodes the arguments, with what stands in them twice. A value with a number that
// is too large for a float64 stays as it was sent: it fits nowhere.
func object(raw json.RawMessage) (got map[string]any, twice []error, err error) {
	if twice, err = kjson.UnmarshalStrict(raw, &got, kjson.DisallowDuplicateFields); err == nil {
		return got, twice, nil
	}
	var members map[string]json.RawMessage
	twice, err = kjson.UnmarshalStrict(raw, &members, kjson.DisallowDuplicateFields)
	got = map[string]any{}
	for name, member := range members {
		var v any
		if kjson.UnmarshalCaseSensitivePreserveInts(member, &v) != nil {
			v = member
		}
		got[name] = v
	}
	return got, twice, err
}

// maxFaults is how many faults one refusal names; the rest is counted. A refusal must fit
// into an answer and into a line of the record, whatever was sent.
const maxFaults = 16

func invalid(schema *jsonschema.Schema, faults []string) error {
	if more := len(faults) - maxFaults; more > 0 {
		faults = append(faults[:maxFaults:maxFaults], fmt.Sprintf("and %d more", more))
	}
	var allowed []string
	for _, name := range order(schema) {
		word := name + ": " + describe(schema.Properties[name])
		if !slices.Contains(schema.Required, name) {
			word += ", optional"
		}
		allowed = append(allowed, word)
	}
	return refusal.New(refusal.InvalidArguments, "allowed are "+strings.Join(allowed, "; "), "%s", strings.Join(faults, "; "))
}

func order(s *jsonschema.Schema) []string {
	if len(s.PropertyOrder) == len(s.Properties) {
		return s.PropertyOrder
	}
	return slices.Sorted(maps.Keys(s.Properties))
}

func unknown(schema *jsonschema.Schema, name string) string {
	for known := range schema.Properties {
		if strings.EqualFold(known, name) {
			return fmt.Sprintf("unknown argument %s: write %s", printable(name), known)
		}
	}
	return "unknown argument " + printable(name)
}

// fit checks one value against its property and gives it back, 3.0 as 3.
func fit(p *jsonschema.Schema, v any) (any, string) {
	fault := "must be " + describe(p)
	switch kind(p) {
	case "string":
		if s, ok := v.(string); ok && s != "" && (p.MaxLength == nil || len([]rune(s)) <= *p.MaxLength) {
			return v, ""
		}
	case "boolean":
		if _, ok := v.(bool); ok {
			return v, ""
		}
	case "array":
		if all, ok := v.([]any); ok && len(all) >= *p.MinItems && len(all) <= *p.MaxItems {
			return v, ""
		}
	case "object":
		if _, ok := v.(map[string]any); ok {
			return v, ""
		}
	case "integer":
		n, ok := integer(v)
		low, high := limits(p)
		if ok && n >= low && n <= high {
			return n, ""
		}
		if _, isText := v.(string); isText {
			fault += " without quotes"
		}
	}
	return v, fault
}

func integer(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case float64:
		return int64(n), n == math.Trunc(n) && math.Abs(n) < 1<<53
	}
	return 0, false
}

func limits(p *jsonschema.Schema) (low, high int64) {
	low, high = math.MinInt32, math.MaxInt32
	if p.Minimum != nil {
		low = int64(*p.Minimum)
	}
	if p.Maximum != nil {
		high = int64(*p.Maximum)
	}
	return low, high
}

func describe(p *jsonschema.Schema) string {
	switch kind(p) {
	case "string":
		if p.MaxLength != nil {
			return fmt.Sprintf("a text of 1 to %d characters", *p.MaxLength)
		}
		return "a text"
	case "array":
		return fmt.Sprintf("a list of %d to %d", *p.MinItems, *p.MaxItems)
	case "object":
		return "an object"
	case "boolean":
		return "true or false"
	case "integer":
		low, high := limits(p)
		return fmt.Sprintf("an integer from %d to %d", low, high) + p.Comment
	}
	return kind(p)
}

func kind(p *jsonschema.Schema) string {
	for _, t := range append([]string{p.Type}, p.Types...) {
		if t != "" && t != "null" {
			return t
		}
	}
	return "a value"
}

// printable quotes what a caller sent so that nothing in it can be mistaken for the
// server's words: ASCII only, at most 80 characters.
func printable(s string) string {
	q := strings.ReplaceAll(fmt.Sprintf("%+q", s), `\"`, `"`)
	q = q[1 : len(q)-1]
	if len(q) > 80 {
		q = q[:80] + "..."
	}
	return q
}
