package engine

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// verify starts the verification of an execution; its verdict goes on record whoever
// waits for it, and comes through the channel. It never alters the result.
func (e *Engine) verify(ctx context.Context, c Call, p *plan.Plan) <-chan plan.Verification {
	verdict := make(chan plan.Verification, 1)
	go func() {
		work, cancel := context.WithTimeout(e.stop, e.cfg.VerifyTimeout)
		defer cancel()
		v := e.convergeAll(work, func(message string) {
			if c.Progress != nil && ctx.Err() == nil {
				c.Progress(message)
			}
		}, p)
		if v.Verdict != plan.Verifying {
			l := about(e.line(c, journal.EventVerify), p)
			l.Code, l.Output, l.Verification = string(v.Verdict), v.Reason, &v
			if err := e.append(l); err != nil {
				e.cfg.Log.Error("the verdict could not be recorded", "plan", p.ID, "err", err)
			}
		}
		verdict <- v
	}()
	return verdict
}

// await waits for a verdict, at most for wait.
func (e *Engine) await(ctx context.Context, verdict <-chan plan.Verification, wait time.Duration) *plan.Verification {
	select {
	case v := <-verdict:
		return &v
	case <-time.After(wait):
	case <-ctx.Done():
	case <-e.stop.Done():
	}
	return e.verifying()
}

func (e *Engine) verifying() *plan.Verification {
	return &plan.Verification{Verdict: plan.Verifying, Reason: "call again with the same phrase for the verdict", Time: e.now().UTC().Truncate(time.Millisecond)}
}

// The pace of verification.
const (
	pollFirst = 100 * time.Millisecond
	pollMost  = time.Second
	progress  = 10 * time.Second // at least this often
	holdFor   = 20 * time.Second // where a revert is foreseen

	successorWait = 2 * time.Second // for the pod that a StatefulSet makes under the same name
)

// hold keeps a good verdict back until it has stood for a while: someone is expected to
// take the change back.
type hold struct {
	from  []string // who is
	since time.Time
}

// keep gives the verdict of now.
func (h *hold) keep(v plan.Verification) plan.Verification {
	who := strings.Join(h.from, ", ")
	switch {
	case who == "":
		return v
	case v.Verdict == plan.Overridden || v.Verdict == plan.Reverted:
		v.Reason += "; the plan foresaw it, by " + who
	}
	if v.Verdict != plan.Verified {
		h.since = time.Time{}
		return v
	}
	if h.since.IsZero() {
		h.since = time.Now()
	}
	if time.Since(h.since) < holdFor {
		v.Verdict = plan.Verifying
		v.Reason += fmt.Sprintf(", watched for %s because of %s", holdFor, who)
		return v
	}
	v.Reason += fmt.Sprintf(", held for %s", holdFor)
	return v
}

// held reports whether the change stood when the time was up.
func (h *hold) held() bool { return !h.since.IsZero() }

// converge looks at the live objects until every rule is satisfied or contradicted, or
// ctx ends.
func (e *Engine) converge(ctx context.Context, tell func(string), p *plan.Plan) plan.Verification {
	pause, said, spoke := pollFirst, "", time.Time{}
	rules, holding := rulesFor(p), hold{from: p.Blast.Reverts}
	v := plan.Verification{Verdict: plan.Verifying, Reason: "not looked at yet"}
	for {
		if now := e.look(ctx, rules, p); ctx.Err() == nil {
			if now.Verdict == plan.Reverted {
				now.Reason += reached(rules, v)
			}
			v = holding.keep(now)
		}
		v.Time = e.now().UTC().Truncate(time.Millisecond)
		if v.Verdict != plan.Verifying {
			return v
		}
		if v.Reason != said || time.Since(spoke) > progress {
			said, spoke = v.Reason, time.Now()
			tell(v.Reason)
		}
		select {
		case <-time.After(pause):
			pause = min(pause*2, pollMost)
			continue
		case <-ctx.Done():
		}
		switch {
		case e.stop.Err() != nil:
		case holding.held():
			v.Verdict = plan.Verified
		case strings.HasPrefix(v.Reason, notObserved):
			v.Verdict, v.Reason = plan.NotStarted, fmt.Sprintf("not observed by the controller within %s", e.cfg.VerifyTimeout)
		default:
			var why string
			v.Verdict, why = e.obstacles(rules)
			v.Reason += why
		}
		return v
	}
}

// rule is how one Step's effect is verified: it gives verifying until it is so.
type rule struct {
	step  plan.Step
	of    plan.Target                                         // what is looked at
	judge func(plan.Step, plan.Object) (plan.Verdict, string) // an object of nil is one that is not there
	rolls bool                                                // a controller brings pods to what the Step writes, or releases
}

// removes reports whether what is looked at shall be gone.
func (r rule) removes() bool { return r.step.Verb == plan.Evict || r.step.Verb == plan.Delete }

// rulesFor gives a rule for every Step that has an effect to wait for.
func rulesFor(p *plan.Plan) (rules []rule) {
	for _, s := range p.Steps {
		resumed := s.Verb == plan.Patch && p.Blast.Direction == plan.Replaces // its patch may hold no template: what was held back is released
		switch {
		case s.Optional:
		case s.Verb == plan.Evict, s.Verb == plan.Delete:
			// A StatefulSet's pod comes back under its name.
			returns := s.OnBudget != plan.Wait && strings.HasPrefix(p.Blast.AtRisk.Owner, "StatefulSet/")
			rules = append(rules, rule{s, s.Target, isGone(returns), false})
		case s.Verb == plan.Create:
			rules = append(rules, rule{s, s.Subject(), isMade(p.ID), false})
		case s.Rolls(), resumed:
			rules = append(rules, rule{s, s.Target, rolledOut, true})
		default:
			rules = append(rules, rule{s, s.Target, holds, false})
		}
	}
	return rules
}

// look judges each rule by the live object; the first one that is not satisfied speaks.
func (e *Engine) look(ctx context.Context, rules []rule, p *plan.Plan) plan.Verification {
	out := plan.Verification{Verdict: plan.Verified}
	waiting, leaving, gone := 0, 0, 0
	for _, r := range rules {
		o, err := e.k.Read.Get(ctx, r.of)
		verdict, reason := plan.Verified, ""
		switch absent := apierrors.IsNotFound(err); {
		case err == nil:
			verdict, reason = r.judge(r.step, o)
			out.State = plan.StateOf(r.of.Resource, o)
		case absent && r.removes():
			verdict, reason = r.judge(r.step, nil)
		case absent:
			verdict, reason = plan.Reverted, r.of.String()+" is gone"
		default:
			verdict, reason = plan.Verifying, kube.Refuse(err).Error()
		}
		if r.removes() {
			leaving++
		}
		if verdict == plan.Verified {
			if r.removes() {
				gone++
			}
			if out.Reason == "" {
				out.Reason = reason
			}
			continue
		}
		if waiting++; waiting == 1 && r.removes() && o.Value("metadata.deletionTimestamp") != "" {
			reason += e.unanswered(ctx, o)
		}
		if waiting == 1 || verdict != plan.Verifying {
			out.Verdict, out.Reason = verdict, reason
		}
		if verdict != plan.Verifying {
			return out
		}
	}
	switch {
	case out.Verdict == plan.Verified && leaving > 1:
		out.Reason = fmt.Sprintf("all %d pods are gone", leaving)
	case waiting > 0 && leaving > 1:
		out.Reason = fmt.Sprintf("%d of %d pods are gone: %s", gone, leaving, out.Reason)
	}
	return out
}

// unanswered says of a terminating pod that nobody confirms its end, where its node is
// not ready; "" where it is, or cannot be read.
func (e *Engine) unanswered(ctx context.Context, o plan.Object) string {
	node, err := e.k.Read.Get(ctx, plan.Target{Resource: "nodes", Name: o.Value("spec.nodeName")})
	if err != nil {
		return ""
	}
	for i := 0; ; i++ {
		c := fmt.Sprintf("status.conditions[%d].", i)
		switch {
		case node.Value(c+"type") == "":
			return ""
		case node.Value(c+"type") == "Ready" && node.Value(c+"status") != "True":
			return ", kubelet unreachable: its node " + o.Value("spec.nodeName") + " is not ready"
		}
	}
}

// isGone waits until the pod with this uid is no more. One of the same name is another
// pod: where one is expected, it is given a moment to find its node, and named.
func isGone(returns bool) func(plan.Step, plan.Object) (plan.Verdict, string) {
	var since time.Time
	return func(s plan.Step, o plan.Object) (plan.Verdict, string) {
		there := o != nil
		switch {
		case there && o.Value("metadata.uid") == s.Target.UID && o.Value("metadata.deletionTimestamp") != "":
			return plan.Verifying, s.Target.String() + " is terminating"
		case there && o.Value("metadata.uid") == s.Target.UID:
			return plan.Verifying, s.Target.String() + " is still there"
		}
		gone := s.Target.String() + " is gone"
		if since.IsZero() {
			since = time.Now()
		}
		placed := there && o.Value("spec.nodeName") != ""
		switch {
		case returns && !placed && time.Since(since) < successorWait:
			return plan.Verifying, gone + ", the next one of that name has no node yet"
		case !there:
			return plan.Verified, gone
		}
		node := "no node yet"
		if placed {
			node = "node " + o.Value("spec.nodeName")
		}
		return plan.Verified, fmt.Sprintf("%s (uid %s, %s); one of that name has uid %s and %s", gone, s.Target.UID, nodeOf(s), o.Value("metadata.uid"), node)
	}
}

// nodeOf is the node from which a Step takes a pod.
func nodeOf(s plan.Step) string {
	for _, c := range s.Changes {
		if c.Field == "spec.nodeName" && c.Old != "" {
			return "node " + c.Old
		}
	}
	return "no node"
}

// isMade wants an object that this plan made.
func isMade(id string) func(plan.Step, plan.Object) (plan.Verdict, string) {
	return func(s plan.Step, o plan.Object) (plan.Verdict, string) {
		if !bearsMark(o, id) {
			return plan.Reverted, s.Subject().String() + " is another one now"
		}
		return plan.Verified, s.Subject().String() + " exists"
	}
}

// bearsMark reports whether a plan made the object.
func bearsMark(o plan.Object, id string) bool {
	return o.Value("metadata.annotations["+plan.PlanAnnotation+"]") == id
}

// reached says how far a rollout was when its change was last seen in place.
func reached(rules []rule, last plan.Verification) string {
	updated, known := last.State["updated"]
	rolls := slices.ContainsFunc(rules, func(r rule) bool { return r.step.Verb == plan.Patch && r.rolls })
	if !known || !rolls || strings.HasPrefix(last.Reason, notObserved) {
		return ""
	}
	return fmt.Sprintf("; when it was last seen in place, %v of %v pods were at its revision", updated, last.State["replicas"])
}

// obstaclesTimeout bounds the look at what a rollout waits for, after its time is up.
const obstaclesTimeout = 3 * time.Second

// obstacles gives the verdict where the time is up, and says what the pods wait for that
// did not come. It says nothing of what cannot be had.
func (e *Engine) obstacles(rules []rule) (verdict plan.Verdict, said string) {
	verdict = plan.TimedOut
	ctx, cancel := context.WithTimeout(e.stop, obstaclesTimeout)
	defer cancel()
	for _, r := range rules {
		if !r.rolls {
			continue
		}
		o, err := e.k.Read.Get(ctx, r.of)
		if err != nil {
			continue
		}
		if pods, err := e.podsOf(ctx, r.of, o); err == nil {
			v, why := waiting(r.of, o, pods)
			verdict, said = cmp.Or(v, verdict), said+why
		}
		if v, why := notCreated(o); v != "" {
			verdict, said = v, said+why
		}
	}
	return verdict, said
}

var exceeded = regexp.MustCompile(`exceeded quota: ([a-z0-9][a-z0-9.-]*)`)

// notCreated is why a controller says that it cannot create pods, "" where it says
// nothing. Its message is text of whoever refused them, and is not passed on.
func notCreated(o plan.Object) (verdict plan.Verdict, said string) {
	var w struct {
		Status struct {
			Conditions []appsv1.DeploymentCondition `json:"conditions"`
		} `json:"status"`
	}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(o, &w) != nil {
		return "", ""
	}
	for _, c := range w.Status.Conditions {
		if c.Type != appsv1.DeploymentReplicaFailure || c.Status != corev1.ConditionTrue {
			continue
		}
		if m := exceeded.FindStringSubmatch(c.Message); m != nil && len(m[1]) <= 253 {
			return plan.QuotaExceeded, ", pods cannot be created: quota " + m[1] + " is exceeded"
		}
		return plan.Blocked, ", pods cannot be created: the API server refuses them; the condition ReplicaFailure says why"
	}
	return "", ""
}

// podsOf are the live pods of a workload that have not ended.
func (e *Engine) podsOf(ctx context.Context, t plan.Target, o plan.Object) (pods []corev1.Pod, err error) {
	var w struct {
		Spec struct {
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &w); err != nil {
		return nil, err
	}
	selector, err := metav1.LabelSelectorAsSelector(w.Spec.Selector)
	if err != nil {
		return nil, err
	}
	list, err := e.k.Read.CoreV1().Pods(t.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	for _, p := range list.Items {
		if f := kube.PodFacts(&p); f.Top().Name == t.Name && !f.Finished() && !f.Terminating {
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// waiting says which pods fit on no node, and which one a StatefulSet cannot get past: it
// replaces none of an old revision that never became ready, and makes no other before.
func waiting(t plan.Target, o plan.Object, pods []corev1.Pod) (verdict plan.Verdict, said string) {
	pending, inOrder := 0, t.Resource == "statefulsets" && o.Value("spec.podManagementPolicy") != string(appsv1.ParallelPodManagement)
	for _, p := range pods {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				pending++
			}
		}
		if inOrder && !kube.PodFacts(&p).Ready && p.Labels[appsv1.ControllerRevisionHashLabelKey] != o.Value("status.updateRevision") {
			verdict, said = plan.Blocked, fmt.Sprintf(", stuck on %s at the old revision: plan_delete_pod %s lets it go on", p.Name, p.Name)
			inOrder = false
		}
	}
	if pending > 0 {
		verdict, said = cmp.Or(verdict, plan.Unschedulable), fmt.Sprintf(", %d Pending (Unschedulable)", pending)+said
	}
	return verdict, said
}

// holds wants every changed field as it was written.
func holds(s plan.Step, o plan.Object) (plan.Verdict, string) {
	if lost := lostFields(s, o); lost != "" {
		return plan.Reverted, lost
	}
	var now []string
	for _, c := range s.Changes {
		if c.Old != c.New {
			now = append(now, c.Field+" is "+zero(c.New))
		}
	}
	return plan.Verified, strings.Join(now, ", ")
}

func zero(v string) string {
	if v == "" {
		return "unset"
	}
	return v
}

// lostFields names the first changed field that no longer has the value that was
// written.
func lostFields(s plan.Step, o plan.Object) string {
	c, lost := lostField(s, o)
	if !lost {
		return ""
	}
	return fmt.Sprintf("%s is %s now, not %s", c.Field, zero(plan.Untrusted(o.Value(c.Field))), zero(c.New))
}

func lostField(s plan.Step, o plan.Object) (c plan.Change, lost bool) {
	for _, c := range s.Changes {
		if v := o.Value(c.Field); c.Old != c.New && v != c.New && !(v == "" && plan.IsZero(c.New)) {
			return c, true
		}
	}
	return c, false
}

// takenBack tells who set a field of a workload to another value. An autoscaler writes
// through the subresource, and may well set the old number again; who writes that into
// the object itself keeps it as it is declared elsewhere.
func takenBack(s plan.Step, c plan.Change, o plan.Object) (plan.Verdict, string) {
	by, through := o.LastOwner(c.Field)
	said := lostFields(s, o)
	if by != "" {
		said += ", last written by " + by
	}
	if s.Verb == plan.Scale && (through == s.Subresource() || o.Value(c.Field) != c.Old) {
		return plan.Overridden, said
	}
	return plan.Reverted, said
}

const notObserved = "not observed by the controller yet"

// rolledOut wants the controller to have seen the change and to have brought every pod
// to it. Nothing of the status counts before observedGeneration has caught up: until
// then it is the status of the time before (RO-18).
func rolledOut(s plan.Step, o plan.Object) (plan.Verdict, string) {
	if c, lost := lostField(s, o); lost {
		return takenBack(s, c, o)
	}
	if o.Int("status.observedGeneration") < o.Int("metadata.generation") {
		return plan.Verifying, notObserved
	}
	want, pods := o.Int("spec.replicas"), o.Int("status.replicas")
	updated, available := o.Int("status.updatedReplicas"), o.Int("status.availableReplicas")
	switch s.Target.Resource {
	case "daemonsets":
		want, pods = o.Int("status.desiredNumberScheduled"), o.Int("status.currentNumberScheduled")
		updated, available = o.Int("status.updatedNumberScheduled"), o.Int("status.numberAvailable")
	case "replicasets":
		updated = pods
	case "statefulsets":
		if o.Value("status.currentRevision") == o.Value("status.updateRevision") {
			updated = pods
		}
		updated += min(o.Int("spec.updateStrategy.rollingUpdate.partition"), want)
	}
	if s.Verb == plan.Scale && s.Target.Resource != "deployments" {
		updated = pods // a scale waits for no rollout
	}
	paused := o.Value("spec.paused") == "true"
	switch onDelete := o.Value("spec.updateStrategy.type") == "OnDelete"; {
	case paused && s.Verb == plan.Patch:
		return plan.Verified, "template updated, the rollout is paused: no pod changes until it is resumed"
	case onDelete && s.Verb == plan.Patch:
		return plan.Verified, fmt.Sprintf("template updated, %d of %d pods at the new revision, strategy OnDelete: pods change when they are deleted", updated, want)
	case paused:
		updated = pods // the rollout waits for its resume
	}
	state := fmt.Sprintf("%d of %d available, %d updated, %d in all", available, want, updated, pods)
	if pods == want && updated >= want && available >= want {
		return plan.Verified, state
	}
	return plan.Verifying, state
}
