import os
import subprocess
from pathlib import Path

from precast.cache.disk import DiskUsage, Extent, extent, extent_of, parts


def used(*paths: Path) -> DiskUsage:
    usage = DiskUsage()
    for path in paths:
        usage.add(cost(path))
    return usage


def cost(path: Path) -> Extent:
    found = extent(str(path))
    assert found is not None
    return found


def test_the_total_is_what_du_says(tmp_path: Path) -> None:
    for number, size in enumerate((0, 1, 5000, 100_000)):
        path = tmp_path / str(number) / "file"
        path.parent.mkdir()
        path.write_bytes(b"x" * size)
    (tmp_path / "hard").hardlink_to(tmp_path / "3" / "file")
    (tmp_path / "soft").symlink_to(tmp_path / "3")
    usage = used(tmp_path)
    allocated, apparent = (
        int(subprocess.run(["du", "-s", *flags, tmp_path], capture_output=True, check=True).stdout.split()[0])
        for flags in (("-B1",), ("-b",))
    )
    assert max(allocated, apparent) <= usage.bytes <= allocated + apparent
    assert usage.allocated == allocated
    assert usage.files == 6


def test_a_hard_linked_file_frees_its_bytes_with_its_last_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    usage = used(tmp_path)
    before = usage.bytes
    assert usage.remove(cost(tmp_path / "a")) == (0, 1)
    assert usage.regained == 0
    freed, files = usage.remove(cost(tmp_path / "b"))
    assert (freed >= 5000, files) == (True, 1)
    assert (usage.bytes, usage.files) == (before - freed, 0)
    assert usage.regained == (tmp_path / "a").stat().st_blocks * 512


def test_a_file_with_another_name_elsewhere_gives_nothing_back(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a").write_bytes(b"x" * 5000)
    (tmp_path / "elsewhere").hardlink_to(inside / "a")
    usage = used(inside)
    freed, _ = usage.remove(cost(inside / "a"))
    assert freed >= 5000
    assert usage.regained == 0


def test_two_names_in_one_folder_count_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 50_000)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert 50_000 <= used(tmp_path).bytes < 100_000


def test_links_are_not_followed_not_even_round_in_circles(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert len(list(parts(str(tmp_path)))) == 3
    assert cost(tmp_path).files == 2
    assert cost(tmp_path / "out").files == 1


def test_what_is_not_there_costs_nothing(tmp_path: Path) -> None:
    assert extent(str(tmp_path / "none")) is None
    assert extent_of(str(tmp_path / "none")) is None


def test_the_time_of_a_whole_is_that_of_its_top(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.utime(tmp_path / "a", ns=(0, 7))
    os.utime(tmp_path, ns=(0, 5))
    assert cost(tmp_path).modified_ns == 5
    assert cost(tmp_path / "a").modified_ns == 7
