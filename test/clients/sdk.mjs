// A client of the TypeScript SDK for sdk_test.go. It reads the calls as JSON-RPC lines on its
// stdin, makes them through the SDK's own API, and writes what the SDK gives for them.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

// package: of npm; mode: the version negotiation of the package that has both eras; person:
// whether there is one to ask; then command, args and env of a server, or url and token.
const o = JSON.parse(process.argv[2]);
const from = createRequire(`${process.env.KUBE_WRITE_CLIENTS}/package.json`);
const old = o.package === '@modelcontextprotocol/sdk';
const { Client } = from(old ? `${o.package}/client/index.js` : o.package);
const { StdioClientTransport } = from(old ? `${o.package}/client/stdio.js` : `${o.package}/stdio`);
const { StreamableHTTPClientTransport } = from(old ? `${o.package}/client/streamableHttp.js` : o.package);

const say = m => process.stdout.write(JSON.stringify({ jsonrpc: '2.0', ...m }) + '\n');
const client = new Client({ name: 'typescript', version: '1' }, {
  capabilities: o.person ? { elicitation: {} } : {},
  ...(old ? {} : { versionNegotiation: { mode: o.mode } }),
});
const asked = new Map();
if (o.person) {
  const schema = old ? from(`${o.package}/types.js`).ElicitRequestSchema : 'elicitation/create';
  client.setRequestHandler(schema, ({ params }) => new Promise((resolve, reject) => {
    const id = `question-${asked.size}`;
    asked.set(id, answer => answer.action ? resolve(answer) : reject(new Error('no form can be shown')));
    say({ id, method: 'elicitation/create', params });
  }));
}
await client.connect(o.url
  ? new StreamableHTTPClientTransport(new URL(o.url), { requestInit: { headers: { Authorization: `Bearer ${o.token}` } } })
  : new StdioClientTransport({ command: o.command, args: o.args, env: o.env, stderr: 'inherit' }));
const { tools } = await client.listTools(); // from now on the SDK validates results

const running = new Map();
const callTool = ({ name, arguments: args, _meta }, options) => {
  const token = _meta?.progressToken;
  if (token) options.onprogress = p => say({ method: 'notifications/progress', params: { ...p, progressToken: token } });
  const params = args === undefined ? { name } : { name, arguments: args };
  return old ? client.callTool(params, undefined, options) : client.callTool(params, options);
};
for await (const line of createInterface({ input: process.stdin })) {
  const m = JSON.parse(line);
  if (m.method === 'notifications/cancelled') {
    running.get(m.params.requestId).abort();
  } else if (m.method === 'tools/list') {
    say({ id: m.id, result: { tools } });
  } else if (m.method === 'tools/call') {
    const abort = new AbortController();
    running.set(m.id, abort);
    callTool(m.params, { signal: abort.signal, timeout: 100_000 }).then(
      result => say({ id: m.id, result }),
      e => say({ id: m.id, error: { code: Number.isInteger(e.code) ? e.code : 0, message: String(e.message ?? e) } }));
  } else {
    asked.get(m.id)(m.result);
  }
}
await client.close();
