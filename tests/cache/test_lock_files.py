"""The kinds of lock files: which one a folder gets, and when a lease of another host is dead."""

import os
import time
from pathlib import Path

import pytest

from precast.cache import lock_files
from precast.cache.lock_files import (
    KINDS_VARIABLE,
    LEASE_S,
    discard,
    is_held,
    lock_path,
    open_lock,
    read_holder,
    sign,
)
from precast.cache.locks import hold_lock, live_claims, make_claim
from precast.errors import ConfigValueError, LockedError


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("ext4", ".lock"), ("tmpfs", ".lock"), ("overlay", ".lock"), ("nfs4", ".lease"), ("lustre", ".lease"),
     ("fuse.sshfs", ".lease"), ("beegfs", ".lease"), ("unknown", ".lock")],
)  # fmt: skip
def test_the_file_system_decides_the_kind(
    kind: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_files, "filesystem_type", lambda path: kind)
    assert lock_path(tmp_path, "a", {}).name == f"a{suffix}"
    assert lock_path(tmp_path, "a", {KINDS_VARIABLE: "auto"}).suffix == suffix


@pytest.mark.parametrize(("wanted", "suffix"), [("flock", ".lock"), ("lease", ".lease")])
def test_a_variable_overrules_the_file_system(wanted: str, suffix: str, tmp_path: Path) -> None:
    assert lock_path(tmp_path, "a", {KINDS_VARIABLE: wanted}).suffix == suffix


def test_another_value_of_the_variable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigValueError, match=f"{KINDS_VARIABLE} cannot be `soft`"):
        lock_path(tmp_path, "a", {KINDS_VARIABLE: "soft"})


def foreign_lease(path: Path, age_s: float, host: str = "elsewhere", pid: int = 4242) -> None:
    """Write a lease as another host does, last touched so many seconds ago."""
    text = f"filelock/2\npid={pid}\nhost={host}\nmode=lease\ntoken=ab12\nduration={LEASE_S!r}\nsince=1800000000.5\n"
    path.write_text(text, encoding="ascii")
    now = time.time()
    os.utime(path, (now - age_s, now - age_s))


def test_the_holder_on_another_host_is_named_with_its_host(tmp_path: Path) -> None:
    path = tmp_path / "a.lease"
    foreign_lease(path, 1)
    holder = read_holder(path)
    assert holder is not None
    assert (holder.pid, holder.host, holder.since_s) == (4242, "elsewhere", 1800000000.5)
    assert str(holder).startswith("process 4242 on elsewhere, since 2027-01-1")


@pytest.mark.parametrize("text", ["", "pid=x\nhost=h\n", "pid=3\n", "pid=3\nhost=h\nsince=soon\n", "\udcff=\0"])
def test_a_file_that_names_nobody_names_nobody(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert read_holder(path) is None
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    assert read_holder(path) is None


def test_a_dead_process_of_this_host_is_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    path.touch()
    sign(path)
    assert read_holder(path) is not None
    path.write_text(path.read_text().replace(f"pid={os.getpid()}", f"pid={2**22 + 1}"))
    assert read_holder(path) is None


@pytest.mark.parametrize(("age_s", "held"), [(1, True), (LEASE_S + 1, True), (LEASE_S + 61, False)])
def test_a_lease_of_another_host_counts_until_clocks_cannot_explain_its_age(
    age_s: float, held: bool, tmp_path: Path
) -> None:
    path = tmp_path / f"claim.writer.1-{'0' * 16}.lease"
    foreign_lease(path, age_s)
    assert is_held(path) == held
    assert len(live_claims(tmp_path)) == held
    assert discard(path) != held
    assert path.exists() == held


def test_a_lease_that_nobody_touches_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KINDS_VARIABLE, "lease")
    monkeypatch.setattr(lock_files, "LEASE_S", 0.4)
    monkeypatch.setattr(lock_files, "_HEARTBEAT_S", 0.1)
    path = tmp_path / "a.lease"
    foreign_lease(path, 0)
    path.write_text(path.read_text().replace(repr(LEASE_S), "0.4"))
    with hold_lock(path, 30) as waited:
        assert waited
        holder = read_holder(path)
        assert holder is not None
        assert holder.pid == os.getpid()


def test_a_lease_that_its_maker_never_filled_in_keeps_nobody_out_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KINDS_VARIABLE, "lease")
    path = tmp_path / "a.lease"
    path.touch()
    with pytest.raises(LockedError), hold_lock(path, 0.1):
        pytest.fail("a lease that is being made")
    os.utime(path, (1, 1))
    with hold_lock(path, 30) as waited:
        assert waited


def test_a_lease_that_its_holder_touches_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KINDS_VARIABLE, "lease")
    monkeypatch.setattr(lock_files, "LEASE_S", 0.4)
    monkeypatch.setattr(lock_files, "_HEARTBEAT_S", 0.02)
    path = tmp_path / "a.lease"
    with hold_lock(path, 1), pytest.raises(LockedError), hold_lock(path, 1.5):
        pytest.fail("two processes hold one lease")


def test_a_lease_of_a_version_with_another_duration_is_waited_for_and_not_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KINDS_VARIABLE, "lease")
    path = tmp_path / "a.lease"
    foreign_lease(path, 1)
    path.write_text(path.read_text().replace(repr(LEASE_S), "5.0"))
    with pytest.raises(LockedError, match="process 4242 on elsewhere"), hold_lock(path, 0):
        pytest.fail("a lease that was broken")
    assert not discard(path)


def test_files_of_both_kinds_are_understood_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = []
    for kind in ("flock", "lease"):
        monkeypatch.setenv(KINDS_VARIABLE, kind)
        claims.append(make_claim(tmp_path, kind))
    assert {claim.subject for claim in live_claims(tmp_path)} == {"flock", "lease"}
    for claim in claims:
        claim.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_looked_at_counts_as_held(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    link = tmp_path / "a.lock"
    link.symlink_to(target)
    assert is_held(link)
    assert open_lock(target.with_suffix(".lock")) is not None
