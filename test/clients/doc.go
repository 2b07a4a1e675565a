// Package clients runs the shipped program under the clients that people use, as their
// makers ship them: Claude Code with a scripted model, Codex, the TypeScript SDK, the
// inspector and the conformance suite. hack/clients.sh fetches them and runs it; its tests
// have the build tag clients, since the clients are too large to be fetched for hack/test.sh.
package clients
