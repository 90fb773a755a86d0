"""One sink writes every format, and stdout holds the answer only."""

import io
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.cache.canonical import Json
from precast.cli.envelope import Remark
from precast.cli.output import Column, Format, Output

_COLUMNS = [Column("key", "KEY"), Column("size", "SIZE", lambda size: f"{size} B", right=True)]
_ROWS: list[dict[str, Json]] = [{"key": "a", "size": 5}, {"key": "bbb", "size": None}]


def _output(format: Format, **options: bool) -> Output:  # noqa: A002
    ticks = iter([10.0, 12.5])
    return Output(
        io.StringIO(),
        io.StringIO(),
        format=format,
        clock=lambda: next(ticks),
        now=lambda: datetime(2026, 11, 30, 14, 2, tzinfo=UTC),
        **options,  # type: ignore[arg-type]
    )


def _text(stream: object) -> str:
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def _say_everything(out: Output) -> None:
    out.table(_COLUMNS, _ROWS)
    out.pairs([("key", "7f3c"), ("", "more")])
    out.status("ok", "done")
    out.footer("2 entries")
    out.result({"rows": 2}, ["a", "bbb"])
    out.warning("store.shared", "The store is shared", hint="Look at it", entry="7f")
    out.finish(0)


def test_people_get_aligned_tables_and_labels() -> None:
    out = _output(Format.HUMAN)
    _say_everything(out)
    assert _text(out.stdout).splitlines() == [
        "KEY    SIZE",
        "a       5 B",
        "bbb  None B",
        "key        7f3c",
        "           more",
        "ok  done",
        "2 entries",
    ]


def test_tsv_has_a_header_and_untouched_values_and_nothing_else() -> None:
    out = _output(Format.TSV)
    _say_everything(out)
    assert _text(out.stdout) == "key\tsize\na\t5\nbbb\t\n"


def test_tsv_of_an_answer_without_a_table_lists_its_fields() -> None:
    out = _output(Format.TSV)
    out.result({"status": "compiled", "digests": {"env": "19"}, "ranges": [[1, 2]]})
    out.finish(0)
    assert _text(out.stdout) == "field\tvalue\nstatus\tcompiled\ndigests.env\t19\nranges\t[[1,2]]\n"


@given(st.text())
def test_no_text_can_break_a_tsv_row(value: str) -> None:
    out = _output(Format.TSV)
    out.table([Column("a", "A"), Column("b", "B")], [{"a": value, "b": "end"}])
    lines = _text(out.stdout).split("\n")
    assert len(lines) == 3
    assert len(lines[1].split("\t")) == 2


def test_quiet_writes_ids_only() -> None:
    out = _output(Format.QUIET)
    _say_everything(out)
    assert _text(out.stdout) == "a\nbbb\n"


def test_json_is_one_document_with_every_field() -> None:
    out = _output(Format.JSON, schema="precast.verify/1")  # type: ignore[arg-type]
    _say_everything(out)
    assert json.loads(_text(out.stdout)) == {
        "schema": "precast.verify/1",
        "tool": {"name": "precast", "version": "0.1.0"},
        "ok": True,
        "exit_code": 0,
        "started_at": "2026-11-30T14:02:00Z",
        "seconds": 2.5,
        "data": {"rows": 2},
        "warnings": [{"code": "store.shared", "message": "The store is shared", "hint": "Look at it", "entry": "7f"}],
        "errors": [],
    }


@given(st.floats())
def test_json_stays_json_whatever_a_number_is(number: float) -> None:
    out = _output(Format.JSON)
    out.result({"facts": {"error": [number]}})
    out.finish(0)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads(_text(out.stdout), parse_constant=refuse)


def test_an_error_is_three_lines_on_stderr_in_every_format() -> None:
    for each in Format:
        out = _output(each)
        out.error(Remark("store.corrupt", "Bad\nbytes", "a digest differs", "Build it again"))
        assert _text(out.stderr).splitlines() == [
            "error: Bad bytes",
            "why: a digest differs",
            "next: Build it again",
        ]


def test_empty_lines_of_an_error_are_left_out() -> None:
    out = _output(Format.HUMAN)
    out.error(Remark("usage", "Wrong"))
    assert _text(out.stderr) == "error: Wrong\n"


def test_hints_are_left_out_when_quiet() -> None:
    out = _output(Format.HUMAN, quiet=True)
    out.hint("Do this")
    out.warning("a.b", "Careful", hint="Do that")
    assert _text(out.stderr) == "warning: Careful\n"


def test_a_stream_of_narrow_encoding_is_written_without_raising() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    out = Output(stream, stream)
    out.pairs([("plan", "9 pieces \N{RIGHTWARDS ARROW} 3")])
    assert raw.getvalue() == b"plan       9 pieces -> 3\n"


@pytest.mark.parametrize("word", ["ok", "MISS", "CORRUPT"])
def test_status_words_stand_without_color(word: str) -> None:
    out = _output(Format.HUMAN)
    out.status(word)
    assert _text(out.stdout) == f"{word}\n"
