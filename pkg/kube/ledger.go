package kube

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/kubernetes"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

// LedgerGroup is the API group and version of the cluster ledger's objects.
var LedgerGroup = schema.GroupVersion{Group: "kubewrite.dev", Version: "v1alpha1"}

// ledgerTimeout is how long the client of the cluster ledger waits for one answer.
const ledgerTimeout = 5 * time.Second

// LedgerClient reaches the objects of the cluster ledger and the leases of one namespace,
// the server's own, and nothing else.
type LedgerClient struct {
	Namespace string
	Leases    coordinationv1.LeasesGetter

	objects rest.Interface
	params  runtime.ParameterCodec
}

// NewLedger builds the client; it sends nothing. register adds the types of LedgerGroup.
func NewLedger(cfg *rest.Config, version, namespace string, register func(*runtime.Scheme)) (*LedgerClient, error) {
	if !namespaceRE.MatchString(namespace) {
		return nil, fmt.Errorf("the ledger's namespace %q is no name of a namespace", namespace)
	}
	host, _, err := rest.DefaultServerURL(cmp.Or(cfg.Host, "localhost"), "", schema.GroupVersion{}, true)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme()
	register(scheme)
	metav1.AddToGroupVersion(scheme, LedgerGroup)
	c := rest.CopyConfig(cfg)
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c.QPS, c.Burst, c.Timeout = -1, 0, ledgerTimeout
	c.UserAgent = "kube-write-mcp/" + version
	c.WarningHandlerWithContext = warnings{}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &ledgerFence{strings.TrimSuffix(host.Path, "/"), namespace, next}
	})
	leases, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	c.APIPath, c.GroupVersion = "/apis", &LedgerGroup
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	objects, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &LedgerClient{Namespace: namespace, Leases: leases.CoordinationV1(), objects: objects, params: runtime.NewParameterCodec(scheme)}, nil
}

var namespaceRE = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// LedgerObjects is the typed client of one resource of the ledger.
func LedgerObjects[T interface {
	runtime.Object
	metav1.Object
}, L runtime.Object](c *LedgerClient, resource string, one func() T, list func() L) *gentype.ClientWithList[T, L] {
	return gentype.NewClientWithList(resource, c.objects, c.params, c.Namespace, one, list)
}

// ledgerFence lets through what is in the ledger's group and its leases, in one namespace.
type ledgerFence struct {
	base, namespace string
	next            http.RoundTripper
}

// RoundTrip sends a request of the ledger's, or fails without sending.
func (f *ledgerFence) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := f.pass(req); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, fmt.Errorf("fence: %s %s: %w", req.Method, req.URL.Path, err)
	}
	resp, err := f.next.RoundTrip(req)
	if err == nil && resp.StatusCode/100 == 3 {
		resp.Body.Close()
		return nil, fmt.Errorf("fence: %s %s: answered with a redirect (%d)", req.Method, req.URL.Path, resp.StatusCode)
	}
	return resp, err
}

func (f *ledgerFence) pass(req *http.Request) error {
	path, ok := strings.CutPrefix(req.URL.EscapedPath(), f.base+"/apis/")
	for _, group := range []string{LedgerGroup.String(), "coordination.k8s.io/v1"} {
		if rest, in := strings.CutPrefix(path, group+"/namespaces/"+f.namespace+"/"); ok && in && ledgerPath.MatchString(rest) && (group == LedgerGroup.String()) != (strings.HasPrefix(rest, "leases")) {
			return nil
		}
	}
	return errors.New("it is no part of the ledger")
}

// ledgerPath is a resource, perhaps with a name and its status.
var ledgerPath = regexp.MustCompile(`^[a-z]+(/[a-z0-9.-]+(/status)?)?$`)
