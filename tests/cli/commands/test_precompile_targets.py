"""`precast precompile` for several targets: one call, one answer for each, the worst exit status."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.support import FakeLibrary, FakeResult, Ran, payload, publish

from precast.aot import each_target
from precast.aot.each_target import TargetOutcome
from precast.cli.documents import document
from precast.errors import CompileError, ExitCode, IncompatibleError

Run = Callable[..., Ran]
Library = Callable[[str, object], FakeLibrary]
TWO = ("--target", "h200", "--target", "l40s")


class Each:
    """Stands for `precompile_each`: answers each target in turn with a result or an error."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []
        self.given: dict[str, Any] = {}

    def __call__(self, model: str, targets: Any, *, on_done: Any, output: Path | None, **given: Any) -> Any:
        self.given = {"model": model, "output": output, **given}
        made = []
        for wanted, answer in zip(targets, self.answers, strict=True):
            self.asked.append(wanted.names)
            failed = isinstance(answer, Exception)
            name = wanted.names[0]
            file = Path(str(output).replace("{target}", name)) if output else None
            made.append(TargetOutcome(wanted, None if failed else answer, answer if failed else None, file))
            on_done(made[-1])
        return tuple(made)


@pytest.fixture
def result(root: Path) -> FakeResult:
    return FakeResult("compiled", root, payloads=(payload(b"a"),))


@pytest.fixture
def each(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Each]:
    def put(*answers: Any) -> Each:
        fake = Each(list(answers))
        monkeypatch.setattr(each_target, "precompile_each", fake)
        return fake

    return put


def other(result: FakeResult, status: str = "compiled") -> FakeResult:
    return replace(result, status=status, key="ab" * 32)


def test_every_target_is_asked_for_in_one_call_with_the_same_words(
    run: Run, each: Any, result: FakeResult, root: Path
) -> None:
    fake = each(result, other(result))
    assert run("precompile", "m.py:f", *TWO, "--set", "layers=2", "--tag", "x-{target}", "--force").code == 0
    assert fake.asked == [("h200",), ("l40s",)]
    assert fake.given["overrides"] == {"layers": 2}
    assert (fake.given["tags"], fake.given["force"], fake.given["dry_run"]) == (["x-{target}"], True, False)
    assert fake.given["cache_dir"] == root


@pytest.mark.parametrize("how", ["commas", "environment", "file"])
def test_targets_come_from_a_list_anywhere(
    run: Run, each: Any, result: FakeResult, own_place: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    fake, words = each(result, other(result)), ["precompile", "m.py:f"]
    if how == "commas":
        words += ["--target", "h200,l40s"]
    elif how == "environment":
        monkeypatch.setenv("PRECAST_TARGET", "h200,l40s")
    else:
        (own_place / "precast.toml").write_text("[settings]\ntarget = ['h200', 'l40s']\n")
    assert run(*words).code == 0
    assert fake.asked == [("h200",), ("l40s",)]


def test_the_answer_has_a_shape_of_its_own_around_that_of_one_target(run: Run, each: Any, result: FakeResult) -> None:
    each(result, other(result, "up_to_date"))
    answer = run("precompile", "m.py:f", "--target", "h200", "--target", "h100", "--target", "l40s", "--json").json()
    assert answer["schema"] == "precast.precompile.targets/1"
    first, second = answer["data"]["targets"]
    assert (first["names"], first["exit_code"], first["error"]) == (["h200", "h100"], 0, None)
    assert first["target"]["arch"] == "sm_90"
    assert first["result"]["status"] == "compiled"
    assert (second["names"], second["result"]["key"]) == (["l40s"], "ab" * 32)


def test_one_target_answers_as_ever(run: Run, library: Library, result: FakeResult) -> None:
    fake = library("precompile", result)
    answer = run("precompile", "m.py:f", "--target", "h200", "--json").json()
    assert answer["schema"] == "precast.precompile/1"
    assert "targets" not in answer["data"]
    assert fake.settings.target == "h200"


def test_people_read_each_target_under_its_name(run: Run, each: Any, result: FakeResult) -> None:
    each(other(result, "up_to_date"), result)
    out = run("precompile", "m.py:f", *TWO).out.splitlines()
    assert out[0] == "target     h200   cuda sm_90"
    assert out[1].startswith("up to date  abababababab")
    assert out[2] == "target     l40s   cuda sm_89"
    assert out[3].startswith("key        7f3c91d2a604")
    assert run("precompile", "m.py:f", *TWO, "-q").out.split() == ["ab" * 32, result.key]


def test_a_target_that_fails_is_told_beside_the_others_and_the_worst_status_counts(
    run: Run, each: Any, result: FakeResult
) -> None:
    each(CompileError("piece 1 could not be compiled", "ptxas"), result)
    ran = run("precompile", "m.py:f", *TWO, "--json")
    first, second = ran.json()["data"]["targets"]
    assert (ran.code, first["exit_code"], second["exit_code"]) == (ExitCode.COMPILE_FAILED, 7, 0)
    assert (first["error"], first["result"], second["error"]) == ("compile.failed", None, None)
    assert [e["code"] for e in ran.json()["errors"]] == ["compile.failed"]
    assert "error: piece 1 could not be compiled" in ran.err


def test_check_exits_3_if_one_would_be_compiled_and_nothing_failed(run: Run, each: Any, result: FakeResult) -> None:
    each(other(result, "up_to_date"), other(result, "planned"))
    assert run("precompile", "m.py:f", *TWO, "--check").code == ExitCode.DIFFERS
    each(IncompatibleError("no code can be made here"), other(result, "planned"))
    assert run("precompile", "m.py:f", *TWO, "--check").code == ExitCode.INCOMPATIBLE
    each(other(result, "planned"), other(result, "planned"))
    assert run("precompile", "m.py:f", *TWO, "--dry-run").code == 0


def test_each_target_is_written_to_a_file_of_its_own(
    run: Run, each: Any, result: FakeResult, root: Path, tmp_path: Path
) -> None:
    keys = publish(root, "one"), publish(root, "two")
    each(replace(result, key=keys[0]), replace(result, key=keys[1]))
    answer = run("precompile", "m.py:f", *TWO, "--output", str(tmp_path / "m-{target}.mega"), "--json").json()
    written = [tmp_path / f"m-{name}.mega" for name in ("h200", "l40s")]
    assert all(file.stat().st_size for file in written)
    assert [t["output"] for t in answer["data"]["targets"]] == [str(file) for file in written]


@pytest.mark.parametrize("flag", ["--output", "--tag"])
def test_one_file_or_tag_for_two_targets_is_refused(run: Run, tmp_path: Path, flag: str) -> None:
    ran = run("precompile", "m.py:f", *TWO, flag, str(tmp_path / "m.mega") if flag == "--output" else "prod")
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert "is one name for 2 targets" in ran.err
    assert "{target}" in ran.err


def test_with_one_target_the_pattern_holds_too(
    run: Run, library: Library, result: FakeResult, root: Path, tmp_path: Path
) -> None:
    fake = library("precompile", replace(result, key=publish(root, "one")))
    words = ["--target", "h200", "--output", str(tmp_path / "{target}.mega"), "--tag", "prod-{target}"]
    assert run("precompile", "m.py:f", *words).code == 0
    assert (tmp_path / "h200.mega").is_file()
    assert fake.kwargs["tags"] == ["prod-h200"]


@pytest.mark.parametrize("command", [["verify", "m.py:f"], ["inspect", "explain", "m.py:f"]])
def test_a_command_that_looks_at_one_target_refuses_several_flags(run: Run, command: list[str]) -> None:
    ran = run(*command, *TWO)
    assert ran.code == ExitCode.USAGE
    assert "several targets are named" in ran.err


def test_config_shows_every_target(run: Run, own_place: Path) -> None:
    (own_place / "precast.toml").write_text("[settings]\ntarget = ['h200', 'l40s']\n")
    values = run("config", "--json").json()["data"]["values"]
    assert next(v["value"] for v in values if v["key"] == "settings.target") == ["h200", "l40s"]


def test_a_job_on_github_gets_a_table_each_and_outputs_for_all(
    run: Run, each: Any, result: FakeResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    each(replace(other(result, "up_to_date"), saved_seconds=10.0), replace(result, status="pulled", saved_seconds=2.5))
    run("precompile", "m.py:f", *TWO)
    assert (tmp_path / "GITHUB_OUTPUT").read_text().splitlines() == [
        f"key={'ab' * 32} {result.key}", "hit=true", "seconds-saved=12.5",
    ]  # fmt: skip
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text().count("### precast precompile") == 2
    each(CompileError("no"), replace(result, status="pulled"))
    run("precompile", "m.py:f", *TWO)
    assert "hit=false" in (tmp_path / "GITHUB_OUTPUT").read_text()


def test_the_schema_holds_the_answer_of_one_target_as_it_is() -> None:
    several, one = document("precompile.targets"), document("precompile")
    assert several["$defs"]["result"] == one["$defs"]["data"]
    assert "x-precast" not in json.dumps(several)


def test_for_a_gpu_a_cpu_build_of_torch_says_in_one_line_what_to_install(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precast.aot.target.torch_cuda", lambda: None)
    monkeypatch.setattr("precast.aot.request._distribution", lambda name: name)
    folder = Path(__file__).parents[3] / "examples" / "configs" / "tiny-llama"
    ran = run("precompile", str(folder), *TWO)
    assert (ran.code, ran.out.count("target ")) == (ExitCode.INCOMPATIBLE, 2)
    assert ran.err.count("why: the installed torch is a build for the CPU alone") == 2
    hints = [line for line in ran.err.splitlines() if line.startswith("next:")]
    wanted = torch.__version__.partition("+")[0]
    assert len(hints) == 2
    assert all(hint.startswith(f"next: pip install --force-reinstall torch=={wanted}, ") for hint in hints)
