"""A run against the committed results: what got worse is told, and only what this run measured."""

from dataclasses import replace

from tests.bench.compare import comparable, worse_figures
from tests.bench.made import figure, results
from tests.bench.results import Results


def worse(before: Results, now: Results) -> list[str]:
    measured = {f.scope for f in now.figures.values()}
    return [str(item) for item in worse_figures(before, now, measured)]


def test_a_figure_that_got_worse_is_told_with_both_values() -> None:
    before = results(figure("precast-aoti", "load", 0.010, 0.011, 0.012), figure("precast-aoti", "ready", 1.0, 1.1))
    now = results(figure("precast-aoti", "load", 0.020, 0.022, 0.021), figure("precast-aoti", "ready", 1.05, 1.0))
    assert worse(before, now) == ["peers: precast-aoti, load: 11.0 ms -> 21.0 ms (+91%)"]


def test_the_place_in_a_row_is_told() -> None:
    before = results(figure("eager", "step full", 4.0, 4.1, unit="ms", at=64))
    now = results(figure("eager", "step full", 5.0, 5.1, unit="ms", at=64))
    assert worse(before, now) == ["peers: eager, step full at 64: 4.05 ms -> 5.05 ms (+25%)"]


def test_nothing_is_told_of_what_is_better_new_gone_or_not_measured_now() -> None:
    before = results(figure("eager", "load", 2.0), figure("compile", "ready", 1.0), figure("eager", "ready", 1.0))
    now = results(figure("eager", "load", 1.0), figure("compile", "ready", 9.0), figure("eager", "import", 9.0))
    assert [str(w) for w in worse_figures(before, now, {("peers", "eager", -1)})] == []


def test_more_bandwidth_is_no_fault() -> None:
    before = results(figure("machine", "copy bandwidth", 4.0e12, unit="B/s"))
    assert worse(before, results(figure("machine", "copy bandwidth", 9.0e12, unit="B/s"))) == []


def test_counts_from_nothing_are_told() -> None:
    name = "heavy modules after load"
    before, now = (results(figure("precast-aoti", name, n, unit="count")) for n in (0, 2))
    assert worse(before, now) == [f"peers: precast-aoti, {name}: 0 -> 2 (+inf%)"]


def test_another_model_is_not_compared() -> None:
    before, now = results(figure("eager", "load", 1.0)), results(figure("eager", "load", 9.0))
    now.models = {"peers": {"config": "small"}}
    assert worse(before, now) == []


def test_only_equal_machines_are_comparable() -> None:
    now = results()
    assert comparable(results(), now) is None
    assert "no committed" in (comparable(None, now) or "")
    assert "quick" in (comparable(results(quick=True), now) or "")
    for name, value in (("gpu", "another"), ("torch", "2.13.0"), ("cores", 2)):
        other = replace(results(), machine={**now.machine, name: value})
        assert "machine" in (comparable(other, now) or "")
    assert comparable(replace(results(), machine={**now.machine, "kernel": "7"}), now) is None
