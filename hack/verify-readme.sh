#!/usr/bin/env bash
# Fails when README.md is not what hack/update-readme.sh would write.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cp README.md "$tmp/README.md"
hack/update-readme.sh "$tmp/README.md"
diff -u README.md "$tmp/README.md" || { echo "README.md is out of step; run hack/update-readme.sh" >&2; exit 1; }
