"""How `precast inspect explain` answers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from precast.cache.advice import advise
from precast.cache.canonical import Json
from precast.cache.factors import GROUPS
from precast.cli.diff_view import change_text, diff_data, show_changes, summary_rows
from precast.cli.github import Annotation
from precast.cli.output import Output
from precast.cli.values import value_text
from precast.cli.wording import counted, joined, short

if TYPE_CHECKING:
    from precast.cache.explain import Explanation
    from precast.cache.index import Near
    from precast.cache.lookup import MissReason
    from precast.cache.manifest import Manifest

__all__ = ["explain_data", "report_to_job", "show_explanation"]

_CHANGED, _NONE, _REMOTE = "factor_changed", "no_entry_for_model", "remote_unreachable"


def explain_data(explanation: "Explanation", hit: "Manifest | None", tags: Mapping[str, str]) -> dict[str, Json]:
    """Give an explanation as data; its values were masked when it was made.

    Args:
        explanation: What was found.
        hit: The manifest of the entry that answers, or None.
        tags: The key that each tag names.
    """
    near, diff = explanation.nearest, explanation.diff
    factors = explanation.request_factors
    return {
        "status": explanation.status,
        "key": explanation.key or None,
        "model": hit.model.name if hit else None,
        "seconds_saved": hit.build.seconds if hit else 0.0,
        "factors": [{"group": factor.group, "name": factor.name, "value": factor.value} for factor in factors],
        "nearest": None if near is None else _near(near, tags),
        "diff": None if diff is None else diff_data(diff),
        "reasons": _reasons(explanation),
        "advice": list(explanation.advice),
    }


def show_explanation(
    out: Output, explanation: "Explanation", hit: "Manifest | None", tags: Mapping[str, str], remote: str = ""
) -> None:
    """Show people whether it is a hit; for a miss the nearest entry, what changed, and the way back.

    Args:
        out: The sink.
        explanation: What was found.
        hit: The manifest of the entry that answers, or None.
        tags: The key that each tag names.
        remote: The remote that has the entry, where this store has not; else empty.
    """
    if explanation.status == "hit":
        saves = f"saves about {hit.build.seconds:.1f} s" if hit else ""
        place = f"in {remote}, not here yet" if remote else ""
        named = [hit.model.name if hit else "", *_tags(explanation.key, tags), saves, place]
        out.status("HIT", f"      {short(explanation.key)}  {joined(named)}")
    else:
        out.status("MISS", f"     {_why(explanation)}")
    out.pairs(_nearest(explanation, tags))
    if explanation.diff:
        show_changes(out, explanation.diff)
    out.pairs(_obstacles(explanation))
    out.pairs(("" if number else "fix", line) for number, line in enumerate(explanation.advice))


def report_to_job(out: Output, model: str, explanation: "Explanation", data: Mapping[str, Json]) -> None:
    """Tell the job of GitHub Actions that runs us: a notice or a warning, a table, and outputs."""
    hit, key = explanation.status == "hit", explanation.key
    diff = explanation.diff
    if hit:
        out.annotate(Annotation.NOTICE, "hit", f"{model} is {short(key)}")
        out.summarize("precast inspect explain: hit", ("model", "key"), [(model, key)])
    else:
        changes = [
            f"{change.group} {change.factor}: {change_text(change)}" for change in (diff.changes if diff else ())
        ]
        out.annotate(Annotation.WARNING, "miss", f"{model}: {_why(explanation)}", *changes, *explanation.advice)
        rows = summary_rows(diff) if diff else []
        reasons = [
            ("", reason.code, reason.factor, "", "") for reason in explanation.reasons if reason.code != _CHANGED
        ]
        out.summarize(f"precast inspect explain: miss of {model}", ("group", "factor", "a", "b", ""), [*rows, *reasons])
    saved = data["seconds_saved"]
    out.set_outputs({"key": key, "hit": str(hit).lower(), "seconds-saved": f"{saved:.1f}"})


def _why(explanation: "Explanation") -> str:
    near = explanation.nearest
    if near is None:
        return "the store holds no entry to compare with"
    broken = [reason.code for reason in explanation.reasons if reason.code not in (_CHANGED, _NONE, _REMOTE)]
    if not near.differing:
        return (
            f"the entry that fits cannot be used: {broken[0]}" if broken else "only a trace can tell whether one fits"
        )
    told = explanation.diff.breaking if explanation.diff else ()
    away = counted(len({change.label for change in told}) or sum(near.differing.values()), "factor")
    if not near.of_model:
        return f"no entry of this model is stored; the nearest of another differs in {away}"
    return f"no entry answers this request; the nearest differs in {away}"


def _nearest(explanation: "Explanation", tags: Mapping[str, str]) -> list[tuple[str, str]]:
    near, diff = explanation.nearest, explanation.diff
    if near is None:
        return []
    named = ", ".join(_tags(near.key, tags))
    same = [group for group in GROUPS if diff and diff.unchanged.get(group) and not near.differing.get(group)]
    parts = [f"{short(near.key)} ({named})" if named else short(near.key), f"same {', '.join(same)}" if same else ""]
    return [("nearest", joined(parts))]


def _obstacles(explanation: "Explanation") -> list[tuple[str, str]]:
    """Word what is neither a changed factor, which is shown already, nor that there is no entry, which began it."""
    return [
        ("reason", f"{reason.code}  {joined([short(reason.entry), reason.factor, _told(reason)])}")
        for reason in explanation.reasons
        if reason.code not in (_CHANGED, _NONE)
    ]


def _told(reason: "MissReason") -> str:
    if reason.code == _REMOTE:
        return value_text(reason.b)
    if reason.a is None:
        return "" if reason.b is None else value_text(reason.b)
    return f"{value_text(reason.a)} → {value_text(reason.b)}"


def _near(near: "Near", tags: Mapping[str, str]) -> dict[str, Json]:
    return {
        "key": near.key,
        "tags": [*_tags(near.key, tags)],
        "differing": dict(near.differing),
        "shared": near.shared,
        "weight": near.weight,
        "of_model": near.of_model,
    }


def _reasons(explanation: "Explanation") -> list[Json]:
    diff, advice = explanation.diff, explanation.advice
    hints = {change.label: advise((change,), diff.a)[0] for change in diff.breaking} if diff else {}
    return [
        {
            "code": reason.code,
            "entry": reason.entry or None,
            "factor": reason.factor or None,
            "a": reason.a,
            "b": reason.b,
            "hint": hints.get(reason.factor) or _hint(reason, advice),
        }
        for reason in explanation.reasons
    ]


def _hint(reason: "MissReason", advice: Sequence[str]) -> str:
    fitting = [line for line in advice if reason.factor and reason.factor in line]
    return next(iter((*fitting, *advice)), "")


def _tags(key: str, tags: Mapping[str, str]) -> list[str]:
    return [name for name, named in tags.items() if named == key]
