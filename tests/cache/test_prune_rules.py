"""What each rule of pruning takes and spares."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.cache.quick import count_files, du, quick_manifest, quick_publish, quick_tag
from tests.cache.support import Clock, damage

from precast.cache.index import SummaryRow
from precast.cache.manifest import SCHEMA
from precast.cache.prune import PrunePlan, PruneRules, execute, plan_prune
from precast.cache.store import Store
from precast.cache.tags import all_tags

DAY_NS = 86400 * 10**9
EVERYTHING = PruneRules(max_age_s=0)


@dataclass(frozen=True)
class Versions:
    """Chooses entries by the version of precast that built them."""

    version: str

    def matches(self, entry: SummaryRow, now_ns: int) -> bool:
        return entry.precast == self.version


@pytest.fixture
def keys(store: Store, clock: Clock) -> list[str]:
    """Six entries, the least recently used first, used a day apart; two versions take turns."""
    made = []
    for number in range(6):
        manifest = quick_manifest(number, version="0.1.0" if number % 2 else "0.0.9")
        made.append(quick_publish(store, manifest, used_ns=clock.now + number * DAY_NS))
    clock.advance(6 * 86400)
    return made


def plan(store: Store, clock: Clock, rules: PruneRules) -> PrunePlan:
    return plan_prune(store, rules, clock.now)


def removed(made: PrunePlan, kind: str = "entry") -> list[str]:
    return [item.id for item in made.remove if item.kind == kind]


def kept(made: PrunePlan) -> dict[str, str]:
    return {entry.key: entry.reason for entry in made.keep}


def set_format(store: Store, key: str, number: int) -> None:
    named = SCHEMA.partition("/")[0]
    damage(store.layout.manifest(key), lambda data: data.replace(SCHEMA.encode(), f"{named}/{number}".encode()))


def orphan(store: Store, name: str = "ef" * 32) -> str:
    store.layout.object(name).parent.mkdir(exist_ok=True)
    store.layout.object(name).write_bytes(b"nobody's")
    return name


def test_only_the_tags_that_are_named_protect(store: Store, clock: Clock, keys: list[str]) -> None:
    for tag, key in (("release-40", keys[0]), ("nightly-7", keys[1]), ("nightly-8", keys[0])):
        quick_tag(store, tag, key)
    assert kept(plan(store, clock, EVERYTHING)) == {
        keys[0]: "tagged nightly-8, release-40",
        keys[1]: "tagged nightly-7",
    }
    made = plan(store, clock, replace(EVERYTHING, keep_tags=("release-*", "stable")))
    assert kept(made) == {keys[0]: "tagged release-40"}
    assert removed(made, "tag") == ["nightly-7"]
    execute(made)
    assert list(all_tags(store)) == ["nightly-8", "release-40"]


def test_a_tag_that_is_dropped_protects_no_more_and_takes_nothing_with_it(
    store: Store, clock: Clock, keys: list[str]
) -> None:
    quick_tag(store, "release-40", keys[0])
    quick_tag(store, "release-41", keys[1])
    made = plan(store, clock, PruneRules(drop_tags=("release-40",)))
    assert (removed(made), removed(made, "tag")) == ([], ["release-40"])
    made = plan(store, clock, replace(EVERYTHING, drop_tags=("release-40",)))
    assert kept(made) == {keys[1]: "tagged release-41"}
    execute(made)
    assert all_tags(store) == {"release-41": keys[1]}


def test_an_entry_that_is_named_goes_with_its_tags(store: Store, clock: Clock, keys: list[str]) -> None:
    quick_tag(store, "release-40", keys[0])
    made = plan(store, clock, PruneRules(keys=(keys[0],)))
    assert (removed(made), removed(made, "tag")) == ([keys[0]], ["release-40"])
    execute(made)
    assert all_tags(store) == {}


def test_a_tag_that_names_nothing_is_told_and_stays(store: Store, clock: Clock, keys: list[str]) -> None:
    quick_tag(store, "lost", "ab" * 32)
    made = plan(store, clock, PruneRules())
    assert (made.remove, made.loose_tags) == ((), ("lost",))
    made = plan(store, clock, PruneRules(drop_tags=("lost",)))
    assert (removed(made, "tag"), made.loose_tags) == (["lost"], ())


def test_a_damaged_entry_that_is_tagged_goes_by_key_only(store: Store, clock: Clock, keys: list[str]) -> None:
    store.layout.mega(keys[0]).unlink()
    store.layout.mega(keys[1]).unlink()
    quick_tag(store, "release-40", keys[0])
    assert removed(plan(store, clock, PruneRules())) == [keys[1]]
    assert removed(plan(store, clock, PruneRules(broken=True, max_age_s=0)))[0] == keys[1]
    assert keys[0] in removed(plan(store, clock, PruneRules(keys=(keys[0],))))


def test_only_broken_things_or_only_orphans_go_where_that_is_said(store: Store, clock: Clock, keys: list[str]) -> None:
    damage(store.layout.manifest(keys[0]), lambda data: data[:100])
    (store.layout.quarantine / f"{'ab' * 32}-{'0' * 16}").mkdir()
    lone = orphan(store)
    (store.layout.stats / ("ab" * 32)).touch()
    broken = plan(store, clock, PruneRules(broken=True))
    assert {item.kind for item in broken.remove} == {"entry", "quarantine", "leftover"}
    assert removed(broken, "leftover") == [f"stats/{keys[0]}"]
    orphans = plan(store, clock, PruneRules(orphans=True))
    # The damaged entry cannot say which objects it needs, and it can never be loaded.
    assert lone in removed(orphans, "object")
    assert (removed(orphans), removed(orphans, "leftover")) == ([], [f"stats/{'ab' * 32}"])
    both = {item.id for item in plan(store, clock, PruneRules(broken=True, orphans=True)).remove}
    assert both == {item.id for item in plan(store, clock, PruneRules()).remove}
    assert both >= {item.id for item in (*broken.remove, *orphans.remove)}


def test_entries_for_another_torch_go_if_asked(store: Store, clock: Clock, keys: list[str]) -> None:
    other = quick_publish(store, quick_manifest(9, torch="2.14.0"))
    made = plan(store, clock, PruneRules(only_torch="2.13.0+cpu"))
    assert [(item.id, item.reason) for item in made.remove if item.kind == "entry"] == [(other, "needs torch 2.14.0")]
    both = plan(store, clock, PruneRules(only_version="0.1.0", only_torch="2.13.0"))
    assert set(removed(both)) == {other, *keys[0::2]}


def test_an_older_format_goes_by_version_and_a_newer_one_by_key_only(
    store: Store, clock: Clock, keys: list[str]
) -> None:
    set_format(store, keys[0], 0)
    set_format(store, keys[1], 9)
    lone = orphan(store)
    made = plan(store, clock, PruneRules(only_version="0.1.0", max_age_s=0))
    assert list(kept(made)) == [keys[1]]
    assert "too new" in kept(made)[keys[1]]
    assert removed(made, "object") == []
    # Once nothing is unknown any more, the objects of all that went go in the same plan.
    made = plan(store, clock, PruneRules(keys=(keys[1],), only_version="0.1.0", max_age_s=0))
    assert set(removed(made)) == set(keys)
    assert lone in removed(made, "object")
    execute(made)
    assert plan(store, clock, PruneRules()).remove == ()
    assert list(store.layout.objects.iterdir()) == []


def test_a_selection_alone_takes_what_it_chooses(store: Store, clock: Clock, keys: list[str]) -> None:
    quick_tag(store, "release-40", keys[0])
    with store.hold(keys[2]):
        made = plan(store, clock, PruneRules(selection=Versions("0.0.9")))
    assert removed(made) == [keys[4]]
    assert made.remove[0].reason == "chosen by filter"


NARROWED: dict[str, Callable[[Store], PruneRules]] = {
    "age": lambda store: PruneRules(max_age_s=3 * 86400),
    "size": lambda store: PruneRules(max_size=du(store.root) - 1),
    "files": lambda store: PruneRules(max_files=count_files(store.root) - 1),
    "version": lambda store: PruneRules(only_version="0.1.0"),
}


@pytest.mark.parametrize("rule", NARROWED.values(), ids=NARROWED.keys())
def test_a_selection_narrows_other_rules(
    store: Store, clock: Clock, keys: list[str], rule: Callable[[Store], PruneRules]
) -> None:
    made = plan(store, clock, replace(rule(store), selection=Versions("0.0.9")))
    assert 0 < len(removed(made)) < 6
    assert set(removed(made)) <= set(keys[0::2])
    none = plan(store, clock, replace(rule(store), selection=Versions("7")))
    assert removed(none) == []


def test_a_selection_narrows_broken_only_where_that_is_asked_for(store: Store, clock: Clock, keys: list[str]) -> None:
    for key in keys[:2]:
        store.layout.mega(key).unlink()
    assert removed(plan(store, clock, PruneRules(broken=True, selection=Versions("0.0.9")))) == [keys[0]]
    assert set(removed(plan(store, clock, PruneRules(max_age_s=10**9, selection=Versions("0.0.9"))))) == set(keys[:2])


def test_the_last_used_are_counted_among_what_is_selected(store: Store, clock: Clock, keys: list[str]) -> None:
    made = plan(store, clock, replace(EVERYTHING, keep_last=2))
    assert removed(made) == keys[:4]
    made = plan(store, clock, PruneRules(selection=Versions("0.0.9"), keep_last=2))
    assert removed(made) == [keys[0]]


def test_an_entry_with_a_foreign_folder_stays_even_when_it_is_named(
    store: Store, clock: Clock, keys: list[str]
) -> None:
    (store.layout.entry(keys[0]) / "notes").mkdir()
    (store.layout.entry(keys[0]) / "notes" / "precious").touch()
    made = plan(store, clock, replace(EVERYTHING, keys=(keys[0],), max_size=0))
    assert kept(made) == {keys[0]: "holds a folder that is not ours: notes"}
    assert execute(made).skipped == ()
    assert store.check(keys[0]) == () or store.layout.manifest(keys[0]).exists()
    assert (store.layout.entry(keys[0]) / "notes" / "precious").exists()


def test_objects_behind_a_link_are_there_and_are_not_ours(
    store: Store, clock: Clock, keys: list[str], tmp_path: Path
) -> None:
    name = next(iter(store.manifest(keys[0]).objects))
    shard = store.layout.object(name).parent
    shard.rename(tmp_path / "moved")
    shard.symlink_to(tmp_path / "moved")
    assert plan(store, clock, PruneRules()).remove == ()
    execute(plan(store, clock, PruneRules(keys=(keys[0],))))
    assert (tmp_path / "moved" / f"{name}.zst").exists()


def test_the_announcement_of_a_killed_prune_goes(store: Store, clock: Clock, keys: list[str]) -> None:
    (store.layout.locks / "going").write_text(keys[0])
    made = plan(store, clock, PruneRules())
    assert removed(made, "leftover") == ["locks/going"]
    for rules in (PruneRules(), PruneRules(keys=(keys[0],))):
        (store.layout.locks / "going").write_text(keys[0])
        assert execute(plan(store, clock, rules)).skipped == ()
        assert not (store.layout.locks / "going").exists()


def test_ties_are_broken_by_key(store: Store, clock: Clock) -> None:
    keys = [quick_publish(store, quick_manifest(number), used_ns=7) for number in range(6)]
    assert removed(plan(store, clock, PruneRules(max_size=1))) == sorted(keys)


def test_the_time_of_access_says_nothing(store: Store, clock: Clock, keys: list[str]) -> None:
    for path in store.layout.entry(keys[0]).iterdir():
        os.utime(path, ns=(clock.now + DAY_NS, path.stat().st_mtime_ns))
    assert removed(plan(store, clock, PruneRules(max_files=count_files(store.root) - 1))) == [keys[0]]


def test_foreign_things_and_other_layouts_are_told(store: Store, clock: Clock, keys: list[str]) -> None:
    (store.root / "v0").mkdir()
    (store.root / "v0" / "x").write_bytes(b"x" * 5000)
    (store.root / "film").touch()
    made = plan(store, clock, EVERYTHING)
    assert [(item.path, item.files, item.layout) for item in made.foreign] == [("film", 1, False), ("v0", 1, True)]
    assert made.foreign[1].bytes >= 5000
    execute(made)
    assert (store.root / "v0" / "x").exists()


def test_more_can_be_kept_than_there_are(store: Store, clock: Clock, keys: list[str]) -> None:
    assert removed(plan(store, clock, replace(EVERYTHING, keep_last=len(keys) + 1))) == []
