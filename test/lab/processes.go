package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Assets is the folder of the control plane's programs: KUBEBUILDER_ASSETS, or the one
// that hack/controlplane/build.sh fills.
func Assets() (string, error) {
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		version, err := pinned()
		if err != nil {
			return "", err
		}
		cache := os.Getenv("XDG_CACHE_HOME")
		if cache == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", err
			}
			cache = filepath.Join(home, ".cache")
		}
		dir = filepath.Join(cache, "kube-write-mcp", "controlplane", version)
	}
	for _, p := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "kwok-stages.yaml"} {
		if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
			return "", fmt.Errorf("lab: there is no %s in %s: run hack/controlplane/build.sh", p, dir)
		}
	}
	return dir, nil
}

// pinned is the Kubernetes version that hack/controlplane pins, found from the working
// folder upwards.
func pinned() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		raw, err := os.ReadFile(filepath.Join(dir, "hack", "controlplane", "go.mod"))
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(raw), "\n") {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "k8s.io/kubernetes" {
				return f[1], nil
			}
		}
	}
	return "", errors.New("lab: hack/controlplane/go.mod was not found above the working folder; set KUBEBUILDER_ASSETS")
}

// process is a program that the lab started.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
}

// startControllers runs the controller manager, the scheduler and kwok as admins.
func (l *Lab) startControllers(assets string) error {
	admin, err := l.env.AddUser(envtest.User{Name: "lab-controllers", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(l.dir, "controllers.kubeconfig")
	if err := l.Kubeconfig(kubeconfig, "lab", admin.Config()); err != nil {
		return err
	}
	certs := l.env.ControlPlane.GetAPIServer().CertDir
	ca := filepath.Join(l.dir, "ca.crt")
	if err := os.WriteFile(ca, l.Config.CAData, 0o600); err != nil {
		return err
	}
	for _, p := range [][]string{
		{"kube-controller-manager", "--kubeconfig", kubeconfig, "--leader-elect=false", "--use-service-account-credentials=false", "--controllers=*",
			"--service-account-private-key-file", filepath.Join(certs, "sa-signer.key"), "--root-ca-file", ca, "--secure-port=0"},
		{"kube-scheduler", "--kubeconfig", kubeconfig, "--leader-elect=false", "--secure-port=0"},
		{"kwok", "--kubeconfig", kubeconfig, "--manage-all-nodes=true", "--config", filepath.Join(assets, "kwok-stages.yaml"), "--node-lease-duration-seconds=40"},
	} {
		if err := l.run(assets, p[0], p[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) run(assets, name string, args ...string) error {
	p := &process{name: name, log: filepath.Join(l.dir, name+".log"), cmd: exec.Command(filepath.Join(assets, name), args...), done: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer out.Close()
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = out, out, l.dir
	dieWithParent(p.cmd)
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("lab: %s: %w", name, err)
	}
	l.processes = append(l.processes, p)
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return nil
}

// stop asks a process to end, and ends it.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.done:
		return nil
	case <-time.After(5 * time.Second):
	}
	err := p.cmd.Process.Kill()
	<-p.done
	return err
}

// tails gives the last lines of every log, for an error.
func (l *Lab) tails() string {
	var b strings.Builder
	for _, p := range l.processes {
		raw, _ := os.ReadFile(p.log)
		lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
		fmt.Fprintf(&b, "\n%s: %s", p.name, strings.Join(lines[max(0, len(lines)-5):], "\n\t"))
	}
	return b.String()
}

// PauseControllers stops the controller manager until ResumeControllers: its process
// sleeps and observes nothing.
func (l *Lab) PauseControllers() error { return l.signalControllers(syscall.SIGSTOP) }

// ResumeControllers lets the controller manager go on.
func (l *Lab) ResumeControllers() error { return l.signalControllers(syscall.SIGCONT) }

func (l *Lab) signalControllers(s os.Signal) error {
	for _, p := range l.processes {
		if p.name == "kube-controller-manager" {
			return p.cmd.Process.Signal(s)
		}
	}
	return errors.New("lab: there is no controller manager")
}

func can(ctx context.Context, c kubernetes.Interface, verb, group, resource, sub string) (bool, error) {
	r, err := c.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: group, Resource: resource, Subresource: sub,
		}},
	}, metav1.CreateOptions{})
	return err == nil && r.Status.Allowed, nil
}
