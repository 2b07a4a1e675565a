#!/usr/bin/env bash
# Builds the local control plane (etcd, kube-apiserver, kube-controller-manager,
# kube-scheduler, kwok and kwok's Stage documents) from the Go modules pinned beside
# this script, and prints the folder for KUBEBUILDER_ASSETS on standard output.
# What is there already is kept. Safe to run twice, and in parallel.
# About 17 minutes of two cores the first time. An assets folder that
# KUBEBUILDER_ASSETS already names is used as it is.
#
#   hack/controlplane/build.sh            the control plane
#   hack/controlplane/build.sh kubectl    kubectl alone, into the same folder
set -euo pipefail

programs=(etcd kube-apiserver kube-controller-manager kube-scheduler kwok kwok-stages.yaml)
say() { printf 'controlplane: %s\n' "$*" >&2; }

missing() { # the first program that the folder $1 lacks, if any
  local p
  for p in "${programs[@]}"; do [ -s "$1/$p" ] || { printf '%s' "$p"; return; }; done
}

if [ "${1-}" = kubectl ]; then
  programs=(kubectl)
elif [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  lacks=$(missing "$KUBEBUILDER_ASSETS")
  [ -z "$lacks" ] || { say "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS has no $lacks; unset it to build one here"; exit 1; }
  printf '%s\n' "$KUBEBUILDER_ASSETS"
  exit 0
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here"
command -v go >/dev/null || { say "Go 1.26 or newer is needed: https://go.dev/dl"; exit 1; }
export GOWORK=off GOFLAGS=-mod=readonly
version=$(go list -m -f "{{.Version}}" k8s.io/kubernetes)
dir="${XDG_CACHE_HOME:-$HOME/.cache}/kube-write-mcp/controlplane/$version"
mkdir -p "$dir"
[ -n "$(missing "$dir")" ] || { printf '%s\n' "$dir"; exit 0; }

# One builder at a time, where the system has flock; elsewhere two builders waste
# each other's time, and the rename at the end keeps the result whole all the same.
if command -v flock >/dev/null; then
  exec 9>"$dir/.lock"
  flock -n 9 || { say "another build is running; waiting for it"; flock 9; }
fi
tmp=$(mktemp -d "$dir/.build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

major=${version#v}; minor=${major#*.}; major=${major%%.*}; minor=${minor%%.*}
stamp=k8s.io/component-base/version
kubeflags="-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=$major -X $stamp.gitMinor=$minor -X $stamp.gitCommit=local -X $stamp.gitTreeState=clean"

build() { # build NAME PACKAGE LDFLAGS, in the current module
  local name=$1 package=$2 flags=$3
  [ ! -s "$dir/$name" ] || return 0
  say "building $name ..."
  # -v names a package as it is compiled; the count shows that it is alive.
  CGO_ENABLED=0 go build -v -trimpath -buildvcs=false -ldflags "$flags" -o "$tmp/$name" "$package" \
    > >(cat >&2) 2> >(awk -v n="$name" '/^(go: downloading|[a-z0-9.\/_-]+$)/ { c++; if (c % 100 == 0) { printf "controlplane: %s: %d packages\n", n, c; fflush() }; next } { print; fflush() }' >&2)
  mv -f "$tmp/$name" "$dir/$name"
  say "$name is ready after ${SECONDS}s"
}

if [ "${1-}" = kubectl ]; then
  build kubectl k8s.io/kubernetes/cmd/kubectl "$kubeflags"
  printf '%s\n' "$dir"
  exit 0
fi
say "building into $dir (about 17 minutes on two cores the first time, then cached)"
build etcd go.etcd.io/etcd/server/v3 "-s -w"
build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver "$kubeflags"
build kube-controller-manager k8s.io/kubernetes/cmd/kube-controller-manager "$kubeflags"
build kube-scheduler k8s.io/kubernetes/cmd/kube-scheduler "$kubeflags"
cd "$here/kwok"
build kwok sigs.k8s.io/kwok/cmd/kwok "-s -w"

# kwok does nothing without Stage documents: those of its own module, for nodes that
# are ready at once and pods that run, complete and go.
if [ ! -s "$dir/kwok-stages.yaml" ]; then
  stages=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage
  for f in "$stages"/node/fast/node-initialize.yaml "$stages"/node/heartbeat-with-lease/*with-lease.yaml \
    "$stages"/pod/fast/pod-{ready,complete,delete}.yaml; do
    cat "$f"
    printf '\n---\n'
  done >"$tmp/kwok-stages.yaml"
  mv -f "$tmp/kwok-stages.yaml" "$dir/kwok-stages.yaml"
fi
printf '%s\n' "$dir"
