"""S7: move the cache to another path, user, HOME and virtual environment; or ship one file and nothing else."""

import json
import shutil
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import MAX_TOKENS, REPOSITORY, TinyEntry
from tests.scenarios.moving import Place, Trace, all_bytes, give_to_other, make_place, run_as_other, watched

pytestmark = pytest.mark.compiles

OPTIONS = ("--target", "cpu", "--max-num-batched-tokens", str(MAX_TOKENS), "--json")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own is private."""
    with tempfile.TemporaryDirectory(prefix="s7-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def scratch(open_folder: Path) -> Path:
    """The one place where the other user may leave files."""
    folder = open_folder / "scratch"
    folder.mkdir()
    give_to_other(folder)
    return folder


def precast(place: Place, scratch: Path, *args: str) -> dict[str, Any]:
    """Run the command line of a place, with no compiler and no HOME."""
    status, out, err = run_as_other([str(place.python), "-m", "precast.cli", *args], scratch)
    assert status == 0, f"{out}\n{err}"
    document: dict[str, Any] = json.loads(out)["data"]
    return document


def pack_and_delete(folder: Path, pack: Path, everything: Path) -> None:
    """Pack a folder as `tar` does, and delete all that lies around it."""
    with tarfile.open(pack, "w") as archive:
        archive.add(folder, "R")
    shutil.rmtree(everything)


def looked_only_at(root: Path, trace: Trace, lost: Sequence[Path]) -> None:
    """Demand that a command named paths below the root, and none where the root or the environment had been."""
    assert trace.processes >= 1
    for seen in (trace.python, trace.system):
        if seen is not None:
            assert [line for line in seen if str(root) in line], "the watcher saw nothing at all"
            assert [line for line in seen for place in lost if str(place) in line] == []


def test_a_moved_cache_is_whole_and_never_looks_back(tiny_entry: TinyEntry, open_folder: Path, scratch: Path) -> None:
    old, new, pack = open_folder / "opt" / "old", open_folder / "srv" / "b" / "c", open_folder / "pack.tar"
    first = make_place(old / "v1")
    shutil.copytree(tiny_entry.root, old / "a" / "R")  # the compile itself was made below the session's folder
    shutil.rmtree(old / "a" / "R" / "v1" / "requests")  # so that the first environment traces, and remembers its model
    give_to_other(old / "a")
    made = precast(first, scratch, "precompile", str(first.model), *OPTIONS, "--cache-dir", str(old / "a" / "R"))
    assert (made["status"], made["key"]) == ("up_to_date", tiny_entry.key)

    pack_and_delete(old / "a" / "R", pack, old)
    second, root = make_place(new / "v2"), new / "R2"
    with tarfile.open(pack) as archive:
        archive.extractall(new, filter="data")
    (new / "R").rename(root)
    give_to_other(root)
    store = ("--cache-dir", str(root))

    assert [name for name, data in all_bytes(root) if str(old).encode() in data] == []

    shown = precast(second, scratch, "inspect", "show", tiny_entry.key, "--json", *store)
    assert (shown["state"], shown["absolute_paths"]) == ("ok", [])

    verify = [str(second.python), "-m", "precast.cli", "verify", "--json", *store]
    lost, places = (old, tiny_entry.root), (old, tiny_entry.root, root)
    (status, out, err), trace = watched([*verify, tiny_entry.key, "--level", "env"], places, scratch)
    assert status == 0, f"{out}\n{err}"
    looked_only_at(root, trace, lost)

    command = [*verify, str(second.model), *OPTIONS, "--level", "numerics"]
    (status, out, err), trace = watched(command, places, scratch)
    assert status == 0, f"{out}\n{err}"
    looked_only_at(root, trace, lost)
    stages = {stage["name"]: stage for stage in json.loads(out)["data"]["stages"]}
    assert [stages[name]["status"] for name in ("files", "env", "load", "numerics")] == ["ok"] * 4
    for level, kinds in (("load", ("compiler_processes", "processes")), ("numerics", ("compiler_processes",))):
        counts = stages[level]["facts"]
        assert [counts[k] for k in ("dynamo_frames", "inductor_compiles", "triton_compiles", *kinds)] == [0] * (
            3 + len(kinds)
        )

    again = precast(second, scratch, "precompile", str(second.model), *OPTIONS, *store)
    assert (again["status"], again["key"]) == ("up_to_date", tiny_entry.key)
    assert list(scratch.iterdir()) == []


def test_no_byte_of_an_entry_tells_where_it_was_compiled(tiny_entry: TinyEntry) -> None:
    places = [str(tiny_entry.root), str(REPOSITORY), sysconfig.get_paths()["purelib"], str(Path.home())]
    kept = [(name, data) for name, data in all_bytes(tiny_entry.root) if name.startswith(("object", "v1/entries"))]
    assert len(kept) > 6
    assert [(name, place) for name, data in kept for place in places if place.encode() in data] == []


_LOAD = """
import sys
import precast
from precast.aot.numerics import build_real, compare
from precast.aot.reference import parse_reference

file, model = sys.argv[1:]
spec = parse_reference(model).spec({})
module = build_real(spec, "cpu")
loaded = precast.load(file, module)
for tokens in (1, 5):
    found = compare(spec, module, loaded, tokens, module)
    assert found.ok, found
print("heavy" if "torch._inductor" in sys.modules else "light")
"""


def test_one_file_is_enough_to_ship(tiny_entry: TinyEntry, open_folder: Path, scratch: Path) -> None:
    place, root = make_place(open_folder / "v"), open_folder / "R"
    shutil.copytree(tiny_entry.root, root)
    give_to_other(root)
    shipped = open_folder / "shipped"
    shipped.mkdir()
    give_to_other(shipped)
    file = shipped / "model.mega"
    store = ("--cache-dir", str(root))
    made = precast(place, scratch, "precompile", str(place.model), *OPTIONS, *store, "--output", str(file))
    assert (made["status"], made["key"]) == ("up_to_date", tiny_entry.key)
    shutil.rmtree(root)
    before = sorted(open_folder.rglob("*"))

    shown = precast(place, scratch, "inspect", "show", str(file), "--json")
    assert (shown["key"], shown["source"], shown["absolute_paths"]) == (tiny_entry.key, "file", [])
    verified = precast(place, scratch, "verify", str(file), "--model", str(place.model), "--json")
    assert (verified["key"], verified["verified"], verified["level"]) == (tiny_entry.key, True, "numerics")
    command = [str(place.python), "-W", "ignore", "-c", _LOAD, str(file), str(place.model)]
    status, out, err = run_as_other(command, scratch)
    assert (status, out) == (0, "light\n"), err

    assert list(scratch.iterdir()) == []
    assert [
        path for path in sorted(open_folder.rglob("*")) if path not in before and "__pycache__" not in path.parts
    ] == []
