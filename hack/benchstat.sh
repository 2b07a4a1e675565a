#!/usr/bin/env bash
# Compares the Go benchmarks of the inner loops (decode, blast, digest, phrase, fold) at
# another commit with those of this tree, by benchstat. The two take turns.
#
#   hack/benchstat.sh OLD_REF [COUNT]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -ge 1 ] || { echo "usage: hack/benchstat.sh OLD_REF [COUNT]" >&2; exit 2; }
export GOWORK=off GOFLAGS=-mod=readonly
packages=(./pkg/action ./pkg/blast ./pkg/plan ./pkg/journal)
loops='^Benchmark(Decode|Drain|Digest|Sign|Confirms|Fold)$'
tmp=$(mktemp -d)
trap 'git worktree remove --force "$tmp/old" 2>/dev/null || true; rm -rf "$tmp"' EXIT
git worktree add --quiet --detach "$tmp/old" "$1"
measure() { # measure FOLDER FILE
  (cd "$1" && go test -run '^$' -bench "$loops" -benchmem -benchtime 0.3s "${packages[@]}") >>"$2"
}
for ((n = 0; n < ${2:-6}; n++)); do
  measure "$tmp/old" "$tmp/old.txt"
  measure . "$tmp/new.txt"
done
cd hack/tools && go tool benchstat "old=$tmp/old.txt" "new=$tmp/new.txt"
