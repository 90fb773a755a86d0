"""L1 and L6: sign an entry, ship it as one file, and load nothing that the right key did not sign. Fresh processes."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.aot.support import manifest, publish
from tests.cache.keys import private_key, write_keys
from tests.cache.support import FACTORS
from tests.conftest import MAX_TOKENS, TINY, TinyEntry
from tests.scenarios.conftest import Precast

from precast.aot.stamps import payload_stamps
from precast.aot.target import Target, cpu_isa
from precast.cache.factors import Factor, entry_key
from precast.cache.manifest import Manifest
from precast.cache.signing import sign_entry
from precast.errors import ExitCode

OPTIONS = ("--target", "cpu", "--max-num-batched-tokens", str(MAX_TOKENS), "--json")


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.place, "it sang"))


def canary_entry(root: Path, place: Path) -> Manifest:
    """Put an entry into a root whose payload, of a kind that torch unpickles, is a canary; another key signed it."""
    raw = pickle.dumps(Canary(place))
    factors = (*FACTORS, Factor("config", "model.canary", 1))
    target = Target("cpu", cpu_isa())
    made = manifest(raw=raw, key=entry_key(factors), factors=factors)
    payloads = tuple(replace(payload, kind="inductor") for payload in made.payloads)
    made = replace(made, payloads=payloads, stamps={"inductor": payload_stamps("inductor", target)})
    store = publish(root, made, raw)
    sign_entry(store, store.manifest(made.key), private_key("two"))
    return made


@pytest.mark.compiles
def test_an_entry_is_signed_shipped_and_loaded_and_nothing_else_is(
    tiny_entry: TinyEntry, precast: Precast, tmp_path: Path
) -> None:
    entry = tiny_entry.copy_to(tmp_path / "root")
    one, two = (write_keys(tmp_path / "keys", name) for name in ("one", "two"))
    shipped, root = tmp_path / "model.mega", ("--cache-dir", str(entry.root))

    signing = ("--sign", str(one.private), "--output", str(shipped))
    made = precast("precompile", str(TINY), *OPTIONS, *root, *signing)
    assert made.status == 0, made.err
    assert (made.json["data"]["status"], made.json["data"]["signed_by"]) == ("up_to_date", [one.id])

    asked = ("--level", "load", "--json", "--require-signature", str(one.public))
    for what in ((entry.key, *root), (str(shipped),)):
        done = precast("verify", *what, *asked)
        assert done.status == 0, done.err
        data = done.json["data"]
        assert (data["verified"], data["level"]) == (True, "load")
        assert data["stages"][0]["summary"] == f"signed by {one.id}"
        wrong = precast("verify", *what, *asked[:-1], str(two.public))
        assert (wrong.status, wrong.json["errors"][0]["code"]) == (ExitCode.CORRUPT, "store.signature")
        assert [stage["name"] for stage in wrong.json["data"]["stages"]] == ["signature"]


@pytest.mark.compiles
def test_a_payload_that_another_key_signed_is_not_unpickled(precast: Precast, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    made = canary_entry(tmp_path / "root", canary)
    one, two = (write_keys(tmp_path / "keys", name) for name in ("one", "two"))
    what = ("verify", made.key, "--cache-dir", str(tmp_path / "root"), "--level", "load", "--json")
    done = precast(*what, "--require-signature", str(one.public))
    assert (done.status, done.json["errors"][0]["code"]) == (ExitCode.CORRUPT, "store.signature")
    assert not canary.exists()
    # The canary does sing for the key that signed it: it is loaded then, and torch finds that it is no artifact.
    assert precast(*what, "--require-signature", str(two.public)).status == ExitCode.CORRUPT
    assert canary.exists()
