#!/usr/bin/env bash
# Talks to a running server: guesthouse serve smollm2
set -euo pipefail
base=${1:-http://127.0.0.1:8000}

echo "models"
curl -sf "$base/v1/models"
echo; echo "completion"
curl -sf "$base/v1/completions" -H 'content-type: application/json' \
  -d '{"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}'
echo; echo "chat, streamed"
curl -sfN "$base/v1/chat/completions" -H 'content-type: application/json' \
  -d '{"messages": [{"role": "user", "content": "Name three colors."}], "max_tokens": 32, "temperature": 0, "stream": true}'
