"""Python imports this at start-up where its folder is on PYTHONPATH: what it opens below some folders is written down.

`WATCH_LOG` is the file, `WATCH_BELOW` the folders. The first line of each process says that it is watched.
"""

import os
import sys
from typing import Any

_LOG = os.environ.get("WATCH_LOG", "")
_BELOW = tuple(folder for folder in os.environ.get("WATCH_BELOW", "").split(os.pathsep) if folder)
_WITH_PATHS = ("open", "import", "exec", "ctypes.dlopen", "subprocess.Popen")
_WITHOUT = ("os.putenv", "os.unsetenv")


def _note(text: str) -> None:
    descriptor = os.open(_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, text.encode("utf-8", "surrogateescape") + b"\n")
    finally:
        os.close(descriptor)


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if event in _WITHOUT or not (event in _WITH_PATHS or event.startswith(("os.", "shutil.", "tempfile."))):
        return
    for value in args:
        text = os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else ""
        if text.startswith(_BELOW):
            _note(f"{event} {text}")


if _LOG and _BELOW:
    _note("watched")
    sys.addaudithook(_watch)
