"""The numbers to reach: each is worked out from the right figures, and nothing is reached that was not measured."""

import pytest
from tests.bench.goals import GOALS, judge
from tests.bench.made import figure, results
from tests.bench.results import Results


def gpu() -> Results:
    """Return results of which every goal on a GPU can be worked out."""
    return results(
        figure("precast-aoti", "import", 3.0),
        figure("precast-aoti", "ready", 0.8),
        figure("precast-aoti", "load and first call", 0.18),
        figure("precast-aoti", "heavy modules after load", 0, unit="count"),
        figure("precast-aoti", "heavy modules after first call", 1, unit="count"),
        figure("precast-aoti", "compile", 30.0),
        figure("precast-aoti", "bytes", 4_000_000, unit="B"),
        figure("precast-aoti", "mega bytes", 1_500_000, unit="B"),
        figure("precast-inductor", "compile", 15.0),
        figure("compile", "import", 3.0),
        figure("compile", "ready", 12.0),
        figure("compile", "load and first call", 8.0),
        figure("compile", "capture full", 4.0),
        figure("compile", "capture lean", 1.3),
        figure("compile", "compile", 48.0),
        figure("cache-artifacts", "bytes", 5_000_000, unit="B"),
        figure("precast-aoti", "compile", 26.0, part="scaling", at=8),
        figure("precast-aoti", "compile", 39.0, part="scaling", at=64),
    )


def found(results: Results) -> dict[str, tuple[float | None, str]]:
    return {v.goal.name: (None if v.value is None else round(v.value, 4), v.word) for v in judge(results)}


def test_every_goal_of_a_gpu() -> None:
    assert found(gpu()) == {
        "ready, precast aoti against torch.compile with a warm cache": (0.0667, "reached"),
        "the same, both with `import torch`": (0.2533, "missed"),
        "the same, torch.compile captured without a warm-up per size": (0.086, "missed"),
        "ready, precast aoti against torch.compile cold": (0.0154, "reached"),
        "load and first call, precast aoti": (0.18, "reached"),
        "of torch._dynamo, torch._inductor, sympy and triton, imported by the load of precast aoti": (0, "reached"),
        "the same by its first call too, which imports what the example's own attention op needs": (1, "missed"),
        "cold compile of 32 layers, precast inductor against torch.compile": (0.3125, "reached"),
        "cold compile of 32 layers, precast aoti against torch.compile": (0.625, "missed"),
        "cold compile, precast aoti, 64 layers against 8": (1.5, "missed"),
        "bytes on disk, a precast aoti entry with its mega file against save_cache_artifacts": (0.8, "missed"),
        "the same, the mega file alone, which is what is shipped": (0.3, "reached"),
    }


def test_every_goal_of_a_cpu() -> None:
    starts = {"precast-aoti": 0.2, "compile": 4.0, "aoti-c-loader": 0.1, "aoti-package": 2.0}
    made = results(*(figure(name, "load and first call", s) for name, s in starts.items()), where="cpu")
    words = {name: word for name, (value, word) in found(made).items() if value is not None}
    assert words == {
        "load and first call, precast aoti against torch.compile with a warm cache": "reached",
        "load and first call, precast aoti against AOTInductor's package of the whole model, torch's private loader": (
            "missed"
        ),
        "the same, `aoti_load_package`, which is the public one": "reached",
    }


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_without_figures_nothing_is_reached_or_missed(where: str) -> None:
    verdicts = judge(results(where=where))
    assert verdicts
    assert {v.word for v in verdicts} == {"not measured"}


def test_a_quick_run_reaches_nothing() -> None:
    made = gpu()
    made.quick = True
    assert {v.word for v in judge(made)} == {"not measured"}


def test_the_bound_itself_reaches() -> None:
    made = results(figure("precast-aoti", "load and first call", 0.2))
    assert found(made)["load and first call, precast aoti"] == (0.2, "reached")


def test_names_of_goals_are_unique() -> None:
    assert len({goal.name for goal in GOALS}) == len(GOALS)
