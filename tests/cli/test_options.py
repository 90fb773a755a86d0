"""Option values are read with clear refusals."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.aot.settings import SETTING_NAMES, resolve_settings
from precast.capture.modes import CUDAGraphMode
from precast.cli.compile_flags import CompileFlags, Payload
from precast.cli.graph_flags import GraphFlags, GraphMode
from precast.cli.options import assignments, exclusive, integers, numbers
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
        target=["cpu"],
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


def test_every_graph_mode_is_a_choice() -> None:
    assert list(GraphMode) == list(CUDAGraphMode.__members__)


GRAPHS = GraphFlags(
    cudagraph_mode=GraphMode.FULL,
    enforce_eager=True,
    cudagraph_capture_sizes="1,2",
    max_cudagraph_capture_size=2,
    interactivity=True,
    max_num_seqs=8,
    drafts=3,
    draft_schedule="8:3",
    adaptive_verification=True,
    max_loras=1,
    specialize_lora=False,
    specialize_active_lora=True,
    num_ubatches=2,
    ubatch_decode_tokens=4,
)


def test_every_graph_flag_sets_the_setting_of_its_name() -> None:
    given = GRAPHS.graph_settings()
    assert set(given) == {field.name for field in dataclasses.fields(GraphFlags)} <= set(SETTING_NAMES)
    assert all(value is not None for value in given.values()), "each of them is tried"
    settings = resolve_settings({**given, "target": "cpu"})
    assert (settings.cudagraph_capture_sizes, settings.draft_schedule) == ((1, 2), ((8, 3),))
    assert {r.name for r in settings.record if r.origin == "flag"} == {*given, "target"}
    assert not any(value is not None for value in GraphFlags().graph_settings().values())


def test_a_word_may_stand_for_the_capture_sizes_among_the_compile_sizes() -> None:
    given = CompileFlags(compile_sizes="4, cudagraph_capture_sizes").settings()
    assert given == {"compile_sizes": (4, "cudagraph_capture_sizes")}
    with pytest.raises(ConfigValueError, match="capture_sizes"):
        CompileFlags(compile_sizes="4,capture_sizes").settings()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("7", (7,)),
        ("1-4", (1, 2, 3, 4)),
        (" 16 , 1 - 3,2", (1, 2, 3, 16)),
        ("3-3", (3,)),
        ("999999", (999999,)),
    ],
)
def test_numbers_may_be_ranges_and_count_once(text: str | None, expected: tuple[int, ...] | None) -> None:
    assert numbers("--decode-batches", text) == expected


@pytest.mark.parametrize(
    "text", ["", "0", "0-3", "4-1", "1-", "-3", "1-2-3", "a", "1,,2", "1000000", "1-1000000", "\u0661"]
)
def test_what_is_no_number_or_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigValueError, match="is not a list of numbers"):
        numbers("--decode-batches", text)
