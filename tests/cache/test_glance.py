import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.support import FACTORS, make_manifest

from precast.cache.glance import glance
from precast.cache.manifest import Manifest
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
