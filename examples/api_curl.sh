#!/usr/bin/env bash
# Draw a prompt with one method over plain HTTP: examples/api_curl.sh [URL] [PROMPT] [METHOD] [SEED]
# Writes picture.png and prints the line of JSON that the run ends with. Needs curl and a POSIX sed.
set -euo pipefail
url="${1:-http://127.0.0.1:7860}"
prompt="${2:-three red round lanterns over a lake at dusk}"
method="${3:-lantern++}"
seed="${4:-7}"

# The prompt goes into JSON: its backslashes and quotes are escaped.
escaped="$(printf '%s' "$prompt" | sed 's/\\/\\\\/g; s/"/\\"/g')"
asked="$(curl -sS "${url%/}/gradio_api/call/v2/draw" -H 'Content-Type: application/json' \
  -d "{\"prompt\": \"$escaped\", \"method\": \"$method\", \"seed\": $seed}")"
event="$(printf '%s' "$asked" | sed -nE 's/.*"event_id": *"([^"]+)".*/\1/p')"
[ -n "$event" ] || { printf '%s\n' "$asked" >&2; exit 1; }

# A stream of events: progress ("generating") as it goes, the result ("complete") or a sentence ("error") at the end.
answer="$(curl -sSN "${url%/}/gradio_api/call/draw/$event" | sed -n 's/^data: //p' | tail -n 1)"
picture="$(printf '%s' "$answer" | sed -nE 's/^[^}]*"url": *"([^"]+)".*/\1/p')"
[ -n "$picture" ] || { printf '%s\n' "$answer" >&2; exit 1; }
curl -sS --fail -o picture.png "$picture"
printf '%s\n' "$answer"
