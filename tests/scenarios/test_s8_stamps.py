"""S8, the CPU part, in fresh processes: an entry for another stack or target is refused before any of it is loaded."""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.aot.support import manifest, publish
from tests.cache.support import FACTORS
from tests.conftest import REPOSITORY, TinyEntry
from tests.scenarios.conftest import OPTIONS, Precast

from precast.aot.node import node_facts
from precast.aot.stamps import payload_stamps
from precast.aot.target import Target, cpu_isa
from precast.cache.factors import Factor, entry_key
from precast.cache.manifest import Manifest
from precast.errors import ExitCode

pytestmark = pytest.mark.compiles

CPU, GPU = Target("cpu", cpu_isa()), Target("cuda", "sm_80")


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.place, "it sang"))


@dataclass(frozen=True)
class Wrong:
    """An entry that must be refused.

    Attributes:
        kind: Payload kind.
        target: What it was made for.
        stamps: Stamps that are not those of this node.
        more: Other stamps in which this node differs, whatever it is, because it is no such GPU.
    """

    kind: str
    target: Target
    stamps: dict[str, str]
    more: tuple[str, ...] = ()


WRONG = {
    "torch": Wrong("inductor", CPU, {"torch": "2.99.0"}),
    "python": Wrong("inductor", CPU, {"python": "3.99"}),
    "triton": Wrong("inductor", GPU, {"triton": "9.9.9"}, ("device", "arch", "driver")),
    "capability": Wrong("inductor", GPU, {"arch": "sm_999"}, ("device", "driver")),
    "driver": Wrong("inductor", GPU, {"driver": "99.0"}, ("device", "arch")),
    "glibc": Wrong("aoti", CPU, {"glibc": "9.99", "glibcxx": "9.9.9"}),
    "isa": Wrong("aoti", CPU, {"arch": "x86-64-v9"}),
    "several": Wrong("inductor", CPU, {"torch": "2.99.0", "python": "3.99", "system": "plan9 mips"}),
    "a later stamp": Wrong("aoti", CPU, {"firmware": "7"}),
}


def put(root: Path, wrong: Wrong, canary: Path) -> Manifest:
    """Publish an entry whose payload is a canary and whose stamps are those of this node but for the wrong ones."""
    raw = pickle.dumps(Canary(canary))
    factors = (*FACTORS, Factor("config", "model.wrong", repr(wrong)))
    made = manifest(raw=raw, key=entry_key(factors), factors=factors, target=wrong.target.to_json())
    payloads = tuple(replace(payload, kind=wrong.kind) for payload in made.payloads)
    stamps = {wrong.kind: {**payload_stamps(wrong.kind, wrong.target), **wrong.stamps}}
    publish(root, replace(made, payloads=payloads, stamps=stamps), raw)
    return made


@pytest.fixture
def crowded(tiny_entry: TinyEntry, tmp_path: Path) -> TinyEntry:
    """A root with one right entry."""
    return tiny_entry.copy_to(tmp_path / "R")


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("level", ["env", "auto"])
def test_a_wrong_stamp_is_refused_with_all_fields_and_nothing_is_unpickled(
    name: str, level: str, precast: Precast, tmp_path: Path
) -> None:
    wrong, canary = WRONG[name], tmp_path / "canary"
    made = put(tmp_path / "R", wrong, canary)
    done = precast("verify", made.key, "--cache-dir", str(tmp_path / "R"), "--level", level, "--json")
    document = done.json
    assert (done.status, document["ok"], document["data"]["verified"]) == (ExitCode.INCOMPATIBLE, False, False)
    (error,) = document["errors"]
    assert (error["code"], error["entry"]) == ("stamp.mismatch", made.key)
    stages = {stage["name"]: stage for stage in document["data"]["stages"]}
    assert (stages["env"]["status"], document["data"]["level"]) == ("failed", "env")
    assert not {"load", "numerics"} & set(stages)

    told = {each["field"]: each for each in stages["env"]["facts"]["differing"]}
    assert error["details"]["differing"] == stages["env"]["facts"]["differing"]
    facts = node_facts(wrong.target.device, {})
    assert set(told) - set(wrong.more) == set(wrong.stamps)
    for field, value in wrong.stamps.items():
        node = facts[field]() if field in facts else "unknown to this precast"
        assert (told[field]["entry"], told[field]["node"]) == (value, node)
        assert f"{field}: entry {value}, node {node}" in error["why"]
    assert not canary.exists()


def test_the_right_entry_beside_them_still_verifies(crowded: TinyEntry, precast: Precast, tmp_path: Path) -> None:
    for name, wrong in WRONG.items():
        put(crowded.root, wrong, tmp_path / name)
    for what, level, reached in ((crowded.key, "env", "env"), (str(crowded.folder), "auto", "numerics")):
        root = ("--cache-dir", str(crowded.root), "--json")
        done = precast("verify", what, *OPTIONS, *root, "--level", level, "--sizes", "2")
        assert done.status == 0, done.err
        assert (done.json["data"]["verified"], done.json["data"]["level"]) == (True, reached)
        (env,) = [stage for stage in done.json["data"]["stages"] if stage["name"] == "env"]
        assert env["facts"]["differing"] == []
    assert [path for path in tmp_path.iterdir() if path != crowded.root] == []


def test_a_mega_file_is_refused_alike(precast: Precast, tmp_path: Path) -> None:
    canary, file = tmp_path / "canary", tmp_path / "model.mega"
    made = put(tmp_path / "R", WRONG["several"], canary)
    (tmp_path / "R" / "v1" / "entries" / made.key / "model.mega").rename(file)
    done = precast("verify", str(file), "--json")
    assert (done.status, done.json["errors"][0]["code"]) == (ExitCode.INCOMPATIBLE, "stamp.mismatch")
    assert {m["field"] for m in done.json["errors"][0]["details"]["differing"]} == set(WRONG["several"].stamps)
    assert not canary.exists()


_LOAD = """
import sys
import torch
import precast
from precast.errors import IncompatibleError
try:
    precast.load(sys.argv[1], torch.nn.Module(), cache_dir=sys.argv[2])
except IncompatibleError as error:
    print(*sorted(m["field"] for m in error.details["differing"]))
"""


def test_loading_refuses_alike(tmp_path: Path) -> None:
    made = put(tmp_path / "R", WRONG["several"], tmp_path / "canary")
    mega = tmp_path / "R" / "v1" / "entries" / made.key / "model.mega"
    for what in (made.key, str(mega)):
        command = [sys.executable, "-W", "ignore", "-c", _LOAD, what, str(tmp_path / "R")]
        done = subprocess.run(
            command,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "python system torch\n", done.stderr
    assert not (tmp_path / "canary").exists()


def test_the_canary_does_sing_where_the_stamps_fit(precast: Precast, tmp_path: Path) -> None:
    made = put(tmp_path / "R", Wrong("inductor", CPU, {}), tmp_path / "canary")
    done = precast("verify", made.key, "--cache-dir", str(tmp_path / "R"), "--level", "load", "--json")
    assert done.status == ExitCode.CORRUPT  # what it unpickles to is no artifact
    assert (tmp_path / "canary").exists()
