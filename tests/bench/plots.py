"""Plots as SVG text: stacked bars, and lines over a logarithmic axis; written without a plotting library."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "Line", "lines", "stacked_bars"]

COLORS = ("#3366aa", "#dd8833", "#449955", "#bb4455", "#7755aa", "#887755", "#cc66aa", "#667788", "#bbaa33", "#33aabb")
_WIDTH, _LEFT, _RIGHT = 880, 250, 90
_BAR, _GAP = 20, 10
_HEIGHT, _TOP, _BOTTOM = 340, 20, 44


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        title: Its name.
        parts: Lengths by phase, in the order of the phases.
        mark: Told after its end, such as where the figures come from.
    """

    title: str
    parts: Mapping[str, float]
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        title: Its name.
        points: Values by place on the x axis.
        dashed: Whether it is a bound and not a measurement.
    """

    title: str
    points: Mapping[int, float]
    dashed: bool = False


def stacked_bars(bars: Sequence[Bar], phases: Sequence[str], unit: str) -> str:
    """Return stacked horizontal bars, on one linear axis from 0.

    Args:
        bars: Bars from top to bottom.
        phases: Phases from left to right; each has a color.
        unit: Unit of the lengths.
    """
    longest = max((sum(bar.parts.values()) for bar in bars), default=0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    top = 28
    body = _legend([(phase, COLORS[at % len(COLORS)], False) for at, phase in enumerate(phases)], _LEFT, 12)
    for row, bar in enumerate(bars):
        y, x = top + row * (_BAR + _GAP), float(_LEFT)
        body.append(_text(_LEFT - 8, y + 14, bar.title, "end"))
        for at, phase in enumerate(phases):
            length = bar.parts.get(phase, 0.0) * scale
            if length > 0:
                told = f"{bar.title}, {phase}: {bar.parts[phase]:.3g} {unit}"
                body.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="{_BAR}" '
                    f'fill="{COLORS[at % len(COLORS)]}"><title>{escape(told)}</title></rect>'
                )
            x += length
        body.append(_text(x + 6, y + 14, f"{sum(bar.parts.values()):.3g} {unit} {bar.mark}".rstrip()))
    return _svg(body, top + len(bars) * (_BAR + _GAP) + 6)


def lines(found: Sequence[Line], x_title: str, y_title: str, *, log_y: bool = False) -> str:
    """Return lines over a logarithmic x axis, whose ticks are the places that have points.

    Args:
        found: Lines; those without points are left out.
        x_title: Title of the x axis.
        y_title: Title of the y axis.
        log_y: Whether the y axis is logarithmic; else it begins at 0.
    """
    found = [line for line in found if line.points]
    if not found:
        return _svg([_text(_WIDTH / 2, 20, "not measured", "middle")], 40)
    places = sorted({x for line in found for x in line.points})
    values = [y for line in found for y in line.points.values()]
    x_at, y_at, ticks = _scales(places, values, log_y=log_y)
    body = []
    for tick in ticks:
        y = y_at(tick)
        body.append(f'<line x1="60" x2="600" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        body.append(_text(54, y + 4, f"{tick:g}", "end"))
    body += [_text(x_at(place), _HEIGHT - _BOTTOM + 16, str(place), "middle") for place in places]
    body.append(_text(330, _HEIGHT - 8, x_title, "middle"))
    body.append(_text(10, 12, y_title))
    for at, line in enumerate(found):
        color = COLORS[at % len(COLORS)]
        path = " ".join(f"{x_at(x):.1f},{y_at(line.points[x]):.1f}" for x in sorted(line.points))
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        body.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        for x, y in line.points.items():
            told = f"{line.title} at {x}: {y:.4g}"
            body.append(
                f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{color}">'
                f"<title>{escape(told)}</title></circle>"
            )
        body += _legend([(line.title, color, line.dashed)], 620, 30 + at * 18)
    return _svg(body, _HEIGHT)


def _scales(
    places: Sequence[int], values: Sequence[float], *, log_y: bool
) -> tuple[Callable[[float], float], Callable[[float], float], list[float]]:
    """Return the functions from values to pixels, and the ticks of the y axis."""
    first, last = math.log(max(places[0], 0.5)), math.log(max(places[-1], 0.5))

    def x_at(x: float) -> float:
        return 330.0 if first == last else 70 + (math.log(max(x, 0.5)) - first) / (last - first) * 520

    ticks = _log_ticks(values) if log_y else _even_ticks(values)
    low, high = ticks[0], ticks[-1]

    def y_at(y: float) -> float:
        part = math.log(max(y, low) / low) / math.log(high / low) if log_y else y / high
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - part)

    return x_at, y_at, ticks


def _log_ticks(values: Sequence[float]) -> list[float]:
    """Return 1, 2 and 5 of each power of ten, from just below the least positive value to just above the largest."""
    least, most = min((v for v in values if v > 0), default=1.0), max(*values, 1e-9)
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    ticks = [10.0**power * m for power in powers for m in (1, 2, 5)]
    below = max((t for t in ticks if t <= least), default=ticks[0])
    above = min((t for t in ticks if t >= most and t > below), default=ticks[-1])
    return [t for t in ticks if below <= t <= above]


def _even_ticks(values: Sequence[float]) -> list[float]:
    step = _step(max(values))
    return [step * n for n in range((math.ceil(max(values) / step - 1e-9) or 1) + 1)]


def _step(largest: float) -> float:
    """Return a round distance of ticks, of which four to ten fit below a number."""
    if largest <= 0:
        return 1.0
    power: float = 10 ** math.floor(math.log10(largest))
    return next(power * m for m in (0.2, 0.25, 0.5, 1, 2) if largest / (power * m) <= 8)


def _legend(names: Sequence[tuple[str, str, bool]], x: float, y: float) -> list[str]:
    body = []
    for name, color, dashed in names:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        body.append(f'<line x1="{x}" x2="{x + 16}" y1="{y - 4}" y2="{y - 4}" stroke="{color}" stroke-width="5"{dash}/>')
        body.append(_text(x + 22, y, name))
        x += 40 + 7 * len(name)
    return body


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(body: Sequence[str], height: float) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" role="img">'
    return "\n".join((head, *body, "</svg>"))
