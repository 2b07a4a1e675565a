package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kubewrite/kube-write-mcp/pkg/gate"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/manifests"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// state is how one thing was found.
type state string

const (
	good    state = "ok"
	unknown state = "unknown" // it cannot be found out
	warning state = "warning" // it works, and something should be changed
	broken  state = "broken"  // it does not work, or the credential may do great harm
)

// finding is one row of the doctor's report.
type finding struct {
	Check   string `json:"check"`
	State   state  `json:"state"`
	Finding string `json:"finding"`
	Fix     string `json:"fix,omitempty"`
}

// doctor examines what the server would run with. Its checks add findings at once.
type doctor struct {
	policy   gate.Policy
	cluster  cluster
	clients  *kube.Clients
	date     *dates
	shares   *manifests.Ledger // nil without one
	needed   []right           // all that the enabled actions need, and what serves them
	findings []finding

	impersonates bool // dry runs and writes are sent in the caller's name
}

func (d *doctor) say(check string, s state, fix, format string, args ...any) {
	d.findings = append(d.findings, finding{check, s, fmt.Sprintf(format, args...), fix})
}

// doctorTimeout bounds all of it.
const doctorTimeout = time.Minute

var errUnwell = errors.New("something is broken: see the report")

// doctor prints what is wrong with cluster, credential and state folder, each with what to
// do about it. It changes nothing.
func (o *options) doctor() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "doctor", Short: "Examine cluster, credential and state folder, and say how to mend what is wrong", Args: cobra.NoArgs,
		Long: `Examines what a server with the same flags would run with: whether the API server can
be reached and is of a version that is supported, whether a dry run changes nothing,
whether the clocks agree, which rights are missing and which are too many, which webhooks
see dry runs, and whether the state folder is sound. It changes nothing. The exit code is
1 where something is broken, or where the credential could do great harm.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("output must be table or json, not %q", output)
			}
			policy, err := o.policy(cmd.Flags())
			if err != nil {
				return err
			}
			d := &doctor{policy: policy, impersonates: o.impersonate}
			ctx, cancel := context.WithTimeout(cmd.Context(), doctorTimeout)
			defer cancel()
			o.examine(ctx, d)
			if err := d.print(cmd, output); err != nil {
				return err
			}
			if slices.ContainsFunc(d.findings, func(f finding) bool { return f.State == broken }) {
				return errUnwell
			}
			return nil
		},
	}
	o.addServe(cmd.Flags())
	cmd.Flags().StringVar(&output, "output", "table", "table or json")
	return cmd
}

// examine runs every check. Without an answer of the API server those of the cluster are
// left out.
func (o *options) examine(ctx context.Context, d *doctor) {
	o.stateHealth(d)
	var err error
	if d.cluster, err = o.cluster(); err != nil {
		d.say("kubeconfig", broken, "name a kubeconfig and a context that exist", "%v", err)
		return
	}
	if d.shares, err = o.sharedRights(d.cluster.namespace); err == nil && d.shares != nil && d.shares.Namespace == "" {
		err = errNoLedgerNamespace
	}
	if err != nil {
		d.say("ledger", broken, "correct --ledger and --ledger-namespace", "%v", err)
		return
	}
	d.date = &dates{}
	d.cluster.config.Wrap(d.date.wrap)
	if d.clients, err = kube.New(d.cluster.config, version(), time.Now, slog.New(slog.DiscardHandler)); err != nil {
		d.say("kubeconfig", broken, "correct the kubeconfig", "%v", err)
		return
	}
	defer d.clients.Cache.Close()
	if !d.reach(ctx) {
		return
	}
	d.clockSkew()
	all, onNodes := o.rights(d.policy)
	d.needed = rightsIn(d.policy, d.shares, all, onNodes)
	o.missing(ctx, d)
	d.excess(ctx)
	d.dryRun(ctx)
	d.webhooks(ctx)
	d.approvals(ctx)
}

// The minor versions of Kubernetes 1 that are supported.
const oldestMinor, newestMinor = 34, 37

// reach asks for the version, then who we are.
func (d *doctor) reach(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	v, err := d.clients.Read.Discovery().ServerVersionWithContext(ctx)
	if err != nil {
		d.say("API server", broken, "check the address, the network and the credential of the kubeconfig", "%s cannot be asked: %s", d.cluster.config.Host, kube.Text(err))
		return false
	}
	var minor int
	_, _ = fmt.Sscanf(v.Minor, "%d", &minor) // "37+" on some providers
	name := plan.Untrusted(v.GitVersion)
	switch {
	case v.Major != "1" || minor < oldestMinor || minor > newestMinor:
		d.say("version", warning, "upgrade the cluster, or use a release of kube-write-mcp made for it",
			"the API server is %s; 1.%d to 1.%d are supported", name, oldestMinor, newestMinor)
	default:
		d.say("version", good, "", "the API server is %s", name)
	}
	d.clients.Read.Introduce(ctx)
	if who := d.clients.Read.KnownUser(); who == "" {
		d.say("API server", broken, "renew the credential: the API server does not say who it is", "%s answers, and does not know us", d.cluster.config.Host)
		return false
	}
	d.say("API server", good, "", "%s answers; we are %s", d.cluster.config.Host, d.clients.Read.KnownUser())
	return true
}

// dates keeps how far our clock is from the Date of the answers.
type dates struct {
	mu   sync.Mutex
	seen bool
	skew time.Duration // the least; positive: our clock is ahead
}

func (d *dates) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		before := time.Now()
		resp, err := next.RoundTrip(req)
		if err != nil {
			return resp, err
		}
		if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			d.see(before, time.Now(), at)
		}
		return resp, nil
	})
}

// see takes one answer that left the server at a time, which its Date gives in whole
// seconds, between two of ours.
func (d *dates) see(before, after, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var skew time.Duration
	switch {
	case before.After(at.Add(time.Second)):
		skew = before.Sub(at.Add(time.Second))
	case after.Before(at):
		skew = after.Sub(at)
	}
	if !d.seen || skew.Abs() < d.skew.Abs() {
		d.skew = skew
	}
	d.seen = true
}

// clockSkew: phrases expire by our clock, tokens by theirs, and the logs of both are joined
// by time.
func (d *doctor) clockSkew() {
	d.date.mu.Lock()
	defer d.date.mu.Unlock()
	skew, s := d.date.skew.Round(time.Millisecond), good
	switch {
	case !d.date.seen:
		d.say("clocks", unknown, "", "the answers have no Date")
		return
	case skew.Abs() > time.Minute:
		s = broken
	case skew.Abs() > 5*time.Second:
		s = warning
	}
	fix := ""
	if s != good {
		fix = "let both machines take their time from the same NTP server"
	}
	d.say("clocks", s, fix, "our clock and that of the API server are %s apart", skew.Abs())
}

func (d *doctor) print(cmd *cobra.Command, output string) error {
	out := cmd.OutOrStdout()
	if output == "json" {
		enc := json.NewEncoder(out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(d.findings)
	}
	f, ok := out.(*os.File)
	colours := ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == ""
	t := newTable(out, "CHECK", "STATE", "FINDING", "FIX")
	for _, f := range d.findings {
		s := string(f.State)
		if c := map[state]text.Color{broken: text.FgRed, warning: text.FgYellow, good: text.FgGreen}[f.State]; colours && c != 0 {
			s = c.Sprint(s)
		}
		t.AppendRow(table.Row{f.Check, s, f.Finding, f.Fix})
	}
	t.Render()
	return nil
}
