#!/usr/bin/env bash
# What needs an NVIDIA GPU: doctor, the tests that are ignored elsewhere, HTTP against a CUDA server, and the figures of
# docs/performance.md. Runs all steps it can and fails at the end if one failed.
#
#   tests/gpu.sh [BINARY] [STEP...]        steps: doctor compare tests http bench start; default: all
#
# It needs no Rust where GPU_TESTS names the test program `numerics`, which may be stripped
# (cargo test --release -p guesthouse-server --test numerics --no-run), and no network where MODEL is a file.
#
#   OUT        where logs and JSON go                    (target/gpu)
#   MODEL      the starter model                         (smollm2)
#   GPU_TESTS  the test program                          (unset: cargo builds and runs it)
#   PYTHON     has httpx, openai and pytest              (target/e2e-venv/bin/python)
#   ACCEPTANCE script that checks a server, --base URL   (unset: tests/e2e)
set -uo pipefail
cd "$(dirname "$0")/.."
binary=$(realpath "${1:-target/release/guesthouse}")
shift || true
steps=${*:-doctor compare tests http bench start}
out=${OUT:-target/gpu}
model=${MODEL:-smollm2}
python=${PYTHON:-target/e2e-venv/bin/python}
mkdir -p "$out"
out=$(realpath "$out")
failed=()

# Runs a command with its output in a log, and remembers a failure.
step() {
  local name=$1 began=$SECONDS
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  if "$@" >"$out/$name.log" 2>&1; then
    echo "ok, $((SECONDS - began)) s"
  else
    failed+=("$name")
    echo "FAILED, $((SECONDS - began)) s; the end of $out/$name.log:"
    tail -n 25 "$out/$name.log"
  fi
}

# A folder with nothing but a published configuration.
shape() {
  mkdir -p "$out/models/$1"
  cp "tests/models/configs/$1.json" "$out/models/$1/config.json"
  echo "$out/models/$1"
}

# A server on a free port, a command with its address, and its end.
served() {
  local log="$out/server-$1.log" flags=$2 base="" pid
  shift 2
  # shellcheck disable=SC2086
  "$binary" serve "$model" --served-model-name smollm2 --port 0 --device cuda $flags >"$log" 2>&1 &
  pid=$!
  for _ in $(seq 1200); do
    base=$(sed -n 's/.*serving on \(http:[^[:space:][:cntrl:]]*\).*/\1/p' "$log" | head -n 1)
    if [ -n "$base" ] || ! kill -0 $pid 2>/dev/null; then break; fi
    sleep 0.1
  done
  if [ -z "$base" ]; then
    tail -n 20 "$log"
    return 1
  fi
  "$@" "$base"
  local status=$?
  kill $pid
  wait $pid || { echo "the server did not end well"; status=1; }
  return $status
}

check_http() {
  if [ -n "${ACCEPTANCE:-}" ]; then
    "$python" "$ACCEPTANCE" --base "$1"
  else
    GUESTHOUSE_BINARY="$binary" GUESTHOUSE_E2E_MODEL="$model" GUESTHOUSE_E2E_FLAGS="--device cuda --batch-invariant" \
      "$python" -m pytest -q -p no:cacheprovider tests/e2e/test_server.py tests/e2e/test_odd_clients.py
  fi
}

# Process start to a server that listens.
ready() {
  local began
  : >"$out/ready.log"
  began=$(date +%s.%N)
  "$binary" serve "$(shape llama-3.1-8b)" --load-format dummy --device cuda --port 0 >"$out/ready.log" 2>&1 &
  local pid=$!
  until grep -q 'serving on' "$out/ready.log"; do
    kill -0 $pid 2>/dev/null || { cat "$out/ready.log"; return 1; }
    sleep 0.02
  done
  echo "$began $(date +%s.%N)" | awk '{ printf "{\"ready_seconds\": %.2f}\n", $2 - $1 }' | tee "$out/ready.json"
  kill $pid
  wait $pid
}

# Memory beyond one card's, wrong reads and races; only where the toolkit is installed.
sanitize() {
  for tool in memcheck racecheck; do
    GUESTHOUSE_GOLDEN_DIR="$PWD/tests/golden/cases" compute-sanitizer --tool $tool --error-exitcode 9 --target-processes all \
      "$binary" doctor --device cuda --kernels none --model tests/golden/cases/qwen3 --num-prompts 2 --input-len 40 || return 1
  done
}

for name in $steps; do
  case $name in
    doctor) step doctor "$binary" doctor --device cuda ;;
    compare)
      step compare "$binary" doctor --device cuda --kernels none --model "$model"
      step compare-invariant "$binary" doctor --device cuda --kernels none --model "$model" --batch-invariant
      ;;
    tests)
      if [ -n "${GPU_TESTS:-}" ]; then
        export GUESTHOUSE_GOLDEN_DIR=${GUESTHOUSE_GOLDEN_DIR:-$PWD/tests/golden/cases}
        step tests "$GPU_TESTS" cuda_ --ignored --nocapture --test-threads 1
      else
        step tests cargo test --release -p guesthouse-server --test numerics -- \
          cuda_ --ignored --nocapture --test-threads 1
      fi
      ;;
    http)
      step http served invariant --batch-invariant check_http
      if [ -n "${ACCEPTANCE:-}" ]; then step http-fast served fast "" check_http; fi
      ;;
    bench)
      step bench-8b "$binary" bench latency "$(shape llama-3.1-8b)" --load-format dummy --device cuda --max-model-len 8192 \
        --max-num-batched-tokens 16384 --num-iters-warmup 1 --num-iters 3 --output-json "$out/bench-8b.json" \
        --work-list 1x256/68 64x1024/128 256x128/160 256x128/128 256x128/144@0.8,0.9 8x2048/1 1x2048/1
      step bench-1b "$binary" bench latency "$(shape llama-3.2-1b)" --load-format dummy --device cuda --max-model-len 8192 \
        --max-num-batched-tokens 16384 --num-iters-warmup 1 --num-iters 3 --output-json "$out/bench-1b.json" \
        --work-list 1x256/68 64x1024/128 256x128/128 8x2048/1
      ;;
    start)
      # The second start finds compiled kernels.
      step start-first ready
      step start ready
      ;;
    sanitize) step sanitize sanitize ;;
    *)
      echo "no such step: $name"
      exit 2
      ;;
  esac
done

if [ ${#failed[@]} -gt 0 ]; then
  printf '\nfailed: %s\n' "${failed[*]}"
  exit 1
fi
printf '\nall steps passed; logs and JSON are in %s\n' "$out"
