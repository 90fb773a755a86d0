"""S9: no trace on the serving node. Compile work is counted from outside; the tool's own counters are not believed."""

import json
import sys
from pathlib import Path

import pytest
from tests.conftest import TinyEntry
from tests.scenarios.counting import ACCOUNTED, TICK, counted, verify

from precast.cache.store import Store
from precast.errors import ExitCode

SIZES = (1, 2, 7, 97, 512)


def remove_a_piece(entry: TinyEntry) -> str:
    store = Store(entry.root, read_only=True)
    name = store.manifest(entry.key).payloads[0].object
    store.layout.object(name).unlink()
    return name


@pytest.mark.compiles
def test_a_fresh_process_loads_and_computes_with_nothing_traced_or_compiled(
    tiny_entry: TinyEntry, tmp_path: Path
) -> None:
    ran = verify(tmp_path / "log", tiny_entry.root, tiny_entry.key, "--sizes", ",".join(map(str, SIZES)))
    assert ran.status == 0, ran.err
    assert ran.counts == {}
    assert {name: stage["status"] for name, stage in ran.stages.items()} == {
        "signature": "skipped", "files": "ok", "env": "ok", "load": "ok", "numerics": "ok", "capture": "skipped",
    }  # fmt: skip
    assert tuple(ran.stages["numerics"]["facts"]["tokens"]) == SIZES
    assert "compiled for the cpu" in ran.stages["capture"]["summary"]


@pytest.mark.compiles
def test_the_phases_account_for_the_time(tiny_entry: TinyEntry, tmp_path: Path) -> None:
    ran = verify(tmp_path / "log", tiny_entry.root, tiny_entry.key, "--level", "numerics")
    data = ran.answer["data"]
    phases = dict(data["phases"])
    assert sum(phases.values()) == pytest.approx(data["seconds"])
    assert data["seconds"] <= ran.seconds + TICK
    other = phases.pop("other")
    assert {"start", "import", "load", "build model", "bind", "compare"} <= set(phases)
    assert sum(phases.values()) >= ACCOUNTED * ran.seconds, f"{phases}, other {other}, of {ran.seconds}"


@pytest.mark.compiles
def test_a_piece_that_is_gone_fails_and_is_named_or_degrades_and_is_never_compiled(
    tiny_entry: TinyEntry, tmp_path: Path
) -> None:
    entry = tiny_entry.copy_to(tmp_path / "R")
    gone = remove_a_piece(entry)
    strict = verify(tmp_path / "log", entry.root, entry.key)
    assert strict.status == ExitCode.CORRUPT
    assert (strict.counts, strict.torch) == ({}, False)
    (damaged,) = strict.stages["files"]["facts"]["damaged"]
    assert (damaged["member"], damaged["code"]) == (f"object {gone}", "missing")
    assert gone in json.dumps(strict.answer["errors"])

    normal = verify(tmp_path / "log", entry.root, entry.key, "--no-strict", "--sizes", "1,2")
    assert normal.status == ExitCode.PARTIAL
    assert normal.counts == {}
    assert [normal.stages[name]["status"] for name in ("files", "load", "numerics")] == ["degraded", "degraded", "ok"]
    assert normal.answer["data"]["verified"] is False


@pytest.mark.compiles
def test_to_capture_without_a_gpu_is_refused_at_once_with_one_clear_line(tiny_entry: TinyEntry, tmp_path: Path) -> None:
    for words in (("--level", "capture"), ("--bench",)):
        ran = verify(tmp_path / "log", tiny_entry.root, tiny_entry.key, *words)
        assert ran.status == ExitCode.NO_GPU
        (error,) = ran.answer["errors"]
        assert error["code"] == "device.no_gpu"
        assert "compiled for the cpu, which has no CUDA graphs" in error["why"]
        assert (ran.counts, ran.torch) == ({}, False)
        assert ran.err.splitlines()[0].startswith("error: graphs cannot be captured")


_WORK = """
import subprocess, sys
import torch
compiled = torch.compile(lambda x: x + 1, backend="eager")
compiled(torch.ones(2))
from torch._inductor.graph import GraphLowering
from torch._inductor.cpp_builder import CppBuilder
for work in (GraphLowering.run, CppBuilder.build):
    try:
        work(None)
    except Exception:
        pass
subprocess.run([sys.executable, "-c", ""], check=True)
print()
"""


def test_the_harness_sees_what_it_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process, _ = counted(log, sys.executable, "-c", _WORK)
    _, err = process.communicate()
    assert process.returncode == 0, err
    seen: dict[str, int] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        seen |= json.loads(line)["counts"]
    assert {"dynamo", "inductor", "cpp", "processes"} <= set(seen)
    assert not [kind for kind in seen if kind.startswith("missing")]
