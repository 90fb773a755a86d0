"""A request: the same digest for the same compile, wherever and however it is asked for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import REPOSITORY, TINY

from precast.aot.node import system
from precast.aot.reference import parse_reference
from precast.aot.request import compile_input, compiler_factors, settings_factors
from precast.aot.settings import Settings, resolve_settings
from precast.aot.target import Target
from precast.errors import IncompatibleError

_PROGRAM = """
import os, sys
from precast.aot.reference import parse_reference
from precast.aot.request import compile_input
from precast.aot.settings import resolve_settings
settings = resolve_settings({"target": "cpu", "splitting_ops": ["b::b", "a::a"]})
print(compile_input(parse_reference(sys.argv[1]).factors({"b": 1, "a": 2}), settings, os.environ).request.digest)
assert "torch" not in sys.modules
"""


def settings(**flags: Any) -> Settings:
    return resolve_settings({"target": "cpu", **flags}, {})


def digest(environ: dict[str, str] | None = None, overrides: dict[str, Any] | None = None, **flags: Any) -> str:
    model = parse_reference(str(TINY)).factors(overrides or {})
    return compile_input(model, settings(**flags), environ or {}).request.digest


def test_the_digest_is_the_same_in_other_folders_homes_and_hash_seeds(tmp_path: Path) -> None:
    digests = set()
    for seed in ("0", "1", "42", "4711", "4294967295"):
        place = tmp_path / seed
        folder = Path(shutil.copytree(TINY, place / "model"))
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "src"), "PYTHONHASHSEED": seed}
        environ |= {"HOME": str(place), "TMPDIR": str(place), "USER": seed, "HOSTNAME": seed, "LOCAL_RANK": seed}
        command = [sys.executable, "-c", _PROGRAM, str(folder)]
        out = subprocess.run(command, env=environ, cwd=place, capture_output=True, check=True)
        digests.add(out.stdout)
    assert len(digests) == 1


@pytest.mark.parametrize(
    "flags",
    [
        {"max_num_batched_tokens": 512}, {"compile_range_endpoints": (64,)}, {"compile_sizes": (1,)},
        {"splitting_ops": ("a::b",)}, {"inductor_config": {"max_fusion_size": 8}}, {"payload": "inductor"},
    ],
)  # fmt: skip
def test_a_setting_that_changes_code_changes_the_digest(flags: dict[str, Any]) -> None:
    assert digest(**flags) != digest()


@pytest.mark.parametrize(
    "flags", [{"jobs": 7}, {"cudagraph_mode": "FULL"}, {"optimization_level": 3}, {"optimization_level": 1}]
)
def test_a_setting_that_does_not_changes_nothing(flags: dict[str, Any]) -> None:
    assert digest(**flags) == digest()


def test_an_override_changes_the_digest() -> None:
    assert len({digest(), digest(overrides={"num_hidden_layers": 2}), digest(overrides={"num_hidden_layers": 3})}) == 3


def test_the_order_of_overrides_does_not() -> None:
    assert digest(overrides={"a": 1, "b": 2}) == digest(overrides={"b": 2, "a": 1})


def test_a_variable_of_the_compiler_changes_the_digest() -> None:
    assert digest({"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}) != digest()


@pytest.mark.parametrize("name", ["HOME", "TMPDIR", "HOSTNAME", "PRECAST_JOBS", "PRECAST_CACHE_DIR", "MASTER_PORT"])
def test_a_variable_of_the_place_does_not(name: str) -> None:
    assert digest({name: "x"}) == digest()


def factors(target: Target, **flags: Any) -> dict[str, Any]:
    return {f.name: f.value for f in compiler_factors(settings(**flags), target)}


def test_each_target_has_a_factor() -> None:
    cpu = factors(Target("cpu", "x86-64-v3"))
    assert cpu["target"] == {"device": "cpu", "arch": "x86-64-v3"}
    assert cpu["inductor_config"] != factors(Target("cpu", "x86-64-v4"))["inductor_config"]
    assert "triton" not in cpu


def test_a_gpu_s_host_counts_which_a_cpu_target_says_itself() -> None:
    gpu = factors(Target("cuda", "sm_90"))
    assert gpu["system"] == system()
    assert [name for name in gpu if name.startswith("pass:")] == ["pass:separate_adds", "pass:one_row_products"]
    assert "system" not in factors(Target("cpu", "x86-64-v3"))


def test_python_counts_for_a_pickle_only() -> None:
    target = Target("cpu", "x86-64-v3")
    assert "python" in factors(target, payload="inductor")
    assert "python" not in factors(target, payload="aoti")


def test_a_user_s_option_is_among_the_options() -> None:
    options = factors(Target("cpu", "x86-64-v3"), inductor_config={"z.z": 1, "cpp.simdlen": 0})["inductor_config"]
    assert (options["z.z"], options["cpp.simdlen"]) == (1, 0)


def test_a_missing_torch_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.aot.request.distribution_content", lambda name: None)
    with pytest.raises(IncompatibleError, match="torch"):
        factors(Target("cpu", "x86-64-v3"))


def test_there_is_one_factor_a_key_field() -> None:
    names = {f.name for f in settings_factors(settings())}
    assert names == {f"settings.{n}" for n in settings().key_values()}
