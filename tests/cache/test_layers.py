"""Which folders are in use, and what names each."""

from pathlib import Path

import pytest

from precast.cache.layers import Layer, layers
from precast.cache.root import RootChoice


def found(environ: dict[str, str], root: RootChoice | None = None) -> dict[str, Layer]:
    return {layer.name: layer for layer in layers(root or RootChoice(Path("/srv/root"), "flag"), environ)}


@pytest.mark.parametrize(
    ("name", "environ", "path", "origin"),
    [
        ("huggingface", {"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a", "HF_HUB_CACHE"),
        ("huggingface", {"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub", "HF_HOME"),
        ("huggingface", {"XDG_CACHE_HOME": "/c", "HOME": "/d"}, "/c/huggingface/hub", "XDG_CACHE_HOME"),
        ("huggingface", {"HOME": "/d"}, "/d/.cache/huggingface/hub", "HOME"),
        ("triton", {"TRITON_CACHE_DIR": "/a", "TRITON_HOME": "/b"}, "/a", "TRITON_CACHE_DIR"),
        ("triton", {"TRITON_HOME": "/b", "HOME": "/d"}, "/b/.triton/cache", "TRITON_HOME"),
        ("triton", {"HOME": "/d"}, "/d/.triton/cache", "HOME"),
    ],
)
def test_the_strongest_variable_decides(name: str, environ: dict[str, str], path: str, origin: str) -> None:
    layer = found(environ)[name]
    assert (layer.path, layer.origin) == (Path(path), origin)


@pytest.mark.parametrize(
    ("origin", "told"),
    [("flag", "flag"), ("environment", "PRECAST_CACHE_DIR"), ("xdg", "XDG_CACHE_HOME"), ("default", "default")],
)
def test_the_store_says_what_named_it(origin: str, told: str) -> None:
    assert found({}, RootChoice(Path("/srv/root"), origin))["store"].origin == told


def test_a_temporary_folder_that_cannot_be_used_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "good").mkdir()
    environ = {"TMPDIR": str(tmp_path / "absent"), "TEMP": str(tmp_path / "file"), "TMP": str(tmp_path / "good")}
    layer = found(environ)["temporary"]
    assert (layer.path, layer.origin, layer.writable) == (tmp_path / "good", "TMP", True)
    assert list((tmp_path / "good").iterdir()) == []


def test_without_a_home_there_may_be_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    layer = found({})["triton"]
    assert (layer.path, layer.filesystem, layer.writable) == (None, "", False)
