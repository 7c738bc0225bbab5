#!/usr/bin/env bash
# Every endpoint of a running demo once, with curl: examples/endpoints.sh [URL]
set -euo pipefail
base="${1:-http://127.0.0.1:7860}"
base="${base%/}/gradio_api/call"

# call NAME PARAMETERS: ask, then read the stream of events and print the data of the last.
call() {
  local asked event
  asked="$(curl -sS "$base/v2/$1" -H 'Content-Type: application/json' -d "$2")"
  event="$(printf '%s' "$asked" | sed -nE 's/.*"event_id": *"([^"]+)".*/\1/p')"
  [ -n "$event" ] || { printf '%s\n' "$asked" >&2; exit 1; }
  curl -sSN "$base/$1/$event" | sed -n 's/^data: //p' | tail -n 1
}

call models '{}'
call draw '{"prompt": "two blue box lanterns at dawn"}'
call compare '{"prompt": "two blue box lanterns at dawn", "methods": ["vanilla", "eagle1"], "seed": 7}'
