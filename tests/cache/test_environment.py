import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.cache.environment import (
    COUNTED,
    EXCLUDED,
    VariableRule,
    environment_factors,
    portable_value,
    rule_for_variable,
    variable_factor,
)
from precast.cache.factors import Factor, entry_key
from precast.cache.sources import locate_source

rows = (*((rule, True) for rule in COUNTED), *((rule, False) for rule in EXCLUDED))
each_row = pytest.mark.parametrize(("rule", "counted"), rows, ids=[rule.pattern for rule, _ in rows])


def example(rule: VariableRule) -> str:
    return rule.pattern.replace("*", "OF_NO_VERSION_YET")


@each_row
def test_a_variable_changes_the_key_just_when_its_row_counts_it(rule: VariableRule, counted: bool) -> None:
    name = example(rule)
    base = {"PATH": "/bin"}
    keys = {entry_key(environment_factors(base | {name: value})) for value in ("0", "1")}
    keys.add(entry_key(environment_factors(base)))
    assert len(keys) == (3 if counted else 1)


@each_row
def test_each_row_decides_about_its_own_example_and_says_why(rule: VariableRule, counted: bool) -> None:
    assert rule_for_variable(example(rule)) == (rule, counted)
    assert len(rule.reason) > 20


def test_no_pattern_is_listed_twice() -> None:
    counts = Counter(rule.pattern for rule, _ in rows)
    assert [pattern for pattern, count in counts.items() if count > 1] == []


SOURCES = ("torch._inductor.config", "torch._functorch.config", "torch._dynamo.config", "triton.knobs")
READ = re.compile(
    r"(?:environ(?:\.get)?|getenv|get_tristate_env|env_name_\w+|env_\w+)\s*[(\[=]\s*[\"']([A-Z]\w{2,})[\"']"
)


@pytest.mark.parametrize("module", SOURCES)
def test_every_variable_that_the_installed_compiler_reads_is_in_the_register(module: str) -> None:
    path = locate_source(module, sys.path)
    if path is None:
        pytest.skip(f"{module} is not installed")
    names = set(READ.findall(path.read_text(encoding="utf-8")))
    assert len(names) > 3
    assert [name for name in sorted(names) if rule_for_variable(name) is None] == []


NOISE = [
    "HOME",
    "PATH",
    "HOSTNAME",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "CUDA_VISIBLE_DEVICES",
    "PYTHONHASHSEED",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "PRECAST_CACHE_DIR",
    "HF_TOKEN",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "TORCH_LOGS",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_COMPILE_THREADS",
    "TORCHINDUCTOR_REDIS_HOST",
    "TORCH_COMPILE_DEBUG",
]


@pytest.mark.parametrize("name", NOISE)
def test_places_ranks_ports_secrets_and_caches_never_count(name: str) -> None:
    assert environment_factors({name: "anything"}) == ()


MATTERS = [
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCHINDUCTOR_CPP_MARCH",
    "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS",
    "CXX",
    "CFLAGS",
    "TORCH_COMPILE_DISABLE",
    "TRITON_F32_DEFAULT",
    "NVIDIA_TF32_OVERRIDE",
    "ATEN_CPU_CAPABILITY",
    "TRITON_INTERPRET",
]


@pytest.mark.parametrize("name", MATTERS)
def test_what_changes_code_counts(name: str) -> None:
    assert environment_factors({name: "x"}) == (Factor("env", name, "x"),)


@given(st.permutations([("CC", "clang"), ("TRITON_DEBUG", "1"), ("TORCHINDUCTOR_FREEZING", "1"), ("HOME", "/a")]))
def test_the_order_of_variables_does_not_matter(items: list[tuple[str, str]]) -> None:
    assert [factor.name for factor in environment_factors(dict(items))] == [
        "CC",
        "TORCHINDUCTOR_FREEZING",
        "TRITON_DEBUG",
    ]


@pytest.mark.parametrize(
    ("name", "value", "portable"),
    [
        ("CC", "/usr/bin/gcc-12", "gcc-12"),
        ("CC", "gcc-12", "gcc-12"),
        ("CXX", "ccache /opt/conda/bin/g++ -m64", "ccache g++ -m64"),
        ("CFLAGS", "-O2 -I/opt/x/include -march=native", "-O2 -Iinclude -march=native"),
        ("CFLAGS", "-isystem /opt/x/include", "-isystem include"),
        ("CFLAGS", "--sysroot=/opt/root -Wl,-rpath,/opt/lib", "--sysroot=root -Wl,-rpath,lib"),
        ("TRITON_PTXAS_PATH", "/usr/local/cuda/bin/ptxas", "ptxas"),
        ("TORCHINDUCTOR_UNKNOWN", "a/b", "a/b"),
        ("TORCHINDUCTOR_UNKNOWN", "ATEN,TRITON", "ATEN,TRITON"),
    ],
)
def test_a_value_loses_the_folders_of_absolute_paths(name: str, value: str, portable: str) -> None:
    assert portable_value(name, value) == portable
    assert environment_factors({name: value}) == (Factor("env", name, portable),)


@given(st.sampled_from(["CC", "CFLAGS", "TRITON_X"]), st.text("/ab -=:,I", max_size=20))
def test_no_value_starts_with_an_absolute_path_and_none_shrinks_twice(name: str, value: str) -> None:
    once = portable_value(name, value)
    assert not Path(once).is_absolute()
    assert portable_value(name, once) == once


def test_a_compiler_that_is_named_although_it_is_the_default_counts_like_none() -> None:
    assert environment_factors({"CC": "/usr/bin/gcc", "CXX": "g++"}) == ()
    assert environment_factors({"CC": "g++", "CXX": "g++ -m64"}) == (
        Factor("env", "CC", "g++"),
        Factor("env", "CXX", "g++ -m64"),
    )


def test_the_absence_of_a_variable_that_a_model_reads_is_a_value() -> None:
    assert variable_factor("SHOP_MODE", {"SHOP_MODE": "fast"}) == Factor("env", "SHOP_MODE", "fast")
    assert variable_factor("SHOP_MODE", {}) == Factor("env", "SHOP_MODE", None)
    assert variable_factor("SHOP_MODE", {"SHOP_MODE": ""}).value == ""
