#!/usr/bin/env bash
# The GPU run: precompile and verify an 8-layer, 2048-wide bf16 decoder on CUDA, the decode loop, and the tests marked gpu.
# Goes on after a failed step, prints its results last, and exits 1 when a step failed. Needs torch with CUDA and precast's dependencies; run it from anywhere.
set -uo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-$(mktemp -d)}
export PRECAST_CACHE_DIR=$OUT/store PYTHONUNBUFFERED=1
MODEL=(examples/configs/llama-3.2-1b --set num_hidden_layers=8 --set dtype=bfloat16 --max-num-batched-tokens 2048)
results=()
failed=0

step() { # step NAME COMMAND...: run it, keep its time and status
    local name=$1 started=$SECONDS
    shift
    echo "== $name: $*"
    "$@"
    local status=$?
    ((status == 0)) || failed=1
    results+=("$(printf '%-28s exit %-3d %4d s' "$name" "$status" $((SECONDS - started)))")
}

"$PYTHON" -c 'import precast' 2>/dev/null ||
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-build-isolation --editable . || exit 1
precast() { "$PYTHON" -m precast.cli "$@"; }

"$PYTHON" - <<'PY'
import torch, triton
print(torch.__version__, triton.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
PY
step "precompile" precast precompile "${MODEL[@]}"
step "precompile again" precast precompile "${MODEL[@]}"
step "verify" precast verify "${MODEL[@]}"
step "verify --json" precast verify "${MODEL[@]}" --json
step "verify, empty caches" env TRITON_CACHE_DIR="$OUT/triton" TORCHINDUCTOR_CACHE_DIR="$OUT/inductor" \
    "$PYTHON" -m precast.cli verify "${MODEL[@]}"
KEY=$(precast precompile "${MODEL[@]}" --format quiet)
step "inspect show" precast inspect show "$KEY" --pieces --settings
# in float32: with random weights two tokens are often nearly equal, and bfloat16 rounds them either way
EXACT=(--set num_hidden_layers=8 --set dtype=float32)
step "precompile float32" precast precompile examples/configs/llama-3.2-1b "${EXACT[@]}" --max-num-batched-tokens 2048
KEY=$(precast precompile examples/configs/llama-3.2-1b "${EXACT[@]}" --max-num-batched-tokens 2048 --format quiet)
step "generate --compare" "$PYTHON" examples/generate.py examples/configs/llama-3.2-1b "${EXACT[@]}" \
    --artifact "$KEY" --tokens 64 --compare
step "gpu tests" "$PYTHON" -m pytest -q -m gpu tests/gpu

echo
echo "RESULTS"
printf '%s\n' "${results[@]}"
exit $failed
