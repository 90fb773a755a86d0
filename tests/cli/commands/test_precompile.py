"""`precast precompile` hands on what was asked and words what came of it."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tests.cli.support import FakeLibrary, FakeResult, Ran, payload, publish

from precast.cache.root import CacheRoot
from precast.cli.terminal import DASH, TIMES
from precast.errors import ExitCode

Run = Callable[..., Ran]
Library = Callable[[str, object], FakeLibrary]


@pytest.fixture
def compiled(root: Path) -> FakeResult:
    """A result with two payloads, one of them shared."""
    payloads = (payload(b"a", "aaaaaaaaaaaaaaaa:1-8192", 4), payload(b"b", "bbbbbbbbbbbbbbbb:16-16"))
    return FakeResult("compiled", root, payloads=payloads)


def test_everything_that_was_asked_reaches_the_library(
    run: Run, library: Library, compiled: FakeResult, root: Path, tmp_path: Path
) -> None:
    fake = library("precompile", compiled)
    (tmp_path / "serve.toml").write_text("layers = 2\nhidden = 64\n")
    words = ["--set", "layers=4", "--config-file", str(tmp_path / "serve.toml"), "--payload", "aoti"]
    words += ["--target", "cpu", "--max-num-batched-tokens", "64", "--compile-range-endpoints", "16,32"]
    words += ["--compile-sizes", "1,2", "--splitting-op", "a::b", "--splitting-op", "c::d"]
    words += ["--inductor", "max_autotune=true", "-O=1", "--jobs", "2", "--force"]
    assert run("precompile", "m.py:build", *words).code == 0
    assert fake.args[0] == "m.py:build"
    assert fake.kwargs["overrides"] == {"layers": 4, "hidden": 64}
    assert fake.kwargs["cache_dir"] == root
    assert (fake.kwargs["force"], fake.kwargs["dry_run"]) == (True, False)
    settings = fake.settings
    assert (settings.payload, settings.target, settings.max_num_batched_tokens) == ("aoti", "cpu", 64)
    assert (settings.compile_range_endpoints, settings.compile_sizes) == ((16, 32), (1, 2))
    assert (settings.splitting_ops, dict(settings.inductor_config)) == (("a::b", "c::d"), {"max_autotune": True})
    assert (settings.optimization_level, settings.jobs) == (1, 2)
    assert {r.name for r in settings.record if r.origin == "flag"} == {
        "payload", "target", "max_num_batched_tokens", "compile_range_endpoints", "compile_sizes",
        "splitting_ops", "inductor_config", "optimization_level", "jobs",
    }  # fmt: skip


@pytest.mark.parametrize("spelling", [["-O0"], ["-O", "0"], ["-O=0"], ["--optimization-level=0"]])
def test_every_spelling_of_the_level_sets_it(
    run: Run, library: Library, compiled: FakeResult, spelling: list[str]
) -> None:
    fake = library("precompile", compiled)
    run("precompile", "m.py:f", *spelling)
    assert fake.settings.optimization_level == 0


def test_settings_come_from_environment_and_file_below_flags(
    run: Run, library: Library, compiled: FakeResult, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = library("precompile", compiled)
    (own_place / "precast.toml").write_text("[settings]\njobs = 1\npayload = 'inductor'\ncompile_sizes = [4]\n")
    monkeypatch.setenv("PRECAST_JOBS", "2")
    run("precompile", "m.py:f", "--payload", "aoti")
    origins = {r.name: (r.value, r.origin) for r in fake.settings.record}
    assert origins["jobs"] == (2, "environment")
    assert origins["payload"] == ("aoti", "flag")
    assert origins["compile_sizes"] == ([4], "file")


def test_people_read_key_plan_pieces_and_the_next_command(run: Run, library: Library, compiled: FakeResult) -> None:
    library("precompile", compiled)
    lines = run("precompile", "m.py:f").out.splitlines()
    assert lines == [
        "key        7f3c91d2a604  (env 19ab · code c4c4)",
        f"plan       5 pieces → 3 distinct · 1 range 1{DASH}8192 · cut at precast::paged_attention {TIMES}4",
        f"piece 1/2  aaaaaaaaaaaa {TIMES}4    range 1{DASH}8192    1.5 s   1 B",
        "piece 2/2  bbbbbbbbbbbb       range 16        1.5 s   1 B",
        "mega       one artifact, 3.4 MB",
        f"stored     {compiled.root}   800.0 kB   19.9 s",
        "next       precast verify 7f3c91d2a604",
    ]


def test_json_holds_bytes_seconds_and_full_hashes(run: Run, library: Library, compiled: FakeResult) -> None:
    library("precompile", compiled)
    data = run("precompile", "m.py:f", "--json").json()["data"]
    assert (data["status"], data["key"], data["stored_bytes"]) == ("compiled", compiled.key, 800_000)
    assert data["payloads"][0]["range"] == [1, 8192]
    assert data["payloads"][0]["seconds"] == 1.5


def test_an_entry_that_is_there_is_up_to_date(run: Run, library: Library, compiled: FakeResult) -> None:
    library("precompile", replace(compiled, status="up_to_date", seconds=0.4, saved_seconds=19.9))
    ran = run("precompile", "m.py:f")
    assert (ran.code, ran.out) == (
        0,
        "up to date  7f3c91d2a604  tiny-decoder · saves about 19.9 s   (0.4 s)\n",
    )


@pytest.mark.parametrize(
    ("flag", "status", "code"),
    [
        ("--check", "planned", ExitCode.DIFFERS),
        ("--check", "up_to_date", ExitCode.OK),
        ("--dry-run", "planned", ExitCode.OK),
        ("--dry-run", "up_to_date", ExitCode.OK),
    ],
)
def test_check_and_dry_run_compile_nothing(
    run: Run, library: Library, compiled: FakeResult, flag: str, status: str, code: ExitCode
) -> None:
    fake = library("precompile", replace(compiled, status=status))
    ran = run("precompile", "m.py:f", flag, "--json")
    assert ran.code == code
    assert fake.kwargs["dry_run"] is True


def test_a_plan_says_that_nothing_was_changed(run: Run, library: Library, compiled: FakeResult) -> None:
    library("precompile", replace(compiled, status="planned", payloads=()))
    assert "tiny-decoder would be compiled; nothing was changed" in run("precompile", "m.py:f", "--dry-run").out


@pytest.mark.parametrize("pair", [("--check", "--force"), ("--dry-run", "--force"), ("--check", "--dry-run")])
def test_options_that_contradict_each_other_are_refused(
    run: Run, library: Library, compiled: FakeResult, pair: tuple[str, str]
) -> None:
    fake = library("precompile", compiled)
    assert run("precompile", "m.py:f", *pair).code == ExitCode.USAGE
    assert fake.kwargs == {}


def test_quiet_writes_the_key_only(run: Run, library: Library, compiled: FakeResult) -> None:
    library("precompile", compiled)
    assert run("precompile", "m.py:f", "-q").out == compiled.key + "\n"


def test_tsv_lists_the_fields(run: Run, library: Library, compiled: FakeResult) -> None:
    library("precompile", compiled)
    rows = run("precompile", "m.py:f", "--format", "tsv").tsv()
    assert {"field": "status", "value": "compiled"} in rows
    assert {"field": "factor_digests.env", "value": "19ab" + "0" * 60} in rows


def test_the_mega_artifact_is_copied_whole(
    run: Run, library: Library, compiled: FakeResult, root: Path, tmp_path: Path
) -> None:
    key = publish(root, "tiny")
    library("precompile", replace(compiled, key=key))
    target = tmp_path / "out" / "model.mega"
    target.parent.mkdir()
    assert run("precompile", "m.py:f", "--output", str(target)).code == 0
    assert target.read_bytes() == CacheRoot(root).mega(key).read_bytes()
    assert list(target.parent.iterdir()) == [target]


def test_an_output_without_a_folder_is_refused_before_compiling(
    run: Run, library: Library, compiled: FakeResult, tmp_path: Path
) -> None:
    fake = library("precompile", compiled)
    assert run("precompile", "m.py:f", "--output", str(tmp_path / "absent/x.mega")).code == ExitCode.USAGE
    assert run("precompile", "m.py:f", "--output", str(tmp_path)).code == ExitCode.USAGE
    assert fake.kwargs == {}


def test_progress_is_told_on_stderr_and_as_events(
    run: Run, library: Library, compiled: FakeResult, tmp_path: Path
) -> None:
    def work(*, progress: object, **_kwargs: object) -> FakeResult:
        progress.start("piece", 1)  # type: ignore[attr-defined]
        progress.advance("piece", "layer 0", 6.2, 10)  # type: ignore[attr-defined]
        return compiled

    library("precompile", work)
    ran = run("precompile", "m.py:f", "--json", "--events", str(tmp_path / "events"))
    assert "piece 1/1  layer 0  6.2 s  10 B" in ran.err
    assert len((tmp_path / "events").read_text().splitlines()) == 2
    assert run("precompile", "m.py:f", "--progress", "none").err == ""
    assert run("precompile", "m.py:f", "-q").err == ""


def test_the_stand_in_has_the_fields_of_the_real_result() -> None:
    from precast.aot.precompile import PrecompileResult

    assert {f.name for f in fields(FakeResult)} == {f.name for f in fields(PrecompileResult)}
