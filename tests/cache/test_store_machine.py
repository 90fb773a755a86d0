"""A state machine over a real store: publish, read, damage, repair, quarantine, prune and die in the middle of each.

At any moment an entry is absent, or complete, or reported as damaged; nothing that is read is ever wrong; what is done
to one entry never hurts another.
"""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.cache.crashes import Crash, dying_at, steps_of
from tests.cache.support import Clock, files_below, numbered

from precast.cache.canonical import sha256
from precast.cache.damage import Damage
from precast.cache.inventory import take_inventory
from precast.cache.leftovers import half_written
from precast.cache.locks import dead_claims
from precast.cache.mega import write_mega
from precast.cache.prune import PruneRules, execute, plan_prune
from precast.cache.repair import repair
from precast.cache.store import Store
from precast.cache.tags import all_tags, set_tag
from precast.errors import CorruptError, NoEntryError

# Entries share objects: the second payload is in both the first and the second entry.
RAWS = tuple(f"payload {number} ".encode() * 30 for number in range(4))
PAYLOADS = ((RAWS[0], RAWS[1]), (RAWS[1], RAWS[2]), (RAWS[3],))
DRAFTS = tuple(numbered(number, raws) for number, raws in enumerate(PAYLOADS))
MEGAS = tuple(
    write_mega(draft, {sha256(raw): raw for raw in raws}, {}) for draft, raws in zip(DRAFTS, PAYLOADS, strict=True)
)
KEYS = tuple(draft.key for draft in DRAFTS)
SHM = Path("/dev/shm")

entries = st.integers(0, len(KEYS) - 1)
steps = st.integers(0, 60)
damages: st.SearchStrategy[Callable[[bytes], bytes | None]] = st.sampled_from(
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]) if data else data,
        lambda data: data[: len(data) // 3] + b"\0" + data[len(data) // 3 + 1 :],
        lambda data: data + b"!",
        lambda data: None,
    ]
)


class StoreMachine(RuleBasedStateMachine):
    """One root, used by processes that come and go."""

    def __init__(self) -> None:
        super().__init__()
        # fsync costs nothing in memory, and what matters here is the order of the calls.
        self.folder = Path(tempfile.mkdtemp(prefix="precast-machine-", dir=SHM if SHM.is_dir() else None))
        self.clock = Clock()
        self.complete: set[str] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def store(self) -> Store:
        """Open the root anew, as another process would."""
        self.clock.advance(1)
        return Store(self.folder / "root", clock=self.clock, lock_timeout_s=5)

    @initialize()
    def begin(self) -> None:
        self.publish(0)
        self.publish(1)

    def _publish(self, store: Store, index: int) -> None:
        for raw in PAYLOADS[index]:
            store.put_object(raw)
        store.publish(DRAFTS[index], MEGAS[index])

    @rule(index=entries)
    def publish(self, index: int) -> None:
        store = self.store()
        self._publish(store, index)
        self.complete.add(KEYS[index])
        self.require_nothing_half_done()

    @rule(index=entries, step=steps)
    def die_while_publishing(self, index: int, step: int) -> None:
        with dying_at(step):
            self._publish(self.store(), index)

    @rule(index=entries)
    def mend(self, index: int) -> None:
        before = self.state(KEYS[index])
        repaired = repair(self.store(), KEYS[index])
        if repaired is not None:
            self.complete.add(KEYS[index])
        else:
            assert before != "complete"
            assert self.state(KEYS[index]) == "absent"

    @rule(index=entries, step=steps)
    def die_while_mending(self, index: int, step: int) -> None:
        with dying_at(step):
            repair(self.store(), KEYS[index])

    @rule(index=entries, step=st.none() | steps)
    def put_aside(self, index: int, step: int | None) -> None:
        store, key = self.store(), KEYS[index]
        damage: tuple[Damage, ...] = ()
        with suppress(NoEntryError):
            damage = store.check(key)
        self.complete.discard(key)
        if step is not None:
            with dying_at(step):
                store.quarantine(key, "test", damage)
        else:
            store.quarantine(key, "test", damage)
            assert self.state(key) == "absent"

    @rule(named=st.sets(entries), step=st.none() | steps, size=st.none() | st.integers(0, 60_000))
    def prune(self, named: set[int], step: int | None, size: int | None) -> None:
        store = self.store()
        tagged = set(all_tags(store).values())  # a tag goes with its entry
        plan = plan_prune(store, PruneRules(keys=tuple(KEYS[i] for i in named), max_size=size), self.clock())
        going = {item.id for item in plan.remove if item.kind == "entry"}
        if size is None:
            assert going <= {KEYS[i] for i in named} | set(self.damaged())
        assert not (going & tagged) - {KEYS[i] for i in named} - set(self.damaged())
        # An entry goes whole: even where the remover dies, what was complete is complete or absent.
        whole = {key for key in KEYS if self.state(key) == "complete"}
        self.complete -= going
        if step is None:
            execute(plan)
            assert all(self.state(key) == "absent" for key in going)
        else:
            with dying_at(step):
                execute(plan)
        assert all(self.state(key) in ("complete", "absent") for key in whole)

    @rule(pick=st.integers(0, 10**6), how=damages)
    def damage(self, pick: int, how: Callable[[bytes], bytes | None]) -> None:
        path = self.pick_file(pick)
        if path is None:
            return
        self.complete -= self.users_of(path)
        content = how(path.read_bytes())
        path.unlink()
        if content is not None:
            path.write_bytes(content)

    @rule(first=st.integers(0, 10**6), second=st.integers(0, 10**6))
    def swap(self, first: int, second: int) -> None:
        one, two = self.pick_file(first), self.pick_file(second)
        if one is None or two is None or one == two:
            return
        self.complete -= self.users_of(one) | self.users_of(two)
        content = one.read_bytes(), two.read_bytes()
        one.write_bytes(content[1])
        two.write_bytes(content[0])

    @rule(index=entries)
    def read(self, index: int) -> None:
        """Read as a server does: what it gets is right, or it gets an error that says what is wrong."""
        store, key = self.store(), KEYS[index]
        with store.hold(key), suppress(NoEntryError, CorruptError):
            manifest = store.manifest(key)
            for record in manifest.payloads:
                assert store.read_object(record.object, record.bytes) in PAYLOADS[index]
        store.touch(key)

    @rule(index=entries)
    def tag(self, index: int) -> None:
        with suppress(NoEntryError, CorruptError):
            set_tag(self.store(), f"tag-{index}", KEYS[index])

    @invariant()
    def every_entry_is_absent_or_complete_or_reported(self) -> None:
        for key in KEYS:
            state = self.state(key)
            assert state == "complete" or key not in self.complete, f"{key[:12]} is {state}"
            if state == "complete":
                self.complete.add(key)

    @invariant()
    def nothing_that_is_read_is_wrong(self) -> None:
        store = self.store()
        for raw in RAWS:
            with suppress(NoEntryError, CorruptError):
                assert store.read_object(sha256(raw)) == raw
        for draft in DRAFTS:
            with suppress(NoEntryError, CorruptError):
                manifest = store.manifest(draft.key)
                assert (manifest.key, manifest.payloads, manifest.code) == (draft.key, draft.payloads, draft.code)

    @invariant()
    def a_listing_and_an_inventory_never_fail(self) -> None:
        store = self.store()
        listed = {line.key for line in store.entries()}
        assert listed == {key for key in KEYS if self.state(key) != "absent"}
        take_inventory(store)

    def state(self, key: str) -> str:
        """Tell what a reader finds: `absent`, `damaged`, or `complete` with every byte as it was published."""
        store = self.store()
        try:
            damage = store.check(key)
        except NoEntryError:
            return "absent"
        if damage:
            assert all(item.code in ("missing", "empty", "truncated", "altered", "foreign") for item in damage)
            return "damaged"
        index = KEYS.index(key)
        assert store.layout.mega(key).read_bytes() == MEGAS[index]
        assert [store.read_object(sha256(raw), len(raw)) for raw in PAYLOADS[index]] == list(PAYLOADS[index])
        return "complete"

    def damaged(self) -> list[str]:
        return [key for key in KEYS if self.state(key) == "damaged"]

    def pick_file(self, number: int) -> Path | None:
        """Choose a file of an entry or an object."""
        base = self.store().layout.base
        names = [name for name in files_below(base) if name.startswith(("entries/", "objects/"))]
        return base / names[number % len(names)] if names else None

    def users_of(self, path: Path) -> set[str]:
        """Return the entries that a file belongs to."""
        if path.parent.name in KEYS:
            return {path.parent.name}
        return {key for key, raws in zip(KEYS, PAYLOADS, strict=True) if path.stem in map(sha256, raws)}

    def require_nothing_half_done(self) -> None:
        """After a publication with nobody else about, nothing temporary is left by anyone who died before."""
        layout = self.store().layout
        assert list(layout.staging.iterdir()) == []
        assert list(layout.base.rglob("*.tmp")) == []
        assert dead_claims(layout.locks) == ()
        assert half_written(layout.requests) == ()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def _publish_all(root: Path) -> None:
    store = Store(root, lock_timeout_s=5)
    for raw in PAYLOADS[0]:
        store.put_object(raw)
    store.publish(DRAFTS[0], MEGAS[0])


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    """A folder in memory, where syncing costs nothing."""
    return Path(tempfile.mkdtemp(prefix="precast-machine-", dir=SHM)) if SHM.is_dir() else tmp_path


def test_a_publication_that_dies_at_any_step_leaves_nothing_or_all_and_the_next_one_succeeds(shm: Path) -> None:
    """Every step, not some: the machine tries them in odd states, this in the plain one."""
    try:
        count = steps_of(lambda: _publish_all(shm / "counted"))
        assert count > 20
        seen = set()
        for step in range(count):
            root = shm / str(step)
            with dying_at(step):
                _publish_all(root)
            store = Store(root, lock_timeout_s=5)
            try:
                assert store.check(KEYS[0]) == ()
                seen.add("complete")
            except NoEntryError:
                seen.add("absent")
            _publish_all(root)
            assert store.check(KEYS[0]) == ()
            assert list(root.rglob("*.tmp")) + list(store.layout.staging.iterdir()) == []
            assert dead_claims(store.layout.locks) == ()
        assert seen == {"complete", "absent"}
    finally:
        shutil.rmtree(shm, ignore_errors=True)


def test_the_helper_lets_nothing_through_after_a_death(tmp_path: Path) -> None:
    with dying_at(1):
        (tmp_path / "first").mkdir()
        try:
            (tmp_path / "second").mkdir()
        finally:
            with suppress(OSError):
                (tmp_path / "first").rmdir()
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    with pytest.raises(AssertionError), dying_at(10):
        raise Crash
