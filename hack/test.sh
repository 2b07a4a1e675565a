#!/usr/bin/env bash
# Every test, on a real API server, with all the set-up that they need. The first run
# builds the local control plane (about 17 minutes of two cores); after that it is there.
#
#   hack/test.sh                        everything
#   hack/test.sh -run Drift ./test/...  go test with these arguments, and nothing else
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf 'test: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
trap 'code=$?; say "$([ $code = 0 ] && echo passed || echo FAILED) after $((SECONDS / 60))m$((SECONDS % 60))s"' EXIT
export GOWORK=off GOFLAGS=-mod=readonly

command -v go >/dev/null || die "Go 1.26 or newer is needed: https://go.dev/dl"
if ! command -v "$(go env CC)" >/dev/null; then # the race detector needs cgo
  say "installing gcc for the race detector"
  { apt-get update -qq && apt-get install -y -qq gcc libc6-dev; } >&2 ||
    die "the race detector needs a C compiler: apt-get install gcc libc6-dev, or xcode-select --install"
fi

if [ $# = 0 ]; then
  say "formatting, module files, vet"
  unformatted=$(gofmt -l actions cmd hack pkg test)
  [ -z "$unformatted" ] || die "not formatted, run gofmt -w on: $unformatted"
  go mod tidy -diff || die "go.mod or go.sum is not tidy: run go mod tidy"
  go mod verify >&2
  for module in hack/controlplane hack/controlplane/kwok; do # only built from, never tested
    (cd "$module" && go list -m all >/dev/null) || die "the build list of $module is not complete"
  done
  go vet ./...
  go vet -tags clients ./test/clients # which only hack/clients.sh runs
  (cd hack/tools && go vet ./...)

  say "the Helm chart"
  hack/verify-chart.sh >&2

  say "the systems it is released for"
  for target in darwin/arm64 windows/amd64; do
    CGO_ENABLED=0 GOOS=${target%/*} GOARCH=${target#*/} go build -o /dev/null ./cmd/... || die "it does not build for $target"
  done
fi

KUBEBUILDER_ASSETS=$(hack/controlplane/build.sh)
export KUBEBUILDER_ASSETS
case " $*" in *" ./"* | *" github.com/"*) ;; *) set -- "$@" ./... ;; esac # no package named: all
say "go test -race $*"
CGO_ENABLED=1 go test -race -parallel 16 -p 2 -timeout 15m "$@"
