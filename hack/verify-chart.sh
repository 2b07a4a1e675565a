#!/usr/bin/env bash
# Lints the Helm chart, and fails where its default rendering is not what the program
# prints.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/tools"
GOWORK=off GOFLAGS=-mod=readonly go test ./chart
