#!/usr/bin/env bash
# All tests but those on a GPU (tests/gpu.sh). Needs rustup, gcc, python3 with venv and pip; downloads crates, some packages
# for Python and JavaScript (and Node.js from PyPI where there is none) and the starter model.
#
#   tests/run.sh            everything
#   tests/run.sh fast       without the end-to-end tests
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')

step() { printf '\n== %s\n' "$*"; }

step formatting
cargo fmt --all --check
(cd guests && cargo fmt --all --check)

step "page of models"
python3 tests/golden/models.py --check

step guests
# Logic of guests runs natively; the wasm32 target has no test runner.
cargo test --quiet --manifest-path guests/Cargo.toml --target-dir target/guests-native --target "$host" \
  -p guesthouse-sdk -p guesthouse-sdk-step --features guesthouse-sdk/chat -p guesthouse-chat-jinja -p guesthouse-chat-chatml -p guesthouse-chat-chatglm \
  -p guesthouse-chat-baichuan -p guesthouse-chat-vicuna -p guesthouse-chat-alpaca -p guesthouse-chat-llama2
cargo test --quiet --manifest-path guests/Cargo.toml --target-dir target/guests-native --target "$host" \
  -p guesthouse-sampler-standard -p guesthouse-sampler-beam -p guesthouse-sampler-best-of -p guesthouse-sampler-contrastive \
  -p guesthouse-sampler-tree
(cd guests && cargo clippy --quiet --release --workspace --target-dir ../target/guests -- -D warnings)

step clippy
cargo clippy --quiet --workspace --all-targets -- -D warnings

step "unit and integration tests"
if cargo nextest --version >/dev/null 2>&1; then
  cargo nextest run --workspace --no-fail-fast
else
  cargo test --workspace --no-fail-fast
fi

step "samplers in other languages"
(cd examples/sampler-rust && cargo fmt --check)
cargo test --quiet --manifest-path examples/sampler-rust/Cargo.toml --target-dir target/guests-native --target "$host"
examples/build.sh
# The whole workspace is named so that nothing is built again with other features.
cargo test --quiet --workspace --test guests -- --ignored languages::

step "CUDA kernels"
if [ -n "${GUESTHOUSE_NVRTC:-}" ]; then
  # A Python environment with NVIDIA's compiler, which is found through VIRTUAL_ENV.
  # The whole workspace is named so that nothing is built again with other features.
  if cargo nextest --version >/dev/null 2>&1; then
    VIRTUAL_ENV="$GUESTHOUSE_NVRTC" cargo nextest run --workspace --lib --run-ignored only \
      -E 'test(cuda::compiler::tests::kernels_compile_for)'
  else
    VIRTUAL_ENV="$GUESTHOUSE_NVRTC" cargo test --quiet --workspace --lib -- cuda::compiler::tests::kernels_compile_for --ignored
  fi
else
  echo "not compiled: GUESTHOUSE_NVRTC must name a Python environment with nvidia-cuda-nvrtc==13.0.*"
fi

step "doc tests"
cargo test --workspace --doc --quiet

if [ "${1:-}" != fast ]; then
  step "end to end"
  # The same targets as above: nothing is built again with other features.
  cargo build --quiet --workspace --all-targets
  tests/e2e/run.sh target/debug/guesthouse
fi
