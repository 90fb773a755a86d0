"""How long this process has been running, by the kernel's clock: what passed before our own first line counts too."""

import os
import time
from pathlib import Path

__all__ = ["process_age"]

_STAT = Path("/proc/self/stat")
_STARTED = 19  # field 22 of proc_pid_stat(5), of those after the name


def process_age(stat: Path = _STAT) -> float:
    """Return the seconds since the process began, in steps of 10 ms; 0 where the kernel does not say.

    Args:
        stat: The kernel's file about this process.
    """
    try:
        fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        began = int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - began, 0.0) if began else 0.0
    except (OSError, ValueError, IndexError):
        return 0.0
