package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// Change is one field as the plan shows it: spec.replicas: 2 → 3. Its old side is what
// drift is measured by; a Change with equal sides is a value that must still hold.
type Change struct {
	Field string `json:"field"` // dotted, keys with dots in brackets: metadata.annotations[a.b/c]
	Old   string `json:"old"`
	New   string `json:"new"`
}

// String shows the change; a value that must hold shows once.
func (c Change) String() string {
	if c.Old == c.New {
		return c.Field + ": " + shown(c.Old)
	}
	return c.Field + ": " + shown(c.Old) + " → " + shown(c.New)
}

func shown(v string) string {
	if v == "" {
		return "unset"
	}
	return v
}

// Object is the JSON form of a live object, in which fields are found by their paths.
type Object map[string]any

// ObjectOf gives the JSON form of a typed object.
func ObjectOf(o any) (Object, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	return m, err
}

// Path splits a field as Change writes it: at dots, and at brackets, inside of which
// dots are kept: annotations[a.b/c]. A number is the index of a list: containers[0].
func Path(field string) (segments []string) {
	for field != "" {
		field = strings.TrimPrefix(field, ".")
		if rest, ok := strings.CutPrefix(field, "["); ok {
			key, after, _ := strings.Cut(rest, "]")
			segments, field = append(segments, key), after
			continue
		}
		end := strings.IndexAny(field, ".[")
		if end < 0 {
			end = len(field)
		}
		segments, field = append(segments, field[:end]), field[end:]
	}
	return segments
}

// escape and unescape are how a JSON pointer writes a segment.
var (
	escape   = strings.NewReplacer("~", "~0", "/", "~1")
	unescape = strings.NewReplacer("~1", "/", "~0", "~")
)

// Pointer gives the JSON pointer (RFC 6901) of a field.
func Pointer(field string) string {
	var b strings.Builder
	for _, s := range Path(field) {
		b.WriteString("/" + escape.Replace(s))
	}
	return b.String()
}

// plain is text that may be shown as it is. Annotations are free text of whoever wrote
// them.
var plain = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+%=,-]*$`)

// maxPlain is how long such a text is at most.
const maxPlain = 255

// Value shows what stands at a field: numbers, booleans, names and the like as they are;
// maps, lists and free text by a short hash; "" for what is not there. Two values differ
// exactly when what it shows differs.
func (o Object) Value(field string) string {
	value := o.at(Path(field))
	if field == OwnerField {
		value = o.controller() // any text: the API checks no uid of an owner
	}
	return Show(value)
}

// Show gives a value as Value shows it: what a Change says of its new side must be written
// as its old one is.
func Show(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		if v == "" || len(v) <= maxPlain && plain.MatchString(v) && !strings.HasPrefix(v, "sha256:") {
			return v
		}
		return shortHash([]byte(v))
	case map[string]any, []any:
		b, err := json.Marshal(v)
		if err != nil {
			panic(err) // an Object is JSON by construction
		}
		return shortHash(b)
	default:
		return fmt.Sprint(v)
	}
}

func shortHash(b []byte) string { return short(hashOf(b)) }

// short is a hash as a person may compare it.
func short(hash string) string {
	if strings.HasPrefix(hash, keyedPrefix) {
		return hash
	}
	return "sha256:" + hash[:12]
}

// Labels are the object's labels.
func (o Object) Labels() map[string]string {
	out := map[string]string{}
	m, _ := o.at([]string{"metadata", "labels"}).(map[string]any)
	for k, v := range m {
		out[k], _ = v.(string)
	}
	return out
}

// Int is the number at a field, 0 for what is not there.
func (o Object) Int(field string) int {
	switch v := o.at(Path(field)).(type) {
	case int64:
		return int(v)
	case float64:
		return int(v)
	}
	return 0
}

// OwnerField is the one field that is no path: the uid of the object's controller.
const OwnerField = "controller"

func (o Object) controller() string {
	refs, _ := o.at([]string{"metadata", "ownerReferences"}).([]any)
	for _, r := range refs {
		if ref, ok := r.(map[string]any); ok && ref["controller"] == true {
			uid, _ := ref["uid"].(string)
			return uid
		}
	}
	return ""
}

// ManagedBy reports whether a field manager made a change through a subresource ("" for
// the object itself) of which something still stands.
func (o Object) ManagedBy(manager, subresource string) bool {
	entries, _ := o.at([]string{"metadata", "managedFields"}).([]any)
	for _, e := range entries {
		if m, ok := e.(map[string]any); ok && m["manager"] == manager {
			if through, _ := m["subresource"].(string); through == subresource {
				return true
			}
		}
	}
	return false
}

// OwnedSince is when the last of the managers that own a field changed what it owns, to
// the second; zero where the field has no owner. It holds for fields whose path has no
// list in it.
func (o Object) OwnedSince(field string) (last time.Time) {
	_, _, last = o.lastOwner(field)
	return last
}

// LastOwner is the field manager of which OwnedSince speaks, as untrusted text, and the
// subresource through which it wrote; both are "" where the field has no owner.
func (o Object) LastOwner(field string) (manager, subresource string) {
	manager, subresource, _ = o.lastOwner(field)
	return Untrusted(manager), Untrusted(subresource)
}

func (o Object) lastOwner(field string) (manager, subresource string, last time.Time) {
	entries, _ := o.at([]string{"metadata", "managedFields"}).([]any)
	for _, e := range entries {
		m, _ := e.(map[string]any)
		owned, _ := m["fieldsV1"].(map[string]any)
		for _, segment := range Path(field) {
			owned, _ = owned["f:"+segment].(map[string]any)
		}
		// What was written through scale has no time.
		at, _ := time.Parse(time.RFC3339, fmt.Sprint(m["time"]))
		if owned != nil && (at.After(last) || manager == "") {
			last = at
			manager, _ = m["manager"].(string)
			subresource, _ = m["subresource"].(string)
		}
	}
	return manager, subresource, last
}

func (o Object) at(segments []string) any {
	var v any = map[string]any(o)
	for _, s := range segments {
		switch in := v.(type) {
		case map[string]any:
			v = in[s]
		case []any:
			i, err := strconv.ParseUint(s, 10, 31)
			if err != nil || int(i) >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// Before gives the object as it was before a Change of a string in nested maps, without the
// map that it was the only one in. It reports whether it can: other values are not shown as
// they are.
func (o Object) Before(c Change) (Object, bool) {
	if c.Old != "" && Show(c.Old) != c.Old || strings.HasPrefix(c.Old, "sha256:") {
		return nil, false
	}
	was := Object(runtime.DeepCopyJSON(o))
	segments := Path(c.Field)
	last := len(segments) - 1
	parent, _ := was.at(segments[:last]).(map[string]any)
	if _, text := parent[segments[last]].(string); !text {
		return nil, false
	}
	parent[segments[last]] = c.Old
	if c.Old == "" {
		delete(parent, segments[last])
	}
	if len(parent) == 0 && last > 0 {
		above, ok := was.at(segments[:last-1]).(map[string]any)
		if !ok {
			return nil, false
		}
		delete(above, segments[last-1])
	}
	return was, true
}

// Fill gives the slots of a Step that the live object decides: its version and the
// parent maps that it lacks.
func (s Step) Fill(o Object) Slots {
	sl := Slots{ResourceVersion: o.Value("metadata.resourceVersion")}
	for _, op := range s.Patch {
		if op.Op != "ensure" {
			continue
		}
		var segments []string
		for _, p := range strings.Split(strings.TrimPrefix(op.Path, "/"), "/") {
			segments = append(segments, unescape.Replace(p))
		}
		if o.at(segments) == nil {
			sl.Absent = append(sl.Absent, op.Path)
		}
	}
	return sl
}

// Moved compares the old sides of the Changes with the live object and names what moved:
// nothing when the Step still rests on what it was planned on.
func (s Step) Moved(o Object) (moved []string) {
	if uid := o.Value("metadata.uid"); uid != s.Target.UID {
		return []string{fmt.Sprintf("%s is another object now (uid %s, planned for %s)", s.Target, uid, s.Target.UID)}
	}
	if o.Value("metadata.deletionTimestamp") != "" {
		return []string{s.Target.String() + " is terminating"}
	}
	for _, c := range s.Changes {
		if v := o.Value(c.Field); v != c.Old && !(v == "" && IsZero(c.Old)) {
			moved = append(moved, fmt.Sprintf("%s of %s: planned from %s, now %s", c.Field, s.Target, shown(c.Old), shown(v)))
		}
	}
	return moved
}

// IsZero reports whether v is how the API shows a field that it leaves out.
func IsZero(v string) bool { return v == "" || v == "0" || v == "false" }

// VersionOf is the short handle that expected_version takes: a hash of uid and spec, so
// that status, labels and annotations do not move it.
func VersionOf(o Object) string {
	b, err := json.Marshal([]any{o.Value("metadata.uid"), o["spec"]})
	if err != nil {
		panic(err) // an Object is JSON by construction
	}
	sum := sha256.Sum256(b)
	return "v" + hex.EncodeToString(sum[:5])
}
