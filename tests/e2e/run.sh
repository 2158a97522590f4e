#!/usr/bin/env bash
# Real clients against the real binary: tests/e2e/run.sh target/release/guesthouse
set -euo pipefail
binary=$(realpath "$1")
cd "$(dirname "$0")"
venv=../../target/e2e-venv
if ! "$venv/bin/python" -c 'import openai, httpx, pytest' >/dev/null 2>&1; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt
fi
GUESTHOUSE_BINARY="$binary" exec "$venv/bin/python" -m pytest -q -p no:cacheprovider "${@:2}" .
