#!/usr/bin/env bash
# Regenerates the objects of the Helm chart from the program.
#
#   hack/update-chart.sh                                as it is committed
#   hack/update-chart.sh --allow-write --policy FILE    for a policy of your own
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
go run ./cmd/kube-write-mcp manifests --namespace the-namespace --service-account the-account "$@" >"$tmp"
cat "$tmp" >hack/deploy/kube-write-mcp/objects.yaml
