"""The decorator: one trace an instance at most, right answers for each, errors instead of retraces, nothing left.

Payloads are exported programs here, so nothing is compiled; `test_decorator_compiles.py` has the real compiler.
"""

# mypy: allow-subclassing-any
# mypy: disable-error-code="override, func-returns-value, redundant-expr"

import copy
import functools
import gc
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.aot.exported import exported_payloads
from tests.aot.support import Recorder
from tests.models import ATTEND, WIDTH, attend
from torch import Tensor, nn
from torch._dynamo import convert_frame

from precast import Settings, StoreOptions, compiled_model, ignore_torch_compile, support_torch_compile
from precast.aot import request
from precast.aot.decorator import Decoration
from precast.errors import ConfigValueError, NoEntryError, PrecastError, UsageError, WeightError

FLAGS = Settings(max_num_batched_tokens=64)
SCALE = 2.0
COUNT = 2


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Read installed distributions once: their files do not change while these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "_distribution", functools.cache(request._distribution))
        patch.setattr(metadata, "packages_distributions", functools.cache(metadata.packages_distributions))
        yield


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Let each test have a store of its own, and payloads that need no compiler."""
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "R"))
    with exported_payloads() as made:
        yield made


class Model(nn.Module):
    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.scale = scale
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, bias: Tensor | None = None, *, twice: bool = False) -> Tensor:
        y = attend(self.linear(x)) * self.scale
        y = y if bias is None else y + bias
        return y * 2 if twice else y


def decorated(base: type[nn.Module] = Model, **options: Any) -> type[Any]:
    """Return a decorated subclass, so that the base stays as it is."""
    kind = type(base.__name__, (base,), {"__module__": base.__module__, "forward": base.forward})
    return support_torch_compile(**{"settings": FLAGS, "splitting_ops": (ATTEND,), **options})(kind)


def tokens(count: int = 5, width: int = WIDTH) -> Tensor:
    return torch.randn(count, width)


def assert_runs(instance: nn.Module, base: type[nn.Module] = Model) -> None:
    """Compare an instance with eager at several token counts."""
    for count in (1, 2, 7, 64):
        x = tokens(count)
        torch.testing.assert_close(instance(x), base.forward(instance, x).detach())


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write down each frame that Dynamo converts, however it comes to that."""
    seen: list[str] = []

    def counted(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        seen.append(str(args[0]))
        return real(*args, **kwargs)

    for name in ("fullgraph_capture", "_compile"):
        monkeypatch.setattr(convert_frame, name, functools.partial(counted, getattr(convert_frame, name)))
    return seen


def test_the_first_call_traces_once_and_no_later_call_does(traces: list[str], made: list[str]) -> None:
    instance = decorated()().eval()
    assert compiled_model(instance) is None
    assert_runs(instance)
    assert len(traces) == 1
    assert made
    model = compiled_model(instance)
    assert model is not None
    assert model.manifest.plan["token_input"] == ["x", 0]
    assert_runs(instance)
    assert len(traces) == 1


def test_an_equal_instance_neither_traces_nor_compiles(traces: list[str], made: list[str]) -> None:
    kind = decorated()
    assert_runs(kind().eval())
    before = len(made)
    assert_runs(kind().eval())
    assert (len(traces), len(made)) == (1, before)


# --- W11: instances of one class, each with its own answer


class Number(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value: Any = value

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.value + 1


class Closure(Number):
    def __init__(self, value: float) -> None:
        super().__init__(1.0)
        self.function: Callable[[Tensor], Tensor] = lambda x: x * value

    def forward(self, x: Tensor) -> Tensor:
        return self.function(torch.relu(x)) + 1


class Buffer(Number):
    def __init__(self, value: float) -> None:
        super().__init__(1.0)
        self.register_buffer("table", torch.full((WIDTH,), value))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.table + 1


class Whole(Number):
    def __init__(self, value: float) -> None:
        super().__init__(1.0)
        self.value = int(value)
        globals()["COUNT"] = int(value)  # Dynamo makes a symbol of a number that it has seen with another value

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.value + COUNT


class Layers(Number):
    def __init__(self, value: float) -> None:
        super().__init__(1.0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(int(value)))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Global(Number):
    def __init__(self, value: float) -> None:
        super().__init__(1.0)
        globals()["SCALE"] = value

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * SCALE + 1


@pytest.mark.parametrize("base", [Number, Closure, Buffer, Whole, Layers, Global])
def test_instances_that_differ_each_get_their_own_answer(
    base: type[Any], traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SCALE", SCALE)
    monkeypatch.setitem(globals(), "COUNT", COUNT)
    kind = decorated(base, splitting_ops=())
    keys = []
    for value in (2.0, 5.0, 2.0):
        instance = kind(value)
        expected = base.forward(instance, torch.ones(3, WIDTH)).detach()
        torch.testing.assert_close(instance(torch.ones(3, WIDTH)), expected)
        model = compiled_model(instance)
        assert model is not None
        keys.append(model.manifest.key)
    assert keys[0] == keys[2] != keys[1]
    assert len(traces) == 2  # the third was told from what it holds


def test_what_no_forward_reads_makes_no_second_entry(traces: list[str], made: list[str]) -> None:
    kind = decorated()
    first, second = kind().eval(), kind().eval()
    second.port = 5600
    assert_runs(first)
    before = len(made)
    assert_runs(second)
    assert len(made) == before
    assert len(traces) == 2  # what it holds differs, so only a trace could tell
    keys = {model.manifest.key for i in (first, second) if (model := compiled_model(i)) is not None}
    assert len(keys) == 1


def test_an_instance_that_cannot_be_described_is_traced_and_not_compiled_again(
    traces: list[str], made: list[str]
) -> None:
    kind = decorated()
    for traced in (1, 2):
        instance = kind().eval()
        instance.kept = iter([1])
        assert_runs(instance)
        assert len(traces) == traced
    assert len(made) == len(set(made))


# --- arguments


def test_arguments_are_taken_in_any_form_and_optional_ones_may_be_there(made: list[str]) -> None:
    instance = decorated()().eval()
    x, bias = tokens(), tokens()
    torch.testing.assert_close(instance(x=x, bias=bias), Model.forward(instance, x, bias).detach())
    torch.testing.assert_close(instance(x, bias, twice=False), Model.forward(instance, x, bias).detach())
    with pytest.raises(TypeError, match="`bias` must be a tensor, not a NoneType"):
        instance(x)


REFUSED: dict[str, Callable[[Any], object]] = {
    "dtype": lambda m: m(tokens().double()),
    "rank": lambda m: m(tokens()[None]),
    "static size": lambda m: m(tokens(5, WIDTH + 1)),
    "none": lambda m: m(None),
    "tensor where none was": lambda m: m(tokens(), tokens()),
    "other number": lambda m: m(tokens(), twice=True),
    "number for a flag": lambda m: m(tokens(), twice=0),
    "too many tokens": lambda m: m(tokens(65)),
    "strides": lambda m: m(tokens(WIDTH, 5).t()),
    "no such argument": lambda m: m(tokens(), other=1),
    "too few": lambda m: m(),
    "no tensor": lambda m: m([[1.0] * WIDTH]),
    "device": lambda m: m(tokens().to("meta")),
}


def test_what_the_artifact_cannot_serve_is_an_error_and_no_retrace(traces: list[str]) -> None:
    instance = decorated()().eval()
    instance(tokens())
    for what, call in REFUSED.items():
        with pytest.raises((TypeError, ValueError), match=r"must be|is a Tensor|is True|is 0|outside|argument"):
            call(instance)
        assert len(traces) == 1, what
    assert_runs(instance)


def test_dims_that_are_dynamic_apart_are_told_at_the_first_call(traces: list[str]) -> None:
    with pytest.raises(UsageError, match="dim 0 of `bias` is 3"):
        decorated()()(tokens(5), tokens(3))
    instance = decorated(dynamic_arg_dims={"x": {-2: "n"}})().eval()
    bias = torch.randn(WIDTH)
    x = tokens(9)
    torch.testing.assert_close(instance(x, bias), Model.forward(instance, x, bias).detach())
    with pytest.raises(ValueError, match="`bias`"):
        instance(x, torch.randn(WIDTH + 1))


def test_a_class_without_dynamic_dims_is_refused_where_it_is_decorated() -> None:
    with pytest.raises(ConfigValueError, match="no dynamic dims"):

        @support_torch_compile
        class Bare(nn.Module):
            def forward(self, x: object) -> None: ...

    with pytest.raises(ConfigValueError, match="no parameter `y`"):
        decorated(dynamic_arg_dims={"y": 0})
    others: list[Any] = [int, lambda x: x]
    for other in others:
        with pytest.raises(ConfigValueError, match="no class of modules"):
            support_torch_compile(other)


def test_a_first_call_that_cannot_be_served_leaves_the_instance_as_it_was() -> None:
    instance = decorated()().eval()
    with pytest.raises(UsageError, match="`bias` is a list"):
        instance(tokens(), [1.0])
    with pytest.raises(TypeError):
        instance()
    assert_runs(instance)


class Odd(nn.Module):
    """Its forward does not call the module `self` (W40)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(this, self: Tensor) -> Tensor:  # noqa: N805
        return self * this.weight


def test_the_module_may_have_any_name_in_forward() -> None:
    assert_runs(decorated(Odd, splitting_ops=())(), Odd)


# --- when an instance is not compiled


def _off(name: str, monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    match name:
        case "enable_if":
            return decorated(enable_if=lambda module: module.scale > 100)
        case "level":
            return decorated(settings=Settings(optimization_level=0))
        case "level of the instance":
            return decorated(settings=lambda module: Settings(optimization_level=0 if module.scale else 2))
        case "level of the environment":
            monkeypatch.setenv("PRECAST_OPTIMIZATION_LEVEL", "0")
            return decorated(settings=None)
        case "torch's switch":
            monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
            return decorated()
        case "ignored":
            return ignore_torch_compile(decorated())
        case _:
            return type("Child", (ignore_torch_compile(type("Middle", (decorated(),), {})),), {})


@pytest.mark.parametrize(
    "why",
    ["enable_if", "level", "level of the instance", "level of the environment", "torch's switch", "ignored", "child"],
)
def test_an_instance_that_is_not_wanted_runs_eagerly(
    why: str, monkeypatch: pytest.MonkeyPatch, traces: list[str], made: list[str], tmp_path: Path
) -> None:
    instance = _off(why, monkeypatch)()
    assert_runs(instance)
    assert instance(tokens()).requires_grad
    assert (len(traces), made, compiled_model(instance)) == (0, [], None)
    assert not (tmp_path / "R").exists()


def test_enable_if_is_asked_once_and_for_each_instance() -> None:
    asked: list[float] = []
    kind = decorated(enable_if=lambda module: bool(asked.append(module.scale)) or module.scale > 3)
    small, large = kind(2.0).eval(), kind(5.0).eval()
    for instance in (small, large, small, large):
        assert_runs(instance)
    assert asked == [2.0, 5.0]
    assert compiled_model(small) is None
    assert compiled_model(large) is not None


def test_a_child_of_an_ignored_class_is_compiled_when_it_is_decorated_itself() -> None:
    middle = ignore_torch_compile(type("Middle", (decorated(),), {"__module__": __name__}))
    child = support_torch_compile(settings=FLAGS)(type("Child", (middle,), {"__module__": __name__}))
    instance = child().eval()
    assert_runs(instance)
    assert compiled_model(instance) is not None


Base = decorated()


class Child(Base):  # type: ignore[misc, valid-type]
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - 1


class Mixin:
    def forward(self, x: Tensor) -> Tensor:
        return x + 3


class Mixed(Mixin, decorated(splitting_ops=())):  # type: ignore[misc]
    pass


def test_a_subclass_with_a_forward_of_its_own_is_compiled_with_that_one(traces: list[str]) -> None:
    instance = Child().eval()
    x = tokens()
    torch.testing.assert_close(instance(x), Model.forward(instance, x).detach() - 1)
    assert len(traces) == 1
    torch.testing.assert_close(Base.forward(instance, x), Model.forward(instance, x))  # not the instance's own
    mixed = Mixed().eval()
    torch.testing.assert_close(mixed(x), x + 3)
    assert compiled_model(mixed) is not None


def test_what_a_base_does_when_it_is_inherited_from_stays() -> None:
    class Registers(Model):
        found: list[str] = []  # noqa: RUF012

        def __init_subclass__(cls, *, known_as: str = "", **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            Registers.found.append(known_as)

    kind = support_torch_compile(settings=FLAGS)(Registers)
    support_torch_compile(settings=FLAGS)(Registers)

    class Made(kind, known_as="made"):  # type: ignore[misc, valid-type, call-arg]
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    assert Registers.found == ["made"]
    torch.testing.assert_close(Made()(torch.ones(2, WIDTH)), torch.full((2, WIDTH), 2.0))


# --- modules: hooks, modes, weights, copies


def test_hooks_of_the_module_run_around_compiled_code_and_those_inside_are_compiled(traces: list[str]) -> None:
    instance = decorated()().eval()
    seen: list[str] = []
    instance.linear.register_forward_hook(lambda m, args, result: result + 1)
    instance.register_forward_pre_hook(lambda m, args: seen.append("before") or (args[0] * 2,))
    instance.register_forward_hook(lambda m, args, result: seen.append("after") or result - 3)
    x = tokens()
    for _ in range(2):
        found = instance(x)
    assert seen == ["before", "after"] * 2
    torch.testing.assert_close(found, Model.forward(instance, x * 2).detach() - 3)
    assert len(traces) == 1
    instance.register_forward_hook(lambda m, args, result: result * 10)  # later ones count too
    torch.testing.assert_close(instance(x), found * 10)


class Moded(Model):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if self.training else x - 1


def test_the_mode_of_the_first_call_is_compiled_and_another_refused() -> None:
    kind = decorated(Moded, splitting_ops=())
    for mode, expected in ((True, 2.0), (False, 0.0)):
        instance = kind().train(mode)
        torch.testing.assert_close(instance(torch.ones(2, WIDTH)), torch.full((2, WIDTH), expected))
        assert instance.training is mode
        instance.train(not mode)
        with pytest.raises(UsageError, match="mode"):
            instance(torch.ones(2, WIDTH))


def test_training_without_gradients_is_told() -> None:
    told = Recorder()
    decorated(progress=told)()(tokens())
    assert "warning: decorator.no_gradients" in told.told
    quiet = Recorder()
    instance = decorated(progress=quiet)()
    with torch.inference_mode():
        assert instance(tokens()).shape == (5, WIDTH)
    assert "warning: decorator.no_gradients" not in quiet.told


def test_autocast_is_refused_since_it_would_be_ignored(traces: list[str]) -> None:
    instance = decorated()().eval()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UsageError, match="autocast"):
        instance(tokens())
    assert_runs(instance)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UsageError, match="autocast"):
        instance(tokens())
    assert len(traces) == 1


def test_weights_that_are_loaded_before_the_first_call_or_in_place_after_it_are_used(traces: list[str]) -> None:
    instance = decorated()().eval()
    instance.load_state_dict(Model().state_dict())
    assert_runs(instance)
    instance.load_state_dict(Model().state_dict())
    instance.linear.bias.data = torch.randn(WIDTH)
    assert_runs(instance)
    assert instance._precast_state.call.rebinds == 0
    assert len(traces) == 1


REPLACED: dict[str, Callable[[Any], object]] = {
    "parameter": lambda m: setattr(m.linear, "weight", nn.Parameter(torch.randn(WIDTH, WIDTH))),
    "layer": lambda m: setattr(m, "linear", nn.Linear(WIDTH, WIDTH)),
    "assigned": lambda m: m.load_state_dict(Model().state_dict(), assign=True),
}


@pytest.mark.parametrize("what", REPLACED)
def test_tensors_that_were_replaced_are_bound_anew_and_never_stale(what: str, traces: list[str]) -> None:
    instance = decorated()().eval()
    assert_runs(instance)
    before = compiled_model(instance)
    REPLACED[what](instance)
    assert_runs(instance)
    assert instance._precast_state.call.rebinds == 1
    after = compiled_model(instance)
    assert before is not None
    assert after is not None
    assert after is not before
    assert after.bound is not None
    assert after.bound.values["w_linear_weight"] is instance.linear.weight
    assert len(traces) == 1


def test_tensors_that_do_not_fit_any_more_are_refused() -> None:
    instance = decorated()().eval()
    instance(tokens())
    instance.half()
    for _ in range(2):
        with pytest.raises(WeightError, match=r"linear\.weight is float16"):
            instance(tokens())
    instance.float()
    assert_runs(instance)


def test_a_copy_and_a_pickle_have_answers_of_their_own() -> None:
    instance = PickledModel().eval()
    assert_runs(instance)
    for other in (copy.deepcopy(instance), copy.copy(instance), pickle.loads(pickle.dumps(instance))):
        other.linear = nn.Linear(WIDTH, WIDTH)
        assert compiled_model(other) is None
        assert_runs(other)
        assert compiled_model(other) is not compiled_model(instance)
        assert_runs(instance)


@support_torch_compile(settings=FLAGS, splitting_ops=(ATTEND,))
class PickledModel(Model):
    pass


# --- inside of other traces


def test_inside_another_compile_the_module_is_traced_as_if_it_were_not_decorated(made: list[str]) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = decorated()().eval()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + 1

    outer = Outer()
    x = tokens()
    compiled = torch.compile(outer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), Model.forward(outer.inner, x) + 1)
    assert (made, compiled_model(outer.inner)) == ([], None)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Base()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


def test_a_decorated_module_inside_a_decorated_one_is_part_of_its_graph(traces: list[str]) -> None:
    instance = decorated(Nested)().eval()
    assert_runs(instance.inner)
    assert len(traces) == 1
    assert_runs(instance, Nested)
    assert len(traces) == 2


# --- the store


def test_the_store_may_be_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: list[str]) -> None:
    monkeypatch.setenv("PRECAST_DISABLE_CACHE", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    kind = decorated()
    for instance in (kind().eval(), kind().eval()):
        assert_runs(instance)
    assert len(made) == 2 * len(set(made))
    assert not (tmp_path / "R").exists()
    assert not list((tmp_path / "tmp").glob("precast-*"))


def test_a_read_only_store_must_have_the_entry(made: list[str], tmp_path: Path) -> None:
    kind = decorated(options=StoreOptions(read_only=True))
    with pytest.raises(NoEntryError, match="there is no artifact"):
        kind().eval()(tokens())
    assert made == []
    assert_runs(decorated()().eval())
    before = sorted((tmp_path / "R").rglob("*"))
    assert_runs(kind().eval())
    assert sorted((tmp_path / "R").rglob("*")) == before


def test_torch_s_default_dtype_is_part_of_the_key() -> None:
    class Makes(Model):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.ones(WIDTH)

    kind = decorated(Makes, splitting_ops=())
    dtypes = []
    for dtype in (torch.float32, torch.float64):
        instance = kind().eval()
        torch.set_default_dtype(dtype)
        try:
            dtypes.append(instance(torch.ones(2, WIDTH, dtype=torch.float32)).dtype)
        finally:
            torch.set_default_dtype(torch.float32)
    assert dtypes == [torch.float32, torch.float64]


def test_splitting_ops_of_the_settings_go_before_those_of_the_class() -> None:
    counts = []
    for settings in (FLAGS, Settings(max_num_batched_tokens=64, splitting_ops=())):
        instance = decorated(settings=settings)().eval()
        instance(tokens())
        model = compiled_model(instance)
        assert model is not None
        assert model.bound is not None
        counts.append(model.bound.pieces.plan.op_counts())
    assert counts == [{ATTEND: 1}, {}]


def test_a_bad_entry_is_put_aside_and_built_again(made: list[str], tmp_path: Path) -> None:
    told = Recorder()
    kind = decorated(progress=told)
    assert_runs(kind().eval())
    before = len(made)
    for file in (tmp_path / "R").rglob("*.zst"):
        file.chmod(0o600)
        file.write_bytes(bytes(reversed(file.read_bytes())))
    for file in (tmp_path / "R").rglob("model.mega"):
        file.chmod(0o600)
        file.write_bytes(b"x" * file.stat().st_size)
    assert_runs(kind().eval())
    assert len(made) == 2 * before
    assert any(line.startswith("warning: ") for line in told.told)


# --- threads, and what is left behind


def test_first_calls_of_many_threads_are_one_compile(traces: list[str], made: list[str]) -> None:
    instance = decorated()().eval()
    x = tokens()
    expected = Model.forward(instance, x).detach()
    gate = threading.Barrier(8)
    results: list[Tensor] = []

    def run() -> None:
        gate.wait()
        results.append(instance(x))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for found in results:
        torch.testing.assert_close(found, expected)
    assert len(traces) == 1
    assert len(made) == len(set(made))


def test_instances_of_many_threads_each_get_their_own_answer() -> None:
    kind = decorated(Number, splitting_ops=())
    gate = threading.Barrier(4)
    results: dict[float, Tensor] = {}

    def run(value: float) -> None:
        gate.wait()
        results[value] = kind(value)(torch.ones(2, WIDTH))

    threads = [threading.Thread(target=run, args=(float(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {value: found[0, 0].item() for value, found in results.items()} == {n: n + 1.0 for n in range(4)}


def test_nothing_of_the_process_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[object] = []
    monkeypatch.setattr(sys, "addaudithook", hooks.append)
    places = (nn.Module, torch, torch.Tensor, nn, torch.cuda, os.environ.__class__, torch._dynamo.config)
    before = [{name: id(value) for name, value in vars(place).items()} for place in places]
    environ = dict(os.environ)
    code = Model.forward.__code__
    assert_runs(decorated()().eval())
    after = [{name: id(value) for name, value in vars(place).items()} for place in places]
    changed = [name for old, new in zip(before, after, strict=True) for name in old if new.get(name) != old[name]]
    assert changed == []
    assert dict(os.environ) == environ
    assert Model.forward.__code__ is code
    assert hooks == []
    assert not torch.is_inference_mode_enabled()


def test_what_others_have_compiled_with_dynamo_stays_compiled() -> None:
    traced: list[object] = []

    def backend(graph: Any, inputs: Any) -> Any:
        traced.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x * 3, backend=backend)
    compiled(torch.ones(3))
    decorated()().eval()(tokens())
    compiled(torch.ones(3))
    assert len(traced) == 1


def test_an_instance_that_is_given_up_is_freed() -> None:
    instance = decorated()().eval()
    instance(tokens())
    gone = weakref.ref(instance)
    gc.collect()
    gc.disable()
    try:
        del instance
        assert gone() is None  # at once: a model's memory must not wait for the collector
    finally:
        gc.enable()


def test_errors_are_those_of_precast() -> None:
    class Breaks(Model):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    instance = decorated(Breaks, splitting_ops=())()
    for _ in range(2):
        with pytest.raises(PrecastError):
            instance(tokens())


def test_a_decoration_says_how() -> None:
    decoration = decorated()._precast_decoration
    assert isinstance(decoration, Decoration)
    assert decoration.splitting_ops == (ATTEND,)
