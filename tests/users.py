"""Functions run as another user, in a child process; only root can do that."""

import os
import pickle
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

NOBODYS = 4242
"""A number that no passwd database knows, for a user and for a group."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def run_as(uid: int, gid: int, function: Callable[[], T], groups: Sequence[int] = ()) -> T:
    """Run a function as another user and return what it returned, or raise what it raised.

    Args:
        uid: The user.
        gid: The user's group.
        function: What to run; modules that it needs must have been imported.
        groups: More groups of the user.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside torch's threads: the child starts none
        child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            answer: tuple[bool, object] = (True, function())
        except BaseException as error:  # all of it is for the parent
            answer = (False, error)
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    fine, result = pickle.loads(data)
    if not fine:
        raise result
    return result  # type: ignore[no-any-return]


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """Make a folder that every user can reach, as pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="precast-users-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)
