#!/usr/bin/env bash
# The torture: several processes of the real program on one folder and a real API server,
# with seeded faults between them, killed and started again at random. A watch of every
# version of every target is the truth, and I1 to I10 are checked from outside. It prints a
# table and the seed, and fails on any violation. A small one is part of hack/test.sh.
#
#   hack/torture.sh [--seed N] [--faults N] [--unknown N]
#
# The seed decides what is done to which plan; when things meet, it does not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v go >/dev/null || { echo "hack/torture.sh: Go 1.26 or newer is needed: https://go.dev/dl" >&2; exit 1; }
export GOWORK=off GOFLAGS=-mod=readonly

seed=0 faults=500 unknown=200
while [ $# -gt 0 ]; do
  case $1 in
    --seed | --faults | --unknown) [ $# -gt 1 ] || { echo "hack/torture.sh: $1 needs a number" >&2; exit 2; } ;;&
    --seed) seed=$2 ;;
    --faults) faults=$2 ;;
    --unknown) unknown=$2 ;;
    *) echo "usage: hack/torture.sh [--seed N] [--faults N] [--unknown N]" >&2; exit 2 ;;
  esac
  shift 2
done

KUBEBUILDER_ASSETS=$(hack/controlplane/build.sh)
export KUBEBUILDER_ASSETS
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go test -c -o "$tmp/torture.test" ./test/torture
cd test/torture
"$tmp/torture.test" -test.run '^TestTorture$' -test.timeout 2h -seed "$seed" -faults "$faults" -unknown "$unknown"
