import subprocess
from pathlib import Path

from precast.cache.disk import DiskUsage, walk


def test_the_total_is_what_du_says(tmp_path: Path) -> None:
    for number, size in enumerate((0, 1, 5000, 100_000)):
        path = tmp_path / str(number) / "file"
        path.parent.mkdir()
        path.write_bytes(b"x" * size)
    (tmp_path / "hard").hardlink_to(tmp_path / "3" / "file")
    (tmp_path / "soft").symlink_to(tmp_path / "3")
    usage = DiskUsage(walk(tmp_path))
    allocated, apparent = (
        int(subprocess.run(["du", "-s", *flags, tmp_path], capture_output=True, check=True).stdout.split()[0])
        for flags in (("-B1",), ("-b",))
    )
    assert max(allocated, apparent) <= usage.bytes <= allocated + apparent
    assert usage.files == 6


def test_a_hard_linked_file_frees_its_bytes_with_its_last_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    usage = DiskUsage(walk(tmp_path))
    before = usage.bytes
    assert usage.remove(walk(tmp_path / "a")) == (0, 1)
    freed, files = usage.remove(walk(tmp_path / "b"))
    assert (freed >= 5000, files) == (True, 1)
    assert (usage.bytes, usage.files) == (before - freed, 0)


def test_links_are_not_followed_not_even_round_in_circles(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [item.path.name for item in walk(tmp_path)][1:] == ["loop", "out"]


def test_what_is_not_there_costs_nothing(tmp_path: Path) -> None:
    assert list(walk(tmp_path / "none")) == []
