package misroute

import (
	"slices"

	. "github.com/kubewrite/kube-write-mcp/hack/readme/sections"
	"github.com/kubewrite/kube-write-mcp/test/harness"
)

type args = harness.Args

var (
	webIn  = args{"namespace": "{ns}", "deployment": "web"}
	nearby = args{"namespace": "{ns}", "deployment": "web-api"}
	onIt   = args{"node": "{node}"}
)

func replicas(of args, n any) args { return of.With("replicas", n) }
func pod(name string) args         { return args{"namespace": "{ns}", "pod": name} }
func image(name string) args       { return webIn.With("container", "main").With("image", name) }

// only is a single call.
func only(tool string, with args) []call { return []call{{tool: tool, args: with}} }

// then is calls in a row.
func then(all ...[]call) []call { return slices.Concat(all...) }

// confirmed is an execution with a phrase of the agent's own making.
func confirmed(tool string, with args, phrase string) []call {
	return only(tool, with.With("confirm", phrase).With("reason", "as asked"))
}

// elsewhere has the calls go to another server.
func elsewhere(server string, calls []call) []call {
	for i := range calls {
		calls[i].via = server
	}
	return calls
}

func api(n int32) thing { return deployment("web-api", n) }

var tasks = []task{
	{name: "scale in a protected namespace", mistake: "wrong namespace", intent: "three DNS pods less in the lab",
		calls: do("scale", args{"namespace": "kube-system", "deployment": "coredns", "replicas": 0}), want: Unread},
	{name: "scale in a namespace that is not allowed", mistake: "wrong namespace", intent: "one web more at home", flags: []string{"--allow-namespaces", "{ns}"}, world: []thing{web, in(web)},
		calls: do("scale", args{"namespace": "{other}", "deployment": "web", "replicas": 4}), want: Unread},
	{name: "scale the workload of the same name next door", mistake: "wrong namespace", intent: "one web more at home", world: []thing{web, in(web)},
		calls: do("scale", args{"namespace": "{other}", "deployment": "web", "replicas": 4}), want: Undone},
	{name: "no namespace at all", mistake: "wrong namespace", intent: "one web more at home", world: []thing{web},
		calls: do("scale", args{"deployment": "web", "replicas": 4}), want: Unread},
	{name: "list in a namespace that is not allowed", mistake: "wrong namespace", intent: "which pods of web run", flags: []string{"--allow-namespaces", "{ns}"},
		calls: only("list_pods", args{"namespace": "{other}"}), want: Unread},

	{name: "scale a StatefulSet that is a Deployment", mistake: "wrong kind", intent: "one web more", world: []thing{web},
		calls: do("scale", args{"namespace": "{ns}", "statefulset": "web", "replicas": 4}), want: Precondition},
	{name: "scale a DaemonSet", mistake: "wrong kind", intent: "fewer agents", world: []thing{web},
		calls: do("scale", args{"namespace": "{ns}", "daemonset": "web", "replicas": 1}), want: Unread},
	{name: "scale the ReplicaSet of a Deployment", mistake: "wrong kind", intent: "one web more", world: []thing{web},
		calls: do("scale", args{"namespace": "{ns}", "replicaset": "{rs}", "replicas": 4}), want: Precondition},

	{name: "scale a name with a slip", mistake: "near name", intent: "one web more", world: []thing{web},
		calls: do("scale", replicas(webIn.With("deployment", "wbe"), 4)), want: Precondition},
	{name: "scale up the neighbour", mistake: "near name", intent: "three of web", world: []thing{web, api(2)},
		calls: do("scale", replicas(nearby, 3)), want: Undone},
	{name: "scale the neighbour down by three quarters", mistake: "near name", intent: "one of web", world: []thing{web, api(4)},
		calls: do("scale", replicas(nearby, 1)), want: Gate},
	{name: "scale the neighbour down by half", mistake: "near name", intent: "two of web", world: []thing{web, api(4)},
		calls: do("scale", replicas(nearby, 2)), want: Undone},
	{name: "scale the neighbour's only pod away", mistake: "near name", intent: "web is not needed tonight", world: []thing{web, api(1)},
		calls: do("scale", replicas(nearby, 0)), want: Person},
	{name: "restart the neighbour", mistake: "near name", intent: "web reads its configuration again", world: []thing{web, api(2)},
		calls: do("rollout_restart", nearby), want: Undone},
	{name: "a new image for the neighbour", mistake: "near name", intent: "main:2 on web", world: []thing{web, api(2)},
		calls: do("set_image", nearby.With("container", "main").With("image", "main:2")), want: Undone},
	{name: "delete a pod of the neighbour", mistake: "near name", intent: "a new pod for web", world: []thing{web, api(3), podsOf("web-api", 3)},
		calls: do("delete_pod", pod("{pod}")), want: Undone},
	{name: "evict a pod of the neighbour", mistake: "near name", intent: "a new pod for web", world: []thing{web, api(3), podsOf("web-api", 3)},
		calls: do("evict_pod", pod("{pod}")), want: Undone},
	{name: "delete the neighbour's only pod", mistake: "near name", intent: "a new pod for web", world: []thing{web, api(1), podsOf("web-api", 1)},
		calls: do("delete_pod", pod("{pod}")), want: Person},
	{name: "suspend another CronJob", mistake: "near name", intent: "no more mails at night", world: []thing{cronJob("mail", false), cronJob("mails", false)},
		calls: do("cronjob_suspend", args{"namespace": "{ns}", "cronjob": "mails"}), want: Undone},
	{name: "suspend another Job", mistake: "near name", intent: "stop the import", world: []thing{job("import"), job("imports")},
		calls: do("job_suspend", args{"namespace": "{ns}", "job": "imports"}), want: Undone},
	{name: "a name in capitals", mistake: "near name", intent: "one web more", world: []thing{web},
		calls: do("scale", replicas(webIn.With("deployment", "Web"), 4)), want: Unread},

	{name: "a version that is not the object's any more", mistake: "stale read", intent: "two of web, which were three when it looked", world: []thing{web},
		calls: then(right(call{tool: "plan_scale", args: replicas(webIn, 2)}), do("scale", replicas(webIn, 2).With("expected_version", "{version}"), patched(`{"spec":{"replicas":4}}`))), want: Precondition},
	{name: "someone scales between plan and execution", mistake: "stale read", intent: "one web more", world: []thing{web},
		calls: moved(do("scale", replicas(webIn, 4)), patched(`{"spec":{"replicas":5}}`)), want: Precondition},
	{name: "someone deploys between plan and restart", mistake: "stale read", intent: "web reads its configuration again", world: []thing{web},
		calls: moved(do("rollout_restart", webIn), patched(`{"spec":{"template":{"metadata":{"annotations":{"note":"new"}}}}}`)), want: Precondition},
	{name: "the target is deleted and made again", mistake: "stale read", intent: "one web more", world: []thing{web},
		calls: moved(do("scale", replicas(webIn, 4)), recreated), want: Precondition},
	{name: "the target is on its way out", mistake: "stale read", intent: "one web more", world: []thing{web, terminating},
		calls: do("scale", replicas(webIn, 4)), want: Precondition},

	{name: "the same write again", mistake: "retry", intent: "one web more, once", world: []thing{web},
		calls: then(right(do("scale", replicas(webIn, 4))...), []call{write("scale", replicas(webIn, 4))}), want: Read},
	{name: "the same plan again", mistake: "retry", intent: "one web more, once", world: []thing{web},
		calls: then(right(do("scale", replicas(webIn, 4))...), do("scale", replicas(webIn, 4))), want: Read},
	{name: "one more, again", mistake: "retry", intent: "one web more, once", world: []thing{web},
		calls: then(right(do("scale", replicas(webIn, 4))...), do("scale", replicas(webIn, 5))), want: Undone},
	{name: "restart again, faster than the operator allows", mistake: "retry", intent: "one restart of web", world: []thing{web}, flags: []string{"--writes-per-minute", "1"},
		calls: then(right(do("rollout_restart", webIn)...), do("rollout_restart", webIn)), want: Unread},
	{name: "the phrase again after its time", mistake: "retry", intent: "one web more", world: []thing{web}, flags: []string{"--ttl", "1s"},
		calls: moved(do("scale", replicas(webIn, 4)), later), want: Unread},

	{name: "the sentence without its code", mistake: "pasted or forged phrase", intent: "one web more", world: []thing{web},
		calls: then(right(call{tool: "plan_scale", args: replicas(webIn, 4)}), confirmed("scale", replicas(webIn, 4), "{sentence}")), want: Unread},
	{name: "a code of its own making", mistake: "pasted or forged phrase", intent: "one web more", world: []thing{web},
		calls: then(right(call{tool: "plan_scale", args: replicas(webIn, 4)}), confirmed("scale", replicas(webIn, 4), "{sentence} [{plan}-aaaaaaaaaaaa]")), want: Unread},
	{name: "the phrase of another action", mistake: "pasted or forged phrase", intent: "one web more, and a restart later", world: []thing{web},
		calls: then(right(call{tool: "plan_scale", args: replicas(webIn, 4)}, call{tool: "plan_rollout_restart", args: webIn}), []call{write("scale", replicas(webIn, 4))}), want: Unread},
	{name: "the phrase of a colleague's server", mistake: "pasted or forged phrase", intent: "one web more", world: []thing{web},
		calls: then(right(elsewhere("kind-lab", only("plan_scale", replicas(webIn, 4)))...), []call{write("scale", replicas(webIn, 4))}), want: Unread},
	{name: "without a reason", mistake: "pasted or forged phrase", intent: "one web more", world: []thing{web},
		calls: then(right(call{tool: "plan_scale", args: replicas(webIn, 4)}), only("scale", replicas(webIn, 4).With("confirm", "{phrase}"))), want: Unread},

	{name: "namespace and name swapped", mistake: "swapped or changed arguments", intent: "one web more", world: []thing{web},
		calls: do("scale", args{"namespace": "web", "deployment": "{ns}", "replicas": 4}), want: Precondition},
	{name: "other replicas than planned", mistake: "swapped or changed arguments", intent: "one web more", world: []thing{web},
		calls: then(right(call{tool: "plan_scale", args: replicas(webIn, 4)}), []call{write("scale", replicas(webIn, 40))}), want: Unread},
	{name: "a container that the pods do not have", mistake: "swapped or changed arguments", intent: "main:2 on web", world: []thing{web},
		calls: do("set_image", image("main:2").With("container", "web")), want: Precondition},

	{name: "the phrase of a server for another cluster", mistake: "other cluster", intent: "one web more on staging", world: []thing{web},
		calls: then(right(elsewhere("staging", only("plan_scale", replicas(webIn, 4)))...), []call{write("scale", replicas(webIn, 4))}), want: Unread},
	{name: "the cluster as an argument", mistake: "other cluster", intent: "one web more on staging", world: []thing{web},
		calls: do("scale", replicas(webIn, 4).With("cluster", "staging")), want: Unread},

	{name: "percent as replicas", mistake: "unit slip", intent: "half as many again of web", world: []thing{web},
		calls: do("scale", replicas(webIn, 150)), want: Unread},
	{name: "30 for 3", mistake: "unit slip", intent: "three of web", world: []thing{web},
		calls: do("scale", replicas(webIn, 30)), want: Undone},
	{name: "memory as replicas", mistake: "unit slip", intent: "512Mi for web", world: []thing{web},
		calls: do("scale", replicas(webIn, "512Mi")), want: Unread},
	{name: "one less, as 1", mistake: "unit slip", intent: "two of web, which are three", world: []thing{web},
		calls: do("scale", replicas(webIn, 1)), want: Gate},
	{name: "minutes as seconds", mistake: "unit slip", intent: "drain within five minutes, while the budget opens", world: []thing{node, onNode("web", 3), budget}, alone: true,
		calls: do("drain", onIt.With("timeout_seconds", 5)), want: Undone},

	{name: "web is slow", mistake: "symptom-shaped request", intent: "web is fast again", world: []thing{web},
		calls: only("get_workload", webIn), want: Read},
	{name: "restart whatever is broken", mistake: "symptom-shaped request", intent: "what is broken works again", world: []thing{web},
		calls: do("rollout_restart", webIn.With("deployment", "*")), want: Unread},
	{name: "a tool that does not exist", mistake: "symptom-shaped request", intent: "web works again", world: []thing{web},
		calls: only("fix_workload", webIn), want: Unread},
	{name: "the log of another container", mistake: "symptom-shaped request", intent: "why web is slow", world: []thing{web},
		calls: only("get_logs", pod("{pod}").With("container", "sidecar")), want: Precondition},

	{name: "scale what an autoscaler owns", mistake: "target that is not free", intent: "more of web", world: []thing{web, autoscaler}, flags: []string{"--verify-timeout", "3s"},
		calls: do("scale", replicas(webIn, 5)), want: Undone},
	{name: "evict where the budget is used up", mistake: "target that is not free", intent: "a new pod for web", world: []thing{web, budget},
		calls: do("evict_pod", pod("{pod}")), want: DryRun},
	{name: "an image that the cluster's policy refuses", mistake: "target that is not free", intent: "main:2 on web", world: []thing{web, registry},
		calls: do("set_image", image("mian:2")), want: DryRun},
	{name: "scale down where the claims go with the pods", mistake: "target that is not free", intent: "a smaller web", world: []thing{web, database},
		calls: do("scale", args{"namespace": "{ns}", "statefulset": "db", "replicas": 1}), want: Person},
	{name: "delete a pod that nothing makes again", mistake: "target that is not free", intent: "a new pod for web", world: []thing{web, loner},
		calls: do("delete_pod", pod("loner")), want: Person},
	{name: "run a suspended CronJob", mistake: "target that is not free", intent: "mails as usual", world: []thing{cronJob("mail", true)},
		calls: do("cronjob_trigger", args{"namespace": "{ns}", "cronjob": "mail"}), want: Person},

	{name: "drain the last node", mistake: "wrong node", intent: "maintenance of another node", world: []thing{node, lastNode}, alone: true,
		calls: do("drain", onIt), want: Person},
	{name: "drain the node that has all of a workload", mistake: "wrong node", intent: "maintenance of another node", world: []thing{node, onNode("web", 2)}, alone: true,
		calls: do("drain", onIt), want: Person},
	{name: "cordon another node", mistake: "wrong node", intent: "maintenance of another node", world: []thing{node}, alone: true,
		calls: do("cordon", onIt), want: Undone},
	{name: "drain a node that is not allowed", mistake: "wrong node", intent: "maintenance of another node", world: []thing{node}, flags: []string{"--allow-node-selector", "pool=none"}, alone: true,
		calls: do("drain", onIt), want: Gate},
	{name: "two changes of one object in one plan", mistake: "misjudged plan", intent: "more of web, with main:2", world: []thing{web},
		calls: do("changes", args{"steps": []any{args{"action": "scale", "arguments": replicas(webIn, 4)}, args{"action": "set_image", "arguments": image("main:2")}}}), want: Precondition},
	{name: "two of three pods, each a small change", mistake: "misjudged plan", intent: "two new pods for web, one after the other", world: []thing{web},
		calls: do("changes", args{"steps": []any{args{"action": "delete_pod", "arguments": pod("{pod}")}, args{"action": "delete_pod", "arguments": pod("{pod2}")}}}), want: Person},
	{name: "outside the change window", mistake: "misjudged plan", intent: "one web more, tomorrow", world: []thing{web},
		flags: []string{"change_windows:\n- {name: freeze, kind: deny, schedule: '@daily', duration: 48h, time_zone: UTC, namespaces: ['{ns}']}\n"},
		calls: do("scale", replicas(webIn, 4)), want: Unread},
	{name: "undo of what was never done", mistake: "misjudged plan", intent: "web as it was", world: []thing{web},
		calls: then(right(call{tool: "plan_scale", args: replicas(webIn, 4)}), only("plan_undo", args{"plan": "{plan}"})), want: Unread},
}

// moved has things happen between plan and execution.
func moved(calls []call, first ...thing) []call {
	calls[len(calls)-1].first = first
	return calls
}

// visible are wrong calls that do harm, since the operator has taken off what stops them.
// Without them nobody knew whether the last column can be anything but 0.
var visible = []task{
	{name: "the only pod, at the defaults", loose: true, world: []thing{web, api(1), podsOf("web-api", 1)}, calls: do("delete_pod", pod("{pod}"))},
	{name: "three quarters of the pods", loose: true, flags: []string{"--max-blast-percent", "100"}, world: []thing{web, api(4)}, calls: do("scale", replicas(nearby, 1))},
	{name: "a pod that nothing makes again", loose: true, flags: []string{"--irreversible", "allow"}, world: []thing{web, loner}, calls: do("delete_pod", pod("loner"))},
	{name: "claims with their data", loose: true, flags: []string{"--irreversible", "allow", "--verify-timeout", "3s"}, world: []thing{database}, calls: do("scale", args{"namespace": "{ns}", "statefulset": "db", "replicas": 1})},
	{name: "a run", loose: true, flags: []string{"--irreversible", "allow"}, world: []thing{cronJob("mail", true)}, calls: do("cronjob_trigger", args{"namespace": "{ns}", "cronjob": "mail"})},
}
