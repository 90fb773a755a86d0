"""S1: address, port, path and placement do not move the key."""

import random
from pathlib import Path

import pytest
from tests.scenarios.conftest import OPTIONS, Precast, copy_model


def place(root: Path, number: int) -> dict[str, str]:
    """Return an environment in which everything about the place is another."""
    folders = {name: root / f"e{number}" / name for name in ("home", "cache", "tmp")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    return {
        "HOME": str(folders["home"]),
        "XDG_CACHE_HOME": str(folders["cache"]),
        "TMPDIR": str(folders["tmp"]),
        "HOST_IP": f"10.0.0.{number}",
        "HOSTNAME": f"host-{number}",
        "MASTER_PORT": str(5600 + number),
        "VLLM_RAY_BUNDLE_INDICES": str(number - 1),
        "LOCAL_RANK": str(number - 1),
        "CUDA_VISIBLE_DEVICES": "",
    }


def files(root: Path) -> dict[str, int]:
    """Return the sizes of everything that an entry consists of."""
    kept = [p for name in ("objects", "entries", "requests") for p in (root / "v1" / name).rglob("*") if p.is_file()]
    return {str(p.relative_to(root)): p.stat().st_size for p in kept}


@pytest.mark.compiles
def test_another_place_hits_the_same_entry(tmp_path: Path, precast: Precast) -> None:
    root = tmp_path / "R"
    models = [f"{copy_model(tmp_path / f'x{n}')}:base" for n in (1, 2)]
    e1, e2 = place(tmp_path, 1), place(tmp_path, 2)
    store = ("--cache-dir", str(root), *OPTIONS)

    first = precast("precompile", models[0], *store, "--json", env=e1)
    assert (first.status, first.json["data"]["status"]) == (0, "compiled")
    key, before = first.json["data"]["key"], files(root)

    dry = precast("precompile", models[1], *store, "--dry-run", "--json", env=e2)
    assert (dry.status, dry.json["data"]["status"], dry.json["data"]["key"]) == (0, "up_to_date", key)
    again = precast("precompile", models[1], *store, "--json", env=e2)
    assert (again.status, again.json["data"]["status"]) == (0, "up_to_date")
    assert files(root) == before
    assert len(list((root / "v1" / "entries").iterdir())) == 1

    shown = precast("inspect", "show", key, "--cache-dir", str(root), "--json", env=e2).json["data"]
    ignored = {v["name"] for v in shown["ignored"]}
    assert {"HOST_IP", "MASTER_PORT", "VLLM_RAY_BUNDLE_INDICES", "HOME", "TMPDIR"} <= ignored
    verified = precast("verify", models[1], *store, "--json", env=e2)
    assert verified.status == 0, verified.err

    seeds = random.Random(1).sample(range(2**32), 20)
    keys = {
        precast("precompile", models[s % 2], *store, "--dry-run", "--format", "quiet",
                env={**(e1 if s % 3 else e2), "PYTHONHASHSEED": str(s)}).out.strip()
        for s in seeds
    }  # fmt: skip
    assert keys == {key}


def test_a_full_trace_in_another_place_has_the_same_key(tmp_path: Path, precast: Precast) -> None:
    keys = set()
    for number in (1, 2):
        model = f"{copy_model(tmp_path / f'x{number}')}:base"
        env = {**place(tmp_path, number), "PYTHONHASHSEED": str(number)}
        empty = ("--cache-dir", str(tmp_path / f"R{number}"), *OPTIONS)
        keys.add(precast("precompile", model, *empty, "--dry-run", "--format", "quiet", env=env).out.strip())
    assert len(keys) == 1
    assert len(keys.pop()) == 64
