"""Places: files and folders with owner and mode, as errors about rights name them to people and to programs."""

import os
import shlex
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from precast.cache.canonical import Json

__all__ = ["Place", "details", "listed", "process_text", "quoted", "shell"]

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder and its rights.

    Attributes:
        path: Where it is.
        uid: Number of its owner.
        gid: Number of its group.
        bits: Its type and permission bits, as `st_mode`.
    """

    path: Path
    uid: int
    gid: int
    bits: int

    @classmethod
    def at(cls, path: Path) -> "Place":
        """Look at a path; links are followed.

        Raises:
            OSError: Nothing is there, or it cannot be seen.
        """
        return cls.of(path, path.stat())

    @classmethod
    def of(cls, path: Path, status: os.stat_result) -> "Place":
        """Take the rights from what `stat` said of a path."""
        return cls(path, status.st_uid, status.st_gid, status.st_mode)

    @property
    def owner(self) -> str:
        """Its owner's name, or the number where it has none."""
        return _user_name(self.uid)

    @property
    def group(self) -> str:
        """Its group's name, or the number where it has none."""
        return _group_name(self.gid)

    @property
    def mode(self) -> str:
        """Its mode as `ls` shows it, such as `drwxr-xr-x`."""
        return stat.filemode(self.bits)

    @property
    def octal(self) -> str:
        """Its permission bits as `chmod` takes them, such as `0755`."""
        return f"{stat.S_IMODE(self.bits):04o}"

    @property
    def rights(self) -> str:
        """Owner and mode, for people."""
        number = "" if self.owner == str(self.uid) else f" {self.uid}"
        return f"owner {self.owner}{number}, mode {self.mode} {self.octal}"

    def to_json(self, reason: str) -> dict[str, Json]:
        """Give it as JSON, with what is wrong with it."""
        return {
            "path": str(self.path),
            "owner": self.owner,
            "owner_uid": self.uid,
            "group": self.group,
            "owner_gid": self.gid,
            "mode": self.mode,
            "octal": self.octal,
            "reason": reason,
        }


def details(wrong: Iterable[tuple[Place, str]], command: str) -> dict[str, Json]:
    """Give an error's places, whom they were refused to, and the command that mends them, for programs.

    Args:
        wrong: Each place and what is wrong with it.
        command: The command, or empty.
    """
    return {
        "user": {"uid": os.geteuid(), "gid": os.getegid()},
        "places": [place.to_json(reason) for place, reason in wrong],
        "command": command,
    }


def listed(wrong: Iterable[tuple[Place, str]]) -> str:
    """Word places and what is wrong with them in one line, alike ones together; the details hold every one."""
    alike: dict[str, list[str]] = {}
    for place, reason in wrong:
        alike.setdefault(f"({place.rights}): {reason}", []).append(str(place.path))
    return "; ".join(f"{_few(paths)} {told}" for told, paths in alike.items())


def _few(paths: Sequence[str]) -> str:
    more = [f"{len(paths) - _SHOWN} more"] if len(paths) > _SHOWN else []
    return ", ".join([*paths[:_SHOWN], *more])


def process_text() -> str:
    """Word who this process is, by number: in a container the number often has no name."""
    return f"uid {os.geteuid()} gid {os.getegid()}"


def shell(*commands: str) -> str:
    """Join shell commands that must all succeed; empty ones are left out."""
    return " && ".join(command for command in commands if command)


def quoted(paths: Iterable[Path]) -> str:
    """Write paths for a shell, each once."""
    return " ".join(dict.fromkeys(shlex.quote(str(path)) for path in paths))


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
