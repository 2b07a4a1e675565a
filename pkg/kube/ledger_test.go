package kube

import (
	"net/http"
	"testing"
)

// TestLedgerFence: the ledger's client reaches its objects and leases in one namespace, and
// nothing else, to read or to write.
func TestLedgerFence(t *testing.T) {
	const ns = "/apis/kubewrite.dev/v1alpha1/namespaces/own"
	for _, tc := range []struct {
		base, path string
		want       bool
	}{
		{"", ns + "/writes", true},
		{"", ns + "/writes/mf3q7x2ad5", true},
		{"", ns + "/writes/mf3q7x2ad5/status", true},
		{"", ns + "/ratebudgets/kube-write-mcp/status", true},
		{"", ns + "/approvals/mf3q7x2ad5", true},
		{"", "/apis/coordination.k8s.io/v1/namespaces/own/leases/kube-write-mcp", true},
		{"/proxy", "/proxy" + ns + "/writes", true},
		{"/proxy", ns + "/writes", false},
		{"", "/apis/kubewrite.dev/v1alpha1/namespaces/other/writes", false},
		{"", "/apis/kubewrite.dev/v1alpha1/namespaces/owner/writes", false},
		{"", "/apis/kubewrite.dev/v1alpha1/writes", false},
		{"", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x", false},
		{"", "/apis/coordination.k8s.io/v1/namespaces/own/leasecandidates/x", false},
		{"", ns + "/writes/mf3q7x2ad5/scale", false},
		{"", ns + "/writes/../../../../../api/v1/namespaces/own/pods", false},
		{"", ns + "/writes/..%2f..%2fpods", false},
		{"", "/api/v1/namespaces/own/secrets", false},
		{"", "/apis/apps/v1/namespaces/own/deployments/web", false},
		{"", "/version", false},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
			sent := false
			f := &ledgerFence{tc.base, "own", roundTrip(func(*http.Request) (*http.Response, error) {
				sent = true
				return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
			})}
			req, err := http.NewRequest(method, "https://server"+tc.path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.RoundTrip(req)
			if sent != tc.want || (err == nil) != tc.want {
				t.Errorf("%s %s behind %q: sent %t, error %v; want %t", method, tc.path, tc.base, sent, err, tc.want)
			}
		}
	}
}

func TestLedgerNamespace(t *testing.T) {
	for _, bad := range []string{"", "A", "a/b", "..", "a b", "-a"} {
		if _, err := NewLedger(nil, "v", bad, nil); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
