"""Scenario S3 at the level of the library: say why a key changed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.cache.support import PAYLOADS, damage, flip, make_manifest, publish, request_factors, with_sources

from precast.cache.canonical import Json, sha256
from precast.cache.diff import Side, diff_sides
from precast.cache.environment import environment_factors, variable_factor
from precast.cache.explain import Explanation, explain
from precast.cache.factors import Factor, entry_key
from precast.cache.lookup import Lookup, MissReason, Request, lookup
from precast.cache.manifest import Manifest, ModelRecord, SettingRecord
from precast.cache.requests import remember
from precast.cache.side import entry_side
from precast.cache.store import Store
from precast.cache.tags import set_tag
from precast.errors import NoEntryError

COUNT, CHOSEN = 500, 137
MODEL = "class Tiny:\n    scale = 2\n    heads = 4\n"
LAYERS = "def norm(x):\n    return x\n"
ENVIRON = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "SHOP_MODE": "fast", "SHOP_TOKEN": "hunter2"}


@dataclass(frozen=True)
class World:
    """A machine, its software and the sources of a model, from which entries and requests are made."""

    layers: int = CHOSEN
    torch: str = "2.13.0"
    environ: Mapping[str, str] = field(default_factory=lambda: dict(ENVIRON))
    model: str = MODEL
    factory: str = "tiny"

    @property
    def request(self) -> tuple[Factor, ...]:
        """What is known before tracing."""
        torch = Factor("compiler", "torch", {"version": self.torch, "digest": sha256(self.torch.encode())})
        asked = request_factors(f"shop.model:{self.factory}", {"layers": self.layers})
        others = (factor for factor in asked if factor.label != torch.label)
        return (*others, torch, *environment_factors(self.environ))

    @property
    def looked_up(self) -> tuple[Factor, ...]:
        """What an entry tells to look at."""
        texts = {"shop.model": self.model, "shop.layers": LAYERS}
        modules = (Factor("code", f"module:{name}", sha256(text.encode())) for name, text in texts.items())
        return (*modules, *(variable_factor(name, self.environ) for name in ("SHOP_MODE", "SHOP_TOKEN", "SHOP_NEW")))

    @property
    def live(self) -> Side:
        texts = {"shop.model": self.model, "shop.layers": LAYERS}
        return Side("live", "", (*self.request, *self.looked_up), texts)

    @property
    def manifest(self) -> Manifest:
        order = Factor("config", "signature.order", ["tokens"])
        traced = (order, Factor("graph", "graph", sha256(repr(self).encode())))
        factors = (*self.request, *self.looked_up, *traced)
        config: dict[str, Json] = {"layers": self.layers, "overrides": {"layers": self.layers}}
        model = ModelRecord(self.factory, f"shop/model.py:{self.factory}", config)
        return replace(make_manifest(factors=factors), key=entry_key(factors), model=model)


def add(store: Store, world: World) -> str:
    named, raw = with_sources(world.manifest, {"shop.model": world.model, "shop.layers": LAYERS})
    return publish(store, named, (*PAYLOADS, raw))


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, str]:
    """A root with 500 entries, and the key of the one that the requests differ from."""
    store = Store(tmp_path_factory.mktemp("crowd"))
    key = add(store, World())
    raw = (store.layout.manifest(key), store.layout.mega(key))
    for layers in (number for number in range(COUNT) if number != CHOSEN):
        # Written as `publish` leaves it, without its syncs.
        world = World(layers=layers, torch=random.Random(layers).choice(["2.11.0", "2.12.0", "2.13.0"]))
        manifest = replace(world.manifest, sources=store.manifest(key).sources, mega=store.manifest(key).mega).sealed()
        folder = store.layout.entry(manifest.key)
        folder.mkdir()
        (folder / "manifest.json").write_bytes(manifest.to_json())
        (folder / "model.mega").hardlink_to(raw[1])
    return store, key


def asked(store: Store, world: World) -> Explanation:
    return explain(store, world.live, lookup(store, Request(world.request), [], world.environ))


def with_environ(**changes: str | None) -> dict[str, str]:
    merged = {**ENVIRON, **changes}
    return {name: value for name, value in merged.items() if value is not None}


A: dict[str, object] = {"environ": with_environ(TORCHINDUCTOR_MAX_AUTOTUNE="0")}
B: dict[str, object] = {"model": MODEL.replace("scale = 2", "scale = 3")}
CASES: dict[str, tuple[dict[str, object], list[tuple[str, Json, Json]]]] = {
    "a: one variable": (A, [("env/TORCHINDUCTOR_MAX_AUTOTUNE", "1", "0")]),
    "a: one that the model reads": ({"environ": with_environ(SHOP_MODE=None)}, [("env/SHOP_MODE", "fast", None)]),
    "a: one that it looked for": ({"environ": with_environ(SHOP_NEW="1")}, [("env/SHOP_NEW", None, "1")]),
    "b: one line": (B, [("code/module:shop.model", "digest", "digest")]),
    "c: torch": ({"torch": "2.13.1"}, [("compiler/torch.version", "2.13.0", "2.13.1")]),
    "d: a and b": (
        A | B,
        [("env/TORCHINDUCTOR_MAX_AUTOTUNE", "1", "0"), ("code/module:shop.model", "digest", "digest")],
    ),
    "e: a token": ({"environ": with_environ(SHOP_TOKEN="hunter3")}, [("env/SHOP_TOKEN", "secret", "secret")]),
}
each_case = pytest.mark.parametrize(("changes", "expected"), CASES.values(), ids=CASES.keys())


@each_case
def test_the_nearest_entry_is_found_and_exactly_the_changed_factors_are_listed(
    crowd: tuple[Store, str], changes: dict[str, object], expected: list[tuple[str, Json, Json]]
) -> None:
    store, key = crowd
    world = World(**changes)  # type: ignore[arg-type]
    found = asked(store, world)
    assert (found.status, found.key) == ("miss", "")
    assert found.nearest is not None
    assert found.diff is not None
    assert (found.nearest.key, found.nearest.of_model) == (key, True)
    assert sum(found.nearest.differing.values()) == len(expected)
    assert [change.label for change in found.diff.changes] == [label for label, _, _ in expected]
    for change, (_, old, new) in zip(found.diff.changes, expected, strict=True):
        assert change.severity == "breaking"
        assert len(change.reason) > 10
        if old not in ("digest", "secret"):
            assert (change.a, change.b) == (old, new)
    assert [(reason.code, reason.entry, reason.factor, reason.a, reason.b) for reason in found.reasons] == [
        ("factor_changed", key, change.label, change.a, change.b) for change in found.diff.changes
    ]
    assert len(found.advice) == len(expected) + 1
    assert "unknown" not in str(found)
    assert "hunter" not in str(found)


def test_for_code_the_file_and_the_line_are_named(crowd: tuple[Store, str]) -> None:
    found = asked(crowd[0], World(**B))  # type: ignore[arg-type]
    assert found.diff is not None
    (change,) = found.diff.changes
    assert [(line.module, line.line_a, line.line_b, line.a, line.b) for line in change.lines] == [
        ("shop.model", 2, 2, "    scale = 2", "    scale = 3")
    ]
    assert found.advice[0] == "Revert shop/model.py line 2 (module shop.model)"


@each_case
def test_swapped_sides_give_the_mirrored_diff(
    crowd: tuple[Store, str], changes: dict[str, object], expected: list[tuple[str, Json, Json]]
) -> None:
    store, key = crowd
    entry, live = entry_side(key, store), World(**changes).live  # type: ignore[arg-type]
    assert diff_sides(live, entry) == diff_sides(entry, live).mirrored()
    assert len(diff_sides(live, entry).changes) == len(expected)


@pytest.fixture
def entry(store: Store) -> str:
    return add(store, World())


def test_a_remembered_request_is_a_hit_with_nothing_to_say(store: Store, entry: str, tmp_path: Path) -> None:
    hit = Lookup(store.manifest(entry), ())
    found = explain(store, World().live, hit)
    assert (found.status, found.key, found.reasons, found.advice) == ("hit", entry, (), ())
    assert (found.nearest, found.diff) == (None, None)
    against = explain(store, World().live, hit, against=entry)
    assert against.diff is not None
    assert (against.status, against.diff.changes) == ("hit", ())


def test_an_empty_store_has_no_entry_of_the_model(store: Store) -> None:
    found = asked(store, World())
    assert found.reasons == (MissReason("no_entry_for_model"),)
    assert found.advice == ("Run `precast precompile`: no entry of this model is stored",)


def test_an_entry_of_another_model_is_shown_and_not_advised(store: Store, entry: str) -> None:
    found = asked(store, World(factory="large"))
    assert found.nearest is not None
    assert (found.nearest.key, found.nearest.of_model) == (entry, False)
    assert [reason.code for reason in found.reasons] == ["no_entry_for_model"]
    assert len(found.advice) == 1


def test_an_entry_that_no_request_led_to_is_said_to_need_a_trace(store: Store, entry: str) -> None:
    found = asked(store, World())
    assert found.reasons == (MissReason("no_entry_for_model", entry),)
    assert "trace" in found.advice[0]
    assert found.diff is not None
    assert found.diff.changes == ()


def test_another_override_is_named_with_the_flag_that_sets_it_back(store: Store, entry: str) -> None:
    found = asked(store, World(layers=7))
    assert [(reason.factor, reason.a, reason.b) for reason in found.reasons] == [("config/model.set.layers", CHOSEN, 7)]
    assert found.advice[0] == f"Pass --set layers={CHOSEN}"


def test_a_value_that_is_no_longer_given_is_named(store: Store, entry: str) -> None:
    world = World()
    request = tuple(factor for factor in world.request if factor.name != "model.set.layers")
    found = explain(store, replace(world.live, factors=request), lookup(store, Request(request), [], world.environ))
    assert [(r.factor, r.a, r.b) for r in found.reasons] == [("config/model.set.layers", CHOSEN, None)]


def test_an_entry_to_measure_against_can_be_named(store: Store, entry: str) -> None:
    other = add(store, World(layers=1, torch="2.11.0"))
    set_tag(store, "old", other)
    world = World(torch="2.13.1")
    answer = lookup(store, Request(world.request), [], world.environ)
    for name in (other, other[:8], "old"):
        found = explain(store, world.live, answer, against=name)
        assert found.nearest is not None
        assert found.diff is not None
        assert found.nearest.key == other
        assert [change.label for change in found.diff.changes] == ["config/model.set.layers", "compiler/torch.version"]
    with pytest.raises(NoEntryError):
        explain(store, world.live, answer, against="nothing")


def test_damage_is_named_before_anything_else(store: Store, entry: str) -> None:
    world = World()
    remember(store, Request(world.request).digest, entry, {})
    store.layout.mega(entry).unlink()
    found = explain(store, world.live, Lookup(None, (MissReason("artifact_missing", entry, "model.mega is missing"),)))
    assert [reason.code for reason in found.reasons] == ["artifact_missing"]
    assert "precompile" in found.advice[0]
    damage(store.layout.manifest(entry), flip(500))
    found = asked(store, world)
    assert [reason.code for reason in found.reasons] == ["corrupt", "no_entry_for_model"]
    assert found.nearest is None


def test_what_the_lookup_found_in_files_is_part_of_the_difference(store: Store, entry: str) -> None:
    world = World()
    remember(store, Request(world.request).digest, entry, {})
    bare = Side("live", "", world.request)
    environ = with_environ(SHOP_TOKEN="hunter3")
    found = explain(store, bare, lookup(store, Request(world.request), [], environ))
    assert [(reason.factor, reason.b) for reason in found.reasons] == [
        ("env/SHOP_TOKEN", f"sha256:{sha256(b'hunter3')[:8]}"),
        ("code/module:shop.layers", None),
        ("code/module:shop.model", None),
    ]
    assert "Bring back shop/layers.py (module shop.layers)" in found.advice


def test_a_request_shows_no_secret(store: Store) -> None:
    assert "hunter" not in str(asked(store, World()).request_factors)
    shown = {factor.name: factor.value for factor in asked(store, World()).request_factors}
    assert shown["SHOP_TOKEN"] == f"sha256:{sha256(b'hunter2')[:8]}"


def test_a_setting_outside_the_key_is_noise_and_gives_no_reason(store: Store) -> None:
    manifest = replace(World().manifest, settings=(SettingRecord("jobs", 1, "flag"),))
    entry = publish(store, manifest, PAYLOADS)
    live = replace(World(torch="2.14.0").live, settings=(SettingRecord("jobs", 2, "flag"),))
    found = explain(store, live, Lookup(None, ()), exclusions={"jobs": "how many"})
    assert found.diff is not None
    assert [(change.label, change.severity) for change in found.diff.changes] == [
        ("config/settings.jobs", "noise"),
        ("compiler/torch.version", "breaking"),
    ]
    assert [(reason.entry, reason.factor) for reason in found.reasons] == [(entry, "compiler/torch.version")]
