import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.support import FACTORS, make_manifest

from precast.cache.canonical import sha256
from precast.cache.glance import glance, skim
from precast.cache.manifest import SCHEMA, Manifest, MegaRecord, ModelRecord, SourcesRecord
from precast.errors import CorruptError, FormatError


def test_a_glance_reads_what_the_full_reading_reads() -> None:
    manifest = make_manifest()
    document = glance(manifest.to_json())
    assert (document["key"], len(document["factors"])) == (manifest.key, len(FACTORS))
    indented = json.dumps(json.loads(manifest.to_json()), indent=1).encode()
    assert glance(indented)["key"] == Manifest.from_json(indented).key


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_changed_byte_escapes_a_glance(position: int, change: int) -> None:
    data = bytearray(make_manifest().to_json())
    data[position % len(data)] ^= change
    with pytest.raises((CorruptError, FormatError)):
        glance(bytes(data))


SKIMMED = {"build", "mega", "model", "payloads", "key", "schema", "settings", "stamps", "target"}
MARKS = [
    ',"plan":{',
    ',"code":',
    f',"schema":"{SCHEMA}","settings":',
    f'"digest":"{"ab" * 32}",',
    "}",
    '"',
]
texts = st.lists(st.sampled_from([*MARKS, "x", "\\", "\n", "\u00e4"]), max_size=4).map("".join)
values = st.recursive(
    texts | st.integers(), lambda inner: st.dictionaries(texts | st.sampled_from(["plan", "key"]), inner)
)


@given(
    name=texts, code=texts, config=st.dictionaries(texts, values, max_size=3), mega=st.booleans(), more=st.booleans()
)
def test_a_skim_finds_what_a_glance_finds_or_nothing(
    name: str, code: str, config: dict[str, object], mega: bool, more: bool
) -> None:
    made = replace(make_manifest(), model=ModelRecord(name, "shop.model:tiny", config), code=code)  # type: ignore[arg-type]
    made = replace(made, mega=MegaRecord(sha256(b"m"), 1) if mega else None, ignored=("HOME",) if more else ())
    made = replace(made, sources=SourcesRecord(sha256(b"s"), 1, 1) if more else None)
    data = made.to_json()
    whole, found = glance(data), skim(data, made.key)
    if found is not None:
        assert found == {member: whole[member] for member in (SKIMMED | {"sources"} if more else SKIMMED)}
    assert found is not None or any(mark in json.dumps(config) for mark in ("plan", "code", "schema"))


def test_a_usual_manifest_is_skimmed() -> None:
    made = make_manifest()
    found = skim(made.to_json(), made.key)
    assert found is not None
    assert [item["object"] for item in found["payloads"]] == list(made.objects)
    assert skim(made.to_json(), "ab" * 32) is None
    assert skim(json.dumps(json.loads(made.to_json()), indent=1).encode(), made.key) is None


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_changed_byte_escapes_a_skim(position: int, change: int) -> None:
    made = make_manifest()
    data = bytearray(made.to_json())
    data[position % len(data)] ^= change
    assert skim(bytes(data), made.key) is None
