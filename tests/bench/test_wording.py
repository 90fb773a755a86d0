"""Numbers in words."""

import pytest
from tests.bench.made import figure, results
from tests.bench.results import Absent
from tests.bench.wording import absence, number, sample_text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (0.00123, "s", "1.23 ms"),
        (5.1e-6, "s", "5.10 us"),
        (1.234, "s", "1.23 s"),
        (45.67, "s", "45.7 s"),
        (456.7, "s", "457 s"),
        (0.0, "s", "0 s"),
        (4.567, "ms", "4.57 ms"),
        (52.3, "us", "52.3 us"),
        (5_100_000, "B", "4.86 MiB"),
        (512, "B", "512 B"),
        (4.28e12, "B/s", "4.28 TB/s"),
        (1 / 12, "x", "1/12.0"),
        (1.25, "x", "1.25"),
        (3, "count", "3"),
    ],
)
def test_a_number_has_the_unit_that_reads_best(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text


def test_a_figure_tells_its_spread_where_it_has_one() -> None:
    assert sample_text(None) == "-"
    assert sample_text(figure("eager", "load", 2.0)) == "2.00 s"
    assert sample_text(figure("eager", "load", 1.9, 2.0, 2.1)) == "2.00 s ±5%"
    assert sample_text(figure("eager", "load", 2.0, 2.0)) == "2.00 s"
    assert sample_text(figure("eager", "bytes", 100, 104, unit="B")) == "102 B"
    assert sample_text(figure("eager", "host bytes", 2**20, 2**21, unit="B")) == "1.50 MiB ±33%"


def test_what_is_absent_says_why() -> None:
    made = results()
    assert absence(made, "peers", "eager") is None
    made.note(Absent("peers", "eager", "compile", "no such op", cannot=True))
    made.note(Absent("peers", "eager", "start", "exit 1: it burst"))
    made.note(Absent("peers", "compile", "budget", "no time was left for it"))
    assert absence(made, "peers", "eager") == "cannot compile: no such op; start failed: exit 1: it burst"
    assert absence(made, "peers", "compile") == "not measured: no time was left for it"
