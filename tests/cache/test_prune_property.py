"""Random stores under random rules: what must stay stays, limits hold or are told, and the plan is what happens."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cache.quick import count_files, du, quick_manifest, quick_publish, quick_tag

from precast.cache.index import SummaryRow
from precast.cache.manifest import SCHEMA, Manifest
from precast.cache.prune import PrunePlan, PruneRules, execute, plan_prune
from precast.cache.store import Store

NOW_NS = 10**18
HOUR_NS = 3600 * 10**9
POOL = [b"object %d" % number for number in range(4)]
TAGS = ("release-40", "release-41", "nightly", "stable")
OK, TORN, NO_MEGA, NO_OBJECT, NEWER = "ok", "torn", "no mega", "no object", "newer"
WHOLE = (OK, OK, OK, OK)


@dataclass(frozen=True)
class Entry:
    """One entry to be made: what is wrong with it, what it shares, when it was used and by whom it is protected."""

    state: str
    raws: tuple[int, ...]
    used_hours_ago: int | None
    version: str
    tags: tuple[str, ...]
    held: bool
    linked: bool
    folder: bool


@dataclass(frozen=True)
class Versions:
    """Chooses entries by the version of precast that built them."""

    version: str

    def matches(self, entry: SummaryRow, now_ns: int) -> bool:
        return entry.precast == self.version


entries = st.lists(
    st.builds(
        Entry,
        state=st.sampled_from([*WHOLE, *WHOLE, TORN, NO_MEGA, NO_OBJECT, NEWER]),
        raws=st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
        used_hours_ago=st.none() | st.integers(0, 5),
        version=st.sampled_from(["0.1.0", "0.2.0"]),
        tags=st.lists(st.sampled_from(TAGS), max_size=1).map(tuple),
        held=st.integers(0, 5).map(lambda number: number == 5),
        linked=st.booleans(),
        folder=st.integers(0, 9).map(lambda number: number == 9),
    ),
    max_size=7,
)
rules = st.fixed_dictionaries(
    {},
    optional={
        "max_size": st.integers(0, 120),  # in parts of a hundred of what is there
        "max_files": st.integers(0, 120),
        "max_age_s": st.integers(0, 6 * 3600),
        "only_version": st.just("0.2.0"),
        "selection": st.just(Versions("0.1.0")),
        "keep_last": st.integers(0, 3),
        "keep_tags": st.just(("release-*",)),
        "keys": st.lists(st.integers(0, 6), min_size=1, max_size=2),  # numbers of entries
        "drop_tags": st.just(("nightly",)),
        "broken": st.booleans(),
        "orphans": st.booleans(),
    },
)


class Made:
    """A store on disk, and what is known of it without asking it."""

    def __init__(self, root: Path, wanted: list[Entry], *, litter: bool) -> None:
        self.store = Store(root)
        self.store.layout.prepare()
        for name in ("store", "tags"):
            (self.store.layout.locks / f"{name}.lock").touch()
        self.wanted: dict[str, Entry] = {}
        self.manifests: dict[str, Manifest] = {}
        self.tags: dict[str, str] = {}
        for number, entry in enumerate(wanted):
            self._make(number, entry)
        for number, (key, entry) in enumerate(self.wanted.items()):
            self._spoil(number, key, entry)
        if litter:
            self._litter()

    def _make(self, number: int, entry: Entry) -> None:
        raws = [POOL[index] if index < 4 else b"own %d %d" % (number, index) for index in entry.raws]
        manifest = quick_manifest(number, tuple(dict.fromkeys(raws)), version=entry.version)
        used = None if entry.used_hours_ago is None else NOW_NS - entry.used_hours_ago * HOUR_NS
        key = quick_publish(self.store, manifest, used_ns=used, requests=(f"{number % 2}" * 64,))
        os.utime(self.store.layout.manifest(key), ns=(0, NOW_NS - 3 * HOUR_NS))
        self.wanted[key], self.manifests[key] = entry, manifest
        for tag in entry.tags:
            self.tags[tag] = key
            quick_tag(self.store, tag, key)

    def _spoil(self, number: int, key: str, entry: Entry) -> None:
        layout = self.store.layout
        if entry.state == TORN:
            layout.manifest(key).write_bytes(layout.manifest(key).read_bytes()[:50])
        elif entry.state == NO_MEGA:
            layout.mega(key).unlink()
        elif entry.state == NEWER:
            data = layout.manifest(key).read_bytes()
            layout.manifest(key).write_bytes(data.replace(SCHEMA.encode(), b"precast.manifest/9"))
        if entry.linked and entry.state != NO_MEGA:
            (layout.entry(key) / "twin").hardlink_to(layout.mega(key))
        if entry.folder:
            (layout.entry(key) / "notes").mkdir()

    def spoil_objects(self) -> None:
        """Take objects away last, so that entries that share them are damaged too."""
        for key, entry in self.wanted.items():
            if entry.state == NO_OBJECT:
                self.store.layout.object(next(iter(self.manifests[key].objects))).unlink(missing_ok=True)

    def _litter(self) -> None:
        layout = self.store.layout
        lone = layout.object("ef" * 32)
        lone.parent.mkdir(exist_ok=True)
        lone.write_bytes(b"nobody's")
        (layout.quarantine / f"{'ab' * 32}-{'0' * 16}").mkdir()
        (layout.staging / f"{'cd' * 32}-{'0' * 16}").mkdir()
        (layout.stats / ("cd" * 32)).write_text("7\n")
        (self.store.root / "v0").mkdir()
        (self.store.root / "v0" / "film").write_bytes(bytes(20_000))
        (layout.entries / "foreign").symlink_to(self.store.root / "v0")

    def is_whole(self, key: str) -> bool:
        """Whether a reader finds all of an entry."""
        layout, manifest = self.store.layout, self.manifests[key]
        if self.wanted[key].state not in (OK, NO_OBJECT) or not layout.mega(key).exists():
            return False
        return all(layout.object(name).exists() for name in manifest.objects)

    def last_used(self, key: str) -> int:
        hours = self.wanted[key].used_hours_ago
        return NOW_NS - HOUR_NS * (3 if hours is None else hours)

    def rules(self, drawn: dict[str, object]) -> PruneRules:
        keys = list(self.wanted)
        fitted = dict(drawn)
        if isinstance(part := drawn.get("max_size"), int):
            fitted["max_size"] = du(self.store.root) * part // 100
        if isinstance(part := drawn.get("max_files"), int):
            fitted["max_files"] = count_files(self.store.root) * part // 100
        if isinstance(numbers := drawn.get("keys"), list):
            fitted["keys"] = tuple(keys[number] for number in numbers if number < len(keys))
        return PruneRules(**fitted)  # type: ignore[arg-type]

    def must_stay(self, rules: PruneRules) -> set[str]:
        """The entries that no rule may take, from first principles."""
        tagged = {key for tag, key in self.tags.items() if self._protects(rules, tag)}
        newer = {key for key, entry in self.wanted.items() if entry.state == NEWER}
        always = {key for key, entry in self.wanted.items() if entry.held or entry.folder}
        return always | ((tagged | newer) - set(rules.keys))

    @staticmethod
    def _protects(rules: PruneRules, tag: str) -> bool:
        return tag not in rules.drop_tags and (not rules.keep_tags or tag.startswith("release-"))


@settings(max_examples=60, deadline=None)
@given(wanted=entries, drawn=rules, litter=st.booleans())
def test_a_plan_keeps_its_promises(
    wanted: list[Entry], drawn: dict[str, object], litter: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = Made(tmp_path_factory.mktemp("root") / "root", wanted, litter=litter)
    made.spoil_objects()
    store, asked = made.store, made.rules(drawn)
    with ExitStack() as holding:
        for key, entry in made.wanted.items():
            if entry.held:
                holding.enter_context(store.hold(key))
        before = {str(path) for path in store.root.rglob("*")}
        plan = plan_prune(store, asked, NOW_NS)
        assert plan_prune(store, asked, NOW_NS) == plan
        assert {str(path) for path in store.root.rglob("*")} == before
        whole = {key for key in made.wanted if made.is_whole(key)}
        done = execute(plan)
        assert (done.removed, done.skipped) == (plan.remove, ())
        check_what_is_left(made, plan, whole)
        check_limits(made, plan, held=sum(entry.held for entry in made.wanted.values()))
        check_order(made, plan)
        again = plan_prune(store, asked, NOW_NS)
        assert again.remove == ()


def check_what_is_left(made: Made, plan: PrunePlan, whole: set[str]) -> None:
    """What must stay is here, what the plan names is not, and an entry that was whole is still whole."""
    layout = made.store.layout
    left = {key for key in made.wanted if layout.entry(key).exists()}
    gone = {item.id for item in plan.remove if item.kind == "entry"}
    assert left == set(made.wanted) - gone == {entry.key for entry in plan.keep}
    assert made.must_stay(plan.rules) <= left
    assert all(made.is_whole(key) for key in whole & left)
    if (made.store.root / "v0").exists():
        assert (made.store.root / "v0" / "film").stat().st_size == 20_000
        assert (layout.entries / "foreign").is_symlink()
    for key in gone:
        assert not (layout.stats / key).exists()
        assert not any(path.read_text().strip() == key for path in layout.tags.iterdir())


def check_limits(made: Made, plan: PrunePlan, held: int) -> None:
    """From outside the root is as small as the plan says, and as the rules say unless that is told."""
    size, files = du(made.store.root), count_files(made.store.root)
    assert files == plan.files_before - plan.freed_files
    assert size <= plan.bytes_before - plan.freed_bytes
    missed = {unmet.limit for unmet in plan.unmet}
    if plan.rules.max_files is not None:
        assert files <= plan.rules.max_files or "max_files" in missed
    if plan.rules.max_size is not None:
        assert size <= plan.rules.max_size or "max_size" in missed
    assert held == len(list(made.store.layout.locks.glob("claim.*")))


def check_order(made: Made, plan: PrunePlan) -> None:
    """What a limit took was used before everything that it might have taken and did not."""
    taken = [item.id for item in plan.remove if item.reason == "least recently used"]
    order = [(made.last_used(key), key) for key in taken]
    assert order == sorted(order)
    spared = [
        (made.last_used(entry.key), entry.key)
        for entry in plan.keep
        if not entry.reason and (plan.rules.selection is None or made.wanted[entry.key].version == "0.1.0")
    ]
    assert not order or not spared or max(order) < min(spared)
