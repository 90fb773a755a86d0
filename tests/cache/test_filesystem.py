"""Which file system a path lies on, read from the kernel's list of mounts."""

from pathlib import Path

import pytest

from precast.cache.filesystem import cautions, filesystem_type, is_network, is_volatile

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
40 22 0:50 / /mnt/shared rw,relatime shared:9 master:2 - nfs4 server:/export rw,vers=4.2
41 40 0:51 / /mnt/shared/scratch rw - tmpfs tmpfs rw
42 22 0:52 / /mnt/with\040space rw - fuse.s3fs bucket rw
43 22 0:53 / /twice rw - ext4 /dev/sdb rw
44 43 0:54 / /twice rw - LUSTRE /dev/sdc rw
46 47 0:56 / /hidden/below rw - nfs a rw
47 22 0:57 / /hidden rw - tmpfs a rw
48 22 0:58 / /covered/below rw - nfs a rw
49 22 0:59 / /covered rw - tmpfs a rw
45 22 0:55 / /odd\134040 rw - xfs /dev/sdd rw
this line is no mount
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/not/there/yet", "ext4"),
        ("/mnt/shared", "nfs4"),
        ("/mnt/shared/a/b", "nfs4"),
        ("/mnt/shared/scratch/a", "tmpfs"),
        ("/mnt/sharedness", "ext4"),
        ("/mnt/with space/a", "fuse.s3fs"),
        ("/twice/a", "lustre"),
        ("/hidden/below", "nfs"),
        ("/covered/below", "tmpfs"),
        (r"/odd\040/a", "xfs"),
    ],
)
def test_type_is_that_of_the_innermost_mount(path: str, kind: str) -> None:
    assert filesystem_type(Path(path), MOUNTS) == kind


def test_unknown_where_nothing_is_told() -> None:
    assert filesystem_type(Path("/somewhere"), "") == "unknown"


def test_in_a_changed_root_the_mount_of_the_root_itself_is_not_listed() -> None:
    assert filesystem_type(Path("/a/b"), "9 1 0:1 / /a rw - xfs a rw\n") == "xfs"
    assert filesystem_type(Path("/b"), "9 1 0:1 / /a rw - xfs a rw\n") == "unknown"


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    mounts = f"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / {tmp_path.resolve()}/far rw - nfs b rw\n"
    assert filesystem_type(tmp_path / "link" / "root", mounts) == "nfs"


def test_this_machine_tells() -> None:
    assert filesystem_type(Path("/proc/self")) == "proc"


@pytest.mark.parametrize(
    ("kind", "network", "volatile"),
    [
        ("ext4", False, False),
        ("unknown", False, False),
        ("nfs4", True, False),
        ("fuse.gcsfuse", True, False),
        ("fuse.fuse-overlayfs", False, True),
        ("overlay", False, True),
        ("tmpfs", False, True),
    ],
)
def test_what_a_type_means(kind: str, network: bool, volatile: bool) -> None:
    assert (is_network(kind), is_volatile(kind)) == (network, volatile)


@pytest.mark.parametrize(
    ("kind", "code"),
    [("ext4", ""), ("unknown", ""), ("overlay", "store.volatile_root"), ("nfs4", "store.network_root")],
)
def test_what_to_know_about_a_root_s_place_is_told_with_what_to_do(kind: str, code: str) -> None:
    found = cautions(Path("/srv/root"), f"1 0 0:1 / / rw - {kind} a rw\n")
    assert [caution.code for caution in found] == ([code] if code else [])
    for caution in found:
        assert kind in caution.message
        assert "/srv/root" in caution.message
        assert "--cache-dir" in caution.hint
