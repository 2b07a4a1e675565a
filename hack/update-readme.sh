#!/usr/bin/env bash
# Regenerates README.md: the tables from the program, the demo from a run of it.
#
#   hack/update-readme.sh          README.md
#   hack/update-readme.sh FILE     a copy of it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readme=${1:-README.md}
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
hack/demo.sh >"$tmp"
go run ./hack/readme --demo "$tmp" "$readme"
