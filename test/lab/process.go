package lab

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

var (
	serverPrograms     = []string{"etcd", "kube-apiserver"}
	controllerPrograms = []string{"kube-controller-manager", "kube-scheduler", "kwok"}
)

const stages = "kwok-stages.yaml" // what makes kwok do anything at all

// programs is the folder of the control plane's programs: KUBEBUILDER_ASSETS, or the
// one that hack/controlplane/build.sh fills.
func programs(controllers bool) (string, error) {
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		version, err := pinnedVersion()
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
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	needed := serverPrograms
	if controllers {
		needed = slices.Concat(serverPrograms, controllerPrograms, []string{stages})
	}
	for _, p := range needed {
		if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
			return "", fmt.Errorf("lab: there is no %s in %s: run hack/controlplane/build.sh", p, dir)
		}
	}
	return dir, nil
}

// pinnedVersion is the Kubernetes version that hack/controlplane pins. The checkout is
// looked for from the working folder upwards.
func pinnedVersion() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		raw, err := os.ReadFile(filepath.Join(dir, "hack", "controlplane", "go.mod"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(raw)) {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "k8s.io/kubernetes" {
				return f[1], nil
			}
		}
	}
	return "", errors.New("lab: no hack/controlplane/go.mod above the working folder: set KUBEBUILDER_ASSETS to what hack/controlplane/build.sh prints")
}

//go:embed guard.sh
var guard []byte

// layOut prepares the working folder. Every program is started through the guard, a
// script, because envtest gives no handle on its processes.
func (l *Lab) layOut(programs string) error {
	bin := filepath.Join(l.dir, "bin")
	for _, dir := range []string{bin, l.path("certs")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	// A fork at this moment would hold the script open, and nobody could run it.
	syscall.ForkLock.RLock()
	err := os.WriteFile(filepath.Join(bin, "guard"), guard, 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		return err
	}
	for _, p := range slices.Concat(serverPrograms, controllerPrograms) {
		if err := os.Symlink("guard", filepath.Join(bin, p)); err != nil {
			return err
		}
	}
	return os.Symlink(programs, l.path("programs"))
}

func (l *Lab) path(name string) string    { return filepath.Join(l.dir, name) }
func (l *Lab) program(name string) string { return filepath.Join(l.dir, "bin", name) }
func (l *Lab) log(name string) string     { return l.path(name + ".log") }

// startServer starts etcd and the API server and makes the admin's client.
func (l *Lab) startServer(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err // envtest takes no context
	}
	policy := l.path("audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	etcdLog, err := os.Create(l.log("etcd"))
	if err != nil {
		return err
	}
	defer etcdLog.Close()
	serverLog, err := os.Create(l.log("kube-apiserver"))
	if err != nil {
		return err
	}
	defer serverLog.Close()

	ctrllog.SetLogger(klog.New(ctrllog.NullLogSink{})) // else it complains after 30 s
	server := &envtest.APIServer{Path: l.program("kube-apiserver"), CertDir: l.path("certs"), Out: serverLog, Err: serverLog}
	server.Configure().
		Set("audit-policy-file", policy).
		Set("audit-log-path", l.AuditLog()).
		Set("audit-log-mode", "blocking").
		Set("audit-log-maxsize", "0") // never rotated: AuditEvents reads one file
	l.env = &envtest.Environment{
		UseExistingCluster:       new(false), // whatever the environment says: never a cluster of the caller's
		ControlPlaneStartTimeout: startTimeout,
	}
	l.env.ControlPlane.APIServer = server
	l.env.ControlPlane.Etcd = &envtest.Etcd{Path: l.program("etcd"), DataDir: l.path("etcd"), Out: etcdLog, Err: etcdLog}
	cfg, err := l.env.Start()
	if err != nil {
		failed := "etcd"
		if info, err := serverLog.Stat(); err == nil && info.Size() > 0 {
			failed = "kube-apiserver"
		}
		return errors.Join(err, l.tail(failed))
	}
	l.Config = rest.CopyConfig(cfg)
	l.Config.QPS = -1
	l.Client, err = kubernetes.NewForConfig(l.Config)
	return err
}

// startControllers starts the controller manager, the scheduler and kwok, each as an
// admin of its own name.
func (l *Lab) startControllers() error {
	if err := os.WriteFile(l.path("ca.crt"), l.Config.CAData, 0o600); err != nil {
		return err
	}
	flags := map[string][]string{
		"kube-controller-manager": {
			"--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=1000",
			"--root-ca-file", l.path("ca.crt"),
			"--service-account-private-key-file", l.path("certs/sa-signer.key"), // that of envtest's API server
		},
		"kube-scheduler": {"--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=1000"},
		"kwok":           {"--manage-all-nodes=true", "--node-lease-duration-seconds=40", "--config", l.path("programs/" + stages)},
	}
	for _, name := range controllerPrograms {
		user, err := l.env.AddUser(envtest.User{Name: "system:" + name, Groups: []string{"system:masters"}}, nil)
		if err != nil {
			return err
		}
		kubeconfig := l.path(name + ".kubeconfig")
		if err := l.Kubeconfig(kubeconfig, "lab", user.Config()); err != nil {
			return err
		}
		if err := l.run(name, append(flags[name], "--kubeconfig", kubeconfig)...); err != nil {
			return err
		}
	}
	return nil
}

// process is a program that the lab started itself.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

func (l *Lab) run(name string, args ...string) error {
	out, err := os.Create(l.log(name))
	if err != nil {
		return err
	}
	defer out.Close()
	p := &process{name: name, cmd: exec.Command(l.program(name), args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = l.dir, out, out
	if err := p.cmd.Start(); err != nil {
		return err
	}
	l.processes = append(l.processes, p)
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the state is in p.cmd.ProcessState
	}()
	return nil
}

// kill needs no grace: none of these programs keeps anything.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // the one error is that it has ended
	<-p.done
}

// ended tells of a process that has ended by itself.
func (l *Lab) ended() error {
	for _, p := range l.processes {
		select {
		case <-p.done:
			return errors.Join(fmt.Errorf("%s ended: %v", p.name, p.cmd.ProcessState), l.tail(p.name))
		default:
		}
	}
	return nil
}

// tail is the end of a program's log, as an error to join.
func (l *Lab) tail(name string) error {
	raw, err := os.ReadFile(l.log(name))
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return fmt.Errorf("the end of %s:\n%s", filepath.Base(l.log(name)), strings.Join(lines[max(0, len(lines)-10):], "\n"))
}

// PauseControllers stops the controller manager where it is (SIGSTOP), until
// ResumeControllers or Stop: nothing observes a change meanwhile. It must not be paused
// already.
func (l *Lab) PauseControllers() error {
	if err := l.signalManager(syscall.SIGSTOP); err != nil {
		return err
	}
	// A signal is heeded when the system gets to it; this waits for every thread.
	_, err := syscall.Wait4(l.processes[0].cmd.Process.Pid, nil, syscall.WUNTRACED, nil)
	return err
}

// ResumeControllers lets the controller manager go on.
func (l *Lab) ResumeControllers() error { return l.signalManager(syscall.SIGCONT) }

func (l *Lab) signalManager(s os.Signal) error {
	if len(l.processes) == 0 {
		return errors.New("lab: it runs without controllers")
	}
	return l.processes[0].cmd.Process.Signal(s) // the first of controllerPrograms
}
