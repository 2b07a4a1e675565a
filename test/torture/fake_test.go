package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewrite/kube-write-mcp/test/harness"
)

// fakeServer is as much of an API server as a scale of a Deployment needs: versions,
// generations, owners of /scale, preconditions, dry runs. What it applied is the truth. It
// lives in memory and in a bubble's time, so that the 39 s of a settlement cost nothing.
type fakeServer struct {
	listener *pipes
	server   *http.Server
	late     sync.WaitGroup // requests that nobody waits for any more

	mu       sync.Mutex
	version  int
	objects  map[string]*fakeObject
	injected int
}

// fakeObject is one Deployment, and what is done to its writes.
type fakeObject struct {
	appsv1.Deployment
	rng      *rand.Rand
	kind     int  // of the fault of the one write
	reads    bool // some reads fail
	lost     bool // nobody is on record as the owner of /scale
	override bool // another writer scales it at a time of its own
	snatched bool // another writer takes the plan's write back at once
	blind    bool // its versions cannot be watched
	versions []json.RawMessage
	applied  []string
	sent     int // live writes that came
}

const fakeNamespace = "fake"

// The faults of a fake write.
const (
	fakeNone = iota
	fakeDropBefore
	fakeDropAfter
	fakeErrorBefore
	fakeErrorAfter
	fakeTimeout // 504 or nothing, committed late, by up to 33 s
	fakeHalf
	fakeThrottled
	fakeConflict
	fakeKinds
)

func newFakeServer() *fakeServer {
	f := &fakeServer{listener: &pipes{conns: make(chan net.Conn), done: make(chan struct{})}, objects: map[string]*fakeObject{}, version: 100}
	f.server = &http.Server{Handler: f}
	go func() { _ = f.server.Serve(f.listener) }()
	return f
}

// add makes a Deployment of two replicas.
func (f *fakeServer) add(name string, o *fakeObject) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	o.Deployment = appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: fakeNamespace, Name: name, UID: types.UID("uid-" + name), Generation: 1, ResourceVersion: fmt.Sprint(f.version)},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To(int32(2)), Selector: harness.Selector(name), Template: harness.Template(name)},
	}
	f.objects[name] = o
	o.keep()
}

// keep keeps the present version for those who watch: the lock is the caller's.
func (o *fakeObject) keep() {
	o.APIVersion, o.Kind = "apps/v1", "Deployment"
	raw, err := json.Marshal(&o.Deployment)
	if err != nil {
		panic(err)
	}
	o.versions = append(o.versions, raw)
}

// set is a write that is accepted: the lock is the caller's.
func (f *fakeServer) set(o *fakeObject, replicas int32, manager string) {
	f.version++
	o.ResourceVersion = fmt.Sprint(f.version)
	o.Generation++
	o.Spec.Replicas = &replicas
	o.ManagedFields = nil // whoever owned the one field of /scale does not any more
	if !o.lost {
		o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "scale", APIVersion: "apps/v1", FieldsType: "FieldsV1"}}
	}
	o.keep()
}

// touch is a status write of a controller.
func (f *fakeServer) touch(o *fakeObject) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	o.ResourceVersion = fmt.Sprint(f.version)
	o.keep()
}

// overrule is another writer's scale.
func (f *fakeServer) overrule(o *fakeObject) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set(o, 9, "someone-else")
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		cut()
	}
	seg := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	last := seg[len(seg)-1]
	switch {
	case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
		reply(w, 201, "authentication.k8s.io/v1", "SelfSubjectReview", &authenticationv1.SelfSubjectReview{})
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/") && len(seg) == 4:
		reply(w, 200, "v1", "Namespace", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: last, UID: types.UID("uid-of-" + last)}})
	case r.URL.Query().Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(200)
		f.since(w, r.URL.Query())
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case last == "scale":
		f.scale(w, r, seg[len(seg)-2], body)
	case len(seg) > 2 && seg[len(seg)-2] == "deployments":
		f.get(w, last)
	case r.Method == http.MethodGet: // a list of what there is none of
		reply(w, 200, "v1", "List", &struct {
			metav1.ListMeta `json:"metadata"`
			Items           []string `json:"items"`
		}{metav1.ListMeta{ResourceVersion: "100"}, []string{}})
	default:
		refuse(w, 404)
	}
}

// since writes the versions of one object behind one of them, as a watch by name gives them.
func (f *fakeServer) since(w io.Writer, q url.Values) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name, _ := strings.CutPrefix(q.Get("fieldSelector"), "metadata.name=")
	o := f.objects[name]
	if o == nil || o.blind {
		return
	}
	from := slices.IndexFunc(o.versions, func(v json.RawMessage) bool {
		return strings.Contains(string(v), fmt.Sprintf(`"resourceVersion":%q`, q.Get("resourceVersion")))
	})
	for _, v := range o.versions[from+1:] {
		fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`, v)
	}
}

func (f *fakeServer) get(w http.ResponseWriter, name string) {
	f.mu.Lock()
	o := f.objects[name]
	if o == nil {
		f.mu.Unlock()
		refuse(w, 404)
		return
	}
	fails := o.reads && o.rng.IntN(10) == 0
	if fails {
		f.injected++
	}
	live := *o.Deployment.DeepCopy()
	f.mu.Unlock()
	if fails {
		cut()
	}
	reply(w, 200, "apps/v1", "Deployment", &live)
}

// scale is a PUT of /scale, and the fault of it where it is no dry run.
func (f *fakeServer) scale(w http.ResponseWriter, r *http.Request, name string, body []byte) {
	var s autoscalingv1.Scale
	if err := json.Unmarshal(body, &s); err != nil {
		refuse(w, 400)
		return
	}
	dry, manager := r.URL.Query().Get("dryRun") == "All", r.URL.Query().Get("fieldManager")
	f.mu.Lock()
	o := f.objects[name]
	kind, rng := fakeNone, rand.New(rand.NewPCG(o.rng.Uint64(), 0))
	if !dry {
		if o.sent++; o.sent == 1 {
			kind = o.kind
		}
		if kind != fakeNone {
			f.injected++
		}
	}
	f.mu.Unlock()
	commit := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch {
		case s.UID != "" && s.UID != o.UID, s.ResourceVersion != "" && s.ResourceVersion != o.ResourceVersion:
			return 409
		case dry:
			return 200
		}
		f.set(o, s.Spec.Replicas, manager)
		o.applied = append(o.applied, manager)
		if o.snatched {
			f.set(o, 9, "someone-else")
		}
		return 200
	}
	answer := func(code int) {
		if code != 200 {
			refuse(w, code)
			return
		}
		f.mu.Lock()
		s.ResourceVersion = o.ResourceVersion
		f.mu.Unlock()
		reply(w, 200, "autoscaling/v1", "Scale", &s)
	}
	switch kind {
	case fakeNone:
		answer(commit())
	case fakeDropBefore:
		cut()
	case fakeDropAfter:
		commit()
		cut()
	case fakeErrorBefore:
		answerWith(w, serverError(rng), retryAfter(rng))
	case fakeErrorAfter:
		commit()
		answerWith(w, serverError(rng), retryAfter(rng))
	case fakeTimeout:
		after := time.Duration(rng.IntN(33_000)) * time.Millisecond
		f.late.Go(func() { time.Sleep(after); commit() })
		time.Sleep(time.Duration(rng.IntN(int(after/time.Millisecond)+1)) * time.Millisecond)
		if rng.IntN(2) == 0 {
			cut()
		}
		answerWith(w, 504, retryAfter(rng))
	case fakeHalf:
		if code := commit(); code != 200 {
			refuse(w, code)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Scale","apiVers`))
	case fakeThrottled:
		answerWith(w, 429, retryAfter(rng))
	case fakeConflict:
		refuse(w, 409)
	}
}

func refuse(w http.ResponseWriter, code int) { answerWith(w, code, "") }

func reply(w http.ResponseWriter, code int, version, kind string, o any) {
	raw, err := json.Marshal(o)
	if err != nil {
		refuse(w, 500)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,%s`, version, kind, raw[1:])
}

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, errors.New("closed")
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "fake", Net: "pipe"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
	case <-ctx.Done():
	}
	client.Close()
	server.Close()
	return nil, errors.New("closed")
}
