"""`precast verify --level capture --bench` on a GPU: S9's second half, in a fresh process that counts for itself."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import TINY
from tests.gpu.conftest import GpuEntry
from tests.scenarios.counting import ACCOUNTED, Run, verify

import precast
from precast import BatchLimits
from precast.aot.numerics import build_real
from precast.aot.reference import parse_reference
from precast.capture.modes import CUDAGraphMode
from precast.capture.state import BatchShape
from precast.errors import ExitCode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PIECES = 3  # of two layers
COMPILED = ("dynamo", "inductor", "triton", "cpp", "compilers")


def run(entry: GpuEntry, tmp_path: Path, *words: str) -> Run:
    """Verify with compile caches that nothing was written to."""
    caches = {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    # The driver and the toolkit are found through the environment of the machine.
    environ = {**os.environ, **caches, "HOME": str(tmp_path)}
    return verify(tmp_path / "log", entry.root, entry.key, *words, environ=environ)


@pytest.fixture(scope="module")
def benched(gpu_entry: GpuEntry, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Verify once with everything on."""
    words = ("--level", "capture", "--bench", "--max-num-seqs", "64")
    return run(gpu_entry, tmp_path_factory.mktemp("benched"), *words)


def capture_of(ran: Run) -> dict[str, Any]:
    facts: dict[str, Any] = ran.stages["capture"]["facts"]
    return facts


def test_every_planned_graph_is_captured_and_equals_eager(benched: Run) -> None:
    assert benched.status == 0, benched.err
    assert all(s["status"] in ("ok", "skipped") for s in benched.stages.values())
    facts = capture_of(benched)
    sizes = facts["sizes"]
    assert sizes == [1, 2, 4, *range(8, 65, 8)]
    assert facts["mode"] == "FULL_AND_PIECEWISE"
    assert facts["modes"]["PIECEWISE"]["graphs"] == PIECES * len(sizes)
    assert facts["modes"]["FULL"]["graphs"] == len(sizes)
    assert facts["compared"] == 2 * len(sizes)
    assert facts["max_relative_error"] <= facts["limit"]
    assert {(g["mode"], g["num_tokens"]) for g in facts["graphs"]} == {
        (mode, size) for mode in ("PIECEWISE", "FULL") for size in sizes
    }


def test_memory_and_seconds_of_each_mode_are_told(benched: Run) -> None:
    facts = capture_of(benched)
    assert facts["bytes"] > 0
    for mode in ("PIECEWISE", "FULL"):
        assert facts["modes"][mode]["seconds"] > 0
        assert facts["modes"][mode]["bytes"] >= 0
    assert min(facts["plan"]["graphs"], facts["plan"]["seconds"], facts["plan"]["bytes"]) > 0


def test_two_hundred_random_batches_compile_nothing_and_capture_nothing(benched: Run) -> None:
    served = capture_of(benched)["served"]
    assert served["batches"] == 200
    assert served["full"] + served["piecewise"] + served["none"] == 200
    assert min(served["full"], served["piecewise"]) > 0
    assert (served["late_captures"], served["uncaptured"]) == (0, 0)
    assert {kind: benched.counts.get(kind, 0) for kind in COMPILED} == dict.fromkeys(COMPILED, 0)
    assert not [kind for kind in benched.counts if kind.startswith("missing")]


def test_the_phases_account_for_the_time(benched: Run) -> None:
    phases = dict(benched.answer["data"]["phases"])
    other = phases.pop("other")
    assert {
        "start", "import", "load", "build model", "bind", "graph state", "warm-up", "capture PIECEWISE", "capture FULL",
        "compare graphs", "random batches", "bench", "release graphs",
    } <= set(phases)  # fmt: skip
    assert sum(phases.values()) >= ACCOUNTED * benched.seconds, f"{phases}, other {other}, of {benched.seconds}"


def test_the_bench_has_every_batch_size_that_fits_and_every_way(benched: Run) -> None:
    bench = capture_of(benched)["bench"]
    assert [row["batch"] for row in bench["rows"]] == [1, 8, 64]
    for row in bench["rows"]:
        assert set(row["ms"]) == {"full", "piecewise", "none", "eager"}
        assert 0 < row["floor_ms"] < min(row["ms"].values())
    assert bench["copy_bytes_per_second"] > 1e11


@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE", "FULL_DECODE_ONLY"])
def test_each_mode_alone(gpu_entry: GpuEntry, tmp_path: Path, mode: str) -> None:
    words = ("--cudagraph-mode", mode, "--cudagraph-capture-sizes", "1,8,32", "--max-num-seqs", "32")
    ran = run(gpu_entry, tmp_path, "--level", "capture", "--sizes", "1", *words)
    assert ran.status == 0, ran.err
    assert set(capture_of(ran)["modes"]) == {"PIECEWISE" if mode == "PIECEWISE" else "FULL"}
    assert "bench" not in capture_of(ran)


def test_mode_none_captures_nothing_and_says_so(gpu_entry: GpuEntry, tmp_path: Path) -> None:
    ran = run(gpu_entry, tmp_path, "--level", "capture", "--sizes", "1", "--cudagraph-mode", "NONE")
    assert ran.status == 0, ran.err
    assert ran.stages["capture"]["status"] == "skipped"
    assert "NONE" in ran.stages["capture"]["summary"]


def test_hidden_gpus_are_no_gpus(gpu_entry: GpuEntry, tmp_path: Path) -> None:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ran = verify(tmp_path / "log", gpu_entry.root, gpu_entry.key, "--level", "capture", environ=environ)
    assert ran.status == ExitCode.NO_GPU
    assert ran.answer["errors"][0]["code"] == "device.no_gpu"


def test_the_library_captures_and_runs_a_loaded_model(gpu_entry: GpuEntry) -> None:
    spec = parse_reference(str(TINY)).spec(gpu_entry.overrides)
    module = build_real(spec, "cuda")
    assert spec.graph_state is not None
    limits = BatchLimits(max_num_batched_tokens=64, max_num_seqs=32)
    state = spec.graph_state(module, limits)
    manager = precast.capture_graphs(precast.load(gpu_entry.key, module, cache_dir=gpu_entry.root), state, limits)
    with torch.no_grad(), state.use():
        for seed, (lens, uniform) in enumerate([((1,) * 5, 1), ((7, 2), None), ((40, 1, 1), None), ((1,), 1)]):
            tokens = sum(lens)
            descriptor = manager.dispatch(len(lens), tokens, uniform, max_query_len=uniform)
            assert descriptor.mode is (CUDAGraphMode.FULL if uniform else CUDAGraphMode.PIECEWISE)
            shape = BatchShape(lens, descriptor.num_tokens)
            state.fill(shape, seed)
            expected = module(*state.inputs(tokens))
            state.fill(shape, seed)
            torch.testing.assert_close(manager.run(descriptor)[:tokens], expected, rtol=1e-3, atol=1e-3)
    counts = manager.counts()
    assert (counts.full, counts.piecewise, counts.none, counts.uncaptured, counts.late_captures) == (2, 2, 0, 0, 0)
    manager.release()
