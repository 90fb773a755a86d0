#!/usr/bin/env bash
# The GPU run. Usage: tests/gpu/run.sh [PART...]; parts: aoti inductor exact capture tests cross bench; without any, all but cross and bench.
# cross takes a mega file that was built on a machine without a GPU, named by CROSS:
#   precast precompile examples/configs/llama-3.1-8b --target h200 --max-num-batched-tokens 8192 --compile-sizes 1 --output FILE.mega
# Goes on after a failed step, prints its results last, and exits 1 when a step failed. Needs torch with CUDA and precast's dependencies; run it from anywhere.
set -uo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-$(mktemp -d)}
STEP_LIMIT=${STEP_LIMIT:-300}
export PRECAST_CACHE_DIR=$OUT/store PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1
TOKENS=(--max-num-batched-tokens 2048)
MODEL=(examples/configs/llama-3.2-1b --set num_hidden_layers=8 --set dtype=bfloat16 "${TOKENS[@]}")
BIG=(examples/configs/llama-3.1-8b --max-num-batched-tokens 8192 --compile-sizes 1)
results=()
failed=0

step() { # step NAME COMMAND...: run it, keep its time and status
    local name=$1 started=$SECONDS
    shift
    echo "== $name: $*"
    timeout "$STEP_LIMIT" "$@"
    local status=$?
    ((status == 0)) || failed=1
    results+=("$(printf '%-32s exit %-3d %4d s' "$name" "$status" $((SECONDS - started)))")
}

empty() { # run with compile caches that nothing was written to
    local caches
    caches=$(mktemp -d)
    env TRITON_CACHE_DIR="$caches/triton" TORCHINDUCTOR_CACHE_DIR="$caches/inductor" "$@"
}

"$PYTHON" -c 'import precast' 2>/dev/null ||
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-build-isolation --editable . || exit 1
precast=("$PYTHON" -m precast.cli)
export -f empty

part_aoti() {
    step "aoti precompile" "${precast[@]}" precompile "${MODEL[@]}"
    step "aoti precompile again" "${precast[@]}" precompile "${MODEL[@]}"
    step "aoti verify, empty caches" bash -c 'empty "$@"' - "${precast[@]}" verify "${MODEL[@]}"
    step "aoti inspect show" "${precast[@]}" inspect show "$("${precast[@]}" precompile "${MODEL[@]}" --format quiet)" --pieces
}

part_inductor() {
    step "inductor precompile" "${precast[@]}" precompile "${MODEL[@]}" --payload inductor
    step "inductor verify, empty caches" bash -c 'empty "$@"' - "${precast[@]}" verify "${MODEL[@]}" --payload inductor
}

part_exact() {
    # in float32: with random weights two tokens are often nearly equal, and bfloat16 rounds them either way
    local exact=(--set num_hidden_layers=8 --set dtype=float32)
    step "float32 precompile" "${precast[@]}" precompile examples/configs/llama-3.2-1b "${exact[@]}" "${TOKENS[@]}" --tag exact
    step "generate --compare" "$PYTHON" examples/generate.py examples/configs/llama-3.2-1b "${exact[@]}" \
        --artifact exact --tokens 64 --compare
    step "serve --compare" "$PYTHON" examples/serve.py examples/configs/llama-3.2-1b "${exact[@]}" --artifact exact \
        --requests 64 --tokens 64 --max-num-seqs 32 --max-num-batched-tokens 256 --mode FULL_AND_PIECEWISE --compare
}

part_capture() {
    # The 8B shape: capture in both modes, compare, 200 random batches, and decode steps against the floor.
    step "capture: precompile" "${precast[@]}" precompile "${BIG[@]}"
    step "capture: verify, bench" bash -c 'empty "$@"' - "${precast[@]}" verify "${BIG[@]}" --level capture --bench --max-num-seqs 512
}

part_bench() {
    # Beside what users have otherwise, 8B shape, the most important first. A later run with the same OUT adds to the results;
    # BENCH="--parts peers --peers aot-compile,reduce-overhead" chooses. Copy $OUT/bench/gpu.json to tests/bench/results.
    local budget=${BENCH_BUDGET:-450} options=()
    read -ra options <<<"${BENCH:-}"
    STEP_LIMIT=$((budget + 60)) step "bench" "$PYTHON" -m tests.bench gpu --budget "$budget" --output "$OUT/bench" \
        "${options[@]}"
}

part_tests() {
    step "gpu tests" "$PYTHON" -m pytest -q -m gpu tests/gpu
}

part_cross() {
    step "cross: describe" "${precast[@]}" precompile --describe-target
    step "cross: verify, empty caches" bash -c 'empty "$@"' - "${precast[@]}" verify "$CROSS" --model "${BIG[0]}" \
        --level capture --bench --max-num-seqs 512
    step "cross: build here" "${precast[@]}" precompile "${BIG[@]}" --output "$OUT/here.mega"
    step "cross: compare" "$PYTHON" -m tests.gpu.compare_entries "$CROSS" "$OUT/here.mega"
    step "cross: decode speed" "$PYTHON" -m tests.gpu.decode_speed "${BIG[0]}" "$CROSS" "$OUT/here.mega"
    step "cross: cost of a step" "$PYTHON" -m tests.gpu.step_cost "${BIG[0]}" "$CROSS"
}

"$PYTHON" - <<'PY'
import torch, triton
print(torch.__version__, triton.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
PY
[ $# -gt 0 ] || set -- aoti inductor exact capture tests
for part in "$@"; do "part_$part"; done

echo
echo "RESULTS"
printf '%s\n' "${results[@]}"
exit $failed
