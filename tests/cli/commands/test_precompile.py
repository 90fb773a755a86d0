"""`precast precompile` hands on what was asked and words what came of it."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tests.cli.support import FakeLibrary, FakeResult, Ran, payload, publish

from precast.aot import description
from precast.aot.description import TargetDescription, described_target, known_targets
from precast.cache.damage import Damage
from precast.cache.options import RemoteOptions
from precast.cache.repair import Mended
from precast.cache.root import CacheRoot
from precast.cli.terminal import DASH, TIMES
from precast.errors import ExitCode, NoGpuError

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


def test_a_repaired_entry_says_what_was_mended_and_where_the_bad_copy_is(
    run: Run, library: Library, compiled: FakeResult, root: Path
) -> None:
    damage = Damage("model.mega", str(root / "v1/entries/k/model.mega"), "it is cut short", "truncated")
    mended = Mended(damage, root / "v1/quarantine/k-0/model.mega")
    library("precompile", replace(compiled, status="repaired", seconds=0.4, saved_seconds=19.9, repaired=(mended,)))
    assert run("precompile", "m.py:f").out.splitlines() == [
        "repaired    7f3c91d2a604  tiny-decoder · saves about 19.9 s   (0.4 s)",
        "mended     model.mega: it is cut short",
        f"bad copy   {mended.kept}",
        "next       precast verify 7f3c91d2a604",
    ]
    data = run("precompile", "m.py:f", "--json").json()["data"]
    assert data["repaired"] == [{**damage.json(), "kept": str(mended.kept)}]


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


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> TargetDescription:
    """The GPU that the driver of this machine shows."""
    here = replace(described_target("l4"), name="NVIDIA L4, 3rd rack")
    monkeypatch.setattr(description, "describe_device", lambda: here)
    return here


def test_the_gpu_here_is_described_as_a_file_for_target(run: Run, gpu: TargetDescription, own_place: Path) -> None:
    ran = run("precompile", "--describe-target")
    assert (ran.code, ran.err) == (0, "")
    (own_place / "node.json").write_text(ran.out)
    assert described_target("node.json") == gpu
    assert run("precompile", "--describe-target", "-q").out == "sm_89\n"


def test_a_description_as_json_has_a_schema_of_its_own(run: Run, gpu: TargetDescription) -> None:
    answer = run("precompile", "--describe-target", "--json").json()
    assert (answer["schema"], answer["data"]) == ("precast.precompile.target/1", gpu.to_json())
    assert run("schema", "precompile", "target", "--json").code == 0


def test_without_a_gpu_there_is_nothing_to_describe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise NoGpuError("no GPU can be described here", "no driver")

    monkeypatch.setattr(description, "describe_device", absent)
    ran = run("precompile", "--describe-target")
    assert (ran.code, ran.out) == (ExitCode.NO_GPU, "")
    assert run("precompile", "--describe-target", "--json").json()["errors"][0]["code"] == "device.no_gpu"


def test_a_description_is_of_no_model(run: Run, library: Library, gpu: TargetDescription) -> None:
    fake = library("precompile", None)
    assert run("precompile", "m.py:f", "--describe-target").code == ExitCode.USAGE
    assert fake.kwargs == {}


def test_help_names_every_gpu_that_is_described(run: Run) -> None:
    told = " ".join(run("precompile", "--help").out.split())
    assert f"a GPU: {', '.join(known_targets())}, or FILE.json" in told


def test_a_gpu_and_a_description_are_targets(run: Run, library: Library, compiled: FakeResult, own_place: Path) -> None:
    fake = library("precompile", compiled)
    (own_place / "node.json").write_text(json.dumps(described_target("l4").to_json()))
    for name in ("h200", "node.json"):
        assert run("precompile", "m.py:f", "--target", name).code == 0
        assert (fake.settings.target, fake.settings.payload) == (name, "aoti")


def test_a_gpu_that_nobody_described_gets_a_suggestion(run: Run, library: Library, compiled: FakeResult) -> None:
    library("precompile", compiled)
    ran = run("precompile", "m.py:f", "--target", "rtx-4090")
    assert ran.code == ExitCode.USAGE
    assert "did you mean `rtx4090`?" in ran.err


def test_people_read_what_was_pulled_and_from_where(run: Run, library: Library, root: Path) -> None:
    result = FakeResult("pulled", root, remote="s3://bucket/team", pulled_bytes=800_000, seconds=2.1)
    library("precompile", replace(result, saved_seconds=19.9))
    ran = run("precompile", "m.py:f", "--remote", "s3://bucket/team")
    assert ran.out.splitlines() == [
        "pulled      7f3c91d2a604  tiny-decoder · 800.0 kB from s3://bucket/team · saves about 19.9 s   (2.1 s)",
        "next       precast verify 7f3c91d2a604",
    ]
    data = run("precompile", "m.py:f", "--json").json()["data"]
    assert data["remote"] == {"url": "s3://bucket/team", "pulled_bytes": 800_000, "pushed_bytes": 0}


def test_people_read_what_was_pushed(run: Run, library: Library, root: Path) -> None:
    library("precompile", FakeResult("compiled", root, remote="s3://bucket/team", pushed_bytes=51_500))
    assert "pushed     s3://bucket/team   51.5 kB" in run("precompile", "m.py:f").out.splitlines()


def test_a_check_that_would_pull_is_a_hit(run: Run, library: Library, root: Path, tmp_path: Path) -> None:
    library("precompile", FakeResult("pullable", root, remote="s3://bucket/team"))
    ran = run("precompile", "m.py:f", "--check", "--output", str(tmp_path / "model.mega"))
    assert (ran.code, ran.out.splitlines()) == (
        0,
        [
            "key        7f3c91d2a604",
            "dry run    tiny-decoder would be pulled from s3://bucket/team; nothing was changed",
        ],
    )
    assert not (tmp_path / "model.mega").exists()


def test_a_job_reads_what_moved(
    run: Run, library: Library, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SUMMARY", "OUTPUT"):
        monkeypatch.setenv(f"GITHUB_{'STEP_' if name == 'SUMMARY' else ''}{name}", str(tmp_path / name))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    library("precompile", FakeResult("pulled", root, remote="s3://bucket/team", pulled_bytes=800_000))
    run("precompile", "m.py:f")
    assert "| pulled | 800.0 kB from s3://bucket/team |" in (tmp_path / "SUMMARY").read_text().replace("\\", "")
    assert "hit=true" in (tmp_path / "OUTPUT").read_text()


def test_the_store_flags_name_the_remote(run: Run, library: Library, root: Path) -> None:
    fake = library("precompile", FakeResult("up_to_date", root))
    run("precompile", "m.py:f", "--remote", "s3://bucket/team", "--remote-read-only", "--remote-required")
    assert fake.kwargs["options"].remote == RemoteOptions("s3://bucket/team", read_only=True, required=True)
    run("precompile", "m.py:f", "--remote", "s3://bucket/team", "--offline")
    assert fake.kwargs["options"].remote is None
