"""Option values are read with clear refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.aot.settings import SETTING_NAMES
from precast.cli.compile_flags import CompileFlags, Payload
from precast.cli.options import assignments, exclusive, integers
from precast.errors import ConfigValueError, UsageError


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("layers=4", 4),
        ("scale=0.5", 0.5),
        ("tied=true", True),
        ("name=tiny", "tiny"),
        ('name="4"', "4"),
        ("sizes=[1,2]", [1, 2]),
        ("rule=a=b", "a=b"),
        ("empty=", ""),
        ("nothing=null", None),
        ("odd=NaN", "NaN"),
        ("odd=[-Infinity]", "[-Infinity]"),
        ("odd=1e999", "1e999"),
        ('odd="\\ud800"', '"\\ud800"'),
        (f"deep={'[' * 100_000}", "[" * 100_000),
    ],
)
def test_an_assigned_value_is_json_where_it_can_be(word: str, value: object) -> None:
    assert list(assignments("--set", [word]).values()) == [value]


def test_the_last_assignment_of_a_key_wins() -> None:
    assert assignments("--set", ["a=1", "a=2"]) == {"a": 2}


@pytest.mark.parametrize("word", ["layers", "=4", " =4"])
def test_what_is_no_assignment_is_refused(word: str) -> None:
    with pytest.raises(ConfigValueError, match="is not KEY=VALUE"):
        assignments("--set", [word])


@given(st.lists(st.integers(min_value=1)))
def test_a_list_of_numbers_is_read_back(numbers: list[int]) -> None:
    assert integers("--sizes", ", ".join(map(str, numbers))) == tuple(numbers)


def test_no_list_is_not_an_empty_list() -> None:
    assert integers("--sizes", None) is None
    assert integers("--sizes", "") == ()


@pytest.mark.parametrize("text", ["1,x", "-1", "0", "1.5"])
def test_what_is_no_positive_number_is_named(text: str) -> None:
    with pytest.raises(ConfigValueError, match="is not a list of numbers"):
        integers("--sizes", text)


def test_only_one_of_several_exclusive_options_is_allowed() -> None:
    exclusive({"--check": True, "--force": False})
    with pytest.raises(UsageError, match="--check and --force contradict each other"):
        exclusive({"--check": True, "--force": True})


def test_settings_hold_only_what_the_user_gave() -> None:
    assert CompileFlags().settings() == {}
    assert CompileFlags(jobs=2, compile_sizes="").settings() == {"jobs": 2, "compile_sizes": ()}


def test_every_flag_of_a_setting_has_the_name_of_that_setting() -> None:
    flags = CompileFlags(
        payload=Payload.AOTI,
        target="cpu",
        max_num_batched_tokens=8,
        compile_range_endpoints="4",
        compile_sizes="1",
        splitting_ops=["a::b"],
        inductor=["triton.cudagraphs=false"],
        optimization_level=1,
        jobs=1,
    )
    assert len(flags.settings()) == 9
    assert set(flags.settings()) <= set(SETTING_NAMES)
    assert flags.settings()["inductor_config"] == {"triton.cudagraphs": False}
