#!/usr/bin/env bash
# Every test, on a real API server, with all the set-up that they need. The first run
# builds the local control plane (about 17 minutes of two cores); after that it is there.
#
#   hack/test.sh                        everything
#   hack/test.sh -run Drift ./test/...  what go test is given
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf 'test: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

command -v go >/dev/null || die "Go 1.26 or newer is needed: https://go.dev/dl"
if ! command -v "$(go env CC)" >/dev/null; then # the race detector needs cgo
  command -v apt-get >/dev/null || die "a C compiler is needed for the race detector: install gcc or clang"
  say "installing gcc for the race detector"
  apt-get update -qq >&2 && apt-get install -y -qq gcc libc6-dev >&2
fi
KUBEBUILDER_ASSETS=$(hack/controlplane/build.sh)
export KUBEBUILDER_ASSETS
SECONDS=0

if [ $# -gt 0 ]; then
  exec env CGO_ENABLED=1 go test -race -timeout 15m "$@"
fi

say "formatting, module files, vet"
unformatted=$(gofmt -l actions cmd hack pkg test)
[ -z "$unformatted" ] || die "not formatted, run gofmt -w on: $unformatted"
for module in . hack/controlplane hack/controlplane/kwok; do
  (cd "$module" && GOWORK=off go mod tidy -diff >/dev/null) || die "go.mod or go.sum of $module is not tidy: run go mod tidy there"
done
go vet ./...

say "the systems it is released for"
for target in darwin/arm64 windows/amd64; do
  CGO_ENABLED=0 GOOS=${target%/*} GOARCH=${target#*/} go build -o /dev/null ./cmd/...
done

say "tests, with the race detector"
CGO_ENABLED=1 go test -race -p 2 -timeout 15m ./...
say "all passed in ${SECONDS}s, beside the control plane's build"
