"""Results for tests: small ones, made by hand."""

from tests.bench.results import Figure, Results

MACHINE = {"cpu": "a CPU", "cores": 16, "gpu": "a GPU", "torch": "2.11.0", "triton": "3.6.0", "python": "3.12.3"}


def figure(
    subject: str, name: str, *samples: float, part: str = "peers", unit: str = "s", at: int | None = None
) -> Figure:
    """Make a figure of one day."""
    return Figure(part, subject, name, unit, samples, at, "2026-12-01")


def results(*figures: Figure, where: str = "gpu", quick: bool = False) -> Results:
    """Make results with some figures."""
    made = Results(where, f"python -m tests.bench {where}", quick, dict(MACHINE), {"peers": {"config": "big"}})
    for item in figures:
        made.add(item)
    return made
