"""Configs of Triton kernels: the first alone is stored, or all are and a load takes the one that was chosen."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch._inductor.runtime.triton_heuristics import CachingAutotuner, NoTritonConfigsError

from precast.aot.torch_seams.tuning import configs_chosen, first_configs
from precast.errors import IncompatibleError


def kernel(*hashes: str) -> Any:
    """A kernel as `StaticAutotunerFuture` holds it, with one compiled config for each hash."""
    results = [SimpleNamespace(kernel=SimpleNamespace(hash=h), config=object()) for h in hashes]
    return SimpleNamespace(compile_results=results, save_cache_hook=None)


def recheck(loaded: Any) -> None:
    CachingAutotuner.recheck_autotune_cache(loaded, reload_kernel_from_src=lambda: pytest.fail("reloaded"))


def test_a_choice_is_told_once_it_is_made_and_taken_over_by_the_next_load() -> None:
    chosen: dict[str, str] = {}
    first, second = kernel("x", "y", "z"), kernel("z", "x", "y")
    with configs_chosen({}, chosen.__setitem__):
        recheck(first)
    assert len(first.compile_results) == 3
    first.save_cache_hook(first.compile_results[1].config, 7, triton_cache_hash="path")
    assert len(chosen) == 1
    with configs_chosen(chosen, lambda *_: pytest.fail("chosen again")):
        recheck(second)
    assert [r.kernel.hash for r in second.compile_results] == ["y"]
    assert second.save_cache_hook is None


def test_choices_of_another_kernel_or_of_a_config_that_is_not_there_do_not_count() -> None:
    chosen: dict[str, str] = {}
    first = kernel("x", "y")
    with configs_chosen({}, chosen.__setitem__):
        recheck(first)
    first.save_cache_hook(first.compile_results[0].config, 7)
    (name,) = chosen
    for record, loaded in (({name: "elsewhere"}, kernel("x", "y")), (chosen, kernel("x", "w"))):
        with configs_chosen(record, chosen.__setitem__):
            recheck(loaded)
        assert len(loaded.compile_results) == 2
        assert loaded.save_cache_hook is not None


def test_a_kernel_with_one_config_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(CachingAutotuner, "recheck_autotune_cache", lambda self, **_: asked.append(self))
    one = kernel("x")
    with configs_chosen({}, lambda *_: None):
        recheck(one)
    assert asked == [one]
    assert one.save_cache_hook is None


@pytest.mark.parametrize("entered", [lambda: configs_chosen({}, lambda *_: None), first_configs])
def test_nothing_of_it_stays(entered: Any) -> None:
    before = dict(vars(CachingAutotuner))
    with entered():
        assert dict(vars(CachingAutotuner)) != before
    assert dict(vars(CachingAutotuner)) == before


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The configs that torch was asked to compile; one called `large` wants more than the device has."""
    asked: list[list[str]] = []

    def worker(kernel: Any) -> None:
        asked.append(kernel.configs)
        if kernel.configs == ["large"]:
            raise NoTritonConfigsError("out of resources")
        kernel.compile_results, kernel.configs = [f"{c} code" for c in kernel.configs], None

    monkeypatch.setattr(CachingAutotuner, "_precompile_worker", worker)
    return asked


@pytest.mark.parametrize(
    ("configs", "asked", "made"),
    [
        (["a", "b"], [["a"]], ["a code"]), (["large", "b", "c"], [["large"], ["b"]], ["b code"]),
        (["a"], [["a"]], ["a code"]),
    ],
)  # fmt: skip
def test_the_first_config_that_compiles_is_the_only_one(
    compiled: list[list[str]], configs: list[str], asked: list[list[str]], made: list[str]
) -> None:
    found = SimpleNamespace(configs=configs, compile_results=[])
    with first_configs():
        CachingAutotuner._precompile_worker(found)
    assert (compiled, found.compile_results) == (asked, made)


def test_a_kernel_of_which_no_config_compiles_is_an_error(compiled: list[list[str]]) -> None:
    found = SimpleNamespace(configs=["large", "large"], compile_results=[])
    with first_configs(), pytest.raises(NoTritonConfigsError):
        CachingAutotuner._precompile_worker(found)


@pytest.mark.parametrize(
    ("name", "entered"),
    [("recheck_autotune_cache", lambda: configs_chosen({}, lambda *_: None)), ("_precompile_worker", first_configs)],
)
def test_a_seam_that_has_moved_is_an_error_by_name(name: str, entered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(CachingAutotuner, name)
    with pytest.raises(IncompatibleError, match="configs of Triton kernels") as caught, entered():
        pass
    assert name in caught.value.why
