#!/usr/bin/env bash
# Regenerates README.md and hack/docs: the tables from the program, the demo from a run of it.
#
#   hack/update-readme.sh          in place
#   hack/update-readme.sh FOLDER   in a copy of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
to=${1:-.}
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
hack/demo.sh >"$tmp"
go run ./hack/readme --demo "$tmp" --to "$to"
