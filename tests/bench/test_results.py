"""Results: samples come together, what is measured anew replaces what was known, and a file gives them back."""

import json
from pathlib import Path

import pytest
from tests.bench.made import figure, results
from tests.bench.results import Absent, Results, read_results, scope, write_results


def test_samples_of_one_figure_come_together() -> None:
    made = results(figure("eager", "ready", 3.0), figure("eager", "ready", 1.0), figure("eager", "load", 9.0))
    found = made.find("peers", "eager", "ready")
    assert found is not None
    assert found.samples == (3.0, 1.0)
    assert (found.value, found.spread) == (2.0, 2.0)
    assert made.value("peers", "eager", "nothing") is None


def test_a_row_is_ascending_and_by_place() -> None:
    steps = [figure("eager", "step none", n / 8, unit="ms", at=n) for n in (64, 1, 8)]
    assert list(results(*steps, figure("eager", "ready", 1.0)).row("peers", "eager", "step none")) == [1, 8, 64]


def test_a_peer_is_forgotten_whole_and_a_depth_alone() -> None:
    deep = [figure("eager", "compile", float(n), part="scaling", at=n) for n in (8, 64)]
    made = results(figure("eager", "step none", 1.0, at=1), figure("eager", "ready", 1.0), *deep)
    made.note(Absent("scaling", "eager", "start", "it burst", at=8))
    made.forget(scope("peers", "eager", 64))
    assert {f.part for f in made.figures.values()} == {"scaling"}
    made.forget(scope("scaling", "eager", 8))
    assert [f.at for f in made.figures.values()] == [64]
    assert not made.absent


def test_what_was_left_out_for_time_is_measured_later() -> None:
    made = results()
    made.note(Absent("peers", "eager", "budget", "no time"))
    made.note(Absent("peers", "compile", "budget", "no time"))
    made.add(figure("eager", "ready", 1.0))
    assert [a.subject for a in made.absent.values()] == ["compile"]


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    made = results(
        figure("eager", "step none", 0.123456789, 2.0, unit="ms", at=8), figure("eager", "bytes", 5, unit="B")
    )
    made.note(Absent("peers", "aoti-package", "compile", "it has no such op", cannot=True))
    path = tmp_path / "results" / "gpu.json"
    write_results(made, path)
    back = read_results(path)
    assert back is not None
    assert back.to_json() == json.loads(path.read_text())
    assert back.absent == made.absent
    found = back.find("peers", "eager", "step none", 8)
    assert found is not None
    assert list(found.samples) == [0.12346, 2.0]
    assert [p.name for p in path.parent.iterdir()] == ["gpu.json"]


def test_another_format_is_refused(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none.json") is None
    with pytest.raises(ValueError, match="precast"):
        Results.from_json({"schema": "other/1"})
