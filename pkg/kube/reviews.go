package kube

import (
	"context"
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/transport"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// The bounds of what is known of callers.
const (
	reviewTTL  = 10 * time.Second // a token that was taken back is good that much longer
	reviewWait = 5 * time.Second
	maxTokens  = 1024
	maxRights  = 8192
	maxToken   = 16 << 10 // bytes
)

// actionsResource is what RBAC grants the virtual verbs on; no API serves it.
const (
	actionsGroup    = "kubewrite.dev"
	actionsResource = "actions"
)

// ReviewRules is the RBAC that asking about callers needs.
var ReviewRules = []rbacv1.PolicyRule{
	{APIGroups: []string{authenticationv1.GroupName}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
	{APIGroups: []string{authorizationv1.GroupName}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
}

// ActionRule is the RBAC of a caller: virtual verbs on every action.
func ActionRule(verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{actionsGroup}, Resources: []string{actionsResource}, Verbs: verbs}
}

// Reviews asks the API server who callers are and what they may do. It remembers the
// answers for 10 s at most, and of tokens no more than a hash.
type Reviews struct {
	client   kubernetes.Interface
	audience string
	good     *cache.LRUExpireCache // hash of a token → *plan.Caller
	bad      *cache.LRUExpireCache // likewise; apart, so that guesses push nobody out
	rights   *cache.LRUExpireCache // hash of caller and question → bool
}

// Reviews accepts tokens that were issued for an audience, and no others.
func (c *Clients) Reviews(audience string, now func() time.Time) *Reviews {
	clock := ticks(now)
	return &Reviews{
		client: c.Read, audience: audience,
		good:   cache.NewLRUExpireCacheWithClock(maxTokens, clock),
		bad:    cache.NewLRUExpireCacheWithClock(maxTokens, clock),
		rights: cache.NewLRUExpireCacheWithClock(maxRights, clock),
	}
}

// ticks is a clock as the caches take it.
type ticks func() time.Time

// Now implements cache.Clock.
func (t ticks) Now() time.Time { return t() }

var dryRunReview = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// Caller is whose token it is; nil where it is nobody's, of another audience, or not good
// any more. The error is that of asking.
func (r *Reviews) Caller(ctx context.Context, token string) (*plan.Caller, error) {
	if token == "" || len(token) > maxToken {
		return nil, nil
	}
	key := sha256.Sum256([]byte(token))
	if who, ok := r.good.Get(key); ok {
		return who.(*plan.Caller), nil
	}
	if _, ok := r.bad.Get(key); ok {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewWait)
	defer cancel()
	review, err := r.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{r.audience}},
	}, dryRunReview)
	if err != nil {
		return nil, err
	}
	// An authenticator that knows no audiences accepts any token and names none.
	if st := review.Status; !st.Authenticated || st.User.Username == "" || !slices.Contains(st.Audiences, r.audience) {
		r.bad.Add(key, struct{}{}, reviewTTL)
		return nil, nil
	}
	u := review.Status.User
	who := &plan.Caller{Name: u.Username, UID: u.UID, Groups: u.Groups, Extra: map[string][]string{}}
	for k, v := range u.Extra {
		who.Extra[k] = v
	}
	r.good.Add(key, who, reviewTTL)
	return who, nil
}

// May says whether a caller may do a virtual verb (read, plan, write, approve) with an
// action in a namespace; "" is every action, and all namespaces.
func (r *Reviews) May(ctx context.Context, who *plan.Caller, verb, name, namespace string) (bool, error) {
	return r.ask(ctx, who, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Group: actionsGroup, Version: "*", Resource: actionsResource, Verb: verb, Name: name, Namespace: namespace,
	}})
}

// MayGet says whether a caller may get a path of ours, as RBAC grants nonResourceURLs.
func (r *Reviews) MayGet(ctx context.Context, who *plan.Caller, path string) (bool, error) {
	return r.ask(ctx, who, authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{
		Verb: "get", Path: path,
	}})
}

func (r *Reviews) ask(ctx context.Context, who *plan.Caller, spec authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	spec.User, spec.UID, spec.Groups, spec.Extra = who.Name, who.UID, who.Groups, map[string]authorizationv1.ExtraValue{}
	for k, v := range who.Extra {
		spec.Extra[k] = v
	}
	question, err := spec.Marshal() // maps in order: equal questions are equal bytes
	if err != nil {
		return false, err
	}
	key := sha256.Sum256(question)
	if may, ok := r.rights.Get(key); ok {
		return may.(bool), nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewWait)
	defer cancel()
	review, err := r.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, dryRunReview)
	if err != nil {
		return false, err
	}
	may := review.Status.Allowed && !review.Status.Denied
	r.rights.Add(key, may, reviewTTL)
	return may, nil
}

type asKey struct{}

// As makes the dry runs and writes of a context impersonate a caller: the API server then
// asks both whether this server may impersonate it and whether the caller may write. nil
// changes nothing.
func As(ctx context.Context, who *plan.Caller) context.Context {
	if who == nil {
		return ctx
	}
	return context.WithValue(ctx, asKey{}, who)
}

// impersonates puts the caller of As into the headers of every request. Groups of the
// system are left out: the API server adds those that go with the user, and the others are
// nobody's to lend.
func impersonates(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		who, ok := req.Context().Value(asKey{}).(*plan.Caller)
		if !ok {
			return next.RoundTrip(req)
		}
		return transport.NewImpersonatingRoundTripper(transport.ImpersonationConfig{
			UserName: who.Name, Groups: slices.DeleteFunc(slices.Clone(who.Groups), func(g string) bool { return strings.HasPrefix(g, "system:") }),
		}, next).RoundTrip(req)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
