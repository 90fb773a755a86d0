import errno
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cache.support import Clock, damage, files_below, flip, numbered, publish, publish_numbered

from precast.cache.locks import make_claim
from precast.cache.prune import PrunePlan, PruneRules, execute, plan_prune
from precast.cache.requests import candidates, remember
from precast.cache.store import Store
from precast.cache.tags import set_tag
from precast.errors import StoreAccessError

DAY = 86400
SHARED = (b"shared by two " * 50,)


@pytest.fixture
def keys(store: Store, clock: Clock) -> list[str]:
    """Six entries, the least recently used first, used a day apart; now is a day after the last."""
    made = []
    for number in range(6):
        made.append(publish_numbered(store, number))
        clock.advance(DAY)
    return made


def plan(store: Store, clock: Clock, rules: PruneRules | None = None) -> PrunePlan:
    return plan_prune(store, rules or PruneRules(), clock.now)


def removed(plan: PrunePlan, kind: str) -> list[str]:
    return [item.id for item in plan.remove if item.kind == kind]


def alive(store: Store) -> set[str]:
    return {line.key for line in store.entries()}


def du(folder: Path) -> int:
    sizes = (
        subprocess.run(["du", "-s", flag, folder], capture_output=True, check=True).stdout.split()[0]
        for flag in ("-B1", "-b")
    )
    return max(int(size) for size in sizes)


def count_files(folder: Path) -> int:
    return sum(not path.is_dir() or path.is_symlink() for path in folder.rglob("*"))


def test_without_rules_a_sound_store_keeps_everything(store: Store, clock: Clock, keys: list[str]) -> None:
    before = files_below(store.root)
    made = plan(store, clock)
    assert made.remove == ()
    assert [kept.key for kept in made.keep] == keys[::-1]
    summary = execute(made)
    assert (summary.removed, summary.skipped) == ((), ())
    assert files_below(store.root) == before


def test_pruning_a_store_that_does_not_exist_is_nothing_to_do(store: Store, clock: Clock) -> None:
    made = plan(store, clock, PruneRules(max_size=0, max_files=0))
    assert (made.remove, made.keep) == ((), ())
    execute(made)
    assert not store.root.exists()


def test_planning_changes_nothing(store: Store, clock: Clock, keys: list[str]) -> None:
    before = files_below(store.root)
    assert plan(store, clock, PruneRules(max_size=1)).remove
    assert files_below(store.root) == before


def test_execution_does_what_the_plan_says_and_nothing_else(store: Store, clock: Clock, keys: list[str]) -> None:
    made = plan(store, clock, PruneRules(max_age_s=int(3.5 * DAY)))
    before = files_below(store.layout.base)
    summary = execute(made)
    assert summary.removed == made.remove
    assert (summary.freed_bytes, summary.freed_files) == (made.freed_bytes, made.freed_files)
    gone = set(before) - set(files_below(store.layout.base))
    assert len(gone) == made.freed_files
    assert du(store.root) <= made.bytes_before - made.freed_bytes
    for item in made.remove:
        assert any(item.id in name for name in gone), item
    assert alive(store) == set(keys[3:])
    assert all(store.check(key) == () for key in keys[3:])
    assert plan(store, clock, PruneRules(max_age_s=int(3.5 * DAY))).remove == ()


def test_age_counts_from_the_last_use_by_our_own_stamp(store: Store, clock: Clock, keys: list[str]) -> None:
    store.touch(keys[0])
    os.utime(store.layout.manifest(keys[1]), ns=(clock.now, clock.now))
    made = plan(store, clock, PruneRules(max_age_s=int(4.5 * DAY)))
    assert removed(made, "entry") == [keys[1]]
    assert made.remove[0].reason == "not used for 5 d"


def test_without_a_stamp_the_manifests_own_time_counts(store: Store, clock: Clock, keys: list[str]) -> None:
    (store.layout.stats / keys[0]).unlink()
    os.utime(store.layout.manifest(keys[0]), ns=(clock.now, clock.now))
    assert plan(store, clock).keep[0].key == keys[0]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part=st.integers(0, 100), files=st.integers(0, 40))
def test_a_plan_for_limits_removes_the_least_recently_used_and_never_one_too_many(
    store: Store, clock: Clock, part: int, files: int
) -> None:
    keys = [publish_numbered(store, number) for number in range(6)]
    for key in keys:
        store.touch(key)
        clock.advance(DAY)
    limit = du(store.root) * part // 100
    rules = PruneRules(max_size=limit, max_files=files)
    made = plan(store, clock, rules)
    gone = removed(made, "entry")
    assert gone == keys[: len(gone)]
    bytes_after, files_after = made.bytes_before - made.freed_bytes, made.files_before - made.freed_files
    assert bool(made.unmet) == (bytes_after > limit or files_after > files)
    if gone:
        *_, last = (index for index, item in enumerate(made.remove) if item.kind == "entry")
        late = made.remove[last:]
        assert bytes_after + sum(i.bytes for i in late) > limit or files_after + sum(i.files for i in late) > files


@pytest.mark.parametrize("part", [50, 70, 90])
def test_both_limits_hold_as_seen_from_outside(store: Store, clock: Clock, keys: list[str], part: int) -> None:
    size, files = du(store.root) * part // 100, count_files(store.root) * part // 100
    for rules in (PruneRules(max_size=size), PruneRules(max_files=files)):
        made = plan(store, clock, rules)
        execute(made)
        assert made.unmet == ()
        assert made.keep
    assert du(store.root) <= size
    assert count_files(store.root) <= files
    assert all(store.check(key) == () for key in alive(store))


def test_a_limit_below_what_must_stay_is_reported(store: Store, clock: Clock, keys: list[str]) -> None:
    set_tag(store, "release", keys[0])
    made = plan(store, clock, PruneRules(max_size=1))
    assert set(removed(made, "entry")) == set(keys[1:])
    assert len(made.unmet) == 1
    assert "more than 1 B" in made.unmet[0].message


def test_an_object_stays_until_its_last_entry_goes(store: Store, clock: Clock) -> None:
    first = publish(store, numbered(1, SHARED), SHARED)
    second = publish(store, numbered(2, SHARED), SHARED)
    name = store.manifest(first).payloads[0].object
    execute(plan(store, clock, PruneRules(keys=(first,))))
    assert store.check(second) == ()
    made = plan(store, clock, PruneRules(keys=(second,)))
    assert removed(made, "object") == [name]
    execute(made)
    assert not store.layout.object(name).exists()
    assert list(store.layout.objects.iterdir()) == []


def test_orphans_broken_entries_and_leftovers_go_without_any_rule(store: Store, clock: Clock, keys: list[str]) -> None:
    orphan = store.put_object(b"nobody wants me").sha256
    store.close()
    damage(store.layout.manifest(keys[0]), flip(500))
    store.quarantine(keys[1], "test")
    (store.layout.staging / f"{'ab' * 32}-{'0' * 16}").mkdir()
    shard = store.layout.object(orphan).parent
    (shard / f".{orphan}.zst-{'0' * 16}.tmp").write_bytes(b"half")
    made = plan(store, clock)
    assert removed(made, "entry") == [keys[0]]
    assert orphan in removed(made, "object")
    assert len(removed(made, "staging")) == 2
    assert len(removed(made, "quarantine")) == 1
    assert execute(made).skipped == ()
    assert alive(store) == set(keys[2:])
    assert plan(store, clock).remove == ()
    left = files_below(store.layout.base)
    assert not [name for name in left if keys[0] in name or keys[1] in name or orphan in name]


def test_pointers_to_what_is_gone_go_along_and_others_stay(store: Store, clock: Clock, keys: list[str]) -> None:
    both, one = "ab" * 32, "cd" * 32
    for key in keys[:2]:
        remember(store, both, key, {})
    remember(store, one, keys[0], {})
    execute(plan(store, clock, PruneRules(keys=(keys[0],))))
    assert candidates(store, both) == (keys[1], keys[0])
    assert candidates(store, one) == ()
    assert store.last_used(keys[0]) is None
    assert not list(store.layout.locks.glob(f"*{keys[0]}*"))


def test_a_temporary_file_of_a_reader_stays_until_it_is_stale(store: Store, clock: Clock, keys: list[str]) -> None:
    path = store.layout.stats / f".{keys[0]}-{'0' * 16}.tmp"
    path.touch()
    os.utime(path, ns=(clock.now, clock.now))
    assert plan(store, clock).remove == ()
    clock.advance(3601)
    assert removed(plan(store, clock), "staging") == [f"stats/{path.name}"]


def test_tagged_entries_go_by_key_only(store: Store, clock: Clock, keys: list[str]) -> None:
    set_tag(store, "release", keys[0])
    made = plan(store, clock, PruneRules(max_age_s=0, max_size=0))
    assert [(kept.key, kept.reason) for kept in made.keep] == [(keys[0], "tagged release")]
    assert removed(plan(store, clock, PruneRules(keys=(keys[0],))), "entry") == [keys[0]]


def test_the_last_used_entries_are_kept_if_asked(store: Store, clock: Clock, keys: list[str]) -> None:
    made = plan(store, clock, PruneRules(max_age_s=0, max_size=0, keep_last=2))
    assert [(kept.key, kept.reason) for kept in made.keep] == [(key, "among the last used") for key in keys[:3:-1]]


def test_entries_of_other_versions_go_if_asked(store: Store, clock: Clock, keys: list[str]) -> None:
    newer = publish_numbered(store, 99, version="0.2.0")
    made = plan(store, clock, PruneRules(only_version="0.2.0"))
    assert [kept.key for kept in made.keep] == [newer]
    assert {item.reason for item in made.remove if item.kind == "entry"} == {"built by precast 0.1.0"}


def test_a_held_entry_stays_whatever_the_rules_say(store: Store, clock: Clock, keys: list[str]) -> None:
    rules = PruneRules(max_age_s=0, max_size=0, keys=(keys[0],))
    with store.hold(keys[0]):
        made = plan(store, clock, rules)
        assert [(kept.key, kept.reason) for kept in made.keep] == [(keys[0], "in use")]
        execute(made)
        assert store.check(keys[0]) == ()
    assert removed(plan(store, clock, rules), "entry") == [keys[0]]


def _hold_for_ever(root: Path, key: str, ready: Event) -> None:
    with Store(root).hold(key):
        ready.set()
        signal.pause()


def test_a_killed_holder_holds_nothing(store: Store, clock: Clock, keys: list[str]) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold_for_ever, args=(store.root, keys[0], ready))
    process.start()
    assert ready.wait(30)
    assert keys[0] not in removed(plan(store, clock, PruneRules(max_age_s=0)), "entry")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    made = plan(store, clock, PruneRules(max_age_s=0))
    assert keys[0] in removed(made, "entry")
    execute(made)
    assert not list(store.layout.locks.glob("claim.*"))


def _use_later(store: Store, clock: Clock, key: str) -> str:
    clock.advance(1)
    store.touch(key)
    return key


SINCE: dict[str, Callable[[Store, Clock, str], object]] = {
    "held": lambda store, clock, key: make_claim(store.layout.locks, key),
    "used": _use_later,
}


@pytest.mark.parametrize("comes_into_use", SINCE.values(), ids=SINCE.keys())
def test_what_comes_into_use_after_planning_is_skipped_with_its_objects(
    store: Store, clock: Clock, keys: list[str], comes_into_use: Callable[[Store, Clock, str], object]
) -> None:
    made = plan(store, clock, PruneRules(max_age_s=0))
    kept_alive = comes_into_use(store, clock, keys[2])
    summary = execute(made)
    assert kept_alive is not None
    assert alive(store) == {keys[2]}
    assert store.check(keys[2]) == ()
    assert {skipped.item.kind for skipped in summary.skipped} == {"entry", "object", "leftover"}
    assert all(skipped.reason for skipped in summary.skipped)
    assert {item.id for item in summary.removed}.isdisjoint(skipped.item.id for skipped in summary.skipped)


def test_an_entry_published_after_planning_keeps_its_objects(store: Store, clock: Clock) -> None:
    orphan = store.put_object(SHARED[0]).sha256
    store.close()
    made = plan(store, clock)
    assert removed(made, "object") == [orphan]
    key = publish(store, numbered(1, SHARED), SHARED)
    summary = execute(made)
    assert summary.removed == ()
    assert store.check(key) == ()


def test_what_a_living_writer_has_put_is_spared_and_older_orphans_go(store: Store, clock: Clock) -> None:
    old = store.put_object(b"old orphan").sha256
    store.close()
    hours_ago = store.layout.object(old).stat().st_mtime_ns - 10**9 * 7200
    os.utime(store.layout.object(old), ns=(hours_ago, hours_ago))
    writer = Store(store.root)
    new = writer.put_object(b"on its way").sha256
    (store.layout.staging / f"{'ab' * 32}-{'0' * 16}").mkdir()
    made = plan(store, clock)
    assert removed(made, "object") == [old]
    assert removed(made, "staging") == []
    execute(made)
    assert store.read_object(new) == b"on its way"
    writer.close()
    assert removed(plan(store, clock), "object") == [new]


def test_an_orphan_that_a_writer_uses_again_is_spared(store: Store, clock: Clock) -> None:
    name = store.put_object(b"used again").sha256
    store.close()
    path = store.layout.object(name)
    os.utime(path, ns=(0, 0))
    made = plan(store, clock)
    assert removed(made, "object") == [name]
    writer = Store(store.root)
    writer.put_object(b"used again")
    assert [skipped.reason for skipped in execute(made).skipped] == ["a writer uses it now"]
    assert path.exists()
    writer.close()


def test_a_plan_spares_staging_if_somebody_writes_when_it_is_executed(store: Store, clock: Clock) -> None:
    store.layout.prepare()
    staged = store.layout.staging / f"{'ab' * 32}-{'0' * 16}"
    staged.mkdir()
    made = plan(store, clock)
    assert len(removed(made, "staging")) == 1
    writer = Store(store.root)
    writer.put_object(b"x")
    assert [skipped.reason for skipped in execute(made).skipped] == ["somebody writes now"]
    assert staged.is_dir()
    writer.close()


def test_an_unreadable_entry_stays_and_keeps_all_objects(store: Store, clock: Clock, keys: list[str]) -> None:
    damage(store.layout.manifest(keys[0]), lambda data: data.replace(b"precast.manifest/1", b"precast.manifest/2"))
    orphan = store.put_object(b"perhaps it needs me").sha256
    store.close()
    made = plan(store, clock, PruneRules(max_age_s=0))
    assert [kept.key for kept in made.keep] == [keys[0]]
    assert "too new" in made.keep[0].reason
    assert removed(made, "object") == []
    execute(made)
    assert store.layout.object(orphan).exists()


def foreign_things(store: Store, outside: Path) -> dict[str, bytes]:
    """Put foreign files, folders and links wherever somebody could; return what must stay."""
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    layout = store.layout
    for folder in (layout.path, layout.base, *layout.folders):
        (folder / "foreign").mkdir()
        (folder / "empty").mkdir()
        (folder / "foreign" / "file").write_bytes(b"foreign")
        (folder / "notes.txt").write_bytes(b"foreign")
        (folder / "link").symlink_to(outside)
    (layout.entries / ("ab" * 32)).symlink_to(outside)
    (layout.staging / f"{'ab' * 32}-{'0' * 16}").symlink_to(outside)
    (layout.quarantine / f"{'ab' * 32}-{'0' * 16}").symlink_to(outside)
    (layout.objects / "ab").symlink_to(outside)
    shard = layout.objects / "cd"
    shard.mkdir()
    (shard / f"{'cd' * 32}.zst").symlink_to(outside / "precious")
    return {name: data for name, data in files_below(layout.path).items() if data == b"foreign"}


def test_foreign_files_and_the_targets_of_links_are_never_touched(
    store: Store, clock: Clock, keys: list[str], tmp_path: Path
) -> None:
    staying = foreign_things(store, tmp_path / "outside")
    links = {path for path in store.root.rglob("*") if path.is_symlink() or path.name == "empty"}
    made = plan(store, clock, PruneRules(max_age_s=0))
    assert execute(made).skipped == ()
    assert alive(store) == set()
    left = files_below(store.root)
    assert {name: left[name] for name in staying} == staying
    assert {path for path in store.root.rglob("*") if path.is_symlink() or path.name == "empty"} == links
    assert files_below(tmp_path / "outside") == {"precious": b"precious"}


def test_a_link_inside_an_entry_goes_without_its_target(
    store: Store, clock: Clock, keys: list[str], tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_bytes(b"precious")
    (store.layout.entry(keys[0]) / "link").symlink_to(tmp_path / "outside")
    execute(plan(store, clock, PruneRules(keys=(keys[0],))))
    assert keys[0] not in alive(store)
    assert files_below(tmp_path / "outside") == {"precious": b"precious"}


def test_foreign_files_alone_above_a_limit_evict_nothing(store: Store, clock: Clock, keys: list[str]) -> None:
    (store.root / "film.mkv").write_bytes(bytes(500_000))
    made = plan(store, clock, PruneRules(max_size=400_000))
    assert removed(made, "entry") == []
    assert made.unmet


def test_foreign_files_count_towards_a_limit(store: Store, clock: Clock, keys: list[str]) -> None:
    limit = du(store.root) + 4096
    assert plan(store, clock, PruneRules(max_size=limit)).remove == ()
    (store.root / "film.mkv").write_bytes(bytes(20_000))
    made = plan(store, clock, PruneRules(max_size=limit))
    execute(made)
    assert du(store.root) <= limit
    assert removed(made, "entry")[0] == keys[0]


def test_hard_linked_entries_free_their_bytes_once(store: Store, clock: Clock, keys: list[str]) -> None:
    kept_elsewhere = store.layout.mega(keys[1])
    twin = store.layout.entry(keys[0]) / "twin"
    twin.hardlink_to(kept_elsewhere)
    before = du(store.root)
    made = plan(store, clock, PruneRules(keys=(keys[0], keys[1])))
    execute(made)
    assert before - du(store.root) == made.freed_bytes


def test_a_removal_that_is_refused_says_what(
    store: Store, clock: Clock, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    made = plan(store, clock, PruneRules(keys=(keys[0],)))
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StoreAccessError, match="Read-only file system"):
        execute(made)
    monkeypatch.undo()
    assert store.check(keys[0]) == ()


def test_removing_twice_is_nothing_to_do(store: Store, clock: Clock, keys: list[str]) -> None:
    made = plan(store, clock, PruneRules(max_age_s=0))
    execute(made)
    before = files_below(store.layout.base)
    execute(made)
    assert files_below(store.layout.base) == before


def test_a_plan_is_a_value(store: Store, clock: Clock, keys: list[str]) -> None:
    rules = PruneRules(max_age_s=0)
    assert plan(store, clock, rules) == plan(store, clock, rules)
    assert all(item.reason for item in plan(store, clock, rules).remove)
