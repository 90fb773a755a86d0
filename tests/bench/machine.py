"""Where a benchmark runs: hardware and versions, found in a child process, since this one never imports torch."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["describe_machine", "same_machine"]

_CODE = """
import json, sys, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": None, "driver": None, "gpus": 0}
if sys.argv[1] == "cuda":
    found["gpu"] = torch.cuda.get_device_name()
    found["gpus"] = torch.cuda.device_count()
try:
    import triton
    found["triton"] = triton.__version__
except ImportError:
    found["triton"] = None
print(json.dumps(found))
"""
_COMPARED = ("cpu", "cores", "gpu", "torch", "triton", "python")


def describe_machine(device: str) -> dict[str, Any]:
    """Return hardware and versions.

    Raises:
        subprocess.CalledProcessError: torch, or the GPU that is asked for, cannot be used.
    """
    done = subprocess.run([sys.executable, "-c", _CODE, device], check=True, stdout=subprocess.PIPE, text=True)
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **json.loads(done.stdout.splitlines()[-1]),
        "driver": _driver() if device == "cuda" else None,
    }


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether figures of two runs may stand side by side."""
    return all(one.get(name) == other.get(name) for name in _COMPARED)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.splitlines() or [""])[0].strip() or None
