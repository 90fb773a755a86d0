"""Seams to torch's own cache folder: its place while precast traces, and its name for a user who has none.

torch makes `TMPDIR/torchinductor_USER` when Dynamo is imported (`torch._inductor.runtime.cache_dir_utils`), and up to
2.11 it fails there for a user id without a passwd entry, as is usual in containers. Tried on torch 2.11.0 and 2.13.0.
Nothing here imports torch.
"""

import getpass
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

__all__ = ["private_caches", "user_has_name"]

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@contextmanager
def private_caches(folder: Path) -> Iterator[None]:
    """Let torch keep its caches in a folder of ours while the block runs, unless the user named one.

    Args:
        folder: The folder; the caller removes it.
    """
    with ExitStack() as stack:
        stack.enter_context(user_has_name())
        if _VARIABLE not in os.environ:
            stack.callback(os.environ.pop, _VARIABLE, None)
            os.environ[_VARIABLE] = str(folder)
        yield


@contextmanager
def user_has_name() -> Iterator[None]:
    """Let `getpass.getuser` answer while the block runs, also where nothing tells the user's name.

    The name is the one that newer versions of torch take.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError, ModuleNotFoundError):
        with mock.patch.object(getpass, "getuser", return_value=f"uid_{os.getuid()}"):
            yield
    else:
        yield
