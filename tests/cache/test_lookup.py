import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.support import FACTORS, PAYLOADS, damage, files_below, flip, make_manifest, publish, request_factors
from tests.conftest import TINY

from precast.cache.canonical import Json
from precast.cache.environment import variable_factor
from precast.cache.factors import Factor, entry_key
from precast.cache.lookup import Lookup, MissReason, Request, lookup
from precast.cache.manifest import SCHEMA, Manifest
from precast.cache.requests import remember
from precast.cache.sources import distribution_content, hash_source
from precast.cache.store import Store


@dataclass
class Shop:
    """A model's sources on disk, an entry that was made of them, and the request that it answers."""

    store: Store
    folder: Path
    environ: dict[str, str]
    factors: tuple[Factor, ...] = ()
    key: str = ""

    @property
    def request(self) -> Request:
        return Request(FACTORS)

    def build(self) -> None:
        search_path = [str(self.folder)]
        content = distribution_content("shop-tools", search_path)
        assert content is not None
        self.factors = (
            *FACTORS,
            Factor("code", "module:shop.model", hash_source(self.folder / "shop/model.py")),
            Factor("code", "data:shop/table.json", hash_source(self.folder / "shop/table.json")),
            Factor("code", "distribution:shop-tools", {"version": content.version, "digest": content.digest}),
            variable_factor("SHOP_MODE", self.environ),
            variable_factor("SHOP_EXTRA", self.environ),
        )
        self.key = publish(self.store, make_manifest(factors=self.factors), PAYLOADS)
        remember(self.store, self.request.digest, self.key, {})

    def look(self) -> Lookup:
        return lookup(self.store, self.request, [str(self.folder)], self.environ)


@pytest.fixture
def shop(store: Store, tmp_path: Path) -> Shop:
    folder = tmp_path / "site"
    metadata = folder / "shop_tools-1.2.dist-info"
    (folder / "shop").mkdir(parents=True)
    metadata.mkdir()
    (folder / "shop/__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "shop/model.py").write_text("raise RuntimeError('imported')\n")
    (folder / "shop/table.json").write_text("[]")
    (metadata / "METADATA").write_text("Version: 1.2\n")
    (metadata / "RECORD").write_text("shop/model.py,sha256=aaa,1\n")
    shop = Shop(store, folder, {"SHOP_MODE": "fast"})
    shop.build()
    return shop


def test_an_unchanged_world_is_a_hit_that_imports_nothing_and_writes_nothing(shop: Shop) -> None:
    files, modules = files_below(shop.store.root), set(sys.modules)
    found = shop.look()
    assert found.reasons == ()
    assert found.hit == shop.store.manifest(shop.key)
    assert files_below(shop.store.root) == files
    assert {name for name in set(sys.modules) - modules if name.startswith("shop")} == set()


def test_sources_in_another_place_are_the_same(shop: Shop, tmp_path: Path) -> None:
    shop.folder = shop.folder.rename(tmp_path / "elsewhere")
    assert shop.look().hit is not None


def edit(name: str) -> Callable[[Shop], None]:
    return lambda shop: damage(shop.folder / name, lambda data: data + b" ")


def remove(name: str) -> Callable[[Shop], None]:
    return lambda shop: (shop.folder / name).unlink()


CHANGES: dict[str, tuple[Callable[[Shop], object], str]] = {
    "edited module": (edit("shop/model.py"), "code/module:shop.model"),
    "removed module": (remove("shop/model.py"), "code/module:shop.model"),
    "edited data": (edit("shop/table.json"), "code/data:shop/table.json"),
    "removed data": (remove("shop/table.json"), "code/data:shop/table.json"),
    "reinstalled distribution": (edit("shop_tools-1.2.dist-info/RECORD"), "code/distribution:shop-tools"),
    "changed variable": (lambda shop: shop.environ.update(SHOP_MODE="slow"), "env/SHOP_MODE"),
    "removed variable": (lambda shop: shop.environ.clear(), "env/SHOP_MODE"),
    "new variable": (lambda shop: shop.environ.update(SHOP_EXTRA="1"), "env/SHOP_EXTRA"),
}


@pytest.mark.parametrize(("change", "label"), CHANGES.values(), ids=CHANGES.keys())
def test_one_change_is_a_miss_that_names_it_with_old_and_new_value(
    shop: Shop, change: Callable[[Shop], object], label: str
) -> None:
    change(shop)
    found = shop.look()
    assert found.hit is None
    (reason,) = found.reasons
    assert (reason.code, reason.entry, reason.factor) == ("factor_changed", shop.key, label)
    old = next(factor.value for factor in shop.factors if factor.label == label)
    assert reason.a == old
    assert reason.b != old


def test_all_changes_are_named(shop: Shop) -> None:
    edit("shop/model.py")(shop)
    shop.environ.clear()
    assert {reason.factor for reason in shop.look().reasons} == {"code/module:shop.model", "env/SHOP_MODE"}


def test_a_removed_module_has_no_new_value(shop: Shop) -> None:
    remove("shop/model.py")(shop)
    assert shop.look().reasons[0].b is None


def test_a_code_factor_of_an_unknown_kind_is_never_taken_as_unchanged(store: Store) -> None:
    factors = (*FACTORS, Factor("code", "notebook:cell", "ab"))
    key = publish(store, replace(make_manifest(), factors=factors), PAYLOADS)
    remember(store, Request(FACTORS).digest, key, {})
    assert [reason.factor for reason in lookup(store, Request(FACTORS), [], {}).reasons] == ["code/notebook:cell"]


def test_a_remembered_entry_of_another_request_is_no_hit(shop: Shop) -> None:
    other = Request((*FACTORS[:-2], Factor("compiler", "torch", "2.14.0")))
    remember(shop.store, other.digest, shop.key, {})
    (reason,) = lookup(shop.store, other, [str(shop.folder)], shop.environ).reasons
    assert (reason.code, reason.factor, reason.a, reason.b) == ("factor_changed", "compiler/torch", "2.13.0", "2.14.0")


def misplaced(shop: Shop, request: Request) -> list[tuple[str, str, object, object]]:
    """Copy the entry's pointer to where another request looks, and look."""
    requests = shop.store.layout.requests
    (requests / f"{request.digest}.json").write_bytes((requests / f"{shop.request.digest}.json").read_bytes())
    found = lookup(shop.store, request, [str(shop.folder)], shop.environ)
    assert found.hit is None
    return [(reason.code, reason.factor, reason.a, reason.b) for reason in found.reasons]


def test_a_factor_of_the_request_that_an_entry_lacks_speaks_against_it(shop: Shop) -> None:
    for value in (2, None):
        request = Request((*FACTORS, Factor("config", "model.set.heads", value)))
        assert misplaced(shop, request) == [("factor_changed", "config/model.set.heads", None, value)]


def test_a_factor_of_an_entry_that_the_request_lacks_speaks_against_it(shop: Shop) -> None:
    request = Request(tuple(factor for factor in FACTORS if factor.name != "model.layers"))
    assert misplaced(shop, request) == [("factor_changed", "config/model.layers", 4, None)]


def test_a_pointer_to_the_entry_of_another_real_request_is_no_hit(store: Store) -> None:
    models: list[tuple[str, dict[str, Json]]] = [
        ("shop.model:tiny", {}), ("shop.model:tiny", {"a": 1}), ("shop.model:tiny", {"a": 1, "b": 2}),
        ("shop.model:large", {}), (str(TINY), {}), (str(TINY), {"rms_norm_eps": 0.5}),
    ]  # fmt: skip
    requests = [Request(request_factors(model, overrides)) for model, overrides in models]
    for request in requests:
        made = (*request.factors, Factor("graph", "graph", "ab" * 32), Factor("config", "signature.order", ["x"]))
        key = publish(store, make_manifest(factors=made), PAYLOADS)
        for other in requests:
            remember(store, other.digest, key, {})
            found = lookup(store, other, [], {}).hit
            assert (found is not None and found.key == key) is (other is request)
            (store.layout.requests / f"{other.digest}.json").unlink()


def test_an_unknown_request_has_no_entry(store: Store) -> None:
    assert lookup(store, Request(FACTORS), [], {}) == Lookup(None, (MissReason("no_entry_for_model"),))


def test_an_entry_that_is_gone_is_missing(shop: Shop) -> None:
    shop.store.quarantine(shop.key, "test")
    assert [(reason.code, reason.factor) for reason in shop.look().reasons] == [("artifact_missing", "manifest.json")]


def test_a_missing_object_and_a_shortened_mega_artifact_are_named(shop: Shop) -> None:
    name = shop.store.manifest(shop.key).payloads[0].object
    shop.store.layout.object(name).unlink()
    damage(shop.store.layout.mega(shop.key), lambda data: data[:-1])
    reasons = shop.look().reasons
    assert [reason.code for reason in reasons] == ["artifact_missing", "artifact_missing"]
    assert name in reasons[0].factor
    assert "model.mega" in reasons[1].factor


def test_a_damaged_manifest_is_corrupt(shop: Shop) -> None:
    damage(shop.store.layout.manifest(shop.key), flip(500))
    assert [reason.code for reason in shop.look().reasons] == ["corrupt"]


@pytest.mark.parametrize(("version", "code"), [(0, "format_too_old"), (2, "format_too_new")])
def test_another_format_is_named(shop: Shop, version: int, code: str) -> None:
    schema = SCHEMA.replace("/1", f"/{version}")
    damage(shop.store.layout.manifest(shop.key), lambda data: data.replace(SCHEMA.encode(), schema.encode()))
    assert [reason.code for reason in shop.look().reasons] == [code]


def test_a_later_candidate_is_tried_after_a_bad_one(shop: Shop) -> None:
    remember(shop.store, shop.request.digest, "ab" * 32, {})
    assert shop.look().hit is not None


@given(st.permutations(FACTORS))
def test_the_order_of_a_request_does_not_matter(factors: list[Factor]) -> None:
    assert Request(tuple(factors)).digest == Request(FACTORS).digest


def test_a_request_is_never_taken_for_a_key() -> None:
    assert Request(FACTORS).digest != entry_key(FACTORS)


def test_an_entry_that_does_not_fit_the_node_is_passed_over(shop: Shop) -> None:
    reason = MissReason("target_mismatch", shop.key, "glibc", "2.38", "2.31")
    asked: list[str] = []

    def unfit(entry: Manifest) -> tuple[MissReason, ...]:
        asked.append(entry.key)
        return (reason,)

    found = lookup(shop.store, shop.request, [str(shop.folder)], shop.environ, unfit)
    assert (found.hit, found.reasons, asked) == (None, (reason,), [shop.key])
    assert lookup(shop.store, shop.request, [str(shop.folder)], shop.environ, lambda _: ()).hit is not None
