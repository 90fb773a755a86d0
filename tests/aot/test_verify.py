"""Verify: what it proves on the node, and each way in which it must fail."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.aot import graphed
from tests.aot.graphed import one_thread  # noqa: F401 - a fixture
from tests.aot.support import manifest, publish
from tests.capture.support import ReplayingBackend
from tests.conftest import REPOSITORY, TinyEntry

from precast.aot.settings import resolve_settings
from precast.aot.verify import LEVELS, verify
from precast.cache.canonical import sha256
from precast.cache.mega import write_mega
from precast.cache.store import Store
from precast.errors import ExitCode, NoEntryError, NoGpuError, UnknownModelError, UsageError, VerifyError

# Runs in a process of its own: what is imported and what is compiled can only be seen there.
_VERIFY = """
import json, sys
from precast.aot.verify import verify
from precast.errors import PrecastError
given = json.loads(sys.argv[1])
try:
    report = verify(given.pop("what"), **given)
except PrecastError as error:
    print(json.dumps({"raised": type(error).__name__, "exit": int(error.exit_code)}))
else:
    heavy = [m for m in ("torch._dynamo", "torch._inductor", "sympy", "triton") if m in sys.modules]
    print(json.dumps({
        "ok": report.ok, "exit": int(report.exit_code), "stages": {s.name: s.status for s in report.stages},
        "facts": {s.name: dict(s.facts) for s in report.stages}, "problems": [str(p) for p in report.problems],
        "torch": "torch" in sys.modules, "heavy": heavy,
    }))
"""


def run(entry: TinyEntry, what: str | None = None, **given: Any) -> dict[str, Any]:
    request = {"what": what or entry.key, "cache_dir": str(entry.root), **given}
    env = {**os.environ, "PATH": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": "/proc/nope"}
    env |= {"PYTHONPATH": str(REPOSITORY / "src"), "HOME": "/nonexistent"}
    command = [sys.executable, "-W", "ignore", "-c", _VERIFY, json.dumps(request)]
    out = subprocess.run(command, env=env, capture_output=True, check=False)
    assert out.returncode == 0, out.stderr.decode()[-2000:]
    result: dict[str, Any] = json.loads(out.stdout.decode().splitlines()[-1])
    return result


@pytest.fixture
def entry(tiny_entry: TinyEntry, tmp_path: Path) -> TinyEntry:
    return tiny_entry.copy_to(tmp_path / "copy")


def an_object(entry: TinyEntry) -> Path:
    """Return the object of a payload; the sources are an object too, and no load needs them."""
    store = Store(entry.root, read_only=True)
    return store.layout.object(store.manifest(entry.key).payloads[0].object)


def truncate(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.compiles
def test_a_sound_entry_loads_with_no_compiler_no_cache_and_no_compiler_module(entry: TinyEntry) -> None:
    found = run(entry, level="load")
    assert (found["ok"], found["exit"], found["heavy"]) == (True, 0, [])
    assert found["stages"] == {"signature": "skipped", "files": "ok", "env": "ok", "load": "ok"}
    assert found["facts"]["load"]["compiler_processes"] == found["facts"]["load"]["dynamo_frames"] == 0
    assert found["facts"]["load"]["processes"] == 0


@pytest.mark.compiles
def test_a_sound_entry_computes_what_the_model_computes(entry: TinyEntry) -> None:
    found = run(entry, level="numerics", token_counts=[1, 2, 97, 512])
    assert (found["ok"], found["stages"]["numerics"]) == (True, "ok")
    facts = found["facts"]["numerics"]
    assert facts["tokens"] == [1, 2, 97, 512]
    assert facts["max_relative_error"] <= facts["limit"]
    assert [facts[k] for k in ("dynamo_frames", "inductor_compiles", "cpp_builds", "compiler_processes")] == [0] * 4


@pytest.mark.compiles
def test_the_mega_file_alone_is_enough(entry: TinyEntry, tmp_path: Path) -> None:
    mega = tmp_path / "model.mega"
    (Store(entry.root).layout.entry(entry.key) / "model.mega").rename(mega)
    found = run(replace(entry, root=tmp_path / "empty"), str(mega), level="load")
    assert (found["ok"], found["heavy"]) == (True, [])


@pytest.mark.compiles
@pytest.mark.parametrize("damage", [truncate, flip, remove], ids=lambda f: f.__name__)
def test_a_damaged_object_fails_before_torch_is_imported(entry: TinyEntry, damage: Any) -> None:
    damage(an_object(entry))
    found = run(entry)
    assert (found["ok"], found["exit"], found["torch"]) == (False, int(ExitCode.CORRUPT), False)
    assert found["stages"]["files"] == "failed"
    assert "load" not in found["stages"]


@pytest.mark.compiles
@pytest.mark.parametrize("damage", [truncate, remove], ids=lambda f: f.__name__)
def test_without_strict_the_mega_file_helps_and_the_report_says_so(entry: TinyEntry, damage: Any) -> None:
    damage(an_object(entry))
    found = run(entry, level="load", strict=False)
    assert (found["ok"], found["exit"]) == (False, int(ExitCode.PARTIAL))
    assert (found["stages"]["files"], found["stages"]["load"]) == ("degraded", "degraded")
    assert len(found["facts"]["load"]["degraded"]) == 1


@pytest.mark.compiles
def test_an_entry_of_another_torch_is_refused_before_torch_is_imported(entry: TinyEntry, tmp_path: Path) -> None:
    store = Store(entry.root)
    made = store.manifest(entry.key)
    raw = {name: store.read_object(name, size) for name, size in made.objects.items()}
    other = Store(tmp_path / "other")
    for data in raw.values():
        other.put_object(data)
    stale = replace(made, stamps={k: {**v, "torch": "1.0.0"} for k, v in made.stamps.items()}, mega=None, digest="")
    other.publish(stale, write_mega(stale, raw, {}))
    found = run(replace(entry, root=tmp_path / "other"))
    assert (found["exit"], found["torch"]) == (int(ExitCode.INCOMPATIBLE), False)
    assert "torch: entry 1.0.0, node" in found["problems"][0]
    assert found["stages"] == {"signature": "skipped", "files": "ok", "env": "failed"}


@pytest.mark.compiles
def test_a_token_count_outside_the_entry_is_a_usage_error(entry: TinyEntry) -> None:
    found = run(entry, level="numerics", token_counts=[100_000])
    assert found["exit"] == int(ExitCode.USAGE)
    assert "100000 tokens" in found["problems"][0]


def test_the_levels_stop_where_they_are_told(tmp_path: Path) -> None:
    publish(tmp_path, manifest())
    assert [s.name for s in verify(manifest().key, cache_dir=tmp_path, level="files").stages] == [
        "signature",
        "files",
    ]
    assert verify(manifest().key, cache_dir=tmp_path, level="env").level == "env"


def test_a_payload_that_does_not_load_fails_the_load(tmp_path: Path) -> None:
    publish(tmp_path, manifest())
    report = verify(manifest().key, cache_dir=tmp_path)
    assert (report.ok, report.exit_code) == (False, ExitCode.CORRUPT)
    assert [s.status for s in report.stages] == ["skipped", "ok", "ok", "failed"]


def test_a_compile_while_loading_fails_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, manifest())

    class Kind:
        def load(self, data: bytes, folder: Path, name: str) -> Any:
            compiler = folder / "g++"
            compiler.write_text("#!/bin/sh\n", encoding="utf-8")
            compiler.chmod(0o755)
            subprocess.run([str(compiler)], check=True)
            return list

    monkeypatch.setattr("precast.aot.load.payload_kind", lambda name: Kind())
    report = verify(manifest().key, cache_dir=tmp_path)
    assert (report.ok, report.exit_code) == (False, ExitCode.VERIFY_FAILED)
    assert isinstance(report.problems[0], VerifyError)
    assert "g++" in report.problems[0].why


@pytest.mark.parametrize(("kind", "exit_code"), [("aoti", ExitCode.VERIFY_FAILED), ("inductor", ExitCode.OK)])
def test_an_aoti_load_may_start_no_process_at_all(
    kind: str, exit_code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = manifest(model=replace(manifest().model, reference="gone"))
    made = replace(made, payloads=tuple(replace(p, kind=kind) for p in made.payloads))
    publish(tmp_path, made)

    class Kind:
        def load(self, data: bytes, folder: Path, name: str) -> Any:
            subprocess.run(["/bin/true"], check=True)
            return list

    monkeypatch.setattr("precast.aot.load.payload_kind", lambda name: Kind())
    report = verify(made.key, cache_dir=tmp_path)
    assert report.exit_code == exit_code
    if kind == "aoti":
        assert report.problems[0].what.startswith("a process was started")
        assert "true" in str(report.problems[0].why)
    else:
        assert report.stages[3].facts["processes"] == 1


def test_without_the_model_the_numbers_are_skipped_and_asked_for_they_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kind:
        def load(self, data: bytes, folder: Path, name: str) -> Any:
            return list

    monkeypatch.setattr("precast.aot.load.payload_kind", lambda name: Kind())
    unnamed = replace(manifest().model, reference="gone")
    publish(tmp_path, manifest(model=unnamed))
    report = verify(manifest().key, cache_dir=tmp_path)
    assert (report.ok, report.level, report.stages[-1].status) == (True, "load", "skipped")
    assert verify(manifest().key, cache_dir=tmp_path, level="numerics").exit_code == ExitCode.USAGE


@pytest.mark.parametrize("level", ["", "all", "FILES"])
def test_an_unknown_level_is_refused(tmp_path: Path, level: str) -> None:
    with pytest.raises(UsageError, match="level"):
        verify("abcdef0", cache_dir=tmp_path, level=level)
    assert "numerics" in LEVELS


@pytest.mark.parametrize(("what", "error"), [("abcdef0123", NoEntryError), ("no such thing", UnknownModelError)])
def test_what_is_not_there_is_said_and_nothing_is_compiled(tmp_path: Path, what: str, error: Any) -> None:
    with pytest.raises(error):
        verify(what, cache_dir=tmp_path)


def test_what_captures_nothing_is_told_before_anything_is_done(tmp_path: Path) -> None:
    made = manifest()
    publish(tmp_path, made)
    for asked in ({"level": "capture"}, {"bench": True}, {"level": "capture", "bench": True}):
        with pytest.raises(NoGpuError, match="graphs cannot be captured") as caught:
            verify(made.key, cache_dir=tmp_path, **asked)
        assert "compiled for the cpu" in caught.value.why
    with pytest.raises(UsageError, match="times nothing"):
        verify(made.key, cache_dir=tmp_path, level="load", bench=True)


def test_without_the_model_nothing_can_be_captured_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kind:
        def load(self, data: bytes, folder: Path, name: str) -> Any:
            return list

    monkeypatch.setattr("precast.aot.load.payload_kind", lambda name: Kind())
    made = manifest(model=replace(manifest().model, reference="gone"))
    publish(tmp_path, made)
    automatic = verify(made.key, cache_dir=tmp_path)
    assert [s.status for s in automatic.stages if s.name in ("numerics", "capture")] == ["skipped", "skipped"]
    assert automatic.ok
    monkeypatch.setattr("precast.aot.verify.require_gpu", lambda *_: None)
    asked = verify(made.key, cache_dir=tmp_path, level="capture")
    assert (asked.ok, asked.exit_code) == (False, ExitCode.USAGE)


@pytest.fixture
def eager_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Publish a decoder whose payloads are the names of pieces that run eagerly; return its key."""
    pieces = graphed.pieces()
    raw = {f"{key} {low}-{high}".encode(): (key, (low, high)) for key, (low, high) in pieces.callables}

    class Kind:
        def load(self, data: bytes, folder: Path, name: str) -> Any:
            return pieces.callables[raw[data]]

    monkeypatch.setattr("precast.aot.load.payload_kind", lambda name: Kind())
    base = manifest(pieces.plan)
    records = tuple(
        replace(base.payloads[0], name=f"{key}:{low}-{high}", object=sha256(data), bytes=len(data), range=(low, high))
        for data, (key, (low, high)) in raw.items()
    )
    made = replace(base, payloads=records)
    store = Store(tmp_path)
    for data in raw:
        store.put_object(data)
    store.publish(made, write_mega(made, {sha256(data): data for data in raw}, {}))
    return made.key


MODEL = f"{Path(graphed.__file__)}:captured"


@pytest.mark.usefixtures("one_thread")
def test_on_a_cpu_entry_capture_is_skipped_with_the_reason(eager_entry: str, tmp_path: Path) -> None:
    report = verify(eager_entry, cache_dir=tmp_path, model=MODEL, token_counts=[1, 9])
    assert report.ok, report.problems
    assert (report.level, report.stages[-1].name, report.stages[-1].status) == ("numerics", "capture", "skipped")
    assert "compiled for the cpu, which has no CUDA graphs" in report.stages[-1].summary
    assert {"find", "files", "env", "import", "load", "build model", "bind", "compare"} <= set(report.phases)


@pytest.mark.usefixtures("one_thread")
def test_every_level_up_to_capture(eager_entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.aot.capture_request._no_gpu", lambda *_: None)
    monkeypatch.setattr("precast.aot.graphs.cuda_backend", lambda bound: ReplayingBackend())
    settings = resolve_settings({"target": "h200", "cudagraph_capture_sizes": "1,4,8", "max_num_seqs": 4})
    report = verify(
        eager_entry, cache_dir=tmp_path, model=MODEL, token_counts=[1], level="capture", settings=settings, bench=True
    )
    assert report.ok, report.problems
    assert report.level == "capture"
    facts = dict(report.stages[-1].facts)
    assert facts["sizes"] == [1, 4, 8]
    assert set(facts["modes"]) == {"FULL", "PIECEWISE"}  # type: ignore[arg-type]
    assert report.phases["build model"] > 0
    assert report.unaccounted < 0.05, dict(report.phases)
