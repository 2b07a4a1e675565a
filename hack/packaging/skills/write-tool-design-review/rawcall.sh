#!/usr/bin/env bash
# One request to an MCP server over stdio, with no agent and no SDK in between.
#
#   rawcall.sh METHOD PARAMS SERVER [ARGUMENT...]
#   rawcall.sh tools/list '{}' kube-write-mcp serve --allow-write
#   rawcall.sh tools/call '{"name":"scale","arguments":{}}' kube-write-mcp serve --allow-write
#
# Starts the server, shakes hands, sends the request, prints the answer's line, ends the
# server. With RAWCALL_LOG=FILE the request and the answer are appended there with the time.
# Waits RAWCALL_TIMEOUT seconds (120) for each answer. Exit 1: no answer came.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '4,6s/^# *//p' "$0" >&2; exit 2; }
method=$1 params=$2
shift 2

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkfifo "$dir/in" "$dir/out"
"$@" <"$dir/in" >"$dir/out" 2>"$dir/err" &
server=$!
exec 3>"$dir/in" 4<"$dir/out"

# answer ID prints the line that answers the request ID; all others are notifications.
answer() {
  local line
  while IFS= read -r -t "${RAWCALL_TIMEOUT:-120}" line <&4; do
    case $line in *"\"id\":\"$1\""*) printf '%s\n' "$line"; return ;; esac
  done
  echo "rawcall.sh: no answer to $1; the server said:" >&2
  cat "$dir/err" >&2
  kill "$server" 2>/dev/null || true
  exit 1
}
log() { [ -z "${RAWCALL_LOG:-}" ] || printf '%s %s %s\n' "$(date -u +%FT%TZ)" "$1" "$2" >>"$RAWCALL_LOG"; }

trap '' PIPE # a server that has ended is reported by answer
echo '{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"rawcall","version":"1"}}}' >&3 2>/dev/null || true
answer hello >/dev/null
echo '{"jsonrpc":"2.0","method":"notifications/initialized"}' >&3
request="{\"jsonrpc\":\"2.0\",\"id\":\"review\",\"method\":\"$method\",\"params\":$params}"
log '->' "$request"
printf '%s\n' "$request" >&3
got=$(answer review)
log '<-' "$got"
printf '%s\n' "$got"
exec 3>&- # the end of its input ends the server
wait "$server" || true
