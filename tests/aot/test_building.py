"""What a build writes into the manifest about graphs; nothing is compiled here."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.aot.support import Recorder, plan

from precast.aot.building import Builder
from precast.aot.planning import CompilePlan
from precast.aot.reference import SpecReference
from precast.aot.request import CompileInput
from precast.aot.settings import resolve_settings
from precast.aot.spec import ModelSpec, TensorInput
from precast.aot.target import Target
from precast.cache.lookup import Request
from precast.cache.manifest import Manifest
from precast.cache.store import Store
from precast.capture.support import AttentionGraphSupport as Support
from precast.errors import ConfigValueError


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> list[Manifest]:
    """Manifests that would have been published; pieces are not compiled."""
    made: list[Manifest] = []
    monkeypatch.setattr("precast.aot.compile.compile_pieces", lambda *_: [])
    monkeypatch.setattr("precast.aot.publish.publish", lambda _store, draft, *_: made.append(draft))
    monkeypatch.setattr(Builder, "_stamps", lambda *_: {"aoti": {"torch": "2"}})
    return made


def _sample(*_: Any) -> Any:
    raise AssertionError("nothing runs")


def build(root: Path, support: Support, **given: Any) -> None:
    spec = ModelSpec("m", list, (TensorInput("x", ("tokens", 4), "float32"),), ("m::attention",), _sample,
                     graph_support={"m::attention": support})  # fmt: skip
    settings = resolve_settings({"target": "h200", **given})
    planned = CompilePlan("k" * 64, spec, SimpleNamespace(plan=plan(), pieces=()), (), {}, (), ())  # type: ignore[arg-type]
    Builder(
        reference=SpecReference(spec),
        overrides={},
        settings=settings,
        input=CompileInput(Request(()), Target("cpu", "x86-64-v3"), settings),
        store=Store(root),
        progress=Recorder(),
        started=0.0,
    ).build(planned)


def test_the_manifest_says_what_the_model_made_of_the_mode(drafts: list[Manifest], tmp_path: Path) -> None:
    for support in (Support.ALWAYS, Support.NEVER):
        build(tmp_path, support)
    modes = [next(r for r in draft.settings if r.name == "cudagraph_mode") for draft in drafts]
    assert [(r.value, r.lowered_from) for r in modes] == [
        ("FULL_AND_PIECEWISE", None),
        ("PIECEWISE", "FULL_AND_PIECEWISE"),
    ]
    assert "m::attention can be captured for nothing" in modes[1].reason
    assert drafts[0].key == drafts[1].key


def test_full_graphs_that_cannot_be_are_refused_before_anything_is_compiled(
    drafts: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiles(*_: Any) -> Any:
        raise AssertionError("it compiles")

    monkeypatch.setattr("precast.aot.compile.compile_pieces", compiles)
    with pytest.raises(ConfigValueError, match="cannot be 'FULL'"):
        build(tmp_path, Support.NEVER, cudagraph_mode="FULL")
    assert not drafts
