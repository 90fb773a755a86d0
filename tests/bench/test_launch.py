"""Measured processes: their environment, what is read of their output, and what ends them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bench.launch import Budget, Runner
from tests.bench.peers import PEERS, entry
from tests.bench.workload import Workload

WORK = Workload("tiny-llama", "cpu")
REAL: Any = subprocess.Popen


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let measured processes run other code; its arguments are those of a measured process."""

    def replace(code: str) -> None:
        def popen(command: list[str], **how: Any) -> Any:
            assert command[1:3] == ["-m", "tests.bench.child"]
            return REAL([sys.executable, "-c", code, *command[3:]], **how)

        monkeypatch.setattr(subprocess, "Popen", popen)

    return replace


def test_the_last_object_that_is_printed_counts(tmp_path: Path, child: Callable[[str], None]) -> None:
    child("import json, sys; print('{}'); print(json.dumps(sys.argv[1:])); print(json.dumps({'a': 1})); print('bye')")
    ran = Runner(tmp_path, Budget(None)).compile(entry("eager"), WORK, "model")
    assert (ran.found, ran.error) == ({"a": 1}, None)


def test_caches_are_private_and_settings_are_not_inherited(
    tmp_path: Path, child: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRECAST_TARGET", "h200")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    child("import json, os; print(json.dumps(dict(os.environ)))")
    runner = Runner(tmp_path, Budget(None))
    compiled = runner.compile(entry("compile"), WORK, "model").found
    assert "PRECAST_TARGET" not in compiled
    assert compiled["TRITON_CACHE_DIR"] == str(tmp_path / "model" / "compile" / "triton")
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "PRECAST_CACHE_DIR", "TMPDIR")
    assert {name: runner.start(entry("compile"), WORK, "model").found[name] for name in names} == {
        name: compiled[name] for name in names
    }
    starts = [runner.start(entry("precast-aoti"), WORK, "model").found["TRITON_CACHE_DIR"] for _ in range(2)]
    assert len({*starts, compiled["TRITON_CACHE_DIR"]}) == 3


def test_only_the_op_s_kernels_are_given_to_peers_without_caches(tmp_path: Path, child: Callable[[str], None]) -> None:
    child("import json, os; print(json.dumps({'files': os.listdir(os.environ['TRITON_CACHE_DIR'])}))")
    runner = Runner(tmp_path, Budget(None))
    assert not runner.has_kernels("model")
    runner.compile(entry("eager"), WORK, "model")
    assert runner.has_kernels("model")
    (tmp_path / "model" / "eager" / "triton" / "kernel").touch()
    found = {peer.name: runner.start(peer, WORK, "model").found["files"] for peer in PEERS if not peer.keeps_caches}
    assert {name for name, files in found.items() if files} == {
        "cache-artifacts",
        "aot-compile",
        "aoti-package",
        "aoti-c-loader",
    }


def test_a_failure_tells_the_last_line(tmp_path: Path, child: Callable[[str], None]) -> None:
    child("import sys; sys.exit('it burst')")
    runner = Runner(tmp_path, Budget(None))
    assert runner.compile(entry("eager"), WORK, "model").error == "exit 1: it burst"
    child("print('nothing')")
    assert runner.compile(entry("eager"), WORK, "model").error == "it printed no figures"


def test_the_end_of_the_budget_ends_a_process_and_what_it_started(tmp_path: Path, child: Callable[[str], None]) -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, file=sys.stderr, flush=True); "
    child(code + "p.wait()")
    ran = Runner(tmp_path, Budget(1)).compile(entry("eager"), WORK, "model")
    assert ran.error == "the budget ended"
    (log,) = tmp_path.glob("*.log")
    state = Path(f"/proc/{int(log.read_text())}/stat")
    until = time.monotonic() + 10
    while state.exists() and " Z " not in state.read_text() and time.monotonic() < until:
        os.sched_yield()
    assert not state.exists() or " Z " in state.read_text()


def test_a_child_s_words_hold_the_workload(tmp_path: Path, child: Callable[[str], None]) -> None:
    child("import json, sys; print(json.dumps({'words': sys.argv[1:]}))")
    name, stage, folder, work = Runner(tmp_path, Budget(None)).start(entry("aot-compile"), WORK, "m").found["words"]
    assert (name, stage, folder) == ("aot-compile", "start", str(tmp_path / "m" / "aot-compile"))
    assert Workload.from_json(json.loads(work)) == WORK
