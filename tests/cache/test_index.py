import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cache.support import (
    FACTORS,
    PAYLOADS,
    Clock,
    damage,
    files_below,
    flip,
    make_manifest,
    publish,
    publish_numbered,
    publish_sources,
    request_factors,
)

from precast.cache.canonical import Json, sha256
from precast.cache.diff import Side, diff_sides
from precast.cache.factors import Factor, entry_key
from precast.cache.index import SummaryRow, nearest, summaries
from precast.cache.manifest import SCHEMA, ModelRecord
from precast.cache.side import manifest_side
from precast.cache.store import Store
from precast.cache.tags import set_tag


def index(store: Store, name: str = "summary") -> Path:
    return store.layout.stats / f"index-{name}.json"


@pytest.fixture
def key(key: str, store: Store) -> str:
    """The key of an entry that is old enough for an index."""
    settle(store)
    return key


def settle(store: Store) -> None:
    """Make every manifest older than the clock of a file system is coarse."""
    for path in store.layout.entries.glob("*/manifest.json"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))


def publish_with(store: Store, *factors: Factor, model: str = "tiny") -> str:
    """Publish an entry whose factors are `FACTORS`, some of them replaced."""
    named = {factor.label: factor for factor in (*FACTORS, *factors)}
    chosen = tuple(named.values())
    named_model = ModelRecord(model, f"shop.model:{model}", {"layers": 4})
    manifest = replace(make_manifest(factors=chosen), key=entry_key(chosen), model=named_model)
    return publish(store, manifest, PAYLOADS)


def test_a_row_says_what_a_listing_shows(store: Store, clock: Clock) -> None:
    key = publish_sources(store, make_manifest(), {"shop.model": "x = 1\n"})
    set_tag(store, "b", key)
    set_tag(store, "a", key)
    manifest = store.manifest(key)
    folder = sum(path.stat().st_size for path in store.layout.entry(key).iterdir())
    sources = manifest.sources
    assert sources is not None
    (row,) = summaries(store)
    assert row == SummaryRow(
        key=key,
        state="ok",
        reason="",
        model="tiny",
        reference="shop.model:tiny",
        target={"device": "cpu", "isa": "x86-64-v3"},
        torch="2.13.0",
        precast="0.1.0",
        kinds=("aoti",),
        pieces=2,
        payloads=2,
        mega=True,
        folder_bytes=folder,
        objects={
            **{payload.object[:16]: payload.stored_bytes for payload in manifest.payloads},
            sources.object[:16]: sources.stored_bytes,
        },
        created_at="2026-11-30T18:00:00Z",
        last_used_ns=clock.now,
        tags=("a", "b"),
    )
    assert row.bytes == folder + sum(row.objects.values())


def states(store: Store) -> list[tuple[str, str]]:
    return [(row.key, row.state) for row in summaries(store)]


def truth(store: Store) -> list[tuple[str, str]]:
    return [(entry.key, entry.state) for entry in store.entries()]


DAMAGES: dict[str, Callable[[Store, str], object]] = {
    "manifest flipped": lambda store, key: damage(store.layout.manifest(key), flip(500)),
    "manifest cut": lambda store, key: damage(store.layout.manifest(key), lambda data: data[:100]),
    "manifest gone": lambda store, key: store.layout.manifest(key).unlink(),
    "manifest of another": lambda store, key: store.layout.entry(key).rename(store.layout.entry("ab" * 32)),
    "newer format": lambda store, key: damage(
        store.layout.manifest(key), lambda data: data.replace(SCHEMA.encode(), SCHEMA.replace("/1", "/2").encode())
    ),
    "mega gone": lambda store, key: store.layout.mega(key).unlink(),
    "mega cut": lambda store, key: damage(store.layout.mega(key), lambda data: data[:-1]),
    "object gone": lambda store, key: store.layout.object(store.manifest(key).payloads[0].object).unlink(),
    "entry gone": lambda store, key: store.quarantine(key, "test"),
    "nothing": lambda store, key: None,
}


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES.keys())
def test_states_are_those_of_the_store_with_and_without_an_index(
    store: Store, key: str, how: Callable[[Store, str], object], warm: bool
) -> None:
    publish_numbered(store, 1)
    if warm:
        summaries(store)
    how(store, key)
    assert states(store) == truth(store)
    assert states(store) == truth(store)


def test_a_new_entry_a_new_tag_and_a_new_use_are_seen(store: Store, key: str, clock: Clock) -> None:
    summaries(store)
    clock.advance(5)
    other = publish_numbered(store, 1)
    store.touch(key)
    set_tag(store, "t", key)
    rows = {row.key: row for row in summaries(store)}
    assert rows.keys() == {key, other}
    assert (rows[key].last_used_ns, rows[key].tags) == (clock.now, ("t",))


def test_the_index_spares_reading_manifests(store: Store, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, near = summaries(store), nearest(store, FACTORS)
    monkeypatch.setattr("precast.cache.rows.glance", lambda data: pytest.fail("a manifest was read"))
    assert summaries(store) == rows
    assert nearest(store, FACTORS) == near


DAMAGED = [b"", b"{", b"[]", b'{"schema":"precast.index-summary/9","rows":{}}', b"\xff"]
SHAPES = ["7", "[]", "[1,2]", '{"KEY":[]}', '{"KEY":[SIG,7]}', '{"KEY":[SIG,["ok"]]}', '{"KEY":[SIG,["ok",1,2,[99]]]}']


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_index_is_made_anew(store: Store, key: str, data: bytes) -> None:
    rows, near = summaries(store), nearest(store, FACTORS)
    for name in ("summary", "factors"):
        index(store, name).write_bytes(data)
    assert (summaries(store), nearest(store, FACTORS)) == (rows, near)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_index_of_another_shape_is_made_anew(store: Store, key: str, shape: str) -> None:
    rows, near = summaries(store), nearest(store, FACTORS)
    status = store.layout.manifest(key).stat()
    signature = json.dumps([status.st_size, status.st_mtime_ns, status.st_ino])
    for name in ("summary", "factors"):
        filled = shape.replace("KEY", key).replace("SIG", signature)
        body = f'{{"schema":"precast.index-{name}/3","rows":{filled}}}'
        index(store, name).write_text(f'{{"digest":"{sha256(body.encode())}",{body[1:]}')
    assert (summaries(store), nearest(store, FACTORS)) == (rows, near)
    assert (summaries(store), nearest(store, FACTORS)) == (rows, near)


@pytest.mark.parametrize("name", ["summary", "factors"])
def test_an_index_with_one_wrong_byte_is_made_anew(store: Store, key: str, name: str) -> None:
    rows, near = summaries(store), nearest(store, FACTORS)
    whole = index(store, name).read_bytes()
    for number, byte in enumerate(whole):
        if chr(byte).isdigit():
            # Still JSON of the right shape, so that nothing but the digest tells.
            index(store, name).write_bytes(whole[:number] + bytes([byte ^ 1]) + whole[number + 1 :])
            assert (summaries(store), nearest(store, FACTORS)) == (rows, near), number


def test_a_manifest_that_is_too_young_for_its_time_to_tell_is_read_again(store: Store, key: str) -> None:
    now = time.time_ns()
    os.utime(store.layout.manifest(key), ns=(now, now))
    summaries(store)
    damage(store.layout.manifest(key), flip(500))
    os.utime(store.layout.manifest(key), ns=(now, now))
    assert states(store) == [(key, "damaged")]


def test_an_index_is_written_only_where_that_is_worth_it(store: Store, key: str) -> None:
    summaries(store, worth=2)
    assert not index(store).exists()
    publish_numbered(store, 1)
    settle(store)
    summaries(store, worth=2)
    assert index(store).exists()


def test_a_read_only_store_and_an_empty_one_are_not_written(store: Store, key: str, tmp_path: Path) -> None:
    before = files_below(store.root)
    reader = Store(store.root, read_only=True)
    assert len(summaries(reader)) == len(nearest(reader, FACTORS)) == 1
    assert files_below(store.root) == before
    empty = Store(tmp_path / "empty")
    assert (summaries(empty), nearest(empty, FACTORS)) == ((), ())
    assert not empty.root.exists()


def test_an_index_that_cannot_be_written_does_no_harm(store: Store, key: str) -> None:
    index(store).mkdir()
    assert len(summaries(store)) == 1


def test_no_path_and_no_host_is_in_an_index(store: Store, key: str, tmp_path: Path) -> None:
    summaries(store)
    nearest(store, FACTORS)
    data = index(store).read_text() + index(store, "factors").read_text()
    assert str(tmp_path) not in data
    assert os.uname().nodename not in data


def test_fewer_differences_are_nearer(store: Store) -> None:
    one = publish_with(store, Factor("compiler", "torch", "2.12.0"))
    two = publish_with(
        store, Factor("config", "settings.payload", "x"), Factor("env", "TORCHINDUCTOR_MAX_AUTOTUNE", "0")
    )
    near = nearest(store, FACTORS)
    assert [item.key for item in near] == [one, two]
    assert [(item.differing, item.shared, item.weight) for item in near] == [
        ({"compiler": 1}, 5, 4),
        ({"config": 1, "env": 1}, 4, 3),
    ]


def test_among_as_many_differences_the_graph_weighs_most_and_a_variable_least(store: Store) -> None:
    factors = (
        Factor("env", "TORCHINDUCTOR_MAX_AUTOTUNE", "0"),
        Factor("config", "model.layers", 5),
        Factor("compiler", "torch", "2.12.0"),
        Factor("code", "module:shop.model", "ab" * 32),
        Factor("graph", "graph", "cd" * 32),
    )
    keys = [publish_with(store, factor) for factor in factors]
    assert [item.key for item in nearest(store, FACTORS, limit=5)] == keys
    assert [item.key for item in nearest(store, FACTORS, limit=2)] == keys[:2]
    assert nearest(store, FACTORS, limit=0) == ()


def test_an_entry_of_the_same_model_is_nearer_than_any_other(store: Store) -> None:
    other = publish_with(store, Factor("env", "CC", "gcc"), model="large")
    own = publish_with(store, Factor("env", "CC", "gcc"), Factor("compiler", "torch", "1"), Factor("env", "CXX", "g++"))
    for name in ("tiny", "shop.model:tiny", "shop/model.py:tiny"):
        assert [(item.key, item.of_model) for item in nearest(store, FACTORS, model=name)] == [
            (own, True),
            (other, False),
        ]
    assert [item.key for item in nearest(store, FACTORS)] == [other, own]


def test_among_equals_the_last_used_is_nearest(store: Store, clock: Clock) -> None:
    keys = [publish_with(store, Factor("env", "CC", value)) for value in ("a", "b", "c")]
    clock.advance(1)
    store.touch(keys[1])
    assert nearest(store, FACTORS, limit=1)[0].key == keys[1]


def test_damaged_entries_are_not_ranked(store: Store, key: str) -> None:
    damage(store.layout.manifest(key), flip(500))
    assert nearest(store, FACTORS) == ()


def test_a_request_is_measured_by_its_model_and_what_the_model_is_given(store: Store) -> None:
    graph = Factor("graph", "graph", "cd" * 32)

    def publish_made(overrides: dict[str, Json]) -> str:
        made = (*request_factors("shop.model:tiny", overrides), graph)
        return publish(store, replace(make_manifest(factors=made), key=entry_key(made)), PAYLOADS)

    keys = {layers: publish_made({"layers": layers} if layers else {}) for layers in (0, 4, 5)}
    for layers, key in keys.items():
        near = nearest(store, request_factors("shop.model:tiny", {"layers": layers} if layers else {}))
        assert (near[0].key, near[0].differing) == (key, {})
        assert [item.differing for item in near[1:]] == [{"config": 1}] * 2
    assert nearest(store, request_factors("shop.model:large", {"layers": 4}))[0].differing == {"config": 1}


values: st.SearchStrategy[Any] = st.sampled_from(
    [None, "1", "2", 1, True, {"version": "1", "digest": "a"}, {"version": "2"}, "ab" * 32]
)
factors = st.dictionaries(
    st.sampled_from(
        [
            ("env", "CC"),
            ("env", "SHOP_MODE"),
            ("config", "model.a"),
            ("config", "model.set.a"),
            ("config", "model.spec.a"),
            ("config", "signature.a"),
            ("code", "module:m"),
            ("compiler", "torch"),
            ("compiler", "pass:p"),
            ("graph", "graph"),
        ]
    ),
    values,
).map(lambda named: tuple(Factor(group, name, value) for (group, name), value in named.items()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(stored=factors, asked=factors)
def test_ranking_and_diff_agree_on_which_factors_differ(
    tmp_path_factory: pytest.TempPathFactory, stored: tuple[Factor, ...], asked: tuple[Factor, ...]
) -> None:
    store = Store(tmp_path_factory.mktemp("root"))
    stored = (*(factor for factor in stored if factor.group != "graph"), Factor("graph", "graph", "cd" * 32))
    manifest = replace(make_manifest((), {}, stored), key=entry_key(stored))
    store.layout.prepare()
    store.publish(manifest)
    changes = diff_sides(manifest_side(manifest, "a"), Side("live", "", asked)).changes
    named = {(change.group, change.factor.split(".version")[0].split(".digest")[0]) for change in changes}
    (near,) = nearest(store, asked)
    assert near.differing == {
        group: count
        for group in ("graph", "code", "compiler", "config", "env")
        if (count := sum(label[0] == group for label in named))
    }


def test_entries_that_are_gone_leave_the_index(store: Store) -> None:
    keys = [publish_numbered(store, number) for number in range(3)]
    settle(store)
    summaries(store)
    assert json.loads(index(store).read_text())["rows"].keys() == set(keys)
    store.quarantine(keys[0], "test")
    summaries(store)
    kept = json.loads(index(store).read_text())
    assert kept["rows"].keys() == kept["stamps"].keys() == set(keys[1:])


def test_facts_of_entries_that_are_gone_leave_the_index(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.cache.index._SPARE_FACTS", 0)
    keys = [publish_with(store, Factor("env", f"TRITON_{number}", "1")) for number in range(20)]
    settle(store)
    nearest(store, FACTORS)
    full = len(json.loads(index(store, "factors").read_text())["facts"])
    for key in keys[1:]:
        store.quarantine(key, "test")
    assert [near.key for near in nearest(store, FACTORS)] == keys[:1]
    assert len(json.loads(index(store, "factors").read_text())["facts"]) == full - 19
