#!/usr/bin/env bash
# Fails when README.md and hack/docs are not what hack/update-readme.sh would write.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/hack"
cp README.md "$tmp/README.md"
cp -r hack/docs "$tmp/hack/docs"
hack/update-readme.sh "$tmp"
{ diff -u README.md "$tmp/README.md" && diff -ru hack/docs "$tmp/hack/docs"; } || { echo "README.md or hack/docs is out of step; run hack/update-readme.sh" >&2; exit 1; }
