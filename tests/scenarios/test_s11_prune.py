"""S11: prune is safe and exact, beside a `verify` that holds an entry and a `precompile` that makes one.

The entries are written as `publish` leaves them; everything that acts on them runs in a fresh process. The compile of
the `precompile` is stood in for (`tests.scenarios.support`), and held in the middle while the limits are checked.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cache.quick import count_files, du, quick_manifest, quick_publish
from tests.conftest import REPOSITORY
from tests.scenarios.conftest import OPTIONS, Precast, copy_model
from tests.scenarios.support import stand_in, start, wait_until

from precast import __version__
from precast.cache.store import Store

ENTRIES = 40
OLDER = "0.0.1"
PRECIOUS = b"precious"

# A `verify` that has its entry and checks its files, for as long as nobody writes to it.
HOLD = """
import pathlib, sys
from precast.cache.store import Store
really = Store.check
def check(self, *args, **kwargs):
    pathlib.Path(sys.argv[3]).touch()
    sys.stdin.read()
    return really(self, *args, **kwargs)
Store.check = check
from precast.cli.app import main
sys.exit(main(["verify", sys.argv[1], "--level", "files", "--cache-dir", sys.argv[2]]))
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """R: on a file system that keeps no time of access, where this user may mount one."""
    folder = tmp_path / "R"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "noatime,mode=755,size=64m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Filled:
    """R with forty entries of known size and use; the oldest is of the older version."""

    def __init__(self, root: Path, outside: Path) -> None:
        self.root = root
        self.store = Store(root)
        self.versions: dict[str, str] = {}
        dice = random.Random(11)
        moments = dice.sample(range(10**18, 10**18 + 10**6), ENTRIES)
        self.used: dict[str, int] = {}
        for number in range(ENTRIES):
            self._add(number, moments[number], dice)
        self.order = sorted(self.used, key=lambda key: (self.used[key], key))
        self._link(outside)
        self._litter(outside)

    def _add(self, number: int, used_ns: int, dice: random.Random) -> None:
        # So that the oldest is of the older version, whichever it turns out to be.
        version = OLDER if number % 2 or used_ns < min(self.used.values(), default=used_ns + 1) else __version__
        raws = [dice.randbytes(16) for _ in range(1 + number % 3)]
        manifest = quick_manifest(number, raws, version=version)
        key = quick_publish(self.store, manifest, used_ns=used_ns, requests=(f"{number:064x}",))
        self.used[key], self.versions[key] = used_ns, version
        # Sizes by the megabyte would only make the test slow.
        (self.store.layout.entry(key) / "ballast").write_bytes(dice.randbytes(5000 * (1 + number % 7)))

    def _link(self, outside: Path) -> None:
        """Let files have several names: in two entries, in one, and outside of R."""
        entry = self.store.layout.entry
        (entry(self.order[1]) / "twin").hardlink_to(entry(self.order[30]) / "ballast")
        (entry(self.order[2]) / "twin").hardlink_to(entry(self.order[2]) / "ballast")
        with suppress(OSError):  # not across file systems
            (outside / "twin").hardlink_to(entry(self.order[3]) / "ballast")

    def _litter(self, outside: Path) -> None:
        layout = self.store.layout
        self.orphan = layout.object("ef" * 32)
        self.orphan.parent.mkdir(exist_ok=True)
        self.orphan.write_bytes(b"nobody's")
        (outside / "precious").write_bytes(PRECIOUS)
        for folder in (self.root / "notes", layout.entries / "notes"):
            folder.mkdir()
            (folder / "film").write_bytes(PRECIOUS)
        (layout.entries / ("ab" * 32)).symlink_to(outside)
        (layout.entry(self.order[4]) / "way-out").symlink_to(outside)
        # Whoever went by the time of access would begin at the wrong end.
        for number, key in enumerate(self.order):
            for path in layout.entry(key).iterdir():
                os.utime(path, ns=((ENTRIES - number) * 10**9, path.lstat().st_mtime_ns), follow_symlinks=False)

    def left(self) -> list[str]:
        """The entries that are left, the least recently used first."""
        return [key for key in self.order if self.store.layout.entry(key).is_dir()]

    def foreign_is_untouched(self, outside: Path) -> bool:
        layout = self.store.layout
        precious = (self.root / "notes" / "film", layout.entries / "notes" / "film", outside / "precious")
        return all(path.read_bytes() == PRECIOUS for path in precious) and (layout.entries / ("ab" * 32)).is_symlink()


@contextmanager
def holder(key: str, root: Path, sign: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a `verify` of an entry that does not end by itself; it makes a file once it has the entry."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    command = [sys.executable, "-c", HOLD, key, str(root), str(sign)]
    process = subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        assert wait_until(lambda: sign.exists() or process.poll() is not None)
        assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.communicate()


def names(root: Path) -> set[str]:
    return {str(path) for path in root.rglob("*")}


def entries(answer: dict[str, Any]) -> list[str]:
    return [item["id"] for item in answer["removed"] if item["kind"] == "entry"]


def test_prune_is_exact_and_safe_beside_verify_and_precompile(tmp_path: Path, root: Path, precast: Precast) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    made = Filled(root, outside)
    compile_ = stand_in(tmp_path / "child")
    model = f"{copy_model(tmp_path / 'model')}:base"
    command = ("precompile", model, "--tag", "made-meanwhile", "--cache-dir", str(root), *OPTIONS, "--json")

    def prune(*args: str) -> dict[str, Any]:
        done = precast("prune", *args, "--cache-dir", str(root), "--json")
        assert done.status == 0, done.err
        data: dict[str, Any] = done.json["data"]
        return data

    with holder(made.order[0], root, tmp_path / "held") as verify:
        with compile_.closed():
            builder = start(*command, environ=compile_.environ)
            assert wait_until(lambda: bool(compile_.events("start")) or builder.poll() is not None)
            assert builder.poll() is None
            limits_hold(made, prune, outside)
        done = [prune("--current-version-only", "--yes")]
        while builder.poll() is None:
            done.append(prune("--current-version-only", "--yes"))
        out, err = builder.communicate()
        assert builder.returncode == 0, err
        current_stay(made, done)
        key = json.loads(out)["data"]["key"]
        assert precast("verify", key, "--level", "files", "--cache-dir", str(root)).status == 0
        verify.send_signal(signal.SIGKILL)
        verify.wait()
    assert entries(prune("--current-version-only", "--yes")) == [made.order[0]]
    assert prune("--current-version-only", "--yes")["removed"] == []
    # A tag shows, protects, and stands for its key.
    assert {"key": key, "reason": "tagged made-meanwhile"}.items() <= prune("--max-bytes", "1", "--yes")["kept"][
        0
    ].items()
    assert precast("inspect", "ls", "--filter", "tag=made-*", "-q", "--cache-dir", str(root)).out == f"{key}\n"
    assert precast("verify", "made-meanwhile", "--level", "files", "--cache-dir", str(root)).status == 0
    assert made.foreign_is_untouched(outside)


def limits_hold(made: Filled, prune: Any, outside: Path) -> None:
    """Both limits hold from outside, what goes was used least recently, and the dry run said just that."""
    size, files = du(made.root) * 6 // 10, count_files(made.root) * 6 // 10
    rules = ("--max-bytes", str(size), "--max-files", str(files))
    before = names(made.root)
    planned = prune(*rules, "--dry-run")
    assert names(made.root) == before
    done = prune(*rules, "--yes")
    assert (planned["dry_run"], done["dry_run"], done["skipped"]) == (True, False, [])
    assert {**planned, "dry_run": False} == done
    assert done["unmet"] == []
    assert du(made.root) <= size
    assert count_files(made.root) <= files
    gone = entries(done)
    assert 5 < len(gone) < 30
    assert gone == made.order[1 : 1 + len(gone)]
    assert made.left() == [made.order[0], *made.order[1 + len(gone) :]]
    assert {"key": made.order[0], "reason": "in use"}.items() <= done["kept"][-1].items()
    assert not made.orphan.exists()
    assert made.foreign_is_untouched(outside)


def current_stay(made: Filled, done: list[dict[str, Any]]) -> None:
    """Everything of the older version went but what is held."""
    assert {made.versions[key] for answer in done for key in entries(answer)} == {OLDER}
    assert {key for key in made.left() if made.versions[key] == OLDER} == {made.order[0]}
    assert len(made.left()) > 5
