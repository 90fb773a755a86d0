import json
from collections.abc import Callable
from pathlib import Path

import pytest

from precast.cache.sources import DistributionContent, distribution_content

RECORD = """\
shop/__init__.py,sha256=aaa,10
shop/model.py,sha256=bbb,20
shop/__pycache__/model.cpython-311.pyc,,
../../../bin/shop,sha256=ccc,30
shop_tools-1.2.dist-info/METADATA,sha256=ddd,40
shop_tools-1.2.dist-info/INSTALLER,sha256=eee,4
shop_tools-1.2.dist-info/REQUESTED,sha256=fff,0
shop_tools-1.2.dist-info/direct_url.json,sha256=ggg,50
shop_tools-1.2.dist-info/RECORD,,
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    metadata = tmp_path / "site" / "shop_tools-1.2.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shop.tools\nVersion: 1.2\n\nVersion: 9\n")
    (metadata / "RECORD").write_text(RECORD)
    return tmp_path / "site"


def content(site: Path, name: str = "shop-tools") -> DistributionContent:
    found = distribution_content(name, [str(site / "missing"), str(site)])
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["shop-tools", "Shop.Tools", "shop__tools", "SHOP_TOOLS"])
def test_a_distribution_is_found_by_any_spelling(site: Path, name: str) -> None:
    assert (content(site, name).name, content(site, name).version) == ("shop-tools", "1.2")


def test_what_is_not_installed_is_none(site: Path) -> None:
    assert distribution_content("shop", [str(site)]) is None
    assert distribution_content("tools", [str(site)]) is None


def rewritten(old: str, new: str) -> Callable[[str], str]:
    def rewrite(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return rewrite


NOISE = {
    "order": lambda text: "".join(reversed(text.splitlines(keepends=True))),
    "bytecode": rewritten("cpython-311.pyc,,", "cpython-312.pyc,sha256=zzz,99"),
    "script": rewritten("../../../bin/shop,sha256=ccc", "../../Scripts/shop,sha256=zzz"),
    "installer": rewritten("INSTALLER,sha256=eee", "INSTALLER,sha256=zzz"),
    "requested": rewritten("shop_tools-1.2.dist-info/REQUESTED,sha256=fff,0\n", ""),
    "direct url": rewritten("direct_url.json,sha256=ggg", "direct_url.json,sha256=zzz"),
    "line ends": rewritten("\n", "\r\n"),
}


@pytest.mark.parametrize("change", NOISE.values(), ids=NOISE.keys())
def test_another_installation_of_the_same_wheel_is_the_same_content(site: Path, change: Callable[[str], str]) -> None:
    before = content(site)
    record = site / "shop_tools-1.2.dist-info" / "RECORD"
    record.write_text(change(RECORD), newline="")
    assert content(site) == before


@pytest.mark.parametrize(
    "change",
    [rewritten("model.py,sha256=bbb", "model.py,sha256=zzz"), rewritten("shop/model.py", "shop/models.py")],
)
def test_a_changed_or_renamed_file_is_other_content(site: Path, change: Callable[[str], str]) -> None:
    before = content(site)
    (site / "shop_tools-1.2.dist-info" / "RECORD").write_text(change(RECORD))
    assert content(site).digest != before.digest


def test_the_place_of_the_installation_does_not_matter(site: Path, tmp_path: Path) -> None:
    before = content(site)
    assert content(site.rename(tmp_path / "elsewhere")) == before


def test_a_recorded_file_without_a_digest_counts_by_its_bytes(site: Path) -> None:
    (site / "extra.txt").write_text("one")
    record = site / "shop_tools-1.2.dist-info" / "RECORD"
    record.write_text(RECORD + "extra.txt,,\n")
    before = content(site)
    (site / "extra.txt").write_text("two")
    assert content(site).digest != before.digest
    (site / "extra.txt").unlink()
    assert content(site).digest != before.digest


def editable(site: Path, project: Path) -> None:
    metadata = site / "shop_tools-1.2.dist-info"
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
    (metadata / "direct_url.json").write_text(json.dumps(origin))
    (metadata / "top_level.txt").write_text("shop\n")


@pytest.mark.parametrize("layout", ["src", "."])
def test_an_editable_install_counts_by_its_sources(site: Path, tmp_path: Path, layout: str) -> None:
    package = tmp_path / "my project" / layout / "shop"
    package.mkdir(parents=True)
    (package / "model.py").write_text("x = 1\n")
    editable(site, tmp_path / "my project")
    before = content(site)
    (package / "notes.txt").touch()
    assert content(site) == before
    (package / "model.py").write_text("x = 2\n")
    assert content(site).digest != before.digest


def test_linked_packages_of_an_editable_install_are_followed_but_not_round_in_circles(
    site: Path, tmp_path: Path
) -> None:
    real, package = tmp_path / "real", tmp_path / "project" / "src" / "shop"
    real.mkdir()
    package.mkdir(parents=True)
    (real / "part.py").write_text("x = 1\n")
    (package / "part").symlink_to(real)
    (package / "loop").symlink_to(package)
    editable(site, tmp_path / "project")
    before = content(site)
    (real / "part.py").write_text("x = 2\n")
    assert content(site).digest != before.digest


@pytest.mark.parametrize("module", ["shop_tools.py", "shop_tools/__init__.py"])
def test_a_distribution_without_record_counts_by_its_sources(site: Path, module: str) -> None:
    (site / "shop_tools-1.2.dist-info" / "RECORD").unlink()
    path = site / module
    path.parent.mkdir(exist_ok=True)
    path.write_text("x = 1\n")
    before = content(site)
    path.write_text("x = 2\n")
    assert content(site).digest != before.digest
    assert content(site).version == "1.2"


def test_an_egg_info_of_older_tools_is_read(tmp_path: Path) -> None:
    egg = tmp_path / "shop.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: shop\nVersion: 0.9\n")
    (tmp_path / "shop.py").write_text("x = 1\n")
    found = distribution_content("shop", [str(tmp_path)])
    assert found is not None
    assert found.version == "0.9"


def test_a_folder_without_metadata_files_still_names_its_version(tmp_path: Path) -> None:
    (tmp_path / "shop-3.1.dist-info").mkdir()
    found = distribution_content("shop", [str(tmp_path)])
    assert found is not None
    assert found.version == "3.1"


def test_the_running_environment_is_the_default() -> None:
    found = distribution_content("pytest")
    assert found is not None
    assert found.version == pytest.__version__
