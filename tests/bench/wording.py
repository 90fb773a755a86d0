"""Numbers in words: with the unit that reads best, and no more digits than they carry."""

from tests.bench.results import Absent, Figure, Results

__all__ = ["NONE", "absence", "number", "sample_text", "titles"]

NONE = "-"
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def number(value: float, unit: str) -> str:
    """Return a number with its unit.

    Args:
        value: In the figure's own unit.
        unit: `s`, `ms`, `us`, `B`, `B/s`, `x` or `count`.
    """
    if unit == "count":
        return f"{value:.0f}"
    if unit == "x":
        return f"1/{1 / value:.1f}" if 0 < value < 0.7 else f"{value:.2f}"
    if unit == "B":
        return _size(value)
    if unit == "B/s":
        return f"{value / 1e12:.2f} TB/s" if value >= 1e12 else f"{value / 1e9:.1f} GB/s"
    if unit == "s" and 0 < abs(value) < 1e-4:
        return f"{_digits(value * 1e6)} us"
    if unit == "s" and 0 < abs(value) < 0.1:
        return f"{_digits(value * 1e3)} ms"
    return f"{_digits(value)} {unit}"


def sample_text(figure: Figure | None) -> str:
    """Return a figure's median, and its spread where it has one."""
    if figure is None:
        return NONE
    text = number(figure.value, figure.unit)
    if figure.exact or not figure.spread:
        return text
    part = figure.spread / 2 / abs(figure.value) if figure.value else 0.0
    return f"{text} ±{max(part, 0.001):.0%}" if part >= 0.005 else text


def absence(results: Results, part: str, subject: str) -> str | None:
    """Return why a subject has no figures, or not all; None where nothing is in the way."""
    found = [a for a in results.absent.values() if (a.part, a.subject) == (part, subject)]
    return "; ".join(dict.fromkeys(map(_absence, found))) or None


def titles() -> dict[str, str]:
    """Return the titles of peers by name."""
    from tests.bench.peers import PEERS

    return {peer.name: peer.title for peer in PEERS}


def _absence(absent: Absent) -> str:
    at = "" if absent.at is None else f" at {absent.at}"
    if absent.stage == "budget":
        return f"not measured{at}: {absent.why}"
    return f"cannot {absent.stage}{at}: {absent.why}" if absent.cannot else f"{absent.stage}{at} failed: {absent.why}"


def _digits(value: float) -> str:
    """Keep three digits."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def _size(value: float) -> str:
    for factor, unit in _SIZES:
        if abs(value) >= factor:
            return f"{_digits(value / factor)} {unit}"
    return f"{value:.0f} B"
