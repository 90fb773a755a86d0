"""Fixtures of the cache: a store in a temporary folder, with a clock that stands still."""

from pathlib import Path

import pytest
from tests.cache.support import PAYLOADS, Clock, make_manifest, publish

from precast.cache.store import Store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Store:
    return Store(tmp_path / "root", clock=clock, lock_timeout_s=5)


@pytest.fixture
def key(store: Store) -> str:
    """The key of an entry with two payloads, two constants and a mega artifact."""
    return publish(store, make_manifest(), PAYLOADS)
