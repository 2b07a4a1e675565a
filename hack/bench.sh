#!/usr/bin/env bash
# The benchmark: one run, one table. Every line is held against a baseline that takes turns
# with it in the same run, on the local control plane. It fails where a bar is missed
# without a known reason; test/bench says what is measured and how.
#
#   hack/bench.sh [--json FILE] [--each 8s] [--run REGEXP]
#   hack/bench.sh --soak 30m       plans, executions, replays and reads at a steady rate,
#                                  and what the server holds meanwhile
#
# Beside the control plane it needs kubectl, which it builds from the same modules, and
# kubernetes-mcp-server, which npm fetches once into the same cache folder. Without node
# and npm (apt-get install nodejs npm) the lines that compare with it are not measured,
# and the table says so. About four minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v go >/dev/null || { echo "hack/bench.sh: Go 1.26 or newer is needed: https://go.dev/dl" >&2; exit 1; }
export GOWORK=off GOFLAGS=-mod=readonly

KUBEBUILDER_ASSETS=$(hack/controlplane/build.sh)
export KUBEBUILDER_ASSETS
args=()
case " $* " in
*" --soak"*) ;; # which compares with nobody
*)
  args+=(--kubectl "$(hack/controlplane/build.sh kubectl)/kubectl")
  peer=kubernetes-mcp-server version=0.0.67
  dir="${XDG_CACHE_HOME:-$HOME/.cache}/kube-write-mcp/$peer-$version"
  case $(uname -m) in x86_64) arch=amd64 ;; aarch64 | arm64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
  system=$(uname -s | tr '[:upper:]' '[:lower:]')
  command="$dir/node_modules/.bin/$peer"
  program="$dir/node_modules/$peer-$system-$arch/bin/$peer-$system-$arch"
  if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
    args+=(--no-peer "there is no npm here: apt-get install nodejs npm")
  elif [ -x "$program" ] || timeout 300 npm install --silent --no-audit --no-fund --prefix "$dir" "$peer@$version" >&2; then
    args+=(--peer "$command" --peer-binary "$program")
  else
    args+=(--no-peer "npm could not fetch it: npm install --prefix $dir $peer@$version")
  fi
  ;;
esac
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$tmp/kube-write-mcp" ./cmd/kube-write-mcp # as it is shipped
go build -o "$tmp/bench" ./test/bench
"$tmp/bench" --binary "$tmp/kube-write-mcp" "${args[@]}" "$@"
