import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.cache.sizes import format_age, format_size, parse_age, parse_size
from precast.errors import ConfigValueError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("500", 500),
        ("500B", 500),
        ("1.5GB", 1_500_000_000),
        ("1.1 gb", 1_100_000_000),
        ("2GiB", 2 * 2**30),
        ("3k", 3000),
        (" 10 MB ", 10_000_000),
        ("1TiB", 2**40),
    ],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "age"), [("0s", 0), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("30d", 2_592_000)])
def test_an_age_is_read(text: str, age: int) -> None:
    assert parse_age(text) == age


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1.GB", "1 XB", "1e3", "1GB2", "٣x"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        parse_size(text)
    assert "1.5GB" in caught.value.hint


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "1 month"])
def test_what_is_no_age_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        parse_age(text)
    assert "30d" in caught.value.hint


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (1_500_000_000, "1.5 GB"),
    ],
)
def test_a_size_is_written(size: int, text: str) -> None:
    assert format_size(size) == text


def test_the_largest_unit_is_tera() -> None:
    assert format_size(5 * 10**15) == "5000.0 TB"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (0.9, "0 s"), (59, "59 s"), (61, "1 min"), (7200, "2 h"), (9 * 86400, "9 d")]
)
def test_an_age_is_written(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


@given(st.integers(0, 10**15))
def test_a_written_size_reads_back_to_about_the_same(size: int) -> None:
    assert abs(parse_size(format_size(size)) - size) <= size * 0.05 + 1
