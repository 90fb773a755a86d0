"""S3: say why the key changed, among 500 entries, with no GPU, no weights and no torch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import REPOSITORY
from tests.scenarios.conftest import OPTIONS, Precast, copy_model

from precast.aot.precompile import precompile
from precast.aot.settings import resolve_settings
from precast.cache.factors import Factor, entry_key
from precast.cache.store import Store

ENTRIES = 500
VARIABLE = "TORCHINDUCTOR_MAX_FUSION_SIZE"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A root with 500 entries, one of which was made by the request; the others differ from it in several factors."""
    import precast.aot.compile as compile_room

    folder = tmp_path_factory.mktemp("s3")
    root, model = folder / "R", f"{copy_model(folder / 'x')}:base"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            compile_room, "compile_pieces",
            lambda pieces, ranges, request, progress: tuple(
                compile_room.Compiled(p.key, r, f"{p.key}{r}".encode(), 1.0) for p in pieces for r in ranges
            ),
        )  # fmt: skip
        settings = resolve_settings({"target": "cpu", "max_num_batched_tokens": 512}, {})
        key = precompile(model, settings, cache_dir=root).key
    store = Store(root)
    made = store.manifest(key)
    for number in range(ENTRIES - 1):
        others = tuple(_other(f, number) for f in made.factors)
        store.publish(replace(made, key=entry_key(others), factors=others))
    return root, key, model


def _other(factor: Factor, number: int) -> Factor:
    if factor.label in ("config/settings.max_num_batched_tokens", "graph/graph"):
        return replace(factor, value=f"{number}")
    if factor.label == "compiler/torch":
        return replace(factor, value={"version": f"2.{number % 9}.0", "digest": f"{number}"})
    return factor


def explain(precast: Precast, root: Path, model: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = precast("inspect", "explain", model, "--cache-dir", str(root), *OPTIONS, "--json", env=env)
    document = done.json
    assert done.status in (0, 3), done.err
    return document["data"]  # type: ignore[no-any-return]


def changes(data: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        f"{c['group']}/{c['factor']}": (c["a"], c["b"]) for c in data["diff"]["changes"] if c["severity"] == "breaking"
    }


def test_an_unchanged_request_is_a_hit(crowded: tuple[Path, str, str], precast: Precast) -> None:
    root, key, model = crowded
    data = explain(precast, root, model)
    assert (data["status"], data["key"]) == ("hit", key)


def test_one_variable(crowded: tuple[Path, str, str], precast: Precast) -> None:
    root, key, model = crowded
    data = explain(precast, root, model, {VARIABLE: "3"})
    assert data["status"] == "miss"
    assert data["nearest"]["key"] == key
    assert changes(data) == {f"env/{VARIABLE}": (None, "3")}


def edited(crowded: tuple[Path, str, str], folder: Path) -> tuple[str, int]:
    """Copy the model and edit one line of it; return MODEL and the line's number."""
    file = copy_model(folder)
    lines = file.read_text(encoding="utf-8").splitlines()
    number = next(i for i, text in enumerate(lines) if text.startswith("FACTOR"))
    lines[number] = "FACTOR = 2.0"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{file}:base", number + 1


def test_one_line_of_one_traced_file(crowded: tuple[Path, str, str], precast: Precast, tmp_path: Path) -> None:
    root, key, _ = crowded
    model, number = edited(crowded, tmp_path / "edited")
    data = explain(precast, root, model)
    assert data["nearest"]["key"] == key
    assert set(changes(data)) == {"code/module:scenario_model"}
    (line,) = data["diff"]["changes"][0]["lines"]
    assert (line["module"], line["line_b"], line["b"]) == ("scenario_model", number, "FACTOR = 2.0")


def test_a_variable_and_a_line(crowded: tuple[Path, str, str], precast: Precast, tmp_path: Path) -> None:
    root, key, _ = crowded
    model, _ = edited(crowded, tmp_path / "edited")
    data = explain(precast, root, model, {VARIABLE: "3"})
    assert data["nearest"]["key"] == key
    assert set(changes(data)) == {f"env/{VARIABLE}", "code/module:scenario_model"}


def test_a_variable_that_the_model_itself_reads(crowded: tuple[Path, str, str], precast: Precast) -> None:
    root, key, model = crowded
    data = explain(precast, root, model, {"SCENARIO_FACTOR": "2"})
    assert data["nearest"]["key"] == key
    assert changes(data) == {"env/SCENARIO_FACTOR": (None, "2")}


def test_a_data_file_that_the_model_reads(crowded: tuple[Path, str, str], precast: Precast, tmp_path: Path) -> None:
    root, key, _ = crowded
    file = copy_model(tmp_path / "x")
    (tmp_path / "x" / "table.json").write_text('{"factor": 2}', encoding="utf-8")
    data = explain(precast, root, f"{file}:base")
    assert data["nearest"]["key"] == key
    assert set(changes(data)) == {"code/data:table.json"}


def test_the_torch_version(crowded: tuple[Path, str, str], precast: Precast) -> None:
    root, key, _ = crowded
    store = Store(root)
    made = store.manifest(key)
    other = tuple(
        replace(f, value={"version": "2.99.0", "digest": "0" * 64}) if f.label == "compiler/torch" else f
        for f in made.factors
    )
    stamped = replace(made, key=entry_key(other), factors=other)
    store.publish(stamped)
    for a, b, versions in ((key, stamped.key, [1, 2]), (stamped.key, key, [2, 1])):
        done = precast("inspect", "diff", a, b, "--cache-dir", str(root), "--json")
        found = {c["factor"]: [c["a"], c["b"]] for c in done.json["data"]["changes"]}
        assert found["torch.version"][versions[1] - 1] == "2.99.0"
        assert not [name for name in found if not name.startswith("torch.")]


def test_a_secret_is_never_shown(crowded: tuple[Path, str, str], precast: Precast) -> None:
    root, _, model = crowded
    done = precast(
        "inspect", "explain", model, "--cache-dir", str(root), *OPTIONS, "--json",
        env={"TORCHINDUCTOR_ACCESS_TOKEN": "hunter2-very-secret"},
    )  # fmt: skip
    found = changes(done.json["data"])
    assert set(found) == {"env/TORCHINDUCTOR_ACCESS_TOKEN"}
    assert "hunter2" not in done.out + done.err


def test_nothing_of_it_imports_torch(crowded: tuple[Path, str, str], precast: Precast, tmp_path: Path) -> None:
    root, key, model = crowded
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')", encoding="utf-8")
    trap = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY / 'src'}"}
    store = ("--cache-dir", str(root))
    done = precast("inspect", "explain", model, *store, *OPTIONS, "--json", env={VARIABLE: "3", **trap})
    assert done.json["data"]["nearest"]["key"] == key
    assert precast("inspect", "diff", key, "live", *store, *OPTIONS, "--json", env=trap).status == 0
    assert precast("inspect", "ls", *store, "--json", env=trap).status == 0
    assert precast("precompile", model, *store, *OPTIONS, "--json", env=trap).json["data"]["status"] == "up_to_date"
    assert "torch was imported" in precast("precompile", model, *store, *OPTIONS, "--force", "--json", env=trap).err


def test_a_data_file_that_is_gone(crowded: tuple[Path, str, str], precast: Precast, tmp_path: Path) -> None:
    root, key, _ = crowded
    file = copy_model(tmp_path / "x")
    file.with_name("table.json").unlink()
    data = explain(precast, root, f"{file}:base")
    assert data["nearest"]["key"] == key
    assert {name: after for name, (_, after) in changes(data).items()} == {"code/data:table.json": None}
