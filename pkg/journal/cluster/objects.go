package cluster

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
)

// errMoved is of an object that another replica changed since it was read: what was
// decided by it does not count.
var errMoved = errors.New("another replica was faster")

// failed says what could not be done, and why as far as the API server may be quoted.
type failed struct {
	what string
	err  error
}

func (f *failed) Error() string { return "the cluster ledger: " + f.what + ": " + kube.Text(f.err) }
func (f *failed) Unwrap() error { return f.err }

func changed(what string, why error) *refusal.Refusal {
	return refusal.New(refusal.RecordMissing, "plan again, and have the operator look who changed it in the API server's audit log",
		"%s in the cluster ledger is not as this server wrote it: %v", what, why)
}

// mac signs the JSON of v, bound to what it belongs to.
func (c *Cluster) mac(kid string, v any, bound ...string) (string, error) {
	key, err := c.keys.Derive(kid, "ledger")
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	h := hmac.New(sha256.New, key)
	for _, part := range append(bound, string(b)) {
		fmt.Fprintf(h, "%d:%s", len(part), part) // no two lists of parts are the same bytes
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (c *Cluster) specMAC(w *Write) (string, error) {
	s := w.Spec
	s.MAC = ""
	return c.mac(s.KeyID, s, "write", w.Name)
}

// statusMAC binds a status to the one object that it was written to: one that was deleted
// and made again has another UID, and no status that counts.
func (c *Cluster) statusMAC(w *Write) (string, error) {
	s := *w.Status
	s.MAC = ""
	return c.mac(s.KeyID, s, "status", w.Name, string(w.UID))
}

func (c *Cluster) budgetMAC(b *RateBudget) (string, error) {
	s := *b.Status
	s.MAC = ""
	return c.mac(s.KeyID, s, "budget", string(b.UID))
}

func same(mac string, of func() (string, error)) error {
	want, err := of()
	if err == nil && !hmac.Equal([]byte(want), []byte(mac)) {
		err = errors.New("its mac does not match")
	}
	return err
}

// check verifies a Write.
func (c *Cluster) check(w *Write) error {
	err := same(w.Spec.MAC, func() (string, error) { return c.specMAC(w) })
	if err == nil {
		err = same(w.Status.MAC, func() (string, error) { return c.statusMAC(w) })
	}
	if err != nil {
		return changed("the record of plan "+w.Name, err)
	}
	return nil
}

// get reads a plan's Write live; nil where there is none, or where the replica that made
// it never got to say that it is on record.
func (c *Cluster) get(ctx context.Context, id string) (*Write, error) {
	if !plan.ValidID(id) {
		return nil, nil
	}
	w, err := read(ctx, func() (*Write, error) { return c.writes.Get(ctx, id, metav1.GetOptions{}) })
	switch {
	case apierrors.IsNotFound(err):
		return nil, missing(err)
	case err != nil:
		return nil, &failed{"plan " + id + " cannot be read", err}
	case w.Status == nil:
		return nil, nil
	}
	return w, c.check(w)
}

// readTries is how often something is read again where there is no answer.
const readTries = 4

// read reads, and does so again where there is no answer: it costs nothing but time.
func read[T any](ctx context.Context, get func() (T, error)) (v T, err error) {
	for try := range readTries {
		if v, err = get(); err == nil {
			return v, nil
		}
		if class, _ := kube.Classify(err, true); class == kube.NotApplied {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, err
		case <-time.After(wait.Jitter(time.Duration(try+1)*20*time.Millisecond, 1)):
		}
	}
	return v, err
}

// missing tells an object that is not there from definitions that are not: for those the
// API server has no words of its own.
func missing(err error) error {
	if apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return &failed{"the API server does not have its definitions, which are to be applied first", err}
	}
	return nil
}

// maxSkew is how far this replica's clock may be off the API server's: expiry and rates are
// measured by it.
const maxSkew = time.Minute

// onTime checks this clock by when the API server says that it made something just now.
func (c *Cluster) onTime(made metav1.Time) error {
	if off := c.now().Sub(made.Time); off.Abs() > maxSkew {
		return fmt.Errorf("the clock here is %s off the API server's: set it right", off.Round(time.Second))
	}
	return nil
}

// create makes the Write of a plan, and puts it on record.
func (c *Cluster) create(ctx context.Context, w *Write) error {
	var err error
	if w.Spec.KeyID = c.keys.Current(); w.Spec.KeyID == "" {
		return errors.New("every key is retired, and none may sign: run kube-write-mcp keys rotate")
	}
	if w.Spec.MAC, err = c.specMAC(w); err != nil {
		return err
	}
	status := w.Status
	var made *Write
	err = c.sure(ctx, func() (err error) {
		made, err = c.writes.Create(ctx, w, metav1.CreateOptions{})
		return err
	}, func() (bool, error) {
		made, err = c.writes.Get(ctx, w.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, nil // it may come yet: sent again it is the same object, or there already
		case err != nil:
			return false, err
		case made.Spec != w.Spec:
			return false, fmt.Errorf("plan id %s is taken", w.Name)
		}
		return true, nil
	})
	if err != nil {
		return &failed{"plan " + w.Name + " cannot be put on record", err}
	}
	if err := c.onTime(made.CreationTimestamp); err != nil {
		return err
	}
	made.Status = status
	_, err = c.update(ctx, made)
	return err
}

// update writes the next status of a Write. errMoved says that it is another one by now.
func (c *Cluster) update(ctx context.Context, w *Write) (got *Write, err error) {
	if w.Status.KeyID = c.keys.Current(); w.Status.KeyID == "" {
		return nil, errors.New("every key is retired, and none may sign: run kube-write-mcp keys rotate")
	}
	w.Status.Serial++
	if w.Status.MAC, err = c.statusMAC(w); err != nil {
		return nil, err
	}
	err = c.sure(ctx, func() (err error) {
		got, err = c.writes.UpdateStatus(ctx, w, metav1.UpdateOptions{})
		return err
	}, func() (bool, error) {
		got, err = c.writes.Get(ctx, w.Name, metav1.GetOptions{})
		return settledAs(err, got, func() bool { return got.UID == w.UID && got.Status != nil && got.Status.MAC == w.Status.MAC }, w.ResourceVersion)
	})
	switch {
	case errors.Is(err, errMoved):
		return nil, err
	case apierrors.IsNotFound(err):
		return nil, changed("the record of plan "+w.Name, errors.New("it was deleted"))
	case err != nil:
		return nil, &failed{"plan " + w.Name + " cannot be updated", err}
	}
	return got, nil
}

// settledAs says what became of an update by the object as it is now: it is ours, or it
// moved, or the update has not come yet.
func settledAs(err error, now metav1.Object, ours func() bool, from string) (bool, error) {
	switch {
	case err != nil:
		return false, err
	case ours():
		return true, nil
	case now.GetResourceVersion() != from:
		return false, errMoved
	}
	return false, nil
}

// sure sends a request that may be sent again, since it is bound to a name or to a version
// and is the same each time, until it is known what became of it. look is asked where an
// answer is lost, and where one says that another was first: it may have been our own.
func (c *Cluster) sure(ctx context.Context, send func() error, look func() (bool, error)) error {
	for pause := 20 * time.Millisecond; ; pause *= 2 {
		err := send()
		if err == nil {
			return nil
		}
		class, code := kube.Classify(err, true)
		if class == kube.NotApplied {
			return err
		}
		if class != kube.Throttled {
			done, looked := look()
			switch {
			case done, errors.Is(looked, errMoved):
				return looked
			case looked != nil && (code == 409 || apierrors.IsNotFound(looked)):
				return looked
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait.Jitter(pause, 1)):
		}
	}
}

// targetOf names what a plan is about, for people.
func targetOf(p *plan.Plan) string {
	if len(p.Steps) == 0 {
		return ""
	}
	return p.Steps[0].Target.String()
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// newWrite is the Write of a plan, not yet signed.
func newWrite(p *plan.Plan, record string, lines []string) *Write {
	return &Write{
		TypeMeta:   metav1.TypeMeta{APIVersion: kube.LedgerGroup.String(), Kind: "Write"},
		ObjectMeta: metav1.ObjectMeta{Name: p.ID, Labels: map[string]string{"app.kubernetes.io/managed-by": "kube-write-mcp"}},
		Spec: WriteSpec{
			Action: p.Action, Target: targetOf(p), Sentence: p.Sentence, Principal: strings.ToValidUTF8(p.Principal, "?"), Expires: stamp(p.Expires), Record: record,
		},
		Status: &WriteStatus{State: Planned, Lines: lines},
	}
}
