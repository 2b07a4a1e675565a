package app

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kubewrite/kube-write-mcp/pkg/engine"
	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	ledger "github.com/kubewrite/kube-write-mcp/pkg/journal/cluster"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
	"github.com/kubewrite/kube-write-mcp/pkg/plan"
	"github.com/kubewrite/kube-write-mcp/pkg/refusal"
	"github.com/kubewrite/kube-write-mcp/pkg/server"
)

// approve is where a person lets a plan be executed that waits for one.
func (o *options) approve() *cobra.Command {
	cmd := &cobra.Command{
		Use: "approve PLAN", Short: "Approve a plan that waits for a person, in a terminal", Args: cobra.ExactArgs(1),
		Long: `Shows a plan from the audit log and asks for the name of its target. Typed exactly, the
plan is approved: the same call with the same phrase then executes it, once, until it
expires. It holds for no other plan.

With --ledger cluster the plan is that of servers in the cluster, and the approval an
object there, made with the kubeconfig's credential. Where two persons are required it
must be another one's than who planned, with the verb approve on the plan's action in
actions.kubewrite.dev.

It needs a terminal on stdin and stderr, and no flag goes around that. It keeps out an
agent that can only call tools; one that runs commands as the same user can do all that
this command does.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !isTerminal(o.stdin) || !isTerminal(cmd.ErrOrStderr()) {
				return errors.New("approve needs a person at a terminal: stdin and stderr must be one")
			}
			if err := o.checkLedger(); err != nil {
				return err
			}
			if o.ledger == ledgerCluster {
				return o.approveShared(cmd, args[0])
			}
			j, err := o.journal()
			if err != nil {
				return err
			}
			p, st, err := recorded(j, args[0])
			if err != nil {
				return err
			}
			if no := engine.Approvable(st, p, time.Now()); no != nil {
				return refused(no)
			}
			if st.Approved {
				return fmt.Errorf("plan %s is approved already", p.ID)
			}
			who, err := principal()
			if err != nil {
				return err
			}
			shown, err := o.ask(cmd, p)
			if err != nil {
				return err
			}
			if err := engine.Approve(j, p, who, shown, time.Now(), time.Now); err != nil {
				if no, ok := errors.AsType[*refusal.Refusal](err); ok {
					return refused(no)
				}
				return err
			}
			sayApproved(cmd, p)
			return nil
		},
	}
	o.addCluster(cmd.Flags())
	return cmd
}

// ask shows a plan and has the name of its target typed.
func (o *options) ask(cmd *cobra.Command, p *plan.Plan) (shown time.Time, err error) {
	what := "name of its target"
	if p.Parts != nil {
		what = "names of its targets, all in their order, such as web, api"
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s\n\nTo approve this one plan, type the %s: ", server.PlanText(p), what)
	shown = time.Now()
	name, err := bufio.NewReader(io.LimitReader(o.stdin, 1024)).ReadString('\n')
	if err != nil {
		return shown, fmt.Errorf("not approved: %w", err)
	}
	if strings.TrimRight(name, "\r\n") != p.Person.Name {
		return shown, fmt.Errorf("not approved: that is not the name of the target; plan %s stays as it is", p.ID)
	}
	return shown, nil
}

func sayApproved(cmd *cobra.Command, p *plan.Plan) {
	fmt.Fprintf(cmd.OutOrStdout(), "approved: plan %s may be executed once, by its phrase, until %s\n", p.ID, p.Expires.Local().Format(time.RFC3339))
}

// approveShared approves a plan of the cluster ledger, as who the kubeconfig is.
func (o *options) approveShared(cmd *cobra.Command, id string) error {
	ctx := cmd.Context()
	at, err := o.cluster()
	if err != nil {
		return err
	}
	client, err := o.ledgerClient(at)
	if err != nil {
		return err
	}
	p, err := ledger.Recorded(ctx, client, id)
	if err != nil {
		return err
	}
	if no := engine.Approvable(journal.State{Planned: true}, p, time.Now()); no != nil {
		return refused(no)
	}
	clients, err := kube.New(at.config, version(), time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer clients.Cache.Close()
	clients.Read.Introduce(ctx)
	who := clients.Read.KnownUser()
	if who == "" {
		return errors.New("the API server does not say who you are: see the credential of the kubeconfig")
	}
	if _, err := o.ask(cmd, p); err != nil {
		return err
	}
	if err := ledger.Approve(ctx, client, p, who); err != nil {
		return err
	}
	sayApproved(cmd, p)
	return nil
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// refused says a refusal in one line.
func refused(r *refusal.Refusal) error {
	if r.Hint == "" {
		return errors.New("refused: " + r.Error())
	}
	return fmt.Errorf("refused: %s; %s", r.Error(), r.Hint)
}

// journal opens the journal that servers write.
func (o *options) journal() (*journal.Journal, error) {
	dir, keys, err := o.keys(false)
	if err != nil {
		return nil, err
	}
	inst, err := instance()
	if err != nil {
		return nil, err
	}
	return journal.Open(journal.Options{Dir: dir, Path: o.audit, Keys: keys, Now: time.Now, Inst: inst})
}

// recorded gives a plan with its state, nil and the zero State where there is none.
func recorded(j *journal.Journal, id string) (p *plan.Plan, st journal.State, err error) {
	if err := j.Sealed(); err != nil {
		return nil, st, err
	}
	if err := j.View(func(l *journal.Ledger) error { st = l.Plan(id); return nil }); err != nil || !st.Planned {
		return nil, st, err
	}
	p, err = j.Record(id)
	return p, st, err
}
