"""S6: a hard container. Looking works and writes nothing; precompile says at once all that it cannot write."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import MAX_TOKENS, REPOSITORY, TINY, TinyEntry
from tests.scenarios.jail import UID, Jailed, can_jail, can_mount, run_jailed
from tests.users import folder_for_all

from precast.cache.root import CacheRoot

jailed = pytest.mark.skipif(not can_jail(), reason="only root can become a user without a name")
mounted = pytest.mark.skipif(not can_mount(), reason="nothing can be mounted here")

SAME = ("--target", "cpu", "--max-num-batched-tokens", str(MAX_TOKENS))
OTHER = ("--target", "cpu", "--max-num-batched-tokens", "64")
# Where temporary files and shared memory land when nobody says where.
COMMON = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))

Seen = Mapping[str, tuple[int, ...]]


@pytest.fixture(scope="module")
def entry(tiny_entry: TinyEntry, tmp_path_factory: pytest.TempPathFactory) -> TinyEntry:
    """The good entry, in a root that no other test looks at meanwhile."""
    return tiny_entry.copy_to(tmp_path_factory.mktemp("s6") / "R")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """An empty folder of the user in the container."""
    with folder_for_all() as folder:
        (folder / "scratch").mkdir()
        if can_jail():
            os.chown(folder / "scratch", UID, UID)
        yield folder / "scratch"


def command(*words: str, python: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, *python, "-m", "precast.cli", *words]


def precast(root: Path, scratch: Path | None, *words: str, **how: Any) -> Jailed:
    """Run the command line in the container."""
    return run_jailed(
        command(*words, "--cache-dir", str(root), python=how.pop("python", ())),
        scratch,
        {"PYTHONPATH": str(REPOSITORY / "src")},
        **how,
    )


def seen(folder: Path, owner: int | None = None) -> Seen:
    """Everything below a folder, or what somebody owns right in it, with all that a write changes."""
    found = {}
    for path in sorted(folder.rglob("*") if owner is None else folder.iterdir()):
        try:
            status = path.lstat()
        except FileNotFoundError:  # somebody else's
            continue
        if owner is None or status.st_uid == owner:
            found[str(path)] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return found


class Unchanged:
    """Says that a block writes nothing in a root, and leaves nothing anywhere else."""

    def __init__(self, root: Path, scratch: Path | None, owner: int = UID) -> None:
        self.root, self.scratch, self.owner = root, scratch, owner

    def look(self) -> list[Seen]:
        elsewhere = [seen(folder, self.owner) for folder in COMMON if self.owner == UID and folder.is_dir()]
        return [seen(self.root), *([seen(self.scratch)] if self.scratch else []), *elsewhere]

    def __enter__(self) -> None:
        self.before = self.look()

    def __exit__(self, *_: object) -> None:
        assert self.look() == self.before


def looks(entry: TinyEntry) -> list[tuple[str, ...]]:
    return [
        ("inspect", "ls"),
        ("inspect", "show", entry.key),
        ("inspect", "diff", entry.key, "live", "--model", str(TINY), *SAME),
        ("inspect", "stats"),
        ("inspect", "explain", str(TINY), *SAME),
        ("precompile", str(TINY), *SAME, "--check"),
        ("verify", entry.key, "--level", "env"),
    ]


@jailed
@pytest.mark.compiles
@pytest.mark.parametrize("mounts", [pytest.param(True, marks=mounted), False], ids=["read-only mounts", "modes only"])
def test_inspect_and_verify_work_and_change_nothing(entry: TinyEntry, scratch: Path, mounts: bool) -> None:
    with Unchanged(entry.root, scratch):
        for words in looks(entry) if mounts else looks(entry)[:1]:
            done = precast(entry.root, scratch, *words, mounts=mounts)
            assert done.status == 0, (words, done.err)
        done = precast(entry.root, scratch, "verify", str(TINY), *SAME, "--json", mounts=mounts)
    data = json.loads(done.out)["data"]
    assert (done.status, data["level"], data["verified"]) == (0, "numerics", True), done.err
    assert list(scratch.iterdir()) == []


@jailed
@pytest.mark.compiles
@pytest.mark.parametrize("request_words", [SAME, OTHER], ids=["an entry that is there", "one that is not"])
@pytest.mark.parametrize("mounts", [pytest.param(True, marks=mounted), False], ids=["read-only mounts", "modes only"])
def test_precompile_fails_at_once_and_lists_every_folder(
    entry: TinyEntry, scratch: Path, request_words: tuple[str, ...], mounts: bool
) -> None:
    words = ("precompile", str(TINY), *request_words, "--json")
    with Unchanged(entry.root, scratch):
        done = precast(entry.root, scratch, *words, mounts=mounts, python=("-X", "importtime"))
    assert (done.status, done.seconds < 2) == (2, True), done.err
    assert " precast.aot.precompile\n" in done.err
    assert " torch\n" not in done.err
    (error,) = json.loads(done.out)["errors"]
    assert error["code"] == "store.unwritable"
    assert error["details"]["user"] == {"uid": UID, "gid": UID}
    layout = CacheRoot(entry.root)
    listed = {place["path"]: place for place in error["details"]["places"]}
    assert set(listed) == {str(p) for p in (layout.path, layout.base, *layout.folders, *layout.objects.iterdir())}
    for path, place in listed.items():
        status = Path(path).stat()
        assert (place["owner"], place["owner_uid"]) == ("root", 0)
        assert (place["mode"], place["octal"]) == (stat.filemode(status.st_mode), f"{status.st_mode & 0o7777:04o}")
        assert place["reason"] == ("its file system is read-only" if mounts else f"uid {UID} may not write it")
        assert path in error["why"]
    assert f"uid {UID} gid {UID}" in error["why"]
    if not mounts:
        assert f"chown -R {UID}:{UID} {layout.base}" in error["hint"]


@mounted
@pytest.mark.compiles
def test_without_any_temporary_folder_everything_works_but_what_traces(entry: TinyEntry) -> None:
    with Unchanged(entry.root, None):
        for words in looks(entry)[-2:]:
            assert precast(entry.root, None, *words).status == 0, words
        loaded = precast(entry.root, None, "verify", str(TINY), *SAME, "--json")
        planned = precast(entry.root, None, "precompile", str(TINY), *OTHER, "--dry-run")
        made = precast(entry.root, None, "precompile", str(TINY), *OTHER, "--json")
    assert (loaded.status, json.loads(loaded.out)["data"]["level"]) == (0, "numerics"), loaded.err
    assert planned.status == 2
    assert [line.partition(":")[0] for line in planned.err.splitlines()] == ["error", "why", "next"]
    assert "There is no temporary folder" in planned.err
    assert "TMPDIR" in planned.err
    listed = {place["path"] for place in json.loads(made.out)["errors"][0]["details"]["places"]}
    assert {"/tmp", str(entry.root)} <= listed


@mounted
@pytest.mark.compiles
def test_a_dry_run_leaves_nothing_of_torch_s_behind(entry: TinyEntry, scratch: Path) -> None:
    with Unchanged(entry.root, scratch):
        done = precast(entry.root, scratch, "precompile", str(TINY), *OTHER, "--dry-run", "--json")
    assert (done.status, json.loads(done.out)["data"]["status"]) == (0, "planned"), done.err


@mounted
@pytest.mark.compiles
def test_a_temporary_folder_that_runs_no_code_is_told_before_anything_is_compiled_and_no_matter_for_a_load(
    entry: TinyEntry, scratch: Path
) -> None:
    words = ("precompile", str(TINY), *OTHER, "--json")
    done = precast(scratch / "root", scratch, *words, noexec=True, python=("-X", "importtime"))
    assert (done.status, " torch\n" in done.err) == (2, False), done.err
    (error,) = json.loads(done.out)["errors"]
    assert [place["path"] for place in error["details"]["places"]] == [str(scratch)]
    assert "noexec" in error["why"]
    with Unchanged(entry.root, scratch):
        loaded = precast(entry.root, scratch, "verify", entry.key, "--level", "load", noexec=True)
    assert loaded.status == 0, loaded.err
    assert list(scratch.iterdir()) == []


# Without root: no HOME and no USER, and a store that may not be written because nobody wants it to be.


def bare(root: Path, scratch: Path, *words: str, **environ: str) -> Jailed:
    given = {"PATH": "/usr/bin:/bin", "TMPDIR": str(scratch), "PYTHONPATH": str(REPOSITORY / "src"), **environ}
    whole = command(*words, "--cache-dir", str(root))
    done = subprocess.run(whole, env=given, cwd="/", umask=0o077, capture_output=True, text=True, check=False)
    return Jailed(done.returncode, done.stdout, done.stderr, 0.0)


@pytest.mark.compiles
def test_read_only_writes_nothing_at_all_where_everything_could_be_written(entry: TinyEntry, scratch: Path) -> None:
    root = entry.root
    with Unchanged(root, scratch, owner=-1):
        for words in looks(entry):
            assert bare(root, scratch, *words, "--read-only").status == 0, words
        assert bare(root, scratch, "inspect", "ls", PRECAST_READ_ONLY="1").status == 0
        done = bare(root, scratch, "verify", str(TINY), *SAME, "--json", PRECAST_READ_ONLY="1")
        assert json.loads(done.out)["data"]["level"] == "numerics", done.err
        assert bare(root, scratch, "prune", "--key", entry.key, "--yes", "--read-only").status == 2
        assert bare(root, scratch, "prune", "--key", entry.key, "--dry-run", "--read-only").status == 0
        refused = bare(root, scratch, "precompile", str(TINY), *SAME, "--read-only", "--json")
    (error,) = json.loads(refused.out)["errors"]
    assert (refused.status, error["code"]) == (2, "usage")
    assert "--check" in error["hint"]


@pytest.mark.compiles
@pytest.mark.skipif(os.geteuid() == 0, reason="modes do not bind root")
def test_a_root_that_its_mode_closes_is_looked_at_and_not_written(entry: TinyEntry, scratch: Path) -> None:
    folders = [path for path in (entry.root, *entry.root.rglob("*")) if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    try:
        with Unchanged(entry.root, scratch, owner=-1):
            for words in looks(entry):
                assert bare(entry.root, scratch, *words).status == 0, words
            assert bare(entry.root, scratch, "verify", str(TINY), *SAME).status == 0
            made = bare(entry.root, scratch, "precompile", str(TINY), *SAME, "--json")
    finally:
        for path in folders:
            path.chmod(0o755)
    (error,) = json.loads(made.out)["errors"]
    assert {place["mode"] for place in error["details"]["places"]} == {"dr-xr-xr-x"}
    assert f"chmod -R u+rwX {entry.root / 'v1'}" in error["hint"]
