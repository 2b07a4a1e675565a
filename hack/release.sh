#!/usr/bin/env bash
# Builds a release into dist/: archives, MCPB bundles, npm packages, a registry entry, an
# OCI image, a bill of materials and SHA256SUMS. From one commit and one version of Go it
# makes the same bytes on any machine.
#
#   hack/release.sh VERSION           VERSION as the files in hack/packaging have it
#   hack/release.sh --check VERSION   builds it a second time, from a clone elsewhere, and
#                                     compares; where node is, tries bundle and npm packages
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf 'release: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
check=
[ "${1-}" != --check ] || { check=1; shift; }
[ $# = 1 ] || die "usage: hack/release.sh [--check] VERSION"
version=${1#v}
[ -z "$(git status --porcelain)" ] || die "the tree has changes that are in no commit: git status"
export GOWORK=off GOFLAGS=-mod=readonly
root=$PWD dist=$PWD/dist

release() { # root, folder to fill
  (cd "$1/hack/tools" && go run ./release --root "$1" --out "$2" "$version")
}

rm -rf "$dist"
release "$root" "$dist"
say "$(du -sh "$dist" | cut -f1) in dist/"
[ "$check" ] || exit 0

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
say "the same from a clone in $tmp"
git clone -q "$root" "$tmp/clone"
git -C "$tmp/clone" checkout -q "$(git rev-parse HEAD)"
release "$tmp/clone" "$tmp/dist"
diff "$dist/SHA256SUMS" "$tmp/dist/SHA256SUMS" >&2 || die "two builds differ"

system=$(node -p 'process.platform + "-" + process.arch' 2>/dev/null) || {
  say "the same twice; without node neither the bundle nor the npm packages were tried"
  exit 0
}
want="v$version+$(git rev-parse --short=12 HEAD)"

say "the npm packages, on $system"
mkdir "$tmp/npm"
echo '{}' >"$tmp/npm/package.json"
npm install --prefix "$tmp/npm" --offline --ignore-scripts --no-audit --no-fund --silent \
  "$dist/kube-write-mcp-npm-$version.tgz" "$dist/kube-write-mcp-npm-$system-$version.tgz"
got=$("$tmp/npm/node_modules/.bin/kube-write-mcp" version)
[ "$got" = "$want" ] || die "the launcher says $got, not $want"

say "the bundles, with the client's own tool"
npm install --prefix "$tmp/mcpb" --ignore-scripts --no-audit --no-fund --silent @anthropic-ai/mcpb@2.1.2
for bundle in "$dist"/*.mcpb; do
  to=$tmp/unpacked/$(basename "$bundle")
  "$tmp/mcpb/node_modules/.bin/mcpb" unpack "$bundle" "$to" >/dev/null
  "$tmp/mcpb/node_modules/.bin/mcpb" validate "$to/manifest.json" >&2
done
say "the same twice; npm packages and bundles work"
