"""Words are rewritten before Typer reads them."""

import pytest

from precast.cli.argv import preview, rewrite
from precast.cli.output import Format
from precast.cli.terminal import ColorChoice


@pytest.mark.parametrize("spelling", [["-O2"], ["-O", "2"], ["-O=2"], ["--optimization-level", "2"]])
def test_every_spelling_of_the_level_becomes_one(spelling: list[str]) -> None:
    assert rewrite(["precompile", "m.py:f", *spelling]) == ["precompile", "m.py:f", "--optimization-level", "2"]


def test_a_level_that_is_none_still_reaches_typer_as_the_value_of_the_option() -> None:
    assert rewrite(["precompile", "-Ofast"]) == ["precompile", "--optimization-level", "fast"]


def test_words_after_two_dashes_are_left_alone() -> None:
    assert rewrite(["precompile", "--", "-O2"]) == ["precompile", "--", "-O2"]


@pytest.mark.parametrize("word", ["7f3c91", "DEADBEEF", "model.mega", "./dir/model"])
def test_inspect_with_a_key_or_file_means_inspect_show(word: str) -> None:
    assert rewrite(["inspect", word, "--json"]) == ["inspect", "show", word, "--json"]


def test_inspect_with_options_before_the_key_means_inspect_show_too() -> None:
    assert rewrite(["inspect", "--json", "7f3c91"]) == ["inspect", "show", "--json", "7f3c91"]


@pytest.mark.parametrize("option", [["--factors", "env"], ["--factors=env"]])
def test_a_group_may_follow_factors(option: list[str]) -> None:
    assert rewrite(["inspect", "7f3c91", *option]) == ["inspect", "show", "7f3c91", "--factors", "--group", "env"]


def test_what_follows_factors_and_is_no_group_stays() -> None:
    assert rewrite(["inspect", "show", "--factors", "7f3c91"]) == ["inspect", "show", "--factors", "7f3c91"]


@pytest.mark.parametrize("name", ["diff", "explain", "stats", "coverage"])
def test_a_command_of_inspect_is_no_key(name: str) -> None:
    assert rewrite(["inspect", name, "7f3c91", "m.py:f"]) == ["inspect", name, "7f3c91", "m.py:f"]
    assert preview(["inspect", name, "7f3c91"], {}).schema == f"precast.inspect.{name}/1"


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "ls"], ["inspect", "lss"], ["inspect", "--help"]])
def test_inspect_without_a_key_is_left_to_typer(words: list[str]) -> None:
    assert rewrite(words) == words


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["verify", "--json"], Format.JSON),
        (["verify", "--format", "json"], Format.JSON),
        (["verify", "--format=tsv"], Format.TSV),
        (["verify", "-vq"], Format.QUIET),
        (["verify", "--format", "bogus"], Format.HUMAN),
        (["verify", "--", "--json"], Format.HUMAN),
        (["verify"], Format.HUMAN),
    ],
)
def test_the_format_is_seen_before_parsing(words: list[str], wanted: Format) -> None:
    assert preview(words, {}).format is wanted


def test_the_format_of_the_environment_holds_when_no_flag_is_given() -> None:
    assert preview(["verify"], {"PRECAST_FORMAT": "json"}).format is Format.JSON
    assert preview(["verify", "--format", "tsv"], {"PRECAST_FORMAT": "json"}).format is Format.TSV


def test_color_and_debug_are_seen_before_parsing() -> None:
    seen = preview(["verify", "--color=never", "--debug"], {})
    assert (seen.color, seen.debug) == (ColorChoice.NEVER, True)
    assert preview(["verify", "--color", "pink"], {}).color is ColorChoice.AUTO


@pytest.mark.parametrize(
    ("words", "schema"),
    [
        (["precompile", "--bogus"], "precast.precompile/1"),
        (["inspect", "ls"], "precast.inspect.ls/1"),
        (["inspect", "7f3c91"], "precast.inspect.show/1"),
        (["inspect"], "precast.help/1"),
        (["bogus"], "precast.help/1"),
        ([], "precast.help/1"),
    ],
)
def test_the_schema_of_an_answer_is_known_before_parsing(words: list[str], schema: str) -> None:
    assert preview(words, {}).schema == schema
