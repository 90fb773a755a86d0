"""Several targets in one call: N precompiles that share one trace. CPU levels stand for GPUs here."""

from pathlib import Path
from typing import Any

import pytest
from tests.aot.support import Recorder
from tests.conftest import MAX_TOKENS, TINY
from tests.models import Layers, make_spec

from precast.aot import trace
from precast.aot.compile import Compiled
from precast.aot.each_target import TargetOutcome, precompile_each, worst
from precast.aot.precompile import precompile
from precast.aot.settings import resolve_settings
from precast.aot.target_list import Wanted, settings_by_target, wanted_targets
from precast.aot.torch_seams.capture import capture_graph
from precast.cache.store import Store
from precast.cache.tags import all_tags
from precast.errors import CompileError, ExitCode, GraphBreakError, StoreAccessError, UsageError

LEVELS = ("x86-64-v3", "x86-64-v4")


def wanted(*names: str) -> tuple[Wanted, ...]:
    flags = {"target": names or LEVELS, "max_num_batched_tokens": MAX_TOKENS}
    return wanted_targets(settings_by_target(flags, {}, {}), {})


@pytest.fixture
def compiled_for(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make payloads of words; returns the targets that pieces were compiled for. One payload is the same for all."""
    asked: list[str] = []

    def compile_pieces(pieces: Any, ranges: Any, request: Any, progress: Any) -> tuple[Compiled, ...]:
        asked.append(request.target.arch)
        words = [p.key if at else f"{p.key} {request.target.arch}" for at, p in enumerate(pieces)]
        return tuple(Compiled(p.key, ranges[0], w.encode() * 9, 0.5) for p, w in zip(pieces, words, strict=True))

    monkeypatch.setattr("precast.aot.compile.compile_pieces", compile_pieces)
    return asked


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often Dynamo captures the model."""
    times: list[int] = []

    def counted(*args: Any) -> Any:
        times.append(1)
        return capture_graph(*args)

    monkeypatch.setattr(trace, "capture_graph", counted)
    return times


def test_two_targets_are_traced_once_and_make_what_each_would_make_alone(
    tmp_path: Path, compiled_for: list[str], traced: list[int]
) -> None:
    outcomes = precompile_each(str(TINY), wanted(), cache_dir=tmp_path / "both")
    assert (compiled_for, len(traced)) == (list(LEVELS), 1)
    results = [o.result for o in outcomes]
    assert all(r is not None and r.status == "compiled" for r in results)
    for one, result in zip(LEVELS, results, strict=True):
        settings = resolve_settings({"target": one, "max_num_batched_tokens": MAX_TOKENS}, {})
        alone = precompile(str(TINY), settings, cache_dir=tmp_path / one)
        assert result is not None
        assert alone.key == result.key
        assert [p.object for p in alone.payloads] == [p.object for p in result.payloads]
    assert len(traced) == 3
    both = [Store(tmp_path / "both").manifest(r.key) for r in results if r is not None]
    differing = {f.label for f in both[0].factors if f not in both[1].factors}
    assert differing == {"compiler/target", "compiler/inductor_config"}


def test_equal_bytes_are_one_object(tmp_path: Path, compiled_for: list[str]) -> None:
    first, second = (o.result for o in precompile_each(str(TINY), wanted(), cache_dir=tmp_path))
    assert first is not None
    assert second is not None
    objects = [{p.object for p in r.payloads} for r in (first, second)]
    assert (len(objects[0]), len(objects[0] & objects[1])) == (3, 2)
    kept = {p.name.partition(".")[0] for p in Store(tmp_path).layout.objects.rglob("*.zst")}
    assert objects[0] | objects[1] <= {name[-64:] for name in kept}


def test_a_target_that_is_there_needs_no_trace_and_equal_ones_are_done_once(
    tmp_path: Path, compiled_for: list[str], traced: list[int]
) -> None:
    precompile_each(str(TINY), wanted("x86-64-v3"), cache_dir=tmp_path)
    again = precompile_each(str(TINY), wanted("x86-64-v3", "x86-64-v4", "x86-64-v3"), cache_dir=tmp_path)
    assert [o.result.status for o in again if o.result] == ["up_to_date", "compiled"]
    assert (compiled_for, len(traced)) == (list(LEVELS), 2)
    third = precompile_each(str(TINY), wanted(), cache_dir=tmp_path)
    assert ([o.result.status for o in third if o.result], len(traced)) == (["up_to_date"] * 2, 2)


def test_a_dry_run_plans_every_target_with_one_trace(tmp_path: Path, traced: list[int]) -> None:
    outcomes = precompile_each(str(TINY), wanted(), cache_dir=tmp_path / "root", dry_run=True)
    assert [o.result.status for o in outcomes if o.result] == ["planned", "planned"]
    assert len({o.result.key for o in outcomes if o.result}) == 2
    assert len(traced) == 1
    assert not (tmp_path / "root").exists()


def test_a_target_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_pieces(pieces: Any, ranges: Any, request: Any, progress: Any) -> tuple[Compiled, ...]:
        if request.target.arch == LEVELS[0]:
            raise CompileError("piece 1 could not be compiled")
        return tuple(Compiled(p.key, r, b"words" * 9, 0.5) for p in pieces for r in ranges)

    monkeypatch.setattr("precast.aot.compile.compile_pieces", compile_pieces)
    told: list[TargetOutcome] = []
    progress = Recorder()
    outcomes = precompile_each(str(TINY), wanted(), cache_dir=tmp_path, progress=progress, on_done=told.append)
    assert told == list(outcomes)
    assert isinstance(outcomes[0].error, CompileError)
    assert outcomes[0].result is None
    assert outcomes[1].error is None
    assert len(list(Store(tmp_path).entries())) == 1
    assert "note: target 1 of 2: x86-64-v3, cpu x86-64-v3" in progress.told


def test_what_is_wrong_with_the_model_is_told_once(tmp_path: Path, traced: list[int]) -> None:
    class Breaks(Layers):
        def forward(self, x: Any) -> Any:
            return super().forward(x) if x.sum() > 0 else x

    with pytest.raises(GraphBreakError):
        precompile_each(make_spec(lambda: Breaks(1)), wanted(), cache_dir=tmp_path)
    assert len(traced) == 1


@pytest.mark.parametrize("error", [UsageError("wrong"), StoreAccessError("full")])
def test_what_is_wrong_with_the_call_ends_it(tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fail(model: Any, settings: Any, **_: Any) -> None:
        asked.append(settings.target)
        raise error

    monkeypatch.setattr("precast.aot.each_target.precompile", fail)
    with pytest.raises(type(error)):
        precompile_each(str(TINY), wanted(), cache_dir=tmp_path)
    assert asked == ["x86-64-v3"]


def test_tags_and_files_are_named_by_target(tmp_path: Path, compiled_for: list[str]) -> None:
    outcomes = precompile_each(
        str(TINY), wanted(), cache_dir=tmp_path / "root", tags=["prod-{target}"], output=tmp_path / "m-{target}.mega"
    )
    keys = [o.result.key for o in outcomes if o.result]
    assert all_tags(Store(tmp_path / "root")) == {"prod-x86-64-v3": keys[0], "prod-x86-64-v4": keys[1]}
    assert [o.output for o in outcomes] == [tmp_path / f"m-{level}.mega" for level in LEVELS]


@pytest.mark.parametrize("given", [{"tags": ["prod"]}, {"output": Path("m.mega")}])
def test_one_name_for_two_targets_is_refused_before_any_work(
    tmp_path: Path, given: dict[str, Any], traced: list[int]
) -> None:
    with pytest.raises(UsageError):
        precompile_each(str(TINY), wanted(), cache_dir=tmp_path, **given)
    assert traced == []


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0], 0), ([0, 3], 3), ([3, 2], 2), ([5, 3, 0], 5), ([5, 7], 7), ([9, 7, 0], 9), ([], 0),
    ],
)  # fmt: skip
def test_the_worst_exit_status_counts(codes: list[int], code: int) -> None:
    assert worst([ExitCode(c) for c in codes]) == code
