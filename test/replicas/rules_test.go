package replicas

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
)

// follows are the states that the API server lets follow each other, beside staying.
var follows = map[cluster.State][]cluster.State{
	cluster.Planned:  {cluster.Claimed, cluster.Expired, cluster.Stale},
	cluster.Claimed:  {cluster.Unknown, cluster.Executed, cluster.Failed, cluster.Indeterminate},
	cluster.Unknown:  {cluster.Executed, cluster.Failed, cluster.Indeterminate},
	cluster.Executed: nil, cluster.Failed: nil, cluster.Indeterminate: nil, cluster.Expired: nil, cluster.Stale: nil,
}

// reach are the steps to a state.
var reach = map[cluster.State][]cluster.State{
	cluster.Planned: {cluster.Planned}, cluster.Claimed: {cluster.Planned, cluster.Claimed},
	cluster.Unknown:  {cluster.Planned, cluster.Claimed, cluster.Unknown},
	cluster.Executed: {cluster.Planned, cluster.Claimed, cluster.Executed}, cluster.Failed: {cluster.Planned, cluster.Claimed, cluster.Failed},
	cluster.Indeterminate: {cluster.Planned, cluster.Claimed, cluster.Unknown, cluster.Indeterminate},
	cluster.Expired:       {cluster.Planned, cluster.Expired}, cluster.Stale: {cluster.Planned, cluster.Stale},
}

// in gives a status the shape that its state has.
func in(st *cluster.WriteStatus, s cluster.State) {
	st.State = s
	st.Serial++
	claimed := !slices.Contains([]cluster.State{cluster.Planned, cluster.Expired, cluster.Stale}, s)
	switch {
	case claimed && st.Claim == nil:
		st.Claim = &cluster.Claim{ID: "mf3q7x2ad5", Instance: "aaaa", Time: "2026-11-30T12:00:00Z"}
	case !claimed:
		st.Claim = nil
	}
	switch has := claimed && s != cluster.Claimed && s != cluster.Unknown; {
	case has && st.Result == "":
		st.Result = "{}"
	case !has:
		st.Result = ""
	}
}

// raw makes a Write as an admin, without any server, and brings it to a state.
func (l shared) raw(name string, s cluster.State) *cluster.Write {
	l.t.Helper()
	w, err := objects(l.admin).Create(context.Background(), &cluster.Write{
		TypeMeta: metav1.TypeMeta{APIVersion: "kubewrite.dev/v1alpha1", Kind: "Write"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: cluster.WriteSpec{Action: "scale", Principal: "os:alice", Expires: "2026-11-30T12:00:00Z", Record: "{}", KeyID: "k", MAC: "m"},
	}, metav1.CreateOptions{})
	for _, next := range reach[s] {
		if err == nil {
			if w.Status == nil {
				w.Status = &cluster.WriteStatus{Lines: []string{"line"}, KeyID: "k", MAC: "m"}
			}
			in(w.Status, next)
			w, err = objects(l.admin).UpdateStatus(context.Background(), w, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		l.t.Fatalf("%s: %v", s, err)
	}
	return w
}

// TestTransitions tries every move from every state to every other, as an admin who goes
// around every server: the API server has the state machine.
func TestTransitions(t *testing.T) {
	l := newLedger(t)
	n := 0
	for from, allowed := range follows {
		for to := range follows {
			n++
			w := l.raw(fmt.Sprintf("t%d", n), from)
			in(w.Status, to)
			_, err := objects(l.admin).UpdateStatus(t.Context(), w, metav1.UpdateOptions{})
			want := from == to || slices.Contains(allowed, to)
			if got := err == nil; got != want {
				t.Errorf("from %s to %s: allowed %t, want %t: %v", from, to, got, want, err)
			}
			if err != nil && !apierrors.IsInvalid(err) {
				t.Errorf("from %s to %s: %v", from, to, err)
			}
		}
	}
}

// TestForbidden tries what else must not be, as an admin.
func TestForbidden(t *testing.T) {
	l := newLedger(t)
	status := func(w *cluster.Write) error {
		_, err := objects(l.admin).UpdateStatus(context.Background(), w, metav1.UpdateOptions{})
		return err
	}
	spec := func(w *cluster.Write) error {
		_, err := objects(l.admin).Update(context.Background(), w, metav1.UpdateOptions{})
		return err
	}
	for i, tc := range []struct {
		name   string
		from   cluster.State
		change func(*cluster.Write)
		send   func(*cluster.Write) error
		want   string // in the API server's words; "" is allowed
	}{
		{"another record", cluster.Planned, func(w *cluster.Write) { w.Spec.Record = "{ }" }, spec, "a plan never changes"},
		{"another principal", cluster.Executed, func(w *cluster.Write) { w.Spec.Principal = "os:bob" }, spec, "a plan never changes"},
		{"no mac", cluster.Planned, func(w *cluster.Write) { w.Spec.MAC = "" }, spec, "a plan never changes"},
		{"a label", cluster.Executed, func(w *cluster.Write) { w.Labels = map[string]string{"a": "b"} }, spec, ""},
		{"no status", cluster.Claimed, func(w *cluster.Write) { w.Status = nil }, status, "never taken away"},
		{"another claim", cluster.Claimed, func(w *cluster.Write) { w.Status.Serial++; w.Status.Claim.ID = "aaaaaaaaaa" }, status, "a claim holds for ever"},
		{"another replica", cluster.Unknown, func(w *cluster.Write) { w.Status.Serial++; w.Status.Claim.Instance = "bbbb" }, status, "a claim holds for ever"},
		{"no claim", cluster.Claimed, func(w *cluster.Write) { w.Status.Serial++; w.Status.Claim = nil }, status, "who claimed a plan is named"},
		{"a claim before it is claimed", cluster.Planned, func(w *cluster.Write) { w.Status.Serial++; w.Status.Claim = &cluster.Claim{ID: "a"} }, status, "who claimed a plan is named"},
		{"a result before it has one", cluster.Claimed, func(w *cluster.Write) { w.Status.Serial++; w.Status.Result = "{}" }, status, "has a result"},
		{"another result", cluster.Executed, func(w *cluster.Write) { w.Status.Serial++; w.Status.Result = `{"a":1}` }, status, "a result never changes"},
		{"no result", cluster.Failed, func(w *cluster.Write) { w.Status.Serial++; w.Status.Result = "" }, status, "has a result"},
		{"other lines under a result", cluster.Executed, func(w *cluster.Write) { w.Status.Serial++; w.Status.Lines = []string{} }, status, "a result never changes"},
		{"a verdict", cluster.Executed, func(w *cluster.Write) {
			w.Status.Serial++
			w.Status.Verdict = "verified"
			w.Status.Verification = "line"
		}, status, ""},
		{"more lines", cluster.Claimed, func(w *cluster.Write) { w.Status.Serial++; w.Status.Lines = append(w.Status.Lines, "b") }, status, ""},
		{"the serial stays", cluster.Claimed, func(w *cluster.Write) { w.Status.Lines = append(w.Status.Lines, "b") }, status, "no older status"},
		{"the serial goes back", cluster.Claimed, func(w *cluster.Write) { w.Status.Serial--; w.Status.Lines = append(w.Status.Lines, "b") }, status, "no older status"},
		{"the serial leaps", cluster.Claimed, func(w *cluster.Write) { w.Status.Serial += 2 }, status, "no older status"},
		{"a state that is none", cluster.Planned, func(w *cluster.Write) { w.Status.Serial++; w.Status.State = "Free" }, status, "Unsupported value"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := l.raw(fmt.Sprintf("f%d", i), tc.from)
			tc.change(w)
			err := tc.send(w)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("begins in another state", func(t *testing.T) {
		w := l.raw("begin", cluster.Planned)
		w = &cluster.Write{TypeMeta: w.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: w.Spec}
		w, err := objects(l.admin).Create(t.Context(), w, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.Status = &cluster.WriteStatus{Lines: []string{}, KeyID: "k", MAC: "m"}
		in(w.Status, cluster.Executed)
		if err := status(w); err == nil || !strings.Contains(err.Error(), "begins as Planned") {
			t.Errorf("error %v", err)
		}
	})
}

// TestServersRights: the server's account may write no spec and no approval.
func TestServersRights(t *testing.T) {
	l := newLedger(t)
	own := l.client(serverAccount(t))
	w := l.raw("mf3q7x2ad5", cluster.Planned)
	w.Labels = map[string]string{"a": "b"}
	if _, err := objects(own).Update(t.Context(), w, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("it may update a Write: %v", err)
	}
	_, err := approvals(own).Create(t.Context(), &cluster.Approval{
		TypeMeta: metav1.TypeMeta{APIVersion: "kubewrite.dev/v1alpha1", Kind: "Approval"}, ObjectMeta: metav1.ObjectMeta{Name: w.Name},
		Spec: cluster.ApprovalSpec{Plan: w.Name, Approver: "system:serviceaccount:kube-write-mcp:server", Action: "scale"},
	}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("it may create an Approval: %v", err)
	}
	outside := l
	outside.namespace = "default"
	for what, call := range map[string]func() error{
		"another namespace": func() error {
			_, err := objects(outside.client(serverAccount(t))).List(t.Context(), metav1.ListOptions{})
			return err
		},
		"a name like a path": func() error {
			_, err := objects(own).Get(t.Context(), "a/../../../pods", metav1.GetOptions{})
			return err
		},
		"leases of kube-system": func() error {
			_, err := l.admin.Leases.Leases("kube-system").List(t.Context(), metav1.ListOptions{})
			return err
		},
	} {
		if err := call(); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
