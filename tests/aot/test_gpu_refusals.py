"""What a node lacks for an entry that was made for a described GPU is told before a byte of it is loaded."""

from pathlib import Path
from typing import Any

import pytest
from tests.aot.support import RAW, manifest, publish
from torch import nn

from precast.aot import stamps
from precast.aot.load import load
from precast.aot.stamps import payload_stamps
from precast.aot.target import Target, named_target
from precast.aot.verify import verify
from precast.cache.manifest import Manifest
from precast.cache.store import Store
from precast.errors import ExitCode, IncompatibleError

H200 = named_target("h200", {})
NEEDS = {"glibc": "2.34", "glibcxx": "3.4.30"}


@pytest.fixture(autouse=True)
def no_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "torch_cuda", lambda: "13.0")
    monkeypatch.setattr("precast.aot.torch_seams.triton.assembler_version", lambda arch: "12.9")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def entry() -> Manifest:
    return manifest(target=H200.to_json(), stamps={"aoti": payload_stamps("aoti", H200, [NEEDS])})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return publish(tmp_path, entry(), RAW)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The facts of a node with an H200, on which everything fits; a test changes some."""
    said = {**payload_stamps("aoti", H200, [NEEDS]), "driver": "13.1", "glibc": "2.36", "glibcxx": "3.4.33"}
    monkeypatch.setattr(stamps, "node_facts", lambda *_: {f: (lambda f=f: said[f]) for f in said})
    return said


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of payloads that were loaded."""
    kinds: list[str] = []

    class Kind:
        def load(self, data: bytes, folder: Path, name: str) -> Any:
            return lambda inputs: inputs

    def payload_kind(name: str) -> Any:
        kinds.append(name)
        return Kind()

    monkeypatch.setattr("precast.aot.load.payload_kind", payload_kind)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.device", lambda index: __import__("contextlib").nullcontext())
    return kinds


REFUSED = [
    ("arch", "sm_80"), ("arch", "sm_100"), ("device", "no gpu"), ("driver", "12.8"), ("driver", "absent"),
    ("glibc", "2.31"), ("glibcxx", "3.4.29"), ("gpu.shared_memory_per_block_optin", "166912"),
    ("gpu.multi_processor_count", "114"), ("gpu.warp_size", "64"), ("gpu.max_threads_per_block", "512"),
    ("gpu.regs_per_multiprocessor", "32768"), ("gpu.max_threads_per_multi_processor", "1536"), ("isa", "x86-64-v2"),
    ("torch", "2.0.0"), ("system", "linux aarch64"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_each_lack_is_refused_by_name_before_a_payload_is_read(
    store: Store, node: dict[str, str], loaded: list[str], field: str, value: str
) -> None:
    node[field] = value
    with pytest.raises(IncompatibleError) as caught:
        load(entry().key, nn.Module(), cache_dir=store.root)
    (told,) = caught.value.details["differing"]
    assert (told["field"], told["node"]) == (field, value)
    assert caught.value.exit_code == ExitCode.INCOMPATIBLE
    assert loaded == []


def test_the_node_itself_and_a_newer_one_load_it(store: Store, node: dict[str, str], loaded: list[str]) -> None:
    node.update(driver="14.0", glibc="2.41", isa="x86-64-v4")
    load(entry().key, nn.Module(), cache_dir=store.root)
    assert loaded == ["aoti"]


def test_verify_tells_the_same_and_stops_before_the_load(store: Store, node: dict[str, str], loaded: list[str]) -> None:
    node.update({"arch": "sm_89", "gpu.shared_memory_per_block_optin": "101376"})
    report = verify(entry().key, cache_dir=store.root)
    assert (report.exit_code, report.level) == (ExitCode.INCOMPATIBLE, "env")
    assert "gpu.shared_memory_per_block_optin: entry 232448, node 101376" in report.problems[0].why
    assert loaded == []


def test_every_code_fact_of_a_described_gpu_is_stamped_and_refused_above() -> None:
    made = payload_stamps("aoti", H200, [NEEDS])
    tested = {field for field, _ in REFUSED}
    assert {f for f in made if f.startswith("gpu.")} <= tested
    assert not any(f.startswith("gpu.") for f in payload_stamps("aoti", Target("cuda", "sm_90")))
