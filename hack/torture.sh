#!/usr/bin/env bash
# The torture: several processes of the real program on one folder and a real API server,
# with seeded faults between them, killed and started again at random. A watch of every
# version of every target is the truth, and I1 to I10 are checked from outside. It prints a
# table and the seed, and fails on any violation. A small one is part of hack/test.sh.
#
#   hack/torture.sh [--seed N] [--faults N] [--unknown N]
#   hack/torture.sh --fake [--seed N] [--faults N]   the engine alone, in simulated time,
#                                                    against a fake API server
#
# The seed decides what is done to which plan; when things meet, it does not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v go >/dev/null || { echo "hack/torture.sh: Go 1.26 or newer is needed: https://go.dev/dl" >&2; exit 1; }
export GOWORK=off GOFLAGS=-mod=readonly

usage() { echo "usage: hack/torture.sh [--fake] [--seed N] [--faults N] [--unknown N]" >&2; exit 2; }
seed=0 faults= unknown=200 fake=
while [ $# -gt 0 ]; do
  case $1 in
    --fake) fake=1; shift; continue ;;
    --seed | --faults | --unknown) [[ ${2-} =~ ^[0-9]+$ ]] || usage; declare "${1#--}=$2" ;;
    *) usage ;;
  esac
  shift 2
done

KUBEBUILDER_ASSETS=$(hack/controlplane/build.sh)
export KUBEBUILDER_ASSETS
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go test -c -o "$tmp/torture.test" ./test/torture
cd test/torture
torture() { "$tmp/torture.test" -test.timeout 3h -seed "$seed" "$@"; }
if [ -n "$fake" ]; then
  torture -test.run '^TestSimulated$' -simulated "${faults:-10000}"
else
  torture -test.run '^TestTorture$' -faults "${faults:-500}" -unknown "$unknown"
fi
