#!/usr/bin/env bash
# Builds for a GPU that is not here. Makes an environment of its own with the CUDA build of torch (about 5 GB on disk).
# Usage: tests/cross/run.sh [pytest arguments]; VENV, TORCH and PYTHON choose the environment as in scripts/setup.
set -euo pipefail
cd "$(dirname "$0")/../.."
VENV=${VENV:-.venv-cross}
if [ ! -x "$VENV/bin/precast" ]; then
    "${PYTHON:-python3.12}" -m venv "$VENV"
    "$VENV/bin/pip" install -q "${TORCH:-torch==2.11.0}"
    cuda=$("$VENV/bin/python" -c "import torch; print(torch.version.cuda)")
    "$VENV/bin/pip" install -q "nvidia-cuda-crt==$cuda.*" "nvidia-cuda-cccl==$cuda.*" -e '.[dev]'
fi
if [ $# -eq 0 ]; then set -- tests/cross; fi
exec "$VENV/bin/python" -m pytest -m "cross and not gpu" "$@"
