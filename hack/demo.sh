#!/usr/bin/env bash
# The whole story on a real API server: plan, a guessed phrase, a protected namespace,
# one write, its replay, a step too large, a cluster policy, the audit lines.
#
#   hack/demo.sh                  on a local control plane (built on first use)
#   hack/demo.sh --keep           the same, and leaves the cluster up until Ctrl-C
#   hack/demo.sh --context NAME   in a new namespace of your own cluster, no build;
#                                 without the policy step, and it cleans up
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v go >/dev/null || { echo "hack/demo.sh: Go 1.26 or newer is needed: https://go.dev/dl" >&2; exit 1; }

own=
for arg in "$@"; do case $arg in --context | --context=*) own=1 ;; esac; done
if [ -z "$own" ]; then
  KUBEBUILDER_ASSETS=$(hack/controlplane/build.sh)
  export KUBEBUILDER_ASSETS
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
CGO_ENABLED=0 go build -o "$tmp/kube-write-mcp" ./cmd/kube-write-mcp
go build -o "$tmp/demo" ./hack/demo
"$tmp/demo" --binary "$tmp/kube-write-mcp" "$@"
