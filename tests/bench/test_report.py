"""The report and the README's tables: every figure is in them, and what is absent is told."""

import xml.etree.ElementTree as ET

import pytest
from tests.bench.made import figure, results
from tests.bench.plots import Bar, Line, lines, stacked_bars
from tests.bench.report import render_report
from tests.bench.results import Absent, Results
from tests.bench.table import render
from tests.bench.tables import all_tables

SVG = "{http://www.w3.org/2000/svg}"


def measured(where: str = "gpu") -> Results:
    """Return results with figures of every part."""
    made = results(
        figure("eager", "first call", 1.5),
        figure("precast-aoti", "import", 2.5),
        figure("precast-aoti", "load", 0.012, 0.013, 0.014),
        figure("precast-aoti", "first call", 0.17),
        figure("precast-aoti", "capture full", 0.55),
        figure("precast-aoti", "ready", 0.733),
        figure("precast-aoti", "bytes", 3_400_000, unit="B"),
        figure("precast-aoti", "host bytes", 2**30, unit="B"),
        figure("precast-aoti", "step full", 4.68, unit="ms", at=1),
        figure("precast-aoti", "step full", 9.4, unit="ms", at=256),
        figure("machine", "weight bytes", 14e9, unit="B"),
        figure("machine", "copy bandwidth", 4e12, unit="B/s"),
        figure("precast-aoti", "compile", 26.0, part="scaling", at=8),
        figure("precast-aoti", "compile", 31.0, part="scaling", at=64),
        figure("precast inspect ls", "wall", 0.3, part="commands"),
        figure("precast inspect ls", "wall", 0.9, part="commands", at=10_000),
        where=where,
    )
    made.note(Absent("peers", "aoti-package", "compile", "torch.export: <no such op>", cannot=True))
    return made


def test_the_tables_have_rows_of_one_width() -> None:
    tables = all_tables(measured())
    titles = [table.title for table in tables]
    assert len(titles) == 6
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.head)}


def test_markdown_has_figures_origin_quotes_and_absences() -> None:
    text = render([measured()])
    assert "`python -m tests.bench gpu` on a GPU, 16 cores of a CPU, torch 2.11.0, Python 3.12.3, 2026-12-01." in text
    assert "| precast, aoti | - | 13.0 ms ±8% | 0.17 s | 0.55 s | 0.73 s | - | 2.50 s | 3.24 MiB |" in text
    assert "| AOTInductor, whole model | - |" in text
    assert "AOTInductor, whole model: cannot compile: torch.export: <no such op>." in text
    assert "| vLLM, mega artifact (quoted) | 18.1 s | - | 1.10 s | 1.75 s | 2.85 s | 5.80 s | - | 16.3 MiB |" in text
    assert "| to read the weights once | 3.50 ms | 3.50 ms |" in text
    assert "| precast, aoti | 64 | 31.0 s |" in text
    assert "| `precast inspect ls` | 0.30 s | 0.90 s |" in text


def test_a_cpu_has_neither_captures_nor_quotes() -> None:
    text = render([measured("cpu")])
    assert "capture" not in text.replace("the capture of FULL graphs", "")
    assert "vLLM" not in text


def test_chosen_tables_alone() -> None:
    text = render([measured()], ["Depth"])
    assert "**Depth**" in text
    assert "**Start-up**" not in text


def test_nothing_measured_renders() -> None:
    assert "never" in render([results()])
    assert render_report(results()).startswith("<!doctype html>")


def test_the_report_is_one_file_that_loads_nothing() -> None:
    text = render_report(measured(), ["peers: eager, load: 1 s -> 2 s"])
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text
    assert "1 s -&gt; 2 s" in text
    assert "&lt;no such op&gt;" in text
    assert '<td class="reached">' in text
    found = [ET.fromstring(part + "</svg>") for part in _plots(text)]
    assert len(found) == 3
    titles = [title.text for title in found[0].iter(f"{SVG}title")]
    assert "precast, aoti, capture FULL: 0.55 s" in titles


def _plots(text: str) -> list[str]:
    return ["<svg" + part.partition("</svg>")[0] for part in text.split("<svg")[1:]]


def test_bars_stand_end_to_end() -> None:
    root = ET.fromstring(stacked_bars([Bar("one", {"a": 1.0, "b": 3.0}), Bar("two", {"b": 2.0})], ["a", "b"], "s"))
    found = [(float(r.attrib["x"]), float(r.attrib["width"])) for r in root.iter(f"{SVG}rect")]
    (first, width), (second, longer), (other, half) = found
    assert second == pytest.approx(first + width, abs=0.2)
    assert longer == pytest.approx(3 * width, abs=0.3)
    assert (other, half) == pytest.approx((first, 2 * width), abs=0.3)


@pytest.mark.parametrize("log_y", [False, True])
def test_points_lie_inside_and_more_is_higher(log_y: bool) -> None:
    text = lines([Line("a", {1: 4.5, 8: 4.6, 256: 9.7}), Line("none", {})], "x", "y", log_y=log_y)
    spots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in ET.fromstring(text).iter(f"{SVG}circle")]
    assert [x for x, _ in spots] == sorted(x for x, _ in spots)
    assert [y for _, y in spots] == sorted((y for _, y in spots), reverse=True)
    assert all(60 <= x <= 600 and 0 <= y <= 340 for x, y in spots)


def test_a_plot_without_points_says_so() -> None:
    assert "not measured" in lines([], "x", "y")
    assert "<svg" in lines([Line("flat", {4: 0.0})], "x", "y")
    assert "<svg" in lines([Line("one", {4: 2.0})], "x", "y", log_y=True)
